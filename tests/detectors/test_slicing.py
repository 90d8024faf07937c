# SPDX-License-Identifier: Apache-2.0
"""Work in slices: the loop goes round between them, however many work at once."""

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate.detectors.groundedness import detector as slicing
from lockgate.detectors.groundedness.detector import run_in_slices
from tests.waits import until

STEPS = 4  # in a slice
CLOCK: Any = SimpleNamespace(now=0.0, perf_counter=lambda: CLOCK.now)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "time", CLOCK)
    monkeypatch.setattr(slicing, "SLICE_S", float(STEPS))


def work(name: str, steps: int, log: list[str]) -> Generator[None, None, str]:
    """Steps of a quarter of a slice."""
    try:
        for _ in range(steps):
            CLOCK.now += 1.0
            log.append(name)
            yield
        return name
    finally:
        log.append(f"{name} closed")


async def test_the_result_is_what_the_steps_return() -> None:
    assert await run_in_slices(work("a", 0, []), asyncio.Lock()) == "a"
    assert await run_in_slices(work("a", 9, []), asyncio.Lock()) == "a"


async def test_between_two_rounds_of_the_loop_only_one_of_many_works_and_only_for_a_slice() -> None:
    log: list[str] = []
    turn = asyncio.Lock()

    async def go_round() -> None:
        while True:
            log.append("|")
            await asyncio.sleep(0)

    rounds = asyncio.create_task(go_round())
    names = "abcdefghij"
    found = await asyncio.gather(*[run_in_slices(work(name, 12, log), turn) for name in names])
    rounds.cancel()
    assert found == list(names)
    slices = [[name for name in part.split() if len(name) == 1] for part in " ".join(log).split("|")]
    assert max(len(part) for part in slices) == STEPS
    assert all(len(set(part)) <= 1 for part in slices)
    assert log.index("j") < log.index("a closed")  # they take turns


async def test_what_goes_wrong_in_a_step_is_raised_and_the_turn_is_given_back() -> None:
    def fail() -> Generator[None, None, None]:
        yield
        raise ValueError("no")

    turn = asyncio.Lock()
    with pytest.raises(ValueError, match="no"):
        await run_in_slices(fail(), turn)
    assert not turn.locked()


async def test_work_that_is_given_up_is_closed_and_the_turn_is_given_back() -> None:
    log: list[str] = []
    turn = asyncio.Lock()
    task = asyncio.create_task(run_in_slices(work("a", 10**9, log), turn))
    await until(lambda: log)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert log[-1] == "a closed"
    assert not turn.locked()
    assert await run_in_slices(work("b", 2, log), turn) == "b"
