# SPDX-License-Identifier: Apache-2.0
"""What every session store promises, asked of each: in memory, in SQLite and in a real PostgreSQL."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lockgate.sessions.postgres import open_postgres_sessions
from lockgate.sessions.sqlite import open_sqlite_sessions
from lockgate.sessions.turns import AbortedTurn, Past, SessionKey, StoreLimits, Turn
from lockgate.testing import DEFAULT_LIMITS, MemorySessionStore
from tests.soak.sessions import kills
from tests.soak.sessions.kills import Child, find_faults, kill_writers
from tests.soak.sessions.writer import KEY as FOUGHT_OVER
from tests.waits import HANG_S, is_pending, latency

KEY = SessionKey("ana", "default", "s")
DAY_S = 86_400.0
KINDS = ("memory", "sqlite", "postgres")


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Place(NamedTuple):
    """Where a store of one kind can be opened, again and again."""

    kind: str
    address: str
    clock: Clock

    def open(self, limits: StoreLimits = DEFAULT_LIMITS) -> AbstractAsyncContextManager[Any]:
        if self.kind == "sqlite":
            return open_sqlite_sessions(Path(self.address), limits, clock=self.clock, busy_timeout_s=HANG_S)
        if self.kind == "postgres":
            return open_postgres_sessions(self.address, limits, clock=self.clock)
        return _open_memory(limits, self.clock)


@asynccontextmanager
async def _open_memory(limits: StoreLimits, clock: Callable[[], float]) -> Any:
    yield MemorySessionStore(limits, clock=clock)


def build_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    address = request.getfixturevalue("postgres_dsn") if kind == "postgres" else str(tmp_path / "sessions.db")
    return Place(kind, address, Clock())


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return build_place(request.param, request, tmp_path)


@pytest.fixture(params=KINDS[1:])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return build_place(request.param, request, tmp_path)


def turn(number: int, request_id: str = "") -> Turn:
    return Turn(f"q{number}", f"a{number}", "RETRIEVAL", f"t{number}", "rules", 0.5, request_id)


async def add(store: Any, key: SessionKey, *turns: Turn) -> None:
    async with store.hold(key):
        for one in turns:
            await store.append(key, one)


async def take(store: Any, key: SessionKey) -> None:
    async with store.hold(key):
        pass


async def test_turns_come_back_whole_and_in_order(place: Place) -> None:
    async with place.open() as store:
        assert await store.load(KEY, 10) == Past()
        bare = Turn("q", "", "PLATFORM")
        await add(store, KEY, turn(1), bare, turn(3))
        assert await store.load(KEY, 10) == Past((turn(1), bare, turn(3)))
        assert await store.load(KEY, 2) == Past((bare, turn(3)))
        assert await store.load(KEY, 0) == Past()


async def test_a_session_is_still_there_when_the_store_is_opened_again(lasting: Place) -> None:
    async with lasting.open() as store:
        await add(store, KEY, turn(1))
    async with lasting.open() as store:
        await add(store, KEY, turn(2))
        assert (await store.load(KEY, 10)).turns == (turn(1), turn(2))


async def test_nobody_sees_the_session_of_another_caller_or_agent_or_id(place: Place) -> None:
    others = [KEY._replace(caller="bob"), KEY._replace(agent="other"), KEY._replace(id="S"), KEY._replace(id="s ")]
    async with place.open() as store:
        await add(store, KEY, turn(1, "r"))
        for other in others:
            assert await store.load(other, 10, "r") == Past()
            assert await store.read_session(other) in ((), [])
            assert not await store.delete_session(other)
        assert [entry.key for entry in await store.list_sessions("ana")] == [KEY]
        assert list(await store.list_sessions("bob")) == []


async def test_a_request_id_is_stored_once_and_found_again(place: Place) -> None:
    async with place.open() as store:
        await add(store, KEY, turn(1, "r1"), turn(2), turn(3), turn(4, "r1"), turn(5, "r2"))
        assert (await store.load(KEY, 10)).turns == (turn(1, "r1"), turn(2), turn(3), turn(5, "r2"))
        assert await store.load(KEY, 1, "r1") == Past((turn(5, "r2"),), turn(1, "r1"))
        assert (await store.load(KEY, 1, "r9")).repeated is None
        await add(store, KEY._replace(id="other"), turn(6, "r1"))
        assert (await store.load(KEY._replace(id="other"), 9, "r1")).repeated == turn(6, "r1")


async def test_only_the_latest_turns_are_kept_and_never_half_of_one(place: Place) -> None:
    async with place.open(StoreLimits(max_messages=5)) as store:
        await add(store, KEY, *map(turn, range(7)))
        await add(store, KEY._replace(id="short"), turn(9))
        assert (await store.load(KEY, 10)).turns == (turn(5), turn(6))
        assert [one.question for one in await store.read_session(KEY)] == ["q5", "q6"]
        assert (await store.load(KEY._replace(id="short"), 10)).turns == (turn(9),)


async def test_what_is_older_than_the_retention_is_gone(place: Place) -> None:
    async with place.open(StoreLimits(retention_days=2)) as store:
        await add(store, KEY, turn(1, "r"))
        await store.abort(KEY, AbortedTurn("q", "half", "client left"))
        await add(store, KEY._replace(id="old"), turn(1))
        place.clock.now += 1.5 * DAY_S
        await add(store, KEY, turn(2))
        assert len((await store.load(KEY, 10)).turns) == 2
        place.clock.now += 1.0 * DAY_S
        assert await store.load(KEY, 10, "r") == Past((turn(2),))
        assert [entry.key for entry in await store.list_sessions()] == [KEY]
        assert [one.question for one in await store.read_session(KEY)] == ["q2"]


async def test_what_is_too_old_is_removed_from_the_tables_by_itself(lasting: Place) -> None:
    async with lasting.open() as store:
        await add(store, KEY, turn(1), turn(2))
        await store.abort(KEY, AbortedTurn("q", "half", "client left"))
        lasting.clock.now += 3 * DAY_S
        await add(store, KEY, turn(3))
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(lasting.open())  # one that would show everything
        await stack.enter_async_context(lasting.open(StoreLimits(retention_days=2)))
        while [one.question for one in await reader.read_session(KEY)] != ["q3"]:
            pass


async def test_an_aborted_turn_is_seen_by_operators_only(place: Place) -> None:
    aborted = AbortedTurn("why", "beca", "client left", "RETRIEVAL", "r7")
    async with place.open() as store:
        await add(store, KEY, turn(1))
        await store.abort(KEY, aborted)
        await add(store, KEY, turn(2))
        await store.abort(KEY._replace(id="never ended"), aborted)
        assert await store.load(KEY, 10, "r7") == Past((turn(1), turn(2)))
        stored = await store.read_session(KEY)
        assert [(one.question, one.answer, one.aborted) for one in stored] == [
            ("q1", "a1", ""),
            ("why", "beca", "client left"),
            ("q2", "a2", ""),
        ]
        assert stored[0].at < stored[1].at < stored[2].at
        assert [(entry.key.id, entry.turns) for entry in await store.list_sessions()] == [("never ended", 0), ("s", 2)]
        await add(store, KEY, turn(3, "r7"))
        assert (await store.load(KEY, 1)).turns == (turn(3, "r7"),)


async def test_the_latest_hundred_aborted_turns_are_kept(lasting: Place) -> None:
    async with lasting.open() as store:
        for number in range(103):
            await store.abort(KEY, AbortedTurn(f"q{number}", "", "late"))
        kept = [one.question for one in await store.read_session(KEY)]
        assert kept == [f"q{number}" for number in range(3, 103)]


async def test_a_deleted_session_leaves_nothing(place: Place) -> None:
    async with place.open() as store:
        await add(store, KEY, turn(1, "r"))
        await store.abort(KEY, AbortedTurn("q", "", "late"))
        assert await store.delete_session(KEY)
        assert not await store.delete_session(KEY)
        assert list(await store.list_sessions()) == []
        await add(store, KEY, turn(2, "r"))
        assert (await store.load(KEY, 10)).turns == (turn(2, "r"),)


async def test_the_list_has_the_latest_session_first(place: Place) -> None:
    async with place.open() as store:
        for name in ("one", "two", "three"):
            await add(store, KEY._replace(id=name), turn(1))
        await add(store, KEY._replace(id="one"), turn(2))
        entries = await store.list_sessions()
        assert [(entry.key.id, entry.turns) for entry in entries] == [("one", 2), ("three", 1), ("two", 1)]
        assert entries[0].first_at < entries[2].first_at < entries[0].last_at


async def test_text_of_every_kind_is_kept_and_what_cannot_be_is_replaced(lasting: Place) -> None:
    odd = Turn("'; DROP TABLE x; -- $1 ?1 %s \u2028 👩‍👩‍👧 e\u0301", "a\0b \ud800 c" * 1000, "L")
    twin = KEY._replace(id="a\0"), KEY._replace(id="a\ufffd"), KEY._replace(id="a\ud800")
    async with lasting.open() as store:
        for number, key in enumerate(twin):
            await add(store, key, odd, turn(number))
        for number, key in enumerate(twin):
            said, last = (await store.load(key, 10)).turns
            assert last == turn(number)
            assert said == odd._replace(answer="a\ufffdb \ufffd c" * 1000)
        assert len(await store.list_sessions()) == 3


async def test_a_turn_is_not_added_to_a_session_that_is_not_held(place: Place) -> None:
    async with place.open() as store:
        with pytest.raises(RuntimeError, match="not held"):
            await store.append(KEY, turn(1))
        await add(store, KEY, turn(1))
        with pytest.raises(RuntimeError, match="not held"):
            await store.append(KEY, turn(2))
        assert (await store.load(KEY, 10)).turns == (turn(1),)


async def test_whoever_came_first_gets_the_session_first(place: Place) -> None:
    order: list[int] = []

    async def come(store: Any, number: int) -> None:
        async with store.hold(KEY):
            order.append(number)
            await asyncio.sleep(0)

    async with place.open() as store:
        async with store.hold(KEY):
            comers = []
            for number in range(20):
                comers.append(asyncio.create_task(come(store, number)))
                await asyncio.sleep(0)
            comers[7].cancel()
            async with store.hold(KEY._replace(id="other")):  # others need not wait
                assert order == []
        await asyncio.gather(*comers, return_exceptions=True)
        assert order == [number for number in range(20) if number != 7]


async def test_waiting_that_is_given_up_leaves_nothing_behind(lasting: Place) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(lasting.open()) for _ in range(2)]
        async with one.hold(KEY):
            for store in (one, two):  # waiting for this store, and for another one
                waiting = asyncio.create_task(take(store, KEY))
                assert await is_pending(waiting)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
        await take(two, KEY)
        await take(one, KEY)
        assert len(one._queues) == len(two._queues) == 0


async def test_an_append_that_is_cancelled_is_whole_or_nothing_and_over(lasting: Place) -> None:
    async with AsyncExitStack() as stack:
        store, other = [await stack.enter_async_context(lasting.open()) for _ in range(2)]
        await other.load(KEY, 1)
        for number in range(20):
            key = KEY._replace(id=str(number))
            task = asyncio.create_task(add(store, key, turn(number)))
            await latency(number * 0.0002)
            task.cancel()
            await asyncio.wait([task])
            before = await other.load(key, 10)
            assert before.turns in ((), (turn(number),))
            async with other.hold(key):
                assert await other.load(key, 10) == before


async def test_several_stores_may_be_opened_at_once_where_there_was_none(lasting: Place) -> None:
    async def use(number: int) -> None:
        async with lasting.open() as store:
            await add(store, KEY, turn(number))

    await asyncio.gather(*map(use, range(5)))
    async with lasting.open() as store:
        assert sorted((await store.load(KEY, 10)).turns) == [turn(number) for number in range(5)]


@pytest.fixture
def holder(lasting: Place) -> Iterator[Child]:
    child = Child("hold", lasting.address)
    yield child
    child.kill()


async def test_a_session_is_held_against_other_processes_until_these_are_killed(lasting: Place, holder: Child) -> None:
    assert await holder.read_line() == "held"
    async with lasting.open() as store:
        waiting = asyncio.create_task(take(store, FOUGHT_OVER))
        assert await is_pending(waiting)
        await take(store, KEY)
        holder.kill()
        await waiting


async def test_no_turn_that_was_acknowledged_is_lost_or_halved_when_writers_are_killed(
    lasting: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "_FREE_AGAIN_S", HANG_S)
    for seed in count(11):
        tally = await kill_writers(lasting.address, kills=5, seed=seed)
        assert tally.faults == ()
        assert tally.acknowledged <= tally.stored <= tally.acknowledged + 5
        if tally.acknowledged:
            break
        async with lasting.open() as store:  # none lived long enough
            await store.delete_session(FOUGHT_OVER)


def test_the_look_for_lost_and_halved_turns_notices_them() -> None:
    rows = [(0, "user", "w 0"), (1, "assistant", "w 0"), (2, "user", "w 1"), (3, "assistant", "w 1")]
    assert find_faults(rows, ["w 0"]) == []
    assert find_faults(rows, ["w 2"]) == ["the acknowledged turn w 2 is lost"]
    assert "questions and answers do not alternate" in find_faults(rows[:3], [])
    assert "the numbers have gaps" in find_faults(rows[2:], [])
    assert "turn 1 of w is out of order" in find_faults(rows[2:], [])
    assert "an answer belongs to another question" in find_faults([*rows[:3], (3, "assistant", "w 0")], [])
    assert "a turn was stored twice" in find_faults([*rows[:2], (2, "user", "w 0"), (3, "assistant", "w 0")], [])


async def test_a_store_that_can_be_read_is_well(lasting: Place) -> None:
    async with lasting.open() as store:
        assert (await store.probe(())).status == "HEALTHY"
