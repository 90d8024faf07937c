# SPDX-License-Identifier: Apache-2.0
"""The laws bite: each bug planted in a machine is caught by a named law with the default number of examples."""

import heapq
from collections.abc import Sequence
from typing import Any

import pytest

from lockgate.gate.batcher import ChunkAligner, DetectionBatcher, DetectorProgress, DetectorQueue, DetectorRequest
from lockgate.gate.lanes import Lane, Lanes
from lockgate.gate.release import FrameLog, Release, ReleaseGate
from lockgate.gate.sse import SseParser
from lockgate.gate.values import Chunk, Detection, Frame
from tests.gate import test_batcher, test_chunks, test_frames, test_lanes, test_sse, test_verdicts
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()


@BUGS.caught_by(test_lanes.test_no_character_leaves_before_every_holding_detector_has_cleared_it)
def one_character_leaves_early(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate.clear

    def clear(self: ReleaseGate, detector: str, upto: int, found: Sequence[Detection] = ()) -> list[Release]:
        return honest(self, detector, min(upto + 1, self.received), found)

    monkeypatch.setattr(ReleaseGate, "clear", clear)


@BUGS.caught_by(test_lanes.test_no_character_leaves_before_every_holding_detector_has_cleared_it)
def the_fastest_detector_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate.clear

    def clear(self: ReleaseGate, detector: str, upto: int, found: Sequence[Detection] = ()) -> list[Release]:
        releases = honest(self, detector, upto, found)
        most = max(self._frontiers.values(), default=0)
        return [*releases, self._release(most)] if most > self.released else releases

    monkeypatch.setattr(ReleaseGate, "clear", clear)


@BUGS.caught_by(test_lanes.test_every_finding_is_delivered_exactly_once)
def a_finding_that_reaches_over_a_release_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate._release

    def release(self: ReleaseGate, upto: int, *, is_final: bool = False) -> Release:
        whole = honest(self, upto, is_final=is_final)
        return whole._replace(detections=tuple(found for found in whole.detections if found.end <= upto))

    monkeypatch.setattr(ReleaseGate, "_release", release)


@BUGS.caught_by(
    test_lanes.test_a_finding_leaves_with_the_first_released_text_that_overlaps_it,
    test_verdicts.test_behind_the_gate_no_part_of_a_finding_in_one_chunk_leaves_in_clear,
)
def a_finding_leaves_with_its_last_character(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate._release

    def release(self: ReleaseGate, upto: int, *, is_final: bool = False) -> Release:
        self._pending = [(max(at, one.end - 1), place, seen, one) for at, place, seen, one in self._pending]
        heapq.heapify(self._pending)
        return honest(self, upto, is_final=is_final)

    monkeypatch.setattr(ReleaseGate, "_release", release)


@BUGS.caught_by(test_lanes.test_every_finding_is_delivered_exactly_once)
def a_finding_is_delivered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate._release

    def release(self: ReleaseGate, upto: int, *, is_final: bool = False) -> Release:
        pending = list(self._pending)
        whole = honest(self, upto, is_final=is_final)
        if len(whole.detections) > 1:
            self._pending[:] = pending[:1] + self._pending
        return whole

    monkeypatch.setattr(ReleaseGate, "_release", release)


_WHOLE = test_chunks.test_every_solid_character_of_a_whole_text_lies_in_a_chunk_or_the_chunker_has_failed


@BUGS.caught_by(_WHOLE)
def a_whole_text_may_have_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkAligner, "_check_gap", lambda *_: None)


@BUGS.caught_by(_WHOLE)
def the_end_of_a_whole_text_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ChunkAligner.place_all

    def place_all(self: ChunkAligner, chunks: Sequence[Chunk]) -> None:
        end = max([chunk.end for chunk in chunks], default=0)
        rest = self._input.received - end
        honest(self, [*chunks, Chunk(end, end + rest, _text_of(self)[end:])])

    monkeypatch.setattr(ChunkAligner, "place_all", place_all)


@BUGS.caught_by(_WHOLE)
def a_short_chunk_in_a_long_one_takes_back_what_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_all(self: ChunkAligner, chunks: Sequence[Chunk]) -> None:
        text, upto = _text_of(self), 0
        for chunk in sorted(chunks, key=lambda one: one.start):
            self._check_gap(text[upto : chunk.start], upto)
            upto = chunk.end
        self._check_gap(text[upto:], upto)

    monkeypatch.setattr(ChunkAligner, "place_all", place_all)


@BUGS.caught_by(_WHOLE)
def only_the_sum_of_the_chunks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_all(self: ChunkAligner, chunks: Sequence[Chunk]) -> None:
        solid = sum(not char.isspace() for char in _text_of(self))
        if sum(not char.isspace() for chunk in chunks for char in chunk.text) < solid:
            raise self._fault("too little text")

    monkeypatch.setattr(ChunkAligner, "place_all", place_all)


@BUGS.caught_by(test_chunks.test_a_chunk_of_a_whole_text_is_what_stands_at_its_place)
def a_chunk_of_a_whole_text_may_say_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ChunkAligner.place_all

    def place_all(self: ChunkAligner, chunks: Sequence[Chunk]) -> None:
        text = _text_of(self)
        honest(self, [chunk._replace(text=text[max(chunk.start, 0) : chunk.end]) for chunk in chunks])

    monkeypatch.setattr(ChunkAligner, "place_all", place_all)


def _text_of(aligner: ChunkAligner) -> str:
    return "".join([frame.text for frame in aligner._input.frames])


@BUGS.caught_by(test_lanes.test_every_finding_is_delivered_exactly_once)
def trailing_findings_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate.finish

    def finish(self: ReleaseGate) -> list[Release]:
        self._trailing.clear()
        return honest(self)

    monkeypatch.setattr(ReleaseGate, "finish", finish)


@BUGS.caught_by(
    test_lanes.test_releases_join_to_exactly_the_text_in_order, test_frames.test_released_text_joins_to_what_came_in
)
def the_rest_of_a_half_released_frame_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameLog.release

    def release(self: FrameLog, upto: int) -> tuple[str, tuple[Frame, ...]]:
        text, frames = honest(self, upto)
        return (text[:-1], frames) if self.frames and self._head_start < upto else (text, frames)

    monkeypatch.setattr(FrameLog, "release", release)


@BUGS.caught_by(test_lanes.test_releases_join_to_exactly_the_text_in_order)
def frames_are_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameLog.append

    def append(self: FrameLog, frame: Frame) -> None:
        honest(self, frame)
        if len(self.frames) > 2:
            self.frames[-1], self.frames[-2] = self.frames[-2], self.frames[-1]

    monkeypatch.setattr(FrameLog, "append", append)


@BUGS.caught_by(test_lanes.test_what_a_frame_carried_leaves_exactly_once_with_its_last_character)
def an_empty_frame_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameLog.append

    def append(self: FrameLog, frame: Frame) -> None:
        if frame.text:
            honest(self, frame)

    monkeypatch.setattr(FrameLog, "append", append)


@BUGS.caught_by(test_lanes.test_what_a_frame_carried_leaves_exactly_once_with_its_last_character)
def a_frame_leaves_with_its_first_character(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameLog.release

    def release(self: FrameLog, upto: int) -> tuple[str, tuple[Frame, ...]]:
        text, frames = honest(self, upto)
        return (text, (*frames, self.frames[0])) if self.frames and self._head_start < upto else (text, frames)

    monkeypatch.setattr(FrameLog, "release", release)


@BUGS.caught_by(test_lanes.test_everything_leaves_in_the_end_and_each_choice_ends_once)
def bytes_are_counted_for_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(self: FrameLog, frame: Frame) -> None:
        self.frames.append(frame)
        self.received += len(frame.text.encode())

    monkeypatch.setattr(FrameLog, "append", append)


@BUGS.caught_by(test_lanes.test_everything_leaves_in_the_end_and_each_choice_ends_once)
def the_tail_behind_the_last_chunk_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReleaseGate.finish

    def finish(self: ReleaseGate) -> list[Release]:
        releases = honest(self)
        return releases if self.released % 2 else []

    monkeypatch.setattr(ReleaseGate, "finish", finish)


@BUGS.caught_by(test_lanes.test_every_finding_is_delivered_exactly_once)
def spans_are_off_by_one_behind_the_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DetectionBatcher._apply_answer

    def tell(
        self: DetectionBatcher, queue: DetectorQueue, ask: DetectorRequest, found: Any, progress: list[DetectorProgress]
    ) -> None:
        honest(self, queue, ask, found, progress)
        if ask.number:
            told = progress.pop()
            moved = tuple(one._replace(start=one.start - 1) for one in told.detections)
            progress.append(told._replace(detections=moved))

    monkeypatch.setattr(DetectionBatcher, "_apply_answer", tell)


@BUGS.caught_by(
    test_lanes.test_no_character_leaves_before_every_holding_detector_has_cleared_it,
    test_batcher.test_the_order_of_answers_changes_nothing,
)
def answers_count_in_the_order_in_which_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DetectionBatcher.answer

    def answer(
        self: DetectionBatcher, ask: DetectorRequest, found: Any
    ) -> tuple[list[DetectorRequest], list[DetectorProgress]]:
        self._queues[ask.detector].next_number = ask.number
        return honest(self, ask, found)

    monkeypatch.setattr(DetectionBatcher, "answer", answer)


@BUGS.caught_by(test_lanes.test_each_chunk_is_asked_once_of_each_of_its_detectors_and_few_requests_are_open)
def one_request_too_many_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DetectionBatcher.add

    def add(self: DetectionBatcher, chunker: str, chunks: Sequence[Chunk]) -> list[DetectorRequest]:
        self._max_open += 1
        asks = honest(self, chunker, chunks)
        self._max_open -= 1
        return asks

    monkeypatch.setattr(DetectionBatcher, "add", add)


@BUGS.caught_by(test_lanes.test_each_chunk_is_asked_once_of_each_of_its_detectors_and_few_requests_are_open)
def a_chunk_is_asked_of_one_detector_only(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DetectionBatcher.add

    def add(self: DetectionBatcher, chunker: str, chunks: Sequence[Chunk]) -> list[DetectorRequest]:
        queues = self._by_chunker[chunker]
        self._by_chunker[chunker] = queues[:1]
        asks = honest(self, chunker, chunks)
        self._by_chunker[chunker] = queues
        return asks

    monkeypatch.setattr(DetectionBatcher, "add", add)


@BUGS.caught_by(test_lanes.test_no_character_leaves_before_every_holding_detector_has_cleared_it)
def a_forced_cut_is_cleared_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DetectionBatcher._apply_answer

    def tell(
        self: DetectionBatcher, queue: DetectorQueue, ask: DetectorRequest, found: Any, progress: list[DetectorProgress]
    ) -> None:
        honest(self, queue, ask, found, progress)
        queue.frontier = ask.chunks[-1].end
        progress.append(progress.pop()._replace(upto=queue.frontier))

    monkeypatch.setattr(DetectionBatcher, "_apply_answer", tell)


@BUGS.caught_by(test_lanes.test_every_finding_is_delivered_exactly_once)
def a_finding_across_a_forced_cut_is_reported_by_both_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockgate.gate import batcher

    def place(queue: DetectorQueue, chunk: Chunk, found: Sequence[Detection], *_: object) -> list[Detection]:
        moved = [one._replace(start=one.start + chunk.start, end=one.end + chunk.start) for one in found]
        return [one._replace(detector_id=queue.detector) for one in moved if one.score >= queue.spec.threshold]

    monkeypatch.setattr(batcher, "_place", place)


@BUGS.caught_by(test_lanes.test_releases_join_to_exactly_the_text_in_order)
def choices_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Lanes.receive

    def receive(self: Lanes, frame: Frame) -> list[Any]:
        known = frame.choice in self.by_choice and frame.number % 2
        return honest(self, frame._replace(choice=0) if known and 0 in self.by_choice else frame)

    monkeypatch.setattr(Lanes, "receive", receive)


@BUGS.caught_by(test_lanes.test_we_never_wait_for_text_that_we_refuse_to_read)
def reading_stops_whatever_the_slowest_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "may_read", lambda self: self.held_chars <= self._plan.soft_held_chars)


@BUGS.caught_by(test_lanes.test_frames_held_are_only_those_that_have_not_left)
def released_frames_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FrameLog.release

    def release(self: FrameLog, upto: int) -> tuple[str, tuple[Frame, ...]]:
        text, frames = honest(self, upto)
        self.frames.extendleft(Frame(one.number, "") for one in frames[:1])
        return text, frames

    monkeypatch.setattr(FrameLog, "release", release)


@BUGS.caught_by(test_lanes.test_with_max_processed_index_even_the_releases_do_not_depend_on_the_order)
def the_reference_is_the_first_answer_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: ReleaseGate, _ends: object) -> list[Release]:
        return [self._release(self._lowest)] if self._lowest > self.released else []

    monkeypatch.setattr(ReleaseGate, "_release_references", release)


@BUGS.caught_by(test_chunks.test_a_gap_is_fine_exactly_when_it_is_white_space)
def a_chunker_may_skip_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(self: ChunkAligner, upto: int) -> None:
        self._take(upto - self.placed)  # whatever it is
        self.placed = upto

    monkeypatch.setattr(ChunkAligner, "_skip", skip)


@BUGS.caught_by(test_chunks.test_text_that_was_not_sent_is_the_chunkers_fault)
def a_chunks_text_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ChunkAligner.place

    def place(self: ChunkAligner, chunk: Chunk) -> bool:
        said = "".join([frame.text for frame in self._input.frames])[chunk.start : chunk.end]
        return honest(self, chunk._replace(text=said))

    monkeypatch.setattr(ChunkAligner, "place", place)


@BUGS.caught_by(test_sse.test_any_cut_of_the_bytes_gives_the_same_events)
def a_line_feed_behind_a_carriage_return_counts_in_the_next_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SseParser.feed

    def feed(self: SseParser, data: bytes) -> list[Any]:
        events = honest(self, data)
        self._skip_lf = False
        return events

    monkeypatch.setattr(SseParser, "feed", feed)


@BUGS.caught_by(test_sse.test_only_cr_and_lf_end_a_line)
def a_line_separator_ends_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SseParser.feed

    def feed(self: SseParser, data: bytes) -> list[Any]:
        return honest(self, data.replace("\u2028".encode(), b"\ndata: "))

    monkeypatch.setattr(SseParser, "feed", feed)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
