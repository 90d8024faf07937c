# SPDX-License-Identifier: Apache-2.0
"""Session stores against a plain model of them, over random operations."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockgate.sessions.rows import clean
from lockgate.sessions.turns import AbortedTurn, Past, SessionKey, StoreLimits, Turn
from lockgate.testing import MemorySessionStore
from tests.soak.sessions.writer import open_store

LIMITS = StoreLimits(max_messages=6)

KEYS = st.builds(SessionKey, st.just(""), st.sampled_from(["default", "other"]), st.sampled_from(["a", "b"]))
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8)
REQUEST_IDS = st.sampled_from(["", "", "r1", "r2"])
TURNS = st.builds(
    Turn, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, st.none() | st.floats(0.0, 1.0, allow_subnormal=False), REQUEST_IDS
)
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), KEYS, TURNS),
    st.tuples(st.just("append"), KEYS, TURNS),
    st.tuples(st.just("abort"), KEYS, st.builds(AbortedTurn, TEXTS, TEXTS, TEXTS, TEXTS, REQUEST_IDS)),
    st.tuples(st.just("load"), KEYS, st.tuples(st.integers(0, 5), REQUEST_IDS)),
    st.tuples(st.just("read"), KEYS, st.none()),
    st.tuples(st.just("delete"), KEYS, st.none()),
)


class Model:
    """What a store is, said as plainly as possible."""

    def __init__(self) -> None:
        self.turns: dict[SessionKey, list[Turn]] = {}
        self.told: dict[SessionKey, list[tuple[str, str, str]]] = {}  # question, answer, why it was aborted

    async def apply(self, what: str, key: SessionKey, value: Any, store: Any) -> None:
        """One operation on both; they must agree."""
        await getattr(self, f"_{what}")(key, value, store)

    async def _append(self, key: SessionKey, turn: Turn, store: Any) -> None:
        async with store.hold(key):
            await store.append(key, turn)
        turn = Turn._make(clean(part) if isinstance(part, str) else part for part in turn)
        turns, told = self.turns.setdefault(key, []), self.told.setdefault(key, [])
        if turn.request_id and any(one.request_id == turn.request_id for one in turns):
            return
        turns.append(turn)
        told.append((turn.question, turn.answer, ""))
        if len(turns) > LIMITS.max_messages // 2:
            del turns[0]
            del told[next(place for place, one in enumerate(told) if not one[2])]

    async def _abort(self, key: SessionKey, turn: AbortedTurn, store: Any) -> None:
        await store.abort(key, turn)
        told = clean(turn.question), clean(turn.delivered), clean(turn.reason) or "aborted"
        self.told.setdefault(key, []).append(told)

    async def _load(self, key: SessionKey, asked: tuple[int, str], store: Any) -> None:
        limit, request_id = asked
        turns = self.turns.get(key, [])
        repeated = next((one for one in turns if request_id and one.request_id == request_id), None)
        assert await store.load(key, limit, request_id) == Past(tuple(turns[-limit:] if limit else ()), repeated)

    async def _read(self, key: SessionKey, _: None, store: Any) -> None:
        stored = [(one.question, one.answer, one.aborted) for one in await store.read_session(key)]
        assert stored == self.told.get(key, [])

    async def _delete(self, key: SessionKey, _: None, store: Any) -> None:
        assert await store.delete_session(key) == bool(self.told.pop(key, None))
        self.turns.pop(key, None)


async def play(store: Any, operations: list[tuple[str, SessionKey, Any]]) -> None:
    caller = secrets.token_hex(8)
    model = Model()
    for what, key, value in operations:
        await model.apply(what, key._replace(caller=caller), value, store)
    listed = {entry.key: entry.turns for entry in await store.list_sessions(caller)}
    assert listed == {key: len(model.turns.get(key, [])) for key, told in model.told.items() if told}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_does_what_its_model_does(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue("postgres_dsn") if kind == "postgres" else str(tmp_path / "sessions.db")

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.lists(OPERATIONS, max_size=25))
    def check(operations: list[tuple[str, SessionKey, Any]]) -> None:
        async def run() -> None:
            async with open_store(address, LIMITS) as store:
                await play(store, operations)

        asyncio.run(run())

    check()


async def test_the_store_in_memory_does_too() -> None:
    key = SessionKey("", "default", "a")
    turns = [Turn(f"q{number}", "a", "L", request_id="r" * (number % 3)) for number in range(9)]
    await play(
        MemorySessionStore(LIMITS),
        [("append", key, turn) for turn in turns]
        + [("abort", key, AbortedTurn("q", "", "")), ("load", key, (2, "r")), ("read", key, None)],
    )
