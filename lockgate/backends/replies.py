# SPDX-License-Identifier: Apache-2.0
"""Decodes replies of upstream models and sources: lenient JSON and error messages."""

import json
import math
from collections.abc import Callable
from typing import TypeGuard

import msgspec

from lockgate.backends.http import count_values

MAX_BODY_CHARS = 200  # of an error's body that has no `detail`
MAX_DETAIL_CHARS = 1000
MAX_VALUES = 250_000  # of JSON decoded without a schema; they block the event loop for some 0.1 s

_WINDOW_CHARS = 65_536  # of an error's text are read
_MAX_BITS = 1024
_MAX_DIGITS = 18  # of an integer that is read as one

Scrub = Callable[[str], str]


class _ErrorDetail(msgspec.Struct):
    detail: msgspec.Raw


_decode = msgspec.json.Decoder().decode
_decode_refusal = msgspec.json.Decoder(_ErrorDetail).decode


def decode_any(body: bytes | str) -> object:
    """Decodes JSON as leniently as some servers write it: with NaN, huge numbers and lone surrogates."""
    refuse_many(body)
    try:
        value: object = _decode(body)
    except ValueError:
        value = json.loads(body, parse_int=_to_integer)
    return value


def refuse_many(body: bytes | str) -> None:
    """Raises ValueError for more values than may be decoded without a schema."""
    if len(body) > MAX_VALUES and count_values(body) > MAX_VALUES:
        raise ValueError("it has too many values")


def mend(text: str) -> str:
    """Returns the text with U+FFFD for each lone surrogate."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_number(value: object) -> TypeGuard[int | float]:
    """Returns whether the value is a number that a float can hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < _MAX_BITS


def read_detail(body: bytes, scrub: Scrub) -> str:
    """Returns an error response's `detail`, else the start of its body, shortened after `scrub`."""
    try:
        detail = _to_text(_decode_refusal(body).detail)
    except (ValueError, RecursionError):
        detail = ""
    if detail:
        return scrub(detail[:_WINDOW_CHARS])[:MAX_DETAIL_CHARS]
    return scrub(body[:_WINDOW_CHARS].decode("utf-8", "replace")).strip()[:MAX_BODY_CHARS]


def _to_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _to_text(raw: msgspec.Raw) -> str:
    """Returns the text of a `detail`: a string unchanged, anything else as compact JSON."""
    value = bytes(raw)
    if value.startswith(b'"'):
        text: str = _decode(value)
        return text
    if value in {b"null", b"{}", b"[]"}:
        return ""
    compact = msgspec.json.format(value, indent=-1) if len(value) <= _WINDOW_CHARS else value[:_WINDOW_CHARS]
    return compact.decode("utf-8", "replace")
