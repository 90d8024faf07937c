# SPDX-License-Identifier: Apache-2.0
"""The chunker client against real servers, most of which misbehave."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from itertools import count
from typing import Any

import grpc
import pytest
import uvloop

from lockgate.backends.chunker import ChunkerClient, open_chunker_client
from lockgate.errors import BrokeProtocol, ConfigError, LockgateError, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Chunk, Frame, Health
from lockgate.interfaces import Chunker, Probe
from lockgate.plugins import find_factory
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.protos import grpc_health_pb2 as health
from lockgate.testing import check_chunker
from tests.contracts.grpc_peers import (
    Context,
    GrpcServer,
    add_health,
    at,
    build_chunk,
    build_chunker_server,
    failing_with,
    frames_of,
    serve_chunker,
)
from tests.contracts.http_peers import open_closed_port
from tests.waits import LoopClock, forever, is_pending, latency, settled, until

PREFIX = "chunker request failed for `en`: "


@asynccontextmanager
async def calling(server: GrpcServer, **settings: Any) -> AsyncIterator[ChunkerClient]:
    async with server.listening() as port, open_chunker_client("en", at(port, **settings)) as client:
        yield client


async def collect(client: Chunker, texts: list[str]) -> list[Chunk]:
    return [chunk async for chunk in client.stream(frames_of(texts))]


async def echo(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
    """One chunk per frame."""
    at_char = 0
    async for message in messages:
        end = at_char + len(message.text_stream)
        number = message.input_index_stream
        yield build_chunk(at_char, end, message.text_stream, inputs=(number, number))
        at_char = end


async def check_one_of_ours() -> None:
    async with find_factory("lockgate.chunkers", "sentence")({}) as chunker, calling(serve_chunker(chunker)) as client:
        as_chunker: Chunker = client
        as_probe: Probe = client
        await check_chunker(as_chunker)
        assert (await as_probe.probe(())).code == 501


async def test_a_chunker_behind_grpc_keeps_the_contract_of_chunkers() -> None:
    await check_one_of_ours()


def test_it_does_so_on_the_loop_that_the_server_runs_on() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_one_of_ours())


async def test_every_token_of_a_whole_text_is_a_chunk() -> None:
    async def cut(_request: Any, _context: Context) -> Any:
        tokens = [nlp.Token(start=0, end=3, text="Hé."), nlp.Token(start=4, end=6, text="👍.")]
        return nlp.TokenizationResults(results=tokens, token_count=17)

    server = build_chunker_server(cut=cut)
    async with calling(server) as client:
        assert await client.cut("Hé. 👍.") == [Chunk(0, 3, "Hé."), Chunk(4, 6, "👍.")]
    assert server.record.received[0].text == "Hé. 👍."


async def test_the_chunker_is_told_its_id_and_the_trace_and_nothing_else() -> None:
    server = build_chunker_server(converse=echo)
    async with calling(server) as client:
        await collect(client, ["a"])
    sent = {name for name, _ in server.record.metadata[0]} - {"user-agent"}
    assert sent == {"mm-model-id", "traceparent", "tracestate"}
    assert server.record.headers()["mm-model-id"] == "en"


async def test_a_stream_sends_one_request_per_frame_in_order_and_ends_it() -> None:
    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        texts = [message.text_stream async for message in messages]  # ends only when the client says so
        yield build_chunk(0, 3, "One", inputs=(0, 1))
        yield build_chunk(3, 9, " two", "3.", inputs=(1, 2))
        assert texts == ["On", "e two", "3."]

    server = build_chunker_server(converse=converse)
    async with calling(server) as client:
        chunks = await collect(client, ["On", "e two", "3."])
    assert chunks == [Chunk(0, 3, "One", inputs=(0, 1)), Chunk(3, 9, " two3.", inputs=(1, 2))]
    assert [message.input_index_stream for message in server.record.received] == [0, 1, 2]


async def test_chunks_come_while_the_text_still_arrives() -> None:
    hold: asyncio.Queue[Frame | None] = asyncio.Queue()

    async def frames() -> AsyncGenerator[Frame, None]:
        while (frame := await hold.get()) is not None:
            yield frame

    async with calling(build_chunker_server(converse=echo)) as client, aclosing(client.stream(frames())) as chunks:
        for number in range(3):
            hold.put_nowait(Frame(number, "abc"))
            assert (await anext(chunks)).start == 3 * number
        hold.put_nowait(None)
        assert [chunk async for chunk in chunks] == []


@pytest.mark.parametrize("texts", [[], ["", "", ""]])
async def test_without_any_text_the_chunker_is_not_called(texts: list[str]) -> None:
    server = build_chunker_server(converse=echo)
    async with calling(server) as client:
        assert await collect(client, texts) == []
    assert server.record.calls == 0


async def test_empty_frames_before_the_first_text_are_sent_too() -> None:
    server = build_chunker_server(converse=echo)
    async with calling(server) as client:
        await collect(client, ["", "", "a", "", "b"])
    assert [message.text_stream for message in server.record.received] == ["", "", "a", "", "b"]
    assert [message.input_index_stream for message in server.record.received] == [0, 1, 2, 3, 4]


async def test_many_frames_keep_their_order() -> None:
    texts = [f"{number} " for number in range(2000)]
    async with calling(build_chunker_server(converse=echo)) as client:
        chunks = await collect(client, texts)
    assert [chunk.text for chunk in chunks] == texts
    assert chunks[-1].end == sum(map(len, texts))


async def test_many_streams_at_once_do_not_mix() -> None:
    async with calling(build_chunker_server(converse=echo)) as client:
        texts = [[f"{stream}-{number} " for number in range(20)] for stream in range(30)]
        found = await asyncio.gather(*(collect(client, one) for one in texts))
    assert [[chunk.text for chunk in chunks] for chunks in found] == texts


async def test_frames_are_not_read_faster_than_the_chunker_takes_them() -> None:
    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        await anext(messages)
        yield build_chunk(0, 1, "x")
        await forever()

    pulled = 0

    async def frames() -> AsyncGenerator[Frame, None]:
        nonlocal pulled
        for number in range(10_000):
            pulled += 1
            yield Frame(number, "x" * 10_000)

    server = build_chunker_server(converse=converse)
    async with calling(server) as client, aclosing(client.stream(frames())) as chunks:
        await anext(chunks)
        assert await settled(lambda: pulled) < 1000


async def test_chunks_that_end_before_the_text_are_a_broken_promise() -> None:
    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        await anext(messages)
        yield build_chunk(0, 1, "a")

    async def frames() -> AsyncGenerator[Frame, None]:
        yield Frame(0, "a")
        await forever()

    async with calling(build_chunker_server(converse=converse)) as client:
        chunks = client.stream(frames())
        assert (await anext(chunks)).text == "a"
        with pytest.raises(UpstreamError) as caught:
            await anext(chunks)
    assert caught.value.status == 500
    assert caught.value.message == PREFIX + "the chunks ended before the text did"


@pytest.mark.parametrize("has_failed", [False, True])
async def test_an_early_end_under_a_flood_of_frames_is_told_as_it_was(has_failed: bool) -> None:
    async def converse(messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for message in messages:
            yield build_chunk(0, 1, "a")
            if message.input_index_stream == 5:
                break
        if has_failed:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "enough")

    async def frames() -> AsyncGenerator[Frame, None]:
        for number in count():  # without end: that of the call comes first
            yield Frame(number, "a")

    async with calling(build_chunker_server(converse=converse)) as client:
        for _ in range(40):  # grpc has a race here: the status of a failed write hides that of the call
            with pytest.raises(UpstreamError) as caught:
                async for _ in client.stream(frames()):
                    pass
            words = "enough" if has_failed else "the chunks ended before the text did"
            assert (caught.value.status, caught.value.message) == (400 if has_failed else 500, PREFIX + words)


async def test_an_error_in_mid_stream_comes_after_the_chunks_before_it() -> None:
    async def converse(messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        await anext(messages)
        for number in range(50):
            yield build_chunk(number, number + 1, "a")
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such süße language")

    found = []
    async with calling(build_chunker_server(converse=converse)) as client:
        with pytest.raises(Rejected) as caught:
            async for chunk in client.stream(frames_of(["a"] * 3)):
                found.append(chunk)
                await latency(0.001)
    assert len(found) == 50
    assert (caught.value.status, caught.value.service) == (400, "en")
    assert caught.value.message == PREFIX + "no such süße language"


@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_a_reader_that_leaves_cancels_the_call_at_once(way: str) -> None:
    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        await anext(messages)
        yield build_chunk(0, 1, "a")
        await forever()

    has_closed = asyncio.Event()

    async def frames() -> AsyncGenerator[Frame, None]:
        try:
            yield Frame(0, "a")
            await forever()
        finally:
            has_closed.set()

    server = build_chunker_server(converse=converse)
    async with calling(server) as client:
        chunks = client.stream(frames())
        await anext(chunks)
        if way == "close":
            await chunks.aclose()
        else:
            reader = asyncio.ensure_future(anext(chunks))
            assert await is_pending(reader)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        assert has_closed.is_set()
        await server.record.left.wait()


async def test_a_unary_call_is_cancelled_at_once() -> None:
    server = build_chunker_server()
    async with calling(server) as client:
        asking = asyncio.create_task(client.cut("a"))
        await server.record.opened.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.record.left.wait()


@pytest.mark.parametrize("before", [0, 3])
async def test_an_error_of_the_frames_ends_the_call_and_comes_through(before: int) -> None:
    async def frames() -> AsyncGenerator[Frame, None]:
        for number in range(before):
            yield Frame(number, "a")
        if before:
            await server.record.opened.wait()
        raise Unavailable("model", "the model has gone")

    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        async for _ in messages:
            pass
        yield build_chunk(0, 1, "a")

    server = build_chunker_server(converse=converse)
    async with calling(server) as client:
        with pytest.raises(Unavailable, match="the model has gone"):
            await anext(client.stream(frames()))
        if before:
            await server.record.left.wait()
        assert server.record.calls == bool(before)


async def test_an_answer_that_is_no_message_is_a_broken_promise() -> None:
    async def cut(_request: Any, _context: Context) -> Any:
        return b"\xff\xff"

    async def converse(messages: AsyncIterator[Any], _context: Context) -> AsyncIterator[Any]:
        async for _ in messages:
            yield b"\xff\xff"

    async with calling(build_chunker_server(cut, converse)) as client:
        with pytest.raises(BrokeProtocol, match="is not the message agreed on"):
            await client.cut("a")
        with pytest.raises(BrokeProtocol, match="is not the message agreed on"):
            await collect(client, ["a", "b"])


@pytest.mark.parametrize(
    ("code", "error", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, Rejected, 400),
        (grpc.StatusCode.UNAUTHENTICATED, Rejected, 401),
        (grpc.StatusCode.PERMISSION_DENIED, Rejected, 403),
        (grpc.StatusCode.NOT_FOUND, Rejected, 404),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TimedOut, 408),
        (grpc.StatusCode.UNIMPLEMENTED, BrokeProtocol, 501),
        (grpc.StatusCode.UNAVAILABLE, Unavailable, 503),
        (grpc.StatusCode.INTERNAL, UpstreamError, 500),
        (grpc.StatusCode.CANCELLED, UpstreamError, 500),
        (grpc.StatusCode.UNKNOWN, UpstreamError, 500),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, UpstreamError, 500),
    ],
)
async def test_every_grpc_status_has_its_http_status(
    code: grpc.StatusCode, error: type[UpstreamError], status: int
) -> None:
    async with calling(build_chunker_server(cut=failing_with(code, "why"))) as client:
        with pytest.raises(error) as caught:
            await client.cut("a")
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.message) == (status, PREFIX + "why")


async def test_a_refused_connection_fails_at_once_and_a_service_that_is_back_is_found() -> None:
    server = build_chunker_server(converse=echo)
    async with AsyncExitStack() as stack:
        async with open_closed_port() as service:
            client = await stack.enter_async_context(open_chunker_client("en", service))
            for _ in range(2):
                with pytest.raises(Unavailable) as caught:
                    await collect(client, ["a"])
                assert caught.value.status == 503
                assert caught.value.message.startswith(PREFIX)
                assert "Connection refused" in caught.value.message
                assert str(service.port) not in caught.value.message
        async with server.listening(service.port or 0):
            chunks: list[Chunk] = []
            while not chunks:
                with suppress(Unavailable):
                    chunks = await collect(client, ["a"])
            assert chunks[0].text == "a"


async def test_a_chunker_that_does_not_answer_in_time_is_given_up() -> None:
    server = build_chunker_server()
    async with calling(server, request_timeout=1) as client:
        errors = await asyncio.gather(client.cut("a"), collect(client, ["a", "b"]), return_exceptions=True)
    assert [type(error) for error in errors] == [TimedOut, TimedOut]
    assert [error.status for error in errors if isinstance(error, LockgateError)] == [408, 408]


async def test_a_peer_that_says_nothing_at_all_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connections wait there, nobody takes them
        async with open_chunker_client("en", at(mute.getsockname()[1], request_timeout=1)) as client:
            outcomes = await asyncio.gather(client.cut("a"), collect(client, ["a"]), return_exceptions=True)
            assert [type(one) for one in outcomes] == [TimedOut, TimedOut]


async def test_the_time_limit_does_not_run_while_text_still_comes() -> None:
    has_begun = asyncio.Event()

    async def frames() -> AsyncGenerator[Frame, None]:
        yield Frame(0, "a")
        await has_begun.wait()
        for number in range(1, 6):
            LoopClock().advance()
            await asyncio.sleep(0)  # a limit that ran would be over now
            yield Frame(number, "a")

    async with calling(build_chunker_server(converse=echo), request_timeout=600) as client:
        chunks = []
        async for chunk in client.stream(frames()):
            has_begun.set()
            chunks.append(chunk)
    assert len(chunks) == 6


async def answer_not_serving(_request: Any, _context: Context) -> Any:
    return health.HealthCheckResponse(status=health.HealthCheckResponse.NOT_SERVING)


@pytest.mark.parametrize(
    ("behave", "expected"),
    [
        (answer_not_serving, Health("HEALTHY")),
        (failing_with(grpc.StatusCode.NOT_FOUND, ""), Health("HEALTHY")),
        (failing_with(grpc.StatusCode.INVALID_ARGUMENT, ""), Health("HEALTHY")),
        (failing_with(grpc.StatusCode.INTERNAL, "why"), Health("UNHEALTHY", 500)),
        (failing_with(grpc.StatusCode.UNAVAILABLE, "why"), Health("UNHEALTHY", 503)),
        (failing_with(grpc.StatusCode.UNIMPLEMENTED, "why"), Health("UNHEALTHY", 501)),
    ],
)
async def test_a_probe_asks_the_health_service_without_headers(behave: Any, expected: Health) -> None:
    server = add_health(GrpcServer(), behave)
    async with calling(server) as client:
        assert await client.probe([("authorization", "secret")]) == expected
    assert {name for name, _ in server.record.metadata[0]} <= {"user-agent"}


async def test_a_probe_of_nobody_is_unhealthy_and_never_raises() -> None:
    async with open_closed_port() as service, open_chunker_client("en", service) as client:
        assert await client.probe(()) == Health("UNHEALTHY", 503)
    assert await client.probe(()) == Health("UNHEALTHY", 500)  # closed


async def test_calls_that_run_when_the_client_is_closed_fail() -> None:
    server = build_chunker_server()
    async with server.listening() as port:
        async with open_chunker_client("en", at(port)) as client:
            calls = [asyncio.ensure_future(client.cut("a")), asyncio.ensure_future(collect(client, ["a"]))]
            await until(lambda: server.record.calls == 2, "both calls")
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Unavailable, Unavailable]


async def test_an_eager_host_must_resolve_at_start() -> None:
    service = at(1, resolution_strategy="eager", resolution_strategy_timeout=600)
    async with open_chunker_client("en", service):
        pass
    nowhere = type(service)("nowhere.invalid", 1, resolution_strategy="eager", resolution_strategy_timeout=2)
    with pytest.raises(ConfigError, match="nowhere"):
        async with open_chunker_client("en", nowhere):
            pass
