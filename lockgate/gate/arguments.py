# SPDX-License-Identifier: Apache-2.0
"""ArgumentsReader: the arguments of a tool call, read as plain text and masked without breaking their JSON.

A model streams arguments as JSON text in pieces of any size. Detectors read it with the escapes in its strings decoded,
so that an escape hides nothing; `feed` gives that plain text, and every offset here counts its code points. `release`
gives the raw text back, without a character of what a mask covers. What is what:

structure  `{}[]:,`, the quotes of strings, JSON's four kinds of white space: never masked, even inside a mask.
text       leaves as it came; a masked run inside a string is replaced by the mask's text, escaped.
escape     one code point for an escape or a surrogate pair, U+FFFD for half a pair; its raw characters leave together.
           One that JSON does not know stands for itself; if a mask takes part of it, its rest leaves properly escaped.
atom       any other run outside strings, be it a number, a literal or garbage. If a mask touches it, all of it becomes
           one JSON string with only the mask's text; so it waits until its end is known and released.

A mask's text goes character by character where it is as long as what it covers (what falls on structure is left out),
else once, at the first character that it replaces; further strings that it covers only lose characters, and further
atoms become empty strings.

Any text may come, valid JSON or not, and without masks it leaves as it came.
"""

import json
import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from lockgate.gate.verdicts import Mask

_STRUCTURE, _TEXT, _ESCAPE, _ATOM = range(4)
_Run = tuple[int, str, str]  # kind, plain text, raw text; the last two differ only in a valid escape

_MARK = re.compile(r'["\\]')
_NO_STRUCTURE = re.compile(r"[^ \t\n\r{}\[\]:,]")
_ATOM_END = re.compile(r'[ \t\n\r{}\[\]:,"]')
_HEX, _HIGH, _LOW = "[0-9a-fA-F]", "[dD][89abAB]", "[dD][c-fC-F]"  # how the halves of a surrogate pair begin
_VALID = re.compile(rf'\\(?:(["\\/bfnrt])|u({_HIGH}{_HEX}{{2}})\\u({_LOW}{_HEX}{{2}})|u({_HEX}{{4}}))')
_BEGUN = re.compile(rf"\\(?:u(?:{_HEX}{{0,3}}|{_HIGH}{_HEX}{{2}}(?:\\(?:u(?:[dD]|{_LOW}{_HEX}?)?)?)?))?")  # may grow
_BROKEN = re.compile(rf"\\(?:u{_HEX}{{0,3}}|.)?", re.DOTALL)
_MEANING = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class ArgumentsReader:
    """Raw JSON in, plain text out; then raw JSON out as far as it is released, masked."""

    __slots__ = (
        "_at", "_atom", "_atom_size", "_covers", "_given", "_into", "_is_closed", "_is_masked", "_queued", "_runs",
        "_scanner", "_upto",
    )  # fmt: skip

    def __init__(self) -> None:
        self._scanner = _JsonScanner()
        self._covers = _Covers()
        self._runs: deque[_Run] = deque()
        self._queued = 0  # raw characters that wait in the runs
        self._into = 0  # how much of the first run has been taken
        self._given = 0  # plain characters that detectors were given
        self._upto = 0  # plain characters that are released
        self._at = 0  # plain characters that were taken from the runs
        self._atom: list[str] = []  # an atom that waits for its end: its characters, or the texts of its masks
        self._atom_size = 0
        self._is_masked = False  # whether that atom is
        self._is_closed = False

    @property
    def held(self) -> int:
        """Characters kept here: raw ones that have not left, and texts of masks that wait for the end of an atom."""
        return self._queued + len(self._scanner.begun) + self._atom_size

    def feed(self, raw: str) -> str:
        """The plain text that these raw characters make certain; an escape that is not complete waits."""
        scanner = self._scanner
        if scanner.is_finished or self._is_closed:
            raise RuntimeError("the arguments have ended")
        if scanner.is_in_string and not scanner.begun and '"' not in raw and "\\" not in raw:  # nearly always
            if raw:
                self._runs.append((_TEXT, raw, raw))
                self._queued += len(raw)
                self._given += len(raw)
            return raw
        return self._take(raw)

    def finish(self) -> str:
        """The end of the raw text: what was left, an escape that is not complete as it stands."""
        self._scanner.is_finished = True
        return self._take("")

    def release(self, upto: int, masks: Sequence[Mask] = (), is_final: bool = False) -> str:
        """The raw JSON that may leave when the plain text up to `upto` may, with these masks.

        A mask comes once, with the release in which it begins, and may reach beyond it. Or it comes cut at the end of
        each release, each part with the text for it, which is empty where the text goes once and has been given.
        With the final release an atom need not wait; what lies beyond `upto` is forgotten.
        """
        if self._is_closed or not self._upto <= upto <= self._given:
            raise RuntimeError(f"cannot release up to {upto}: {self._upto} of {self._given} are released")
        self._covers.add(masks, self._upto)
        self._upto = upto
        left: list[str] = []
        runs = self._runs
        while runs and self._at < upto:
            kind, plain, raw = runs[0]
            first, size = self._into, len(plain)
            last = min(size, first + upto - self._at)
            if kind == _ESCAPE and last < size and not is_final:
                break
            if kind == _ATOM:
                self._keep_atom(raw, last)
            else:
                if self._atom:
                    self._close_atom(left)
                left.append(self._render(kind, plain, raw, last))
            self._at += last - first
            self._into = last if last < size else 0
            self._queued -= (last if last < size else len(raw)) - first
            if last == size:
                runs.popleft()
        if is_final:
            self._is_closed, self._scanner.begun = True, ""
            self._queued = self._into = 0
            self._runs.clear()
        if is_final or (self._runs[0][0] != _ATOM if self._runs else self._scanner.is_finished):
            self._close_atom(left)
        return "".join(left)

    def _take(self, raw: str) -> str:
        self._queued += len(self._scanner.begun) + len(raw)
        found = self._scanner.scan(raw)
        self._queued -= len(self._scanner.begun)
        self._runs.extend(found)
        plain = "".join([run[1] for run in found])
        self._given += len(plain)
        return plain

    def _render(self, kind: int, plain: str, raw: str, last: int) -> str:
        """What leaves for a run, from where it was taken to its plain character `last`."""
        first, start = self._into, self._at
        if kind == _STRUCTURE or not self._covers.touch(start, start + last - first):
            return raw if last == len(plain) and not first else raw[first:last]
        parts = []
        for low, high, text in self._covers.split(start, start + last - first):
            clear = plain[low + first - start : high + first - start]
            parts.append(_escape(text) if text is not None else clear if kind == _TEXT else _escape(clear))
        return "".join(parts)

    def _keep_atom(self, raw: str, last: int) -> None:
        """A further part of an atom is released: of one that is masked only the masks' texts are kept."""
        pieces = self._covers.split(self._at, self._at + last - self._into)
        texts = [text for _, _, text in pieces if text is not None]
        if texts and not self._is_masked:
            self._atom, self._atom_size, self._is_masked = [], 0, True
        part = "".join(texts) if self._is_masked else raw[self._into : last]
        if part or not self._atom:
            self._atom.append(part)
            self._atom_size += len(part)

    def _close_atom(self, left: list[str]) -> None:
        """The atom leaves, if one waits."""
        if self._atom:
            text = "".join(self._atom)
            left.append(f'"{_escape(text)}"' if self._is_masked else text)
            self._atom, self._atom_size, self._is_masked = [], 0, False


class ArgumentsDecoder:
    """Decodes raw JSON to plain text for reading only; keeps nothing but an incomplete escape."""

    __slots__ = ("_scanner",)

    def __init__(self) -> None:
        self._scanner = _JsonScanner()

    def feed(self, raw: str) -> str:
        """The plain text that these raw characters make certain."""
        return "".join([plain for _, plain, _ in self._scanner.scan(raw)])


class _JsonScanner:
    """Tells strings, structure and atoms apart, and decodes escapes, for any cut of the text."""

    __slots__ = ("begun", "is_finished", "is_in_string")

    def __init__(self) -> None:
        self.is_in_string = False
        self.is_finished = False
        self.begun = ""  # an escape that is not complete

    def scan(self, raw: str) -> list[_Run]:
        """The runs that became certain."""
        raw, self.begun = self.begun + raw, ""
        found: list[_Run] = []
        at, end = 0, len(raw)
        while at < end:
            at = self._take_string(raw, at, found) if self.is_in_string else self._take_outside(raw, at, at, found)
        return found

    def _take_string(self, raw: str, at: int, found: list[_Run]) -> int:
        mark = _MARK.search(raw, at)
        stop = mark.start() if mark else len(raw)
        if stop > at:
            found.append((_TEXT, raw[at:stop], raw[at:stop]))
        if mark is None or mark[0] == "\\":
            return self._take_escape(raw, stop, found) if mark else stop
        self.is_in_string = False
        return self._take_outside(raw, stop, stop + 1, found)

    def _take_outside(self, raw: str, at: int, begin: int, found: list[_Run]) -> int:
        """Take structure, or an atom where none stands; before `begin` stands the quote of a string that ended."""
        other = _NO_STRUCTURE.search(raw, begin)
        stop = other.start() if other else len(raw)
        if other and raw[stop] == '"':
            self.is_in_string = True
            stop += 1
        kind = _STRUCTURE
        if stop == at:
            kind, after = _ATOM, _ATOM_END.search(raw, at)
            stop = after.start() if after else len(raw)
        text = raw[at:stop]
        found.append((kind, text, text))
        return stop

    def _take_escape(self, raw: str, at: int, found: list[_Run]) -> int:
        if not self.is_finished and _BEGUN.fullmatch(raw, at):
            self.begun = raw[at:]
            return len(raw)
        escape = _VALID.match(raw, at) or _BROKEN.match(raw, at)
        assert escape is not None
        found.append((_ESCAPE, _decode(escape) if escape.re is _VALID else escape[0], escape[0]))
        return escape.end()


def _decode(escape: re.Match[str]) -> str:
    """The code point of a valid escape."""
    letter, high, low, alone = escape.groups()
    if letter:
        return _MEANING[letter]
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    code = int(alone, 16)
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code < 0xE000 else chr(code)


class _Cover(NamedTuple):
    """A mask that may still cover something; `is_each`: its text goes character by character."""

    start: int
    end: int
    text: str
    is_each: bool


class _Covers:
    """The masks that were given, used from left to right."""

    __slots__ = ("_covers", "_is_told")

    def __init__(self) -> None:
        self._covers: deque[_Cover] = deque()
        self._is_told = False  # the text of the first one has gone

    def add(self, masks: Sequence[Mask], since: int) -> None:
        """Keep these; none begins before `since`. One without text that follows the last directly is its rest."""
        covers = self._covers
        for start, end, text in masks:
            last = covers[-1] if covers else None
            if start < since or end < start or (last and start < last.end):
                raise RuntimeError(f"a mask from {start} to {end} is out of order or comes too late")
            if last and start == last.end and not text:
                covers[-1] = last._replace(end=end)
            elif start < end:
                covers.append(_Cover(start, end, text, len(text) == end - start))

    def touch(self, start: int, end: int) -> bool:
        """Whether something from `start` to `end` is covered. The last one stays: its rest may come."""
        covers = self._covers
        while len(covers) > 1 and covers[0].end <= start:
            covers.popleft()
            self._is_told = False
        return bool(covers) and covers[0].start < end and start < covers[0].end

    def split(self, start: int, end: int) -> list[tuple[int, int, str | None]]:
        """The pieces from `start` to `end`, each with the text that replaces it, or none where nothing covers it."""
        pieces: list[tuple[int, int, str | None]] = []
        while start < end and self.touch(start, end):
            cover = self._covers[0]
            if cover.start > start:
                pieces.append((start, cover.start, None))
                start = cover.start
            stop = min(end, cover.end)
            pieces.append((start, stop, self._tell(cover, start, stop)))
            start = stop
        if start < end:
            pieces.append((start, end, None))
        return pieces

    def _tell(self, cover: _Cover, start: int, end: int) -> str:
        if cover.is_each:
            return cover.text[start - cover.start : end - cover.start]
        told, self._is_told = self._is_told, True
        return "" if told else cover.text


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
