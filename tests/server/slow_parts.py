# SPDX-License-Identifier: Apache-2.0
"""A detector for tests that waits before it answers and writes to a file when it began, ended or was cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lockgate.core.values import Detection, Excerpt
from lockgate.errors import InvalidRequest
from lockgate.interfaces import Headers


class SlowDetector:
    """Finds nothing, `delay_s` later. `diary` gets one line per step: what happened, and when."""

    lookbehind_chars = 0

    def __init__(self, delay_s: float, diary: Path | None) -> None:
        self._delay_s = delay_s
        self._diary = diary

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "SlowDetector":
        for name in params:
            raise InvalidRequest(f"unknown parameter `{name}`, this detector takes none")
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        self._note("began")
        try:
            await asyncio.sleep(self._delay_s)
        except asyncio.CancelledError:
            self._note("cancelled")
            raise
        self._note("ended")
        return [() for _ in excerpts]

    def _note(self, step: str) -> None:
        if self._diary is not None:
            with self._diary.open("a") as diary:
                diary.write(f"{step} {time.monotonic()}\n")


@asynccontextmanager
async def open_slow_detector(options: Mapping[str, Any]) -> AsyncIterator[SlowDetector]:
    diary = options.get("diary")
    yield SlowDetector(float(options.get("delay_s", 30.0)), Path(diary) if diary else None)


class BrokenDetector(SlowDetector):
    """Has a bug."""

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        raise ZeroDivisionError("secret words of the implementation")


@asynccontextmanager
async def open_broken_detector(options: Mapping[str, Any]) -> AsyncIterator[BrokenDetector]:
    yield BrokenDetector(0.0, None)


def read_diary(path: Path) -> list[tuple[str, float]]:
    """The steps so far."""
    if not path.exists():
        return []
    return [(step, float(at)) for step, at in map(str.split, path.read_text().splitlines())]
