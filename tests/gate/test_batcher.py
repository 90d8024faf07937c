# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.batcher import DetectionBatcher, DetectorProgress, DetectorRequest, DetectorSpec
from lockgate.gate.values import Chunk, Detection, Excerpt


def _finding(start: int, end: int, score: float = 1.0) -> Detection:
    return Detection(start, end, "x", "kind", "type", score)


def _chunks(count: int) -> list[Chunk]:
    return [Chunk(4 * n, 4 * n + 4, f"{n:04}") for n in range(count)]


@given(st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_order_of_answers_changes_nothing(count: int, most: int, turns: object) -> None:
    def run(shuffle: bool) -> list[DetectorProgress]:
        batcher = DetectionBatcher([DetectorSpec("d", "c")], max_open=most)
        open_asks: list[DetectorRequest] = batcher.add("c", _chunks(count))
        told: list[DetectorProgress] = []
        while open_asks:
            at = turns.randrange(len(open_asks)) if shuffle else 0  # type: ignore[attr-defined]
            ask = open_asks.pop(at)
            more, progress = batcher.answer(ask, [[_finding(ask.number % 4, 4)]])
            open_asks += more
            told += progress
            assert len(open_asks) <= most
        return told

    assert run(True) == run(False)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_finding_counts_if_its_score_reaches_the_threshold(score: float, threshold: float) -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c", threshold=threshold)])
    (ask,) = batcher.add("c", [Chunk(0, 4, "abcd")])
    _, (progress,) = batcher.answer(ask, [[_finding(0, 1, score)]])
    assert bool(progress.detections) == (score >= threshold)


def test_spans_are_moved_to_the_whole_text_and_the_detector_is_named() -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c")])
    batcher.add("c", [Chunk(0, 9, "Call Bob.")])
    (ask,) = batcher.add("c", [Chunk(10, 26, "SSN 555-01-2345.")])
    batcher.answer(DetectorRequest("d", 0, (), ()), [[]])
    _, (progress,) = batcher.answer(ask, [[_finding(4, 15)]])
    assert progress == DetectorProgress("d", 26, (_finding(14, 25)._replace(detector_id="d"),))


def test_a_short_answer_means_no_findings_for_the_rest_and_a_long_one_is_cut() -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c")], is_whole=True)
    for chunk in _chunks(3):
        assert batcher.add("c", [chunk]) == []
    (ask,), _ = batcher.end("c", 12)
    _, (progress,) = batcher.answer(ask, [[_finding(1, 2)]])
    assert progress.upto == 12
    assert [found.start for found in progress.detections] == [1]
    other = DetectionBatcher([DetectorSpec("d", "c")])
    (ask,) = other.add("c", [Chunk(0, 4, "abcd")])
    _, (progress,) = other.answer(ask, [[], [_finding(0, 1)]])
    assert progress.detections == ()


def test_a_detector_that_looks_back_reads_over_a_forced_cut_and_reports_once() -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c", lookbehind_chars=3)])
    (one,) = batcher.add("c", [Chunk(0, 8, "aaaaaxyz", is_forced=True)])
    (two,) = batcher.add("c", [Chunk(8, 16, "wbbbbbbb")])
    assert two.excerpts == (Excerpt("wbbbbbbb", "xyz"),)
    _, (first,) = batcher.answer(one, [[_finding(0, 2), _finding(5, 8)]])
    _, (second,) = batcher.answer(two, [[_finding(-3, 0), _finding(-2, 1), _finding(-1, 0)]])
    assert (first.upto, [found[:2] for found in first.detections]) == (6, [(0, 2), (5, 8)])
    assert (second.upto, [found[:2] for found in second.detections]) == (16, [(6, 9), (7, 8)])


def test_a_detector_that_does_not_look_back_reads_a_forced_chunk_like_any_other() -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c")])
    (one,) = batcher.add("c", [Chunk(0, 8, "aaaaaxyz", is_forced=True)])
    (two,) = batcher.add("c", [Chunk(8, 9, "w")])
    assert two.excerpts == (Excerpt("w"),)
    _, (progress,) = batcher.answer(one, [[_finding(7, 8)]])
    assert (progress.upto, len(progress.detections)) == (8, 1)


def test_the_look_back_reaches_over_several_short_forced_chunks() -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c", lookbehind_chars=5)])
    for start in (0, 2, 4):
        batcher.add("c", [Chunk(start, start + 2, "abcdef"[start : start + 2], is_forced=True)])
    (ask,) = batcher.add("c", [Chunk(6, 7, "g")])
    assert ask.excerpts == (Excerpt("g", "bcdef"),)


def test_a_second_answer_to_one_request_is_a_bug_of_the_caller() -> None:
    batcher = DetectionBatcher([DetectorSpec("d", "c")])
    (ask,) = batcher.add("c", [Chunk(0, 1, "a")])
    batcher.answer(ask, [[]])
    with pytest.raises(RuntimeError, match="not open"):
        batcher.answer(ask, [[]])
