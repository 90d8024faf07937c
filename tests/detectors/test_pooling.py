# SPDX-License-Identifier: Apache-2.0
"""A pool runs a model off the event loop, for many streams at once, fairly, and lets one bad input fail alone."""

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from lockgate.detectors.windows import ModelPool, open_pool
from lockgate.errors import InvalidRequest, Unavailable
from tests.waits import HANG_S, is_pending, until


class Model:
    """Upper-cases texts; keeps the runs; waits where it is told to, fails where a text says so."""

    def __init__(self, hold: int = 0) -> None:
        self.runs: list[list[str]] = []
        self.threads: set[int] = set()
        self.go_on = threading.Event()
        self._hold = hold  # the first runs wait to be let go

    def __call__(self, texts: list[str]) -> list[str]:
        self.runs.append(texts)
        self.threads.add(threading.get_ident())
        if len(self.runs) <= self._hold:
            assert self.go_on.wait(HANG_S)
        if "bad" in texts:
            raise InvalidRequest("a bad text")
        if "bug" in texts:
            raise StopIteration
        return [text.upper() for text in texts]


async def _fill(pool: ModelPool[str, str], calls: Sequence[Sequence[str]]) -> list[asyncio.Task[list[str]]]:
    tasks = [asyncio.create_task(pool.ask(call, f"stream {number}")) for number, call in enumerate(calls)]
    await asyncio.sleep(0)  # all of them have asked
    return tasks


async def test_a_call_that_finds_the_model_idle_starts_at_once_in_a_thread_of_its_own() -> None:
    model = Model()
    async with open_pool(model, name="upper", max_wait_s=3600) as pool:
        assert await pool.ask(["a", "b"], "one") == ["A", "B"]
        assert await pool.ask([], "one") == []
        assert await pool.ask(["c"], "one") == ["C"]
    assert model.runs == [["a", "b"], ["c"]]
    assert model.threads.isdisjoint({threading.get_ident()})


async def test_calls_that_come_while_the_model_runs_share_the_next_run() -> None:
    model = Model(hold=1)
    async with open_pool(model, name="upper") as pool:
        first = asyncio.create_task(pool.ask(["a"], 0))
        await until(lambda: len(model.runs) == 1)
        others = await _fill(pool, [["b", "c"], ["d"], ["e"]])
        model.go_on.set()
        assert await asyncio.gather(first, *others) == [["A"], ["B", "C"], ["D"], ["E"]]
    assert len(model.runs) == 2
    assert sorted(model.runs[1]) == ["b", "c", "d", "e"]
    assert len(model.threads) == 1


async def test_calls_of_one_moment_share_a_run() -> None:
    model = Model()
    async with open_pool(model, name="upper", max_wait_s=3600) as pool:
        found = await asyncio.gather(*(pool.ask([f"t{n}"], n) for n in range(20)))
    assert found == [[f"T{n}"] for n in range(20)]
    assert len(model.runs) == 1


async def test_a_stream_with_a_thousand_chunks_holds_up_no_other() -> None:
    model = Model(hold=1)
    async with open_pool(model, name="upper", max_items=8) as pool:
        long = asyncio.create_task(pool.ask([f"l{n}" for n in range(1000)], "long"))
        await until(lambda: len(model.runs) == 1)
        (short,) = await _fill(pool, [["x", "y"]])
        model.go_on.set()
        assert await short == ["X", "Y"]
        assert len(model.runs) < 6
        assert await long == [f"L{n}" for n in range(1000)]
    assert max(map(len, model.runs)) <= 8


async def test_a_long_call_leaves_room_for_others() -> None:
    model = Model(hold=1)
    async with open_pool(model, name="upper", max_items=4, max_waiting=64) as pool:
        long = asyncio.create_task(pool.ask([f"l{n}" for n in range(500)], "long"))
        others = await _fill(pool, [["x"], ["y"]])
        model.go_on.set()
        assert await asyncio.gather(*others) == [["X"], ["Y"]]
        assert len(await long) == 500


async def test_results_do_not_depend_on_who_else_asks() -> None:
    model = Model()
    async with open_pool(model, name="upper", max_items=3) as pool:
        calls = [[f"s{n}c{m}" for m in range(n % 7)] for n in range(40)]
        found = await asyncio.gather(*(pool.ask(call, n % 5) for n, call in enumerate(calls)))
    assert found == [[text.upper() for text in call] for call in calls]
    assert sorted(text for run in model.runs for text in run) == sorted(text for call in calls for text in call)


@pytest.mark.parametrize(("word", "error"), [("bad", InvalidRequest), ("bug", Unavailable)])
async def test_a_bad_input_fails_only_its_own_caller(word: str, error: type[Exception]) -> None:
    model = Model(hold=1)
    async with open_pool(model, name="upper") as pool:
        first = asyncio.create_task(pool.ask(["a"], 0))
        await until(lambda: len(model.runs) == 1)
        others = await _fill(pool, [["b"], ["c", word], ["d"]])
        model.go_on.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert found[:2] + found[3:] == [["A"], ["B"], ["D"]]
        assert type(found[2]) is error
        assert await pool.ask(["e"], 0) == ["E"]


async def test_a_call_that_failed_in_part_runs_no_further() -> None:
    model = Model()
    async with open_pool(model, name="upper", max_items=2) as pool:
        with pytest.raises(InvalidRequest):
            await pool.ask(["bad", *"abcdefgh"], 0)
        assert await pool.ask(["z"], 0) == ["Z"]
    assert model.runs == [["bad", "a"], ["z"]]


async def test_a_model_that_gives_too_few_results_fails() -> None:
    def lose(texts: list[str]) -> list[str]:
        return texts[1:]

    async with open_pool(lose, name="short") as pool:
        with pytest.raises(Unavailable, match="short failed: 2 texts, 1 results"):
            await pool.ask(["a", "b"], 0)


async def test_a_caller_that_leaves_takes_its_waiting_items_out_and_disturbs_nobody() -> None:
    model = Model(hold=1)
    async with open_pool(model, name="upper") as pool:
        first = asyncio.create_task(pool.ask(["a"], 0))
        await until(lambda: len(model.runs) == 1)
        gone, stays = await _fill(pool, [["b", "c"], ["d"]])
        gone.cancel()
        first.cancel()
        await asyncio.wait([gone, first])
        model.go_on.set()
        assert await stays == ["D"]
        assert gone.cancelled()
        assert first.cancelled()
    assert model.runs == [["a"], ["d"]]


async def test_too_many_waiting_items_are_refused_and_the_rest_is_served() -> None:
    model = Model(hold=1)
    async with open_pool(model, name="upper", max_items=1, max_waiting=4) as pool:
        first = asyncio.create_task(pool.ask(["a"], 0))
        await until(lambda: len(model.runs) == 1)
        waiting = await _fill(pool, [["b"], ["c"], ["d"], ["e"]])
        with pytest.raises(Unavailable, match="upper is busy"):
            await pool.ask(["f"], 9)
        model.go_on.set()
        assert await asyncio.gather(first, *waiting) == [["A"], ["B"], ["C"], ["D"], ["E"]]


async def test_closing_waits_for_the_run_and_refuses_those_who_wait() -> None:
    model, stack = Model(hold=1), AsyncExitStack()
    pool = await stack.enter_async_context(open_pool(model, name="upper"))
    first = asyncio.create_task(pool.ask(["a"], 0))
    await until(lambda: len(model.runs) == 1)
    (second,) = await _fill(pool, [["b"]])
    closing = asyncio.create_task(stack.aclose())
    assert await is_pending(closing)
    model.go_on.set()
    await closing
    for task in (first, second):
        with pytest.raises(Unavailable, match="closed"):
            await task
    with pytest.raises(Unavailable, match="closed"):
        await pool.ask(["c"], 0)
    assert not [one for one in threading.enumerate() if one.name.startswith("lockgate-upper")]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
async def test_where_processors_are_scarce_the_event_loop_comes_first() -> None:
    def look(texts: list[str]) -> list[int]:
        return [os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) for _ in texts]

    async with open_pool(look, name="look") as pool:
        (found,) = await pool.ask(["a"], 0)
    assert found > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


async def test_the_event_loop_goes_on_while_the_model_runs() -> None:
    model = Model(hold=1)
    async with open_pool(model, name="slow") as pool:
        asking = asyncio.create_task(pool.ask(["a"], 0))
        await until(lambda: len(model.runs) == 1)
        model.go_on.set()  # which the model waits for
        assert await asking == ["A"]
