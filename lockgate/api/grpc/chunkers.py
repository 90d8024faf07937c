# SPDX-License-Identifier: Apache-2.0
"""The chunker API over gRPC: texts in, chunks out with the messages that they were made of."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from lockgate.api.grpc.port import Calls, Context, read_metadata
from lockgate.errors import HeldTooMuch, RequestError
from lockgate.gate.chunker_inputs import InputLog
from lockgate.gate.values import Chunk, Frame
from lockgate.interfaces import Chunker
from lockgate.protos.caikit_data_model_nlp_pb2 import ChunkerTokenizationStreamResult, Token, TokenizationResults
from lockgate.protos.caikit_runtime_chunkers_pb2 import (
    BidiStreamingChunkerTokenizationTaskRequest,
    ChunkerTokenizationTaskRequest,
)
from lockgate.server.callers import CallerShare
from lockgate.telemetry import answer_started, frame_sent

SERVICE = "caikit.runtime.Chunkers.ChunkersService"
CUT = "ChunkerTokenizationTaskPredict"
STREAM = "BidiStreamingChunkerTokenizationTaskPredict"
_MODEL = "mm-model-id"
_FEW_CHUNKS = 1000  # more are encoded in a thread

Messages = AsyncIterator[BidiStreamingChunkerTokenizationTaskRequest]


class ChunkerMethods:
    """The methods of the service."""

    def __init__(self, chunkers: Mapping[str, Chunker], calls: Calls, *, max_held_chars: int) -> None:
        self._chunkers = chunkers
        self._calls = calls
        self._max_held_chars = max_held_chars

    async def cut(self, request: ChunkerTokenizationTaskRequest, context: Context) -> TokenizationResults:
        """All chunks of a text."""
        return await self._calls.attend(f"/{SERVICE}/{CUT}", context, partial(self._cut, request, context))

    async def stream(self, messages: Messages, context: Context) -> None:
        """Chunks as soon as they are known, while the text still arrives."""
        await self._calls.attend(f"/{SERVICE}/{STREAM}", context, partial(self._stream, messages, context))

    async def _cut(
        self, request: ChunkerTokenizationTaskRequest, context: Context, _: CallerShare
    ) -> TokenizationResults:
        chunks = await self._find(context).cut(request.text)
        is_long = len(chunks) > _FEW_CHUNKS
        answer = await asyncio.to_thread(_build_results, chunks) if is_long else _build_results(chunks)
        answer_started(200, is_stream=False)
        return answer

    async def _stream(self, messages: Messages, context: Context, _: CallerShare) -> None:
        chunker = self._find(context)
        await context.send_initial_metadata(())  # at once: some callers send no text before they have it (G-122)
        answer_started(200, is_stream=True)
        log = InputLog()
        async with (
            aclosing(self._read_frames(messages, log)) as frames,
            aclosing(chunker.stream(frames)) as chunks,
        ):
            async for chunk in chunks:
                await context.write(_build_stream_result(chunk, log.place(chunk.start, chunk.end)))
                frame_sent()

    def _find(self, context: Context) -> Chunker:
        name = read_metadata(context, _MODEL)
        if not name and len(self._chunkers) == 1:
            return next(iter(self._chunkers.values()))
        if not name:
            raise RequestError(f"metadata `{_MODEL}` must name a chunker")
        chunker = self._chunkers.get(name)
        if chunker is None:
            raise RequestError(f"chunker `{name}` not found", status=404)
        return chunker

    async def _read_frames(self, messages: Messages, log: InputLog) -> AsyncGenerator[Frame, None]:
        async for message in messages:
            if log.held_chars > self._max_held_chars:
                raise HeldTooMuch(f"more than {self._max_held_chars} characters wait for the end of a chunk")
            log.receive(message.input_index_stream, len(message.text_stream))
            yield Frame(message.input_index_stream, message.text_stream)
        log.finish()


def _build_token(chunk: Chunk) -> Token:
    return Token(start=chunk.start, end=chunk.end, text=chunk.text)


def _build_results(chunks: Sequence[Chunk]) -> TokenizationResults:
    return TokenizationResults(results=[_build_token(chunk) for chunk in chunks], token_count=len(chunks))


def _build_stream_result(chunk: Chunk, inputs: tuple[int, int]) -> ChunkerTokenizationStreamResult:
    return ChunkerTokenizationStreamResult(
        results=[_build_token(chunk)],
        processed_index=chunk.end,
        start_index=chunk.start,
        token_count=1,
        input_start_index=inputs[0],
        input_end_index=inputs[1],
    )
