# SPDX-License-Identifier: Apache-2.0
"""Turns under a policy: what is found in question, documents and answer does not pass, and is not remembered."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from lockgate.agent.answer import AgentQuestion
from lockgate.agent.routes import Editor, choose_routes
from lockgate.agent.turns import Memory
from lockgate.errors import CheckFailed, InvalidRequest, Unavailable
from lockgate.gate.values import Message
from lockgate.gate.verdicts import Action, MaskWith, Measures
from lockgate.guard.detectors import ActiveGuard, Guard
from lockgate.guard.policy import Policy
from lockgate.rag.sources import NamedSource, RetrievalScope
from lockgate.testing import MemorySessionStore, ScriptedDataSource, ScriptedDetector, ScriptedModel, find_word
from tests.agent.agents import KEY, PASSAGES, AskedModel, WaitingModel, build_agent, build_main, converse, turns_of
from tests.waits import linger

TALK = AgentQuestion("Thanks!", KEY, label="CONVERSATIONAL")


def guard(detector: ScriptedDetector) -> ActiveGuard:
    chunking = build_agent().gate.chunking
    return ActiveGuard(Guard("d", "text_contents", detector, chunking.id, chunking.chunker, 0.5), detector, 0.5, True)


def build_guarding(*, on_output: Action = Action.ANNOTATE, **rest: Any) -> Policy:
    return Policy(for_output=Measures(on_output, fallback="Withheld."), **rest)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_blocked_question_reaches_nobody_and_is_not_remembered(*, is_stream: bool) -> None:
    store, main = MemorySessionStore(), build_main()
    guarding = build_guarding(input=[guard(ScriptedDetector(find_word("secret")))], for_input=Measures(Action.BLOCK))
    agent = build_agent(main=main, memory=Memory(store), guarding=lambda: guarding)
    pieces, facts = await converse(agent, AgentQuestion("tell the secret", KEY, is_stream=is_stream))
    assert pieces == ["Withheld."]
    assert facts.outcome == "prompt_blocked"
    assert main.asked == []
    assert await store.list_sessions() == []


async def test_a_masked_question_is_masked_for_everybody() -> None:
    store, main = MemorySessionStore(), build_main()
    source = ScriptedDataSource(PASSAGES)
    guarding = build_guarding(input=[guard(ScriptedDetector(find_word("secret")))], for_input=Measures(Action.MASK))
    agent = build_agent(
        main=main,
        memory=Memory(store),
        guarding=lambda: guarding,
        library=RetrievalScope([NamedSource("docs", source)]),
    )
    await converse(agent, AgentQuestion("the secret port", KEY, editor=Editor("a secret file", "", "")))
    told = "".join(one.text for asked in main.asked for one in asked) + "".join(source.questions)
    assert "secret" not in told
    assert "secret" not in str(await turns_of(store))


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_blocked_answer_ends_and_is_not_remembered(*, is_stream: bool) -> None:
    store = MemorySessionStore()
    talk = ScriptedModel([f"{'Fine so far. ' * 20}", "Now the sec", "ret word. ", "And more. "])
    guarding = build_guarding(output=[guard(ScriptedDetector(find_word("secret")))], on_output=Action.BLOCK)
    agent = build_agent(conversational=talk, memory=Memory(store), guarding=lambda: guarding)
    pieces, facts = await converse(agent, TALK._replace(is_stream=is_stream))
    assert "secret" not in "".join(pieces)
    assert "".join(pieces).endswith("Withheld.")
    assert ("Fine" in "".join(pieces)) is is_stream  # of a whole answer nothing had left
    assert facts.outcome == "answer_blocked"
    assert await store.list_sessions() == []


async def test_a_masked_answer_is_remembered_as_it_left() -> None:
    store = MemorySessionStore()
    talk = ScriptedModel(["Now the sec", "ret word. ", "Done."])
    guarding = build_guarding(output=[guard(ScriptedDetector(find_word("secret")))], on_output=Action.MASK)
    agent = build_agent(conversational=talk, memory=Memory(store), guarding=lambda: guarding)
    pieces, facts = await converse(agent, TALK)
    assert facts.outcome == "answered"
    assert await turns_of(store) == [("Thanks!", "".join(pieces))]
    assert "secret" not in "".join(pieces)


async def test_documents_in_which_something_is_found_are_dropped() -> None:
    guarding = build_guarding(
        documents=[guard(ScriptedDetector(find_word("8034")))], for_documents=Measures(Action.BLOCK)
    )
    _, facts = await converse(build_agent(guarding=lambda: guarding), AgentQuestion("q"))
    assert [one.title for one in facts.documents] == ["Ports"]


@pytest.mark.parametrize("section", ["input", "documents", "output"])
async def test_a_detector_that_fails_fails_the_turn_unless_the_policy_forgives(section: str) -> None:
    broken = ScriptedDetector(error=Unavailable("d", "gone"))
    for forgives in (False, True):
        readers: dict[str, Any] = {section: [replace(guard(broken), passes=forgives)]}
        guarding = build_guarding(**readers)
        agent = build_agent(guarding=lambda guarding=guarding: guarding)
        if forgives:
            assert "".join((await converse(agent, AgentQuestion("q", KEY)))[0]) == "It is 8033."
        else:
            with pytest.raises(CheckFailed, match="`d` failed"):
                await converse(agent, AgentQuestion("q", KEY))


async def test_the_gate_holds_the_agents_answer_until_it_is_read() -> None:
    model, slow = WaitingModel(), ScriptedDetector(delay_s=0.0)
    guarding = build_guarding(output=[guard(slow)], on_output=Action.BLOCK)
    agent = build_agent(conversational=model, guarding=lambda: guarding)
    async with agent.open(TALK) as turn, aclosing(turn.pieces) as pieces:  # type: ignore[type-var]
        first = asyncio.ensure_future(anext(pieces))
        for _ in range(5):
            model.permits.release()
        await linger()
        assert not first.done()  # no sentence has ended
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_what_is_said_about_the_user_is_read_too() -> None:
    guarding = build_guarding(input=[guard(ScriptedDetector(find_word("secret")))], for_input=Measures(Action.BLOCK))
    agent = build_agent(choose_routes(has_platform=True), guarding=lambda: guarding)
    _, facts = await converse(agent, AgentQuestion("q", label="PLATFORM", account='{"dev_id": "secret"}'))
    assert facts.outcome == "prompt_blocked"


async def test_a_question_that_a_client_also_sent_is_read_once() -> None:
    reader = ScriptedDetector()
    guarding = build_guarding(input=[guard(reader)])
    sent = (Message("user", "Hi"), Message("assistant", "Ho"), Message("user", "Thanks!"))
    await converse(build_agent(guarding=lambda: guarding), AgentQuestion("Thanks!", sent=sent, label="CONVERSATIONAL"))
    assert sorted(reader.read_texts) == ["Hi", "Ho", "Thanks!"]


async def test_the_history_of_a_session_is_read_again_with_its_topics() -> None:
    store, main, talk = MemorySessionStore(), build_main(), build_main(answer=["Sure."])
    await converse(build_agent(main=main, memory=Memory(store)), AgentQuestion("the secret port", KEY))
    main.asked.clear()
    guarding = build_guarding(
        input=[guard(ScriptedDetector(find_word("secret")))], for_input=Measures(Action.MASK), name="p"
    )
    agent = build_agent(main=main, conversational=talk, memory=Memory(store), guarding=lambda: guarding)
    _, facts = await converse(agent, AgentQuestion("and why?", KEY))
    told = "".join(one.text for asked in main.asked for one in asked)
    assert "secret" not in told
    assert "██████" in told
    assert facts.receipt is not None
    assert facts.receipt.is_covered
    assert facts.receipt.prompt_sent_to == ["model", "docs"]


async def test_a_finding_in_a_parameter_refuses_the_turn() -> None:
    main = build_main()
    guarding = build_guarding(
        input=[guard(ScriptedDetector(find_word("secret")))], for_input=Measures(Action.MASK), name="p"
    )
    agent = build_agent(main=main, guarding=lambda: guarding)
    with pytest.raises(InvalidRequest, match=r"`params\.stop\[1\]`"):
        await converse(agent, AgentQuestion("q", params={"stop": ["x", "a secret"], "temperature": 0.5}))
    assert main.asked == []


async def test_what_is_said_about_the_user_stays_json_when_it_is_masked() -> None:
    talk = AskedModel(lambda _: ["Fine."])
    guarding = build_guarding(
        input=[guard(ScriptedDetector(find_word("secret")))], for_input=Measures(Action.MASK), name="p"
    )
    agent = build_agent(choose_routes(has_platform=True), conversational=talk, guarding=lambda: guarding)
    await converse(agent, AgentQuestion("q", label="PLATFORM", account='{"dev_id": "\\u0073ecret", "n": 1}'))
    [line] = [one for one in talk.asked[-1][-1].text.splitlines() if one.startswith("{")]
    assert json.loads(line) == {"dev_id": "██████", "n": 1}


async def test_a_caller_has_the_same_made_up_name_for_a_value_in_every_turn() -> None:
    measures = Measures(Action.MASK, mask_with=MaskWith.PSEUDONYM)
    guarding = replace(
        build_guarding(input=[guard(ScriptedDetector(find_word("secret")))], for_input=measures, name="p"),
        names_key=b"k",
    )
    names = []
    for caller in ("ana", "ana", "ben"):
        question = AgentQuestion("the secret", label="CONVERSATIONAL", caller=caller)
        _, facts = await converse(build_agent(guarding=lambda: guarding), question)
        names.append(next(iter(facts.pseudonyms)))
    assert names[0] == names[1] != names[2]
