# SPDX-License-Identifier: Apache-2.0
"""Calls a caikit-NLP generation server over gRPC; retries calls that fail with 502 to 506."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from google.protobuf.message import Message

from lockgate.backends.grpc import OutgoingCall, Peer, RemoteMethod, open_channel
from lockgate.config.settings import ServiceSettings
from lockgate.errors import UpstreamError
from lockgate.gate.values import Generation, Health
from lockgate.interfaces import Headers
from lockgate.protos import caikit_data_model_nlp_pb2 as answers_pb2
from lockgate.protos import caikit_runtime_nlp_pb2 as requests_pb2
from lockgate.telemetry import note_generation

_SERVICE = "/caikit.runtime.Nlp.NlpService"
_GENERATE = RemoteMethod(f"{_SERVICE}/TextGenerationTaskPredict", answers_pb2.GeneratedTextResult)
_STREAM = RemoteMethod(f"{_SERVICE}/ServerStreamingTextGenerationTaskPredict", answers_pb2.GeneratedTextStreamResult)
_TOKENIZE = RemoteMethod(f"{_SERVICE}/TokenizationTaskPredict", answers_pb2.TokenizationResults)

_RETRIED = range(502, 507)
_FIRST_WAIT_S = 0.001
_MAX_DOUBLINGS = 14
_REASONS = {number: name for name, number in answers_pb2.FinishReason.items()}
_MAX_UINT32 = 2**32 - 1
_PENALTY = "exponential_decay_length_penalty"
_PENALTY_NAMES = ("start_index", "decay_factor")
_NAMES = frozenset(requests_pb2.TextGenerationTaskRequest.DESCRIPTOR.fields_by_name) - {"text"}

Result = TypeVar("Result")
Answers = AsyncGenerator[answers_pb2.GeneratedTextStreamResult, None]


@asynccontextmanager
async def open_caikit_nlp_client(
    service: ServiceSettings, *, limits_silence: bool = True
) -> AsyncIterator["CaikitNlpClient"]:
    """Opens the client of a caikit-NLP server; the first call opens the connection."""
    async with open_channel(service) as channel:
        peer = Peer(channel, service, "generation", "generation", limits_silence=limits_silence)
        yield CaikitNlpClient(peer, service.max_retries)


class CaikitNlpClient:
    """Calls a generation server over gRPC; the metadata names the model."""

    def __init__(self, peer: Peer, max_retries: int) -> None:
        self._peer = peer
        self._max_retries = max_retries

    async def generate(self, request: Generation) -> dict[str, Any]:
        """Returns the whole answer as one message."""
        note_generation(request.model, "text_completion")
        message = requests_pb2.TextGenerationTaskRequest(text=request.body["text"], **build_parameters(request.body))
        outgoing = _address(message, "generate", request.model, request.headers)
        answer = await self._retry(lambda: self._peer.ask(_GENERATE, outgoing))
        return {
            "generated_text": answer.generated_text,
            **_build_end(answer.finish_reason, answer.generated_tokens, answer.seed),
            "input_token_count": answer.input_token_count,
            **_build_tokens(answer),
        }

    async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """Yields the messages of the answer as they arrive."""
        note_generation(request.model, "text_completion")
        first, answers = await self._retry(lambda: self._open_stream(request))
        async with aclosing(answers):
            if first is not None:
                yield [_build_stream_message(first)]
            async for answer in answers:
                yield [_build_stream_message(answer)]

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """Returns the number of tokens of the text."""
        message = requests_pb2.TokenizationTaskRequest(text=text)
        outgoing = _address(message, "tokenize", model, headers)
        answer = await self._retry(lambda: self._peer.ask(_TOKENIZE, outgoing))
        return answer.token_count

    async def probe(self, headers: Headers) -> Health:
        """Returns the server's health; never raises. The headers are not sent."""
        return await self._peer.probe()

    async def _open_stream(self, request: Generation) -> tuple[answers_pb2.GeneratedTextStreamResult | None, Answers]:
        """Waits for the first message, until which a retry is possible; returns it and the others."""
        message = requests_pb2.ServerStreamingTextGenerationTaskRequest(
            text=request.body["text"], **build_parameters(request.body)
        )
        answers = self._peer.stream(_STREAM, _address(message, "generate", request.model, request.headers))
        return await anext(answers, None), answers

    async def _retry(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        for attempts in range(self._max_retries):
            try:
                return await attempt()
            except UpstreamError as error:
                if error.status not in _RETRIED:
                    raise
            await asyncio.sleep(_FIRST_WAIT_S * 2 ** min(attempts, _MAX_DOUBLINGS))
        return await attempt()


def build_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request's parameters, which caikit-NLP names alike; null ones stay unset."""
    given = _pick(body.get("params") or {}, _NAMES)
    if _PENALTY in given:
        given[_PENALTY] = _pick(given[_PENALTY], _PENALTY_NAMES)
    return given


def _pick(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name) is not None}


def _address(message: Message, what: str, model: str, headers: Headers) -> OutgoingCall:
    return OutgoingCall(message, f"{what} request failed for `{model}`", headers, (("mm-model-id", model),))


def _build_stream_message(answer: answers_pb2.GeneratedTextStreamResult) -> dict[str, Any]:
    message: dict[str, Any] = {"generated_text": answer.generated_text}
    if answer.HasField("details"):
        details = answer.details
        message |= _build_end(details.finish_reason, details.generated_tokens, details.seed)
    message["input_token_count"] = answer.details.input_token_count
    return message | _build_tokens(answer)


def _build_end(reason: int, generated_tokens: int, seed: int) -> dict[str, Any]:
    return {
        "finish_reason": _REASONS.get(reason, "NOT_FINISHED"),
        "generated_token_count": generated_tokens,
        "seed": seed & _MAX_UINT32,
    }


def _build_tokens(
    answer: answers_pb2.GeneratedTextResult | answers_pb2.GeneratedTextStreamResult,
) -> dict[str, list[dict[str, Any]]]:
    """Returns the two lists of tokens without those that are empty."""
    lists = {"tokens": answer.tokens, "input_tokens": answer.input_tokens}
    return {
        name: [{"text": token.text, "logprob": token.logprob, "rank": token.rank} for token in tokens]
        for name, tokens in lists.items()
        if tokens
    }
