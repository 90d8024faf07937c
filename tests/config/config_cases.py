# SPDX-License-Identifier: Apache-2.0
"""How these tests load settings: a config file from text, an environment without anything of the machine's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockgate.config.load import load_settings
from lockgate.config.settings import Settings
from lockgate.errors import ConfigFaults

PII = "detectors: {pii: {embedded: pii}}\n"
REMOTE = "{type: text_contents, service: {hostname: pii.internal}, chunker_id: sentence, default_threshold: 0.5}"
HOME = {"HOME": "/home/someone"}


class Loader:
    """Loads text as `config.yaml` in an empty directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "config.yaml"

    def load(self, text: str | None, environ: Mapping[str, str] | None = None, **flags: Any) -> Settings:
        """The settings; a flag `server__http_port` stands for `server.http_port`."""
        path = None
        if text is not None:
            path = self.path
            path.write_text(text, encoding="utf-8")
        given = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(config_path=path, flags=given, environ={**HOME, **(environ or {})})

    def faults(self, text: str | None, environ: Mapping[str, str] | None = None, **flags: Any) -> list[str]:
        """What is wrong, each without the name of the directory."""
        with pytest.raises(ConfigFaults) as caught:
            self.load(text, environ, **flags)
        return [str(fault).replace(f"{self.path.parent}/", "") for fault in caught.value.faults]
