# SPDX-License-Identifier: Apache-2.0
"""Turns over a connection that fails at one message: what was acknowledged must be there, once, whole and in order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from lockgate.backends.postgres import open_postgres
from lockgate.errors import UpstreamError
from lockgate.sessions.postgres import PostgresSessions, open_postgres_sessions
from lockgate.sessions.turns import SessionKey, StoreLimits, Turn
from tests.soak.sessions.faulty_proxy import FaultyProxy

STATEMENT_TIMEOUT_S = 0.5  # expires where a message is lost or stands still
_MOST_TRIES = 100
_LIMITS = StoreLimits(max_messages=1_000_000)


class Case(NamedTuple):
    """A fault at one message, of a turn that finds a connection or of one that makes it (`is_first`)."""

    fault: str
    at: int
    is_first: bool

    @property
    def key(self) -> SessionKey:
        """The session of this case alone."""
        return SessionKey("ana", "default", f"{self.fault} at {self.at}, {'first' if self.is_first else 'later'} turn")


class CaseEnd(NamedTuple):
    """What happened: whether the fault came, whether its turn was acknowledged, and what is wrong."""

    has_failed: bool
    was_acknowledged: bool
    faults: tuple[str, ...]


@asynccontextmanager
async def open_impatient(dsn: str) -> AsyncIterator[PostgresSessions]:
    """A store that gives up soon."""
    async with open_postgres(dsn, "sessions", statement_timeout_s=STATEMENT_TIMEOUT_S) as pool:
        store = PostgresSessions(pool, _LIMITS, lambda: 0.0)
        try:
            yield store
        finally:
            await store.close()


async def take_turn(store: PostgresSessions, key: SessionKey, text: str) -> None:
    """One turn, as an agent takes it."""
    async with store.hold(key):
        await store.load(key, 10, text)
        await store.append(key, Turn(text, text, "RETRIEVAL", request_id=text))


async def insist(store: PostgresSessions, key: SessionKey, text: str) -> None:
    """Asks again with the same request id, as a client does, until the turn is acknowledged."""
    said = []
    for _ in range(_MOST_TRIES):
        try:
            return await take_turn(store, key, text)
        except UpstreamError as error:
            said.append(error.message)
    raise AssertionError(f"{key.id}: the store does not recover: {set(said)}")


async def play_case(case: Case, dsn: str, plain_dsn: str) -> CaseEnd:
    """A turn before the fault, one that meets it, and one after it; `plain_dsn` is the address that has no faults."""
    proxy, was_acknowledged = FaultyProxy(dsn), True
    async with proxy.listen(), open_impatient(proxy.dsn) as store:
        if not case.is_first:
            await insist(store, case.key, "before")
        proxy.plan(case.fault, case.at)
        try:
            await take_turn(store, case.key, "at")
        except UpstreamError:
            was_acknowledged = False
        has_failed = proxy.has_failed
        proxy.heal()
        await insist(store, case.key, "after")
    return CaseEnd(has_failed, was_acknowledged, await _find_faults(case, plain_dsn, was_acknowledged))


async def _find_faults(case: Case, dsn: str, was_acknowledged: bool) -> tuple[str, ...]:
    async with open_postgres_sessions(dsn, _LIMITS) as store:
        stored = [(one.question, one.answer) for one in (await store.load(case.key, 100)).turns]
    expected = ["at", "after"] if case.is_first else ["before", "at", "after"]
    allowed = [expected] if was_acknowledged else [expected, [one for one in expected if one != "at"]]
    is_right = [question for question, _ in stored] in allowed and all(asked == said for asked, said in stored)
    said = "acknowledged" if was_acknowledged else "not acknowledged"
    return () if is_right else (f"{case.key.id}: {said}, but stored is {stored}",)
