# SPDX-License-Identifier: Apache-2.0
"""Calls a chunker over gRPC: a whole text in one call, or a stream of frames. The gate checks the chunks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from lockgate.backends.grpc import OutgoingCall, Peer, RemoteMethod, open_channel, reading
from lockgate.config.settings import ServiceSettings
from lockgate.errors import BrokeProtocol
from lockgate.gate.values import Chunk, Frame, Health
from lockgate.interfaces import Headers
from lockgate.protos.caikit_data_model_nlp_pb2 import ChunkerTokenizationStreamResult, TokenizationResults
from lockgate.protos.caikit_runtime_chunkers_pb2 import (
    BidiStreamingChunkerTokenizationTaskRequest,
    ChunkerTokenizationTaskRequest,
)

_SERVICE = "/caikit.runtime.Chunkers.ChunkersService"
_CUT = RemoteMethod(f"{_SERVICE}/ChunkerTokenizationTaskPredict", TokenizationResults)
_STREAM = RemoteMethod(f"{_SERVICE}/BidiStreamingChunkerTokenizationTaskPredict", ChunkerTokenizationStreamResult)
_REASON_TRIES = 100
_REASON_PAUSE_S = 0.001

Told = TypeVar("Told")
Call = grpc.aio.StreamStreamCall[bytes, bytes]


@asynccontextmanager
async def open_chunker_client(chunker_id: str, service: ServiceSettings) -> AsyncIterator["ChunkerClient"]:
    """A chunker that runs elsewhere; nothing is connected before it is used."""
    async with open_channel(service) as channel:
        yield ChunkerClient(chunker_id, service, channel)


class ChunkerClient:
    """A chunker behind gRPC, known to its server by its id."""

    def __init__(self, chunker_id: str, service: ServiceSettings, channel: grpc.aio.Channel) -> None:
        self._id = chunker_id
        self._own = (("mm-model-id", chunker_id),)
        self._peer = Peer(channel, service, "chunker", chunker_id)
        self._failing = f"chunker request failed for `{chunker_id}`"

    async def cut(self, text: str) -> Sequence[Chunk]:
        """All chunks of a text that is complete."""
        request = ChunkerTokenizationTaskRequest(text=text)
        answer = await self._peer.ask(_CUT, OutgoingCall(request, self._failing, own=self._own))
        return [Chunk(token.start, token.end, token.text) for token in answer.results]

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Chunks as they come, while the text still arrives. Without any text the chunker is not called."""
        kept = await _take_until_text(frames)
        if not kept:
            return
        with self._peer.calling(self._failing) as counted:
            call = self._peer.converse(_STREAM.path, self._own)
            feed = _Feed(self._peer, call, self._failing)
            async with reading(call) as answers, feed.running(kept, frames):
                async for raw in answers:
                    counted.status = 200
                    yield _build_chunk(_STREAM.answer.FromString(raw))
            if not feed.has_ended:
                raise BrokeProtocol(self._id, f"{self._failing}: the chunks ended before the text did")
            counted.stream_ended()

    async def probe(self, headers: Headers) -> Health:
        """How it is now; never raises. The headers are not for it."""
        return await self._peer.probe()


class _Feed:
    """The outgoing half of a stream, beside the incoming one.

    When it fails, so does the call, and the reader gets the reason. When the call fails, the reader knows best why.
    """

    def __init__(self, peer: Peer, call: Call, failing: str) -> None:
        self._peer = peer
        self._call = call
        self._failing = failing
        self._lost: grpc.aio.AioRpcError | None = None
        self._statuses: list[tuple[grpc.StatusCode, str | None]] = []
        call.add_done_callback(self._note_status)
        self.has_ended = False

    @asynccontextmanager
    async def running(self, kept: Sequence[Frame], frames: AsyncIterator[Frame]) -> AsyncIterator[None]:
        """Sends while the context is open. No task group: a generator that waits inside one is cancelled by mistake."""
        task = asyncio.create_task(self._send_all(kept, frames))
        task.add_done_callback(self._end_call_if_failed)
        try:
            yield
        except asyncio.CancelledError:
            failure = task.exception() if task.done() and not task.cancelled() else None
            reader = asyncio.current_task()
            if failure is None or (reader is not None and reader.cancelling()):
                raise
            raise failure from None
        except grpc.aio.AioRpcError as error:
            await self._raise_reason(error)
        finally:
            self._call.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _end_call_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._call.cancel()

    def _note_status(self, call: Call) -> None:
        self._statuses.append((_run_at_once(call.code()), _run_at_once(call.details())))

    async def _raise_reason(self, error: grpc.aio.AioRpcError) -> None:
        """Why the call has ended, if it did not end well.

        A write that fails because the chunker has just ended the call gives the call a status of grpc's own, a moment
        before or after the chunker's; hence all are noted, and the chunker's is waited for.
        """
        lost = self._lost and (self._lost.code(), self._lost.details())
        for _ in range(_REASON_TRIES):
            told = [status for status in self._statuses if status != lost]
            if told:
                code, details = told[0]
                if code is grpc.StatusCode.OK:
                    return
                raise grpc.aio.AioRpcError(code, details=details) from error
            await asyncio.sleep(_REASON_PAUSE_S)
        raise error

    async def _send_all(self, kept: Sequence[Frame], frames: AsyncIterator[Frame]) -> None:
        with suppress(_CallIsOver):
            async with self._peer.in_time(self._failing):
                await _within_call(self._call.wait_for_connection())
            for frame in kept:
                await self._send(frame)
            async for frame in frames:
                await self._send(frame)
            self.has_ended = True
            await _within_call(self._call.done_writing())
            async with self._peer.in_time(self._failing):
                await self._call.initial_metadata()

    async def _send(self, frame: Frame) -> None:
        """Waits while the chunker does not read."""
        request = BidiStreamingChunkerTokenizationTaskRequest(text_stream=frame.text, input_index_stream=frame.number)
        try:
            await _within_call(self._call.write(request.SerializeToString()))
        except _CallIsOver as over:
            self._lost = over.error
            raise


class _CallIsOver(Exception):
    def __init__(self, error: Exception) -> None:
        self.error = error if isinstance(error, grpc.aio.AioRpcError) else None


async def _within_call(step: Awaitable[None]) -> None:
    """A step of the call; what else may go wrong while sending, goes wrong outside of it."""
    try:
        await step
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
        raise _CallIsOver(error) from error


def _run_at_once(told: Coroutine[Any, Any, Told]) -> Told:
    """What a coroutine returns that has nothing to wait for."""
    try:
        told.send(None)
    except StopIteration as stop:
        result: Told = stop.value
        return result
    raise RuntimeError("the status of a call that has one was waited for")


async def _take_until_text(frames: AsyncIterator[Frame]) -> list[Frame]:
    """The frames up to the first with text, or none if there is none: some chunkers fail where no text comes."""
    kept = []
    async for frame in frames:
        kept.append(frame)
        if frame.text:
            return kept
    return []


def _build_chunk(answer: ChunkerTokenizationStreamResult) -> Chunk:
    text = "".join([token.text for token in answer.results])
    inputs = (answer.input_start_index, answer.input_end_index)
    return Chunk(answer.start_index, answer.processed_index, text, inputs=inputs)
