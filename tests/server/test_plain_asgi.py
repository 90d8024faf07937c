# SPDX-License-Identifier: Apache-2.0
"""The app on a plain ASGI server (uvicorn's own h11 protocol): it works without what our connections add."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lockgate.server.app import App
from lockgate.server.connection import Connection
from lockgate.server.exchange import Exchange
from tests.contracts.http_peers import Exchange as ModelExchange
from tests.contracts.http_peers import Script, open_peer, reply
from tests.contracts.http_peers import stream as stream_reply
from tests.server.endings import failure
from tests.server.gateways import CHAT, ask, chat_body, chunk, events_of, gateway, sse
from tests.server.http_client import STREAM, Answer, build_head, build_line, build_request, call, connect
from tests.server.served_app import build_app, served
from tests.waits import settled, until

WORDS: dict[str, Any] = {"output": {"words": {}}}
WHOLE = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "One is done."}, "finish_reason": "stop"}],
}
STREAMED = sse(chunk("One is done. "), chunk("Two"), chunk(" is done."), chunk(finish="stop"), "[DONE]")


class QuietServer(uvicorn.Server):
    """Leaves signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served_plainly(app: App) -> AsyncIterator[int]:
    """The port on which a server that is not ours runs the app; with the lifespan protocol, which the app lacks."""
    config = uvicorn.Config(app, http=H11Protocol, lifespan="auto", log_config=None, timeout_graceful_shutdown=1)
    server = QuietServer(config)
    listening = socket.create_server(("127.0.0.1", 0))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([listening]))
        await until(lambda: server.started, "the start of the server")
        assert not issubclass(config.http_protocol_class, Connection)
        try:
            yield int(listening.getsockname()[1])
        finally:
            server.should_exit = True


def config(port: int) -> str:
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}}}
detectors:
  words: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [done]}}}}
"""


@asynccontextmanager
async def plain_gateway(script: Script) -> AsyncIterator[int]:
    """A gateway on the plain server before a scripted model."""
    async with open_peer(script) as peer, gateway(config(peer.port), served_plainly) as port:
        yield port


async def ask_both(script: Script, path: str, body: dict[str, Any]) -> tuple[Answer, Answer]:
    """The same request on the plain server and on our connections."""
    async with open_peer(script) as peer, gateway(config(peer.port)) as ours, plain_gateway(script) as plain:
        return await ask(plain, path, body), await ask(ours, path, body)


@pytest.mark.parametrize("detectors", [{}, WORDS], ids=["passed on", "guarded"])
async def test_a_whole_answer_is_the_same_as_on_our_connections(detectors: dict[str, Any]) -> None:
    body = chat_body(stream=False, detectors=detectors)
    plain, ours = await ask_both(reply(json.dumps(WHOLE).encode()), CHAT, body)
    assert plain.status == 200
    found, expected = plain.json(), ours.json()
    assert found["choices"] == expected["choices"]
    assert found["choices"][0]["message"]["content"] == "One is done."
    assert found.get("detections") == expected.get("detections")


@pytest.mark.parametrize("detectors", [{}, WORDS], ids=["passed on", "guarded"])
async def test_a_stream_has_the_same_events_as_on_our_connections(detectors: dict[str, Any]) -> None:
    plain, ours = await ask_both(stream_reply(STREAMED), CHAT, chat_body(detectors=detectors))
    assert plain.body == ours.body
    assert events_of(plain)[-1] == "[DONE]"
    assert plain.headers["transfer-encoding"] == "chunked"


async def test_an_event_leaves_before_the_next_one_is_made() -> None:
    may_go_on = asyncio.Event()

    async def script(exchange: ModelExchange) -> None:
        await exchange.start()
        await exchange.chunk(sse(chunk("One is done. ")))
        await may_go_on.wait()
        await exchange.chunk(sse(chunk("Two", finish="stop"), "[DONE]"))
        await exchange.end()

    async with plain_gateway(script) as port, connect(port) as client:
        await client.send(build_request("POST", CHAT, json.dumps(chat_body()).encode()))
        await client.read_head()
        assert b"One is done. " in await client.read_line()
        may_go_on.set()
        while b"[DONE]" not in await client.read_line():
            pass


async def test_lines_are_answered_while_the_request_is_still_sent() -> None:
    """Full duplex, and a client that asks first whether it may send its body."""
    async with plain_gateway(reply(b"")) as port, connect(port) as client:
        head = {"content-type": "application/x-ndjson", "transfer-encoding": "chunked", "expect": "100-continue"}
        await client.send(build_head("POST", STREAM, head))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await client.send_chunk(build_line(detectors={"words": {}}, content="One is done. Two"))
        await client.read_head()
        assert json.loads(await client.read_line())["detections"]
        await client.send_chunk(b"")
        assert json.loads(await client.read_line())["processed_index"] == len("One is done. Two")


async def test_errors_have_their_status_or_end_the_stream() -> None:
    async def script(exchange: ModelExchange) -> None:
        await exchange.start()
        await exchange.chunk(sse(chunk("One")))
        exchange.reset()

    wrong = {"model": "m", "messages": "no", "stream": False}
    plain, ours = await ask_both(script, CHAT, wrong)
    assert (plain.status, plain.body) == (ours.status, ours.body)
    assert plain.status == 422
    plain, ours = await ask_both(script, CHAT, chat_body())
    assert plain.body == ours.body
    assert {"$error": failure("model")} in events_of(plain)
    async with plain_gateway(script) as port:
        assert (await call(port, "/nowhere")).status == 404


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_cancels_the_model(is_stream: bool) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def script(exchange: ModelExchange) -> None:
        asked.set()
        if is_stream:
            await exchange.start()
            await exchange.chunk(sse(chunk("One")))
        await exchange.wait_until_left()
        left.set()

    async with plain_gateway(script) as port:
        async with connect(port) as client:
            await client.send(build_request("POST", CHAT, json.dumps(chat_body(stream=is_stream)).encode()))
            await asked.wait()
            if is_stream:
                await client.read_head()
                await client.read_line()
        await left.wait()
        assert (await call(port, "/health", method="GET")).status == 200


async def test_a_client_that_leaves_in_its_body_is_noticed() -> None:
    ended: list[bool] = []

    async def read(exchange: Exchange) -> None:
        try:
            await exchange.request.read_body(1000)
        finally:
            ended.append(exchange.request.has_left)

    async with served_plainly(build_app({"/read": read})) as port:
        async with connect(port) as client:
            await client.send(build_head("POST", "/read", {"content-length": "100"}) + b"half")
        await until(lambda: ended, "the end of the handler")
    assert ended == [True]


@pytest.mark.parametrize("serve", [served_plainly, served])
async def test_a_client_that_does_not_read_stops_the_writer(serve: Any) -> None:
    written = 0

    async def write(exchange: Exchange) -> None:
        nonlocal written
        await exchange.request.read_body(1000)
        await exchange.reply.start_events()
        while True:
            await exchange.reply.write(b"data: %b\n\n" % (b"x" * 10_000))
            written += 1

    async with serve(build_app({"/write": write})) as port, connect(port, limit=1024, receive_bytes=4096) as client:
        await client.send(build_request("GET", "/write"))
        await client.read_head()
        assert await settled(lambda: written) < 2000
