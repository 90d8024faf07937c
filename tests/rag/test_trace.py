# SPDX-License-Identifier: Apache-2.0
"""A trace tells what is held, in order and once, before it tells that it left."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.batcher import DetectorSpec
from lockgate.gate.lanes import LanePlan, Lanes
from lockgate.gate.release import Release
from lockgate.gate.values import Chunk, Detection, Frame
from lockgate.gate.verdicts import Action, Judge, Measures, Verdict
from lockgate.rag.sources import Retrieval, Status
from lockgate.rag.trace import BLOCKED, MASKED, RELEASED, FrontierNote, HeldNote, ReleaseNote, SourceNote, Trace

FOUND = Detection(0, 2, "ab", "kind", "type", 1.0, "words")


class Clock:
    """Counts its looks: each is a second later."""

    def __init__(self) -> None:
        self._ticks = count()

    def __call__(self) -> float:
        return float(next(self._ticks))


def build() -> tuple[Trace, list[None]]:
    woken: list[None] = []
    return Trace(Clock(), lambda: woken.append(None)), woken


def frames_of(pieces: list[str]) -> list[Frame]:
    return [Frame(number, piece) for number, piece in enumerate(pieces)]


@given(st.lists(st.text(max_size=4), max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_text_is_told_once_and_in_order_however_often_somebody_looks(pieces: list[str], looks: list[bool]) -> None:
    trace, _ = build()
    told: list[HeldNote] = []
    for frame, is_looked_at in zip(frames_of(pieces), looks, strict=False):
        trace.receive(frame)
        if is_looked_at:
            told += [note for note in trace.take() if isinstance(note, HeldNote)]
    told += [note for note in trace.take() if isinstance(note, HeldNote)]
    assert "".join(note.text for note in told) == "".join(pieces)
    assert [note.start for note in told] == [sum(len(one.text) for one in told[:place]) for place in range(len(told))]
    assert trace.take() == []


def test_what_came_at_once_is_one_note_and_a_frame_without_text_is_none() -> None:
    trace, woken = build()
    trace.receive([Frame(0, "a"), Frame(1, "b")])
    trace.receive(Frame(2, ""))
    trace.receive(Frame(3, "c"))
    assert [(note.start, note.text) for note in trace.take() if isinstance(note, HeldNote)] == [(0, "abc")]
    assert len(woken) == 2


def test_a_release_is_told_behind_the_text_and_the_frontiers_that_it_rests_on() -> None:
    trace, _ = build()
    lanes = Lanes(LanePlan((DetectorSpec("words", "word"),)))
    for frame in frames_of(["ab", "cd"]):
        trace.receive(frame)
        lanes.receive(frame)
        trace.watch(lanes)
    (ask,) = lanes.by_choice[0].place("word", Chunk(0, 2, "ab"))
    released = lanes.by_choice[ask.choice].answer(ask, [[]])  # type: ignore[arg-type]
    trace.watch(lanes)
    trace.add_release(released[-1], None)  # type: ignore[arg-type]
    held, read, left = trace.take()
    assert isinstance(held, HeldNote)
    assert isinstance(read, FrontierNote)
    assert isinstance(left, ReleaseNote)
    assert (held.text, read.frontiers, read.held_chars) == ("abcd", {"words": 2}, 2)
    assert (left.start, left.end, left.outcome) == (0, 2, RELEASED)


def test_frontiers_that_did_not_move_are_not_told_again() -> None:
    trace, woken = build()
    lanes = Lanes(LanePlan((DetectorSpec("words", "word"),)))
    lanes.receive(Frame(0, "ab"))
    trace.watch(lanes)
    trace.take()
    before = len(woken)
    trace.watch(lanes)
    assert trace.take() == []
    assert len(woken) == before


def test_how_long_text_was_held_counts_from_its_first_character() -> None:
    trace, _ = build()  # the clock is at 0
    trace.receive(Frame(0, "ab"))  # 1
    trace.receive(Frame(1, "cd"))  # 2
    trace.add_release(Release(0, 3, "abc"), None)  # 3
    trace.add_release(Release(3, 4, "d"), None)  # 4
    assert [note.held_ms for note in trace.take() if isinstance(note, ReleaseNote)] == [2000.0, 2000.0]


def test_what_became_of_a_release_is_told_with_the_findings_as_they_were() -> None:
    trace, _ = build()
    measures = {name: Measures(action, fallback="No.") for name, action in (("m", Action.MASK), ("b", Action.BLOCK))}
    for name in ("m", "b"):
        verdict: Verdict = Judge(measures[name]).judge(0, "abcd", (FOUND,))
        trace.add_release(Release(0, 4, "abcd", (FOUND,)), verdict)
    told = [note for note in trace.take() if isinstance(note, ReleaseNote)]
    assert [note.outcome for note in told] == [MASKED, BLOCKED]
    assert all(note.detections == (FOUND,) for note in told)


def test_an_end_without_text_or_findings_is_no_news() -> None:
    trace, _ = build()
    trace.add_release(Release(4, 4, "", is_final=True), None)
    assert trace.take() == []


def test_a_source_is_told_as_it_ended() -> None:
    trace, _ = build()
    retrieval = Retrieval("docs", Status.SUCCESS)
    trace.add_retrieval(retrieval)
    (note,) = trace.take()
    assert isinstance(note, SourceNote)
    assert note.retrieval is retrieval
