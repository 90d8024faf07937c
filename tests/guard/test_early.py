# SPDX-License-Identifier: Apache-2.0
"""The first item of an answer that was begun too early: heard only if the check has passed, and nothing stays behind.

A script says after how many turns of the loop the check and the first item come, and how; all are tried, and the
caller is cancelled at every turn of each.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import product

import pytest

from lockgate.errors import Unavailable
from lockgate.guard.request import Speculation
from tests.waits import forever, until

FOREVER = 10_000
CHECKS = ("passes", "fails", "breaks")
ITEMS = ("says", "ends", "breaks", "is late")
TURNS = (0, 1, 2, 5)


async def turn(times: int) -> None:
    """So many turns of the loop, or no end."""
    if times == FOREVER:
        await forever()
    for _ in range(times):
        await asyncio.sleep(0)


@dataclass
class Script:
    """What happens, and what was seen of it."""

    check_after: int
    checked: str
    item_after: int
    item: str
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def check(self) -> bool:
        self.begun.append("check")
        try:
            await turn(self.check_after)
            if self.checked == "breaks":
                raise Unavailable("detector", "the check broke")
            return self.checked == "passes"
        finally:
            self.ended.append("check")

    async def items(self) -> AsyncGenerator[str, None]:
        self.begun.append("items")
        try:
            await turn(self.item_after)
            if self.item == "breaks":
                raise Unavailable("model", "gone")
            if self.item == "is late":
                raise TimeoutError("its own")
            if self.item == "says":
                yield "first"
                yield "second"
        finally:
            self.ended.append("items")


async def take_first(items: AsyncGenerator[str, None], check: Callable[[], Awaitable[bool]]) -> tuple[bool, str | None]:
    """Whether the check has passed, and the first item."""
    speculation = Speculation(check)
    async with speculation.open():
        first = await speculation.next(items)
        return await speculation.has_passed(), first


async def take(script: Script) -> tuple[bool, str | None]:
    async with aclosing(script.items()) as items:
        return await take_first(items, script.check)


def assert_nothing_runs(script: Script) -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert sorted(script.ended) == sorted(script.begun)


SCRIPTS = list(product(TURNS, CHECKS, TURNS, ITEMS))


@pytest.mark.parametrize(("check_after", "checked"), list(product(TURNS, CHECKS)))
async def test_what_is_heard_follows_from_the_check_and_nothing_stays_behind(check_after: int, checked: str) -> None:
    for item_after, item in product(TURNS, ITEMS):
        script = Script(check_after, checked, item_after, item)
        told: object
        try:
            told = await take(script)
        except (Unavailable, TimeoutError) as error:
            told = error
        assert_nothing_runs(script)
        if checked == "passes" and item in ("says", "ends"):
            assert told == (True, "first" if item == "says" else None)
        elif checked == "fails" and item in ("says", "ends"):
            assert isinstance(told, tuple)
            assert not told[0]
        elif checked == "fails":  # whichever was first; an error of the model hides nothing
            assert told == (False, None) or isinstance(told, Unavailable | TimeoutError)
        else:
            assert isinstance(told, Unavailable | TimeoutError)


@pytest.mark.parametrize("cancel_after", range(9))
async def test_whoever_leaves_at_any_moment_leaves_nothing_behind(cancel_after: int) -> None:
    for number in range(len(SCRIPTS)):
        script = Script(*SCRIPTS[number])
        task = asyncio.ensure_future(take(script))
        await asyncio.sleep(0)  # it has begun
        await turn(cancel_after)
        was_under_way = task.cancel()
        await asyncio.wait([task])
        assert_nothing_runs(script)
        if was_under_way and not task.cancelled():
            task.exception()  # what had happened already may be told in place of it
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


@pytest.mark.parametrize("item_after", [3, FOREVER])
async def test_a_failed_check_ends_at_once_whatever_the_items_wait_for(item_after: int) -> None:
    script = Script(1, "fails", item_after, "says")
    assert await take(script) == (False, None)
    assert_nothing_runs(script)


async def test_a_check_that_breaks_ends_at_once_whatever_the_items_wait_for() -> None:
    script = Script(1, "breaks", FOREVER, "says")
    with pytest.raises(Unavailable, match="the check broke"):
        await take(script)
    assert_nothing_runs(script)


@pytest.mark.parametrize("item", ["breaks", "is late"])
async def test_items_that_break_end_at_once_whatever_the_check_waits_for(item: str) -> None:
    script = Script(FOREVER, "passes", 1, item)
    with pytest.raises((Unavailable, TimeoutError), match=r"gone|its own"):
        await take(script)
    assert_nothing_runs(script)


async def test_an_item_is_not_heard_before_the_check_is_done() -> None:
    may_pass = asyncio.Event()

    async def check() -> bool:
        await may_pass.wait()
        return True

    script = Script(0, "passes", 0, "says")
    async with aclosing(script.items()) as items:
        first = asyncio.ensure_future(take_first(items, check))
        await turn(20)
        assert not first.done()
        may_pass.set()
        assert await first == (True, "first")
        assert [item async for item in items] == ["second"]


async def test_a_timeout_around_it_stays_whose_it_is() -> None:
    script = Script(FOREVER, "passes", FOREVER, "says")

    async def expire(limit: asyncio.Timeout) -> None:
        await until(lambda: len(script.begun) == 2)
        limit.reschedule(0.0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            expiring = asyncio.ensure_future(expire(limit))
            await take(script)
    assert expiring.done()
    assert_nothing_runs(script)
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
