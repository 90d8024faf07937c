# SPDX-License-Identifier: Apache-2.0
"""A text is cut into windows that leave nothing out, overlap, and never hold too much."""

from hypothesis import given
from hypothesis import strategies as st

from lockgate.embedded.windows import Cutter

MAX, OVERLAP = 10, 3


def tokenize(word: str) -> list[int]:
    """A token for each four letters, none for a word of marks alone."""
    letters = [ord(letter) for letter in word if letter.isalnum()]
    return letters[::4]


CUTTER = Cutter(tokenize, MAX, OVERLAP)


def test_a_text_that_fits_is_one_window_without_outer_white_space() -> None:
    (window,) = CUTTER.cut("  some short words \n")
    assert (window.start, window.end, window.text) == (2, 18, "some short words")


def test_white_space_has_no_window() -> None:
    assert list(CUTTER.cut(" \n\t ")) == []


def test_the_end_of_a_window_is_seen_again() -> None:
    text = " ".join(f"w{number:03d}" for number in range(30))
    windows = list(CUTTER.cut(text))
    for first, second in zip(windows, windows[1:], strict=False):
        assert second.start < first.end
        assert len(set(first.tokens) & set(second.tokens)) <= MAX
        assert text[second.start : first.end].count(" ") == OVERLAP - 1


@given(st.text(st.sampled_from("ab1 \n.!é漢"), max_size=400))
def test_nothing_is_left_out_and_no_window_holds_too_much(text: str) -> None:
    windows = list(CUTTER.cut(text))
    seen: set[int] = set()
    for window in windows:
        assert window.text == text[window.start : window.end]
        assert window.text == window.text.strip()
        assert len(window.tokens) <= MAX
        seen.update(range(window.start, window.end))
    assert all(letter.isspace() for at, letter in enumerate(text) if at not in seen)
    starts = [window.start for window in windows]
    assert starts == sorted(set(starts))


def test_a_stretch_without_spaces_is_cut_anywhere() -> None:
    windows = list(CUTTER.cut("x" * 10_000))
    assert len(windows) > 100
    assert windows[-1].end == 10_000
