# SPDX-License-Identifier: Apache-2.0
"""Policies in shadow: everything is read and reported, nothing is changed, held back or told to the client."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lockgate.agent.answer import AgentQuestion
from lockgate.agent.turns import Memory
from lockgate.chunkers.machines import open_sentence_chunker
from lockgate.errors import Unavailable
from lockgate.gate.receipts import Outcome, RequestPart
from lockgate.gate.values import Document
from lockgate.gate.verdicts import Action, MaskWith, Measures
from lockgate.guard.policy import Chunking, Policy
from lockgate.rag.answer import Step, Token, answer
from lockgate.testing import MemorySessionStore, ScriptedDataSource, ScriptedDetector, ScriptedModel
from tests.agent.agents import KEY, build_agent, build_main, converse, turns_of
from tests.guard.early_parts import Gated, Talker, assert_nothing_runs
from tests.rag.questions import (
    NOTES,
    RecordingModel,
    ScriptedReviewer,
    ask,
    guard,
    reviewer,
    run,
    text_of,
    word_guard,
)

SECRET = Document("A secret", "The secret is out.", 0.9)
SAID = ["The sec", "ret is", " here."]
TALK = AgentQuestion("my secret", KEY, label="CONVERSATIONAL")
ACTIONS = pytest.mark.parametrize("action", list(Action))
OUTCOMES = dict(zip(Action, (Outcome.RELEASED, Outcome.MASKED, Outcome.STOPPED, Outcome.BLOCKED), strict=True))


def shadow(action: Action, **more: Any) -> Policy:
    """Three detectors that find the word everywhere, and what would become of it."""
    measures = Measures(action, mask_with=MaskWith.LABEL, fallback="Withheld.", is_shadow=True)
    given: dict[str, Any] = {
        "input": [word_guard("in", "secret")],
        "documents": [word_guard("docs", "secret")],
        "output": [word_guard("out", "secret", 12)],
        "for_input": measures,
        "for_documents": measures,
        "for_output": measures,
        "is_shadow": True,
    }
    return Policy(**{**given, **more})


@ACTIONS
@pytest.mark.parametrize("is_speculative", [False, True])
async def test_a_grounded_answer_in_shadow_is_that_without_a_policy(action: Action, *, is_speculative: bool) -> None:
    steps: list[list[Step]] = []
    for guarding in (Policy(), shadow(action, is_speculative=is_speculative)):
        model, source = RecordingModel(SAID), ScriptedDataSource([SECRET])
        told, outcome = await run(ask(model, source, prompt="my secret?", guarding=guarding))
        steps.append([step for step in told if isinstance(step, Token)])
        assert source.questions == ["my secret?"]
        assert "my secret?" in model.messages[1].text
        assert "The secret is out." in model.messages[1].text
        assert [one.inspected for one in outcome.retrievals] == [()]
        assert (list(outcome.found_in_prompt), outcome.found_in_answer) == ([], [])
        assert not outcome.is_prompt_blocked
        assert not outcome.is_answer_blocked
    assert steps[0] == steps[1]
    assert outcome.receipt.outcome is OUTCOMES[action]
    assert [one.findings for one in outcome.receipt.list_reads()] == [1, 2, 1]
    assert outcome.receipt.is_covered
    assert outcome.pseudonyms == {}


async def test_in_shadow_no_token_waits_for_a_detector() -> None:
    detector, heard = Gated("secret"), asyncio.Event()
    guarding = shadow(Action.BLOCK, input=(), documents=(), output=[guard("out", detector, 3)])
    tokens: list[str] = []

    async def hear(step: Step) -> None:
        if isinstance(step, Token):
            tokens.append(step.text)
            if len(tokens) == len(SAID):
                heard.set()

    task = asyncio.ensure_future(answer(ask(ScriptedModel(SAID), guarding=guarding), hear))
    await heard.wait()
    assert tokens == SAID
    assert not task.done()  # the receipt waits for those that read beside
    detector.may_read.set()
    outcome = await task
    assert outcome.receipt.is_covered
    assert_nothing_runs()


@pytest.mark.parametrize("section", ["input", "documents", "output"])
@pytest.mark.parametrize("passes", [False, True])
async def test_a_detector_that_fails_in_shadow_changes_nothing_but_the_receipt(section: str, *, passes: bool) -> None:
    broken = replace(guard("w", ScriptedDetector(error=Unavailable("w", "gone"))), passes=passes)
    readers: dict[str, Any] = {"input": (), "documents": (), "output": (), section: [broken]}
    steps, outcome = await run(
        ask(ScriptedModel(SAID), ScriptedDataSource([NOTES]), guarding=shadow(Action.BLOCK, **readers))
    )
    assert text_of(steps) == "".join(SAID)
    assert outcome.failed_detectors == {"w": not passes}
    assert outcome.receipt.outcome is (Outcome.RELEASED if passes else Outcome.FAILED)
    assert [(one.has_failed, one.is_covered) for one in outcome.receipt.list_reads()] == [(True, False)]


async def test_a_reviewer_reads_beside_in_shadow() -> None:
    facts = ScriptedReviewer("moon")
    async with open_sentence_chunker({}) as sentences:
        guarding = shadow(Action.MASK, input=(), documents=(), output=(), grounding=[reviewer(facts)])
        question = ask(
            ScriptedModel(["The moon ", "is cheese. ", "Yes."]),
            ScriptedDataSource([NOTES]),
            guarding=guarding,
            chunking=Chunking("sentence", sentences),
        )
        steps, outcome = await run(question)
    assert [step.text for step in steps if isinstance(step, Token)] == ["The moon ", "is cheese. ", "Yes."]
    assert [claim.content for claim in facts.claims] == ["The moon is cheese.", "Yes."]
    assert (outcome.found_in_answer, outcome.receipt.outcome) == ([], Outcome.MASKED)


# Agents.


def make_agent(guarding: Policy, store: MemorySessionStore) -> Any:
    return build_agent(conversational=ScriptedModel(SAID), memory=Memory(store), guarding=lambda: guarding)


@ACTIONS
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("is_speculative", [False, True])
async def test_a_turn_in_shadow_is_said_and_remembered_as_it_is(
    action: Action, *, is_stream: bool, is_speculative: bool
) -> None:
    store = MemorySessionStore()
    agent = make_agent(shadow(action, is_speculative=is_speculative), store)
    pieces, facts = await converse(agent, TALK._replace(is_stream=is_stream))
    assert pieces == (SAID if is_stream else ["".join(SAID)])
    assert facts.outcome == "answered"
    assert facts.receipt is not None
    assert facts.receipt.is_shadow
    assert facts.receipt.is_covered
    assert facts.receipt.released[RequestPart.ANSWER] == len("".join(SAID))
    assert (facts.receipt.outcome is Outcome.RELEASED) == (action is Action.ANNOTATE)
    assert await turns_of(store) == [("my secret", "".join(SAID))]


async def test_documents_reach_an_agents_model_in_shadow_as_they_are() -> None:
    main = build_main()
    guarding = shadow(Action.BLOCK, documents=[word_guard("docs", "8034")])
    _, facts = await converse(build_agent(main=main, guarding=lambda: guarding), AgentQuestion("q"))
    assert [one.title for one in facts.documents] == ["Ports", "Health"]
    assert "8034" in "".join(one.text for one in main.asked[-1])
    assert facts.receipt is not None
    assert facts.receipt.outcome is Outcome.MASKED  # a document is left out, the answer is not


async def test_no_word_of_a_turn_in_shadow_waits_for_a_detector() -> None:
    detector, store = Gated("secret"), MemorySessionStore()
    guarding = shadow(Action.STOP, input=(), documents=(), output=[guard("out", detector, 3)])
    agent = make_agent(guarding, store)
    detector.may_read.clear()
    async with agent.open(TALK) as turn:
        pieces = turn.pieces
        assert [await anext(pieces) for _ in SAID] == SAID
        detector.may_read.set()
        assert [piece async for piece in pieces] == []
    assert_nothing_runs()


async def test_a_detector_that_fails_in_shadow_does_not_fail_a_turn() -> None:
    broken = guard("w", ScriptedDetector(error=Unavailable("w", "gone")))
    store = MemorySessionStore()
    agent = make_agent(shadow(Action.BLOCK, input=[broken], output=[broken]), store)
    pieces, facts = await converse(agent, TALK)
    assert pieces == SAID
    assert facts.failed_detectors == {"w": True}
    assert facts.receipt is not None
    assert facts.receipt.outcome is Outcome.FAILED


async def test_a_client_that_leaves_while_detectors_read_beside_leaves_nothing_behind() -> None:
    detector, model = Gated("secret"), Talker(SAID, ends=False)
    guarding = shadow(Action.STOP, input=(), documents=(), output=[guard("out", detector, 3)])
    agent = build_agent(conversational=model, memory=Memory(MemorySessionStore()), guarding=lambda: guarding)
    async with agent.open(TALK) as turn:
        pieces = turn.pieces
        assert await anext(pieces) == SAID[0]
        await detector.is_reading.wait()
    assert (model.closed, detector.cancelled > 0) == (1, True)
    assert_nothing_runs()
