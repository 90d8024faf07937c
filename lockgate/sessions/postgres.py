# SPDX-License-Identifier: Apache-2.0
"""Sessions in a PostgreSQL database that processes of several machines may share.

A session is held by an advisory lock of one connection that the store keeps for itself, and turns are written by that
same connection: when it is lost, so is the right to write, and nothing is written without it. Hence a pooler that
gives a connection to others between transactions cannot stand in between; one that pools whole sessions can.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from lockgate.backends.postgres import PostgresPool, open_postgres
from lockgate.errors import Unavailable, UpstreamError
from lockgate.gate.values import Health
from lockgate.interfaces import Headers
from lockgate.sessions import rows
from lockgate.sessions.turns import NOBODY, AbortedTurn, Past, SessionEntry, SessionKey, StoredTurn, StoreLimits, Turn
from lockgate.store_tasks import Queues, look, pruning, see_through

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_CLOSE_TIMEOUT_S = 2.0
_SERVICE = "sessions"
_PART = "sessions"  # its row in the table of versions
_SET_UP_LOCK = 0x6C6F636B67617465  # one at a time makes the tables
_VERSIONS = "CREATE TABLE IF NOT EXISTS lockgate_versions (part TEXT PRIMARY KEY, version INTEGER NOT NULL)"


class PostgresSessions:
    """A SessionStore and SessionArchive in one database. Made by `open_postgres_sessions`."""

    def __init__(self, pool: PostgresPool, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._writer = _Writer(pool)
        self._limits = limits
        self._clock = clock
        self._queues = Queues[SessionKey]()
        self._held: dict[SessionKey, Any] = {}  # by which connection
        self._setting_up = asyncio.Lock()
        self._is_set_up = False

    @contextlib.asynccontextmanager
    async def hold(self, key: SessionKey) -> AsyncIterator[None]:
        """The session for oneself: first come, first served in this process, by chance among several."""
        key = rows.clean_key(key)
        number = rows.number_of(key)
        async with self._queues.alone(key):
            try:
                self._held[key] = await self._writer.lock(number)
                yield
            finally:
                self._held.pop(key, None)
                await see_through(self._writer.unlock(number))

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        """The latest turns and the one of this request id."""
        asked = (*rows.clean_key(key), self._cutoff())
        repeated: Sequence[Any] = ()
        await self._set_up()
        async with self._pool.borrow() as connection:
            latest = await connection.fetch(rows.SQL.latest_turns, *asked, limit)
            if request_id:
                repeated = await connection.fetch(rows.SQL.repeated_turn, *asked, rows.clean(request_id))
        return rows.read_past(latest, repeated)

    async def probe(self, headers: Headers) -> Health:
        """Whether sessions can be read; never raises."""
        return await look(self.load(NOBODY, 1))

    async def append(self, key: SessionKey, turn: Turn) -> None:
        """Add a turn; one whose request id is there already is not added again."""
        key = rows.clean_key(key)
        if key not in self._held:
            raise RuntimeError("a turn was added to a session that is not held")
        values = rows.turn_values(key, turn, self._clock())
        trim = (*key, rows.kept_messages(self._limits))
        await self._set_up()
        await see_through(self._writer.write(self._held[key], (rows.SQL.add_turn, values), (rows.SQL.trim_turns, trim)))

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        """Note an aborted turn; the latest hundred of a session are kept."""
        key = rows.clean_key(key)
        values = rows.aborted_values(key, turn, uuid.uuid4().hex, self._clock())
        await self._set_up()
        async with self._pool.transaction() as connection:
            await connection.execute(rows.SQL.add_aborted, *values)
            await connection.execute(rows.SQL.trim_aborted, *key)

    async def list_sessions(self, caller: str | None = None) -> Sequence[SessionEntry]:
        """All sessions, the latest first."""
        return rows.read_entries(
            await self._fetch(rows.SQL.list_sessions, self._cutoff(), rows.clean_name(caller or ""))
        )

    async def read_session(self, key: SessionKey) -> Sequence[StoredTurn]:
        """Everything about a session."""
        asked = (*rows.clean_key(key), self._cutoff())
        turns = await self._fetch(rows.SQL.all_turns, *asked)
        return rows.read_stored(turns, await self._fetch(rows.SQL.all_aborted, *asked))

    async def delete_session(self, key: SessionKey) -> bool:
        """Remove everything about a session."""
        await self._set_up()
        async with self._pool.transaction() as connection:
            done = [await connection.execute(sql, *rows.clean_key(key)) for sql in rows.SQL.delete_session]
        return any(map(_count, done))

    async def forget_old(self) -> None:
        """Remove what is older than the limits say, a part at a time, so that no statement takes long."""
        if self._limits.retention_days is None:
            return
        await self._set_up()
        for sql in rows.SQL.forget_old:
            while _count(await self._pool.execute(sql, self._cutoff())):
                pass

    async def close(self) -> None:
        """Let go of everything that is held."""
        await self._writer.close()

    def _cutoff(self) -> float:
        return rows.cutoff(self._limits, self._clock())

    async def _fetch(self, sql: str, *args: Any) -> Sequence[Any]:
        await self._set_up()
        return await self._pool.fetch(sql, *args)

    async def _set_up(self) -> None:
        """The tables, once; who finds them there needs no right to make any."""
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
    """The one connection that holds sessions and writes turns, made anew when it was lost."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._taken: set[int] = set()  # locks that it has or may have
        self._busy = asyncio.Lock()  # one statement at a time

    async def lock(self, number: int) -> Any:
        """Wait for an advisory lock, asking ever less often; the connection that has it."""
        pause_s = _FIRST_PAUSE_S
        while (connection := await see_through(self._try(number))) is None:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        return connection

    async def _try(self, number: int) -> Any:
        async with self._busy:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._pool.connect()
                self._taken.clear()
            self._taken.add(number)
            with self._pool.translating():
                is_ours = await self._connection.fetchval("SELECT pg_try_advisory_lock($1)", number)
            if not is_ours:
                self._taken.discard(number)
            return self._connection if is_ours else None

    async def unlock(self, number: int) -> None:
        """Let go of a lock, if it was obtained. Where that fails the connection ends, and with it every lock."""
        async with self._busy:
            if number not in self._taken or self._connection.is_closed():
                return
            self._taken.discard(number)
            try:
                with self._pool.translating():
                    await self._connection.execute("SELECT pg_advisory_unlock($1)", number)
            except UpstreamError:
                self._connection.terminate()

    async def write(self, holder: Any, *statements: tuple[str, Sequence[Any]]) -> None:
        """Carry out all of the statements or none, by the connection that holds the session."""
        async with self._busy:
            if holder.is_closed():
                raise Unavailable(_SERVICE, "the connection that held the session was lost")
            with self._pool.translating():
                async with holder.transaction():
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
    """The sessions of a database. Nothing is connected before it is needed; tables are made by the first need."""
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_postgres(dsn, _SERVICE))
        store = PostgresSessions(pool, limits, clock)
        stack.push_async_callback(store.close)
        if limits.retention_days is not None:
            await stack.enter_async_context(pruning(store.forget_old))
        yield store


@contextlib.asynccontextmanager
async def open_postgres_store(options: Mapping[str, Any]) -> AsyncIterator[PostgresSessions]:
    """The session store `postgres`: `dsn` is the address of the database, with user and password."""
    async with open_postgres_sessions(options["dsn"], StoreLimits.read(options)) as store:
        yield store


def _count(done: str) -> int:
    """How many rows a statement changed, as the server says it: `DELETE 3`."""
    return int(done.rsplit(" ", 1)[-1])
