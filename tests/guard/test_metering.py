# SPDX-License-Identifier: Apache-2.0
"""The account of a request: who reads and holds, whose failure is excused, and what the receipt says of it."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from lockgate.errors import BrokeProtocol, InvalidRequest, LockgateError, Rejected, TimedOut, Unavailable
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.lanes import LanePlan
from lockgate.gate.receipts import Outcome, RequestPart
from lockgate.gate.values import TEXT_CONTEXT_DOC, Claim, Detection, Excerpt, Frame, Generated, Subject
from lockgate.gate.verdicts import Action, Measures
from lockgate.guard.detectors import ActiveGuard, ActiveReview, ChosenDetectors, Guard, apply_failure_policy, review_all
from lockgate.guard.policy import Meter
from lockgate.guard.stream import detect_contents, list_readers, open_guarded_stream
from lockgate.testing import FixedChunker, ScriptedDetector, ScriptedModel, find_word
from tests.rag.questions import guard, word_guard

TEXT = "a bad text"
GONE = Unavailable("w", "gone")


class ScriptedReview:
    """A review that finds one thing, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def accept(self, params: Any, headers: Any) -> "ScriptedReview":
        return self

    async def review(self, subject: Subject) -> list[Detection]:
        if self._error is not None:
            raise self._error
        return [Detection(0, 1, "a", "kind", "type", 1.0)]


def review(error: Exception | None = None) -> ActiveReview:
    scripted = ScriptedReview(error)
    return ActiveReview(Guard("r", TEXT_CONTEXT_DOC, scripted, "", None, 0.5), scripted, 0.5)


def broken(error: Exception = GONE, *, passes: bool = False) -> ActiveGuard:
    return replace(guard("w", ScriptedDetector(error=error)), passes=passes)


# Who holds, and what is read.


@pytest.mark.parametrize("is_shadow", [False, True])
def test_in_shadow_nobody_holds_text(*, is_shadow: bool) -> None:
    meter = Meter("p", is_shadow=is_shadow)
    reader, trailing = meter.watch(
        [word_guard("w", "x"), replace(word_guard("t", "x"), holds=False)], RequestPart.ANSWER
    )
    assert (reader.holds, trailing.holds) == (not is_shadow, False)
    assert [one.holds for one in list_readers([reader])] == [reader.holds]
    assert (meter.receipt.policy, meter.receipt.is_shadow) == ("p", is_shadow)


async def test_what_a_detector_reads_is_on_the_receipt() -> None:
    meter = Meter()
    guards = meter.watch([word_guard("w", "bad", 4), word_guard("idle", "x")], RequestPart.PROMPT)
    found = await detect_contents(TEXT, guards[:1])
    meter.receipt.note_released(RequestPart.PROMPT, TEXT)
    read, idle = meter.receipt.list_reads()
    assert [one.text for one in found] == []  # cut in the middle of it
    assert (read.detector_id, read.chars, read.chunks, read.is_covered) == (
        "w",
        {RequestPart.PROMPT: len(TEXT)},
        3,
        True,
    )
    assert (idle.detector_id, idle.chunks, idle.is_covered) == ("idle", 0, False)


async def test_what_a_reviewer_reads_is_on_the_receipt() -> None:
    meter = Meter()
    reviews = meter.watch_reviews([review()], RequestPart.ANSWER)
    assert len(await review_all(reviews, Claim("It is.", "docs", ["x"]))) == 1
    assert len(await review_all(reviews, Generated("prompt", "So."))) == 1
    read = meter.receipt.list_reads()[0]
    assert (read.chars, read.chunks) == ({RequestPart.ANSWER: len("It is.So.")}, 2)


async def test_a_text_does_not_take_the_fields_that_are_to_be_read_at_once() -> None:
    meter, detector = Meter(), ScriptedDetector()
    meter.fields = AnswerFields({"w": Action.MASK})
    [watching] = meter.watch([guard("w", detector)], RequestPart.ANSWER)
    meter.fields.add("look_up")
    assert meter.fields.give_again() == ["w"]
    await watching.reading.read([Excerpt("a text that comes first", "")])
    assert (detector.read_texts, meter.fields.unread) == (["a text that comes first"], 1)
    await watching.reading.read([])
    assert (detector.read_texts[1:], meter.fields.unread) == (["look_up"], 0)


# The four outcomes of a detector that fails.


@pytest.mark.parametrize("error", [GONE, TimedOut("w", "late"), BrokeProtocol("w", "odd")])
@pytest.mark.parametrize(
    ("is_shadow", "passes", "excused", "outcome"),
    [
        (False, False, None, Outcome.RELEASED),
        (False, True, {"w": False}, Outcome.RELEASED),
        (True, True, {"w": False}, Outcome.RELEASED),
        (True, False, {"w": True}, Outcome.FAILED),
    ],
)
async def test_a_detector_that_fails_has_one_of_four_outcomes(
    error: LockgateError, excused: dict[str, bool] | None, outcome: Outcome, *, is_shadow: bool, passes: bool
) -> None:
    meter = Meter(is_shadow=is_shadow)
    guards = meter.watch([broken(error, passes=passes), word_guard("other", "bad")], RequestPart.PROMPT)
    if excused is None:
        with pytest.raises(type(error)):
            await detect_contents(TEXT, guards)
        assert meter.failed_detectors == {}
        return
    assert [one.text for one in await detect_contents(TEXT, guards)] == ["bad"]
    meter.receipt.note_released(RequestPart.PROMPT, TEXT)
    assert meter.failed_detectors == excused
    assert meter.receipt.outcome is outcome
    assert [(one.has_failed, one.is_covered) for one in meter.receipt.list_reads()] == [(True, False), (False, True)]
    assert not meter.receipt.is_covered


@pytest.mark.parametrize(("is_shadow", "passes"), [(False, False), (False, True), (True, True), (True, False)])
async def test_a_reviewer_that_fails_has_the_same_outcomes(*, is_shadow: bool, passes: bool) -> None:
    meter = Meter(is_shadow=is_shadow)
    reviews = meter.watch_reviews([replace(review(Unavailable("r", "gone")), passes=passes)], RequestPart.ANSWER)
    if not (is_shadow or passes):
        with pytest.raises(Unavailable):
            await review_all(reviews, Generated("prompt", "So."))
        return
    assert await review_all(reviews, Generated("prompt", "So.")) == []
    assert meter.failed_detectors == {"r": not passes}
    assert meter.receipt.outcome is (Outcome.RELEASED if passes else Outcome.FAILED)
    assert not meter.receipt.is_covered


async def test_what_a_detector_says_against_a_request_is_excused_in_shadow_only() -> None:
    refusing = broken(InvalidRequest("no such language"), passes=True)
    with pytest.raises(InvalidRequest, match="detector request failed for `w`: no such language"):
        await detect_contents(TEXT, Meter().watch([refusing], RequestPart.PROMPT))
    meter = Meter(is_shadow=True)
    assert await detect_contents(TEXT, meter.watch([refusing], RequestPart.PROMPT)) == []
    assert meter.failed_detectors == {"w": False}


@pytest.mark.parametrize("is_shadow", [False, True])
async def test_a_bug_of_ours_is_never_excused(*, is_shadow: bool) -> None:
    buggy = broken(ZeroDivisionError("ours"), passes=True)
    with pytest.raises((ZeroDivisionError, ExceptionGroup)):
        await detect_contents(TEXT, Meter(is_shadow=is_shadow).watch([buggy], RequestPart.PROMPT))


async def test_a_failure_that_would_have_ended_the_request_in_one_part_is_told_as_such() -> None:
    meter = Meter(is_shadow=True)
    await detect_contents(TEXT, meter.watch([broken(passes=True)], RequestPart.PROMPT))
    assert meter.failed_detectors == {"w": False}
    await detect_contents(TEXT, meter.watch([broken()], RequestPart.DOCUMENTS))
    assert meter.failed_detectors == {"w": True}
    await detect_contents(TEXT, meter.watch([broken(passes=True)], RequestPart.PROMPT))
    assert meter.failed_detectors == {"w": True}
    assert meter.receipt.outcome is Outcome.FAILED


async def test_a_failure_is_logged_once_for_each_detector(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(is_shadow=True)
    guards = meter.watch([broken()], RequestPart.ANSWER)
    with caplog.at_level(logging.WARNING, "lockgate"):
        for _ in range(3):
            await detect_contents(TEXT, guards)
    assert [record.getMessage() for record in caplog.records] == ["upstream_failed"]


def test_each_detector_has_its_own_word_for_its_failure() -> None:
    chosen = apply_failure_policy(
        ChosenDetectors((word_guard("a", "x"), word_guard("b", "x")), (review(),)),
        {"a", "r"}.__contains__,
        {"b": 0.2}.get,
    )
    assert [one.passes for one in chosen.contents] == [True, False]
    assert [one.passes for one in chosen.reviews] == [True]
    assert [one.max_hold_s for one in chosen.contents] == [None, 0.2]


# Chunkers that fail.


class BrokenChunker(FixedChunker):
    """Cuts one chunk, then fails."""

    async def cut(self, text: str) -> Any:
        raise Unavailable("chunker", "gone")

    async def stream(self, frames: Any) -> Any:
        async for chunk in super().stream(frames):
            yield chunk
            raise Unavailable("chunker", "gone")


def cut_by(chunker: FixedChunker, name: str, *, passes: bool) -> ActiveGuard:
    one = word_guard(name, "bad")
    return replace(one, guard=replace(one.guard, chunker_id="broken", chunker=chunker), passes=passes)


async def stream(guards: tuple[ActiveGuard, ...]) -> str:
    model = ScriptedModel(["It is a b", "ad text and ", "bad again."])
    async with open_guarded_stream(model.generate((), {}), guards, LanePlan(list_readers(guards))) as releases:
        return "".join([release.text async for release in releases])


@pytest.mark.parametrize("is_shadow", [False, True])
@pytest.mark.parametrize("passes", [False, True])
async def test_a_chunker_that_fails_is_excused_with_those_that_need_it(*, is_shadow: bool, passes: bool) -> None:
    meter = Meter(is_shadow=is_shadow)
    chunker = BrokenChunker(5)
    guards = meter.watch([cut_by(chunker, "a", passes=passes), cut_by(chunker, "b", passes=passes)], RequestPart.ANSWER)
    if not (is_shadow or passes):
        with pytest.raises(Unavailable):
            await stream(guards)
        return
    assert await stream(guards) == "It is a bad text and bad again."
    assert meter.failed_detectors == {"a": not passes, "b": not passes}
    meter.receipt.note_released(RequestPart.ANSWER, "It is a bad text and bad again.")
    assert [one.is_covered for one in meter.receipt.list_reads()] == [False, False]


async def test_a_chunker_that_fails_is_not_excused_for_one_that_must_read() -> None:
    meter, chunker = Meter(), BrokenChunker(5)
    guards = meter.watch([cut_by(chunker, "a", passes=True), cut_by(chunker, "b", passes=False)], RequestPart.ANSWER)
    with pytest.raises(Unavailable):
        await stream(guards)


# What was found.


def find(detector: str) -> Detection:
    return Detection(0, 1, "a", "kind", "type", 1.0, detector)


@pytest.mark.parametrize(
    ("names", "part", "outcome"),
    [
        ([], RequestPart.ANSWER, Outcome.RELEASED),
        (["tells"], RequestPart.ANSWER, Outcome.RELEASED),
        (["masks", "tells"], RequestPart.ANSWER, Outcome.MASKED),
        (["masks", "stops"], RequestPart.ANSWER, Outcome.STOPPED),
        (["blocks", "stops"], RequestPart.PROMPT, Outcome.BLOCKED),
        (["blocks"], RequestPart.DOCUMENTS, Outcome.MASKED),
        (["unknown"], RequestPart.ANSWER, Outcome.RELEASED),
    ],
)
def test_the_strictest_of_what_findings_call_for_is_the_outcome(
    names: list[str], part: RequestPart, outcome: Outcome
) -> None:
    meter = Meter()
    for name in ("tells", "masks", "stops", "blocks"):
        meter.receipt.expect(name, part)
    measures = Measures(actions={"masks": Action.MASK, "stops": Action.STOP, "blocks": Action.BLOCK})
    meter.note_findings([find(name) for name in names], measures, part)
    assert meter.receipt.outcome is outcome
    counted = {one.detector_id: one.findings for one in meter.receipt.list_reads()}
    assert counted == {name: int(name in names) for name in counted}


async def test_an_excused_reading_of_many_chunks_goes_on_after_a_failure() -> None:
    class Moody(ScriptedDetector):
        async def read(self, excerpts: Any) -> Any:
            if "2" in excerpts[0].text:
                raise GONE
            return await super().read(excerpts)

    meter = Meter(is_shadow=True)
    (watched,) = meter.watch([guard("w", Moody(find_word("x")), 2)], RequestPart.ANSWER)
    assert [len(await watched.reading.read([Excerpt(text)])) for text in ("1x", "2x", "3x")] == [1, 0, 1]
    frames = [Frame(number, text) for number, text in enumerate(("1x", "2x", "3x"))]

    async def say() -> Any:
        for frame in frames:
            yield frame

    async with open_guarded_stream(say(), [watched], LanePlan(list_readers([watched]))) as releases:
        last = [release async for release in releases]
    assert "".join([release.text for release in last]) == "1x2x3x"
    assert [one.start for release in last for one in release.detections] == [1, 5]


# What a detector refuses.


async def test_what_a_policys_own_detector_refuses_is_a_failure_of_the_detector() -> None:
    meter = Meter("p", own=frozenset({"w"}))
    guards = meter.watch([broken(InvalidRequest("no such parameter"))], RequestPart.PROMPT)
    with pytest.raises(Rejected) as caught:
        await detect_contents(TEXT, guards)
    assert (caught.value.service, caught.value.status) == ("w", 502)


async def test_what_a_detector_refuses_that_a_request_names_is_the_callers_fault() -> None:
    guards = Meter("p", own=frozenset({"other"})).watch(
        [broken(InvalidRequest("no such parameter"))], RequestPart.PROMPT
    )
    with pytest.raises(InvalidRequest, match="no such parameter"):
        await detect_contents(TEXT, guards)


async def test_a_refusal_of_a_policys_own_detector_is_excused_where_failures_pass() -> None:
    meter = Meter("p", own=frozenset({"w"}))
    guards = meter.watch([broken(InvalidRequest("no"), passes=True)], RequestPart.PROMPT)
    assert await detect_contents(TEXT, guards) == []
    assert meter.failed_detectors == {"w": False}


async def test_findings_of_an_answer_that_is_withdrawn_stay_on_the_receipt() -> None:
    meter = Meter("p")
    await detect_contents(TEXT, meter.watch([word_guard("w", "bad")], RequestPart.ANSWER))
    meter.reset_answer()
    [read] = meter.receipt.list_reads()
    assert (read.findings, read.chars[RequestPart.ANSWER], meter.receipt.released[RequestPart.ANSWER]) == (
        1,
        len(TEXT),
        0,
    )
