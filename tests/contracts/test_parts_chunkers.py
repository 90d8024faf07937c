# SPDX-License-Identifier: Apache-2.0
"""Our chunkers as a service, over raw gRPC: what comes when, how calls are refused, and what if one leaves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.protos import caikit_runtime_chunkers_pb2 as chunkers
from lockgate.protos import grpc_health_pb2 as health
from tests.contracts.grpc_peers import CHUNKERS
from tests.contracts.parts_process import PartsProcess, serving_parts
from tests.waits import HANG_S, until

CUT = f"{CHUNKERS}/ChunkerTokenizationTaskPredict"
STREAM = f"{CHUNKERS}/BidiStreamingChunkerTokenizationTaskPredict"


@asynccontextmanager
async def channel_to(parts: PartsProcess) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{parts.chunkers_port}") as channel:
        yield channel


def metadata(name: str | None) -> tuple[tuple[str, str], ...]:
    return () if name is None else (("mm-model-id", name),)


async def cut(channel: grpc.aio.Channel, text: str, name: str | None = "sentence") -> Any:
    method: Any = channel.unary_unary(CUT)
    raw = chunkers.ChunkerTokenizationTaskRequest(text=text).SerializeToString()
    return nlp.TokenizationResults.FromString(await method(raw, metadata=metadata(name), timeout=HANG_S))


class Stream:
    """One call in both directions."""

    def __init__(self, channel: grpc.aio.Channel, name: str | None = "sentence") -> None:
        method: Any = channel.stream_stream(STREAM)
        self.call = method(metadata=metadata(name), timeout=HANG_S)

    async def send(self, text: str, number: int) -> None:
        message = chunkers.BidiStreamingChunkerTokenizationTaskRequest(text_stream=text, input_index_stream=number)
        await self.call.write(message.SerializeToString())

    async def read(self) -> Any:
        """The next chunk, or None at the end."""
        raw = await self.call.read()
        return None if raw is grpc.aio.EOF else nlp.ChunkerTokenizationStreamResult.FromString(raw)

    async def finish(self) -> list[Any]:
        """End the text; the chunks that still come."""
        await self.call.done_writing()
        found = []
        while (chunk := await self.read()) is not None:
            found.append(chunk)
        return found


async def refusal_of(channel: grpc.aio.Channel, texts: Sequence[str], name: str | None) -> tuple[grpc.StatusCode, str]:
    """The status of a refused stream, but none that the library makes up when a refusal overtakes what it sends."""
    while True:
        stream = Stream(channel, name)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            for number, text in enumerate(texts):
                await stream.send(text, number)
            await stream.finish()
            raise AssertionError("was not refused")
        if caught.value.details() != "Internal error from Core":
            return caught.value.code(), caught.value.details() or ""


def describe(chunk: Any) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """Text, place and messages of a chunk; its one token says the same."""
    [token] = chunk.results
    assert (token.start, token.end, chunk.token_count) == (chunk.start_index, chunk.processed_index, 1)
    inputs = (chunk.input_start_index, chunk.input_end_index)
    return token.text, (chunk.start_index, chunk.processed_index), inputs


async def test_a_whole_text_comes_back_as_tokens_with_places_in_code_points(parts: PartsProcess) -> None:
    async with channel_to(parts) as channel:
        answer = await cut(channel, "😀 One.  Two!")
    assert [(one.start, one.end, one.text) for one in answer.results] == [(0, 8, "😀 One.  "), (8, 12, "Two!")]
    assert answer.token_count == 2


async def test_the_answer_begins_before_any_text_is_sent(parts: PartsProcess) -> None:
    async with channel_to(parts) as channel:
        stream = Stream(channel)
        await stream.call.initial_metadata()
        assert await stream.finish() == []


async def test_a_chunk_comes_as_soon_as_it_is_known_and_names_the_messages_that_it_is_made_of(
    parts: PartsProcess,
) -> None:
    async with channel_to(parts) as channel:
        stream = Stream(channel)
        for number, text in ((0, ""), (3, "One"), (4, ". Tw"), (5, "o!")):
            await stream.send(text, number)
        assert describe(await stream.read()) == ("One. ", (0, 5), (0, 4))
        await stream.send(" ", 6)
        await stream.send("", 7)
        assert [describe(one) for one in await stream.finish()] == [("Two! ", (5, 10), (4, 7))]


async def test_a_chunk_inside_one_message_names_that_message_only(parts: PartsProcess) -> None:
    async with channel_to(parts) as channel:
        stream = Stream(channel, "word")
        await stream.send("a b c", 9)
        assert [describe(one)[2] for one in await stream.finish()] == [(9, 9)] * 3


async def test_an_unknown_chunker_is_told_at_once_by_both_methods(parts: PartsProcess) -> None:
    expected = (grpc.StatusCode.NOT_FOUND, "chunker `nobody` not found")
    async with channel_to(parts) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cut(channel, "a", "nobody")
        assert (caught.value.code(), caught.value.details()) == expected
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stream(channel, "nobody").read()  # nothing was sent
        assert (caught.value.code(), caught.value.details()) == expected
        assert (await refusal_of(channel, ["a"], "whole_doc_chunker"))[0] is grpc.StatusCode.NOT_FOUND


async def test_a_call_must_name_a_chunker(parts: PartsProcess) -> None:
    async with channel_to(parts) as channel:
        code, details = await refusal_of(channel, ["a"], None)
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "metadata `mm-model-id` must name a chunker")


async def test_the_standard_health_service_answers(parts: PartsProcess) -> None:
    async with channel_to(parts) as channel:
        method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        for service in ("", CHUNKERS.strip("/")):
            raw = await method(health.HealthCheckRequest(service=service).SerializeToString())
            assert health.HealthCheckResponse.FromString(raw).status == health.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(health.HealthCheckRequest(service="other").SerializeToString())
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_chunkers_of_the_settings_are_served_with_their_options(configured: PartsProcess) -> None:
    async with channel_to(configured) as channel:
        answer = await cut(channel, "one two three four five six", "short")
        assert [one.text for one in answer.results] == ["one two three ", "four five six"]
        assert (await refusal_of(channel, ["a"], "far"))[0] is grpc.StatusCode.NOT_FOUND
        stream = Stream(channel, "whole")
        await stream.send("", 1)
        await stream.send("", 2)
        assert [describe(one) for one in await stream.finish()] == [("", (0, 0), (1, 2))]


async def test_a_message_that_is_too_large_and_text_that_no_chunk_takes_up_are_refused(
    configured: PartsProcess,
) -> None:
    async with channel_to(configured) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cut(channel, "a" * 3000)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        code, details = await refusal_of(channel, ["a" * 400, "b" * 400, "c"], "whole")
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details == "more than 500 characters wait for the end of a chunk"


async def test_a_client_that_leaves_frees_its_place(configured: PartsProcess) -> None:
    async with channel_to(configured) as channel:
        stream = Stream(channel, "word")
        await stream.send("one two", 0)
        assert (await stream.read()).results[0].text == "one "
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cut(channel, "a")
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "too many requests at once, try again later",
        )
        before = len(configured.events("client_left"))
        stream.call.cancel()
        await until(lambda: len(configured.events("client_left")) > before, "the end of the call")
        assert (await cut(channel, "a")).token_count == 1


async def test_a_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with serving_parts(tmp_path, LOCKGATE_LIMITS__REQUEST_TIMEOUT_S="1") as hasty:
        async with channel_to(hasty) as channel:
            stream = Stream(channel, "word")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "request timed out")


async def test_every_call_leaves_one_line_in_the_log(parts: PartsProcess) -> None:
    trace = "1bf7651916cd43dd8448eb211c80319c"
    own = (("mm-model-id", "word"), ("traceparent", f"00-{trace}-b7ad6b7169203331-01"))
    async with channel_to(parts) as channel:
        method: Any = channel.stream_stream(STREAM)
        call = method(metadata=own)
        await call.write(chunkers.BidiStreamingChunkerTokenizationTaskRequest(text_stream="x y").SerializeToString())
        await call.done_writing()
        assert len([one async for one in call]) == 2
    line = {"trace_id": trace, "path": STREAM, "status": 200, "events": 2}
    await until(lambda: parts.has_logged("request", **line), "the line")
