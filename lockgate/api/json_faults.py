# SPDX-License-Identifier: Apache-2.0
"""Finds the first fault of a JSON body, with the error text of the reference (serde_json, serde_path_to_error).

The walk goes through the bytes in document order with a stack, in linear time. A regular expression skips long runs of
values where any JSON is allowed. `end` is the number of bytes that the reference has consumed, which gives its column.
"""

import json
import math
import re
from dataclasses import dataclass

from lockgate.api.json_places import (
    FREE,
    TEXT,
    JsonPlace,
    Listing,
    Mapping,
    Nullable,
    Record,
    Scalar,
    Untagged,
    Variant,
    one_of,
    with_values,
    without_values,
)

MAX_DEPTH = 127  # containers inside each other; the reference stops at the 128th


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, where in the document, and whether it is not JSON at all or only the wrong shape.

    `unquoted` is the text without values of the document.
    """

    text: str
    path: str
    is_syntax: bool
    unquoted: str = ""


_FREE_CONTAINERS = {"[": Listing(FREE), "{": Mapping(FREE)}


def find_fault(body: bytes, place: JsonPlace) -> Fault | None:
    """The first fault that the reference would meet, or None."""
    walker = _Walker(body)
    try:
        walker.run(place)
    except _Stop as stop:
        line_start = body.rfind(b"\n", 0, stop.end) + 1
        line = body.count(b"\n", 0, line_start) + 1
        text = f"{stop.text} at line {line} column {stop.end - line_start}"
        return Fault(with_values(text), walker.path(), not stop.is_data, without_values(text))
    return None


class _Stop(Exception):
    """Ends the walk: the fault that was found after `end` bytes."""

    def __init__(self, text: str, end: int, *, is_data: bool = False) -> None:
        super().__init__(text)
        self.text, self.end, self.is_data = text, end, is_data


_GAP = rb"[ \t\n\r]*+"
_INSIDE = (
    rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?:(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))*+"
)
_QUOTED = rb'"' + _INSIDE + rb'"'
# Numbers that fit a double with any digits; `number` checks the others one by one.
_SMALL = (
    rb"-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]++)?(?:[eE](?:-[0-9]++|\+?[012]?[0-9]{1,2}))?(?![0-9.eE])"
    rb"|-?[1-9][0-9]{9,199}+(?:\.[0-9]++)?(?![0-9.eE])"
)
_FLAT = b"(?:" + _QUOTED + b"|" + _SMALL + b"|true|false|null)"


def _all_of(item: bytes, closing: bytes) -> bytes:
    """The inside of a container: items between commas, none after the last."""
    return _GAP + b"(?:" + item + _GAP + b"(?:," + _GAP + b"(?!" + closing + b")|(?=" + closing + b")))*+" + closing


_KEY = _QUOTED + _GAP + b":" + _GAP
_FLAT_MAP = rb"\{" + _all_of(_KEY + _FLAT, rb"\}")
_SIMPLE = b"(?:" + _FLAT + b"|" + _FLAT_MAP + rb"|\[" + _all_of(_FLAT, rb"\]") + b")"

_PREFIX = re.compile(b'"' + _INSIDE)
_STRING = re.compile(_QUOTED)
_DIGITS = re.compile(rb"[0-9]++")
_HEX4 = re.compile(rb"[0-9a-fA-F]{4}")


class _ValueRun:
    """Matches the next values of a container, as far as they certainly fit it."""

    def __init__(self, value: bytes) -> None:
        item = _GAP + b"," + _GAP + value
        self.item = re.compile(item)
        self.items = re.compile(b"(?:" + item + b")++")
        self.members = re.compile(b"(?:" + _GAP + b"," + _GAP + _KEY + value + b")++")


_ANYTHING, _STRINGS, _MAPS = _ValueRun(_SIMPLE), _ValueRun(_QUOTED), _ValueRun(_FLAT_MAP)


def _run_of(item: JsonPlace) -> _ValueRun | None:
    if item is FREE:
        return _ANYTHING
    if item is TEXT:
        return _STRINGS
    return _MAPS if isinstance(item, Mapping) and item.item is FREE else None


_BLANK = b" \t\n\r"
_LITERALS: dict[int, tuple[bytes, Scalar]] = {
    ord("n"): (b"null", None),
    ord("t"): (b"true", True),
    ord("f"): (b"false", False),
}


class _NoKey:
    """Stands in a path for a key that could not be read; the reference prints a question mark."""

    def __str__(self) -> str:
        return "?"


_NO_KEY = _NoKey()


class _Container:
    """One open container: its place, the segment that it adds to the path now, and the fields already met."""

    __slots__ = ("at", "count", "item", "place", "run", "seen")

    def __init__(self, place: Listing | Mapping | Record) -> None:
        self.place = place
        self.item = None if isinstance(place, Record) else place.item
        self.run = _run_of(self.item) if self.item else None
        self.at: str | int | _NoKey | None = None
        self.count = 0
        self.seen: set[str] = set()


class _ScalarScanner:
    """Reads scalars at `pos` and raises the fault that the reference would report."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.size = len(body)
        self.pos = 0

    def skip(self) -> int:
        """Skip white space; return the next byte, or -1 at the end."""
        body, size, pos = self.body, self.size, self.pos
        while pos < size and body[pos] in _BLANK:
            pos += 1
        self.pos = pos
        return body[pos] if pos < size else -1

    def peek(self, at: int) -> str:
        return chr(self.body[at]) if at < self.size else ""

    def literal(self) -> Scalar:
        word, value = _LITERALS[self.body[self.pos]]
        for at, expected in enumerate(word, start=self.pos):
            if at >= self.size:
                raise _Stop("EOF while parsing a value", self.size)
            if self.body[at] != expected:
                raise _Stop("expected ident", at + 1)
        self.pos += len(word)
        return value

    def number(self) -> int | float:
        start = self.pos
        at = start + (self.peek(start) == "-")
        end = self._digits(at)
        if self.peek(at) == "0" and end > at + 1:
            raise _Stop("invalid number", at + 2)
        if self.peek(end) == ".":
            end = self._digits(end + 1)
        if self.peek(end) in ("e", "E"):
            end = self._digits(end + 1 + (self.peek(end + 1) in ("+", "-")))
        self.pos = end
        digits = self.body[start:end]
        # An integer while it fits 64 bits, else a double, as the reference keeps them.
        if len(digits) <= 20 and digits.lstrip(b"-").isdigit() and -(2**63) <= int(digits) < 2**64:
            return int(digits)
        real = float(digits)
        if math.isinf(real):
            raise _Stop("number out of range", self.pos)
        return real

    def _digits(self, at: int) -> int:
        if found := _DIGITS.match(self.body, at):
            return found.end()
        if at >= self.size:
            raise _Stop("EOF while parsing a value", self.size)
        raise _Stop("invalid number", at + 1)

    def string(self) -> str:
        found = _STRING.match(self.body, self.pos)
        if found is None:
            raise self._broken_string()
        self.pos = found.end()
        try:
            text = found[0].decode()
        except UnicodeDecodeError as fault:
            raise _Stop("invalid unicode code point", found.start() + fault.start + 1) from None
        return str(json.loads(text)) if "\\" in text else text[1:-1]

    def _broken_string(self) -> _Stop:
        found = _PREFIX.match(self.body, self.pos)
        at = found.end() if found else self.pos
        if at >= self.size:
            return _Stop("EOF while parsing a string", self.size)
        if self.body[at] < 0x20:
            return _Stop("control character (\\u0000-\\u001F) found while parsing a string", at + 1)
        return self._broken_escape(at + 1)

    def _broken_escape(self, at: int) -> _Stop:
        """`at` is the byte after a backslash that begins no good escape."""
        if self.peek(at) not in ("u", ""):
            return _Stop("invalid escape", at + 1)
        if fault := self._broken_hex(at + 1):
            return fault
        lead, at = int(self.body[at + 1 : at + 5], 16), at + 5
        if lead >= 0xDC00:
            return _Stop("lone leading surrogate in hex escape", at)
        for expected in "\\u":
            if self.peek(at) not in (expected, ""):
                return _Stop("unexpected end of hex escape", at + 1)
            at += 1
        return self._broken_hex(at) or _Stop("lone leading surrogate in hex escape", at + 4)

    def _broken_hex(self, at: int) -> _Stop | None:
        if at + 4 > self.size:
            return _Stop("EOF while parsing a string", self.size)
        return None if _HEX4.match(self.body, at) else _Stop("invalid escape", at + 4)


class _Walker(_ScalarScanner):
    """Walks the document; `stack` holds the open containers, outermost first."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.stack: list[_Container] = []
        self.clean = len(body)  # the number of bytes before the first that is not UTF-8
        try:
            body.decode()
        except UnicodeDecodeError as fault:
            self.clean = fault.start

    def run(self, place: JsonPlace) -> None:
        self._value(place)
        self._finish(0)
        if self.skip() >= 0:
            raise _Stop("trailing characters", self.pos + 1)

    def path(self) -> str:
        segments = [frame.at for frame in self.stack if frame.at is not None]
        if all(segment is _NO_KEY for segment in segments):
            return ""
        return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in segments).removeprefix(".")

    def _finish(self, floor: int) -> None:
        while len(self.stack) > floor:
            frame = self.stack[-1]
            is_map, run = frame.place.opens == "{", frame.run
            if run and frame.count and len(self.stack) < MAX_DEPTH:  # values that cannot be at fault
                found = (run.members if is_map else run.items).match(self.body, self.pos, self.clean)
                if found and not is_map:
                    frame.count += sum(1 for _ in run.item.finditer(self.body, self.pos, found.end()))
                self.pos = found.end() if found else self.pos
            if is_map:
                self._member(frame)
            else:
                self._element(frame)

    def _member(self, frame: _Container) -> None:
        frame.at = _NO_KEY
        if not self._has_next(frame, "an object", "}"):
            frame.at = None
            self.pos += 1
            for name in frame.place.required if isinstance(frame.place, Record) else ():
                if name not in frame.seen:
                    raise _Stop(f"missing field `{name}`", self.pos, is_data=True)
            self.stack.pop()
            return
        if self.peek(self.pos) != '"':
            raise _Stop("key must be a string", self.pos + 1)
        key = self.string()
        place = frame.item or self._field(frame, key)
        frame.at = None
        first = self.skip()
        if first < 0:
            raise _Stop("EOF while parsing an object", self.size)
        if first != ord(":"):
            raise _Stop("expected `:`", self.pos + 1)
        self.pos += 1
        frame.at = key
        self._value(place)

    def _element(self, frame: _Container) -> None:
        frame.at = None
        if not self._has_next(frame, "a list", "]"):
            self.pos += 1
            self.stack.pop()
            return
        frame.at = frame.count - 1
        self._value(frame.item or FREE)

    def _has_next(self, frame: _Container, what: str, closing: str) -> bool:
        """Moves to the next key or element; False when the container closes here."""
        first = self.skip()
        if first < 0:
            raise _Stop(f"EOF while parsing {what}", self.size)
        if chr(first) == closing:
            return False
        if frame.count:
            if first != ord(","):
                raise _Stop(f"expected `,` or `{closing}`", self.pos + 1)
            self.pos += 1
            first = self.skip()
            if first < 0:
                raise _Stop("EOF while parsing a value", self.size)
            if chr(first) == closing:
                raise _Stop("trailing comma", self.pos + 1)
        frame.count += 1
        return True

    def _field(self, frame: _Container, key: str) -> JsonPlace:
        record = frame.place
        assert isinstance(record, Record)
        if key in frame.seen:
            frame.at = None
            raise _Stop(f"duplicate field `{key}`", self._settled(), is_data=True)
        if key in record.fields:
            frame.seen.add(key)
            return record.fields[key]
        if record.denies_unknown:
            frame.at = key
            text = f"unknown field `{key}`, expected {one_of(record.fields)}"
            raise _Stop(text, self._settled(), is_data=True)
        return FREE

    def _settled(self) -> int:
        """How far the reference reads on while it leaves a container because of an error."""
        first = self.skip()
        is_map = self.stack[-1].place.opens == "{"
        if first == ord("}" if is_map else "]"):
            return self.pos + 1
        if first == ord(",") and not is_map:
            self.pos += 1
            self.skip()
        return self.pos

    def _value(self, place: JsonPlace) -> None:
        first = self.skip()
        if first < 0:
            raise _Stop("EOF while parsing a value", self.size)
        if isinstance(place, Nullable):
            if first == ord("n"):
                self.literal()
                return
            place = place.inner
        if isinstance(place, Untagged):
            self._choice(place)
        elif isinstance(place, Variant) and first not in b'"{':
            raise _Stop("expected value", self.pos + 1)  # the reference takes this for bad JSON
        elif first in b"[{":
            self._open(chr(first), place)
        elif text := place.objection(self._scalar(first)):
            raise _Stop(text, self.pos, is_data=True)

    def _scalar(self, first: int) -> Scalar:
        if first == ord('"'):
            return self.string()
        if first in b"-0123456789":
            return self.number()
        if first in _LITERALS:
            return self.literal()
        raise _Stop("expected value", self.pos + 1)

    def _open(self, bracket: str, place: JsonPlace) -> None:
        if place is FREE:
            place = _FREE_CONTAINERS[bracket]
        if place.opens != bracket or not isinstance(place, Listing | Mapping | Record):
            kind = "map" if bracket == "{" else "sequence"
            raise _Stop(f"invalid type: {kind}, expected {place.words}", self.pos, is_data=True)
        if len(self.stack) >= MAX_DEPTH:
            raise _Stop("recursion limit exceeded", self.pos + 1)
        self.pos += 1
        self.stack.append(_Container(place))

    def _choice(self, place: Untagged) -> None:
        """Reads the value as any JSON first, as the reference does, and then tries the alternatives on it."""
        start, floor = self.pos, len(self.stack)
        self._value(FREE)
        self._finish(floor)
        piece = self.body[start : self.pos]
        if all(find_fault(piece, option) for option in place.options):
            text = f"data did not match any variant of untagged enum {place.name}"
            raise _Stop(text, self._settled() if self.stack else self.pos, is_data=True)
