# SPDX-License-Identifier: Apache-2.0
"""A detector for tests that never answers and writes to a file when it began and when it was cancelled."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lockgate.errors import InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers
from tests.waits import forever


class SlowDetector:
    """Reads for ever. `diary` gets one line per step."""

    lookbehind_chars = 0

    def __init__(self, diary: Path | None) -> None:
        self._diary = diary

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "SlowDetector":
        for name in params:
            raise InvalidRequest(f"unknown parameter `{name}`, this detector takes none")
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        self._note("began")
        try:
            await forever()
        except asyncio.CancelledError:
            self._note("cancelled")
            raise

    def _note(self, step: str) -> None:
        if self._diary is not None:
            with self._diary.open("a") as diary:
                diary.write(f"{step}\n")


@asynccontextmanager
async def open_slow_detector(options: Mapping[str, Any]) -> AsyncIterator[SlowDetector]:
    diary = options.get("diary")
    yield SlowDetector(Path(diary) if diary else None)


class BrokenDetector(SlowDetector):
    """Has a bug."""

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        raise ZeroDivisionError("secret words of the implementation")


@asynccontextmanager
async def open_broken_detector(options: Mapping[str, Any]) -> AsyncIterator[BrokenDetector]:
    yield BrokenDetector(None)


def read_diary(path: Path) -> list[str]:
    """The steps so far."""
    return path.read_text().splitlines() if path.exists() else []
