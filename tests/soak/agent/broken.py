# SPDX-License-Identifier: Apache-2.0
"""Ways to break a server, each by one small change to a part of it, and the laws that each breaks.

This is the only place here that knows how the server is made inside.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

WHOLE = "whole"
_LATER_S = 0.25
_BETWEEN_S = 0.1


class Variant(NamedTuple):
    """A broken server: how it is broken, which laws may report it, and whether servers must be killed to show it."""

    plant: Callable[[], None]
    laws: frozenset[str]
    needs_kills: bool


def break_server(name: str) -> None:
    """Break the server that this process will run."""
    if name != WHOLE:
        VARIANTS[name].plant()


def tell_early() -> None:
    """The end is told before the turn is stored."""
    from lockgate.sessions.sqlite import SqliteSessions

    honest = SqliteSessions.append
    later: set[asyncio.Task[None]] = set()

    async def write(self: SqliteSessions, key: Any, turn: Any) -> None:
        await asyncio.sleep(_LATER_S)
        async with self.hold(key):
            await honest(self, key, turn)

    async def append(self: SqliteSessions, key: Any, turn: Any) -> None:
        task = asyncio.create_task(write(self, key, turn))
        later.add(task)
        task.add_done_callback(later.discard)

    SqliteSessions.append = append  # type: ignore[method-assign, assignment]


def store_in_two_steps() -> None:
    """Question and answer are not written at once."""
    from lockgate.sessions import rows
    from lockgate.sessions.sqlite import SqliteSessions

    said = "(SELECT 1 AS place, 'user' AS role, $4 AS text UNION ALL SELECT 2, 'assistant', $5) AS said"
    plain = rows.SQL.add_turn.partition("WHERE $10")[0]
    steps = [
        plain.replace(said, one)
        for one in (
            "(SELECT 1 AS place, 'user' AS role, $4 AS text, $5 AS other) AS said",
            "(SELECT 1 AS place, 'assistant' AS role, $5 AS text, $4 AS other) AS said",
        )
    ]

    async def append(self: SqliteSessions, _key: Any, added: rows.Statement, _trimmed: rows.Statement) -> None:
        for sql in steps:
            await self._file.run(partial(_write_one, sql, added[1]))
            await asyncio.sleep(_BETWEEN_S)

    SqliteSessions._append = append  # type: ignore[method-assign, assignment]


def _write_one(sql: str, values: Sequence[Any], database: sqlite3.Connection) -> int:
    from lockgate.sessions.sqlite import write

    return write(database, (sql, values))


def wait_for_nobody() -> None:
    """Turns of one session do not wait for each other."""
    from lockgate.sessions import rows
    from lockgate.sessions.sqlite import SqliteSessions

    @contextlib.asynccontextmanager
    async def hold(self: SqliteSessions, key: Any) -> AsyncIterator[None]:
        self._held.add(rows.clean_key(key))
        yield

    SqliteSessions.hold = hold  # type: ignore[method-assign]


def forget_callers() -> None:
    """Everybody's sessions are the same."""
    from lockgate.api.grpc.agent import AgentMethods

    honest = AgentMethods._find_session

    def find(self: AgentMethods, request: Any, caller: str) -> Any:
        return honest(self, request, "ann")

    AgentMethods._find_session = find  # type: ignore[method-assign]


def forget_requests() -> None:
    """Nobody knows that a request was made before."""
    from lockgate.sessions.sqlite import SqliteSessions

    honest_load, honest_append = SqliteSessions.load, SqliteSessions.append

    async def load(self: SqliteSessions, key: Any, limit: int, request_id: str = "") -> Any:
        return await honest_load(self, key, limit)

    async def append(self: SqliteSessions, key: Any, turn: Any) -> None:
        await honest_append(self, key, turn._replace(request_id=""))

    SqliteSessions.load = load  # type: ignore[method-assign, assignment]
    SqliteSessions.append = append  # type: ignore[method-assign, assignment]


VARIANTS = {
    "told before it is stored": Variant(tell_early, frozenset({"lost"}), needs_kills=True),
    "stored in two steps": Variant(store_in_two_steps, frozenset({"rows", "half"}), needs_kills=True),
    "nobody waits": Variant(wait_for_nobody, frozenset({"prompt", "order"}), needs_kills=False),
    "callers forgotten": Variant(forget_callers, frozenset({"leak"}), needs_kills=False),
    "requests forgotten": Variant(forget_requests, frozenset({"twice"}), needs_kills=False),
}
