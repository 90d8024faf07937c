# SPDX-License-Identifier: Apache-2.0
"""How a guarded answer looks: on a terminal that can, held text is dim until it is released; elsewhere it is not shown.

Decides what goes to which stream, and that nothing of it commands a terminal. Refuses to know events and requests.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from typing import NamedTuple, Protocol, TextIO

from lockgate.cli.live_text import OFF, LiveText, Run, Size, break_lines
from lockgate.cli.terminal import printable

DIM, RED, YELLOW = "\033[2m", "\033[1;31m", "\033[33m"
_ERASE_LINE = "\r\033[K"
_USUAL = Size(80, 24)
_WIDE_COLUMNS = 40  # enough for lines with a margin


class Mark(NamedTuple):
    """Characters of a piece in which something was found, and what; a finding that goes on is not named yet."""

    start: int
    end: int
    words: str


class Piece(NamedTuple):
    """Text as the client gets it."""

    text: str
    marks: Sequence[Mark] = ()


class View(Protocol):
    """Shows an answer to somebody."""

    shows_marks: bool

    def note(self, name: str, words: str, *, is_grave: bool = False) -> None:
        """A line about the answer, under a name; a grave one should be seen."""

    def say(self, piece: Piece, held: str) -> None:
        """A piece of the answer was released; `held` is what waits now."""

    def hold(self, held: str) -> None:
        """What waits now."""

    def close(self) -> None:
        """The answer is complete, or comes to nothing more: what is held is not shown any longer."""


def open_view() -> View:
    """The view for the standard streams as they are; what their encoding does not know is replaced."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return TerminalView(sys.stdout) if can_paint(sys.stdout) else PlainView(sys.stdout, sys.stderr)


def can_paint(stream: TextIO) -> bool:
    """Whether somebody looks at it who wants colours, on something that knows how to draw."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") not in ("", "dumb")


class PlainView:
    """Released text on standard output and nothing else there; everything about it on standard error."""

    shows_marks = False

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._is_in_line = False

    def note(self, name: str, words: str, *, is_grave: bool = False) -> None:
        """A line on standard error."""
        self.close()
        print(_name(name) + flatten(words), file=self._err, flush=True)

    def say(self, piece: Piece, held: str) -> None:
        """The text as it is."""
        if piece.text:
            self._out.write(printable(piece.text))
            self._out.flush()
            self._is_in_line = not piece.text.endswith("\n")

    def hold(self, held: str) -> None:
        """Nobody sees it."""

    def close(self) -> None:
        """The last line ends."""
        if self._is_in_line:
            self._is_in_line = False
            self._out.write("\n")
            self._out.flush()


class TerminalView:
    """Everything on the terminal: text in colours, and behind it, dim, what is held. Empty lines frame the answer."""

    shows_marks = True

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._text = LiveText(self._write, self._measure)
        self._is_answering = False
        self._is_framed = True

    def note(self, name: str, words: str, *, is_grave: bool = False) -> None:
        """A line below everything else; where it has to be broken, its rows stand under each other."""
        self.close()
        self._is_framed = False
        indent = len(_name("")) if self._measure().columns >= _WIDE_COLUMNS else 0
        run = Run(flatten(words), "" if is_grave else DIM)
        rows = break_lines(run, self._measure().columns - indent)
        self._write(f"{RED if is_grave else DIM}{_name(name)}{OFF}" + f"\n{' ' * indent}".join(rows) + "\n")

    def say(self, piece: Piece, held: str) -> None:
        """Released text is solid, what was found in it is red and named."""
        self._show(_colour(piece), held)

    def hold(self, held: str) -> None:
        """The tail is drawn anew."""
        self._show((), held)

    def close(self) -> None:
        """The tail goes."""
        if self._is_answering:
            self._is_answering = False
            self._text.end()
            self._write("\n")

    def _show(self, runs: Iterable[Run], held: str) -> None:
        if not self._is_answering:
            self._is_answering = True
            self._write("" if self._is_framed else "\n")
        self._text.show(runs, Run(printable(held), DIM))

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


def _name(name: str) -> str:
    return f"{name:<9}"


def flatten(words: str) -> str:
    """The words in one line, without what could command a terminal."""
    return printable(" ".join(words.split()))


def _colour(piece: Piece) -> list[Run]:
    text, position = printable(piece.text), 0
    runs = []
    for mark in piece.marks:
        runs += [Run(text[position : mark.start]), Run(text[mark.start : mark.end], RED)]
        runs.append(Run(f"[{printable(mark.words)}]" if mark.words else "", YELLOW))
        position = mark.end
    return [*runs, Run(text[position:])]


class Waiting:
    """Words on standard error while something takes its time, if somebody looks there; they go when it is over."""

    def __init__(self, words: str) -> None:
        self._is_shown = sys.stderr.isatty()
        self._goes = can_paint(sys.stderr)
        if self._is_shown:
            print(words, end="" if self._goes else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """It is over; to say so once more does no harm."""
        if self._is_shown and self._goes:
            print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
        self._is_shown = False
