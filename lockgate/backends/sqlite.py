# SPDX-License-Identifier: Apache-2.0
"""Checks the kind of Lockgate's SQLite files and opens them, for readers beside a writer."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

_RETRY_PAUSE_S = 0.02
T = TypeVar("T")


class FileKind(NamedTuple):
    """A file's application id, its version, and the number of tables, indexes and other objects in it."""

    application: int = 0
    version: int = 0
    things: int = 0

    def is_foreign(self, application: int) -> bool:
        """Returns whether the file is neither of this application nor blank."""
        return self.application != application and self != FileKind()


def look_at(file: Path, busy_timeout_s: float) -> FileKind:
    """Returns the kind of a file without changing it; a missing file counts as blank."""
    if not file.exists():
        return FileKind()
    return _try_until_free(lambda: _look(file, busy_timeout_s), time.monotonic() + busy_timeout_s)


def _look(file: Path, busy_timeout_s: float) -> FileKind:
    try:
        return _read_as("ro", file, busy_timeout_s)
    except sqlite3.OperationalError as error:
        if find_code(error) != sqlite3.SQLITE_READONLY:
            raise
    return _read_as("rw", file, busy_timeout_s)  # SQLite first rolls back a write that a crash interrupted


def _read_as(mode: str, file: Path, busy_timeout_s: float) -> FileKind:
    address = f"{file.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(address, uri=True, timeout=busy_timeout_s, isolation_level=None)
    try:
        database.execute("BEGIN")  # one snapshot: another process may be creating the tables
        return read_kind(database)
    finally:
        database.close()


def read_kind(database: sqlite3.Connection) -> FileKind:
    """Returns the kind of an open file."""
    queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    return FileKind(*(database.execute(sql).fetchone()[0] for sql in queries))


def connect(file: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a connection in WAL mode, for readers beside a writer; any thread may use it."""
    database = sqlite3.connect(file, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _try_until_free(lambda: _set_log_mode(database), time.monotonic() + busy_timeout_s)
    except BaseException:
        database.close()
        raise
    return database


def _set_log_mode(database: sqlite3.Connection) -> None:
    try:
        database.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if find_code(error) != sqlite3.SQLITE_READONLY:  # a file that cannot be written can still be read
            raise


def _try_until_free(action: Callable[[], T], until: float) -> T:
    """Retries an action while the file is busy: SQLite does not always wait for a change of mode."""
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if find_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_RETRY_PAUSE_S)


def find_code(error: sqlite3.Error) -> int:
    """Returns an error's primary result code, without the extended one."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
