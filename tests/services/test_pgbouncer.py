# SPDX-License-Identifier: Apache-2.0
"""Sessions in PostgreSQL behind a real PgBouncer, in both modes: several gateways share them, and no turn is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from lockgate.backends.postgres import open_postgres
from lockgate.errors import Unavailable
from lockgate.index.postgres import open_postgres_index
from lockgate.sessions import leases
from lockgate.sessions.postgres import open_postgres_sessions
from lockgate.sessions.turns import AbortedTurn, SessionKey, StoreLimits, Turn
from tests.contracts.test_postgres_index import find, put
from tests.embedders import TopicEmbedder
from tests.services.pgbouncer import pgbouncer
from tests.waits import is_pending

KEY = SessionKey("ana", "default", "s")
LIMITS = StoreLimits()
RUN_OUT = "UPDATE lockgate_leases SET until = clock_timestamp() - interval '1 second'"


@pytest.fixture(params=["session", "transaction"])
def pooled_dsn(request: pytest.FixtureRequest, postgres_dsn: str) -> Iterator[str]:
    with pgbouncer(postgres_dsn, request.param) as dsn:
        yield dsn


def turn(number: int, request_id: str = "") -> Turn:
    return Turn(f"q{number}", f"a{number}", "RETRIEVAL", request_id=request_id)


async def add(store: Any, *turns: Turn, key: SessionKey = KEY) -> None:
    async with store.hold(key):
        for one in turns:
            await store.append(key, one)


async def questions(store: Any) -> list[str]:
    return [one.question for one in (await store.load(KEY, 1000)).turns]


async def test_all_that_a_store_does_works_behind_a_pooler(pooled_dsn: str) -> None:
    async with open_postgres_sessions(pooled_dsn, LIMITS) as store:
        await add(store, turn(1, "r1"), turn(2), turn(3, "r1"))
        assert await questions(store) == ["q1", "q2"]
        assert (await store.load(KEY, 1, "r1")).repeated == turn(1, "r1")
        await store.abort(KEY, AbortedTurn("q", "half", "client left"))
        assert [entry.key for entry in await store.list_sessions()] == [KEY]
        assert len(await store.read_session(KEY)) == 3
        assert await store.delete_session(KEY)
        assert (await store.probe(())).status == "HEALTHY"


async def test_fifty_turns_at_once_of_two_gateways_are_all_kept_in_order(pooled_dsn: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_postgres_sessions(pooled_dsn, LIMITS)) for _ in range(2)]
        await asyncio.gather(*[add(stores[number % 2], turn(number)) for number in range(50)])
        kept = await questions(stores[0])
    assert sorted(kept) == sorted(f"q{number}" for number in range(50))
    for rest in (0, 1):  # each gateway keeps the order of its own
        assert [one for one in kept if int(one[1:]) % 2 == rest] == [f"q{number}" for number in range(rest, 50, 2)]


async def test_sessions_at_once_do_not_wait_for_each_other(pooled_dsn: str) -> None:
    keys = [KEY._replace(id=str(number)) for number in range(20)]
    async with open_postgres_sessions(pooled_dsn, LIMITS) as store:
        async with AsyncExitStack() as stack:
            for key in keys:
                await stack.enter_async_context(store.hold(key))
            await asyncio.gather(*[store.append(key, turn(1)) for key in keys])
        assert len(await store.list_sessions()) == len(keys)


async def test_another_gateway_waits_until_the_session_is_given_back(pooled_dsn: str) -> None:
    async with open_postgres_sessions(pooled_dsn, LIMITS) as one, open_postgres_sessions(pooled_dsn, LIMITS) as two:
        async with one.hold(KEY):
            waiting = asyncio.create_task(add(two, turn(2)))
            assert await is_pending(waiting)
            await one.append(KEY, turn(1))
        await waiting
        assert await questions(one) == ["q1", "q2"]


async def test_a_turn_without_its_lease_is_not_written(pooled_dsn: str, postgres_dsn: str) -> None:
    async with (
        open_postgres(postgres_dsn) as database,
        open_postgres_sessions(pooled_dsn, LIMITS) as one,
        open_postgres_sessions(pooled_dsn, LIMITS) as two,
    ):
        async with one.hold(KEY):
            waiting = asyncio.create_task(add(two, turn(2)))
            while not waiting.done():  # the first gateway renews it, as long as it lives
                await database.execute(RUN_OUT)
                await asyncio.sleep(0)
            await waiting
            with pytest.raises(Unavailable, match="another process has taken the session"):
                await one.append(KEY, turn(1))
        await add(one, turn(3))
        assert await questions(two) == ["q2", "q3"]


async def test_a_lease_is_renewed_while_the_session_is_held(
    pooled_dsn: str, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_EVERY_S", 0.05)
    until_column = "SELECT until FROM lockgate_leases"
    async with open_postgres(postgres_dsn) as database, open_postgres_sessions(pooled_dsn, LIMITS) as store:
        async with store.hold(KEY):
            seen = {(await database.fetch(until_column))[0][0]}
            while len(seen) < 4:
                seen.add((await database.fetch(until_column))[0][0])
        assert list(await database.fetch(until_column)) == []


async def test_the_lease_of_a_gateway_that_died_runs_out(pooled_dsn: str, postgres_dsn: str) -> None:
    async with open_postgres(postgres_dsn) as database, open_postgres_sessions(pooled_dsn, LIMITS) as store:
        async with store.hold(KEY):
            [[number]] = await database.fetch("SELECT number FROM lockgate_leases")
        await database.execute(
            "INSERT INTO lockgate_leases VALUES ($1, 'a dead one', clock_timestamp() + interval '10 seconds')", number
        )
        waiting = asyncio.create_task(add(store, turn(2)))
        assert await is_pending(waiting)
        await database.execute(RUN_OUT)
        await waiting
        assert await questions(store) == ["q2"]


async def test_without_a_pooler_there_are_no_leases(postgres_dsn: str) -> None:
    async with (
        open_postgres(postgres_dsn) as database,
        open_postgres_sessions(postgres_dsn, LIMITS) as store,
        store.hold(KEY),
    ):
        await store.append(KEY, turn(1))
        assert list(await database.fetch("SELECT * FROM lockgate_leases")) == []


async def test_an_index_works_behind_a_pooler(pooled_dsn: str) -> None:
    embedder = TopicEmbedder()
    async with open_postgres_index(pooled_dsn, "passages", embedder, "docs") as index:
        await put(index, "a.md", "Bake the loaf", embedder)
        assert find(await index.search("loaf", 8)) == ["a.md"]
        assert await index.remove_documents(["/a.md"]) == 1
