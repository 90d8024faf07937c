# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its reply over ASGI."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

from lockgate.config.grants import ANYTHING, Grant
from lockgate.errors import Refusal, UnreadableBody
from lockgate.gate.sse import encode_event
from lockgate.server.error_replies import ErrorReply
from lockgate.sessions.turns import ANONYMOUS
from lockgate.telemetry import answer_started, frame_sent

if TYPE_CHECKING:
    from lockgate.server.playground import Tracer

Header = tuple[bytes, bytes]
Headers = list[Header]
CONNECTION_EXTENSION = "lockgate.connection"  # in `scope["extensions"]`: a ClientConnection
KEY_HEADER = b"x-lockgate-key"
CREDENTIALS = (b"authorization", KEY_HEADER)
SENT_TWICE = "`Authorization` and `X-Lockgate-Key` may be sent once only"
CORRELATION_HEADER = b"X-Correlation-ID"
KEEP_ALIVE_S = 15.0
_PULSE = b":\n\n"
_CORRELATION_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_KEEP_OPEN = (b"connection", b"keep-alive")
_EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_FORWARDED = "x-forwarded-access-token"
# Headers of this connection and this body. Passed on to a service, they would break that request.
_FRAMING = frozenset(
    b"connection content-length expect keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
_JSON: Header = (b"content-type", b"application/json")
_NO_STREAM = "no stream is open"
TOO_LARGE = "Failed to buffer the request body: length limit exceeded"


class ErrorEncoder(Protocol):
    """Encodes the body of an error."""

    def __call__(self, status: int, details: str, refusal: Refusal | None = None, /) -> bytes:
        """`refusal` is that of a model, whose type and code some clients read."""


class ReplyBody(Protocol):
    """The body of a streamed reply."""

    @property
    def is_stuck(self) -> bool:
        """Whether the writer must `drain` before it goes on."""

    async def drain(self) -> None:
        """Wait until the client reads on or leaves."""

    def keep_alive(self, pulse: bytes, every_s: float) -> None:
        """Send `pulse` after every `every_s` seconds of silence, if the server can."""

    def add(self, data: bytes) -> None:
        """Add bytes to the body."""

    def flush(self) -> None:
        """Send waiting bytes now."""

    def finish(self) -> bytes:
        """Returns the waiting bytes. Do not add more afterwards."""


class ClientConnection(Protocol):
    """The server's abilities beyond ASGI, for one connection; see CONNECTION_EXTENSION."""

    on_leave: Callable[[], object] | None  # called as soon as the client leaves, even if `receive` is not awaited
    certificate_name: str  # the common name of the client's verified certificate, or empty

    @property
    def stays_open(self) -> bool:
        """Whether the connection stays open after this reply."""

    def open_body(self) -> ReplyBody | None:
        """The body of the reply that is about to begin; None if the client has left."""

    def drop(self) -> None:
        """Abort the connection."""


class ClientLeft(Exception):
    """The client closed the connection before its answer."""


class HttpRequest:
    """One request. Neither `key` nor the headers in `withheld` are passed on; `policy` is the one in the path.

    `grant` has what its caller may name, and the policies that are always in force.

    `first_headers` has the first header of each name.
    """

    __slots__ = (
        "_first_message", "_is_received", "_receive", "_scope", "_task", "caller", "connection", "correlation_id",
        "first_headers", "grant", "has_left", "is_late", "key", "method", "path", "policy", "withheld",
    )  # fmt: skip

    def __init__(self, scope: Any, receive: Any, connection: ClientConnection) -> None:
        self._scope = scope
        self._receive = receive
        self._first_message: Any = None
        self._is_received = False
        self._task: asyncio.Task[Any] | None = None
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.first_headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self.connection = connection
        self.has_left = self.is_late = False
        self.caller = ANONYMOUS
        self.grant: Grant = ANYTHING
        self.correlation_id = ""
        self.key = b""
        self.policy: str | None = None
        self.withheld = frozenset({KEY_HEADER})

    @property
    def peer_host(self) -> str:
        """The address of the client, or empty if it is not known."""
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    def headers(self, name: bytes) -> list[str]:
        """All headers of that name as text."""
        return [str(value, "latin-1") for key, value in self._scope["headers"] if key == name]

    def header(self, name: bytes) -> str:
        """The first header of that name as text, or empty."""
        return str(self.first_headers.get(name, b""), "latin-1")

    def wants(self, name: bytes) -> bool:
        """Whether the header of that name is switched on (1, true, yes, on)."""
        return self.header(name).strip().lower() in ("1", "true", "yes", "on")

    def correlate(self) -> Header:
        """Take the client's correlation id, or make one; returns the header that reports it."""
        given = self.first_headers.get(b"x-correlation-id", b"").strip(b" \t")
        name = given if _CORRELATION_ID.fullmatch(given) else str(uuid4()).encode()
        self.correlation_id = str(name, "ascii")
        return (CORRELATION_HEADER, name)

    def passthrough(self, names: Collection[str], rewrites_token: bool) -> tuple[tuple[str, str], ...]:
        """The headers of these names for upstream services, never the caller's key (G-24)."""
        kept = [
            (str(key, "latin-1"), _read_value(value))
            for key, value in self._scope["headers"]
            if str(key, "latin-1") in names and not self._is_withheld(key, value)
        ]
        token = next((value for name, value in kept if name == _FORWARDED), None)
        if rewrites_token and token is not None:
            kept = [one for one in kept if one[0] not in (_FORWARDED, "authorization")]
            kept.append(("authorization", f"Bearer {token}"))
        return tuple(kept)

    def _is_withheld(self, name: bytes, value: bytes) -> bool:
        shown = value.strip()
        is_key = bool(self.key) and self.key in (shown, shown.partition(b" ")[2].strip())
        return is_key or name in self.withheld or name in _FRAMING

    def watch(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the task when the client leaves."""
        self._task = task
        self.connection.on_leave = self._leave

    def unwatch(self) -> None:
        """Stop watching, unless the next request on the connection watches already."""
        if self.connection.on_leave == self._leave:
            self.connection.on_leave = None

    def _leave(self) -> None:
        self.has_left = True
        if self._task is not None:
            self._task.cancel()

    def end_late(self) -> None:
        """The request took too long: cancel its task."""
        self.is_late = True
        if self._task is not None:
            self._task.cancel()

    async def accept_body(self) -> None:
        """Accept the body of a client that sent `Expect: 100-continue`: it would take a reply for a refusal."""
        if not self._is_received:
            self._first_message = await self._receive()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives."""
        has_more = True
        while has_more:
            piece, has_more = await self._receive_piece()
            if piece:
                yield piece

    async def _receive_piece(self) -> tuple[bytes, bool]:
        """The next piece of the body, and whether more follows."""
        self._is_received = True
        message, self._first_message = self._first_message or await self._receive(), None
        if message["type"] != "http.request":
            self.has_left = True
            raise ClientLeft
        return message.get("body", b""), message.get("more_body", False)

    async def read_json(self, limit: int) -> bytes:
        """The whole body of a JSON request."""
        content_type = self.first_headers.get(b"content-type", b"")
        if content_type != _JSON[1] and not _is_json(str(content_type, "latin-1")):
            raise UnreadableBody("Expected request with `Content-Type: application/json`", status=415)
        return await self.read_body(limit)

    async def read_body(self, limit: int) -> bytes:
        """The whole body, of any content type."""
        length = self.first_headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise UnreadableBody(TOO_LARGE, status=413)
        pieces, size, has_more = [], 0, True
        while has_more:
            piece, has_more = await self._receive_piece()
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise UnreadableBody(TOO_LARGE, status=413)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class HttpReply:
    """The reply to a request, whole or streamed. `tracer`, if set, writes the trace."""

    __slots__ = (
        "_added", "_body", "_end_with_error", "_request", "_send", "encode_error", "error_code", "keep_alive_s",
        "status", "tracer",
    )  # fmt: skip

    def __init__(self, request: HttpRequest, send: Any, encode_error: ErrorEncoder, keep_alive_s: float) -> None:
        self._request = request
        self._send = send
        self._end_with_error: Callable[[ErrorReply], bytes] | None = None
        self._body: ReplyBody | None = None
        self._added: Headers | None = None
        self.status = 0
        self.error_code = 0
        self.keep_alive_s = keep_alive_s
        self.encode_error = encode_error
        self.tracer: Tracer | None = None

    def add_headers(self, headers: Headers) -> None:
        """Add headers to the reply, of any kind, errors included."""
        self._added = headers if self._added is None else self._added + headers

    async def answer(self, status: int, body: bytes = b"", *headers: Header) -> None:
        """Send a complete reply."""
        await self._start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})
        self._request.unwatch()

    async def answer_json(self, body: bytes, status: int = 200) -> None:
        """Send a complete JSON reply."""
        await self.answer(status, body, _JSON)

    async def start_stream(self, headers: Headers, end_with_error: Callable[[ErrorReply], bytes]) -> None:
        """Begin a reply whose body `write` sends; `end_with_error` makes its last piece if an error ends it."""
        request = self._request
        if request.first_headers.get(b"expect"):
            await request.accept_body()
        body = request.connection.open_body()
        if body is None:
            request.has_left = True
            raise ClientLeft
        if body.is_stuck:  # by the previous reply on this connection
            await body.drain()
        self._body = body
        self._end_with_error = end_with_error
        if _KEEP_OPEN in headers and not request.connection.stays_open:
            headers = [one for one in headers if one != _KEEP_OPEN]
        await self._start(200, headers)

    async def start_events(
        self,
        headers: Iterable[Header] = (),
        *,
        done: bytes = b"",
        encode_error: Callable[[str], bytes] | None = None,
        error_event: str = "error",
    ) -> None:
        """Begin a reply of server-sent events, with comments during silence. An error is an event before `done`."""

        def end_with_error(reply: ErrorReply) -> bytes:
            if encode_error is not None:
                return encode_error(reply.details) + done
            body = self.encode_error(reply.status, reply.details, reply.refusal)
            return encode_event(body.decode(), error_event) + done

        await self.start_stream([*_EVENTS, *headers], end_with_error)
        if self._body is not None:
            self._body.keep_alive(_PULSE, self.keep_alive_s)

    async def write(self, data: bytes, frames: int = 1) -> None:
        """Send more of a stream at the end of this turn of the event loop; waits while the client does not read."""
        body = self._body
        if body is None:
            raise RuntimeError(_NO_STREAM)
        body.add(data)
        frame_sent(frames)
        if body.is_stuck:
            await body.drain()

    def flush(self) -> None:
        """Send what was written now, not at the end of this turn of the event loop."""
        if self._body is not None:
            self._body.flush()

    async def end(self) -> None:
        """End a stream."""
        body = self._body
        if body is None:
            raise RuntimeError(_NO_STREAM)
        if body.is_stuck:
            await body.drain()
        self._body = self._end_with_error = None
        await self._send({"type": "http.response.body", "body": body.finish()})
        self._request.unwatch()

    async def fail(self, reply: ErrorReply) -> None:
        """Reply with an error, or end a stream with it."""
        self.error_code = reply.status
        if self._end_with_error is not None:
            await self.write(self._end_with_error(reply))
            await self.end()
        elif not self.status:
            body = self.encode_error(reply.status, reply.details, reply.refusal)
            await self.answer(reply.status, body, _JSON, *reply.headers)

    def drop(self) -> None:
        """Abort the connection."""
        self._request.connection.drop()

    def close(self) -> None:
        """Stop sending."""
        if self._body is not None:
            self._body.finish()
            self._body = None

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        answer_started(status, is_stream=self._body is not None)
        if self._added is not None:
            headers = [*headers, *self._added]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class Exchange(NamedTuple):
    """A request and its reply."""

    request: HttpRequest
    reply: HttpReply


def _read_value(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))
