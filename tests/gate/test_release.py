# SPDX-License-Identifier: Apache-2.0
"""Examples of the gate. Its laws are in test_lanes.py, where the whole core is played."""

import pytest

from lockgate.gate.release import Release, ReleaseGate, Strategy
from lockgate.gate.values import Detection, Frame

MAX = Strategy.MAX_PROCESSED_INDEX


def _gate(*holding: str, strategy: Strategy = Strategy.FRONTIER) -> ReleaseGate:
    gate = ReleaseGate(holding, strategy=strategy)
    gate.receive(Frame(0, "x" * 50))
    return gate


def _finding(start: int, end: int) -> Detection:
    return Detection(start, end, "", "kind", "type", 1.0)


def _ends(releases: list[Release]) -> list[int]:
    return [release.end for release in releases]


def test_text_is_held_until_the_slowest_detector_clears_it() -> None:
    gate = _gate("word", "page")
    assert gate.clear("word", 5) == []
    assert gate.held_chars == 50
    assert _ends(gate.clear("page", 42)) == [5]
    assert _ends(gate.clear("word", 17)) == [17]


def test_with_max_processed_index_the_sentences_wait_for_the_paragraph() -> None:
    """ADR 002: heads at 42 and 5, then 17, 34, 44: one frame up to 42, and 44 stays queued."""
    gate = _gate("paragraph", "sentence", strategy=MAX)
    assert gate.clear("paragraph", 42) == []
    for end in (5, 17, 34):
        assert gate.clear("sentence", end) == []
    assert _ends(gate.clear("sentence", 44)) == [42]
    assert _ends(gate.clear("paragraph", 50)) == []
    assert _ends(gate.clear("sentence", 50)) == [50]


def test_a_finding_of_an_answer_beyond_the_reference_leaves_with_the_text_that_it_starts_in() -> None:
    gate = _gate("a", "b", strategy=MAX)
    gate.clear("a", 10)
    (release,) = gate.clear("b", 30, [_finding(8, 12), _finding(20, 22)]) or gate.clear("a", 30)
    assert (release.end, [found.start for found in release.detections]) == (30, [8, 20])
    gate = _gate("a", "b", strategy=MAX)
    gate.clear("a", 4)
    gate.clear("a", 40, [_finding(8, 12), _finding(20, 22)])
    (release,) = gate.clear("b", 10)
    assert (release.end, [found.start for found in release.detections]) == (10, [8])


def test_findings_of_one_release_stand_in_the_order_of_the_detectors() -> None:
    gate = _gate("a", "b")
    gate.clear("b", 50, [_finding(1, 2)])
    (release,) = gate.clear("a", 50, [_finding(9, 10), _finding(3, 4)])
    assert [found.start for found in release.detections] == [9, 3, 1]


def test_an_empty_frame_behind_released_text_leaves_at_once() -> None:
    gate = _gate("a")
    gate.clear("a", 50)
    (release,) = gate.receive(Frame(1, "", fields={"finish_reason": "stop"}))
    assert (release.text, release.frames[0].number) == ("", 1)


def test_an_empty_frame_behind_held_text_waits_for_it() -> None:
    gate = _gate("a")
    assert gate.receive(Frame(1, "", fields={"finish_reason": "stop"})) == []
    (release,) = gate.clear("a", 50)
    assert [frame.number for frame in release.frames] == [0, 1]


def test_without_a_holding_detector_text_leaves_at_once() -> None:
    gate = ReleaseGate([], ["whole"])
    (release,) = gate.receive(Frame(0, "abc"))
    assert release.text == "abc"
    assert gate.clear("whole", 3, [_finding(0, 3)]) == []
    (last,) = gate.finish()
    assert (last.is_final, last.text, len(last.detections)) == (True, "", 1)


def test_a_finding_outside_its_chunk_is_not_lost() -> None:
    gate = _gate("a")
    (release,) = gate.clear("a", 10, [_finding(700, 900)])
    assert len(release.detections) == 1


def test_clearing_backwards_or_unreceived_text_is_a_bug_of_the_caller() -> None:
    gate = _gate("a")
    gate.clear("a", 10)
    for upto in (9, 51):
        with pytest.raises(RuntimeError, match="cannot clear"):
            gate.clear("a", upto)


def test_finishing_with_unread_text_is_a_bug_of_the_caller() -> None:
    gate = _gate("a", "b")
    gate.clear("a", 50)
    with pytest.raises(RuntimeError, match=r"\['b'\] read only 0 of 50"):
        gate.finish()
