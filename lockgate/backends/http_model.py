# SPDX-License-Identifier: Apache-2.0
"""HttpModel: a model behind HTTP, asked once, whole or streamed, and the readers of streamed answers.

Decides in which words a model's failure is reported, and when a stream has ended. Subclasses write and read the
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
    refuse,
)
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
    """What a model answers at once."""

    text: str
    usage: Usage | None = None


class PieceReader(ABC):
    """Bytes of a streamed answer in, its pieces out; any cut of the bytes gives the same pieces.

    `failure` is what the model says went wrong behind the pieces last handed out, or "" where it broke the rules.
    """

    failure: str | None = None
    has_events = False
    is_done = False  # nothing that follows counts
    has_end = False  # the model has said that its answer is complete; more may follow that is no text
    is_cut = False  # the model was not allowed to say more
    usage: Usage | None = None

    @abstractmethod
    def feed(self, packet: bytes) -> list[str]:
        """The pieces that these bytes complete, up to the end or the first failure; none is empty."""

    @abstractmethod
    def finish(self) -> list[str]:
        """What is left; no bytes follow."""


class AnswerReader(PieceReader):
    """An answer that comes as server-sent events."""

    def __init__(self) -> None:
        self._parser = SseParser()

    def feed(self, packet: bytes) -> list[str]:
        """The pieces that these bytes complete, up to the end or the first failure; none is empty."""
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
        """The pieces of a last event that is not closed; no bytes follow."""
        return self.feed(b"\n\n")

    @abstractmethod
    def _read_event(self, event: SseEvent) -> Iterable[str]:
        """The pieces of one event; what else it says is kept in the attributes."""


class HttpModel(ABC):
    """A model at one address. `known_as` is its name for telemetry, never one that a request makes up.

    `reader` reads its streams, which have the content type `stream_type`: an answer of another type is a whole one,
    unless the model `always_streams`. One that `needs_end` has failed if it does not say that its answer is complete. A
    stream may be as long as a whole answer, or `max_stream_bytes`: it is never held whole.
    """

    known_as = ""
    reader: ClassVar[type[PieceReader]]
    stream_type = EVENT_STREAM
    always_streams = False
    needs_end = False
    max_stream_bytes = 0

    def __init__(self, caller: HttpCaller, url: URL, headers: CIMultiDict[str], scrub: Scrubber) -> None:
        self._caller = caller
        self._url = url
        self._headers = headers
        self._scrub = scrub

    async def generate(
        self, messages: Sequence[Message], params: Mapping[str, Any]
    ) -> AsyncGenerator[Frame | list[Frame], None]:
        """The answer's frames, those that came at once together; closing the iterator closes the connection."""
        is_stream, headers = bool(params.get("stream")), self._headers
        if is_stream:
            headers = headers.copy()
            headers["Accept"] = self.stream_type
        try:
            outgoing = OutgoingRequest(self._url, headers, self._encode(messages, params), NETWORK_ERROR)
        except ValueError:
            raise BrokeProtocol(self._caller.name, "Model request failed: the prompt is no valid text") from None
        note_generation(self.known_as, "chat")
        if not is_stream:
            yield await self._read_whole(await self._caller.post(outgoing))
            return
        response = await self._caller.open(outgoing)
        try:
            is_whole = response.content_type != self.stream_type and not self.always_streams
            if response.status != 200 or is_whole:
                yield await self._read_whole(HttpResponse(response.status, await self._caller.read(response, outgoing)))
                return
            async with aclosing(self._read_stream(response, outgoing)) as bursts:
                async for frames in bursts:
                    yield frames
        finally:
            response.close()  # of a body that has come whole, the connection is back in the pool already

    @abstractmethod
    def _encode(self, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
        """The body of a request; raises ValueError for what cannot be sent."""

    @abstractmethod
    def _decode(self, body: bytes) -> ModelAnswer:
        """A whole answer; raises ValueError or RecursionError for what is none."""

    @abstractmethod
    def _find_detail(self, body: bytes) -> str:
        """What a refusal says, without tokens."""

    async def _read_whole(self, answer: HttpResponse) -> Frame:
        if answer.status != 200:
            raise refuse_model(self._caller.name, answer.status, await decode(answer.body, self._find_detail))
        try:
            told = await decode(answer.body, self._decode)
        except (ValueError, RecursionError):
            raise BrokeProtocol(self._caller.name, INVALID) from None
        return Frame(0, told.text, fields=None if told.usage is None else _note(told.usage))

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
            # Where much has come without a piece, it may be one event: that is read off the loop.
            pieces = await asyncio.to_thread(read) if waiting > CHEAP_BYTES else read()
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

    def _describe_failure(self, said: str) -> UpstreamError:
        """What has gone wrong behind the pieces that have left."""
        if not said:
            return BrokeProtocol(self._caller.name, INVALID)
        return UpstreamError(self._caller.name, f"Model request failed: {self._scrub(said)[:MAX_DETAIL_CHARS]}")


def refuse_model(name: str, status: int, detail: str) -> UpstreamError:
    """The error for a model that answered, but not with success."""
    words = f"Model access denied: {detail}" if status == 403 else f"Model request failed: HTTP {status} - {detail}"
    return refuse(name, words, status)


def count_usage(usage: object) -> Usage | None:
    """The three counters; one that is missing or no number is 0."""
    if not isinstance(usage, dict) or not usage:
        return None
    return {name: _to_count(usage.get(name)) for name in _COUNTERS}


def _to_count(value: object) -> int:
    return int(value) if is_number(value) and 0 <= value < _MAX_COUNT else 0


def _note(usage: Usage) -> dict[str, Any]:
    """What a frame carries of the usage; telemetry is told too."""
    note_usage(usage["prompt_tokens"], usage["completion_tokens"])
    return {"usage": usage}
