# SPDX-License-Identifier: Apache-2.0
"""Replies of upstream models and sources: lenient JSON within bounds, usage, refusals, streams."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeGuard

import msgspec

from lockgate.errors import BrokeProtocol
from lockgate.gate.sse import SseEvent, SseParser

DONE = "[DONE]"  # the last event of most streams
MAX_BODY_CHARS = 200  # of an error's body that is no JSON, or says nothing
MAX_DETAIL_CHARS = 1000
LARGE_BYTES = 1024 * 1024
BYTES_PER_VALUE = 4  # a large body has at least so many, or is made to take many times its size in memory
MAX_VALUES = 250_000  # of what is decoded without a shape; they take some 0.1 s, in which nothing else can be done

_WINDOW_CHARS = 65_536  # of an error's words are looked at
_MAX_COUNT = 2**53
_MAX_BITS = 1024
_MAX_DIGITS = 18  # of an integer that is read as one
_COUNTERS = ("prompt_tokens", "completion_tokens", "total_tokens")

Usage = dict[str, int]
Scrub = Callable[[str], str]


class WholeAnswer(NamedTuple):
    """What a model answers at once."""

    text: str
    usage: Usage | None = None


class PieceReader(ABC):
    """Bytes of a streamed answer in, its pieces out; any cut of the bytes gives the same pieces.

    `failure` is what the model says went wrong behind the pieces last handed out, or "" where it broke the rules.
    """

    __slots__ = ("failure", "has_events", "is_cut", "is_done", "usage")

    def __init__(self) -> None:
        self.failure: str | None = None
        self.has_events = False
        self.is_done = False
        self.is_cut = False  # the model was not allowed to say more
        self.usage: Usage | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing counts any more."""
        return self.is_done or self.failure is not None

    @property
    def has_end(self) -> bool:
        """Whether the model has said that its answer is complete; more may follow that is no text."""
        return self.is_done

    @abstractmethod
    def feed(self, packet: bytes) -> list[str]:
        """The pieces that these bytes complete, up to the end or the first failure; none is empty."""

    @abstractmethod
    def finish(self) -> list[str]:
        """What is left; no bytes follow."""


class AnswerReader(PieceReader):
    """An answer that comes as server-sent events."""

    __slots__ = ("_parser",)

    def __init__(self) -> None:
        super().__init__()
        self._parser = SseParser()

    def feed(self, packet: bytes) -> list[str]:
        """The pieces that these bytes complete, up to the end or the first failure; none is empty."""
        try:
            events = self._parser.feed(packet)
        except BrokeProtocol:
            self.failure = ""
            return []
        self.has_events = self.has_events or bool(events)
        return [piece for event in events if not self.is_over for piece in self._read_event(event) if piece]

    def finish(self) -> list[str]:
        """The pieces of a last event that nobody closed; no bytes follow."""
        return self.feed(b"\n\n")

    @abstractmethod
    def _read_event(self, event: SseEvent) -> Iterable[str]:
        """The pieces of one event; what else it says is kept in `failure`, `is_done` and `usage`."""


class _Refusal(msgspec.Struct):
    detail: msgspec.Raw


_decode = msgspec.json.Decoder().decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


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
    if len(body) > MAX_VALUES and _count_values(body) > MAX_VALUES:
        raise ValueError("it has too many values")


def refuse_dense(body: bytes) -> None:
    """Raises ValueError for a large body of tiny values: decoded they take up to thirty times the memory."""
    if len(body) > LARGE_BYTES and _count_values(body) * BYTES_PER_VALUE > len(body):
        raise ValueError("it has too many values")


def mend(text: str) -> str:
    """The text without halves of characters, which nobody could be sent."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def count_usage(usage: object) -> Usage | None:
    """The three counters; one that is missing or no number is 0."""
    if not isinstance(usage, dict) or not usage:
        return None
    return {name: _to_count(usage.get(name)) for name in _COUNTERS}


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


def _count_values(body: bytes | str) -> int:
    """No fewer values than there are, but for a few; commas and brackets inside of texts are counted too."""
    marks: tuple[Any, ...] = (",", "{", "[") if isinstance(body, str) else (b",", b"{", b"[")
    return sum(map(body.count, marks))


def _to_count(value: object) -> int:
    return int(value) if is_number(value) and 0 <= value < _MAX_COUNT else 0


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
