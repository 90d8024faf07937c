# SPDX-License-Identifier: Apache-2.0
"""Requests on a plain ASGI server, which has no ClientConnection extension."""

import asyncio
from collections.abc import Callable
from typing import Any


class PlainConnection:
    """ClientConnection over plain ASGI. It notices that the client left only after the body is received."""

    certificate_name = ""
    stays_open = False

    def __init__(self, receive: Any, send: Any) -> None:
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self.on_leave: Callable[[], object] | None = None

    async def receive(self) -> Any:
        """The next message. After the body's last one, start to watch for the client's disconnect."""
        message = await self._receive()
        is_last = message["type"] == "http.request" and not message.get("more_body")
        if is_last and self.on_leave is not None:
            self._watcher = asyncio.get_running_loop().create_task(self._wait_for_leaving())
        return message

    async def send(self, message: Any) -> None:
        """Send a message. Stop watching before the last one: servers report the end of a reply as a disconnect."""
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.drop()
        await self._send(message)

    async def _wait_for_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.on_leave is not None:
            self.on_leave()

    def open_body(self) -> "PlainBody":
        """The body of the reply that is about to begin."""
        return PlainBody(self._send)

    def drop(self) -> None:
        """Stop watching. The server itself cuts the connection if a reply has no end."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None


class PlainBody:
    """The body of a streamed reply on a plain ASGI server: `drain` sends each write, and there is no keep-alive."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._waiting = b""

    @property
    def is_stuck(self) -> bool:
        return bool(self._waiting)

    async def drain(self) -> None:
        await self._send({"type": "http.response.body", "body": self.finish(), "more_body": True})
        await asyncio.sleep(0)  # a server ignores writes after the client left: let the watcher notice it

    def add(self, data: bytes) -> None:
        self._waiting += data

    def finish(self) -> bytes:
        data, self._waiting = self._waiting, b""
        return data

    def keep_alive(self, pulse: bytes, every_s: float) -> None:
        """Does nothing: a timer must not send while the handler sends."""

    def flush(self) -> None:
        """Does nothing: no byte waits when `write` returns."""
