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

# Every setting of agents, none of them its default.
SECRETS = {"DSN": "postgresql://me:hunter2@db/passages", "ES_KEY": "swordfish"}
WHOLE = f"""{PII}
models:
  big: {{ollama: {{url: "http://o:11434", model: "llama3:70b"}}}}
  small: {{openai: {{url: "http://s/v1", model: s}}}}
sources:
  pg: {{postgres: {{dsn_env: DSN, table: notes_2}}}}
  es: {{elasticsearch: {{url: "https://es:9200/", index: docs-1, api_key_env: ES_KEY}}}}
  here: {{embedded: index, options: {{file: other.db}}}}
policies: {{support: {{output: {{pii: {{}}}}, on_finding: mask}}}}
agents:
  default:
    main: big
    conversational: small
    sources: [pg, es, here]
    policy: support
    platform_route: true
    prepare_timeout_s: 1.5
    first_token_timeout_s: 2
    token_gap_timeout_s: 3
    history_messages: 4
    history_tokens: 500
    passages: 6
    min_similarity: -0.5
  bare: {{main: small, sources: []}}
sessions: {{postgres: {{dsn_env: DSN}}, retention_days: 30, max_messages: 50, shared_default: false}}
embeddings: {{ollama: {{url: "http://o:11434", model: bge}}}}
classifier: {{model_path: labels.onnx, confidence_threshold: 0.9, export_dir: labels, export_threshold: 7}}
evaluation: {{judge: small, questions: questions.jsonl}}
limits: {{agent_request_bytes: 100}}
"""


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
