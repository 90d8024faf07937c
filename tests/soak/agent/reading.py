# SPDX-License-Identifier: Apache-2.0
"""What a store holds when everybody has gone: turns as its archive shows them, and rows as they lie in the table."""

import sqlite3
from collections.abc import Mapping

from lockgate.clients.postgres import open_postgres
from lockgate.core.turns import StoredTurn
from tests.soak.agent.talk import Row, Where
from tests.soak.sessions.writer import open_store

_ROWS = "SELECT caller, session, seq, role, text FROM lockgate_messages ORDER BY caller, agent, session, seq"


async def read_store(address: str) -> tuple[Mapping[Where, tuple[StoredTurn, ...]], list[Row]]:
    """Every session, and every row."""
    stored: dict[Where, tuple[StoredTurn, ...]] = {}
    async with open_store(address) as archive:
        for entry in await archive.list_sessions():
            stored[entry.key.caller, entry.key.id] = tuple(await archive.read_session(entry.key))
    return stored, await _read_rows(address)


async def _read_rows(address: str) -> list[Row]:
    if address.startswith("postgresql:"):
        async with open_postgres(address) as pool:
            return [Row(*row) for row in await pool.fetch(_ROWS)]
    database = sqlite3.connect(address)
    try:
        return [Row(*row) for row in database.execute(_ROWS)]
    finally:
        database.close()
