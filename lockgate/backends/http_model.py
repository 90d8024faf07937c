# SPDX-License-Identifier: Apache-2.0
"""HttpModel calls a model over HTTP without retries; PieceReader reads a streamed answer.

Decides the error message for a model's failure and when a stream has ended. Subclasses encode and decode the
model's bodies.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, NamedTuple

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.endpoints import Scrubber
from lockgate.backends.http import (
    CHEAP_BYTES,
    EVENT_STREAM,
    HttpCaller,
    HttpResponse,
    OutgoingRequest,
    decode,
    let_end,
    read_retry_after,
    refuse,
)
from lockgate.backends.refusals import read_refusal
from lockgate.backends.replies import MAX_DETAIL_CHARS, is_number
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.sse import SseEvent, SseParser
from lockgate.gate.values import Frame, Message
from lockgate.telemetry import note_generation, note_stream_ended, note_usage

INVALID = "Invalid response from model"
CUT_SHORT = "The model's stream ended before its answer was complete"
NETWORK_ERROR = "Network error: "
DONE = "[DONE]"  # the last event of most streams
_MAX_COUNT = 2**53
_COUNTERS = ("prompt_tokens", "completion_tokens", "total_tokens")

Usage = dict[str, int]


class ModelAnswer(NamedTuple):
    """A model's answer that is not streamed."""

    text: str
    usage: Usage | None = None


class PieceReader(ABC):
    """Returns the pieces of text in the bytes of a streamed answer; any cut of the bytes gives the same.

    `failure` is the model's error message after the pieces last returned, or "" if the model broke the format.
    """

    failure: str | None = None
    has_events = False
    is_done = False  # all that follows is ignored
    has_end = False  # the model has marked its answer as complete; more may follow that is no text
    is_cut = False  # the answer reached its limit of tokens
    usage: Usage | None = None
    thoughts: Sequence[str] = ()  # pieces of the model's reasoning that came before the pieces last returned

    @abstractmethod
    def feed(self, packet: bytes) -> list[str]:
        """Returns the pieces that these bytes complete, up to the end or the first failure; none is empty."""

    @abstractmethod
    def finish(self) -> list[str]:
        """Returns the rest; no bytes follow."""


class AnswerReader(PieceReader):
    """Reads an answer of server-sent events."""

    def __init__(self) -> None:
        self._parser = SseParser()

    def feed(self, packet: bytes) -> list[str]:
        """Returns the pieces that these bytes complete, up to the end or the first failure; none is empty."""
        try:
            events = self._parser.feed(packet)
        except BrokeProtocol:
            self.failure = ""
            return []
        self.has_events = self.has_events or bool(events)
        pieces: list[str] = []
        for event in events:
            if self.is_done or self.failure is not None:
                break
            pieces += [piece for piece in self._read_event(event) if piece]
        return pieces

    def finish(self) -> list[str]:
        """Returns the pieces of a last event without an empty line; no bytes follow."""
        return self.feed(b"\n\n")

    @abstractmethod
    def _read_event(self, event: SseEvent) -> Iterable[str]:
        """Returns the pieces of one event and keeps its other values in the attributes."""


class HttpModel(ABC):
    """A model at one address. `known_as` is its name for telemetry, never taken from a request.

    `reader` reads its streams, which have the content type `stream_type`: an answer of another type is not streamed,
    unless the model `always_streams`. With `needs_end` a stream without a mark of its end has failed. A stream is
    limited to `max_stream_bytes`, or like a whole answer. `is_once`: requests must never be sent again.
    """

    known_as = ""
    reader: ClassVar[type[PieceReader]]
    stream_type = EVENT_STREAM
    always_streams = False
    needs_end = False
    max_stream_bytes = 0
    is_once = False

    def __init__(self, caller: HttpCaller, url: URL, headers: CIMultiDict[str], scrub: Scrubber) -> None:
        self._caller = caller
        self._url = url
        self._headers = headers
        self._scrub = scrub

    async def generate(
        self, messages: Sequence[Message], params: Mapping[str, Any]
    ) -> AsyncGenerator[Frame | list[Frame], None]:
        """Yields the answer's frames, those of one packet together; closing it closes the connection."""
        is_stream, headers = bool(params.get("stream")), self._headers
        if is_stream:
            headers = headers.copy()
            headers["Accept"] = self.stream_type
        try:
            body = self._encode(messages, params)
        except ValueError:
            raise BrokeProtocol(self._caller.name, "Model request failed: the prompt is no valid text") from None
        outgoing = OutgoingRequest(self._url, headers, body, NETWORK_ERROR, self.is_once)
        note_generation(self.known_as, "chat")
        if not is_stream:
            yield await self._read_whole(await self._caller.post(outgoing))
            return
        response = await self._caller.open(outgoing)
        try:
            is_whole = response.content_type != self.stream_type and not self.always_streams
            if response.status != 200 or is_whole:
                body = await self._caller.read(response, outgoing)
                yield await self._read_whole(HttpResponse(response.status, body, read_retry_after(response)))
                return
            async with aclosing(self._read_stream(response, outgoing)) as bursts:
                async for frames in bursts:
                    yield frames
        finally:
            response.close()  # of a body that has come whole, the connection is back in the pool already

    @abstractmethod
    def _encode(self, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
        """Encodes a request's body; raises ValueError for text that cannot be sent."""

    @abstractmethod
    def _decode(self, body: bytes) -> ModelAnswer:
        """Decodes a whole answer; raises ValueError or RecursionError if it is none."""

    @abstractmethod
    def _find_detail(self, body: bytes) -> str:
        """Returns the message of an error response, without tokens."""

    async def _read_whole(self, answer: HttpResponse) -> Frame:
        if answer.status != 200:
            raise await self._refuse(answer)
        try:
            decoded = await decode(answer.body, self._decode)
        except (ValueError, RecursionError):
            raise BrokeProtocol(self._caller.name, INVALID) from None
        return Frame(0, decoded.text, fields=None if decoded.usage is None else _note(decoded.usage))

    async def _refuse(self, answer: HttpResponse) -> UpstreamError:
        """Returns the error for an answer without success."""
        detail, is_denied = await decode(answer.body, self._find_detail), answer.status == 403
        own = "Model access denied" if is_denied else f"Model request failed: HTTP {answer.status}"
        message = f"{own}: {detail}" if is_denied else f"{own} - {detail}"
        refusal = read_refusal(answer.body, answer.status, answer.retry_after_s).refusal
        return refuse(self._caller.name, message, answer.status, words=detail, own=own, refusal=refusal)

    async def _read_stream(
        self, response: aiohttp.ClientResponse, outgoing: OutgoingRequest
    ) -> AsyncGenerator[list[Frame], None]:
        reader, number, size, waiting = self.reader(), 0, 0, 0
        limit = self.max_stream_bytes or self._caller.max_bytes
        is_open = True
        while is_open:
            packet = await self._caller.read_packet(response, outgoing)
            size += len(packet)
            waiting += len(packet)
            read = partial(reader.feed, packet) if packet else reader.finish
            # Many bytes without a piece may be one large event: it is read in a thread.
            pieces = await asyncio.to_thread(read) if waiting > CHEAP_BYTES else read()
            if reader.thoughts:
                waiting, thought, reader.thoughts = 0, "".join(reader.thoughts), ()
                yield [Frame(number, "", fields={"reasoning": thought})]
                number += 1
            if pieces:
                waiting = 0
                yield [Frame(at, piece) for at, piece in enumerate(pieces, number)]
                number += len(pieces)
            if reader.failure is not None:
                raise self._describe_failure(reader.failure)
            if size > limit:
                raise self._caller.refuse_length(outgoing.failure, limit)
            is_open = bool(packet) and not reader.is_done
        if not reader.has_events:
            raise BrokeProtocol(self._caller.name, INVALID)
        if self.needs_end and not reader.has_end:
            raise BrokeProtocol(self._caller.name, CUT_SHORT)
        note_stream_ended()
        fields = {} if reader.usage is None else _note(reader.usage)
        if reader.is_cut:
            fields["is_cut"] = True
        if fields:
            yield [Frame(number, "", fields=fields)]
        await let_end(response)

    def _describe_failure(self, detail: str) -> UpstreamError:
        """Returns the error for a failure in the middle of a stream."""
        if not detail:
            return BrokeProtocol(self._caller.name, INVALID)
        words = self._scrub(detail)[:MAX_DETAIL_CHARS]
        own = "Model request failed"
        return UpstreamError(self._caller.name, f"{own}: {words}", words=words, own=own)


def count_usage(usage: object) -> Usage | None:
    """Returns the three counters; one that is missing or no number is 0."""
    if not isinstance(usage, dict) or not usage:
        return None
    return {name: _to_count(usage.get(name)) for name in _COUNTERS}


def _to_count(value: object) -> int:
    return int(value) if is_number(value) and 0 <= value < _MAX_COUNT else 0


def _note(usage: Usage) -> dict[str, Any]:
    """Records the usage in telemetry and returns it as a frame's fields."""
    note_usage(usage["prompt_tokens"], usage["completion_tokens"])
    return {"usage": usage}
