# SPDX-License-Identifier: Apache-2.0
"""Models alone and agents that are asked while the question is being read: no word before, nothing remembered after."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lockgate.agent.answer import AgentQuestion
from lockgate.agent.turns import Memory
from lockgate.errors import CheckFailed, Unavailable
from lockgate.gate.receipts import Outcome, RequestPart
from lockgate.guard.policy import Policy
from lockgate.testing import MemorySessionStore, ScriptedDataSource, ScriptedDetector, find_word
from tests.agent.agents import KEY, build_agent, build_main, converse, turns_of
from tests.guard.early_parts import FALLBACK, Gated, Talker, assert_nothing_runs, guarding, settle
from tests.rag.questions import NOTES, guard
from tests.waits import until

TALK = AgentQuestion("How long?", KEY, label="CONVERSATIONAL")


def make_agent(model: Talker, guards: Policy) -> Any:
    return build_agent(conversational=model, memory=Memory(MemorySessionStore()), guarding=lambda: guards)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_no_word_is_heard_before_the_question_has_been_read(*, is_stream: bool) -> None:
    model, detector = Talker(), Gated("none")
    agent = make_agent(model, guarding(detector))
    task = asyncio.ensure_future(converse(agent, TALK._replace(is_stream=is_stream)))
    await model.has_begun.wait()
    await settle()
    assert not task.done()
    detector.may_read.set()
    pieces, facts = await task
    assert pieces == (["It ", "is ", "8033."] if is_stream else ["It is 8033."])
    assert facts.outcome == "answered"
    assert facts.receipt is not None
    assert facts.receipt.is_covered
    assert_nothing_runs()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("pieces", [(), ("It ", "is ")])
async def test_a_question_that_is_blocked_late_leaves_no_word_and_ends_the_model(
    pieces: Sequence[str], *, is_stream: bool
) -> None:
    model, detector = Talker(pieces, ends=False), Gated("long")
    agent = make_agent(model, guarding(detector, output=[guard("out", ScriptedDetector(), 2)]))
    task = asyncio.ensure_future(converse(agent, TALK._replace(is_stream=is_stream)))
    await model.has_begun.wait()
    await settle()
    detector.may_read.set()
    heard, facts = await task
    assert heard == [FALLBACK]
    assert facts.outcome == "prompt_blocked"
    assert model.closed == 1
    assert facts.receipt is not None
    assert facts.receipt.outcome is Outcome.BLOCKED
    assert facts.receipt.released[RequestPart.ANSWER] == 0
    assert facts.receipt.released[RequestPart.PROMPT] == len(TALK.question)  # the model was given it
    assert_nothing_runs()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_turn_that_is_blocked_late_is_not_remembered(*, is_stream: bool) -> None:
    store, model, detector = MemorySessionStore(), Talker(), Gated("long")
    noted: list[Any] = []
    agent = build_agent(
        conversational=model,
        memory=Memory(store),
        guarding=lambda: guarding(detector),
        note_label=lambda *label: noted.append(label),
    )
    task = asyncio.ensure_future(converse(agent, TALK._replace(is_stream=is_stream)))
    await model.has_begun.wait()
    await settle()
    detector.may_read.set()
    assert (await task)[0] == [FALLBACK]
    assert await store.list_sessions() == []
    assert noted == []
    assert_nothing_runs()


async def test_a_turn_that_is_blocked_while_it_is_prepared_is_not_remembered() -> None:
    store, main, detector = MemorySessionStore(), build_main(), Gated("long")
    source = ScriptedDataSource([NOTES], delay_s=3600)
    agent = build_agent(main=main, memory=Memory(store), guarding=lambda: guarding(detector))
    agent = replace(
        agent,
        library=agent.library._replace(sources=[agent.library.sources[0]._replace(source=source)]),
    )
    task = asyncio.ensure_future(converse(agent, AgentQuestion("How long?", KEY)))
    await until(lambda: source.questions)
    detector.may_read.set()
    assert (await task)[0] == [FALLBACK]
    assert source.cancelled == 1
    assert await store.list_sessions() == []
    assert_nothing_runs()


async def test_a_turn_that_was_read_in_time_is_remembered_as_it_was_asked() -> None:
    store = MemorySessionStore()
    model, detector = Talker(), ScriptedDetector(find_word("none"))
    agent = build_agent(conversational=model, memory=Memory(store), guarding=lambda: guarding(detector))
    await converse(agent, TALK)
    assert await turns_of(store) == [("How long?", "It is 8033.")]


async def test_a_repeated_request_is_read_before_it_is_answered_again() -> None:
    store, model = MemorySessionStore(), Talker()
    agent = build_agent(
        conversational=model, memory=Memory(store), guarding=lambda: guarding(ScriptedDetector(find_word("none")))
    )
    first, _ = await converse(agent, TALK._replace(request_id="r1"))
    again, facts = await converse(agent, TALK._replace(request_id="r1"))
    assert ("".join(first), again, facts.is_repeated) == ("It is 8033.", ["It is 8033."], True)
    strict = replace(agent, guarding=lambda: guarding(ScriptedDetector(find_word("long"))))
    assert (await converse(strict, TALK._replace(request_id="r1")))[0] == [FALLBACK]


async def test_a_detector_that_fails_late_fails_the_turn_without_a_word() -> None:
    model, detector = Talker(ends=False), Gated("", Unavailable("d", "gone"))
    task = asyncio.ensure_future(converse(make_agent(model, guarding(detector)), TALK))
    await model.has_begun.wait()
    await settle()
    detector.may_read.set()
    with pytest.raises(CheckFailed, match="`d` failed"):
        await task
    assert model.closed == 1
    assert_nothing_runs()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
async def test_a_client_that_leaves_a_turn_leaves_nothing_behind(turns: int) -> None:
    model, detector = Talker(), Gated("none")
    task = asyncio.ensure_future(converse(make_agent(model, guarding(detector)), TALK))
    for number in range(turns):
        await asyncio.sleep(0)
        if number > 40:
            detector.may_read.set()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert_nothing_runs()
    assert model.closed == model.has_begun.is_set()
