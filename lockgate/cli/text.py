# SPDX-License-Identifier: Apache-2.0
"""Text for people: tables, counts, lines without control characters, files, and why a file cannot be used."""

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from lockgate.cli import EXIT_FAILED
from lockgate.errors import LockgateError

_ELSEWHERE = "see who may write there, or name another directory with --data-dir"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)


def complain(message: str, code: int = EXIT_FAILED) -> int:
    """Print a message on standard error; returns the exit code."""
    print(f"lockgate: {message}", file=sys.stderr, flush=True)
    return code


def printable(text: str) -> str:
    """The text without characters that could command a terminal."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def in_one_line(text: str) -> str:
    """The text without characters that could command a terminal or break a table."""
    return "".join([one if one.isprintable() else "\ufffd" for one in text])


def flatten(words: str) -> str:
    """The words in one line, without what could command a terminal."""
    return printable(" ".join(words.split()))


def count_of(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def align(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns under each other, two spaces between them."""
    table = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


@contextlib.contextmanager
def replace_file(path: Path, mode: int) -> Iterator[TextIO]:
    """A file that takes the place of `path` only when it is complete; raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as output:
            yield output
            os.fchmod(output.fileno(), mode)
            output.flush()
            os.fsync(output.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def explain_failure(file: Path, error: LockgateError, anew: str) -> str:
    """The failure of a store in a file; `anew` tells what comes back when the file is moved away."""
    cause = _find_cause(error)
    if isinstance(cause, OSError):
        return f"{file}: {cause.strerror or cause}: {_ELSEWHERE}"
    if not isinstance(cause, sqlite3.Error):
        return error.message if str(file) in error.message else f"{file}: {error.message}"
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    if file.is_dir():
        return f"{file} is a directory, and should be a file: move it away, or name another directory with --data-dir"
    if code in _DAMAGED:
        return f"{file} is damaged: put a copy in its place, or move it away: {anew}"
    if code in _BUSY:
        return f"{file} is locked by another process: try again when that has ended"
    if code in _CLOSED:
        return f"{file} cannot be {_name_denial(file)}: {_ELSEWHERE}"
    return f"{file}: {cause}"


def _find_cause(error: BaseException) -> BaseException | None:
    """What lies below it, if it came from the system or from SQLite."""
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, OSError | sqlite3.Error):
        cause = cause.__cause__ or cause.__context__
    return cause


def _name_denial(file: Path) -> str:
    """Which right is missing, as far as it can be seen."""
    if not os.access(file.parent, os.W_OK):
        return f"written, permission denied in {file.parent}"
    if file.exists() and not os.access(file, os.W_OK):
        return "written, permission denied"
    return "opened or written"
