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
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.config.settings import DetectorSettings, OpenAISettings, ServiceSettings
from tests.waits import HANG_S, LoopClock, latency, until

SOCKETS = Path("/proc/net/tcp")
LOOPBACK = "0100007F"


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
        """Raw bytes, each packet when the client has taken the one before it."""
        for number, packet in enumerate(packets):
            if number:
                await self.wait_until_taken()
            self._writer.write(packet)
            await self._writer.drain()

    async def wait_until_taken(self) -> None:
        """Until the client has read from its socket whatever was sent, or has left."""
        server, client = (self._writer.get_extra_info(name)[1] for name in ("sockname", "peername"))
        await latency(0.001)
        while self._writer.transport.get_write_buffer_size() or _count_unread(server, client):
            await latency(0.001)

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
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass
        self.is_over = True


def _count_unread(server: int, client: int) -> int:
    """The bytes that lie in the socket of a client on this machine, as the system tells."""
    _, _, entry = SOCKETS.read_text().partition(f" {LOOPBACK}:{client:04X} {LOOPBACK}:{server:04X} ")
    return int(entry.split(maxsplit=2)[1].partition(":")[2], 16) if entry else 0


Script = Callable[[Exchange], Awaitable[None]]


class Peer:
    """The server. `script` answers every request; what came stands in `received`."""

    def __init__(self) -> None:
        self.script: Script = find_nothing
        self.received: list[Received] = []
        self.has_received = asyncio.Event()
        self.connections = 0
        self.open_connections = 0
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def service(self, **changes: Any) -> ServiceSettings:
        """Settings that lead here."""
        return ServiceSettings(**{"hostname": "127.0.0.1", "port": self.port, "request_timeout": HANG_S, **changes})

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

    async def part_from_all(self) -> None:
        """The same, until the clients know; none may be in the middle of a request."""
        for writer in self._writers:
            if not writer.is_closing():
                writer.write_eof()
        await until(lambda: not self.open_connections, "the end of every connection")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self.open_connections += 1
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
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.open_connections -= 1


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
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield ServiceSettings("127.0.0.1", taken.getsockname()[1])


def reply(body: bytes, status: int = 200, kind: str = "application/json") -> Script:
    """Always the same answer."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(body, status, kind)

    return script


async def find_nothing(exchange: Exchange) -> None:
    """The answer of a detector that finds nothing: one list per text, or no finding about a subject."""
    body = exchange.received.body
    texts = json.loads(body).get("contents", ()) if body else ()
    await exchange.answer(json.dumps([[] for _ in texts]).encode())


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
            await exchange.wait_until_taken()
            exchange.reset()

    return script


def drip(whole: bytes, kind: str = "text/event-stream") -> Script:
    """A stream byte by byte; the client may find several at once."""

    async def script(exchange: Exchange) -> None:
        await exchange.start(kind)
        for byte in whole:
            await exchange.chunk(bytes([byte]))
            await asyncio.sleep(0)
        await exchange.end()

    return script


def send_raw(*packets: bytes) -> Script:
    """Any bytes, then the connection is closed."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(*packets)
        await exchange.wait_until_taken()
        exchange.hang_up()

    return script


async def break_off(exchange: Exchange) -> None:
    """A reset instead of an answer."""
    exchange.reset()


async def stay_silent(exchange: Exchange) -> None:
    """No answer until the client leaves."""
    await exchange.wait_until_left()


async def let_time_pass(exchange: Exchange) -> None:
    """No answer, and more time passes than a client of this process may wait."""
    LoopClock().advance()
    await exchange.wait_until_left()


def texts_of(messages: Sequence[Sequence[dict[str, Any]]]) -> list[list[str]]:
    """The text of each message of a chat stream, list by list."""
    return [[one["choices"][0]["delta"]["content"] for one in together] for together in messages]
