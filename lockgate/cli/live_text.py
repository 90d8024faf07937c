# SPDX-License-Identifier: Apache-2.0
"""LiveText: text on a terminal that grows, with a tail behind it that is drawn anew whenever it changes.

Decides where lines break, so that it always knows on which row the cursor stands: rows are one column narrower than the
terminal, and words stay whole where they fit. Only the row that is not full and the rows of the tail are ever drawn
again. Refuses to know what the text means, and trusts that it holds nothing that commands a terminal.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple
from unicodedata import category, east_asian_width

OFF = "\033[0m"
_ERASE_BELOW = "\r\033[J"
_MORE = "…"
_NARROWEST = 2  # columns: a wide character takes that much
_TAB = "    "
_WITHOUT_WIDTH = ("Mn", "Me")


class Run(NamedTuple):
    """Characters that look alike; `style` is what switches the terminal to it, or nothing."""

    text: str
    style: str = ""


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    rows: int


_NOTHING = Run("")
Cell = tuple[str, str]  # one character and its style
Row = list[Cell]


class LiveText:
    """The text so far is settled; what comes behind it may still change or go."""

    def __init__(self, write: Callable[[str], object], measure: Callable[[], Size]) -> None:
        self._write = write
        self._measure = measure
        self._unfinished: list[Run] = []  # what is settled in the row that is not full
        self._drawn: list[int] = []  # columns of each row from that one on, as they stand on the screen

    def show(self, settled: Iterable[Run] = (), tail: Run = _NOTHING) -> None:
        """More text that is settled, and the whole tail as it is now."""
        size = self._measure()
        width = max(size.columns - 1, _NARROWEST)
        whole = [*self._unfinished, *settled]
        own = lay_out(whole, width)
        rows = lay_out([*whole, _shorten(tail, size.columns * size.rows)], width)
        last = len(own) - 1
        rows = _clip(rows, last + max(size.rows - 1, 1), tail.style, width)
        self._write(self._erase(size.columns) + "\n".join([_paint(row, width) for row in rows]))
        self._unfinished = [Run(character, style) for character, style in own[last]]
        self._drawn = [_count_columns(row, width) for row in rows[last:]]

    def end(self) -> None:
        """The tail goes; the next line begins below the text."""
        self.show()
        if self._unfinished:
            self._write("\n")
        self._unfinished, self._drawn = [], []

    def _erase(self, columns: int) -> str:
        """What removes the rows that may change; after a change of width, as many as they take then."""
        if not self._drawn:
            return ""
        above = sum([max(-(-width // columns), 1) for width in self._drawn]) - 1
        return (f"\033[{above}A" if above > 0 else "") + _ERASE_BELOW


def lay_out(runs: Iterable[Run], width: int) -> list[Row]:
    """The rows of a text. More text behind it changes none but the last of them.

    A row breaks behind spaces and beside wide characters, which scripts without spaces have, else where it is full.
    Spaces hang over the edge.
    """
    rows: list[Row] = [[]]
    columns = place = 0  # of the last row: how wide it is, and where it may be broken
    for character, style in _list_cells(runs):
        row, taken = rows[-1], count_columns(character)
        if character == "\n":
            rows.append([])
            columns = place = 0
            continue
        if taken == 2:
            place = len(row)
        if character != " " and taken and columns + taken > width and row:
            rows.append(row[place:] if place else [])
            del row[place or len(row) :]
            row, place = rows[-1], 0
            columns = sum([count_columns(one) for one, _ in row])
        is_apart = character == " " or taken == 2 or (not taken and place == len(row))
        row.append((character, style))
        columns += taken
        if is_apart:
            place = len(row)
    return rows


def break_lines(run: Run, columns: int) -> list[str]:
    """The lines of a text for a terminal of so many columns, as they are written."""
    width = max(columns - 1, _NARROWEST)
    return [_paint(row, width) for row in lay_out([run], width)]


def count_columns(character: str) -> int:
    """How many columns a character takes."""
    if character.isascii():
        return 1
    if category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _list_cells(runs: Iterable[Run]) -> Iterable[Cell]:
    for text, style in runs:
        for character in text.replace("\t", _TAB):
            yield character, style


def _shorten(tail: Run, length: int) -> Run:
    """As much of the tail as can be on a screen at all."""
    return tail if len(tail.text) <= length else Run(tail.text[:length] + _MORE, tail.style)


def _clip(rows: list[Row], count: int, style: str, width: int) -> list[Row]:
    """At most so many rows, for none that has left the screen can be drawn again; it shows that there is more."""
    if len(rows) <= count:
        return rows
    last = list(rows[count - 1])
    while _sum_columns(last) >= width:
        last.pop()
    return [*rows[: count - 1], [*last, (_MORE, style)]]


def _paint(row: Sequence[Cell], width: int) -> str:
    parts = []
    for style, cells in groupby(_cut(row, width), key=lambda cell: cell[1]):
        text = "".join([character for character, _ in cells])
        parts.append(f"{style}{text}{OFF}" if style else text)
    return "".join(parts)


def _cut(row: Sequence[Cell], width: int) -> Row:
    """The row without the spaces that hang over the edge."""
    end = len(row)
    while end and row[end - 1][0] == " " and _sum_columns(row[:end]) > width:
        end -= 1
    return list(row[:end])


def _count_columns(row: Sequence[Cell], width: int) -> int:
    return _sum_columns(_cut(row, width))


def _sum_columns(row: Sequence[Cell]) -> int:
    return sum([count_columns(character) for character, _ in row])
