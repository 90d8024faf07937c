# SPDX-License-Identifier: Apache-2.0
"""Shows a guarded answer. A terminal shows held text dim until it is released; other outputs do not show it."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from itertools import groupby
from typing import NamedTuple, TextIO
from unicodedata import category, east_asian_width

from lockgate.cli.text import flatten, printable

OFF = "\033[0m"
_ERASE_BELOW = "\r\033[J"
_MORE = "…"
_NARROWEST = 2  # columns, the width of a wide character
_TAB = "    "
_WITHOUT_WIDTH = ("Mn", "Me")


class StyledText(NamedTuple):
    """Characters of one style; `style` is the escape sequence that selects it, or empty."""

    text: str
    style: str = ""


class Size(NamedTuple):
    """The size of a terminal."""

    columns: int
    rows: int


_NOTHING = StyledText("")
Cell = tuple[str, str]  # one character and its style
Row = list[Cell]


class LiveText:
    """Growing text on a terminal, followed by a tail that is redrawn whenever it changes.

    Rows are one column narrower than the terminal and break between words where possible, so the cursor's row is
    always known. Only the last row of the text, if not full, and the rows of the tail are redrawn.
    """

    def __init__(self, write: Callable[[str], object], measure: Callable[[], Size]) -> None:
        self._write = write
        self._measure = measure
        self._unfinished: list[StyledText] = []  # settled text in the row that is not full
        self._drawn: list[int] = []  # the width in columns of each row on the screen from that one on

    def show(self, settled: Iterable[StyledText] = (), tail: StyledText = _NOTHING) -> None:
        """Add settled text, and show this tail in place of the former one."""
        size = self._measure()
        width = max(size.columns - 1, _NARROWEST)
        whole = [*self._unfinished, *settled]
        own = lay_out(whole, width)
        fitting = size.columns * size.rows  # the screen shows no more of the tail
        if len(tail.text) > fitting:
            tail = StyledText(tail.text[:fitting] + _MORE, tail.style)
        rows = lay_out([*whole, tail], width)
        last = len(own) - 1
        rows = _clip(rows, last + max(size.rows - 1, 1), tail.style, width)
        self._write(self._erase(size.columns) + "\n".join([_paint(row, width) for row in rows]))
        self._unfinished = [StyledText(character, style) for character, style in own[last]]
        self._drawn = [_sum_columns(_cut(row, width)) for row in rows[last:]]

    def end(self) -> None:
        """Remove the tail; the next line begins below the text."""
        self.show()
        if self._unfinished:
            self._write("\n")
        self._unfinished, self._drawn = [], []

    def _erase(self, columns: int) -> str:
        """The control sequence that erases the rows to redraw; counts them anew if the terminal's width changed."""
        if not self._drawn:
            return ""
        above = sum([max(-(-width // columns), 1) for width in self._drawn]) - 1
        return (f"\033[{above}A" if above > 0 else "") + _ERASE_BELOW


def lay_out(runs: Iterable[StyledText], width: int) -> list[Row]:
    """The rows of a text. Appending text changes only the last row.

    A row breaks after spaces and next to wide characters (of scripts without spaces), else where it is full.
    Spaces may exceed the width.
    """
    rows: list[Row] = [[]]
    columns = place = 0  # of the last row: its width, and where it may break
    cells = [(character, style) for text, style in runs for character in text.replace("\t", _TAB)]
    for character, style in cells:
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


def count_columns(character: str) -> int:
    """The width of a character in columns."""
    if character.isascii():
        return 1
    if category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _clip(rows: list[Row], count: int, style: str, width: int) -> list[Row]:
    """At most `count` rows, since rows that scrolled off cannot be redrawn; the last row ends in `…` if it cuts."""
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
    """The row without the spaces that exceed the width."""
    end = len(row)
    while end and row[end - 1][0] == " " and _sum_columns(row[:end]) > width:
        end -= 1
    return list(row[:end])


def _sum_columns(row: Sequence[Cell]) -> int:
    return sum([count_columns(character) for character, _ in row])


DIM, RED, YELLOW = "\033[2m", "\033[1;31m", "\033[33m"
_ERASE_LINE = "\r\033[K"
_USUAL = Size(80, 24)
_WIDE_COLUMNS = 40  # enough for lines with a margin


class Mark(NamedTuple):
    """A span of a piece with findings; `words` names the findings that end in it."""

    start: int
    end: int
    words: str


class Piece(NamedTuple):
    """Released text with its marks."""

    text: str
    marks: Sequence[Mark] = ()


def open_view() -> "View":
    """The view for the standard streams. Characters that the output's encoding lacks are replaced."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return TerminalView(sys.stdout) if can_paint(sys.stdout) else PlainView(sys.stdout, sys.stderr)


def can_paint(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can show colours, and NO_COLOR is not set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") not in ("", "dumb")


class PlainView:
    """Writes only released text to standard output, and everything else to standard error."""

    shows_marks = False

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._is_in_line = False

    def note(self, name: str, words: str, *, is_grave: bool = False) -> None:
        """Write a line to standard error."""
        self.close()
        print(_name(name) + flatten(words), file=self._err, flush=True)

    def say(self, piece: Piece, held: str) -> None:
        """Write the text unchanged."""
        if piece.text:
            self._out.write(printable(piece.text))
            self._out.flush()
            self._is_in_line = not piece.text.endswith("\n")

    def hold(self, held: str) -> None:
        """Held text is not shown."""

    def close(self) -> None:
        """End the last line."""
        if self._is_in_line:
            self._is_in_line = False
            self._out.write("\n")
            self._out.flush()


class TerminalView:
    """Shows everything on the terminal: released text, then held text, dim. Empty lines surround the answer."""

    shows_marks = True

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._text = LiveText(self._write, self._measure)
        self._is_answering = False
        self._is_framed = True

    def note(self, name: str, words: str, *, is_grave: bool = False) -> None:
        """Write a line below everything else; the rows of a long line are indented."""
        self.close()
        self._is_framed = False
        indent = len(_name("")) if self._measure().columns >= _WIDE_COLUMNS else 0
        width = max(self._measure().columns - indent - 1, _NARROWEST)
        rows = lay_out([StyledText(flatten(words), "" if is_grave else DIM)], width)
        lines = [_paint(row, width) for row in rows]
        self._write(f"{RED if is_grave else DIM}{_name(name)}{OFF}" + f"\n{' ' * indent}".join(lines) + "\n")

    def say(self, piece: Piece, held: str) -> None:
        """Show released text; findings in it are red and named."""
        self._show(_colour(piece), held)

    def hold(self, held: str) -> None:
        """Redraw the held text."""
        self._show((), held)

    def close(self) -> None:
        """Remove the held text."""
        if self._is_answering:
            self._is_answering = False
            self._text.end()
            self._write("\n")

    def _show(self, runs: Iterable[StyledText], held: str) -> None:
        if not self._is_answering:
            self._is_answering = True
            self._write("" if self._is_framed else "\n")
        self._text.show(runs, StyledText(printable(held), DIM))

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()

    def _measure(self) -> Size:
        try:
            found = os.get_terminal_size(self._out.fileno())
        except OSError:
            return _USUAL
        return Size(found.columns or _USUAL.columns, found.lines or _USUAL.rows)


View = PlainView | TerminalView


def _name(name: str) -> str:
    return f"{name:<9}"


def _colour(piece: Piece) -> list[StyledText]:
    text, position = printable(piece.text), 0
    runs = []
    for mark in piece.marks:
        runs += [StyledText(text[position : mark.start]), StyledText(text[mark.start : mark.end], RED)]
        runs.append(StyledText(f"[{printable(mark.words)}]" if mark.words else "", YELLOW))
        position = mark.end
    return [*runs, StyledText(text[position:])]


class Waiting:
    """Shows words on standard error during slow work, if it is a terminal; `end` removes them."""

    def __init__(self, words: str) -> None:
        self._is_shown = sys.stderr.isatty()
        self._goes = can_paint(sys.stderr)
        if self._is_shown:
            print(words, end="" if self._goes else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the words; a second call does nothing."""
        if self._is_shown and self._goes:
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
        self._is_shown = False
