# SPDX-License-Identifier: Apache-2.0
"""Long work on words, done on the event loop in short slices.

Decides how long one slice may keep the loop, and that of all who share a turn only one works between two looks of the
loop at its sockets and timers: fifty that each take a slice would else keep it for fifty slices. Threads would not
help: they fight the loop for the interpreter. Refuses to know what the work is; how short its steps are is up to it.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import closing
from typing import Final, TypeVar

SLICE_S: Final = 0.002

T = TypeVar("T")


async def run_in_slices(steps: Generator[None, None, T], turn: asyncio.Lock) -> T:
    """What the steps return. The slices of all who hold the same turn follow each other, in the order of asking."""
    with closing(steps):
        while True:
            async with turn:
                try:
                    _run_slice(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    await asyncio.sleep(0)  # with the turn in hand, so that the loop gets round before the next slice


def _run_slice(steps: Generator[None, None, object]) -> None:
    """Raises StopIteration at the end of the work."""
    until = time.perf_counter() + SLICE_S
    while time.perf_counter() < until:
        next(steps)
