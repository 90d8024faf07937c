# SPDX-License-Identifier: Apache-2.0
"""ArgumentsReader: decodes the arguments of a tool call for detectors, and masks them without breaking the JSON.

A model streams arguments as JSON text in pieces of any size. `feed` decodes the escapes in strings and returns plain
text for the detectors, so an escape cannot hide text; every offset here counts code points of this plain text.
`release` returns the raw JSON without the characters that a mask covers. The text consists of four kinds of runs:

structure  `{}[]:,`, the quotes of strings and JSON's four white space characters. Never masked, even inside a mask.
text       Leaves unchanged; a masked run inside a string is replaced by the mask's text, escaped.
escape     One code point for an escape or a surrogate pair, U+FFFD for half a pair; its raw characters leave together.
           An escape that JSON does not define counts as plain text; if a mask covers a part, the rest is escaped.
atom       Any other run outside strings: a number, a literal, invalid text. If a mask touches it, all of it becomes one
           JSON string with only the mask's text; so an atom waits until its end is known and released.

A mask's text with the same length as the covered text replaces it character by character (characters on structure are
dropped). Any other mask text is written once, at the first character that it replaces; other strings under this mask
only lose characters, and other atoms become empty strings. A number under a made-up name becomes a made-up number.

The input may be invalid JSON; without masks it leaves unchanged.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lockgate.gate.verdicts import Mask

_STRUCTURE, _TEXT, _ESCAPE, _ATOM = range(4)
Numbers = Callable[[str], str]  # from a mask's text to the number that stands for it; empty if there is none
_Run = tuple[int, str, str]  # kind, plain text, raw text; the last two differ only in a valid escape

_MARK = re.compile(r'["\\]')
_NO_STRUCTURE = re.compile(r"[^ \t\n\r{}\[\]:,]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MAX_NUMBER_RUNS = 64
_ATOM_END = re.compile(r'[ \t\n\r{}\[\]:,"]')
_HEX, _HIGH, _LOW = "[0-9a-fA-F]", "[dD][89abAB]", "[dD][c-fC-F]"  # a hex digit; the first two of each half of a pair
_VALID = re.compile(rf'\\(?:(["\\/bfnrt])|u({_HIGH}{_HEX}{{2}})\\u({_LOW}{_HEX}{{2}})|u({_HEX}{{4}}))')
_INCOMPLETE = re.compile(
    rf"\\(?:u(?:{_HEX}{{0,3}}|{_HIGH}{_HEX}{{2}}(?:\\(?:u(?:[dD]|{_LOW}{_HEX}?)?)?)?))?"
)  # may grow
_BROKEN = re.compile(rf"\\(?:u{_HEX}{{0,3}}|.)?", re.DOTALL)
_DECODED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class ArgumentsReader:
    """Takes raw JSON, returns plain text for detectors; then returns the released raw JSON with masks applied."""

    __slots__ = (
        "_atom",
        "_atom_size",
        "_given",
        "_is_closed",
        "_is_masked",
        "_masks",
        "_numbers",
        "_original",
        "_queued",
        "_run_offset",
        "_runs",
        "_scanner",
        "_taken",
        "_upto",
    )  # fmt: skip

    def __init__(self, numbers: Numbers | None = None) -> None:
        self._scanner = _JsonScanner()
        self._masks = _PendingMasks()
        self._numbers = numbers
        self._runs: deque[_Run] = deque()
        self._queued = 0  # raw characters that wait in the runs
        self._run_offset = 0  # characters taken from the first run
        self._given = 0  # plain characters returned by `feed` and `finish`
        self._upto = 0  # plain characters released
        self._taken = 0  # plain characters taken from the runs
        self._atom: list[str] = []  # an atom whose end is not known or released: its characters, or its masks' texts
        self._atom_size = 0
        self._original: list[str] = []  # the same without masks, if numbers may be made up
        self._is_masked = False  # a mask touches that atom
        self._is_closed = False

    @property
    def held(self) -> int:
        """The number of characters kept here: raw ones not yet returned, and mask texts that wait for an atom's end."""
        return self._queued + len(self._scanner.incomplete) + self._atom_size

    def feed(self, raw: str) -> str:
        """Returns the plain text decoded so far; an incomplete escape waits for more characters."""
        scanner = self._scanner
        if scanner.is_finished or self._is_closed:
            raise RuntimeError("the arguments have ended")
        if scanner.is_in_string and not scanner.incomplete and '"' not in raw and "\\" not in raw:  # the common case
            if raw:
                self._runs.append((_TEXT, raw, raw))
                self._queued += len(raw)
                self._given += len(raw)
            return raw
        return self._take(raw)

    def finish(self) -> str:
        """Ends the raw text and returns the rest; an incomplete escape counts as plain text."""
        self._scanner.is_finished = True
        return self._take("")

    def release(self, upto: int, masks: Sequence[Mask] = (), is_final: bool = False) -> str:
        """Returns the raw JSON for the plain text up to `upto`, with these masks applied.

        A caller passes a mask once, with the release in which it begins, even if it ends later. Or it passes one part
        per release; a part has an empty text if the mask's text is written once and an earlier part had it.
        The final release does not wait for an atom's end and drops the text beyond `upto`.
        """
        if self._is_closed or not self._upto <= upto <= self._given:
            raise RuntimeError(f"cannot release up to {upto}: {self._upto} of {self._given} are released")
        self._masks.add(masks, self._upto)
        self._upto = upto
        output: list[str] = []
        runs = self._runs
        while runs and self._taken < upto:
            kind, plain, raw = runs[0]
            first, size = self._run_offset, len(plain)
            last = min(size, first + upto - self._taken)
            if kind == _ESCAPE and last < size and not is_final:
                break
            if kind == _ATOM:
                self._keep_atom(raw, last)
            else:
                if self._atom:
                    self._close_atom(output)
                output.append(self._render(kind, plain, raw, last))
            self._taken += last - first
            self._run_offset = last if last < size else 0
            self._queued -= (last if last < size else len(raw)) - first
            if last == size:
                runs.popleft()
        if is_final:
            self._is_closed, self._scanner.incomplete = True, ""
            self._queued = self._run_offset = 0
            self._runs.clear()
        if is_final or (self._runs[0][0] != _ATOM if self._runs else self._scanner.is_finished):
            self._close_atom(output)
        return "".join(output)

    def _take(self, raw: str) -> str:
        self._queued += len(self._scanner.incomplete) + len(raw)
        found = self._scanner.scan(raw)
        self._queued -= len(self._scanner.incomplete)
        self._runs.extend(found)
        plain = "".join([run[1] for run in found])
        self._given += len(plain)
        return plain

    def _render(self, kind: int, plain: str, raw: str, last: int) -> str:
        """Returns the masked raw text of a run, from the first character not yet taken up to `last`."""
        first, start = self._run_offset, self._taken
        if kind == _STRUCTURE or not self._masks.touch(start, start + last - first):
            return raw if last == len(plain) and not first else raw[first:last]
        parts = []
        for low, high, text in self._masks.split(start, start + last - first):
            clear = plain[low + first - start : high + first - start]
            parts.append(_escape(text) if text is not None else clear if kind == _TEXT else _escape(clear))
        return "".join(parts)

    def _keep_atom(self, raw: str, last: int) -> None:
        """Adds a released part to the waiting atom; of a masked atom only the masks' texts are kept."""
        pieces = self._masks.split(self._taken, self._taken + last - self._run_offset)
        texts = [text for _, _, text in pieces if text is not None]
        if texts and not self._is_masked:
            self._atom, self._atom_size, self._is_masked = [], 0, True
        part = "".join(texts) if self._is_masked else raw[self._run_offset : last]
        if self._numbers is not None and len(self._original) < _MAX_NUMBER_RUNS:
            self._original.append(raw[self._run_offset : last])
        if part or not self._atom:
            self._atom.append(part)
            self._atom_size += len(part)

    def _close_atom(self, output: list[str]) -> None:
        """Moves the waiting atom, if any, to the output."""
        if self._atom:
            text = "".join(self._atom)
            if self._is_masked:
                is_number = self._numbers is not None and _NUMBER.fullmatch("".join(self._original))
                number = self._numbers(text) if self._numbers is not None and is_number else ""
                text = number or f'"{_escape(text)}"'
            output.append(text)
            self._atom, self._atom_size, self._is_masked, self._original = [], 0, False, []


class ArgumentsDecoder:
    """Decodes raw JSON to plain text for detectors; keeps only an incomplete escape."""

    __slots__ = ("_scanner",)

    def __init__(self) -> None:
        self._scanner = _JsonScanner()

    def feed(self, raw: str) -> str:
        """Returns the plain text decoded so far."""
        return "".join([plain for _, plain, _ in self._scanner.scan(raw)])


class _JsonScanner:
    """Splits text into strings, structure and atoms, and decodes escapes. Any cut of the text gives the same runs."""

    __slots__ = ("incomplete", "is_finished", "is_in_string")

    def __init__(self) -> None:
        self.is_in_string = False
        self.is_finished = False
        self.incomplete = ""  # the start of an escape

    def scan(self, raw: str) -> list[_Run]:
        """Returns the runs whose kind is now known."""
        raw, self.incomplete = self.incomplete + raw, ""
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
        """Takes a run of structure, else an atom. The text from `at` to `begin` is the closing quote of a string."""
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
        if not self.is_finished and _INCOMPLETE.fullmatch(raw, at):
            self.incomplete = raw[at:]
            return len(raw)
        escape = _VALID.match(raw, at) or _BROKEN.match(raw, at)
        assert escape is not None
        found.append((_ESCAPE, _decode(escape) if escape.re is _VALID else escape[0], escape[0]))
        return escape.end()


def _decode(escape: re.Match[str]) -> str:
    """Returns the code point of a valid escape."""
    letter, high, low, code_unit = escape.groups()
    if letter:
        return _DECODED[letter]
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    code = int(code_unit, 16)
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code < 0xE000 else chr(code)


class _PendingMask(NamedTuple):
    """A mask that may cover text not yet taken. `is_each`: its text replaces the covered one character by character."""

    start: int
    end: int
    text: str
    is_each: bool


class _PendingMasks:
    """The masks passed to `release`, applied from left to right."""

    __slots__ = ("_is_text_written", "_masks")

    def __init__(self) -> None:
        self._masks: deque[_PendingMask] = deque()
        self._is_text_written = False  # the text of the first mask is in the output

    def add(self, masks: Sequence[Mask], since: int) -> None:
        """Adds masks; none may begin before `since`. One without text, directly after the last, continues it."""
        pending = self._masks
        for start, end, text in masks:
            last = pending[-1] if pending else None
            if start < since or end < start or (last and start < last.end):
                raise RuntimeError(f"a mask from {start} to {end} is out of order or comes too late")
            if last and start == last.end and not text:
                pending[-1] = last._replace(end=end)
            elif start < end:
                pending.append(_PendingMask(start, end, text, len(text) == end - start))

    def touch(self, start: int, end: int) -> bool:
        """Returns whether a mask covers text from `start` to `end`; keeps the last mask, as it may continue."""
        pending = self._masks
        while len(pending) > 1 and pending[0].end <= start:
            pending.popleft()
            self._is_text_written = False
        return bool(pending) and pending[0].start < end and start < pending[0].end

    def split(self, start: int, end: int) -> list[tuple[int, int, str | None]]:
        """Returns the pieces from `start` to `end`, each with its replacement text, or None if no mask covers it."""
        pieces: list[tuple[int, int, str | None]] = []
        while start < end and self.touch(start, end):
            mask = self._masks[0]
            if mask.start > start:
                pieces.append((start, mask.start, None))
                start = mask.start
            stop = min(end, mask.end)
            pieces.append((start, stop, self._take_text(mask, start, stop)))
            start = stop
        if start < end:
            pieces.append((start, end, None))
        return pieces

    def _take_text(self, mask: _PendingMask, start: int, end: int) -> str:
        if mask.is_each:
            return mask.text[start - mask.start : end - mask.start]
        was_written, self._is_text_written = self._is_text_written, True
        return "" if was_written else mask.text


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
