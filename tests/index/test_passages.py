# SPDX-License-Identifier: Apache-2.0
"""Documents become passages: in order, none too long, and no word is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.index.passages import MAX_TITLE_CHARS, DocumentSection, Passage, join_title, split_blocks, split_passages

ANY_TEXT = st.text(alphabet=st.one_of(st.sampled_from("ab. \n!?。…\"'"), st.characters()), max_size=200)
SECTIONS = st.lists(st.builds(DocumentSection, ANY_TEXT, st.lists(ANY_TEXT, max_size=5).map(tuple)), max_size=4)
BOUNDS = st.integers(min_value=1, max_value=80)


def squeeze(text: str) -> str:
    return "".join(text.split())


@given(SECTIONS, BOUNDS)
def test_passages_in_order_hold_all_that_is_not_blank(sections: list[DocumentSection], max_chars: int) -> None:
    passages = split_passages(sections, max_chars=max_chars)
    whole = "".join(block for section in sections for block in section.blocks)
    assert squeeze("".join(one.text for one in passages)) == squeeze(whole)
    assert [one.number for one in passages] == list(range(1, len(passages) + 1))


@given(SECTIONS, BOUNDS, ANY_TEXT)
def test_no_passage_is_too_long_or_blank(sections: list[DocumentSection], max_chars: int, title: str) -> None:
    for one in split_passages(sections, title, max_chars):
        assert 0 < len(one.text) <= max_chars
        assert one.text == one.text.strip()
        assert len(one.title) <= MAX_TITLE_CHARS


@given(st.lists(st.text(alphabet="ab.", min_size=1, max_size=10), min_size=1), st.integers(min_value=10, max_value=80))
def test_words_that_fit_are_never_cut(words: list[str], max_chars: int) -> None:
    passages = split_passages([DocumentSection("", (" ".join(words),))], max_chars=max_chars)
    assert [word for one in passages for word in one.text.split()] == words


@given(ANY_TEXT)
def test_the_paragraphs_of_a_text_hold_all_of_it(text: str) -> None:
    assert squeeze("".join(split_blocks(text))) == squeeze(text)


def test_a_passage_never_reaches_over_a_heading() -> None:
    sections = [DocumentSection("Install", ("Unpack it.",)), DocumentSection("Upgrade", ("Stop it.", "Copy it."))]
    assert split_passages(sections, "Guide") == [
        Passage(1, "Guide › Install", "Unpack it."),
        Passage(2, "Guide › Upgrade", "Stop it.\n\nCopy it."),
    ]


def test_blocks_stay_whole_where_they_fit() -> None:
    code = "def a():\n    pass\n\n\ndef b():\n    pass"
    assert [one.text for one in split_passages([DocumentSection("", ("A few words.", code))], max_chars=45)] == [
        "A few words.",
        code,
    ]


@pytest.mark.parametrize(
    ("block", "pieces"),
    [
        ("first line\nsecond line", ["first line", "second line"]),
        ("It stops. It goes on.", ["It stops.", "It goes on."]),
        ('He said "no!" Then left.', ['He said "no!"', "Then left."]),
        ("one two three four", ["one two three", "four"]),
        ("x" * 30, ["x" * 14, "x" * 14, "xx"]),
    ],
)
def test_a_block_is_cut_at_the_coarsest_end_that_helps(block: str, pieces: list[str]) -> None:
    assert [one.text.strip() for one in split_passages([DocumentSection("", (block,))], max_chars=14)] == pieces


def test_a_title_names_the_document_and_the_heading_once() -> None:
    assert join_title("Guide", "Guide") == "Guide"
    assert join_title("", " Set  up ") == "Set up"
    assert join_title("", "") == ""
