# SPDX-License-Identifier: Apache-2.0
"""The embedded index as a plugin; its only option is `file`, by default `index.db`."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from lockgate.errors import ConfigError
from lockgate.index.fts import FtsDataSource, open_index

NAME = "index"


def find_index_file(options: Mapping[str, Any], data_dir: Path) -> Path:
    """Returns the path of the index: in the data directory unless the option is absolute; raises ConfigError."""
    for key in options:
        if key != "file":
            raise ConfigError("no such option; the index has only `file`", source="options", key=key)
    file = options.get("file", "index.db")
    if not isinstance(file, str) or not file or "\0" in file:
        raise ConfigError("must be the name of a file", source="options", key="file")
    return data_dir / file


def open_index_part(options: Mapping[str, Any]) -> AbstractAsyncContextManager[FtsDataSource]:
    """Opens the index as a plugin without a context: in the working directory, searched by words only."""
    return open_index(find_index_file(options, Path()), None, NAME)
