# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON bodies into message types; errors are as in the Rust orchestrator (serde), the reference.

msgspec decodes; it is more lenient than the reference in four ways: a repeated field, containers too deep, integers too
long, bad text in parts that are not read. `json_faults` decides about a body that might use one of them.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Generic, TypeVar

import msgspec

from lockgate.api.json_faults import MAX_DEPTH, Fault, find_fault
from lockgate.api.json_places import PlaceReader
from lockgate.errors import InvalidField, InvalidRequest, RequestError, UnreadableBody

T = TypeVar("T")

CHEAP_BYTES = 16_384  # finding the fault in so many bytes takes at most about 20 ms

_DIGITS = b"0123456789"
_DIGIT = re.compile(b"[" + _DIGITS + b"]")
_KEY = re.compile(rb'"[ \t\n\r]*+:')
_HIDDEN_KEY = re.compile(rb"\\u00(?:2[02]|3[aA])")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _refuse(fault: Fault) -> RequestError:
    place = f"{fault.path}: " if fault.path else ""
    if fault.is_syntax:
        return UnreadableBody(f"Failed to parse the request body as JSON: {place}{fault.text}", status=400)
    return _say(place, fault)


def _say(place: str, fault: Fault) -> RequestError:
    error = InvalidRequest(place + fault.text)
    error.unquoted = place + fault.unquoted if fault.unquoted else ""
    return error


class Shape(Generic[T]):
    """Decodes bodies of one type. `name` is what the reference calls the outermost struct."""

    def __init__(self, type_: type[T], *, name: str | None = None) -> None:
        reader = PlaceReader()
        self._decoder = msgspec.json.Decoder(type_)
        self._place = reader.read(msgspec.inspect.type_info(type_), name)
        self._field_keys = tuple(f'"{field}"'.encode() for field in sorted(reader.field_names))
        self._written_by_code = _letters_by_code("".join(reader.field_names))
        self._leaves_unread = reader.leaves_unread
        # Past 19 digits a number may not fit 64 bits, past 308 not even a double.
        self._long = 19 if reader.has_unbounded_integers else 309

    def decode_line(self, line: bytes) -> T:
        """The message in one line of a stream; every fault is InvalidRequest, and its text names no path."""
        return self.decode(line, partial(_say, ""))

    def decode(self, body: bytes, refuse: Callable[[Fault], RequestError] = _refuse) -> T:
        """The message in `body`; raises UnreadableBody when it is not JSON and InvalidRequest when it does not fit."""
        try:
            value = self._decoder.decode(body)
        except (ValueError, RecursionError):
            unexplained = Fault(f"invalid value, expected {self._place.words}", "", is_syntax=False)
            raise refuse(find_fault(body, self._place) or unexplained) from None
        if self._is_doubtful(body) and (fault := find_fault(body, self._place)):
            raise refuse(fault)
        return value

    def _is_doubtful(self, body: bytes) -> bool:
        """Whether the decoder may have accepted something that the reference refuses."""
        may_repeat = max(map(body.count, self._field_keys), default=0) > 1 or bool(self._written_by_code.search(body))
        if (may_repeat or self._leaves_unread) and not _is_sound(body, may_repeat=may_repeat):
            return True
        openings = body.count(b"{") + (body.count(b"[") if b"[" in body else 0)  # searching first is cheaper
        if openings > MAX_DEPTH and _depth(body) > MAX_DEPTH:
            return True
        # A run of n digits covers an index that is a multiple of n: only the surroundings of those need a look.
        size = self._long
        for hit in _DIGIT.finditer(body[::size]):
            middle = hit.start() * size
            left, right = body[max(0, middle - size) : middle], body[middle : middle + size]
            if len(left) - len(left.rstrip(_DIGITS)) + len(right) - len(right.lstrip(_DIGITS)) >= size:
                return True
        return False


async def decode(raw: bytes, read: Callable[[bytes], T]) -> T:
    """The value that `read` returns for the bytes; large bodies are read in a thread."""
    return read(raw) if len(raw) <= CHEAP_BYTES else await asyncio.to_thread(read, raw)


def _letters_by_code(letters: str) -> re.Pattern[bytes]:
    """A pattern for these letters written as escapes, a second way to spell a field name."""
    lows: dict[str, str] = {}
    for code in {f"{ord(letter):02x}" for letter in letters}:
        lows[code[0]] = lows.get(code[0], "") + code[1] + code[1].upper()
    codes = "|".join(f"{high}[{low}]" for high, low in sorted(lows.items()))
    return re.compile(rf"\\u00(?:{codes or '$.'})".encode())


def _is_sound(body: bytes, *, may_repeat: bool) -> bool:
    """Whether all of the body is valid JSON and, if keys may repeat, encoding it again loses no key.

    A string with text like a key looks the same when encoded again, unless its quote or colon is an escape.
    """
    if may_repeat and _HIDDEN_KEY.search(body):
        return False
    try:
        value = msgspec.json.decode(body)
        again = msgspec.json.encode(value) if may_repeat else body
    except (ValueError, OverflowError, RecursionError):
        return False
    return again is body or len(_KEY.findall(body)) == len(_KEY.findall(again))


def _depth(body: bytes) -> int:
    """How deep the containers of a well-formed body go."""
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(without_escapes.translate(None, _NOT_BRACKETS).split(b'"')[::2])
    return max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def refuse_typos(body: Iterable[str]) -> None:
    """Raise InvalidField for a misspelt or misplaced field: passed on unread, it would switch detectors off."""
    for key in body:
        if key in ("policy", "guardrail_config"):
            raise InvalidField(key, f"unknown field `{key}`; detectors and policies are named in `detectors`")
        if key != "detectors" and key[:1] in "dD" and get_close_matches(key.lower(), ("detectors",), cutoff=0.8):
            raise InvalidField(key, f"unknown field `{key}`; did you mean `detectors`?")
