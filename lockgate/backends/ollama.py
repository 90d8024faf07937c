# SPDX-License-Identifier: Apache-2.0
"""Ollama's own API: a chat model and an embedding model.

Decides the size of embedding batches and the error messages. lockgate.backends.ollama_format encodes and decodes the
bodies. No request is retried.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from lockgate.backends.endpoints import NO_DETAIL, STREAM_WINDOW_BYTES, Scrubber, find_path, open_caller, own_headers
from lockgate.backends.http import HttpCaller, OutgoingRequest, decode, refuse
from lockgate.backends.http_model import HttpModel, ModelAnswer
from lockgate.backends.ollama_format import (
    TAKES,
    OllamaChatReader,
    encode_chat,
    encode_texts,
    has_model,
    read_answer,
    read_refusal,
    read_vectors,
)
from lockgate.backends.replies import MAX_DETAIL_CHARS, read_detail
from lockgate.config.agent_settings import OllamaModelSettings
from lockgate.errors import BrokeProtocol, UpstreamError
from lockgate.gate.values import Health, Message
from lockgate.interfaces import Headers

NAME = "ollama"
NDJSON = "application/x-ndjson"
MAX_STREAM_BYTES = 1024 * 1024 * 1024  # a line has about a hundred bytes for each byte of text
EMBED_TIMEOUT_S = 120.0  # per batch; a model may have to be loaded first
MAX_BATCH = 64

_ANSWER_FAILED = "Embedding failed: "
_WELL_BELOW = 300  # Ollama answers a probe with a lower status
_NO_TOKENS = Scrubber()


class OllamaModel(HttpModel):
    """A chat model."""

    reader = OllamaChatReader
    stream_type = NDJSON
    always_streams = True  # a whole answer is a stream of one line
    needs_end = True
    max_stream_bytes = MAX_STREAM_BYTES
    takes = TAKES

    def __init__(self, caller: HttpCaller, settings: OllamaModelSettings) -> None:
        super().__init__(caller, find_path(settings.url, "/api/chat"), own_headers(), _NO_TOKENS)
        self._model = settings.model
        self._version_url = find_path(settings.url, "/api/version")
        self._tags_url = find_path(settings.url, "/api/tags")
        self.known_as = settings.model

    async def probe(self, headers: Headers) -> Health:
        """Returns whether the server answers and has the model, if it lists its models; never raises."""
        try:
            answer = await self._caller.fetch(self._tags_url, self._headers)
            if answer.status == 200 and not has_model(answer.body, self._model):
                return Health("UNHEALTHY", 404, f"there is no model `{self._model}`: `ollama pull` fetches it")
        except (UpstreamError, ValueError, RecursionError):
            pass  # the list of models is optional
        return await self._caller.probe_at(self._version_url, self._headers, _WELL_BELOW)

    def _encode(self, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
        return encode_chat(self._model, messages, params)

    def _decode(self, body: bytes) -> ModelAnswer:
        return read_answer(body)

    def _find_detail(self, body: bytes) -> str:
        return read_refusal(body)[:MAX_DETAIL_CHARS] or read_detail(body, self._scrub) or NO_DETAIL


class OllamaEmbedder:
    """An embedding model."""

    def __init__(self, caller: HttpCaller, settings: OllamaModelSettings) -> None:
        self._caller = caller
        self.model = settings.model
        self._url = find_path(settings.url, "/api/embed")
        self._version_url = find_path(settings.url, "/api/version")
        self._headers = own_headers()

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Returns one vector of length 1 per text; many texts are sent in batches, one after the other."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), MAX_BATCH):
            vectors += await self._embed_batch(texts[start : start + MAX_BATCH])
        return vectors

    async def probe(self, headers: Headers) -> Health:
        """Returns whether the server answers; never raises."""
        return await self._caller.probe_at(self._version_url, self._headers, _WELL_BELOW)

    async def _embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        name = self._caller.name
        try:
            outgoing = OutgoingRequest(self._url, self._headers, encode_texts(self.model, texts), _ANSWER_FAILED)
        except ValueError:
            raise BrokeProtocol(name, f"{_ANSWER_FAILED}what is asked is no valid text") from None
        answer = await self._caller.post(outgoing)
        if answer.status != 200:
            detail = read_refusal(answer.body)[:MAX_DETAIL_CHARS] or NO_DETAIL
            own = f"{_ANSWER_FAILED}HTTP {answer.status}"
            raise refuse(name, f"{own} - {detail}", answer.status, words=detail, own=own)
        try:
            return await decode(answer.body, partial(read_vectors, count=len(texts)))
        except (ValueError, RecursionError):
            raise BrokeProtocol(name, f"{_ANSWER_FAILED}the answer is not one vector for each text") from None


@asynccontextmanager
async def open_ollama_model(settings: OllamaModelSettings, *, resends: bool = True) -> AsyncIterator[OllamaModel]:
    """Opens a chat model; leaving closes its connections. The user of the model limits the time."""
    async with open_caller("model", NAME, window_bytes=STREAM_WINDOW_BYTES, resends=resends) as caller:
        yield OllamaModel(caller, settings)


@asynccontextmanager
async def open_ollama_embedder(settings: OllamaModelSettings, *, resends: bool = True) -> AsyncIterator[OllamaEmbedder]:
    """Opens an embedding model; leaving closes its connections."""
    async with open_caller("embedder", NAME, EMBED_TIMEOUT_S, resends=resends) as caller:
        yield OllamaEmbedder(caller, settings)
