# SPDX-License-Identifier: Apache-2.0
"""Exchange: one request and its answer, over ASGI. Knows bodies, limits and who has left; knows no endpoint."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from lockgate.errors import UnreadableBody
from lockgate.server.http.errors import ErrorReply
from lockgate.wire.guardrails import encode_error

Headers = list[tuple[bytes, bytes]]
_JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
_NOT_JSON_TYPE = "Expected request with `Content-Type: application/json`"
_TOO_LARGE = "Failed to buffer the request body: length limit exceeded"


class ClientLeft(Exception):
    """The client has gone; there is nobody to answer."""


class Exchange:
    """One request and its answer."""

    __slots__ = ("_end_with_error", "_first_message", "_receive", "_scope", "_send", "error_code", "has_left", "status")

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI has no types of its own
        self._scope = scope
        self._receive = receive
        self._send = send
        self._end_with_error: Callable[[ErrorReply], bytes] | None = None
        self._first_message: Any = None
        self.status = 0
        self.error_code = 0
        self.has_left = False

    @property
    def method(self) -> str:
        """GET, POST, ..."""
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        """The path, decoded."""
        return str(self._scope["path"])

    def header(self, name: bytes) -> str:
        """The first header of that name, or nothing."""
        for key, value in self._scope["headers"]:
            if key == name:
                return str(value, "latin-1")
        return ""

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the task when the client leaves before the answer is complete."""

        def leave() -> None:
            self.has_left = True
            task.cancel()

        connection = self._scope.get("lockgate.connection")
        if connection is not None:
            connection.on_leave = leave

    def unwatch(self) -> None:
        """The answer is complete: the client may go."""
        connection = self._scope.get("lockgate.connection")
        if connection is not None:
            connection.on_leave = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The request body as it arrives."""
        while True:
            message, self._first_message = self._first_message or await self._receive(), None
            if message["type"] != "http.request":
                self.has_left = True
                raise ClientLeft
            if message["body"]:
                yield message["body"]
            if not message["more_body"]:
                return

    async def read_json(self, limit: int) -> bytes:
        """The whole body of a JSON request."""
        if not _is_json(self.header(b"content-type")):
            raise UnreadableBody(_NOT_JSON_TYPE, status=415)
        length = self.header(b"content-length")
        if length.isdecimal() and int(length) > limit:
            raise UnreadableBody(_TOO_LARGE, status=413)
        parts, size = [], 0
        async for piece in self.pieces():
            parts.append(piece)
            size += len(piece)
            if size > limit:
                raise UnreadableBody(_TOO_LARGE, status=413)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def answer(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        """A complete answer."""
        await self._start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})

    async def answer_json(self, body: bytes, status: int = 200) -> None:
        """A complete JSON answer."""
        await self.answer(status, body, _JSON)

    async def start_stream(self, headers: Headers, end_with_error: Callable[[ErrorReply], bytes]) -> None:
        """Begin an answer whose body follows by `write`; an error becomes its last piece.

        A client that asked whether it may send its body takes an answer for a no, so it is told to go on first.
        """
        if self.header(b"expect"):
            self._first_message = await self._receive()
        self._end_with_error = end_with_error
        await self._start(200, headers)

    async def write(self, data: bytes) -> None:
        """More of a streamed answer; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The end of a streamed answer."""
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, reply: ErrorReply) -> None:
        """Answer with an error, or end a stream with it."""
        self.error_code = reply.status
        if self._end_with_error is not None:
            await self.write(self._end_with_error(reply))
            await self.end()
        elif not self.status:
            headers = [_JSON]
            if reply.retry_after_s is not None:
                headers.append((b"retry-after", b"%d" % reply.retry_after_s))
            await self.answer(reply.status, encode_error(reply.status, reply.details), *headers)

    def drop(self) -> None:
        """Cut the connection."""
        connection = self._scope.get("lockgate.connection")
        if connection is not None:
            connection.drop()

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))
