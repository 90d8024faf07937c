# SPDX-License-Identifier: Apache-2.0
"""A short slice of the agent's long runs: servers are killed, two share a store; and a look at the judge."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from lockgate.sessions.turns import StoredTurn
from tests.soak.agent.broken import VARIANTS
from tests.soak.agent.faulty import find_unnoticed
from tests.soak.agent.forge import Forge, Store, open_forge
from tests.soak.agent.laws import judge
from tests.soak.agent.play import Crowd, Game, Manners, play_crowd, play_kills
from tests.soak.agent.talk import (
    ACKNOWLEDGED,
    ANSWER,
    CUT,
    LEFT,
    Asked,
    Attempt,
    Call,
    Evidence,
    Row,
    draw_answer,
    draw_question,
)

IN_ONE_LOOP = pytest.mark.asyncio(loop_scope="module")  # that of the forge
SEED = 7
SOME_LEAVE = Manners(leave=0.15, again=0.2)
NOBODY_LEAVES = Manners(leave=0.0, again=0.5)
BOTH_STORES = pytest.mark.parametrize("store", ["SQLite", "PostgreSQL"], indirect=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forge() -> AsyncIterator[Forge]:
    async with open_forge() as opened:
        yield opened


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path, request.getfixturevalue("postgres_dsn") if request.param == "PostgreSQL" else "")


@IN_ONE_LOOP
@BOTH_STORES
async def test_no_acknowledged_turn_is_lost_or_halved_when_servers_are_killed(store: Store, forge: Forge) -> None:
    report = await play_kills(Game(SEED, kills=5, sessions=2, manners=SOME_LEAVE, cold=0), store, forge)
    assert report.violations == []
    assert report.kills >= 5
    assert report.stored >= report.acknowledged >= 15
    assert report.ends[CUT] > 0


@IN_ONE_LOOP
@BOTH_STORES
async def test_turns_of_one_session_on_two_servers_stand_one_after_the_other(store: Store, forge: Forge) -> None:
    report = await play_crowd(Crowd(SEED, 9, rounds=2, manners=SOME_LEAVE, cold=0, spread_s=0.1), store, forge)
    assert report.violations == []
    assert report.acknowledged >= 18


@IN_ONE_LOOP
@pytest.mark.parametrize("store", ["SQLite"], indirect=True)
async def test_servers_whose_turns_do_not_wait_are_noticed(store: Store, forge: Forge) -> None:
    name = "nobody waits"
    crowd = Crowd(SEED, 6, rounds=2, manners=NOBODY_LEAVES, variant=name, cold=0, spread_s=0.1)
    report = await play_crowd(crowd, store, forge)
    assert VARIANTS[name].laws & set(report.laws())


def test_the_judge_accepts_what_is_right_and_notices_whatever_is_not() -> None:
    evidence = write_evidence()
    assert judge(evidence) == []
    assert find_unnoticed(evidence) == {}


def test_a_request_that_a_killed_server_could_not_answer_is_nobodys_fault() -> None:
    evidence = write_evidence()
    evidence.attempts.append(Attempt(2, 5, 1.0, end=CUT, ended_at=2.0))
    assert [violation.law for violation in judge(evidence)] == ["served"]
    assert judge(replace(evidence, killed_at={5: 1.5})) == []
    assert [violation.law for violation in judge(replace(evidence, killed_at={5: 2.5}))] == ["served"]


def write_evidence() -> Evidence:
    """Two callers with a session of the same name: three turns each, and one that came to no end."""
    evidence = Evidence()
    stored: dict[tuple[str, str], tuple[StoredTurn, ...]] = {}
    chance = random.Random(SEED)
    for first, where in ((1, ("ann", "s0")), (11, ("bob", "s0"))):
        turns: list[StoredTurn] = []
        for number in range(first, first + 3):
            asked = draw_question(number, where, chance)
            evidence.asked[number] = asked
            turns.append(play_turn(evidence, asked, turns))
        evidence.asked[first + 3] = draw_question(first + 3, where, chance)
        stored[where] = (*turns, abort_turn(evidence, evidence.asked[first + 3], turns))
        texts = [text for turn in turns for text in (turn.question, turn.answer)]
        evidence.rows += [
            Row(*where, place, ("user", "assistant")[place % 2], text) for place, text in enumerate(texts)
        ]
    return replace(evidence, stored=stored)


def play_turn(evidence: Evidence, asked: Asked, before: list[StoredTurn]) -> StoredTurn:
    at = float(asked.number)
    call = call_model(asked, before)
    evidence.calls.append(replace(call, finished_at=at + 0.5))
    evidence.attempts.append(Attempt(asked.number, 0, at, end=ACKNOWLEDGED, ended_at=at + 0.6, heard=call.text))
    return StoredTurn(asked.question, call.text, asked.expected_label, at)


def abort_turn(evidence: Evidence, asked: Asked, before: list[StoredTurn]) -> StoredTurn:
    at = float(asked.number)
    call = call_model(asked, before)
    evidence.calls.append(call)
    evidence.attempts.append(Attempt(asked.number, 0, at, end=LEFT, ended_at=at + 0.3, heard=call.text[:12]))
    return StoredTurn(asked.question, call.text[:12], asked.expected_label, at, aborted="the client left")


def call_model(asked: Asked, before: list[StoredTurn]) -> Call:
    past = [said for one in before for said in (("user", one.question), ("assistant", one.answer))]
    messages = [("system", "Be."), *past, ("user", asked.question)]
    text = "".join(draw_answer(asked.number, asked.number, random.Random(asked.number)))
    return Call(ANSWER, asked.number, messages, asked.number + 0.1, text)
