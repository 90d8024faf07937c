# SPDX-License-Identifier: Apache-2.0
"""The tables that sessions are kept in, in the SQL that SQLite and PostgreSQL have in common.

One row per message; a turn is two, of neighbouring numbers. Aborted turns have a table of their own, so that no
statement about turns can find them. The place of a value is `$1`: PostgreSQL counts it, SQLite takes it as a name.
"""

import hashlib
import heapq
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lockgate.sessions.turns import AbortedTurn, Past, SessionEntry, SessionKey, StoredTurn, StoreLimits, Turn

VERSION = 1
MAX_ABORTED = 100  # per session
_MESSAGES_PER_TURN = 2
_DAY_S = 86_400.0
_PRUNED_AT_ONCE = 5_000  # rows: others wait for whoever writes
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # PostgreSQL keeps no NUL, and UTF-8 has no lone surrogates

TABLES = tuple(Path(__file__).with_suffix(".sql").read_text("utf-8").split("\n\n")[1:])

_OF_SESSION = "caller = $1 AND agent = $2 AND session = $3"
_TURNS = f"""
    SELECT asked.text, said.text, said.label, said.topic, said.layer, said.confidence, said.request_id, said.at
    FROM lockgate_messages AS asked JOIN lockgate_messages AS said
      ON said.caller = asked.caller AND said.agent = asked.agent AND said.session = asked.session
      AND said.seq = asked.seq + 1
    WHERE asked.{_OF_SESSION.replace("AND ", "AND asked.")} AND asked.role = 'user' AND asked.at >= $4
"""
LATEST_TURNS = _TURNS + " ORDER BY asked.seq DESC LIMIT $5"  # arguments: key, cutoff, how many
REPEATED_TURN = _TURNS + " AND asked.request_id = $5 LIMIT 1"  # key, cutoff, request id
ALL_TURNS = _TURNS + " ORDER BY asked.seq"  # key, cutoff
ALL_ABORTED = f"""
    SELECT question, delivered, reason, label, request_id, at
    FROM lockgate_aborted WHERE {_OF_SESSION} AND at >= $4 ORDER BY at, entry
"""
# Both rows in one statement, none if the request id is there already.
ADD_TURN = f"""
    INSERT INTO lockgate_messages
      (caller, agent, session, seq, role, text, label, topic, layer, confidence, request_id, at)
    SELECT $1, $2, $3, latest.seq + said.place, said.role, said.text, $6, $7, $8,
      CAST($9 AS DOUBLE PRECISION), $10, CAST($11 AS DOUBLE PRECISION)
    FROM (SELECT coalesce(max(seq), -1) AS seq FROM lockgate_messages WHERE {_OF_SESSION}) AS latest,
      (SELECT 1 AS place, 'user' AS role, $4 AS text UNION ALL SELECT 2, 'assistant', $5) AS said
    WHERE $10 = '' OR NOT EXISTS (SELECT 1 FROM lockgate_messages WHERE {_OF_SESSION} AND request_id = $10)
"""
TRIM_TURNS = f"""
    DELETE FROM lockgate_messages WHERE {_OF_SESSION}
      AND seq <= (SELECT max(seq) FROM lockgate_messages WHERE {_OF_SESSION}) - $4
"""
ADD_ABORTED = """
    INSERT INTO lockgate_aborted
      (caller, agent, session, entry, question, delivered, reason, label, request_id, at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
TRIM_ABORTED = f"""
    DELETE FROM lockgate_aborted WHERE {_OF_SESSION} AND entry NOT IN
      (SELECT entry FROM lockgate_aborted WHERE {_OF_SESSION} ORDER BY at DESC, entry DESC LIMIT {MAX_ABORTED})
"""
# Everything that is too old, a part of it at a time: $1 is the cutoff. Both rows of a turn have the same time.
FORGET_OLD = tuple(
    f"DELETE FROM {table} WHERE at < $1 AND at <= coalesce("
    f"(SELECT at FROM {table} ORDER BY at LIMIT 1 OFFSET {_PRUNED_AT_ONCE}), $1)"
    for table in ("lockgate_messages", "lockgate_aborted")
)
DELETE_SESSION = tuple(
    f"DELETE FROM {table} WHERE {_OF_SESSION}" for table in ("lockgate_messages", "lockgate_aborted")
)
LIST_SESSIONS = """
    SELECT caller, agent, session, sum(turns), min(at), max(at) FROM (
      SELECT caller, agent, session, 1 AS turns, at FROM lockgate_messages WHERE role = 'assistant'
      UNION ALL SELECT caller, agent, session, 0, at FROM lockgate_aborted) AS kept
    WHERE at >= $1 AND ($2 = '' OR caller = $2)
    GROUP BY caller, agent, session ORDER BY max(at) DESC, caller, agent, session
"""


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
    """The arguments of ADD_TURN."""
    texts = map(clean, (turn.question, turn.answer, turn.label, turn.topic, turn.layer))
    return (*key, *texts, turn.confidence, clean(turn.request_id), at)


def aborted_values(key: SessionKey, turn: AbortedTurn, entry: str, at: float) -> tuple[Any, ...]:
    """The arguments of ADD_ABORTED."""
    texts = map(clean, (turn.question, turn.delivered, turn.reason, turn.label, turn.request_id))
    return (*key, entry, *texts, at)


def kept_messages(limits: StoreLimits) -> int:
    """The last argument of TRIM_TURNS: whole turns only, and the latest one in any case."""
    return max(limits.max_messages // _MESSAGES_PER_TURN, 1) * _MESSAGES_PER_TURN


def cutoff(limits: StoreLimits, now: float) -> float:
    """What ended before this is no longer kept."""
    return now - limits.retention_days * _DAY_S if limits.retention_days is not None else 0.0


def read_past(latest: Sequence[Sequence[Any]], repeated: Sequence[Sequence[Any]]) -> Past:
    """What a prompt may see, of the rows of LATEST_TURNS and REPEATED_TURN."""
    return Past(tuple(_read_turn(row) for row in reversed(latest)), next((_read_turn(row) for row in repeated), None))


def _read_turn(row: Sequence[Any]) -> Turn:
    question, answer, label, topic, layer, confidence, request_id, _ = row
    return Turn(question, answer, label, topic, layer, confidence, request_id)


def read_stored(turns: Sequence[Sequence[Any]], aborted: Sequence[Sequence[Any]]) -> tuple[StoredTurn, ...]:
    """What operators see, of the rows of ALL_TURNS and ALL_ABORTED: turns in their order, aborted ones in between."""
    return tuple(heapq.merge(map(_read_stored, turns), map(_read_aborted, aborted), key=lambda one: one.at))


def _read_stored(row: Sequence[Any]) -> StoredTurn:
    question, answer, label, _, layer, confidence, request_id, at = row
    return StoredTurn(question, answer, label, at, layer, confidence, request_id)


def _read_aborted(row: Sequence[Any]) -> StoredTurn:
    question, delivered, reason, label, request_id, at = row
    return StoredTurn(question, delivered, label, at, request_id=request_id, aborted=reason or "aborted")


def read_entries(rows: Iterable[Sequence[Any]]) -> tuple[SessionEntry, ...]:
    """The rows of LIST_SESSIONS."""
    return tuple(SessionEntry(SessionKey(*row[:3]), int(row[3]), row[4], row[5]) for row in rows)
