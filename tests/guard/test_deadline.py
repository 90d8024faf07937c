# SPDX-License-Identifier: Apache-2.0
"""The deadline of a model: it moves with the answer, its timer serves all waits, and nothing of it stays behind."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from lockgate.errors import TimedOut, UpstreamError
from lockgate.gate.values import Frame
from lockgate.guard.model_source import Deadline, read_model
from tests.waits import LoopClock, forever, is_pending, linger


async def say(*pieces: str) -> AsyncGenerator[str, None]:
    """A model that hangs after these pieces."""
    for piece in pieces:
        yield piece
    await forever()


def deadline_in(seconds: float) -> Deadline:
    now = asyncio.get_running_loop().time
    return Deadline(now() + seconds)


def fires_at(deadline: Deadline) -> float:
    assert deadline._timer is not None
    return deadline._timer.when()


async def test_a_deadline_that_has_moved_is_reached_at_its_new_time() -> None:
    clock, now = LoopClock(), asyncio.get_running_loop().time
    deadline = Deadline(now() + 100)
    async with deadline.open(lambda: say("a")) as bursts:
        assert await deadline.wait_for(bursts) == "a"
        began_at = fires_at(deadline)
        deadline.until = began_at + 100
        waiting = asyncio.ensure_future(deadline.wait_for(bursts))
        await linger()
        assert fires_at(deadline) == began_at  # the timer of the first wait
        clock.advance(101)
        assert await is_pending(waiting)
        assert fires_at(deadline) == began_at + 100
        clock.advance(100)
        with pytest.raises(TimedOut, match="Model request timed out"):
            await waiting


async def test_a_deadline_that_comes_nearer_is_reached_at_its_new_time() -> None:
    clock, now = LoopClock(), asyncio.get_running_loop().time
    deadline = Deadline(now() + 1000)
    async with deadline.open(lambda: say("a")) as bursts:
        assert await deadline.wait_for(bursts) == "a"
        deadline.until = now() + 100
        waiting = asyncio.ensure_future(deadline.wait_for(bursts))
        await linger()
        clock.advance(101)
        assert not await is_pending(waiting)
        with pytest.raises(TimedOut):
            await waiting


async def test_time_that_passes_between_two_waits_cancels_nothing() -> None:
    clock, now = LoopClock(), asyncio.get_running_loop().time
    deadline = Deadline(now() + 100)
    async with deadline.open(lambda: say("a", "b")) as bursts:
        assert await deadline.wait_for(bursts) == "a"
        clock.advance(101)
        await linger()
        assert deadline._timer is None  # it has fired
        with pytest.raises(TimedOut):
            await deadline.wait_for(bursts)
        deadline.until = now() + 100
        assert await deadline.wait_for(bursts) == "b"
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_after_the_deadline_the_reader_is_not_cancelled_and_the_model_is_closed() -> None:
    clock, was_closed = LoopClock(), asyncio.Event()

    async def hang() -> AsyncGenerator[str, None]:
        try:
            yield await clock.run_out()
        finally:
            was_closed.set()

    with pytest.raises(TimedOut):
        async for _ in read_model(hang, deadline_in(100)):
            pass
    assert was_closed.is_set()
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_model_that_answers_its_cancellation_ends_nothing_else() -> None:
    clock = LoopClock()

    async def refuse() -> AsyncGenerator[str, None]:
        try:
            await clock.run_out()
        except asyncio.CancelledError:
            yield "still here"

    deadline = deadline_in(100)
    async with deadline.open(refuse) as bursts:
        assert await deadline.wait_for(bursts) == "still here"
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_reader_that_is_cancelled_at_the_deadline_stays_cancelled() -> None:
    clock = LoopClock()
    deadline = deadline_in(100)

    async def read() -> None:
        async with deadline.open(say) as bursts:
            await deadline.wait_for(bursts)

    task = asyncio.ensure_future(read())
    await linger()
    clock.advance(101)
    deadline._expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_at_the_end_the_timer_is_stopped() -> None:
    deadline = deadline_in(100)
    async with deadline.open(lambda: say("a")) as bursts:
        assert await deadline.wait_for(bursts) == "a"
        timer = deadline._timer
    assert timer is not None
    assert timer.cancelled()


async def test_with_a_deadline_any_exception_is_a_failure_of_the_model() -> None:
    async def boom() -> AsyncGenerator[Frame, None]:
        yield Frame(0, "a")
        raise KeyError("secret")

    with pytest.raises(UpstreamError, match="the model failed"):
        async for _ in read_model(boom, deadline_in(100)):
            pass
    with pytest.raises(KeyError):
        async for _ in read_model(boom):
            pass
