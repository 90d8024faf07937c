# SPDX-License-Identifier: Apache-2.0
"""The only place in the tests that sleeps or reads a clock. No test may pass or fail by the machine's speed.

A test waits for a state (`until`, `wait_until`), never for a time. A scripted peer that never answers waits `forever`;
one that is slow uses `latency`, and no assertion may depend on how long that takes. Before a test asserts that
something has *not* happened it calls `linger`: a slow machine can then hide a bug, but never invent one. Timers of the
code under test fire when a test moves its `LoopClock` on. `tests/rules/test_time.py` keeps sleeps, clocks and short
timeouts out of every other file.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never

HANG_S = 120.0  # Only a hang lasts this long, also on a machine whose cores are all busy.
_TICK_S = 0.005
_LINGER_S = 0.1


async def until(holds: Callable[[], object], what: str = "the expected state") -> None:
    """Returns when `holds()` is true; fails when that takes as long as a hang."""
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, f"{what} was not reached within {HANG_S:.0f} s"
        await asyncio.sleep(_TICK_S)


def wait_until(holds: Callable[[], object], what: str = "the expected state") -> None:
    """The same for tests without an event loop."""
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end, f"{what} was not reached within {HANG_S:.0f} s"
        time.sleep(_TICK_S)


async def forever() -> Never:
    """Waits until it is cancelled."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def latency(seconds: float) -> None:
    """The delay of a scripted peer. No assertion may depend on its length."""
    await asyncio.sleep(seconds)


async def linger(seconds: float = _LINGER_S) -> None:
    """Gives a wrong event time to happen, before a test asserts that it has not."""
    await asyncio.sleep(seconds)


async def is_pending(awaitable: Awaitable[object], seconds: float = _LINGER_S) -> bool:
    """Whether it is still unfinished after a while. It is not cancelled: the caller awaits or cancels it."""
    _, pending = await asyncio.wait([asyncio.ensure_future(awaitable)], timeout=seconds)
    return bool(pending)


async def settled(count: Callable[[], int]) -> int:
    """A count that grows, once it has stopped growing for a while."""
    await until(count, "the first")
    seen = [count()]
    while len(seen) < 4 or len(set(seen[-4:])) > 1:
        await linger()
        seen.append(count())
    return seen[-1]


class LoopClock:
    """The clock of the running event loop, which a test can move on: timers that are due by then fire.

    Make it before the code under test, which may keep the loop's `time` method.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + self._ahead_s  # type: ignore[method-assign]

    def advance(self, seconds: float = 3600.0) -> None:
        """Lets time pass."""
        self._ahead_s += seconds

    async def run_out(self) -> Never:
        """A peer that takes longer than every timeout."""
        self.advance()
        await forever()


@contextmanager
def bounded_work(cpu_s: float = 60.0) -> Iterator[None]:
    """Fails when the block uses so much CPU time that it would not end. Other processes do not count."""
    is_over = False

    def fail(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        raise AssertionError(f"more than {cpu_s:.0f} s of CPU time: the work does not end")

    before = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert not is_over, "the code under test swallowed the failure"


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Fails when eight times the size takes far more than eight times the CPU time: quadratic work takes 64 times.

    Both are measured in the same moment, on this thread alone. A disturbed measurement is repeated.
    """
    ratios = []
    for _ in range(5):
        small, large = (_cpu_s(work, one) for one in (size, 8 * size))
        ratios.append(large / max(small, 0.0001))
        if ratios[-1] < 24:
            return
    raise AssertionError(f"eight times the size takes {min(ratios):.0f} times the CPU time")


def _cpu_s(work: Callable[[int], object], size: int) -> float:
    began = time.thread_time()
    work(size)
    return time.thread_time() - began
