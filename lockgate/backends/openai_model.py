# SPDX-License-Identifier: Apache-2.0
"""OpenAIModel: a chat model of any OpenAI-compatible server.

The answer is the text of a completion's first choice. Access rules and time limits are set elsewhere.
lockgate.backends.openai is the client that passes whole completions.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from multidict import CIMultiDict
from yarl import URL

from lockgate.backends.endpoints import NO_DETAIL, STREAM_WINDOW_BYTES, Endpoint, Scrubber, open_caller, own_headers
from lockgate.backends.http import HttpCaller, count_values
from lockgate.backends.http_model import DONE, AnswerReader, HttpModel, ModelAnswer, count_usage
from lockgate.backends.openai import NAME, OpenAIChat, find_error
from lockgate.backends.replies import MAX_DETAIL_CHARS, MAX_VALUES, read_detail
from lockgate.config.agent_settings import OpenAIModelSettings
from lockgate.gate.sse import SseEvent, is_aside
from lockgate.gate.values import Health, Message
from lockgate.interfaces import Headers

DEFAULT_BASE = "/v1"
TAKES = frozenset(
    {
        *("max_tokens", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "response_format", "reasoning_effort"),
    }
)
_CUT = "length"  # the `finish_reason` of an answer that reached its limit of tokens
MAX_STREAM_BYTES = 1024 * 1024 * 1024  # of a model of the settings; an event has hundreds of bytes per byte of text

_WELL_BELOW = 500  # servers may refuse the list of models or not have it


class _ModelCompletion(msgspec.Struct):
    """A completion, or a chunk of one; other fields are ignored."""

    choices: list[Any]
    usage: Any = None


class _ErrorMessage(msgspec.Struct):
    message: str


class _OpenAIErrorReply(msgspec.Struct):
    error: _ErrorMessage | str


_encode_json = msgspec.json.Encoder().encode
_decode_completion = msgspec.json.Decoder(_ModelCompletion).decode
_decode_refusal = msgspec.json.Decoder(_OpenAIErrorReply).decode


class _CompletionReader(AnswerReader):
    """Reads the first choice of a streamed completion; some servers never send the final `[DONE]`."""

    def _read_event(self, event: SseEvent) -> Iterator[str]:
        if event.data == DONE:
            self.is_done = self.has_end = True
            return
        message = _read_completion(event.data)
        if message is None:
            words = _find_message(event.data)
            if words or not is_aside(event.data, event.event):
                self.failure = words
            return
        if message.usage:
            self.usage = count_usage(message.usage) or self.usage
        choice = _find_choice(message)
        if choice is not None:
            reason = choice.get("finish_reason")
            self.has_end = self.has_end or reason is not None
            self.is_cut = self.is_cut or reason == _CUT
            yield _find_text(choice, "delta") or ""


class OpenAIModel(HttpModel):
    """A chat model named by the endpoint's slug. `base` is the server's URL up to `/chat/completions`.

    `known_as` is the model's name for telemetry; by default all such models share one.
    """

    reader = _CompletionReader

    def __init__(
        self, caller: HttpCaller, base: URL, headers: CIMultiDict[str], endpoint: Endpoint, known_as: str = NAME
    ) -> None:
        super().__init__(caller, _find_path(base, "/chat/completions"), headers, Scrubber(endpoint.token))
        self._base = base
        self._model = endpoint.slug
        self.known_as = known_as

    async def probe(self, headers: Headers) -> Health:
        """Returns whether the server answers; never raises."""
        return await self._caller.probe_at(_find_path(self._base, "/models"), self._headers, _WELL_BELOW)

    def _encode(self, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
        chat = [{"role": one.role, "content": one.text} for one in messages]
        body: dict[str, Any] = {"model": self._model, "messages": chat}
        body |= {name: value for name, value in params.items() if name in TAKES}
        body["stream"] = bool(params.get("stream"))
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        return _encode_json(body)

    def _decode(self, body: bytes) -> ModelAnswer:
        message = _read_completion(body)
        choice = None if message is None else _find_choice(message)
        text = None if choice is None else _find_text(choice, "message")
        if message is None or text is None:
            raise ValueError("there is no text in it")
        return ModelAnswer(text, count_usage(message.usage))

    def _find_detail(self, body: bytes) -> str:
        message = self._scrub(_find_message(body))[:MAX_DETAIL_CHARS]
        return message or read_detail(body, self._scrub) or NO_DETAIL


class OwnOpenAIModel(OpenAIModel):
    """A model of the settings: an answer that breaks off fails, and a stream may have up to 1 GiB."""

    needs_end = True
    max_stream_bytes = MAX_STREAM_BYTES
    takes = TAKES

    @property
    def chat(self) -> OpenAIChat:
        """The client for the model's chat completions."""
        return OpenAIChat(self._caller, self._url, self._headers, self._model)


@asynccontextmanager
async def open_openai_model(settings: OpenAIModelSettings, *, resends: bool = True) -> AsyncIterator[OwnOpenAIModel]:
    """Opens a model of the settings; leaving closes its connections. The user of the model limits the time."""
    token = settings.api_token_value.reveal() if settings.api_token_value is not None else None
    endpoint = Endpoint(settings.url, settings.model, token=token)
    async with open_caller("model", NAME, window_bytes=STREAM_WINDOW_BYTES, resends=resends) as caller:
        yield OwnOpenAIModel(caller, URL(settings.url), own_headers(token), endpoint, settings.model)


def _read_completion(text: bytes | str) -> _ModelCompletion | None:
    """Decodes a completion or a chunk of one; returns None for anything else and for too many values."""
    if len(text) > MAX_VALUES and count_values(text) > MAX_VALUES:
        return None
    try:
        return _decode_completion(text)
    except (ValueError, RecursionError):
        return None


def _find_path(base: URL, path: str) -> URL:
    return base.with_path(f"{base.raw_path.rstrip('/') or DEFAULT_BASE}{path}", encoded=True)


def _find_choice(message: _ModelCompletion) -> dict[str, Any] | None:
    """Returns the choice with index 0, which is not always the first in the list."""
    for choice in message.choices:
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            return choice
    return None


def _find_text(choice: Mapping[str, Any], part: str) -> str | None:
    message = choice.get(part)
    text = message.get("content") if isinstance(message, dict) else None
    return text if isinstance(text, str) else None


def _find_message(text: bytes | str) -> str:
    """Returns the message of an error in any form that such servers use; empty if there is none."""
    known = find_error(text)
    if known is not None:
        return known.message
    try:
        error = _decode_refusal(text).error
    except (ValueError, RecursionError):
        return ""
    return error if isinstance(error, str) else error.message
