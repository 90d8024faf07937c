# SPDX-License-Identifier: Apache-2.0
"""The right to write a session where a pooler stands before PostgreSQL: a row that is leased for ten seconds.

A pooler may give each transaction another connection, so a lock of a connection holds nothing there. The row names its
owner; it is renewed while the session is held, and another process may take it once it has run out. A turn is written
in the transaction that renews its lease, and not without it. All times are those of the database's clock.
"""

import asyncio
import contextlib
import secrets
from typing import Any, NamedTuple

from lockgate.backends.postgres import PostgresPool
from lockgate.errors import Unavailable, UpstreamError
from lockgate.sessions import rows
from lockgate.store_tasks import finish_despite_cancel

RENEW_EVERY_S = 3.0  # so that one or two failures do not lose a lease
TABLE = """
    CREATE TABLE IF NOT EXISTS lockgate_leases (
        number BIGINT PRIMARY KEY, owner TEXT NOT NULL, until TIMESTAMPTZ NOT NULL)"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25
_TAKE = """
    INSERT INTO lockgate_leases AS lease VALUES ($1, $2, clock_timestamp() + interval '10 seconds')
    ON CONFLICT (number) DO UPDATE SET owner = excluded.owner, until = excluded.until
    WHERE lease.owner = excluded.owner OR lease.until < clock_timestamp()"""
_RENEW = """
    UPDATE lockgate_leases SET until = clock_timestamp() + interval '10 seconds' WHERE number = $1 AND owner = $2"""
_RENEW_ALL = """
    UPDATE lockgate_leases AS lease SET until = clock_timestamp() + interval '10 seconds'
    FROM unnest($1::bigint[], $2::text[]) AS held (number, owner)
    WHERE lease.number = held.number AND lease.owner = held.owner"""
_GIVE_BACK = "DELETE FROM lockgate_leases WHERE number = $1 AND owner = $2"


class Lease(NamedTuple):
    """A session's number, and the name that this process took for this one lease."""

    number: int
    owner: str


class Leases:
    """Takes, renews and gives back leases over the connections of a pool."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._held: dict[int, Lease] = {}  # also those that are being asked for
        self._renewing: asyncio.Task[None] | None = None
        self._has_table = False

    async def lock(self, number: int) -> Lease:
        """Waits for a session's lease, with growing pauses."""
        lease = self._held[number] = Lease(number, secrets.token_hex(16))
        pause_s = _FIRST_PAUSE_S
        while not await finish_despite_cancel(self._take(lease)):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        return lease

    async def unlock(self, number: int) -> None:
        """Gives a lease back; one that could not be given back runs out by itself."""
        lease = self._held.pop(number, None)
        if lease is not None:
            with contextlib.suppress(UpstreamError):
                await self._pool.execute(_GIVE_BACK, *lease)

    async def write(self, lease: Lease, *statements: rows.Statement) -> None:
        """Runs all of the statements or none, and none if another process has taken the lease."""
        async with self._pool.transaction() as connection:
            if await connection.execute(_RENEW, *lease) != "UPDATE 1":  # from here on the row is locked
                raise Unavailable(self._pool.name, "another process has taken the session")
            for sql, args in statements:
                await connection.execute(sql, *args)

    async def close(self) -> None:
        """Ends the renewing."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])

    async def _take(self, lease: Lease) -> bool:
        if not self._has_table:
            async with self._pool.transaction() as connection:
                await create_table(connection)
            self._has_table = True
        return await self._pool.execute(_TAKE, *lease) == "INSERT 0 1"

    async def _renew(self) -> None:
        """Renews all leases every few seconds, until none is held. After a failure the next round tries again."""
        while self._held:
            numbers, owners = zip(*self._held.values(), strict=True)
            with contextlib.suppress(UpstreamError):
                async with self._pool.borrow() as connection:
                    await connection.execute(_RENEW_ALL, numbers, owners, timeout=RENEW_EVERY_S)
            await asyncio.sleep(RENEW_EVERY_S)


async def create_table(connection: Any) -> None:
    """Creates the table, if it is missing; where it exists, that needs no right to create any."""
    if await connection.fetchval("SELECT to_regclass('lockgate_leases')") is None:
        await connection.execute(TABLE)
