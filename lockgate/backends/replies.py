# SPDX-License-Identifier: Apache-2.0
"""Replies of upstream models and sources: lenient JSON within bounds, and what a refusal says."""

import json
import math
from collections.abc import Callable
from typing import TypeGuard

import msgspec

from lockgate.backends.http import count_values

MAX_BODY_CHARS = 200  # of an error's body that is no JSON, or says nothing
MAX_DETAIL_CHARS = 1000
MAX_VALUES = 250_000  # of what is decoded without a shape; they take some 0.1 s, in which nothing else can be done

_WINDOW_CHARS = 65_536  # of an error's words are looked at
_MAX_BITS = 1024
_MAX_DIGITS = 18  # of an integer that is read as one

Scrub = Callable[[str], str]


class _ErrorDetail(msgspec.Struct):
    detail: msgspec.Raw


_decode = msgspec.json.Decoder().decode
_decode_refusal = msgspec.json.Decoder(_ErrorDetail).decode


def decode_any(body: bytes | str) -> object:
    """JSON as lenient as most of these servers write it: with NaN, numbers out of range, and halves of characters."""
    refuse_many(body)
    try:
        value: object = _decode(body)
    except ValueError:
        value = json.loads(body, parse_int=_to_integer)
    return value


def refuse_many(body: bytes | str) -> None:
    """Raises ValueError for more values than may be decoded without a shape."""
    if len(body) > MAX_VALUES and count_values(body) > MAX_VALUES:
        raise ValueError("it has too many values")


def mend(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that a float can hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < _MAX_BITS


def read_detail(body: bytes, scrub: Scrub) -> str:
    """What a refusal says: its `detail`, else how its body begins. `scrub` sees the words before they are cut."""
    try:
        detail = _to_words(_decode_refusal(body).detail)
    except (ValueError, RecursionError):
        detail = ""
    if detail:
        return scrub(detail[:_WINDOW_CHARS])[:MAX_DETAIL_CHARS]
    return scrub(body[:_WINDOW_CHARS].decode("utf-8", "replace")).strip()[:MAX_BODY_CHARS]


def _to_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _to_words(raw: msgspec.Raw) -> str:
    """The words of a `detail`: a text as it is, anything else as compact JSON."""
    value = bytes(raw)
    if value.startswith(b'"'):
        text: str = _decode(value)
        return text
    if value in {b"null", b"{}", b"[]"}:
        return ""
    compact = msgspec.json.format(value, indent=-1) if len(value) <= _WINDOW_CHARS else value[:_WINDOW_CHARS]
    return compact.decode("utf-8", "replace")
