# SPDX-License-Identifier: Apache-2.0
"""The floor of the grounded answers: the same six calls with bare library code.

Raw ASGI on uvicorn (uvloop, httptools) and one aiohttp session. It decodes the request, asks all sources at once,
decodes what they say, asks the model with a prompt that is always the same, decodes the answer, and encodes an answer
that is always the same. Both have the size of Lockgate's. It builds no prompt, checks nothing, limits nothing, and
does not notice clients that leave.

`python -m benchmarks.spaces_floor PORT CONSTANTS` serves until SIGTERM. CONSTANTS is a JSON file with `prompt`, the
request to the model, and `answer`.
"""

import asyncio
import gc
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvicorn
import uvloop

from benchmarks.processes import HOST

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_CORRELATION_ID = b"5f0c1f3e-8f5e-4a53-9c55-0d8f6f7f2b11"


class Floor:
    """An ASGI application that asks around and forgets what it hears."""

    def __init__(self, session: aiohttp.ClientSession, prompt: object, answer: object) -> None:
        self._session = session
        self._prompt = prompt
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        request = _decode(await _read_body(receive))
        correlation_id = dict(scope["headers"]).get(b"x-correlation-id", _CORRELATION_ID).decode()
        query = {"messages": request["prompt"], "limit": 5, "similarity_threshold": 0.5, "include_metadata": True}
        tokens = request["endpoint_tokens"]
        asked = [self._ask(ref, query, tokens, correlation_id) for ref in request["data_sources"]]
        await asyncio.gather(*asked)
        await self._ask(request["model"], self._prompt, tokens, correlation_id)
        body = _encode(self._answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _ask(self, ref: dict[str, str], body: object, tokens: dict[str, str], correlation_id: str) -> object:
        headers = {
            "content-type": "application/json",
            "x-correlation-id": correlation_id,
            "authorization": f"Bearer {tokens[ref['owner_username']]}",
        }
        url = f"{ref['url']}/api/v1/endpoints/{ref['slug']}/query"
        async with self._session.post(url, data=_encode(body), headers=headers) as response:
            return _decode(await response.read())


async def _read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    return body


async def serve(port: int, constants: dict[str, Any]) -> None:
    """Serve until told to stop."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app = Floor(session, constants["prompt"], constants["answer"])
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
        config = uvicorn.Config(app, http="httptools", ws="none", proxy_headers=False, server_header=False, **quiet)
        gc.collect()
        gc.freeze()
        await uvicorn.Server(config).serve(sockets=[socket.create_server((HOST, port), backlog=2048)])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), _decode(Path(sys.argv[2]).read_bytes())))
