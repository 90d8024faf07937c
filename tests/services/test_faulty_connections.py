# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL behind a proxy that cuts, loses or stalls each message of a turn, and one that is restarted."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from lockgate.backends import postgres
from lockgate.errors import UpstreamError
from lockgate.sessions import leases
from tests.postgres import start_server
from tests.services.pgbouncer import pgbouncer
from tests.soak.sessions.faulty_proxy import FAULTS, FaultyProxy
from tests.soak.sessions.faulty_turns import Case, CaseEnd, insist, open_impatient, play_case, take_turn
from tests.waits import wait_until

AT_ONCE = 6


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that expire soon where a message is lost."""
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(leases, "RENEW_EVERY_S", 0.5)
    for name in ("_TAKE", "_RENEW", "_RENEW_ALL"):
        monkeypatch.setattr(leases, name, getattr(leases, name).replace("10 seconds", "2 seconds"))


@pytest.fixture(params=["no pooler", "transaction"])
def dsn(request: pytest.FixtureRequest, postgres_dsn: str) -> Iterator[str]:
    if request.param == "no pooler":
        yield postgres_dsn
    else:
        with pgbouncer(postgres_dsn, request.param) as pooled:
            yield pooled


async def count_messages(dsn: str, *, is_first: bool) -> int:
    """How many messages a turn sends to the database."""
    proxy = FaultyProxy(dsn)
    key = Case("no fault", 0, is_first).key
    async with proxy.listen(), open_impatient(proxy.dsn) as store:
        if not is_first:
            await insist(store, key, "before")
        proxy.plan("", 0)
        await insist(store, key, "at")
        return proxy.messages


async def play_all(cases: list[Case], dsn: str, plain_dsn: str) -> list[CaseEnd]:
    permits = asyncio.Semaphore(AT_ONCE)

    async def play(case: Case) -> CaseEnd:
        async with permits:
            return await play_case(case, dsn, plain_dsn)

    return await asyncio.gather(*map(play, cases))


async def test_no_acknowledged_turn_is_lost_whatever_message_fails(dsn: str, postgres_dsn: str) -> None:
    await insist_on_tables(postgres_dsn)
    counts = {is_first: await count_messages(dsn, is_first=is_first) for is_first in (False, True)}
    cases = [
        Case(fault, at, is_first)
        for fault in FAULTS
        for is_first, count in counts.items()
        for at in range(1, count + 1)
    ]
    ends = await play_all(cases, dsn, postgres_dsn)
    assert [fault for end in ends for fault in end.faults] == []
    assert sum(end.has_failed for end in ends) > len(ends) // 2
    assert {end.was_acknowledged for end in ends} == {True, False}


async def insist_on_tables(dsn: str) -> None:
    """So that all cases send the same messages."""
    async with open_impatient(dsn) as store:
        await insist(store, Case("set-up", 0, True).key, "at")


async def test_no_acknowledged_turn_is_lost_whenever_the_database_is_restarted() -> None:
    server: Any = start_server()
    try:
        dsn = server.get_uri(database="postgres")
        await insist_on_tables(dsn)
        for at in range(1, await count_messages(dsn, is_first=False) + 1, 2):
            await restart_at(server, dsn, at)
    finally:
        server.cleanup()


async def restart_at(server: Any, dsn: str, at: int) -> None:
    """The database is killed when the message of this number arrives, and started again."""
    proxy, key, acknowledged = FaultyProxy(dsn), Case("restart", at, False).key, ["before", "after"]

    is_back = asyncio.Event()

    async def restart(number: int) -> None:
        if number == at:
            await asyncio.to_thread(kill_and_start, server)
            is_back.set()

    async with proxy.listen(), open_impatient(proxy.dsn) as store:
        await insist(store, key, "before")
        proxy.plan("", 0)
        proxy.on_message = restart
        with suppress(UpstreamError):
            await take_turn(store, key, "at")
            acknowledged.append("at")
        await is_back.wait()
        await insist(store, key, "after")
        stored = [one.question for one in (await store.load(key, 10)).turns]
    assert set(acknowledged) <= set(stored), f"restart at message {at}"
    assert stored in (["before", "at", "after"], ["before", "after"])


def kill_and_start(server: Any) -> None:
    """As after a crash: without any notice, and with recovery at the start."""
    process = server.get_postmaster_info().process
    family = [process, *process.children(recursive=True)]
    os.kill(process.pid, signal.SIGQUIT)
    wait_until(lambda: not any(one.is_running() for one in family), "the end of the database")
    server.ensure_postgres_running()
