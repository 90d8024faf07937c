# SPDX-License-Identifier: Apache-2.0
"""Grounded answers: what is asked of whom, what is told in which order, and that everything ends with the request."""

import asyncio

import pytest

from lockgate.core.answers import GenerationStarted, RetrievalEnded, RetrievalStarted, SourceEnded, Step, Token
from lockgate.core.retrieval import Status
from lockgate.core.values import Document
from lockgate.errors import GenerationFailed, Rejected, RequestTimedOut, Unavailable
from lockgate.pipelines.answer import Guarding, Limits, answer
from lockgate.testing import ScriptedDataSource, ScriptedDetector, ScriptedModel
from tests.pipelines.questions import (
    NOTES,
    RecordingModel,
    ask,
    guard,
    names_of,
    run,
    text_of,
    word_guard,
)


async def test_steps_are_told_in_order_and_tokens_join_to_the_answer() -> None:
    model = RecordingModel(["Three ", "minutes ", "[o/s0]."])
    steps, outcome = await run(ask(model, ScriptedDataSource([NOTES]), finds_citations=True))
    assert names_of(steps) == [
        "RetrievalStarted", "SourceEnded", "RetrievalEnded", "GenerationStarted", "Token", "Token", "Token",
    ]  # fmt: skip
    assert text_of(steps) == "Three minutes [o/s0]."
    assert NOTES.text in model.messages[1].text
    assert [(one.path, one.is_known) for one in outcome.citations] == [("o/s0", True)]
    assert outcome.total_ms >= max(outcome.retrieval_ms, outcome.generation_ms)


async def test_sources_are_asked_at_once_and_told_as_they_end() -> None:
    slow, quick = ScriptedDataSource([NOTES], delay_s=0.2), ScriptedDataSource([NOTES], delay_s=0.05)
    steps, outcome = await run(ask(ScriptedModel(["x"]), slow, slow, quick))
    ended = [step.retrieval.path for step in steps if isinstance(step, SourceEnded)]
    assert ended[0] == "o/s2"
    assert [one.path for one in outcome.retrievals] == ["o/s0", "o/s1", "o/s2"]
    assert outcome.retrieval_ms < 390  # one after the other would take 450


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        (ScriptedDataSource([], error=Rejected("s", "HTTP 429: slow down")), Status.ERROR, "HTTP 429: slow down"),
        (ScriptedDataSource([], error=Unavailable("s", "cannot connect")), Status.ERROR, "cannot connect"),
        (ScriptedDataSource([], error=ValueError("secret")), Status.ERROR, "The source failed"),
        (ScriptedDataSource([], delay_s=5.0), Status.TIMEOUT, "Request timed out"),
    ],
)
async def test_a_source_that_fails_gives_nothing_and_the_others_go_on(
    source: ScriptedDataSource, status: Status, words: str
) -> None:
    limits = Limits(retrieval_s=0.1)
    steps, outcome = await run(ask(ScriptedModel(["x"]), source, ScriptedDataSource([NOTES]), limits=limits))
    failed = outcome.retrievals[0]
    assert (failed.status, failed.error, failed.documents) == (status, words, ())
    assert len(outcome.documents) == 1
    assert text_of(steps) == "x"


async def test_documents_reach_the_prompt_in_the_order_of_their_scores() -> None:
    model = RecordingModel(["x"])
    first = ScriptedDataSource([Document("b", "B", 0.5), Document("a", "A", 0.9)])
    second = ScriptedDataSource([Document("c", "C", 0.7), Document("d", "D", 0.5)])
    _, outcome = await run(ask(model, first, second))
    assert [one.title for one in outcome.documents] == ["a", "c", "b", "d"]
    assert [one.source for one in outcome.documents] == ["o/s0", "o/s1", "o/s0", "o/s1"]


async def test_a_model_that_fails_lets_what_it_said_leave_first() -> None:
    model = ScriptedModel(["par"], error=Unavailable("m", "Network error: gone"))
    steps: list[Step] = []

    async def hear(step: Step) -> None:
        steps.append(step)

    with pytest.raises(GenerationFailed, match=r"^Model generation failed: Network error: gone$") as caught:
        await answer(ask(model), hear)
    assert text_of(steps) == "par"
    assert caught.value.path == "mo/llm"


async def test_a_model_is_cut_by_the_clock() -> None:
    model = ScriptedModel(["x"] * 50, pause_s=0.05)
    with pytest.raises(GenerationFailed, match="Model request timed out"):
        await run(ask(model, limits=Limits(generation_s=0.2)))
    assert model.was_stopped
    assert model.said < 10


async def test_the_total_limit_covers_all_phases() -> None:
    late, model = ScriptedDataSource([], delay_s=5.0), ScriptedModel(["x"])
    with pytest.raises(GenerationFailed, match="Model request timed out"):
        await run(ask(model, late, limits=Limits(total_s=0.1)))
    assert (late.cancelled, model.said) == (1, 0)


async def test_a_detector_that_takes_too_long_ends_the_request() -> None:
    slow = guard("slow", ScriptedDetector(delay_s=5.0))
    with pytest.raises(RequestTimedOut):
        await run(ask(ScriptedModel(["x"]), limits=Limits(total_s=0.1), guarding=Guarding(output=[slow])))


async def test_leaving_stops_sources_and_detectors() -> None:
    source, detector = ScriptedDataSource([], delay_s=5.0), ScriptedDetector(delay_s=5.0)
    question = ask(ScriptedModel(["x"]), source, guarding=Guarding(input=[guard("g", detector)]))
    task = asyncio.create_task(run(question))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (source.cancelled, detector.cancelled) == (1, 1)


async def test_leaving_stops_the_model() -> None:
    model = ScriptedModel(["x"] * 100, pause_s=0.02)
    task = asyncio.create_task(run(ask(model, guarding=Guarding(output=[word_guard("w", "y", 3)]))))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.was_stopped


async def test_an_answer_without_a_word_is_told_as_one_empty_token() -> None:
    steps, _ = await run(ask(ScriptedModel([""])))
    assert [step for step in steps if isinstance(step, Token)] == [Token("", 0, 0)]
    assert isinstance(steps[0], RetrievalStarted)
    assert isinstance(steps[1], RetrievalEnded)
    assert isinstance(steps[2], GenerationStarted)
