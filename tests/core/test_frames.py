# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.core.frames import FrameLog, merge_fields
from lockgate.core.values import Frame, Span

TEXTS = st.lists(st.text(alphabet="ab中😀\u0301", max_size=4), max_size=10)


def _log(texts: list[str]) -> FrameLog:
    log = FrameLog()
    for number, text in enumerate(texts):
        log.append(Frame(number, text))
    return log


@given(TEXTS, st.lists(st.integers(0, 40), max_size=6))
def test_released_text_joins_to_what_came_in(texts: list[str], stops: list[int]) -> None:
    log, whole = _log(texts), "".join(texts)
    parts = [log.release(stop) for stop in sorted(min(stop, len(whole)) for stop in stops)]
    parts.append(log.release(len(whole)))
    assert "".join(text for text, _ in parts) == whole
    assert [frame.number for _, frames in parts for frame in frames] == list(range(len(texts)))
    assert len(log) == 0


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_every_received_span_has_its_frames(texts: list[str], one: int, other: int) -> None:
    whole = "".join(texts)
    start, end = sorted((min(one, len(whole)), min(other, len(whole))))
    owners = [number for number, text in enumerate(texts) for _ in text][start:end]
    assert [frame.number for frame in _log(texts).cover(Span(start, end))] == list(dict.fromkeys(owners))


def test_a_release_backwards_or_beyond_the_text_is_a_bug_of_the_caller() -> None:
    log = _log(["abc"])
    log.release(2)
    for wrong in (1, 4):
        with pytest.raises(RuntimeError, match="cannot release"):
            log.release(wrong)


def test_lists_are_joined_and_of_the_rest_the_last_value_stays() -> None:
    frames = [
        Frame(0, "a", fields={"tokens": [1], "seed": 7, "finish_reason": None}),
        Frame(1, "b", fields={"tokens": [2, 3], "finish_reason": "stop"}),
        Frame(2, "c", fields={"finish_reason": None}),
    ]
    assert merge_fields(frames) == {"tokens": [1, 2, 3], "seed": 7, "finish_reason": "stop"}
    assert frames[0].fields == {"tokens": [1], "seed": 7, "finish_reason": None}
