# SPDX-License-Identifier: Apache-2.0
"""Text for the terminal: tables, counts, text without control characters, and messages about unusable files."""

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from lockgate.cli import EXIT_FAILED
from lockgate.errors import LockgateError

_ELSEWHERE = "check its permissions, or name another directory with --data-dir"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)


def complain(message: str, code: int = EXIT_FAILED) -> int:
    """Print a message on standard error; returns the exit code."""
    print(f"lockgate: {message}", file=sys.stderr, flush=True)
    return code


def printable(text: str) -> str:
    """The text without terminal control characters."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def in_one_line(text: str) -> str:
    """The text without line ends, tabs and terminal control characters."""
    return "".join([one if one.isprintable() else "\ufffd" for one in text])


def flatten(words: str) -> str:
    """The words in one line, without terminal control characters."""
    return printable(" ".join(words.split()))


def count_of(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def align(rows: Iterable[Sequence[str]]) -> list[str]:
    """The rows as lines with aligned columns, two spaces between them."""
    table = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


@contextlib.contextmanager
def replace_file(path: Path, mode: int) -> Iterator[TextIO]:
    """Opens a file that replaces `path` only when it is complete; raises OSError."""
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
    """Explains why a store's file failed; `anew` says what happens after the file is moved away."""
    cause = _find_cause(error)
    if isinstance(cause, OSError):
        return f"{file}: {cause.strerror or cause}: {_ELSEWHERE}"
    if not isinstance(cause, sqlite3.Error):
        return error.message if str(file) in error.message else f"{file}: {error.message}"
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    if file.is_dir():
        return f"{file} is a directory, not a file: move it away, or name another directory with --data-dir"
    if code in _DAMAGED:
        return f"{file} is damaged: put a copy in its place, or move it away: {anew}"
    if code in _BUSY:
        return f"{file} is locked by another process: try again when that has ended"
    if code in _CLOSED:
        return f"{file} cannot be {_name_denial(file)}: {_ELSEWHERE}"
    return f"{file}: {cause}"


def _find_cause(error: BaseException) -> BaseException | None:
    """The first cause that is an error of the system or of SQLite, if any."""
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, OSError | sqlite3.Error):
        cause = cause.__cause__ or cause.__context__
    return cause


def _name_denial(file: Path) -> str:
    """The denied access and, if known, its reason."""
    if not os.access(file.parent, os.W_OK):
        return f"written, permission denied in {file.parent}"
    if file.exists() and not os.access(file, os.W_OK):
        return "written, permission denied"
    return "opened or written"
