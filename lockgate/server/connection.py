# SPDX-License-Identifier: Apache-2.0
"""One HTTP connection: uvicorn's protocol with rules for heads (RFC 9112), limits on times, and batched writes."""

import asyncio
import re
import select
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lockgate.api.guardrails.format import encode_error
from lockgate.server.exchange import CONNECTION_EXTENSION, CREDENTIALS, SENT_TWICE, ErrorEncoder

MAX_HEAD_BYTES = 32_768  # of a head, and of the trailers after a body
MAX_FIELDS = 100
HEAD_TIMEOUT_S = 30.0
LINGER_S = 2.0  # for what a client still sends that is not read
_MAX_LINGER_BYTES = 1_048_576
LOOK_EVERY_S = 0.04
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_FIELD_BYTES = 4  # of a field, besides its name and value
_TOO_LARGE = "request head is too large"
_UPGRADE = re.compile(rb"(?i)\r\nupgrade:[^\r\n]*")
MAX_WAITING_BYTES = 65_536
_SHORTEST_WAIT_S = 0.001


class StreamedBody:
    """One streamed body. Sends once per turn of the event loop, earlier if MAX_WAITING_BYTES wait."""

    __slots__ = ("_cycle", "_every_s", "_is_silent", "_loop", "_parts", "_pulse", "_pulse_timer", "_sent_at", "_size",
                 "_tail", "_turn")  # fmt: skip

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle = cycle
        self._loop = loop
        self._is_silent = cycle.scope["method"] == "HEAD"
        self._parts: list[bytes] = []
        self._size = 0
        self._turn: asyncio.Handle | None = None
        self._pulse = self._tail = b""
        self._every_s = self._sent_at = 0.0
        self._pulse_timer: asyncio.TimerHandle | None = None
        if cycle.scope["http_version"] == "1.0":  # has no chunked encoding: closing the connection ends the body
            cycle.chunked_encoding = False

    @property
    def is_stuck(self) -> bool:
        """Whether the client does not read what has been sent."""
        return self._cycle.flow.write_paused and not self._cycle.disconnected

    async def drain(self) -> None:
        """Wait until the client reads on or leaves."""
        await self._cycle.flow.drain()

    def keep_alive(self, pulse: bytes, every_s: float) -> None:
        """Send `pulse` after every `every_s` seconds of silence; it ends in a blank line, as events do."""
        self._pulse, self._every_s = pulse, every_s
        self._sent_at = self._loop.time()
        self._pulse_timer = self._loop.call_later(every_s, self._beat)

    def add(self, data: bytes) -> None:
        """Add bytes to the body."""
        self._parts.append(data)
        self._size += len(data)
        if self._size >= MAX_WAITING_BYTES:
            self.flush()
        elif self._turn is None:
            self._turn = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the waiting bytes now."""
        data = self._take()
        transport = self._cycle.transport
        if not data or self._is_silent or self._cycle.disconnected or transport.is_closing():
            return
        self._sent_at = self._loop.time()
        self._tail = (self._tail + data[-2:])[-2:]
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._cycle.chunked_encoding else data)

    def finish(self) -> bytes:
        """Returns the waiting bytes, for uvicorn to send with the end of the answer. Do not add more afterwards."""
        rest = self._take()
        if self._pulse_timer is not None:
            self._pulse_timer.cancel()
            self._pulse_timer = None
        if not self._cycle.chunked_encoding:
            self._cycle.expected_content_length = len(rest)  # uvicorn counts only what it sends itself
        return rest

    def _take(self) -> bytes:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._size = 0
        return data

    def _beat(self) -> None:
        wait_s = self._sent_at + self._every_s - self._loop.time()
        if wait_s <= 0:
            wait_s = self._every_s
            is_between_events = self._tail in (b"", b"\n\n")
            if is_between_events and not self._parts and not self._cycle.flow.write_paused:
                self.add(self._pulse)
        self._pulse_timer = self._loop.call_later(max(wait_s, _SHORTEST_WAIT_S), self._beat)


class WatchedFlow(FlowControl):
    """Polls for the client's disconnect while reading is paused: without reading, asyncio does not notice it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._look_out: asyncio.TimerHandle | None = None

    def pause_reading(self) -> None:
        super().pause_reading()
        if self._look_out is None:
            self._look_again()

    def resume_reading(self) -> None:
        super().resume_reading()
        if self._look_out is not None:
            self.stop_looking()

    def stop_looking(self) -> None:
        if self._look_out is not None:
            self._look_out.cancel()
            self._look_out = None

    def _look(self) -> None:
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        if poll.poll(0):
            self._transport.abort()
        else:
            self._look_again()

    def _look_again(self) -> None:
        self._look_out = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)


def _common_name(certificate: Mapping[str, Any]) -> str:
    """The subject's common name; empty if there are several, since none of them identifies the client then."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""


class Connection(HttpToolsProtocol):
    """An HTTP connection that calls `on_leave` when the client disconnects."""

    def __init__(self, *args: Any, encode_error: ErrorEncoder = encode_error, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._encode_error = encode_error
        self.on_leave: Callable[[], object] | None = None
        self.certificate_name = ""  # the common name of the client's certificate, which the handshake has verified
        # The request being answered; `cycle` is the newest one, which may still wait in the pipeline.
        self._attended: RequestResponseCycle | None = None
        self._body: StreamedBody | None = None
        self._is_in_head = True  # or between requests
        self._is_head_begun = self._is_refused = False
        self._bytes_without_body = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = WatchedFlow(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.certificate_name = _common_name(tls.getpeercert() or {})
        self._arm(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        self._flow.stop_looking()
        if self._attended is not None:
            self._attended.disconnected = True
            self._attended.message_event.set()
        if self.on_leave is not None:
            self.on_leave()
            self.on_leave = None
        self._let_go()

    def data_received(self, data: bytes) -> None:
        self._bytes_without_body += len(data)
        if self._is_refused:
            if self._bytes_without_body > _MAX_LINGER_BYTES:
                self.transport.close()
            return
        if self._is_in_head and len(data) > MAX_HEAD_BYTES and b"\r\n\r\n" not in data[: MAX_HEAD_BYTES + 4]:
            self._refuse(431, _TOO_LARGE)
            return
        if self._is_in_head and (b"pgrade:" in data or b"PGRADE:" in data):
            # With `upgrade` in the head, the parser would treat the body as another protocol.
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"", head) + end + rest
        super().data_received(data)
        if self._bytes_without_body > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, _TOO_LARGE)
        if self._is_head_begun and self._timer is None:  # a head that came in one piece needs no timer
            self._arm(HEAD_TIMEOUT_S)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION_EXTENSION: self}  # type: ignore[dict-item]
        self._is_head_begun = True

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._is_head_begun = False
        if self._timer is not None:
            self._disarm()
        names = [name for name, _ in self.headers]
        if (
            names.count(b"host") != 1
            or len(set(names)) < len(names)
            or self.parser.get_http_version() != "1.1"
            or len(self.url) + sum([len(name) + len(value) for name, value in self.headers]) > MAX_HEAD_BYTES // 2
            or len(names) > MAX_FIELDS // 2
            or not _HOST.fullmatch(self.headers[names.index(b"host")][1])
        ):
            self._check_head(names)
        self._is_in_head = False
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self.send_400_response("Invalid HTTP request received.")
        self.headers = []  # trailers after a chunked body are not part of the head

    def _check_head(self, names: Sequence[bytes]) -> None:
        """Refuse the request if its head breaks a rule, which few unusual heads do."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._stop(505, "HTTP/1.1 or HTTP/1.0 is required")
        if self._measure_fields() + len(self.url) > MAX_HEAD_BYTES:
            self._stop(431, _TOO_LARGE)
        if len(names) > MAX_FIELDS:
            self._stop(431, f"request head has more than {MAX_FIELDS} fields")
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (version == "1.1" and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            self._stop(400, "one valid `Host` header is required")
        if any(names.count(name) > 1 for name in CREDENTIALS):
            self._stop(400, SENT_TWICE)

    def _measure_fields(self) -> int:
        return sum([len(name) + len(value) + _FIELD_BYTES for name, value in self.headers])

    def _stop(self, status: int, details: str) -> NoReturn:
        """Refuse the request, and stop the parser."""
        self._refuse(status, details)
        raise ValueError(details)

    def on_message_complete(self) -> None:
        if self.headers and (len(self.headers) > MAX_FIELDS or self._measure_fields() > MAX_HEAD_BYTES):
            self._stop(431, "trailers are too large")
        super().on_message_complete()
        if self._timer is not None:
            self._disarm()
        self._is_in_head = True
        self._bytes_without_body = 0

    def on_response_complete(self) -> None:
        self._body = None
        super().on_response_complete()
        if not self._is_in_head and self.cycle.response_complete:  # the client still sends an unwanted body
            self._arm(LINGER_S)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._attended = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def stays_open(self) -> bool:
        """Whether the connection stays open after this answer, as far as is known now."""
        return self._attended is not None and self._attended.keep_alive

    def open_body(self) -> StreamedBody | None:
        """The body of the answer that is about to begin; None if the client has left."""
        if self._attended is None or self._attended.disconnected:
            return None
        self._body = StreamedBody(self._attended, self.loop)
        return self._body

    def drop(self) -> None:
        """Abort the connection: the client does not read, or there is no time to wait for the end."""
        if self._attended is not None:
            self._attended.disconnected = True  # before the abort, or uvicorn logs an incomplete answer
        self.transport.abort()

    def _refuse(self, status: int, details: str) -> None:
        """Close the connection, with an error body unless an answer has begun.

        Without an open request the client may still send for a moment: closing at once could lose the answer.
        """
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        cycle = self.cycle
        if not self.pipeline and (cycle is None or cycle.response_complete or not cycle.response_started):
            body = self._encode_error(status, details)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        elif self._body is not None:
            self._body.flush()
        if (cycle is None or cycle.response_complete) and self.transport.can_write_eof():
            self.transport.write_eof()
            self._arm(LINGER_S)
        else:
            self.transport.close()

    def _let_go(self) -> None:
        """Break reference cycles: memory is freed at once, not at the next garbage collection."""
        if self.scope is not None:
            self.scope.pop("extensions", None)
        self._attended = self._body = None
        self.cycle = None  # type: ignore[assignment]

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
