# SPDX-License-Identifier: Apache-2.0
"""The floor of the chat benchmarks: the least that a gateway to an OpenAI-compatible server can be.

Raw ASGI on uvicorn (uvloop, httptools) and one aiohttp session. The request, the answer and every chunk of a stream are
decoded and encoded again; each chunk is sent on by itself. It checks nothing, reports nothing, and does not notice
clients that leave.

`python -m benchmarks.relay PORT UPSTREAM_PORT` serves until SIGTERM.
"""

import asyncio
import gc
import socket
import sys
from typing import Any

import aiohttp
import msgspec
import uvicorn
import uvloop

from benchmarks.processes import HOST
from benchmarks.upstream import CHAT_PATH

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_JSON = {"content-type": "application/json"}


class Relay:
    """An ASGI application that sends every request on."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        request = _decode(await _read_body(receive))
        async with self._session.post(self._url, data=_encode(request), headers=_JSON) as response:
            await (_relay_stream if request.get("stream") else _relay_answer)(response, send)


async def _read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    return body


async def _relay_answer(response: aiohttp.ClientResponse, send: Any) -> None:
    body = _encode(_decode(await response.read()))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _relay_stream(response: aiohttp.ClientResponse, send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    rest = b""
    async for received in response.content.iter_any():
        *events, rest = (rest + received).split(b"\n\n")
        for event in events:
            body = event.removeprefix(b"data: ")
            if body != b"[DONE]":
                body = _encode(_decode(body))
            await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def serve(port: int, upstream_port: int) -> None:
    """Serve until told to stop."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app = Relay(session, f"http://{HOST}:{upstream_port}{CHAT_PATH}")
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
        config = uvicorn.Config(app, http="httptools", ws="none", proxy_headers=False, server_header=False, **quiet)
        gc.collect()
        gc.freeze()
        await uvicorn.Server(config).serve(sockets=[socket.create_server((HOST, port), backlog=2048)])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2])))
