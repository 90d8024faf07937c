# SPDX-License-Identifier: Apache-2.0
"""An SQLite file of sessions: opened, brought to the version that we write, and asked in a thread of its own.

Decides how durable a write is, how long one waits for other processes, and what SQLite's errors are called here.
Refuses to know what the statements mean.
"""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lockgate.errors import ConfigError, Unavailable
from lockgate.holding import see_through
from lockgate.wire.session_rows import TABLES, VERSION

BUSY_TIMEOUT_S = 5.0
_RETRY_PAUSE_S = 0.02
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
Statement = tuple[str, Sequence[Any]]


class SessionFile:
    """A database and its thread."""

    def __init__(self, thread: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
        self._thread = thread
        self._database = database

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """What the job came to. Whoever is cancelled meanwhile waits for its end first: nothing goes on unseen."""
        return await _run(self._thread, lambda: job(self._database))


async def _run(thread: ThreadPoolExecutor, job: Callable[[], T]) -> T:
    try:
        return await see_through(asyncio.wrap_future(thread.submit(job)))
    except sqlite3.Error as error:
        raise Unavailable("sessions", _name_failure(error)) from None


def _name_failure(error: sqlite3.Error) -> str:
    """Plain words; SQLite's own may quote a statement."""
    code = getattr(error, "sqlite_errorcode", None)
    return _WORDS.get((code or 0) & 0xFF, "the session store failed")


@contextlib.asynccontextmanager
async def open_session_file(path: Path, busy_timeout_s: float) -> AsyncIterator[SessionFile]:
    """The database of a file, made if there is none, readable for nobody else."""
    _create(path)
    with ThreadPoolExecutor(1, thread_name_prefix="sessions") as thread:
        database = await _run(thread, lambda: _open(path, busy_timeout_s))
        try:
            yield SessionFile(thread, database)
        finally:
            await _run(thread, database.close)


def _create(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigError(f"cannot be opened: {error.strerror}", source=str(path)) from None


def _open(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    try:
        _set_up(database, path, time.monotonic() + busy_timeout_s)
    except BaseException:
        database.close()
        raise
    return database


def _set_up(database: sqlite3.Connection, path: Path, until: float) -> None:
    """The tables, in the log mode in which readers and writers do not wait for each other."""
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:  # SQLite does not always wait for this one
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_RETRY_PAUSE_S)
    database.execute("PRAGMA synchronous = FULL")  # a turn that was acknowledged outlives a power cut
    with _transaction(database):
        _bring_up_to_date(database, path)


def _bring_up_to_date(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        words = f"holds sessions of a newer version of Lockgate (tables {version}, this one knows {VERSION})"
        raise ConfigError(words, source=str(path))
    if version < VERSION:
        for statement in (*TABLES, f"PRAGMA user_version = {VERSION}"):
            database.execute(statement)


def select(database: sqlite3.Connection, sql: str, args: Sequence[Any]) -> Sequence[Any]:
    """All rows of a statement."""
    return database.execute(sql.replace("$", "?"), args).fetchall()


def write(database: sqlite3.Connection, *statements: Statement) -> int:
    """Carry out all of the statements or none; how many rows they changed."""
    with _transaction(database):
        return sum(database.execute(sql.replace("$", "?"), args).rowcount for sql, args in statements)


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
