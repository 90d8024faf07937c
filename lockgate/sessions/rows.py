# SPDX-License-Identifier: Apache-2.0
"""Sessions in SQL tables for SQLite and PostgreSQL: one row per message, aborted turns in a second table."""

import contextlib
import hashlib
import heapq
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lockgate.data_files import Table, read_table
from lockgate.errors import UpstreamError
from lockgate.gate.values import Health
from lockgate.interfaces import Headers
from lockgate.sessions.turns import (
    PROBE_KEY,
    AbortedTurn,
    Past,
    SessionEntry,
    SessionKey,
    StoredTurn,
    StoreLimits,
    Turn,
)
from lockgate.store_tasks import read_health

VERSION = 1
MAX_ABORTED = 100  # per session
_MESSAGES_PER_TURN = 2
_DAY_S = 86_400.0
_TRIED_CHARS = 65_536
_PRUNED_AT_ONCE = 5_000  # rows; other writers wait meanwhile
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # PostgreSQL keeps no NUL, and UTF-8 has no lone surrogates


Statement = tuple[str, Sequence[Any]]
Rows = Sequence[Sequence[Any]]


class SessionStatements(Table, frozen=True):
    """The statements of `rows.toml`."""

    tables: tuple[str, ...]
    latest_turns: str
    repeated_turn: str
    all_turns: str
    all_aborted: str
    add_turn: str
    trim_turns: str
    add_aborted: str
    trim_aborted: str
    forget_old: tuple[str, ...]
    delete_session: tuple[str, ...]
    list_sessions: str


class RowsFile(Table, frozen=True):
    """`rows.toml`: the statements, and the parts that they share."""

    statements: SessionStatements
    parts: dict[str, str]


def _read_statements() -> SessionStatements:
    file = read_table(Path(__file__).with_name("rows.toml"), RowsFile)
    parts: dict[str, Any] = {**file.parts, "max_aborted": MAX_ABORTED, "pruned_at_once": _PRUNED_AT_ONCE}

    def fill(value: Any) -> Any:
        return value.format_map(parts) if isinstance(value, str) else tuple(map(fill, value))

    return SessionStatements(**{name: fill(value) for name, value in msgspec.structs.asdict(file.statements).items()})


SQL = _read_statements()


def clean(text: str) -> str:
    """Replaces the characters that a database cannot store."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_key(key: SessionKey) -> SessionKey:
    """Returns the key as it is stored; different keys stay different."""
    return SessionKey(*map(clean_name, key))


def clean_name(name: str) -> str:
    """A part of a key as it is stored, with a hash if it was changed."""
    cleaned = clean(name)
    if cleaned == name:
        return name
    return f"{cleaned}#{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def number_of(key: SessionKey) -> int:
    """Hashes a key to a lock number below 2**62; a collision with another lock is very unlikely."""
    named = "\0".join(("lockgate", "session", *key)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 2


def _read_turn(row: Sequence[Any]) -> Turn:
    question, answer, label, topic, layer, confidence, request_id, _ = row
    return Turn(question, answer, label, topic, layer, confidence, request_id)


def _read_stored(row: Sequence[Any]) -> StoredTurn:
    question, answer, label, _, layer, confidence, request_id, at = row
    return StoredTurn(question, answer, label, at, layer, confidence, request_id)


def _read_aborted(row: Sequence[Any]) -> StoredTurn:
    question, delivered, reason, label, request_id, at = row
    return StoredTurn(question, delivered, label, at, request_id=request_id, aborted=reason or "aborted")


class RowSessions(ABC):
    """A SessionStore and SessionArchive over these tables; a subclass runs the statements."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._has_failed = False  # whether the latest write failed

    @abstractmethod
    async def _read(self, *statements: Statement) -> Sequence[Rows]:
        """The rows of each statement."""

    @abstractmethod
    async def _write(self, *statements: Statement) -> int:
        """Runs all of the statements or none; returns how many rows they changed."""

    @abstractmethod
    async def _append(self, key: SessionKey, *statements: Statement) -> None:
        """The same for a session that is held; raises RuntimeError if it is not."""

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        """The latest turns and the one of this request id."""
        values = (*clean_key(key), self._cutoff())
        statements: list[Statement] = [(SQL.latest_turns, (*values, limit))]
        if request_id:
            statements.append((SQL.repeated_turn, (*values, clean(request_id))))
        latest, *repeated = await self._read(*statements)
        turns = tuple(_read_turn(row) for row in reversed(latest))
        return Past(turns, next((_read_turn(row) for rows in repeated for row in rows), None))

    async def probe(self, headers: Headers) -> Health:
        """Checks that sessions can be read, or after a failed write that they can be written; never raises."""
        return await read_health(self._try_writing() if self._has_failed else self.load(PROBE_KEY, 1))

    async def append(self, key: SessionKey, turn: Turn) -> None:
        """Adds a turn, unless its request id is already stored."""
        key = clean_key(key)
        texts = map(clean, (turn.question, turn.answer, turn.label, turn.topic, turn.layer))
        values = (*key, *texts, turn.confidence, clean(turn.request_id), self._clock())
        kept = max(self._limits.max_messages // _MESSAGES_PER_TURN, 1) * _MESSAGES_PER_TURN  # whole turns only
        with self._noting_failure():
            await self._append(key, (SQL.add_turn, values), (SQL.trim_turns, (*key, kept)))

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        """Stores an aborted turn; the latest hundred of a session are kept."""
        key = clean_key(key)
        texts = map(clean, (turn.question, turn.delivered, turn.reason, turn.label, turn.request_id))
        values = (*key, uuid.uuid4().hex, *texts, self._clock())
        with self._noting_failure():
            await self._write((SQL.add_aborted, values), (SQL.trim_aborted, key))

    async def list_sessions(self, caller: str | None = None) -> Sequence[SessionEntry]:
        """All sessions, the latest first."""
        (found,) = await self._read((SQL.list_sessions, (self._cutoff(), clean_name(caller or ""))))
        return tuple(SessionEntry(SessionKey(*row[:3]), int(row[3]), row[4], row[5]) for row in found)

    async def read_session(self, key: SessionKey) -> Sequence[StoredTurn]:
        """All turns of a session by time, also aborted ones."""
        values = (*clean_key(key), self._cutoff())
        turns, aborted = await self._read((SQL.all_turns, values), (SQL.all_aborted, values))
        return tuple(heapq.merge(map(_read_stored, turns), map(_read_aborted, aborted), key=lambda one: one.at))

    async def delete_session(self, key: SessionKey) -> bool:
        """Removes a session; returns whether there was one."""
        key = clean_key(key)
        return await self._write(*((sql, key) for sql in SQL.delete_session)) > 0

    async def forget_old(self) -> None:
        """Removes turns older than the limit, a part at a time, so that no statement takes long."""
        for sql in SQL.forget_old if self._limits.retention_days is not None else ():
            while await self._write((sql, (self._cutoff(),))):
                pass

    async def _try_writing(self) -> None:
        """Writes an aborted turn of no session and removes it, in one transaction. It is as large as a long turn."""
        values = (*PROBE_KEY, uuid.uuid4().hex, "", "x" * _TRIED_CHARS, "", "", "", self._clock())
        with self._noting_failure():
            await self._write((SQL.add_aborted, values), *((sql, PROBE_KEY) for sql in SQL.delete_session))

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except UpstreamError:
            self._has_failed = True
            raise
        self._has_failed = False

    def _cutoff(self) -> float:
        """The time before which turns are no longer kept."""
        days = self._limits.retention_days
        return self._clock() - days * _DAY_S if days is not None else 0.0
