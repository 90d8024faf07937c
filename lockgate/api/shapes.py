# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON bodies into message types, and refuses the others in the words of the reference.

It decides whether a body is taken, which is never when the reference's parser would refuse it. It refuses to know any
particular message, and the rules that a message of the right shape may still break.

A good body costs one decoding and a few searches in its bytes. The decoder is more lenient than the reference in four
ways (a field written twice, containers too deep, integers too long, bad text in parts that nobody reads). A body that
might use one of them, and a body that the decoder refuses, is walked by `json_faults`, whose word is final.
"""

import itertools
import re
from typing import Generic, TypeVar

import msgspec

from lockgate.api.json_faults import MAX_DEPTH, Fault, find_fault
from lockgate.api.json_places import PlaceReader
from lockgate.errors import InvalidRequest, UnreadableBody

T = TypeVar("T")

CHEAP_BYTES = 16_384  # the worst explanation of that many bytes takes some 20 ms

_NOT_JSON = "Failed to parse the request body as JSON: "

_DIGITS = b"0123456789"
_DIGIT = re.compile(b"[" + _DIGITS + b"]")
_KEY = re.compile(rb'"[ \t\n\r]*+:')
_HIDDEN_KEY = re.compile(rb"\\u00(?:2[02]|3[aA])")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


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

    def decode(self, body: bytes) -> T:
        """The message in `body`; raises UnreadableBody when it is not JSON and InvalidRequest when it does not fit."""
        try:
            return self._read(body)
        except _Misfit as misfit:
            raise _refusal(misfit.fault) from None

    def decode_line(self, line: bytes) -> T:
        """The message in one line of a stream; every fault is InvalidRequest, and its text names no path."""
        try:
            return self._read(line)
        except _Misfit as misfit:
            raise InvalidRequest(misfit.fault.text) from None

    @staticmethod
    def is_cheap(body: bytes) -> bool:
        """Whether even explaining a fault takes too little time to be worth a thread."""
        return len(body) <= CHEAP_BYTES

    def _read(self, body: bytes) -> T:
        try:
            value = self._decoder.decode(body)
        except (ValueError, RecursionError):
            raise _Misfit(find_fault(body, self._place) or self._unexplained()) from None
        if self._is_doubtful(body) and (fault := find_fault(body, self._place)):
            raise _Misfit(fault)
        return value

    def _is_doubtful(self, body: bytes) -> bool:
        """Whether the body might use a freedom that the decoder has and the reference has not."""
        if self._may_repeat_a_field(body):
            if not _has_distinct_keys(body):
                return True
        elif self._leaves_unread and not _is_sound(body):
            return True
        return _may_be_deep(body) or self._has_long_number(body)

    def _may_repeat_a_field(self, body: bytes) -> bool:
        for key in self._field_keys:
            if body.count(key) > 1:
                return True
        return self._written_by_code.search(body) is not None

    def _has_long_number(self, body: bytes) -> bool:
        """A run of n digits covers an index that is a multiple of n, so only the surroundings of those need a look."""
        size = self._long
        for hit in _DIGIT.finditer(body[::size]):
            middle = hit.start() * size
            left, right = body[max(0, middle - size) : middle], body[middle : middle + size]
            if len(left) - len(left.rstrip(_DIGITS)) + len(right) - len(right.lstrip(_DIGITS)) >= size:
                return True
        return False

    def _unexplained(self) -> Fault:
        return Fault(f"invalid value, expected {self._place.words}", "", is_syntax=False)


class _Misfit(Exception):
    """Carries a fault to the method that knows how it must be reported."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def _refusal(fault: Fault) -> UnreadableBody | InvalidRequest:
    text = f"{fault.path}: {fault.text}" if fault.path else fault.text
    if fault.is_syntax:
        return UnreadableBody(_NOT_JSON + text, status=400)
    return InvalidRequest(text)


def _letters_by_code(letters: str) -> re.Pattern[bytes]:
    """Finds any of the letters written as an escape, which could spell a field in a second way."""
    lows: dict[str, str] = {}
    for code in {f"{ord(letter):02x}" for letter in letters}:
        lows[code[0]] = lows.get(code[0], "") + code[1] + code[1].upper()
    codes = "|".join(f"{high}[{low}]" for high, low in sorted(lows.items()))
    return re.compile(rf"\\u00(?:{codes or '$.'})".encode())


def _has_distinct_keys(body: bytes) -> bool:
    """Whether no object has a key twice: reading and writing the body again loses no key.

    What looks like a key inside a string looks the same afterwards, unless its quote or colon is written by its code.
    """
    if _HIDDEN_KEY.search(body):
        return False
    try:
        again = msgspec.json.encode(msgspec.json.decode(body))
    except (ValueError, OverflowError, RecursionError):
        return False
    return len(_KEY.findall(body)) == len(_KEY.findall(again))


def _may_be_deep(body: bytes) -> bool:
    openings = body.count(b"{") + (body.count(b"[") if b"[" in body else 0)  # asking first is cheaper
    return openings > MAX_DEPTH and _depth(body) > MAX_DEPTH


def _depth(body: bytes) -> int:
    """How deep the containers of a well-formed body go."""
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(without_escapes.translate(None, _NOT_BRACKETS).split(b'"')[::2])
    return max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _is_sound(body: bytes) -> bool:
    """Whether the parts that the decoder passed over hold valid text and numbers too."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return True
