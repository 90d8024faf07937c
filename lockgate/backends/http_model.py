# SPDX-License-Identifier: Apache-2.0
"""HttpModel: a model behind HTTP, asked once, whole or streamed.

Decides in which words a model's failure is told, and when a stream has ended. Refuses to know any model's bodies:
those are its subclasses' business.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.endpoints import Scrubber
from lockgate.backends.http import CHEAP_BYTES, EVENT_STREAM, Answer, HttpCaller, Outgoing, decode, let_end, refuse
from lockgate.backends.replies import MAX_DETAIL_CHARS, PieceReader, Usage, WholeAnswer
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.values import Frame, Message
from lockgate.telemetry import note_generation, note_stream_ended, note_usage

INVALID = "Invalid response from model"
CUT_SHORT = "The model's stream ended before its answer was complete"
NETWORK_ERROR = "Network error: "


class HttpModel(ABC):
    """A model at one address. `known_as` is its name for telemetry, never one that a request makes up.

    `stream_type` is the content type of its streams. One that `needs_end` has failed if it does not say that its answer
    is complete. A stream may be as long as a whole answer, or `max_stream_bytes`: it is never held whole.
    """

    known_as = ""
    stream_type = EVENT_STREAM
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
        is_stream = bool(params.get("stream"))
        outgoing = self._address(messages, params, is_stream)
        note_generation(self.known_as, "chat")
        if not is_stream:
            yield await self._read_whole(await self._caller.post(outgoing))
            return
        response = await self._caller.open(outgoing)
        try:
            if response.status != 200 or not self._is_stream(response.content_type):
                yield await self._read_whole(Answer(response.status, await self._caller.read(response, outgoing)))
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
    def _decode(self, body: bytes) -> WholeAnswer:
        """A whole answer; raises ValueError or RecursionError for what is none."""

    @abstractmethod
    def _find_detail(self, body: bytes) -> str:
        """What a refusal says, without tokens."""

    @abstractmethod
    def _open_reader(self) -> PieceReader:
        """Reads one streamed answer."""

    def _is_stream(self, content_type: str) -> bool:
        """Whether an answer of this type is streamed; else it is a whole one, though we asked for a stream."""
        return content_type == self.stream_type

    def _address(self, messages: Sequence[Message], params: Mapping[str, Any], is_stream: bool) -> Outgoing:
        headers = self._headers
        if is_stream:
            headers = headers.copy()
            headers["Accept"] = self.stream_type
        try:
            return Outgoing(self._url, headers, self._encode(messages, params), NETWORK_ERROR)
        except ValueError:
            raise BrokeProtocol(self._caller.name, "Model request failed: the prompt is no valid text") from None

    async def _read_whole(self, answer: Answer) -> Frame:
        if answer.status != 200:
            raise refuse_model(self._caller.name, answer.status, await decode(answer.body, self._find_detail))
        try:
            told = await decode(answer.body, self._decode)
        except (ValueError, RecursionError):
            raise BrokeProtocol(self._caller.name, INVALID) from None
        return Frame(0, told.text, fields=_note(told.usage))

    async def _read_stream(
        self, response: aiohttp.ClientResponse, outgoing: Outgoing
    ) -> AsyncGenerator[list[Frame], None]:
        reader, number, size, waiting = self._open_reader(), 0, 0, 0
        is_open = True
        while is_open:
            packet = await self._caller.read_packet(response, outgoing)
            size += len(packet)
            waiting += len(packet)
            pieces = await _feed(reader, packet, is_large=waiting > CHEAP_BYTES)
            if pieces:
                waiting = 0
                yield [Frame(at, piece) for at, piece in enumerate(pieces, number)]
                number += len(pieces)
            self._check(reader, size, outgoing)
            is_open = bool(packet) and not reader.is_done
        if not reader.has_events:
            raise BrokeProtocol(self._caller.name, INVALID)
        if self.needs_end and not reader.has_end:
            raise BrokeProtocol(self._caller.name, CUT_SHORT)
        note_stream_ended()
        fields = _note(reader.usage) or {}
        if reader.is_cut:
            fields["is_cut"] = True
        if fields:
            yield [Frame(number, "", fields=fields)]
        await let_end(response)

    def _check(self, reader: PieceReader, size: int, outgoing: Outgoing) -> None:
        """Raises what has gone wrong behind the pieces that have left."""
        if reader.failure:
            said = self._scrub(reader.failure)[:MAX_DETAIL_CHARS]
            raise UpstreamError(self._caller.name, f"Model request failed: {said}")
        if reader.failure is not None:
            raise BrokeProtocol(self._caller.name, INVALID)
        if size > (limit := self.max_stream_bytes or self._caller.max_bytes):
            raise self._caller.refuse_length(outgoing.failure, limit)


def refuse_model(name: str, status: int, detail: str) -> UpstreamError:
    """The error for a model that answered, but not with success."""
    words = f"Model access denied: {detail}" if status == 403 else f"Model request failed: HTTP {status} - {detail}"
    return refuse(name, words, status)


async def _feed(reader: PieceReader, packet: bytes, *, is_large: bool) -> list[str]:
    """What the bytes complete. Where much has come without a piece, it may be one event: that is read off the loop."""
    if is_large:
        return await asyncio.to_thread(reader.feed, packet) if packet else await asyncio.to_thread(reader.finish)
    return reader.feed(packet) if packet else reader.finish()


def _note(usage: Usage | None) -> dict[str, Any] | None:
    """What a frame carries of the usage; telemetry is told too."""
    if usage is None:
        return None
    note_usage(usage["prompt_tokens"], usage["completion_tokens"])
    return {"usage": usage}
