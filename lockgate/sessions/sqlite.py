# SPDX-License-Identifier: Apache-2.0
"""Sessions in an SQLite file that several processes of one machine may share.

Decides when a turn is on disk and who may write to a session. Refuses to know what a turn means.

SQL runs in threads of the store's own, one that writes and one that reads. A session is held by a lock on one byte of a
file beside the database: the system takes it back when its process ends, in whatever way. Neither works on a network
file system.
"""

import contextlib
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockgate.gate.values import Health
from lockgate.interfaces import Headers, PartContext, with_context
from lockgate.sessions import rows
from lockgate.sessions.locks import SessionLocks, open_session_locks
from lockgate.sessions.sqlite_file import BUSY_TIMEOUT_S, SessionFile, open_session_file, select, write
from lockgate.sessions.turns import NOBODY, AbortedTurn, Past, SessionEntry, SessionKey, StoredTurn, StoreLimits, Turn
from lockgate.store_tasks import Queues, look, pruning


class SqliteSessions:
    """A SessionStore and SessionArchive on one file. Made by `open_sqlite_sessions`."""

    def __init__(self, file: SessionFile, locks: SessionLocks, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._file = file
        self._locks = locks
        self._limits = limits
        self._clock = clock
        self._queues = Queues[SessionKey]()
        self._held: set[SessionKey] = set()

    @contextlib.asynccontextmanager
    async def hold(self, key: SessionKey) -> AsyncIterator[None]:
        """The session for oneself: first come, first served in this process, by chance among several."""
        key = rows.clean_key(key)
        async with self._queues.alone(key), self._locks.hold(rows.number_of(key)):
            self._held.add(key)
            try:
                yield
            finally:
                self._held.discard(key)

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        """The latest turns and the one of this request id."""
        asked = (*rows.clean_key(key), self._cutoff())

        def read(database: sqlite3.Connection) -> Past:
            latest = select(database, rows.LATEST_TURNS, (*asked, limit))
            repeated = select(database, rows.REPEATED_TURN, (*asked, rows.clean(request_id))) if request_id else ()
            return rows.read_past(latest, repeated)

        return await self._file.read(read)

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
        await self._file.run(lambda database: write(database, (rows.ADD_TURN, values), (rows.TRIM_TURNS, trim)))

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        """Note an aborted turn; the latest hundred of a session are kept."""
        key = rows.clean_key(key)
        values = rows.aborted_values(key, turn, uuid.uuid4().hex, self._clock())
        await self._file.run(lambda database: write(database, (rows.ADD_ABORTED, values), (rows.TRIM_ABORTED, key)))

    async def list_sessions(self, caller: str | None = None) -> Sequence[SessionEntry]:
        """All sessions, the latest first."""
        args = (self._cutoff(), rows.clean_name(caller or ""))
        return rows.read_entries(await self._file.read(lambda database: select(database, rows.LIST_SESSIONS, args)))

    async def read_session(self, key: SessionKey) -> Sequence[StoredTurn]:
        """Everything about a session."""
        asked = (*rows.clean_key(key), self._cutoff())

        def read(database: sqlite3.Connection) -> tuple[StoredTurn, ...]:
            found = (select(database, sql, asked) for sql in (rows.ALL_TURNS, rows.ALL_ABORTED))
            return rows.read_stored(*found)

        return await self._file.read(read)

    async def delete_session(self, key: SessionKey) -> bool:
        """Remove everything about a session."""
        key = rows.clean_key(key)
        removals = [(sql, key) for sql in rows.DELETE_SESSION]
        return await self._file.run(lambda database: write(database, *removals)) > 0

    async def forget_old(self) -> None:
        """Remove what is older than the limits say, a part at a time, so that others need not wait for the whole."""
        if self._limits.retention_days is None:
            return
        removals = [(sql, (self._cutoff(),)) for sql in rows.FORGET_OLD]
        while await self._file.run(lambda database: write(database, *removals)):
            pass

    def _cutoff(self) -> float:
        return rows.cutoff(self._limits, self._clock())


@contextlib.asynccontextmanager
async def open_sqlite_sessions(
    path: Path,
    limits: StoreLimits,
    *,
    clock: Callable[[], float] = time.time,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> AsyncIterator[SqliteSessions]:
    """The sessions of a file, made if there is none; `<file>.locks` beside it tells who holds which."""
    async with contextlib.AsyncExitStack() as stack:
        file = await stack.enter_async_context(open_session_file(path, busy_timeout_s))
        locks = stack.enter_context(open_session_locks(path.with_name(path.name + ".locks")))
        store = SqliteSessions(file, locks, limits, clock)
        if limits.retention_days is not None:
            await stack.enter_async_context(pruning(store.forget_old))
        yield store


@with_context
@contextlib.asynccontextmanager
async def open_sqlite_store(options: Mapping[str, Any], context: PartContext) -> AsyncIterator[SqliteSessions]:
    """The session store `sqlite`: `file` is in the data directory unless it is absolute."""
    path = context.data_dir / options["file"]
    async with open_sqlite_sessions(path, StoreLimits.read(options)) as store:
        yield store
