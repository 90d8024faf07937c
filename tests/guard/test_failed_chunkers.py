# SPDX-License-Identifier: Apache-2.0
"""A chunker that fails: where all who need it are excused the text goes on without them, else nothing more leaves."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

import pytest

from lockgate.errors import BrokeProtocol, LockgateError, Unavailable
from lockgate.gate.batcher import DetectorRequest, DetectorSpec
from lockgate.gate.lanes import Lane, LanePlan
from lockgate.gate.receipts import RequestPart
from lockgate.gate.release import Release, Strategy
from lockgate.gate.values import Chunk, Detection, Frame
from lockgate.guard.detectors import ActiveGuard, Guard
from lockgate.guard.policy import Meter
from lockgate.guard.stream import list_readers, open_guarded_stream
from lockgate.interfaces import Chunker
from lockgate.testing import FixedChunker, ScriptedDetector, ScriptedModel, find_word

TEXT = "the cat sat on the mat and the dog ran over the hill"
FAULTS = ("down", "liar", "quitter", "shortener")


class BrokenChunker:
    """Cuts every four characters, and after some of them fails in one of several ways."""

    def __init__(self, fault: str, after: int) -> None:
        self._fault = fault
        self._after = after

    async def cut(self, text: str) -> Sequence[Chunk]:
        raise Unavailable("chunker", "down")

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """A shortener reads all text and leaves out its end."""
        text, start = "", 0
        async for frame in frames:
            if self._fault == "shortener" and start >= self._after:
                continue
            text += frame.text
            while len(text) - start >= 4:
                if start >= self._after:
                    if self._fault == "down":
                        raise Unavailable("chunker", "down")
                    if self._fault == "quitter":
                        return
                    yield Chunk(start, start + 4, "lies")
                yield Chunk(start, start + 4, text[start : start + 4])
                start += 4


def build_guards(meter: Meter, broken: Chunker, *, passes: bool) -> list[ActiveGuard]:
    guards = []
    for name, chunker in (("well", FixedChunker(5)), ("ill", broken)):
        detector = ScriptedDetector(find_word("the"))
        guard = Guard(name, "text_contents", detector, f"c-{name}", chunker, 0.5)
        guards.append(ActiveGuard(guard, detector.accept({}, ()), 0.5, holds=True, passes=passes))
    return list(meter.watch(guards, RequestPart.ANSWER))


async def say(guards: list[ActiveGuard], *, is_whole: bool, strategy: Strategy = Strategy.FRONTIER) -> str:
    plan = LanePlan(list_readers(guards), is_whole=is_whole, strategy=strategy)
    pieces = [TEXT] if is_whole else [TEXT[at : at + 3] for at in range(0, len(TEXT), 3)]
    async with open_guarded_stream(ScriptedModel(pieces).generate((), {}), guards, plan) as releases:
        return "".join([release.text async for release in releases])


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("after", [0, 8, 24])
@pytest.mark.parametrize("fault", FAULTS)
async def test_text_goes_on_when_all_who_need_the_chunker_are_excused(
    fault: str, after: int, strategy: Strategy
) -> None:
    meter = Meter("p")
    assert (
        await say(build_guards(meter, BrokenChunker(fault, after), passes=True), is_whole=False, strategy=strategy)
        == TEXT
    )
    assert meter.failed_detectors == {"ill": False}
    covered = {one.detector_id: one.is_covered for one in meter.receipt.list_reads()}
    assert not covered["ill"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_in_shadow_a_broken_chunker_changes_nothing(fault: str) -> None:
    meter = Meter("p", is_shadow=True)
    assert await say(build_guards(meter, BrokenChunker(fault, 8), passes=False), is_whole=False) == TEXT
    assert meter.failed_detectors == {"ill": True}


async def test_a_whole_text_goes_on_too() -> None:
    meter = Meter("p")
    assert await say(build_guards(meter, BrokenChunker("down", 0), passes=True), is_whole=True) == TEXT
    assert meter.failed_detectors == {"ill": False}


@pytest.mark.parametrize("fault", FAULTS)
async def test_one_who_is_not_excused_ends_the_text(fault: str) -> None:
    meter = Meter("p")
    broken = BrokenChunker(fault, 8)
    guards = build_guards(meter, broken, passes=True)
    strict = replace(guards[1], guard=replace(guards[1].guard, id="strict"), on_failure=None)
    said = ""
    with pytest.raises(LockgateError) as caught:
        said = await say([*guards, strict], is_whole=False)
    assert isinstance(caught.value, Unavailable | BrokeProtocol)
    assert not said
    assert not meter.failed_detectors


async def test_what_was_cut_before_the_failure_is_still_read_before_it_leaves() -> None:
    lane = Lane(LanePlan((DetectorSpec("pii", "c", 0.5, 0, True),)))
    lane.receive(Frame(0, "mail ana@x.org now. more "))
    lane.aligners["c"].feed()
    [asked] = lane.place("c", Chunk(0, 20, "mail ana@x.org now. "))
    assert lane.skip_rest("c") == []
    assert isinstance(asked, DetectorRequest)
    [release] = lane.answer(asked, [[Detection(5, 14, "ana@x.org", "Email", "pii", 0.9)]])[:1]
    assert isinstance(release, Release)
    assert (release.text[:20], [one.start for one in release.detections]) == ("mail ana@x.org now. ", [5])
