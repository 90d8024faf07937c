# SPDX-License-Identifier: Apache-2.0
"""Text that is settled stays where it stands, at every width; the tail behind it can change, and goes in the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.cli.answer_view import LiveText, Size, StyledText, count_columns, lay_out
from tests.cli.screen import Screen

DIM = "\033[2m"
TEXTS = st.text(alphabet="ab  .\n漢字😀é\tzZ-", max_size=60)
WORDS = st.lists(st.text(alphabet="abc", min_size=1, max_size=9), max_size=12).map(" ".join)


def solid(text: str) -> str:
    """The text without what a line end may take away."""
    return "".join(text.split())


def columns_of(row: list[tuple[str, str]]) -> int:
    text = "".join(character for character, _ in row).rstrip(" ")
    return sum(count_columns(character) for character in text)


@given(text=TEXTS, width=st.integers(2, 30))
def test_rows_hold_all_of_the_text_and_fit(text: str, width: int) -> None:
    rows = lay_out([StyledText(text)], width)
    assert solid("".join(character for row in rows for character, _ in row)) == solid(text)
    assert all(columns_of(row) <= width for row in rows)


@given(text=TEXTS, more=TEXTS, width=st.integers(2, 30))
def test_more_text_changes_no_row_but_the_last(text: str, more: str, width: int) -> None:
    before, after = lay_out([StyledText(text)], width), lay_out([StyledText(text), StyledText(more)], width)
    assert after[: len(before) - 1] == before[:-1]


@given(text=WORDS, width=st.integers(9, 40))
def test_words_stay_whole_where_they_fit(text: str, width: int) -> None:
    rows = ["".join(character for character, _ in row) for row in lay_out([StyledText(text)], width)]
    assert [word for row in rows for word in row.split()] == text.split()


def test_a_mark_stays_with_its_character() -> None:
    rows = lay_out([StyledText("漢\u0301" * 3)], 2)
    assert ["".join(character for character, _ in row) for row in rows] == ["漢\u0301"] * 3


@given(
    steps=st.lists(st.tuples(TEXTS, TEXTS), max_size=8),
    columns=st.integers(2, 30),
    rows=st.integers(2, 12),
)
def test_the_screen_shows_what_is_settled_and_as_much_of_the_tail_as_there_is_room_for(
    steps: list[tuple[str, str]], columns: int, rows: int
) -> None:
    screen = Screen(columns, rows)
    live = LiveText(screen.feed, lambda: Size(columns, rows))
    settled = ""
    for more, tail in steps:
        settled += more
        live.show([StyledText(more)], StyledText(tail, DIM))
        shown, dim = solid(screen.text()), solid(screen.styled("2"))
        whole = solid(settled + tail)
        assert shown == whole or (shown.endswith("…") and whole.startswith(shown[:-1]))
        assert solid(tail) == dim or (dim.endswith("…") and solid(tail).startswith(dim[:-1]))
    live.end()
    assert solid(screen.text()) == solid(settled)
    assert screen.styled("2") == ""
    assert (screen.column, screen.is_full) == (0, False), "the next line can begin"


def test_only_the_rows_of_the_tail_are_drawn_again() -> None:
    written: list[str] = []
    live = LiveText(written.append, lambda: Size(11, 20))
    live.show([StyledText("one two three four five six ")], StyledText("seven eight nine", DIM))
    live.show([StyledText("seven ")], StyledText("eight nine", DIM))
    assert "one" not in written[1]
    assert written[1].startswith("\033[2A\r\033[J")


@pytest.mark.parametrize("columns", [60, 12, 7])
def test_a_change_of_width_leaves_nothing_of_the_tail(columns: int) -> None:
    """As on a terminal that breaks long lines anew; what is settled in that moment may be broken elsewhere."""
    size = Size(30, 20)
    written: list[str] = []
    live = LiveText(written.append, lambda: size)
    live.show([StyledText("Settled. ")], StyledText("held held held held held held held", DIM))
    size = Size(columns, 20)
    live.end()
    rows = Screen(columns, 20).feed("Settled. held held held held \nheld held held").lines
    assert written[1].startswith(f"\033[{len(rows) - 1}A\r\033[J")


def test_styles_are_switched_off_at_the_end_of_each_row() -> None:
    written: list[str] = []
    live = LiveText(written.append, lambda: Size(6, 9))
    live.show([StyledText("ab cd ef", DIM)])
    assert written == [f"{DIM}ab cd\033[0m\n{DIM}ef\033[0m"]
