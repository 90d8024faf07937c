# SPDX-License-Identifier: Apache-2.0
"""An SQLite file of sessions: opened, brought to the version that we write, written and read in a thread for each.

Decides how durable a write is, how long one waits for other processes, and what SQLite's errors are called here.
Refuses to know what the statements mean.

While another process has the file, whoever writes waits; readers have a connection of their own and go on.
"""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from lockgate.backends.sqlite import connect, find_code, look_at, read_kind
from lockgate.errors import ConfigError, Unavailable
from lockgate.sessions.rows import TABLES, VERSION
from lockgate.store_tasks import see_through

BUSY_TIMEOUT_S = 5.0
_APPLICATION: Final = 0x4C4B5353  # "LKSS": the file is of sessions of ours
_LEAST_BUSY_S = 0.1  # for whoever has waited for others of this process all the time
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
Statement = tuple[str, Sequence[Any]]


class _Connection:
    """A connection and the thread that alone uses it."""

    def __init__(self, thread: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
        self._thread = thread
        self._database = database

    async def run(self, job: Job[T]) -> T:
        """What the job came to."""
        return await _finish(self._thread.submit(job, self._database))


class SessionFile:
    """A file that is written in one thread and read in another.

    A job that has not begun is dropped when its caller is cancelled. Once it has begun, the caller waits for its end
    first: nothing goes on unseen.
    """

    def __init__(self, writer: _Connection, reader: _Connection, busy_timeout_s: float) -> None:
        self._writer = writer
        self._reader = reader
        self._busy_timeout_s = busy_timeout_s

    async def run(self, job: Job[T]) -> T:
        """What the job came to, which may write. How long it waits for other processes counts from now."""
        until = time.monotonic() + self._busy_timeout_s
        least_s = min(_LEAST_BUSY_S, self._busy_timeout_s)

        def wait_and_run(database: sqlite3.Connection) -> T:
            busy_s = max(until - time.monotonic(), least_s)
            database.execute(f"PRAGMA busy_timeout = {round(busy_s * 1000)}")
            return job(database)

        return await self._writer.run(wait_and_run)

    async def read(self, job: Job[T]) -> T:
        """What the job came to, which only reads; all that it reads is of one moment."""

        def read_moment(database: sqlite3.Connection) -> T:
            database.execute("BEGIN")
            try:
                return job(database)
            finally:
                database.rollback()

        return await self._reader.run(read_moment)


async def _finish(submitted: "Future[T]") -> T:
    """What a job came to, in our words; see SessionFile for who waits for its end."""
    result = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(result)
    except sqlite3.Error as error:
        raise Unavailable("sessions", _name_failure(error)) from None
    except asyncio.CancelledError:
        if not submitted.cancel():  # it has begun
            with contextlib.suppress(Exception):  # nobody will ask for it
                await see_through(result)
        raise


def _name_failure(error: sqlite3.Error) -> str:
    """Plain words; SQLite's own may quote a statement."""
    return _WORDS.get(find_code(error), "the session store failed")


@contextlib.asynccontextmanager
async def open_session_file(path: Path, busy_timeout_s: float) -> AsyncIterator[SessionFile]:
    """The database of a file, made if there is none, readable for nobody else."""
    _create(path)
    async with (
        _open_connection(lambda: _open_named(_open_writer, path, busy_timeout_s)) as writer,
        _open_connection(lambda: _open_named(_open_reader, path, busy_timeout_s)) as reader,
    ):
        yield SessionFile(writer, reader, busy_timeout_s)


@contextlib.asynccontextmanager
async def _open_connection(open_database: Callable[[], sqlite3.Connection]) -> AsyncIterator[_Connection]:
    """A connection, closed in any case: also when whoever opens it leaves meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="sessions") as thread:
        opening = thread.submit(open_database)
        try:
            yield _Connection(thread, await _finish(opening))
        finally:
            await see_through(asyncio.wrap_future(thread.submit(_close, opening)))


def _close(opening: "Future[sqlite3.Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _create(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigError(f"cannot be opened: {error.strerror}", source=str(path)) from None


def _open_named(
    open_database: Callable[[Path, float], sqlite3.Connection], path: Path, busy_timeout_s: float
) -> sqlite3.Connection:
    """The same, but a failure names the file: whoever starts us has to find it."""
    try:
        return open_database(path, busy_timeout_s)
    except sqlite3.Error as error:
        raise Unavailable("sessions", f"{path}: {_name_failure(error)}") from error


def _open_writer(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection to a file of ours; somebody else's is not changed."""
    if look_at(path, busy_timeout_s).is_foreign(_APPLICATION):
        raise _refuse_foreign(path)
    database = connect(path, busy_timeout_s)
    try:
        database.execute("PRAGMA synchronous = FULL")  # a turn that was acknowledged outlives a power cut
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
    if kind.is_foreign(_APPLICATION):  # since we looked
        raise _refuse_foreign(path)
    if kind.version > VERSION:
        words = f"holds sessions of a newer version of Lockgate (tables {kind.version}, this one knows {VERSION})"
        raise ConfigError(words, source=str(path))
    if kind.version < VERSION:
        stamps = (f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {VERSION}")
        for statement in (*TABLES, *stamps):
            database.execute(statement)


def _refuse_foreign(path: Path) -> ConfigError:
    return ConfigError("is a database of something else: name another file for sessions", source=str(path))


def select(database: sqlite3.Connection, sql: str, args: Sequence[Any]) -> Sequence[Any]:
    """All rows of a statement."""
    return database.execute(sql, _name_values(args)).fetchall()


def write(database: sqlite3.Connection, *statements: Statement) -> int:
    """Carry out all of the statements or none; how many rows they changed."""
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
