# SPDX-License-Identifier: Apache-2.0
"""What a store holds when everybody has gone: turns as its archive shows them, and rows as they lie in the table."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockgate.backends.postgres import open_postgres
from lockgate.sessions.turns import StoredTurn
from tests.soak.agent.talk import Row, Where, find_mark
from tests.soak.sessions.writer import open_store

_ROWS = "SELECT caller, session, seq, role, text FROM lockgate_messages ORDER BY caller, agent, session, seq"
_LATEST = "SELECT text FROM lockgate_messages ORDER BY at DESC, seq DESC LIMIT 1"


async def read_store(address: str) -> tuple[Mapping[Where, tuple[StoredTurn, ...]], list[Row]]:
    """Every session, and every row."""
    stored: dict[Where, tuple[StoredTurn, ...]] = {}
    async with open_store(address) as archive:
        for entry in await archive.list_sessions():
            stored[entry.key.caller, entry.key.id] = tuple(await archive.read_session(entry.key))
    return stored, await _read_rows(address)


async def wait_for_turn(address: str) -> int:
    """Until one more turn is stored; the number of its question. Nothing of ours is open in the store afterwards."""
    async with _open(address) as select:
        before = await select(_LATEST)
        while (latest := await select(_LATEST)) == before:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0)
    return find_mark(latest[0][0]) or 0


async def _read_rows(address: str) -> list[Row]:
    async with _open(address) as select:
        return [Row(*row) for row in await select(_ROWS)]


@asynccontextmanager
async def _open(address: str) -> AsyncIterator[Callable[[str], Awaitable[Sequence[Any]]]]:
    """A way to run statements."""
    if address.startswith("postgresql:"):
        async with open_postgres(address) as pool:
            yield pool.fetch
        return
    database = sqlite3.connect(address)

    async def select(sql: str) -> Sequence[Any]:
        return database.execute(sql).fetchall()

    try:
        yield select
    finally:
        database.close()
