# SPDX-License-Identifier: Apache-2.0
"""Calls a chunker over gRPC with a whole text or a stream of frames. The gate checks the chunks."""

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

Result = TypeVar("Result")
Call = grpc.aio.StreamStreamCall[bytes, bytes]


@asynccontextmanager
async def open_chunker_client(chunker_id: str, service: ServiceSettings) -> AsyncIterator["ChunkerClient"]:
    """Opens the client of a remote chunker; the first call opens the connection."""
    async with open_channel(service) as channel:
        yield ChunkerClient(chunker_id, service, channel)


class ChunkerClient:
    """Calls a chunker over gRPC; the metadata names it by its id."""

    def __init__(self, chunker_id: str, service: ServiceSettings, channel: grpc.aio.Channel) -> None:
        self._id = chunker_id
        self._own = (("mm-model-id", chunker_id),)
        self._peer = Peer(channel, service, "chunker", chunker_id)
        self._failing = f"chunker request failed for `{chunker_id}`"

    async def cut(self, text: str) -> Sequence[Chunk]:
        """Returns all chunks of a complete text."""
        request = ChunkerTokenizationTaskRequest(text=text)
        answer = await self._peer.ask(_CUT, OutgoingCall(request, self._failing, own=self._own))
        return [Chunk(token.start, token.end, token.text) for token in answer.results]

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Yields chunks while frames of the text arrive. If no frame has text, the chunker is not called."""
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
        """Returns the chunker's health; never raises. The headers are not sent."""
        return await self._peer.probe()


class _Feed:
    """Sends the frames of a stream in a task, while the caller reads the chunks.

    If sending fails, the call is cancelled and the reader raises the reason. If the call fails, the reader raises that.
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
        """Sends while the context is open. Not in a task group, which would wrongly cancel the generator."""
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
        """Raises the chunker's reason for ending the call; returns if the chunker ended it with OK.

        A write after the chunker has ended the call makes grpc set another status, shortly before or after the
        chunker's. So every status is kept, and this waits for the chunker's.
        """
        lost = self._lost and (self._lost.code(), self._lost.details())
        for _ in range(_REASON_TRIES):
            others = [status for status in self._statuses if status != lost]
            if others:
                code, details = others[0]
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
        """Sends one frame; waits while the chunker does not read."""
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
    """Awaits one step of the call and raises _CallIsOver for its errors; errors of the frames pass unchanged."""
    try:
        await step
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as error:
        raise _CallIsOver(error) from error


def _run_at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that never waits and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise RuntimeError("the status of a call that has one was waited for")


async def _take_until_text(frames: AsyncIterator[Frame]) -> list[Frame]:
    """Returns the frames up to the first with text; none without text, since some chunkers fail there."""
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
