# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server: chat and text completions, whole and streamed, and its count of tokens.

Decides what is a message, what is an error in its place, and where a stream ends. Messages are returned unchanged.
No request is retried after a failure of the server.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.http import (
    EVENT_STREAM,
    HttpCaller,
    HttpResponse,
    HttpService,
    OutgoingRequest,
    decode,
    let_end,
    open_with_health,
    read_retry_after,
    refuse,
)
from lockgate.backends.http_model import DONE, NETWORK_ERROR
from lockgate.backends.refusals import read_refusal
from lockgate.backends.replies import refuse_many
from lockgate.config.settings import OpenAISettings
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.sse import SseParser, encode_event, is_aside
from lockgate.gate.values import Generation, Health
from lockgate.interfaces import Headers
from lockgate.telemetry import note_generation, note_stream_ended, note_usage

_OPERATIONS = {"chat": "chat", "text": "text_completion"}
NAME = "openai"
UNKNOWN_ERROR = "unknown error occurred"
_NO_HEADERS: dict[str, str] = {}


class ServerError(msgspec.Struct):
    """An error as such servers send it."""

    message: str
    type: str
    code: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    param: Any = None


class _FlatError(ServerError, kw_only=True):
    object: Literal["error"]


class _WrappedError(msgspec.Struct):
    error: ServerError


class _StreamedChunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: Any = None


class _TokenCount(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=0)]


class _Models(msgspec.Struct):
    data: list[Any]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_flat = msgspec.json.Decoder(_FlatError).decode
_decode_wrapped = msgspec.json.Decoder(_WrappedError).decode
_decode_models = msgspec.json.Decoder(_Models).decode
_decode_chunk = msgspec.json.Decoder(_StreamedChunk).decode
_decode_count = msgspec.json.Decoder(_TokenCount).decode


def _note_usage(usage: Any) -> None:
    """Records the model's usage in telemetry, if a message has it."""
    if isinstance(usage, dict):
        note_usage(usage.get("prompt_tokens"), usage.get("completion_tokens"))


class CompletionClient(ABC):
    """Requests completions. Errors before a stream name the model; later ones have the server's message.

    With `needs_end` a stream that breaks off before its answer is complete has failed.
    """

    needs_end = False
    skips_events = True  # that are no part of the answer; else they are failures

    def __init__(self, http: HttpCaller) -> None:
        self._http = http

    async def generate(self, request: Generation) -> dict[str, Any]:
        """Returns the whole answer unchanged."""
        note_generation(request.model, _OPERATIONS[request.kind])
        outgoing = self._address(request)
        answer = await self._http.post(outgoing)
        if answer.status != 200:
            raise self._refusal(answer, outgoing)
        message = _read_message(answer.body)
        if message is None:
            raise BrokeProtocol(NAME, f"{outgoing.failure}the answer is no completion")
        _note_usage(message.get("usage"))
        return message

    def stream(self, request: Generation) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yields the messages unchanged, those of one packet together; closing it closes the connection."""
        return self._read_stream(request, ChunkReader)

    async def _read_stream(
        self, request: Generation, reader_type: "type[ChunkReader]"
    ) -> AsyncGenerator[list[Any], None]:
        note_generation(request.model, _OPERATIONS[request.kind])
        outgoing = self._address(request)
        response = await self._http.open(outgoing)
        try:
            if response.status != 200 or response.content_type.endswith(("/json", "+json")):
                raise await self._read_refusal(response, outgoing)
            reader = reader_type(outgoing.failure, skips_events=self.skips_events)
            has_end = not self.needs_end
            while packet := await self._http.read_packet(response, outgoing):
                messages = reader.feed(packet)
                if messages:
                    _note_usage(reader.usage)
                    has_end = has_end or any(map(_has_finish, messages))
                    yield messages
                if reader.failure is not None:
                    raise reader.failure
                if reader.is_done:
                    note_stream_ended()
                    await let_end(response)
                    return
            if not reader.has_events and response.content_type != EVENT_STREAM:  # a page of HTML, say
                raise BrokeProtocol(NAME, f"{outgoing.failure}the answer is not a stream of events")
            if not has_end:
                raise BrokeProtocol(NAME, f"{outgoing.failure}the stream ended before its answer was complete")
        finally:
            response.close()  # of a body that has come whole, the connection is back in the pool already

    @abstractmethod
    def _address(self, request: Generation) -> OutgoingRequest:
        """Returns the request to send."""

    async def _read_refusal(self, response: aiohttp.ClientResponse, outgoing: OutgoingRequest) -> UpstreamError:
        """Returns the error in an answer that is no event stream, even with status 200."""
        body = await self._http.read(response, outgoing)
        answer = HttpResponse(response.status, body, read_retry_after(response))
        if answer.status != 200:
            return self._refusal(answer, outgoing)
        return _judge(answer.body, f"{outgoing.failure}the answer is JSON, not a stream of events")

    def _refusal(self, answer: HttpResponse, outgoing: OutgoingRequest) -> UpstreamError:
        error = find_error(answer.body)
        words, refusal = read_refusal(answer.body, answer.status, answer.retry_after_s)
        message = outgoing.failure + (UNKNOWN_ERROR if error is None else error.message)
        return refuse(NAME, message, answer.status, words=words, refusal=refusal)


class OpenAIClient(CompletionClient):
    """Calls a generation server of the settings."""

    def __init__(self, http: HttpService, health: HttpService, *, skips_events: bool = True) -> None:
        super().__init__(http)
        self.skips_events = skips_events
        self._service = http
        self._health = health
        self._tokenize_url = http.url("/tokenize")
        self._models_url = http.url("/v1/models")
        self._endpoints = {
            "chat": (http.url("/v1/chat/completions"), "chat completion"),
            "text": (http.url("/v1/completions"), "completion"),
        }

    def relay(self, request: Generation) -> AsyncGenerator[list[bytes], None]:
        """Yields the events of a streamed answer as bytes: each is a message, checked but not changed."""
        return self._read_stream(request, EventReader)

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """Returns the number of tokens of the text."""
        body = _encode({"model": model, "prompt": text})
        failure = f"tokenize request failed for `{model}`: "
        outgoing = OutgoingRequest(self._tokenize_url, self._service.headers(headers, _NO_HEADERS), body, failure)
        answer = await self._http.post(outgoing)
        if answer.status != 200:
            raise self._refusal(answer, outgoing)
        try:
            return _decode_count(answer.body).count
        except (ValueError, RecursionError) as error:
            raise BrokeProtocol(NAME, f"{failure}the answer does not fit: {error}") from None

    async def list_models(self) -> list[Any]:
        """Returns the models as the server describes them."""
        answer = await self._http.fetch(self._models_url, self._service.headers((), _NO_HEADERS))
        if answer.status != 200:
            raise refuse(NAME, f"the list of models failed: HTTP {answer.status}", answer.status)
        try:
            return (await decode(answer.body, _read_models)).data
        except (ValueError, RecursionError):
            raise BrokeProtocol(NAME, "the list of models cannot be read") from None

    async def probe(self, headers: Headers) -> Health:
        """Returns the server's health; never raises."""
        return await self._health.probe(headers)

    def _address(self, request: Generation) -> OutgoingRequest:
        url, what = self._endpoints[request.kind]
        headers = self._service.headers(request.headers, _NO_HEADERS)
        return OutgoingRequest(
            url, headers, _encode(dict(request.body)), f"{what} request failed for `{request.model}`: "
        )


class OpenAIChat(CompletionClient):
    """Requests chat completions of a model of the settings; every field of a request goes to its server."""

    needs_end = True

    def __init__(self, caller: HttpCaller, url: URL, headers: CIMultiDict[str], model: str) -> None:
        super().__init__(caller)
        self._url = url
        self._headers = headers
        self._model = model

    async def generate(self, request: Generation) -> dict[str, Any]:
        """Returns the whole answer unchanged."""
        return await super().generate(request._replace(model=self._model))

    def stream(self, request: Generation) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yields the messages unchanged. The last one has the usage, for the metrics."""
        options = {**(request.body.get("stream_options") or {}), "include_usage": True}
        request = request._replace(model=self._model, body={**request.body, "stream_options": options})
        return self._read_stream(request, ChunkReader)

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """Returns 0: not every server counts tokens."""
        return 0

    def _address(self, request: Generation) -> OutgoingRequest:
        headers = self._headers.copy()
        if request.body.get("stream"):
            headers["Accept"] = EVENT_STREAM
        body = _encode({**request.body, "model": self._model})
        return OutgoingRequest(self._url, headers, body, NETWORK_ERROR)


class ChunkReader:
    """Returns the messages in the bytes of an event stream; `failure` is an error after them, `usage` the latest."""

    __slots__ = ("_failure_prefix", "_parser", "_skips_events", "failure", "has_events", "is_done", "usage")

    def __init__(self, failure_prefix: str, *, skips_events: bool = True) -> None:
        self._skips_events = skips_events
        self._parser = SseParser(NAME)
        self._failure_prefix = failure_prefix
        self.has_events = False
        self.failure: UpstreamError | None = None
        self.is_done = False
        self.usage: Any = None

    def feed(self, packet: bytes) -> list[Any]:
        """Returns the messages that these bytes complete, up to the end of the stream or the first failure."""
        messages: list[Any] = []
        try:
            events = self._parser.feed(packet)
        except BrokeProtocol as error:
            self.failure = error
            return messages
        if events:
            self.has_events = True
        for data, event in events:
            if data == DONE:
                self.is_done = True
                break
            message = self._read(data)
            if message is None:
                if self._skips_events and is_aside(data, event) and not read_refusal(data)[0]:
                    continue
                self.failure = _judge(data, f"{self._failure_prefix}an event is neither a message nor an error")
                break
            messages.append(message)
        return messages

    def _read(self, data: str) -> Any:
        """Returns the message in an event, or None."""
        message = _read_message(data)
        if message is not None:
            self.usage = message.get("usage")
        return message


class EventReader(ChunkReader):
    """A ChunkReader that returns each message as the encoded event that it came in."""

    __slots__ = ()

    def _read(self, data: str) -> bytes | None:
        try:
            self.usage = _decode_chunk(data).usage
        except (ValueError, RecursionError):
            return None
        return encode_event(data)


@asynccontextmanager
async def open_openai_client(
    settings: OpenAISettings, *, resends: bool = True, limits_silence: bool = True, skips_events: bool = True
) -> AsyncIterator[OpenAIClient]:
    """Opens the client of an OpenAI-compatible server.

    `limits_silence`: the request timeout limits each pause of a stream too.
    """
    service, silence_s = settings.service, float(settings.service.request_timeout) if limits_silence else None
    opening = open_with_health(service, settings.health_service, NAME, NAME, resends=resends, silence_s=silence_s)
    async with opening as (http, health):
        yield OpenAIClient(http, health, skips_events=skips_events)


def _has_finish(message: dict[str, Any]) -> bool:
    """Returns whether a message ends a choice."""
    return any(isinstance(one, dict) and one.get("finish_reason") is not None for one in message["choices"])


def _read_models(body: bytes) -> _Models:
    refuse_many(body)
    return _decode_models(body)


def _read_message(text: bytes | str) -> dict[str, Any] | None:
    """Decodes a completion or a chunk of one, an object with `choices`; returns None for anything else."""
    try:
        message = _decode(text)
    except (ValueError, RecursionError):
        return None
    if type(message) is dict and type(message.get("choices")) is list:
        return message
    return None


def _judge(data: bytes | str, fault: str) -> UpstreamError:
    """Returns the error in place of a message; if there is none, a BrokeProtocol with the text of the fault."""
    error, (words, refusal) = find_error(data), read_refusal(data)
    if error is not None:
        return refuse(NAME, error.message, error.code, words=words, refusal=refusal)
    return UpstreamError(NAME, words, words=words, refusal=refusal) if words else BrokeProtocol(NAME, fault)


def find_error(text: bytes | str) -> ServerError | None:
    """Returns the error object in a body or event, in either of its two forms, or None."""
    with contextlib.suppress(ValueError, RecursionError):
        return _decode_wrapped(text).error
    with contextlib.suppress(ValueError, RecursionError):
        return _decode_flat(text)
    return None
