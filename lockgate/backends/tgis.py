# SPDX-License-Identifier: Apache-2.0
"""Calls a TGIS generation server over gRPC. A request is sent once."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from lockgate.backends.grpc import OutgoingCall, Peer, RemoteMethod, open_channel
from lockgate.config.settings import ServiceSettings
from lockgate.errors import BrokeProtocol
from lockgate.gate.values import Generation, Health
from lockgate.interfaces import Headers
from lockgate.protos import fmaas_pb2 as fmaas
from lockgate.telemetry import note_generation

_SERVICE = "/fmaas.GenerationService"
_GENERATE = RemoteMethod(f"{_SERVICE}/Generate", fmaas.BatchedGenerationResponse)
_STREAM = RemoteMethod(f"{_SERVICE}/GenerateStream", fmaas.GenerationResponse)
_TOKENIZE = RemoteMethod(f"{_SERVICE}/Tokenize", fmaas.BatchedTokenizeResponse)
_MODEL_INFO = f"{_SERVICE}/ModelInfo"

_SAMPLING = ("temperature", "top_k", "top_p", "typical_p", "seed")
_STOPPING = ("max_new_tokens", "min_new_tokens", "stop_sequences", "include_stop_sequence")
_RESPONSE = ("generated_tokens", "input_tokens", "token_logprobs", "token_ranks")
_REASONS = {number: name for name, number in fmaas.StopReason.items()}
_MAX_UINT32 = 2**32 - 1

Answer = TypeVar("Answer")


@asynccontextmanager
async def open_tgis_client(service: ServiceSettings, *, limits_silence: bool = True) -> AsyncIterator["TgisClient"]:
    """Opens the client of a TGIS server; the first call opens the connection."""
    async with open_channel(service) as channel:
        yield TgisClient(Peer(channel, service, "generation", "generation", limits_silence=limits_silence))


class TgisClient:
    """Calls a generation server over gRPC; the message names the model."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def generate(self, request: Generation) -> dict[str, Any]:
        """Returns the whole answer as one message."""
        note_generation(request.model, "text_completion")
        message = fmaas.BatchedGenerationRequest(
            model_id=request.model,
            requests=[fmaas.GenerationRequest(text=request.body["text"])],
            params=build_parameters(request.body.get("params")),
        )
        failing = f"generate request failed for `{request.model}`"
        answer = await self._peer.ask(_GENERATE, OutgoingCall(message, failing, request.headers))
        return _build_message(_first(answer.responses, failing))

    async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """Yields the messages of the answer as they arrive."""
        note_generation(request.model, "text_completion")
        message = fmaas.SingleGenerationRequest(
            model_id=request.model,
            request=fmaas.GenerationRequest(text=request.body["text"]),
            params=build_parameters(request.body.get("params")),
        )
        failing = f"generate request failed for `{request.model}`"
        async with aclosing(self._peer.stream(_STREAM, OutgoingCall(message, failing, request.headers))) as answers:
            async for answer in answers:
                yield [{**_build_message(answer), "start_index": 0}]

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """Returns the number of tokens of the text."""
        message = fmaas.BatchedTokenizeRequest(model_id=model, requests=[fmaas.TokenizeRequest(text=text)])
        failing = f"tokenize request failed for `{model}`"
        answer = await self._peer.ask(_TOKENIZE, OutgoingCall(message, failing, headers))
        return _first(answer.responses, failing).token_count

    async def probe(self, headers: Headers) -> Health:
        """Returns the server's health; never raises. The headers are not sent."""
        return await self._peer.probe(_MODEL_INFO, fmaas.ModelInfoRequest())


def build_parameters(params: Mapping[str, Any] | None) -> fmaas.Parameters | None:
    """Converts a request's parameters for TGIS; absent ones are 0, unknown ones are left out."""
    if params is None:
        return None
    given = {name: value for name, value in params.items() if value is not None}
    return fmaas.Parameters(
        method="SAMPLE" if given.get("decoding_method") == "SAMPLE" else "GREEDY",
        sampling=fmaas.SamplingParameters(**_pick(given, _SAMPLING)),
        stopping=fmaas.StoppingCriteria(
            time_limit_millis=int(min(max(given.get("max_time", 0), 0), _MAX_UINT32)), **_pick(given, _STOPPING)
        ),
        response=fmaas.ResponseOptions(input_text=given.get("preserve_input_text", False), **_pick(given, _RESPONSE)),
        decoding=_build_decoding(given),
        truncate_input_tokens=given.get("truncate_input_tokens", 0),
    )


def _build_decoding(given: Mapping[str, Any]) -> fmaas.DecodingParameters:
    decoding = fmaas.DecodingParameters(**_pick(given, ("repetition_penalty",)))
    penalty = given.get("exponential_decay_length_penalty")
    if penalty is not None:
        fields = {name: value for name, value in penalty.items() if value is not None}
        decoding.length_penalty.SetInParent()
        decoding.length_penalty.start_index = fields.get("start_index", 0)
        decoding.length_penalty.decay_factor = fields.get("decay_factor", 0.0)
    return decoding


def _pick(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _first(answers: Sequence[Answer], failing: str) -> Answer:
    if not answers:
        raise BrokeProtocol("generation", f"{failing}: the answer is empty")
    return answers[0]


def _build_message(answer: fmaas.GenerationResponse) -> dict[str, Any]:
    message: dict[str, Any] = {
        "generated_text": answer.text,
        "finish_reason": _REASONS.get(answer.stop_reason, "NOT_FINISHED"),
        "generated_token_count": answer.generated_token_count,
        "seed": answer.seed & _MAX_UINT32,
        "input_token_count": answer.input_token_count,
    }
    if answer.tokens:
        message["tokens"] = _build_tokens(answer.tokens)
    if answer.input_tokens:
        message["input_tokens"] = _build_tokens(answer.input_tokens)
    return message


def _build_tokens(tokens: Iterable[fmaas.TokenInfo]) -> list[dict[str, Any]]:
    return [{"text": token.text, "logprob": token.logprob, "rank": token.rank} for token in tokens]
