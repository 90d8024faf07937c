# SPDX-License-Identifier: Apache-2.0
"""A detector that reads nothing and watches the event loop of the gateway that opened it.

It asks to be woken every millisecond and writes down, in the file that its options name, when it was woken late, by how
much, and how much of that the loop's thread was ready to run and had no processor. All processes read the same clock,
so the file can be compared with what other processes wrote.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers

_TICK_S = 0.001
_NOTED_S = 0.005


class Watch:
    """A detector, and a reading."""

    lookbehind_chars = 0

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "Watch":
        """Takes anything."""
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """Finds nothing."""
        return [[] for _ in excerpts]


@asynccontextmanager
async def open_watch(options: Mapping[str, Any]) -> AsyncIterator[Watch]:
    """Watches until the gateway is closed."""
    with Path(options["file"]).open("a", encoding="ascii", buffering=1) as file:  # noqa: ASYNC230 - once, at start
        task = asyncio.create_task(_note_pauses(file))
        try:
            yield Watch()
        finally:
            task.cancel()


class Pause(NamedTuple):
    """When the loop was to go on, how late it did, and how long of that it waited for a processor."""

    at: float
    late_s: float
    idle_s: float


async def _note_pauses(file: IO[str]) -> None:
    schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    try:
        while True:
            idle_s, asked_at = _read_idle_s(schedule), time.monotonic()
            await asyncio.sleep(_TICK_S)
            late_s = time.monotonic() - asked_at - _TICK_S
            if late_s > _NOTED_S:
                file.write(f"{asked_at} {late_s} {_read_idle_s(schedule) - idle_s}\n")
    finally:
        os.close(schedule)


def _read_idle_s(schedule: int) -> float:
    """How long this thread has been ready to run and did not, since it began."""
    return int(os.pread(schedule, 100, 0).split()[1]) / 1e9


def read_pauses(file: Path, since: float) -> list[Pause]:
    """Those that began then or later and were long enough to be noted."""
    lines = file.read_text(encoding="ascii").splitlines()
    pauses = [Pause(*map(float, line.split())) for line in lines]
    return [pause for pause in pauses if pause.at >= since]
