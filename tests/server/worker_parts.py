# SPDX-License-Identifier: Apache-2.0
"""A detector for tests that can be opened only so many times, by whatever process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lockgate.errors import ConfigError
from tests.server.slow_parts import SlowDetector


@asynccontextmanager
async def open_rare_detector(options: Mapping[str, Any]) -> AsyncIterator[SlowDetector]:
    with open(options["register"], "a") as register:  # noqa: ASYNC230 - one line
        register.write("opened\n")
    if count_openings(Path(options["register"])) > options["times"]:
        raise ConfigError("has been opened too often", source="options", key="times")
    yield SlowDetector(None)


def count_openings(register: Path) -> int:
    """How often it has been tried."""
    return len(register.read_text().splitlines())
