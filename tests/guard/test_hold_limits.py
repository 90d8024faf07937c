# SPDX-License-Identifier: Apache-2.0
"""A detector that is slow may hold a text only for so long: past it, it has failed for that text alone."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lockgate.errors import TimedOut
from lockgate.gate.lanes import LanePlan
from lockgate.gate.receipts import Receipt, RequestPart
from lockgate.gate.values import Conversation, Detection, Excerpt, Frame
from lockgate.guard.detectors import ActiveGuard, ActiveReview, Guard, review_all
from lockgate.guard.finding_words import FindingWords
from lockgate.guard.hold_limits import read_in_time
from lockgate.guard.policy import Meter
from lockgate.guard.stream import Slice, Source, detect_slices, list_readers, open_guarded_stream
from lockgate.interfaces import Headers
from lockgate.testing import FixedChunker, ScriptedDetector, find_word
from tests.waits import LoopClock, linger, settled

LIMIT_S = 60.0
TEXT = "mail bob now or mail ann"


class SlowDetector:
    """Takes longer than the limit for texts that hold `slow`; reads all others at once."""

    def __init__(self, slow: str) -> None:
        self.asked: list[str] = []
        self._slow = slow
        self._clock = LoopClock()

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "SlowDetector":
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        texts = [excerpt.text for excerpt in excerpts]
        self.asked += texts
        if any(self._slow in text for text in texts):
            await self._clock.run_out()
        return [find_word("mail")(text) for text in texts]

    async def review(self, subject: object) -> Sequence[Detection]:
        await self._clock.run_out()


def build_guards(meter: Meter, detector: Any, *, passes: bool, name: str = "far") -> list[ActiveGuard]:
    guard = Guard(name, "text_contents", detector, "four", FixedChunker(4), 0.5)
    active = ActiveGuard(guard, detector.accept({}, ()), 0.5, holds=True, passes=passes, max_hold_s=LIMIT_S)
    return list(meter.watch([active], RequestPart.ANSWER))


async def say(guards: Sequence[ActiveGuard], source: Source, **plan: Any) -> tuple[str, list[Detection]]:
    text = ""
    found: list[Detection] = []
    async with open_guarded_stream(source, guards, LanePlan(list_readers(guards), **plan)) as releases:
        async for release in releases:
            text += release.text
            found += release.detections
    return text, found


async def whole(text: str) -> AsyncGenerator[Frame, None]:
    yield Frame(0, text)


@pytest.mark.parametrize("is_whole", [False, True])
async def test_past_its_limit_a_detector_has_failed_by_its_name(is_whole: bool) -> None:
    meter = Meter("p")
    detector = SlowDetector("bob")
    with pytest.raises(TimedOut, match="detector `far` held a text longer than 60000 ms") as caught:
        await say(build_guards(meter, detector, passes=False), whole(TEXT), is_whole=is_whole)
    assert caught.value.service == "far"
    assert not meter.failed_detectors


async def test_where_it_may_fail_only_the_texts_that_it_held_too_long_leave_unread() -> None:
    meter = Meter("p")
    detector = SlowDetector("bob")
    heard = asyncio.Event()

    async def source() -> AsyncGenerator[Frame, None]:
        yield Frame(0, "mail ")
        yield Frame(1, "bob now ")
        await heard.wait()
        yield Frame(2, "or mail ann")

    text = ""
    found: list[Detection] = []
    guards = build_guards(meter, detector, passes=True)
    async with open_guarded_stream(source(), guards, LanePlan(list_readers(guards))) as releases:
        async for release in releases:
            text += release.text
            found += release.detections
            if "now" in text:
                heard.set()
    assert text == TEXT
    assert [(one.start, one.end) for one in found] == [(0, 4), (16, 20)]
    assert meter.failed_detectors == {"far": False}
    [read] = meter.receipt.list_reads()
    assert (read.has_failed, read.is_covered) == (True, False)


async def test_the_time_begins_when_the_text_came_and_not_when_the_detector_is_free() -> None:
    """One text of many chunks: when the first takes too long the others have waited too long as well."""
    meter = Meter("p")
    detector = SlowDetector("a")
    text, found = await say(build_guards(meter, detector, passes=True), whole("abcd" * 50))
    assert (text, found) == ("abcd" * 50, [])
    assert detector.asked == ["abcd"]


async def test_a_whole_text_leaves_unread_where_the_detector_may_fail() -> None:
    meter = Meter("p")
    found = await detect_slices([Slice(0, TEXT)], build_guards(meter, SlowDetector("bob"), passes=True))
    assert (found, meter.failed_detectors) == ([], {"far": False})


async def test_the_wait_for_a_permit_counts_too() -> None:
    """Five detectors read a whole text, one at a time; the first takes all the time."""
    meter, slow = Meter("p"), SlowDetector("bob")
    others = [ScriptedDetector(find_word("mail")) for _ in range(4)]
    guards = [
        *build_guards(meter, slow, passes=True),
        *[
            guard
            for number, one in enumerate(others)
            for guard in build_guards(meter, one, passes=True, name=f"{number}")
        ],
    ]
    assert await detect_slices([Slice(0, TEXT)], guards, max_open=1) == []
    assert sorted(meter.failed_detectors) == ["0", "1", "2", "3", "far"]
    assert [one.read_texts for one in others] == [[]] * 4


async def test_a_detector_in_time_is_not_disturbed() -> None:
    meter = Meter("p")
    text, found = await say(build_guards(meter, SlowDetector("never"), passes=False), whole("mail bob mail"))
    assert text == "mail bob mail"
    assert [(one.start, one.end) for one in found] == [(0, 4)]
    [read] = meter.receipt.list_reads()
    assert read.is_covered


async def test_a_client_that_reads_slowly_makes_no_detector_fail() -> None:
    meter, clock, detector = Meter("p"), LoopClock(), ScriptedDetector(find_word("m"))
    guards = build_guards(meter, detector, passes=True)
    said = "mail" * 400
    async with open_guarded_stream(whole(said), guards, LanePlan(list_readers(guards))) as releases:
        text = (await anext(releases)).text
        assert await settled(lambda: len(detector.read_texts)) < 400
        clock.advance()
        text += "".join([release.text async for release in releases])
    assert text == said
    assert meter.failed_detectors == {}
    assert "".join(detector.read_texts) == said


async def test_a_reviewer_has_a_limit_too() -> None:
    subject = Conversation([{"role": "user", "content": "a"}])
    for passes in (False, True):
        meter, slow = Meter("p"), SlowDetector("")
        guard = Guard("judge", "text_chat", slow, "", None, 0.5)
        review = ActiveReview(guard, slow, 0.5, passes=passes, max_hold_s=LIMIT_S)
        watched = meter.watch_reviews([review], RequestPart.ANSWER)
        if passes:
            assert await review_all(watched, subject) == []
            assert meter.failed_detectors == {"judge": False}
        else:
            with pytest.raises(TimedOut, match="`judge` held"):
                await review_all(watched, subject)


async def test_a_request_that_is_given_up_is_cancelled() -> None:
    meter, clock = Meter("p"), LoopClock()
    detector = ScriptedDetector(delay_s=3000.0)
    saying = asyncio.ensure_future(say(build_guards(meter, detector, passes=True), whole("mail")))
    await linger()
    clock.advance(LIMIT_S + 1)
    assert await saying == ("mail", [])
    assert detector.cancelled == 1


async def test_a_timeout_of_the_detector_itself_is_no_limit() -> None:
    class Raising(ScriptedDetector):
        async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
            raise TimeoutError("its own")

    meter = Meter("p")
    [guard] = build_guards(meter, Raising(), passes=True)
    with pytest.raises(TimeoutError, match="its own"):
        await say([replace(guard, on_failure=None)], whole("mail"))


async def test_a_reader_of_the_words_of_findings_has_its_limit_too() -> None:
    [slow] = build_guards(Meter("p"), SlowDetector("rule"), passes=True)
    receipt = Receipt("p")
    found = Detection(0, 1, "a", "Kind", "kind", 1.0, metadata={"rule": 1})
    [[cleared]] = await FindingWords([slow], {}, 5).read([[found]], receipt)
    assert (cleared.metadata, receipt.dropped["detections.metadata"]) == (None, 1)


async def test_what_is_read_besides_the_text_has_the_limit_of_its_detector() -> None:
    for passes in (False, True):
        meter = Meter("p")
        [slow] = build_guards(meter, SlowDetector(""), passes=passes)
        if passes:
            assert await read_in_time(slow, [Excerpt("a")], LIMIT_S) == ()
            assert meter.failed_detectors == {"far": False}
        else:
            with pytest.raises(TimedOut, match="`far` held"):
                await read_in_time(slow, [Excerpt("a")], LIMIT_S)
