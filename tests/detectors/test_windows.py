# SPDX-License-Identifier: Apache-2.0
"""A text is cut into windows that leave nothing out, overlap, and never hold too much."""

import threading
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors.letters import make_plain
from lockgate.detectors.toxicity.detector import KnownWords
from lockgate.detectors.windows import MAX_WINDOW_WORDS, ModelPool, TokenCutter, Window, WindowReading, open_pool
from lockgate.gate.values import Excerpt
from lockgate.models.wordpiece import WordPieces
from tests.waits import assert_linear

MAX, OVERLAP = 10, 3


def tokenize(word: str) -> list[int]:
    """A token for each four letters, none for a word of marks alone."""
    letters = [ord(letter) for letter in word if letter.isalnum()]
    return letters[::4]


CUTTER = TokenCutter(tokenize, MAX, OVERLAP)


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


def count_up(many: int) -> TokenCutter:
    """A cutter whose tokens are all different; a word has as many as its letters, and for each `@` so many more."""
    numbers = iter(range(10**9))
    return TokenCutter(
        lambda word: list(islice(numbers, sum(many if one == "@" else one == "a" for one in word))), 10, 3
    )


@given(st.text(st.sampled_from("a@. \n"), max_size=200), st.integers(0, 35))
def test_every_token_is_in_a_window_and_each_window_comes_further(text: str, many: int) -> None:
    windows = list(islice(count_up(many).cut(text), 40 * len(text) + 1))
    tokens = [token for window in windows for token in window.tokens]
    assert set(tokens) == set(range(len(set(tokens))))
    assert len(set(tokens)) == sum({"@": many, "a": 1}.get(letter, 0) for letter in text)
    assert len(tokens) <= 2 * len(set(tokens))
    assert all(len(window.tokens) <= 10 for window in windows)
    for first, second in pairwise(windows):
        assert first.start <= second.start
        assert (first.end, first.tokens[-1:]) < (second.end, second.tokens[-1:])


WORDS = KnownWords(["the", "a", "idiot"])
PIECES = WordPieces(["[UNK]", "[CLS]", "[SEP]", "a", "##a", "!", "?", "(", ")", "1", "0"])
CUTTERS = {
    "words": TokenCutter(WORDS.tokenize, 60, 15),
    "pieces": TokenCutter(lambda word: PIECES.list_pieces(make_plain(word)), 64, 16),
}
ODD = ["\ufdfa", "\ufdfb", "\u3316", "\u33c2", "\u2474", "\u2049", "\u0301", "\u200d", "\U0001f600", "\uac01", "\ue000"]
MIXED = ["a" * 30 + "\u0301 " * 9, "a(1)" * 4 + "\u0301 " * 400, "\ufdfa" * 20 + " ", "\u0301\u0316", "a@", "a$!"]


@pytest.mark.parametrize("name", sorted(CUTTERS))
@given(st.lists(st.sampled_from([*ODD, *MIXED, "the ", "a", "!"]) | st.text(max_size=5), max_size=9), st.integers(1, 9))
def test_odd_texts_are_read_to_their_end(name: str, parts: list[str], times: int) -> None:
    text = "".join(part * times for part in parts)
    windows = list(islice(CUTTERS[name].cut(text), 10 * len(text) + 1))
    assert len(windows) <= 10 * len(text)
    assert [one.end for one in windows[-1:]] == [len(text.rstrip())] * bool(text.strip())
    assert all(len(window.tokens) <= CUTTERS[name].max_tokens for window in windows)


@pytest.mark.parametrize("name", sorted(CUTTERS))
@pytest.mark.parametrize("part", ["a", *ODD, *MIXED, "a ", "\u0301 "])
def test_the_work_grows_with_the_text_only(name: str, part: str) -> None:
    assert_linear(lambda size: list(CUTTERS[name].cut((part * size)[:size])), 5_000)
    text = (part * 40_000)[:40_000]
    windows = list(CUTTERS[name].cut(text))
    assert sum(len(window.text) for window in windows) <= 4 * len(text) + 200 * len(windows)
    assert max(len(window.text) for window in windows) <= 50 * MAX_WINDOW_WORDS


def test_a_letter_that_stands_for_a_sentence_is_not_spelled_out() -> None:
    assert WORDS.tokenize("\ufdfaidiot\ufdfb") == WORDS.tokenize("idiot")
    assert PIECES.list_pieces(make_plain("\ufdfaa")) == PIECES.list_pieces("[ a")


@pytest.mark.parametrize(
    ("text", "is_here"),
    [
        ("a" * 2_000, True),
        ("é" * 2_000, True),
        ("\u33c2" * 250, True),
        ("a" * 2_001, False),
        ("\u33c2" * 251, False),
        ("\ufdfa" * 1_999, False),
    ],
)
async def test_what_takes_long_to_cut_is_not_cut_on_the_event_loop(text: str, is_here: bool) -> None:
    threads: set[int] = set()

    def tokenize(word: str) -> list[int]:
        threads.add(threading.get_ident())
        return [len(word)]

    pool: ModelPool[Window, int]
    async with open_pool(lambda windows: [0] * len(windows), name="none") as pool:
        await WindowReading(TokenCutter(tokenize, 60, 15), pool, lambda _, __: None).read([Excerpt(text)])
    assert (threads == {threading.get_ident()}) is is_here
