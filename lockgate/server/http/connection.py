# SPDX-License-Identifier: Apache-2.0
"""One HTTP connection: uvicorn's protocol, with the bounds that it leaves to others.

Bounds the size of a request's head and the time that it may take, tells the exchange when the client has gone, and
does not read for ever what a client still sends after it has been answered.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT_S = 30.0
LINGER_S = 2.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b'content-length: 51\r\nconnection: close\r\n\r\n{"code":431,"details":"request head is too large"}\n'
)


class Connection(HttpToolsProtocol):
    """A connection that an exchange can ask to be told of its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's business
        super().__init__(*args, **kwargs)
        self.on_leave: Callable[[], object] | None = None
        self._is_in_head = True
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        if self.on_leave is not None:
            self.on_leave()

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.on_leave = None
        self.scope["lockgate.connection"] = self  # type: ignore[typeddict-unknown-key]
        if self._timer is None:
            self._arm(HEAD_TIMEOUT_S)

    def on_headers_complete(self) -> None:
        self._disarm()
        self._is_in_head = False
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self.send_400_response("Invalid HTTP request received.")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._disarm()
        self._is_in_head = True
        self._head_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_in_head:  # the client still sends a body that nobody wants
            self._arm(LINGER_S)

    def drop(self) -> None:
        """Cut the connection: the client does not take what we send."""
        self.transport.abort()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
