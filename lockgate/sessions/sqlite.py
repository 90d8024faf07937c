# SPDX-License-Identifier: Apache-2.0
"""Sessions in an SQLite file that several processes of one machine may share.

SQL runs in two threads, one that writes and one that reads. While another process writes, writers wait and readers
continue. A session is locked by a lock on one byte of a file beside the database, which the system releases when the
process ends in any way. Neither works on a network file system.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from lockgate.backends.sqlite import connect, find_code, look_at, read_kind
from lockgate.errors import ConfigError, Unavailable
from lockgate.interfaces import PartContext, with_context
from lockgate.sessions import rows
from lockgate.sessions.turns import SessionKey, StoreLimits
from lockgate.store_tasks import Queues, finish_despite_cancel, pruning

# --- The file -------------------------------------------------------------------------------------------------

BUSY_TIMEOUT_S = 5.0
_APPLICATION: Final = 0x4C4B5353  # "LKSS": a file with sessions of Lockgate
_LEAST_BUSY_S = 0.1  # for a caller that used up its time waiting for other callers in this process
_DAMAGED = "the file of the session store is damaged"
_LOCKED = "the session store is locked by another process"
_READ_ONLY = "the file of the session store cannot be written"
_WORDS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "the disk of the session store is full",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: "the file of the session store cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk of the session store failed",
}

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]


class _StoreConnection(NamedTuple):
    """A connection and the thread that alone uses it."""

    thread: ThreadPoolExecutor
    database: sqlite3.Connection

    async def run(self, job: Job[T]) -> T:
        """The job's result."""
        return await _finish(self.thread.submit(job, self.database))


class SessionFile:
    """A file that is written in one thread and read in another; a cancelled caller waits for a job that has begun."""

    def __init__(self, writer: _StoreConnection, reader: _StoreConnection, busy_timeout_s: float) -> None:
        self._writer = writer
        self._reader = reader
        self._busy_timeout_s = busy_timeout_s

    async def run(self, job: Job[T]) -> T:
        """The result of a job that may write. The time that it waits for other processes counts from now."""
        until = time.monotonic() + self._busy_timeout_s
        least_s = min(_LEAST_BUSY_S, self._busy_timeout_s)

        def wait_and_run(database: sqlite3.Connection) -> T:
            busy_s = max(until - time.monotonic(), least_s)
            database.execute(f"PRAGMA busy_timeout = {round(busy_s * 1000)}")
            return job(database)

        return await self._writer.run(wait_and_run)

    async def read(self, job: Job[T]) -> T:
        """Returns the result of a job that only reads; all that it reads is of one moment."""

        def read_moment(database: sqlite3.Connection) -> T:
            database.execute("BEGIN")
            try:
                return job(database)
            finally:
                database.rollback()

        return await self._reader.run(read_moment)


async def _finish(submitted: "Future[T]") -> T:
    """Returns a job's result, or raises Unavailable; drops the job of a cancelled caller if it has not begun."""
    result = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(result)
    except sqlite3.Error as error:
        raise Unavailable("sessions", _name_failure(error)) from None
    except asyncio.CancelledError:
        if not submitted.cancel():  # it has begun
            with contextlib.suppress(Exception):
                await finish_despite_cancel(result)
        raise


def _name_failure(error: sqlite3.Error) -> str:
    """Returns a message for an error; SQLite's own message may quote a statement."""
    return _WORDS.get(find_code(error), "the session store failed")


@contextlib.asynccontextmanager
async def open_session_file(path: Path, busy_timeout_s: float) -> AsyncIterator[SessionFile]:
    """Opens the database in a file, created if it is missing, readable by its owner only."""
    os.close(_open_file(path))
    async with (
        _open_connection(lambda: _open_named(_open_writer, path, busy_timeout_s)) as writer,
        _open_connection(lambda: _open_named(_open_reader, path, busy_timeout_s)) as reader,
    ):
        yield SessionFile(writer, reader, busy_timeout_s)


@contextlib.asynccontextmanager
async def _open_connection(open_database: Callable[[], sqlite3.Connection]) -> AsyncIterator[_StoreConnection]:
    """Opens a connection and closes it at the end, also if the caller is cancelled while it is opened."""
    with ThreadPoolExecutor(1, thread_name_prefix="sessions") as thread:
        opening = thread.submit(open_database)
        try:
            yield _StoreConnection(thread, await _finish(opening))
        finally:
            await finish_despite_cancel(asyncio.wrap_future(thread.submit(_close, opening)))


def _close(opening: "Future[sqlite3.Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _open_file(path: Path) -> int:
    """Opens a file, created with its folder if it is missing; raises ConfigError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot be opened: {error.strerror}", source=str(path)) from None


def _open_named(
    open_database: Callable[[Path, float], sqlite3.Connection], path: Path, busy_timeout_s: float
) -> sqlite3.Connection:
    """Opens the database; a failure names the file for the operator."""
    try:
        return open_database(path, busy_timeout_s)
    except sqlite3.Error as error:
        raise Unavailable("sessions", f"{path}: {_name_failure(error)}") from error


def _open_writer(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a connection that writes; refuses a database of another application."""
    if look_at(path, busy_timeout_s).is_foreign(_APPLICATION):
        raise _refuse_foreign(path)
    database = connect(path, busy_timeout_s)
    try:
        database.execute("PRAGMA synchronous = FULL")  # an acknowledged turn is not lost in a power failure
        with _transaction(database):
            _bring_up_to_date(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _open_reader(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    database = connect(path, busy_timeout_s)
    database.execute("PRAGMA query_only = ON")
    return database


def _bring_up_to_date(database: sqlite3.Connection, path: Path) -> None:
    kind = read_kind(database)
    if kind.is_foreign(_APPLICATION):  # changed since the first check
        raise _refuse_foreign(path)
    if kind.version > rows.VERSION:
        words = f"holds sessions of a newer version of Lockgate (tables {kind.version}, this one knows {rows.VERSION})"
        raise ConfigError(words, source=str(path))
    if kind.version < rows.VERSION:
        stamps = (f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {rows.VERSION}")
        for statement in (*rows.SQL.tables, *stamps):
            database.execute(statement)


def _refuse_foreign(path: Path) -> ConfigError:
    return ConfigError("is a database of something else: name another file for sessions", source=str(path))


def write(database: sqlite3.Connection, *statements: rows.Statement) -> int:
    """Runs all of the statements or none; returns how many rows they changed."""
    with _transaction(database):
        return sum(database.execute(sql, _name_values(args)).rowcount for sql, args in statements)


def _name_values(args: Sequence[Any]) -> dict[str, Any]:
    """Maps each value to its parameter name in SQLite: the first is "1", for `$1`."""
    return {str(place): value for place, value in enumerate(args, 1)}


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # some errors end it by themselves
            database.execute("ROLLBACK")
        raise


# --- Locks ----------------------------------------------------------------------------------------------------

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


class SessionLocks:
    """The locks of one open file; a waiting task tries again with growing pauses."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @contextlib.asynccontextmanager
    async def hold(self, number: int) -> AsyncIterator[None]:
        """Locks the byte of this number; two tasks of one process must not do so at once."""
        pause_s = _FIRST_PAUSE_S
        while not self._take(number):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        try:
            yield
        finally:
            self._set(fcntl.F_UNLCK, number)

    def _take(self, number: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):  # either may mean that another process has it
            return False
        except OSError as error:
            raise Unavailable("sessions", f"the session store cannot lock: {error.strerror}") from None
        return True

    def _set(self, kind: int, number: int) -> None:
        if sys.platform == "linux":
            # Such a lock belongs to the open file: it also excludes another store of this process, and is kept when
            # other code of the process closes the same file.
            wanted = struct.pack("hhqqi", kind, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, wanted + b"\0" * (-len(wanted) % 8))
        else:
            command = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.lockf(self._descriptor, command, 1, number, os.SEEK_SET)


@contextlib.contextmanager
def open_session_locks(path: Path) -> Iterator[SessionLocks]:
    """Opens the locks of a file, created if it is missing."""
    descriptor = _open_file(path)
    try:
        yield SessionLocks(descriptor)
    finally:
        os.close(descriptor)


# --- The store ------------------------------------------------------------------------------------------------


class SqliteSessions(rows.RowSessions):
    """A SessionStore and SessionArchive on one file. `open_sqlite_sessions` opens it."""

    def __init__(self, file: SessionFile, locks: SessionLocks, limits: StoreLimits, clock: Callable[[], float]) -> None:
        super().__init__(limits, clock)
        self._file = file
        self._locks = locks
        self._queues = Queues[SessionKey]()
        self._held: set[SessionKey] = set()

    @contextlib.asynccontextmanager
    async def hold(self, key: SessionKey) -> AsyncIterator[None]:
        """Locks a session: in the order of the calls in this process, in no order among several processes."""
        key = rows.clean_key(key)
        async with self._queues.hold(key), self._locks.hold(rows.number_of(key)):
            self._held.add(key)
            try:
                yield
            finally:
                self._held.discard(key)

    async def _read(self, *statements: rows.Statement) -> Sequence[rows.Rows]:
        def select(database: sqlite3.Connection) -> list[rows.Rows]:
            return [database.execute(sql, _name_values(args)).fetchall() for sql, args in statements]

        return await self._file.read(select)

    async def _write(self, *statements: rows.Statement) -> int:
        return await self._file.run(lambda database: write(database, *statements))

    async def _append(self, key: SessionKey, *statements: rows.Statement) -> None:
        if key not in self._held:
            raise RuntimeError("a turn was added to a session that is not held")
        await self._write(*statements)


@contextlib.asynccontextmanager
async def open_sqlite_sessions(
    path: Path, limits: StoreLimits, *, clock: Callable[[], float] = time.time, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> AsyncIterator[SqliteSessions]:
    """Opens the sessions of a file, created if it is missing; `<file>.locks` beside it has the locks."""
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
    """Opens the session store `sqlite`: `file` is in the data directory unless it is absolute."""
    path = context.data_dir / options["file"]
    async with open_sqlite_sessions(path, StoreLimits.read(options)) as store:
        yield store
