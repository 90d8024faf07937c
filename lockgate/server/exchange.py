# SPDX-License-Identifier: Apache-2.0
"""Exchange: one request and its answer, over ASGI. Knows bodies, limits and who has left; knows no endpoint."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from uuid import uuid4

from lockgate.api.guardrails.format import encode_error
from lockgate.errors import UnreadableBody
from lockgate.gate.sse import encode_event
from lockgate.rag.trace import Trace
from lockgate.server.error_replies import ErrorReply
from lockgate.server.streams import StreamedBody
from lockgate.sessions.turns import ANONYMOUS
from lockgate.telemetry import answer_started, frame_sent

Headers = list[tuple[bytes, bytes]]
ErrorEncoder = Callable[[int, str], bytes]  # the body of an error, of its status and its words
KEY_HEADER = b"x-lockgate-key"
CORRELATION_HEADER = b"X-Correlation-ID"
KEEP_ALIVE_S = 15.0
_PULSE = b":\n\n"
_CORRELATION_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_KEEP_OPEN = (b"connection", b"keep-alive")
_EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_FORWARDED = "x-forwarded-access-token"
# Of this connection and this body, not of the request: passed on, they would break the next one.
_FRAMING = frozenset(
    b"connection content-length expect keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
_JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
_NOT_JSON_TYPE = "Expected request with `Content-Type: application/json`"
TOO_LARGE = "Failed to buffer the request body: length limit exceeded"


class Tracing(Protocol):
    """Who tells, between the events of an answer, what happens behind the gate."""

    @property
    def trace(self) -> Trace:
        """Where it is noted."""

    def open(self) -> AbstractAsyncContextManager[None]:
        """While the answer is made."""

    async def flush(self) -> None:
        """What is noted up to now goes out."""


class ClientLeft(Exception):
    """The client has gone; there is nobody to answer."""


class Exchange:
    """One request and its answer.

    `caller` is who asks. `key` is the key that was shown, `withheld` the headers that are for us alone: neither is ever
    passed on. `policy` is the one that the path names, if any. `correlation_id` is the client's name for the request,
    or one of ours; empty until `correlate`. `tracer` tells what happens behind the gate, if somebody may see it.
    """

    __slots__ = (
        "_added", "_body", "_end_with_error", "_first_message", "_is_received", "_on_leave", "_receive", "_scope",
        "_send", "caller", "correlation_id", "encode_error", "error_code", "has_left", "keep_alive_s", "key", "policy",
        "status", "tracer", "withheld",
    )  # fmt: skip

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._end_with_error: Callable[[ErrorReply], bytes] | None = None
        self._first_message: Any = None
        self._is_received = False
        self._on_leave: Callable[[], None] | None = None
        self._body: StreamedBody | None = None
        self._added: Headers | None = None
        self.status = 0
        self.error_code = 0
        self.has_left = False
        self.keep_alive_s = KEEP_ALIVE_S
        self.encode_error: ErrorEncoder = encode_error
        self.caller = ANONYMOUS
        self.correlation_id = ""
        self.key = b""
        self.policy: str | None = None
        self.tracer: Tracing | None = None
        self.withheld = frozenset({KEY_HEADER})

    @property
    def method(self) -> str:
        """GET, POST, ..."""
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        """The path, decoded."""
        return str(self._scope["path"])

    @property
    def peer_host(self) -> str:
        """The address of whoever is connected to us, as far as it is known."""
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    @property
    def certificate_name(self) -> str:
        """The common name of the client's verified certificate, or nothing."""
        connection = self._scope.get("lockgate.connection")
        return str(connection.certificate_name) if connection is not None else ""

    def raw_header(self, name: bytes) -> bytes:
        """The first header of that name, or nothing."""
        for key, value in self._scope["headers"]:
            if key == name:
                return bytes(value)
        return b""

    def headers(self, name: bytes) -> list[str]:
        """All headers of that name as text."""
        return [str(value, "latin-1") for key, value in self._scope["headers"] if key == name]

    def header(self, name: bytes) -> str:
        """The first header of that name as text, or nothing."""
        return str(self.raw_header(name), "latin-1")

    def add_headers(self, headers: Headers) -> None:
        """What the answer carries besides its own headers, whatever it will be."""
        self._added = headers if self._added is None else self._added + headers

    def correlate(self) -> None:
        """Take over the client's name for the request, or make one up, and tell it with the answer."""
        given = self.raw_header(b"x-correlation-id").strip(b" \t")
        name = given if _CORRELATION_ID.fullmatch(given) else str(uuid4()).encode()
        self.correlation_id = str(name, "ascii")
        self.add_headers([(CORRELATION_HEADER, name)])

    def passthrough(self, names: Collection[str], rewrites_token: bool) -> tuple[tuple[str, str], ...]:
        """The headers of these names, in lower case, for the services behind us (G-24); never the caller's key.

        `rewrites_token`: a forwarded access token becomes the authorization.
        """
        kept = [
            (str(key, "latin-1"), _read_value(value))
            for key, value in self._scope["headers"]
            if str(key, "latin-1") in names and not self._is_ours(key, value)
        ]
        token = next((value for name, value in kept if name == _FORWARDED), None)
        if rewrites_token and token is not None:
            kept = [one for one in kept if one[0] not in (_FORWARDED, "authorization")]
            kept.append(("authorization", f"Bearer {token}"))
        return tuple(kept)

    def _is_ours(self, name: bytes, value: bytes) -> bool:
        shown = value.strip()
        is_key = bool(self.key) and self.key in (shown, shown.partition(b" ")[2].strip())
        return is_key or name in self.withheld or name in _FRAMING

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the task when the client leaves before the answer is complete."""

        def leave() -> None:
            self.has_left = True
            task.cancel()

        connection = self._scope.get("lockgate.connection")
        if connection is not None:
            self._on_leave = connection.on_leave = leave

    def unwatch(self) -> None:
        """The answer is complete: the client may go. Whoever is next on the connection may be watching it already."""
        connection = self._scope.get("lockgate.connection")
        if connection is not None and connection.on_leave is self._on_leave:
            connection.on_leave = None
        self._on_leave = None

    def close(self) -> None:
        """Nothing more is sent or watched."""
        self.unwatch()
        if self._body is not None:
            self._body.close()
            self._body = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The request body as it arrives."""
        self._is_received = True
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
        return await self.read_body(limit)

    async def read_body(self, limit: int) -> bytes:
        """The whole body, whatever it says it is."""
        length = self.header(b"content-length")
        if length.isdecimal() and int(length) > limit:
            raise UnreadableBody(TOO_LARGE, status=413)
        parts, size = [], 0
        async for piece in self.pieces():
            parts.append(piece)
            size += len(piece)
            if size > limit:
                raise UnreadableBody(TOO_LARGE, status=413)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def answer(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        """A complete answer."""
        await self._start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})
        self.unwatch()

    async def answer_json(self, body: bytes, status: int = 200) -> None:
        """A complete JSON answer."""
        await self.answer(status, body, _JSON)

    async def start_stream(self, headers: Headers, end_with_error: Callable[[ErrorReply], bytes]) -> None:
        """Begin an answer whose body follows by `write`; an error becomes its last piece.

        A client that asked whether it may send its body takes an answer for a no, so it is told to go on first.
        """
        if self.header(b"expect") and not self._is_received:
            self._first_message = await self._receive()
        connection = self._scope.get("lockgate.connection")
        self._body = connection.open_body() if connection is not None else None
        if self._body is None:
            self.has_left = True
            raise ClientLeft
        if self._body.is_stuck:  # with the answer before this one
            await self._body.drain()
        self._end_with_error = end_with_error
        if _KEEP_OPEN in headers and not connection.stays_open:
            headers = [one for one in headers if one != _KEEP_OPEN]
        await self._start(200, headers)

    async def start_events(
        self,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        done: bytes = b"",
        encode_error: Callable[[str], bytes] | None = None,
        error_event: str = "error",
    ) -> None:
        """Begin an answer of server-sent events; each `write` is one. An error is an event too, and `done` follows it.

        `encode_error` makes that event of its words, where the endpoint has its own; else `error_event` names it. A
        stream without events for a while sends a comment, so that nobody on the way takes it for dead. Of the headers
        `connection: keep-alive` is left out where the connection will not be kept.
        """

        def end_with_error(reply: ErrorReply) -> bytes:
            if encode_error is not None:
                return encode_error(reply.details) + done
            return encode_event(self.encode_error(reply.status, reply.details).decode(), error_event) + done

        await self.start_stream([*_EVENTS, *headers], end_with_error)
        self._open_body().keep_alive(_PULSE, self.keep_alive_s)

    async def write(self, data: bytes) -> None:
        """More of a streamed answer, sent when this turn of the loop ends; waits while the client does not read."""
        body = self._open_body()
        if body.is_stuck:
            await body.drain()
        body.add(data)
        frame_sent()

    def flush(self) -> None:
        """Send what was written now, not when this turn of the loop ends."""
        self._open_body().flush()

    async def end(self) -> None:
        """The end of a streamed answer."""
        body = self._open_body()
        if body.is_stuck:
            await body.drain()
        self._body = self._end_with_error = None
        await self._send({"type": "http.response.body", "body": body.finish()})
        self.unwatch()

    def _open_body(self) -> StreamedBody:
        if self._body is None:
            raise RuntimeError("no stream is open")
        return self._body

    async def fail(self, reply: ErrorReply) -> None:
        """Answer with an error, or end a stream with it."""
        self.error_code = reply.status
        if self._end_with_error is not None:
            await self.write(self._end_with_error(reply))
            await self.end()
        elif not self.status:
            await self.answer(reply.status, self.encode_error(reply.status, reply.details), _JSON, *reply.headers)

    def drop(self) -> None:
        """Cut the connection."""
        connection = self._scope.get("lockgate.connection")
        if connection is not None:
            connection.drop()

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        answer_started(status, is_stream=self._body is not None)
        if self._added is not None:
            headers = [*headers, *self._added]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _read_value(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))
