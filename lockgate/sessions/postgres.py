# SPDX-License-Identifier: Apache-2.0
"""Sessions in a PostgreSQL database, which processes on several machines may share.

One connection of the store takes an advisory lock for each session and writes its turns: a lost connection loses the
locks, and then nothing can be written without one. Behind a pooler such as PgBouncer, leases take their place.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lockgate.backends.postgres import PostgresPool, open_postgres
from lockgate.errors import Unavailable, UpstreamError
from lockgate.sessions import rows
from lockgate.sessions.leases import Leases, create_table
from lockgate.sessions.turns import SessionKey, StoreLimits
from lockgate.store_tasks import Queues, finish_despite_cancel, pruning

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_CLOSE_TIMEOUT_S = 2.0
_SERVICE = "sessions"
_PART = "sessions"  # its row in the table of versions
_SET_UP_LOCK = 0x6C6F636B67617465  # held while the tables are created
_VERSIONS = "CREATE TABLE IF NOT EXISTS lockgate_versions (part TEXT PRIMARY KEY, version INTEGER NOT NULL)"


class PostgresSessions(rows.RowSessions):
    """A SessionStore and SessionArchive in one database. `open_postgres_sessions` opens it."""

    def __init__(self, pool: PostgresPool, limits: StoreLimits, clock: Callable[[], float]) -> None:
        super().__init__(limits, clock)
        self._pool = pool
        self._writer = _Writer(pool)
        self._leases = Leases(pool)
        self._queues = Queues[SessionKey]()
        self._held: dict[SessionKey, Callable[..., Awaitable[None]]] = {}  # writes a turn with the right to do so
        self._setting_up = asyncio.Lock()
        self._is_set_up = False

    @contextlib.asynccontextmanager
    async def hold(self, key: SessionKey) -> AsyncIterator[None]:
        """Locks a session: in the order of the calls in this process, in no order among several processes."""
        key = rows.clean_key(key)
        number = rows.number_of(key)
        async with self._queues.hold(key):
            await self._set_up()
            writer = self._leases if self._pool.is_pooled else self._writer
            try:
                self._held[key] = partial(writer.write, await writer.lock(number))
                yield
            finally:
                self._held.pop(key, None)
                await finish_despite_cancel(writer.unlock(number))

    async def close(self) -> None:
        """Closes the connection, which releases all locks."""
        await self._leases.close()
        await self._writer.close()

    async def _read(self, *statements: rows.Statement) -> Sequence[rows.Rows]:
        await self._set_up()
        async with self._pool.borrow() as connection:
            return [await connection.fetch(sql, *args) for sql, args in statements]

    async def _write(self, *statements: rows.Statement) -> int:
        await self._set_up()
        async with self._pool.transaction() as connection:
            done = [await connection.execute(sql, *args) for sql, args in statements]
        return sum(int(status.rsplit(" ", 1)[-1]) for status in done)  # the number of rows, as in `DELETE 3`

    async def _append(self, key: SessionKey, *statements: rows.Statement) -> None:
        if key not in self._held:
            raise RuntimeError("a turn was added to a session that is not held")
        await finish_despite_cancel(self._held[key](*statements))

    async def _set_up(self) -> None:
        """Creates the tables, once; if they exist, that needs no right to create any."""
        if self._is_set_up:
            return
        async with self._setting_up:
            if not self._is_set_up:
                async with self._pool.transaction() as connection:
                    await _bring_up_to_date(connection)
                self._is_set_up = True


async def _bring_up_to_date(connection: Any) -> None:
    if await _read_version(connection) == 0:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _SET_UP_LOCK)
        for statement in (_VERSIONS, *rows.SQL.tables):
            await connection.execute(statement)
        await create_table(connection)
        await connection.execute(
            "INSERT INTO lockgate_versions VALUES ($1, $2) ON CONFLICT DO NOTHING", _PART, rows.VERSION
        )
    if await _read_version(connection) > rows.VERSION:
        raise Unavailable(_SERVICE, "the database holds sessions of a newer version of Lockgate")


async def _read_version(connection: Any) -> int:
    if await connection.fetchval("SELECT to_regclass('lockgate_versions')") is None:
        return 0
    version: int | None = await connection.fetchval("SELECT version FROM lockgate_versions WHERE part = $1", _PART)
    return version or 0


class _Writer:
    """The one connection that locks sessions and writes turns; it is opened again after it was lost."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._taken: set[int] = set()  # locks that it has or may have
        self._busy = asyncio.Lock()  # one statement at a time

    async def lock(self, number: int) -> Any:
        """Waits for an advisory lock, with growing pauses; returns the connection that has it."""
        pause_s = _FIRST_PAUSE_S
        while (connection := await finish_despite_cancel(self._try(number))) is None:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        return connection

    async def _try(self, number: int) -> Any:
        async with self._busy:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._pool.connect()
                self._taken.clear()
            self._taken.add(number)
            with self._pool.closing_on_failure(self._connection):
                is_locked = await self._connection.fetchval("SELECT pg_try_advisory_lock($1)", number)
            if not is_locked:
                self._taken.discard(number)
            return self._connection if is_locked else None

    async def unlock(self, number: int) -> None:
        """Releases a lock, if it was obtained. A failure closes the connection, which releases every lock."""
        async with self._busy:
            if number not in self._taken or self._connection.is_closed():
                return
            self._taken.discard(number)
            with contextlib.suppress(UpstreamError), self._pool.closing_on_failure(self._connection):
                await self._connection.execute("SELECT pg_advisory_unlock($1)", number)

    async def write(self, holder: Any, *statements: rows.Statement) -> None:
        """Runs all of the statements or none, on the connection that has the lock."""
        async with self._busy:
            if holder.is_closed():
                raise Unavailable(_SERVICE, "the connection that held the session was lost")
            with self._pool.closing_on_failure(holder):
                async with self._pool.begun(holder):
                    for sql, args in statements:
                        await holder.execute(sql, *args)

    async def close(self) -> None:
        if self._connection is None:
            return
        try:
            with self._pool.translating():
                await self._connection.close(timeout=_CLOSE_TIMEOUT_S)
        except UpstreamError:
            self._connection.terminate()


@contextlib.asynccontextmanager
async def open_postgres_sessions(
    dsn: str, limits: StoreLimits, *, clock: Callable[[], float] = time.time
) -> AsyncIterator[PostgresSessions]:
    """Opens the sessions of a database. The first use connects and creates the tables."""
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_postgres(dsn, _SERVICE))
        store = PostgresSessions(pool, limits, clock)
        stack.push_async_callback(store.close)
        if limits.retention_days is not None:
            await stack.enter_async_context(pruning(store.forget_old))
        yield store


@contextlib.asynccontextmanager
async def open_postgres_store(options: Mapping[str, Any]) -> AsyncIterator[PostgresSessions]:
    """Opens the session store `postgres`: `dsn` is the address of the database, with user and password."""
    async with open_postgres_sessions(options["dsn"], StoreLimits.read(options)) as store:
        yield store
