# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client over raw streams: sends exactly the bytes it is given, shows exactly those that come back."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.waits import HANG_S

CONTENT = "/api/v2/text/detection/content"
STREAM = "/api/v2/text/detection/stream-content"
JSON_TYPE = {"content-type": "application/json"}
NDJSON_TYPE = {"content-type": "application/x-ndjson"}


class Answer(NamedTuple):
    """One response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        """The values of a body of lines, each of which must be complete."""
        assert self.body == b"" or self.body.endswith(b"\n")
        return [json.loads(line) for line in self.body.splitlines()]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._rest = b""

    async def send(self, data: bytes) -> None:
        """Raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def start_stream(self, headers: Mapping[str, str] = NDJSON_TYPE, path: str = STREAM) -> None:
        """The head of a request whose body follows by `send_chunk`."""
        await self.send(build_head("POST", path, {**headers, "transfer-encoding": "chunked"}))

    async def send_chunk(self, data: bytes) -> None:
        """One piece of the body; the empty one ends it."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def send_line(self, **fields: Any) -> None:
        """One line of JSON."""
        await self.send_chunk(build_line(**fields))

    async def read_head(self) -> Answer:
        """Status and headers."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), HANG_S)
        first, *others = raw.decode("latin-1").split("\r\n")[:-2]
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in others]
        assert len({name for name, _ in pairs}) == len(pairs), "a header stands twice"
        return Answer(int(status), {name.lower(): value for name, value in pairs}, b"")

    async def read_chunk(self) -> bytes:
        """One chunk of the body; the last one is empty."""
        size = int(await asyncio.wait_for(self.reader.readline(), HANG_S), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), HANG_S)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def read_line(self) -> bytes:
        """One line of the body; lines that the server wrote at once come in one chunk."""
        while b"\n" not in self._rest:
            self._rest += await self.read_chunk()
        line, end, self._rest = self._rest.partition(b"\n")
        return line + end

    async def read_answer(self, method: str = "POST") -> Answer:
        """A whole response."""
        head = await self.read_head()
        if method == "HEAD":
            return head
        if "content-length" in head.headers:
            size = int(head.headers["content-length"])
            return head._replace(body=await asyncio.wait_for(self.reader.readexactly(size), HANG_S))
        assert head.headers["transfer-encoding"] == "chunked"
        parts = []
        while part := await self.read_chunk():
            parts.append(part)
        return head._replace(body=b"".join(parts))

    async def is_closed(self) -> bool:
        """Whether the server ends the connection without another word."""
        try:
            return await asyncio.wait_for(self.reader.read(1), HANG_S) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def build_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The bytes of a request's head."""
    headers = {"host": "127.0.0.1", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def build_request(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = JSON_TYPE) -> bytes:
    """The bytes of a whole request."""
    return build_head(method, path, {**headers, "content-length": str(len(body))}) + body


def build_line(**fields: Any) -> bytes:
    """One line of a stream-content request."""
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


@asynccontextmanager
async def connect(port: int, limit: int = 2**16, receive_bytes: int | None = None) -> AsyncIterator[Client]:
    """An open connection; at the end it is cut, with what still waits to be sent.

    With `receive_bytes` the system keeps little more than that of what the client does not read. Left to itself it may
    keep tens of megabytes.
    """
    opened = socket.socket()
    if receive_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
    except OSError:
        opened.close()
        raise
    reader, writer = await asyncio.open_connection(sock=opened, limit=limit)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def call(
    port: int, path: str, body: bytes = b"", *, method: str = "POST", headers: Mapping[str, str] = JSON_TYPE
) -> Answer:
    """One request on a connection of its own."""
    async with connect(port) as client:
        await client.send(build_request(method, path, body, headers))
        return await client.read_answer(method)


async def detect(port: int, body: object) -> Answer:
    """POST detection/content."""
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return await call(port, CONTENT, raw)


async def stream(port: int, *lines: Mapping[str, Any] | bytes) -> Answer:
    """POST stream-content with all lines at once; bytes are sent as they are."""
    raw = b"".join(line if isinstance(line, bytes) else build_line(**line) for line in lines)
    return await call(port, STREAM, raw, headers=NDJSON_TYPE)
