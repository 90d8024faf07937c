# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.release import FrameLog
from lockgate.gate.values import Frame

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
    assert not log.frames


def test_a_release_backwards_or_beyond_the_text_is_a_bug_of_the_caller() -> None:
    log = _log(["abc"])
    log.release(2)
    for wrong in (1, 4):
        with pytest.raises(RuntimeError, match="cannot release"):
            log.release(wrong)
