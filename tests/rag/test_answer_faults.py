# SPDX-License-Identifier: Apache-2.0
"""Grounded answers when parts fail, are many at once, or end in any order; and when the request is cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from lockgate.chunkers.machines import open_sentence_chunker
from lockgate.errors import GenerationFailed
from lockgate.gate.values import (
    Detection,
    Document,
    Excerpt,
    Frame,
    Message,
    Subject,
)
from lockgate.guard.policy import Chunking, Policy
from lockgate.rag.answer import Step, answer
from lockgate.rag.sources import Bounds, Status
from lockgate.testing import ScriptedDataSource, ScriptedDetector, ScriptedModel, find_word
from tests.lane_plans import plan_lanes
from tests.rag.questions import (
    NOTES,
    ScriptedReviewer,
    ask,
    guard,
    reviewer,
    run,
    text_of,
    word_guard,
)
from tests.waits import latency, until


class BrokenModel:
    """Raises as soon as it is asked."""

    def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        raise ZeroDivisionError("words of the implementation")


class BrokenSource:
    """Gives nothing that could be a document."""

    async def search(self, question: str, limit: int) -> Any:
        return None


async def test_a_model_with_a_bug_is_a_model_that_failed() -> None:
    question = ask(ScriptedModel([]))._replace(model=BrokenModel)
    with pytest.raises(GenerationFailed, match=r"^Model generation failed: the model failed$"):
        await run(question)


async def test_a_source_that_gives_no_documents_fails_alone() -> None:
    broken: Any = BrokenSource()
    _, outcome = await run(ask(ScriptedModel(["x"]), broken, ScriptedDataSource([NOTES])))
    assert [one.status for one in outcome.retrievals] == [Status.ERROR, Status.SUCCESS]


async def test_a_detector_with_a_time_out_of_its_own_is_not_taken_for_ours() -> None:
    late = guard("late", ScriptedDetector(error=TimeoutError("its own")))
    with pytest.raises(TimeoutError):
        await run(ask(ScriptedModel(["x"]), guarding=Policy(input=[late])))


class BoundlessSource(ScriptedDataSource):
    """Sends all of its documents; the limit does not count."""

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        return await super().search(question, 1_000_000)


async def test_more_documents_than_were_asked_for_are_left_out_and_counted() -> None:
    many = BoundlessSource([Document(f"D{number}", "x", 0.5) for number in range(10_000)])
    _, outcome = await run(ask(ScriptedModel(["x"]), many, top_k=2))
    assert [one.title for one in outcome.documents] == ["D0", "D1"]
    assert [(one.retrieved, one.left_out, one.cut) for one in outcome.retrievals] == [(2, 9_998, 0)]


async def test_documents_are_cut_to_the_bounds_of_document_source_and_question() -> None:
    long = ScriptedDataSource([Document("Tü", "ü" * 60, 0.5)] * 3)
    _, outcome = await run(ask(ScriptedModel(["x"]), long, bounds=Bounds(50, 120, 1000)))
    assert [one.text for one in outcome.documents] == ["ü" * 23, "ü" * 23, "ü" * 8]
    assert [(one.retrieved, one.left_out, one.cut) for one in outcome.retrievals] == [(3, 0, 3)]
    _, outcome = await run(ask(ScriptedModel(["x"]), long, long, bounds=Bounds(50, 100, 150)))
    assert sorted((one.retrieved, one.left_out, one.cut) for one in outcome.retrievals) == [(1, 2, 1), (2, 1, 2)]
    assert {one.status for one in outcome.retrievals} == {Status.SUCCESS}


async def test_a_title_counts_as_a_part_of_its_document() -> None:
    odd = ScriptedDataSource([Document("T" * 60, "x" * 60, 0.5)])
    _, outcome = await run(ask(ScriptedModel(["x"]), odd, bounds=Bounds(50, 1000, 1000)))
    assert (outcome.documents, outcome.retrievals[0].left_out) == ([], 1)
    _, outcome = await run(ask(ScriptedModel(["x"]), odd, bounds=Bounds(100, 1000, 1000)))
    assert [(len(one.title), len(one.text)) for one in outcome.documents] == [(60, 40)]


async def test_a_document_that_is_too_long_to_be_read_is_cut_and_all_of_the_rest_is_read() -> None:
    guarding = Policy(documents=[word_guard("w", "zzz")], max_chars=50)
    long = ScriptedDataSource([Document("Long", "x" * 60, 0.5)])
    _, outcome = await run(ask(ScriptedModel(["x"]), long, ScriptedDataSource([NOTES]), guarding=guarding))
    assert [(one.status, one.cut) for one in outcome.retrievals] == [(Status.SUCCESS, 1), (Status.SUCCESS, 0)]
    assert [len(one.text) for one in outcome.documents] == [len(NOTES.text), 46]
    assert outcome.receipt.list_reads()[0].is_covered


class CountingDetector(ScriptedDetector):
    """Knows how often it was asked at once; answers nobody before it was three times."""

    at_once = most = 0

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await until(lambda: self.most >= 3)
            return await super().read(excerpts)
        finally:
            self.at_once -= 1


class CountingReviewer(ScriptedReviewer):
    """Knows how often it was asked at once; answers nobody before it was three times."""

    at_once = most = 0

    async def review(self, subject: Subject) -> Sequence[Detection]:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await until(lambda: self.most >= 3)
        self.at_once -= 1
        return await super().review(subject)


async def test_documents_of_all_sources_share_the_requests_that_a_detector_may_get() -> None:
    busy = CountingDetector()
    sources = [ScriptedDataSource([NOTES] * 4) for _ in range(5)]
    guarding = Policy(documents=[guard("busy", busy)], max_open=3)
    _, outcome = await run(ask(ScriptedModel(["x"]), *sources, guarding=guarding))
    assert busy.most == 3
    assert len(busy.read_texts) == len(outcome.documents) == 20


async def test_claims_share_the_requests_that_a_detector_may_get() -> None:
    busy = CountingReviewer("moon")
    async with open_sentence_chunker({}) as sentences:
        question = ask(
            ScriptedModel(["One is here. " * 40]),
            guarding=Policy(grounding=[reviewer(busy)], max_open=3),
            chunking=Chunking("sentence", sentences),
            plan=partial(plan_lanes, is_whole=True),
        )
        await run(question)
    assert (len(busy.claims), busy.most) == (40, 3)


@pytest.mark.parametrize("delays", [(0.0, 0.02), (0.02, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("check_s", [0.0, 0.01, 0.03])
async def test_whoever_is_faster_every_source_has_one_entry_and_a_blocked_prompt_no_answer(
    delays: tuple[float, float], check_s: float
) -> None:
    model = ScriptedModel(["x"])
    slow = guard("w", ScriptedDetector(find_word("long"), delay_s=check_s))
    sources = [ScriptedDataSource([NOTES], delay_s=delay) for delay in (*delays, 0.005)]
    heard: list[Step] = []

    async def hear(step: Step) -> None:
        heard.append(step)
        await latency(0.004)  # a client that takes its time

    outcome = await answer(ask(model, *sources, guarding=Policy(input=[slow])), hear)
    paths = ["o/s0", "o/s1", "o/s2"]
    assert [one.path for one in outcome.retrievals] == sorted(one.path for one in outcome.ended) == paths
    assert outcome.is_prompt_blocked
    assert (model.said, text_of(heard)) == (0, "")


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_cancelled_at_any_moment_everything_ends(turns: int) -> None:
    model, source = ScriptedModel(["One. ", "Two. ", "Three. "]), ScriptedDataSource([NOTES])
    guards = [guard("w", ScriptedDetector(find_word("zzz")), 4)]
    guarding = Policy(input=guards, documents=guards, output=guards)
    before = len(asyncio.all_tasks())
    task = asyncio.create_task(run(ask(model, source, source, guarding=guarding)))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    assert isinstance(result, asyncio.CancelledError | tuple)
    assert len(asyncio.all_tasks()) == before
    assert model.was_stopped or model.said in (0, 3)
