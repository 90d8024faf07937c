# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server on loopback that does what a test's script says, misbehaviour included.

It is made of plain sockets: no HTTP library would send garbage, half a head, or a body that breaks off.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from lockgate.config.settings import DetectorSettings, OpenAISettings, ServiceSettings

PATIENCE_S = 5.0


class Received(NamedTuple):
    """One request as it came."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]


class Exchange:
    """One request and the means to answer it, well or badly."""

    def __init__(self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = received
        self._reader = reader
        self._writer = writer
        self.is_over = False

    async def send(self, *packets: bytes) -> None:
        """Raw bytes, one packet after the other."""
        for packet in packets:
            self._writer.write(packet)
            await self._writer.drain()
            await asyncio.sleep(0.002)

    async def answer(self, body: bytes, status: int = 200, kind: str = "application/json", *more: str) -> None:
        """A whole answer; the connection stays open."""
        lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", *more]
        if kind:
            lines.append(f"content-type: {kind}")
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)

    async def start(self, kind: str = "text/event-stream") -> None:
        """The head of a stream."""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        self._writer.write(head.encode())

    async def chunk(self, *parts: bytes) -> None:
        """Parts of a stream, a packet each."""
        await self.send(*[f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts])

    async def end(self) -> None:
        """The proper end of a stream."""
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Break the connection at once, without a goodbye."""
        self.is_over = True
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """Close the connection."""
        self.is_over = True
        self._writer.close()

    async def wait_until_left(self) -> None:
        """Until the client closes its side."""
        async with asyncio.timeout(PATIENCE_S):
            while await self._reader.read(65536):
                pass
        self.is_over = True


Script = Callable[[Exchange], Awaitable[None]]


class Peer:
    """The server. `script` answers every request; what came stands in `received`."""

    def __init__(self) -> None:
        self.script: Script = reply(b"[]")
        self.received: list[Received] = []
        self.has_received = asyncio.Event()
        self.connections = 0
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def service(self, **changes: Any) -> ServiceSettings:
        """Settings that lead here."""
        return ServiceSettings(**{"hostname": "127.0.0.1", "port": self.port, "request_timeout": 5, **changes})

    def detector(self, kind: Any = "text_contents", path: str | None = None, **changes: Any) -> DetectorSettings:
        """Settings of a detector here."""
        return DetectorSettings(kind, "whole_doc_chunker", 0.5, service=self.service(**changes), path=path)

    def openai(self, **changes: Any) -> OpenAISettings:
        """Settings of an OpenAI-compatible server here."""
        return OpenAISettings(self.service(**changes))

    def hang_up_on_all(self) -> None:
        """Close every connection, idle ones included."""
        for writer in self._writers:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        number = self.connections
        self._writers.append(writer)
        try:
            while (received := await _receive(reader, number)) is not None:
                self.received.append(received)
                self.has_received.set()
                exchange = Exchange(received, reader, writer)
                await self.script(exchange)
                if exchange.is_over:
                    break
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _receive(reader: asyncio.StreamReader, connection: int) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].split("\r\n")
    method, path, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    size = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
    return Received(method, path, headers, await reader.readexactly(size), connection)


@asynccontextmanager
async def open_peer(script: Script | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """A server on a free port; its connections are closed at the end."""
    peer = Peer()
    if script is not None:
        peer.script = script
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        peer.hang_up_on_all()
        await asyncio.sleep(0)


@asynccontextmanager
async def open_closed_port() -> AsyncIterator[ServiceSettings]:
    """Settings that lead to a port on which nobody listens."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield ServiceSettings("127.0.0.1", port, request_timeout=5)


def reply(body: bytes, status: int = 200, kind: str = "application/json") -> Script:
    """Always the same answer."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(body, status, kind)

    return script


def reply_json(value: Any, status: int = 200) -> Script:
    """Always the same JSON."""
    return reply(json.dumps(value).encode(), status)


def stream(*parts: bytes, kind: str = "text/event-stream", is_ended: bool = True) -> Script:
    """A stream of these parts, a packet each; without its end the connection is reset."""

    async def script(exchange: Exchange) -> None:
        await exchange.start(kind)
        await exchange.chunk(*parts)
        if is_ended:
            await exchange.end()
        else:
            exchange.reset()

    return script


def send_raw(*packets: bytes) -> Script:
    """Any bytes, then the connection is closed."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(*packets)
        exchange.hang_up()

    return script


async def break_off(exchange: Exchange) -> None:
    """A reset instead of an answer."""
    exchange.reset()


async def stay_silent(exchange: Exchange) -> None:
    """No answer until the client leaves."""
    await exchange.wait_until_left()


def texts_of(messages: Sequence[Sequence[dict[str, Any]]]) -> list[list[str]]:
    """The text of each message of a chat stream, list by list."""
    return [[one["choices"][0]["delta"]["content"] for one in together] for together in messages]
