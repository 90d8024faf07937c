# SPDX-License-Identifier: Apache-2.0
"""Grounded answers: what is asked of whom, what is told in which order, and that everything ends with the request."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Never

import pytest

from lockgate.errors import GenerationFailed, Rejected, RequestTimedOut, Unavailable
from lockgate.gate.values import Document, Excerpt, Frame, Message
from lockgate.gate.verdicts import Action, Measures
from lockgate.guard.policy import Policy
from lockgate.rag.answer import (
    GenerationStarted,
    Limits,
    RetrievalEnded,
    RetrievalStarted,
    SourceEnded,
    Step,
    Token,
    answer,
)
from lockgate.rag.sources import Status
from lockgate.testing import ScriptedDataSource, ScriptedDetector, ScriptedModel
from tests.guard.early_parts import Gated, Talker
from tests.rag.questions import (
    LIMITS,
    NOTES,
    RecordingModel,
    ask,
    guard,
    names_of,
    run,
    text_of,
    word_guard,
)
from tests.waits import LoopClock, until


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


class PacedSource(ScriptedDataSource):
    """Finds one document, as soon as it may."""

    def __init__(self, may_answer: Callable[[], object]) -> None:
        super().__init__([NOTES])
        self._may_answer = may_answer

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        found = await super().search(question, limit)
        await until(self._may_answer)
        return found


class LateSource(ScriptedDataSource):
    """All time passes once it is asked, and what else `first` says has happened."""

    def __init__(self, first: Callable[[], object] = lambda: True) -> None:
        super().__init__([])
        self._clock = LoopClock()
        self._first = first

    async def search(self, question: str, limit: int) -> Never:
        try:
            await until(self._first)
            await self._clock.run_out()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_sources_are_asked_at_once_and_told_as_they_end() -> None:
    ended: list[str] = []
    slow = PacedSource(lambda: ended)
    quick = PacedSource(lambda: len(slow.questions) == 2)

    async def hear(step: Step) -> None:
        if isinstance(step, SourceEnded):
            ended.append(step.retrieval.path)

    outcome = await answer(ask(ScriptedModel(["x"]), slow, slow, quick), hear)
    assert ended[0] == "o/s2"
    assert [one.path for one in outcome.retrievals] == ["o/s0", "o/s1", "o/s2"]


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        (ScriptedDataSource([], error=Rejected("s", "HTTP 429: slow down")), Status.ERROR, "HTTP 429: slow down"),
        (ScriptedDataSource([], error=Unavailable("s", "cannot connect")), Status.ERROR, "cannot connect"),
        (ScriptedDataSource([], error=ValueError("secret")), Status.ERROR, "The source failed"),
    ],
)
async def test_a_source_that_fails_gives_nothing_and_the_others_go_on(
    source: ScriptedDataSource, status: Status, words: str
) -> None:
    steps, outcome = await run(ask(ScriptedModel(["x"]), source, ScriptedDataSource([NOTES])))
    failed = outcome.retrievals[0]
    assert (failed.status, failed.error, failed.documents) == (status, words, ())
    assert len(outcome.documents) == 1
    assert text_of(steps) == "x"


async def test_a_source_that_is_late_gives_nothing_and_the_others_go_on() -> None:
    steps: list[Step] = []

    async def hear(step: Step) -> None:
        steps.append(step)

    late = LateSource(lambda: "SourceEnded" in names_of(steps))
    limits = LIMITS._replace(generation_s=1e6, total_s=1e6)
    outcome = await answer(ask(ScriptedModel(["x"]), late, ScriptedDataSource([NOTES]), limits=limits), hear)
    failed = outcome.retrievals[0]
    assert (failed.status, failed.error, failed.documents) == (Status.TIMEOUT, "Request timed out", ())
    assert (late.cancelled, len(outcome.documents), text_of(steps)) == (1, 1, "x")


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
    class Late(ScriptedModel):
        async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
            try:
                yield Frame(0, "x")
                await clock.run_out()
            finally:
                self.was_stopped = True

    clock, model = LoopClock(), Late([])
    with pytest.raises(GenerationFailed, match="Model request timed out"):
        await run(ask(model, limits=LIMITS._replace(total_s=1e6)))
    assert model.was_stopped


async def test_the_total_limit_covers_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.rag.answer._GRACE_S", 1e6)
    late, model = LateSource(), ScriptedModel(["x"])
    with pytest.raises(GenerationFailed, match="Model request timed out"):
        await run(ask(model, late, limits=Limits(retrieval_s=1e6, generation_s=1e6, total_s=600.0)))
    assert (late.cancelled, model.said) == (1, 0)


async def test_a_detector_that_takes_too_long_ends_the_request() -> None:
    class Late(ScriptedDetector):
        async def read(self, excerpts: Sequence[Excerpt]) -> Never:
            await clock.run_out()

    clock = LoopClock()
    with pytest.raises(RequestTimedOut):
        await run(ask(ScriptedModel(["x"]), guarding=Policy(output=[guard("slow", Late())])))


async def test_earlier_messages_stand_between_the_system_message_and_the_question() -> None:
    model = RecordingModel(["x"])
    history = [Message("user", "Is it red?"), Message("assistant", "It is.")]
    source = ScriptedDataSource([NOTES])
    await run(ask(model, source, history=history))
    assert [one.role for one in model.messages] == ["system", "user", "assistant", "user"]
    assert list(model.messages[1:3]) == history
    assert source.questions == ["How long?"]


async def test_a_source_may_have_a_query_of_its_own() -> None:
    model, own, other = RecordingModel(["x"]), ScriptedDataSource([NOTES]), ScriptedDataSource([])
    question = ask(model, own, other)
    sources = [question.sources[0]._replace(query="kettle time"), question.sources[1]]
    await run(question._replace(sources=sources))
    assert (own.questions, other.questions) == (["kettle time"], ["How long?"])
    assert model.messages[1].text.endswith("USER QUESTION:\nHow long?\n---")


async def test_retrieval_alone_asks_no_model() -> None:
    model, source = RecordingModel(["x"]), ScriptedDataSource([NOTES])
    steps, outcome = await run(ask(model, source, is_retrieval_only=True))
    assert names_of(steps) == ["RetrievalStarted", "SourceEnded", "RetrievalEnded"]
    assert (model.said, outcome.documents, outcome.generation_ms) == (0, [NOTES._replace(source="o/s0")], 0)


async def test_retrieval_alone_is_guarded_too() -> None:
    model, source = RecordingModel(["x"]), ScriptedDataSource([NOTES])
    guarding = Policy(
        input=[word_guard("w", "zzz")], output=[word_guard("v", "three")], for_output=Measures(Action.BLOCK), name="p",
        is_speculative=True,
    )  # fmt: skip
    steps, outcome = await run(ask(model, source, is_retrieval_only=True, guarding=guarding))
    assert outcome.shown is not None
    assert outcome.shown[0].documents[0].text == "It boils in █████ minutes."
    assert (model.said, outcome.receipt.prompt_sent_to, outcome.receipt.is_covered) == (0, ["o/s0"], True)
    blocked = Policy(input=[word_guard("w", "long")], for_output=Measures(fallback="No."), name="p")
    steps, outcome = await run(ask(model, source, is_retrieval_only=True, guarding=blocked))
    assert (text_of(steps), outcome.is_prompt_blocked, len(source.questions)) == ("No.", True, 1)


async def test_leaving_stops_sources_and_detectors() -> None:
    source, detector = ScriptedDataSource([], delay_s=3600), Gated("x")
    guarding = Policy(input=[guard("g", detector)], for_input=Measures(Action.ANNOTATE))
    task = asyncio.create_task(run(ask(ScriptedModel(["x"]), source, guarding=guarding)))
    await detector.is_reading.wait()
    await until(lambda: source.questions)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (source.cancelled, detector.cancelled) == (1, 1)


async def test_leaving_stops_the_model() -> None:
    model = Talker(["x"] * 7, ends=False)
    task = asyncio.create_task(run(ask(model, guarding=Policy(output=[word_guard("w", "y", 3)]))))  # type: ignore[arg-type]
    await until(lambda: model.said == 7)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.closed == 1


async def test_an_answer_without_a_word_is_told_as_one_empty_token() -> None:
    steps, _ = await run(ask(ScriptedModel([""])))
    assert [step for step in steps if isinstance(step, Token)] == [Token("", 0, 0)]
    assert isinstance(steps[0], RetrievalStarted)
    assert isinstance(steps[1], RetrievalEnded)
    assert isinstance(steps[2], GenerationStarted)
