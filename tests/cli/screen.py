# SPDX-License-Identifier: Apache-2.0
"""A terminal small enough to read: what stands on its screen after bytes were written, and how it looks.

Knows text, line ends, moving up, erasing below and to the right, and styles; anything else is a mistake.
"""

import re
from unicodedata import east_asian_width

SEQUENCE = re.compile(r"\x1b\[(\d*(?:;\d+)*)([A-Za-z])|.", re.DOTALL)
EMPTY = (" ", "")


class Screen:
    """Lines that have left at the top are kept in `gone`: nothing can change them any more."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.gone: list[list[tuple[str, str]]] = []
        self.lines: list[list[tuple[str, str]]] = [[]]
        self.row = self.column = 0
        self.is_full = False  # the last column is taken, and the next character goes to the next line
        self.style = ""

    def feed(self, text: str) -> "Screen":
        """What a program wrote; the terminal's driver has made CR LF of line ends, or does it here."""
        for found in SEQUENCE.finditer(text.replace("\r\n", "\n")):
            if found[2]:
                self._obey(found[1], found[2])
            else:
                self._put(found[0])
        return self

    def text(self) -> str:
        """All lines, also those that have left, without spaces at their ends."""
        return "\n".join("".join(char for char, _ in line).rstrip() for line in [*self.gone, *self.lines]).rstrip("\n")

    def styled(self, style: str) -> str:
        """All characters of a style, in order."""
        return "".join(char for line in [*self.gone, *self.lines] for char, own in line if own == style)

    def _put(self, character: str) -> None:
        if character == "\n":
            self._feed_line()
            self.column = 0
        elif character == "\r":
            self.column, self.is_full = 0, False
        else:
            assert character.isprintable(), repr(character)
            self._write(character)

    def _write(self, character: str) -> None:
        taken = 2 if east_asian_width(character) in "WF" else 1
        if self.is_full or self.column + taken > self.columns:
            self._feed_line()
            self.column = 0
        line = self.lines[self.row]
        line += [EMPTY] * (self.column + taken - len(line))
        line[self.column : self.column + taken] = [(character, self.style), ("", self.style)][:taken]
        self.column += taken
        if self.column >= self.columns:
            self.column, self.is_full = self.columns - 1, True

    def _feed_line(self) -> None:
        self.is_full = False
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])
        if len(self.lines) > self.rows:
            self.gone.append(self.lines.pop(0))
            self.row -= 1

    def _obey(self, number: str, command: str) -> None:
        match command:
            case "A":
                self.row = max(self.row - int(number or 1), 0)
            case "J":
                assert number in ("", "0")
                del self.lines[self.row + 1 :]
                del self.lines[self.row][self.column :]
            case "K":
                assert number in ("", "0")
                del self.lines[self.row][self.column :]
            case "m":
                self.style = "" if number in ("", "0") else number
            case _:
                raise AssertionError(f"unknown command: {number}{command}")
