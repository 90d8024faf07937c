# SPDX-License-Identifier: Apache-2.0
"""CitationScanner: marks such as `[owner/dataset]` and `[owner/a, owner/b]` in an answer, however it is cut.

A mark is what stands between `[` and the next `]` on the same line, at most 512 characters and without another `[`: of
nested brackets the innermost pair counts. Its items are parted by commas; white space around them does not count. An
item is a citation

- if it is a known path, as it is or as the prompt writes it: escaped, on one line;
- or if it has the form `x/y`: two parts without white space, slash, bracket or comma;
- or if its mark has one of these, and it has no white space and no `://`.

This takes `[1/2]`, `[and/or]` and `rows[i/2]` for citations, since owners and datasets may be called anything, and no
address such as `[https://x/y]`. A known path may have spaces; one with a comma is recognised where it stands alone in
its mark, one with a bracket never.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from lockgate.gate.prompt import escape, flatten_name

MAX_MARK_CHARS = 512
_MARK = re.compile(rf"\[([^\[\]\r\n]{{1,{MAX_MARK_CHARS}}}+)\]")
_NO_MARK = re.compile(r"[\]\r\n]")
_PATH = re.compile(r"[^\s/]+/[^\s/]+")  # inside a mark there is no bracket, inside an item no comma
_WHITE = re.compile(r"\s")


class Citation(NamedTuple):
    """One source named in an answer: `path` is the text from `start` to `end`, in code points."""

    path: str
    start: int
    end: int
    is_known: bool


class Sources:
    """The paths that may be cited, in every form in which an answer may write them."""

    __slots__ = ("_forms",)

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._forms = frozenset(form.strip() for path in paths for form in _forms_of(path))

    def find(self, text: str, offset: int = 0) -> list[Citation]:
        """The citations in a text whose first character is number `offset` of the answer."""
        return [found for mark in _MARK.finditer(text) for found in self._read_mark(mark[1], offset + mark.start() + 1)]

    def _read_mark(self, mark: str, start: int) -> list[Citation]:
        items = list(self._items(mark, start))
        if not [item for item in items if item.is_known or _PATH.fullmatch(item.path)]:
            return []
        return [item for item in items if item.is_known or not ("://" in item.path or _WHITE.search(item.path))]

    def _items(self, mark: str, start: int) -> Iterator[Citation]:
        is_one = "," not in mark or mark.strip() in self._forms
        for raw in (mark,) if is_one else mark.split(","):
            if item := raw.strip():
                begin = start + len(raw) - len(raw.lstrip())
                yield Citation(item, begin, begin + len(item), item in self._forms)
            start += len(raw) + 1


class CitationScanner:
    """Finds the citations of one answer as it comes. Any cut of the text gives the same; memory is bounded."""

    __slots__ = ("_is_finished", "_open", "_read", "_sources")

    def __init__(self, known: Collection[str]) -> None:
        self._sources = Sources(known)
        self._read = 0
        self._open = ""  # a copy of the text from a bracket on that may still be closed
        self._is_finished = False

    def feed(self, text: str) -> list[Citation]:
        """The citations whose mark ends in this text."""
        if self._is_finished:
            raise RuntimeError("text was fed to a citation scanner that is finished")
        start = self._read
        self._read += len(text)
        if not self._open and "[" not in text:
            return []
        start -= len(self._open)
        text = self._open + text
        last = text.rfind("[")
        is_open = len(text) - last <= MAX_MARK_CHARS + 1 and not _NO_MARK.search(text, last)
        self._open = text[last:] if is_open else ""
        return self._sources.find(text, start)

    def finish(self) -> list[Citation]:
        """No text follows. A mark that is still open is none."""
        self._is_finished = True
        self._open = ""
        return []


def _forms_of(path: str) -> tuple[str, ...]:
    flat = flatten_name(path)
    return path, flat, escape(path), escape(flat)
