# SPDX-License-Identifier: Apache-2.0
"""The tables that sessions are kept in, in the SQL that SQLite and PostgreSQL have in common.

One row per message; a turn is two, of neighbouring numbers. Aborted turns have a table of their own, so that no
statement about turns can find them.
"""

import hashlib
import heapq
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lockgate.data_files import Table, read_table
from lockgate.sessions.turns import AbortedTurn, Past, SessionEntry, SessionKey, StoredTurn, StoreLimits, Turn

VERSION = 1
MAX_ABORTED = 100  # per session
_MESSAGES_PER_TURN = 2
_DAY_S = 86_400.0
_PRUNED_AT_ONCE = 5_000  # rows: others wait for whoever writes
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # PostgreSQL keeps no NUL, and UTF-8 has no lone surrogates


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
    """The statements, and the parts that they share."""

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
    """The text as it is kept: what no database can hold is replaced."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_key(key: SessionKey) -> SessionKey:
    """The key as it is kept; two that differ stay different."""
    return SessionKey(*map(clean_name, key))


def clean_name(name: str) -> str:
    """A part of a key as it is kept."""
    cleaned = clean(name)
    if cleaned == name:
        return name
    return f"{cleaned}#{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def number_of(key: SessionKey) -> int:
    """A number below 2**62 that stands for a session among locks; others' locks are elsewhere, as chance has it."""
    named = "\0".join(("lockgate", "session", *key)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 2


def turn_values(key: SessionKey, turn: Turn, at: float) -> tuple[Any, ...]:
    """The arguments of `add_turn`."""
    texts = map(clean, (turn.question, turn.answer, turn.label, turn.topic, turn.layer))
    return (*key, *texts, turn.confidence, clean(turn.request_id), at)


def aborted_values(key: SessionKey, turn: AbortedTurn, entry: str, at: float) -> tuple[Any, ...]:
    """The arguments of `add_aborted`."""
    texts = map(clean, (turn.question, turn.delivered, turn.reason, turn.label, turn.request_id))
    return (*key, entry, *texts, at)


def kept_messages(limits: StoreLimits) -> int:
    """The last argument of `trim_turns`: whole turns only, and the latest one in any case."""
    return max(limits.max_messages // _MESSAGES_PER_TURN, 1) * _MESSAGES_PER_TURN


def cutoff(limits: StoreLimits, now: float) -> float:
    """What ended before this is no longer kept."""
    return now - limits.retention_days * _DAY_S if limits.retention_days is not None else 0.0


def read_past(latest: Sequence[Sequence[Any]], repeated: Sequence[Sequence[Any]]) -> Past:
    """What a prompt may see, of the rows of `latest_turns` and `repeated_turn`."""
    return Past(tuple(_read_turn(row) for row in reversed(latest)), next((_read_turn(row) for row in repeated), None))


def _read_turn(row: Sequence[Any]) -> Turn:
    question, answer, label, topic, layer, confidence, request_id, _ = row
    return Turn(question, answer, label, topic, layer, confidence, request_id)


def read_stored(turns: Sequence[Sequence[Any]], aborted: Sequence[Sequence[Any]]) -> tuple[StoredTurn, ...]:
    """What operators see, of the rows of `all_turns` and `all_aborted`, in the order of time."""
    return tuple(heapq.merge(map(_read_stored, turns), map(_read_aborted, aborted), key=lambda one: one.at))


def _read_stored(row: Sequence[Any]) -> StoredTurn:
    question, answer, label, _, layer, confidence, request_id, at = row
    return StoredTurn(question, answer, label, at, layer, confidence, request_id)


def _read_aborted(row: Sequence[Any]) -> StoredTurn:
    question, delivered, reason, label, request_id, at = row
    return StoredTurn(question, delivered, label, at, request_id=request_id, aborted=reason or "aborted")


def read_entries(rows: Iterable[Sequence[Any]]) -> tuple[SessionEntry, ...]:
    """The rows of `list_sessions`."""
    return tuple(SessionEntry(SessionKey(*row[:3]), int(row[3]), row[4], row[5]) for row in rows)
