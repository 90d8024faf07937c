# SPDX-License-Identifier: Apache-2.0
"""A client of one stream of events: notes when each came, leaves when its plan says so. Judges nothing."""

import asyncio
import random
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

from tests.soak.streams.plans import STREAM_HEADER, Leave
from tests.waits import HANG_S

PATH = "/api/v2/chat/completions-detection"
PATIENCE_S = HANG_S
_RESET = struct.pack("ii", 1, 0)


class Played(Protocol):
    """What a client must know of its plan."""

    @property
    def id(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def leave(self) -> Leave | None: ...
    @property
    def is_slow_reader(self) -> bool: ...
    def request(self) -> bytes:
        """The body."""


class Door(NamedTuple):
    """Where a client asks, and which header names its stream."""

    path: str
    id_header: str


_GUARDED = Door(PATH, STREAM_HEADER)


class Event(NamedTuple):
    """One event of the answer: its name, its lines of data joined, and when it had come."""

    name: str
    text: str
    at: float


@dataclass
class Heard:
    """All that a client got. `end`: complete, cut (the server closed in the middle), left, or late."""

    status: int = 0
    head: str = ""
    events: list[Event] = field(default_factory=list)
    rest: bytes = b""
    end: str = "late"
    ended_at: float = 0.0


class Listener(asyncio.Protocol):
    """Takes an HTTP answer in chunks apart as it comes."""

    def __init__(self, plan: Played, door: Door = _GUARDED) -> None:
        self.heard = Heard()
        self.over = asyncio.Event()
        self._plan = plan
        self._door = door
        self._raw = b""
        self._body = b""
        self._rng = random.Random(plan.seed + 1)
        self._transport = cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        body = self._plan.request()
        head = f"POST {self._door.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += f"{self._door.id_header}: {self._plan.id}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        """Some bytes of the answer."""
        if self.over.is_set():
            self.heard.rest += data
            return
        self._raw += data
        if not self.heard.status:
            self._take_head()
        if self.heard.status:
            self._take_chunks(time.monotonic())
        leave = self._plan.leave
        if leave is not None and len(self.heard.events) >= leave.after_events:
            self.leave()
        elif self._plan.is_slow_reader and not self.over.is_set():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._rng.uniform(0, 0.05), self._resume)

    def connection_lost(self, _error: Exception | None) -> None:
        """The server has closed."""
        self._finish("cut")

    def leave(self) -> None:
        """Go, without a word or with a reset."""
        if self.over.is_set():
            return
        self._finish("left")
        if self._plan.leave is not None and self._plan.leave.is_abrupt:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def close(self) -> None:
        """Nothing more is wanted."""
        self._transport.abort()

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_head(self) -> None:
        head, end, rest = self._raw.partition(b"\r\n\r\n")
        if end:
            self.heard.head = head.decode("latin-1").lower()
            self.heard.status = int(head.split(b" ", 2)[1])
            self._raw = rest

    def _take_chunks(self, now: float) -> None:
        if "transfer-encoding: chunked" not in self.heard.head:
            self._body += self._raw
            self._raw = b""
            self._finish("complete")  # a short answer that is no stream
            return
        while (line := self._raw.find(b"\r\n")) > 0:
            size = int(self._raw[:line], 16)
            end = line + 2 + size
            if len(self._raw) < end + 2:
                return
            self._body += self._raw[line + 2 : end]
            self._raw = self._raw[end + 2 :]
            self._take_events(now)
            if size == 0:
                self._finish("complete")
                return

    def _take_events(self, now: float) -> None:
        *complete, self._body = self._body.split(b"\n\n")
        for raw in complete:
            name, lines = "", []
            for line in raw.decode().split("\n"):
                key, _, value = line.partition(":")
                if key == "data":
                    lines.append(value.removeprefix(" "))
                elif key == "event":
                    name = value.removeprefix(" ")
            if lines:
                self.heard.events.append(Event(name, "\n".join(lines), now))

    def _finish(self, end: str) -> None:
        if not self.over.is_set():
            self.heard.end = end
            self.heard.rest = self._body + self._raw
            self.heard.ended_at = time.monotonic()
            self.over.set()


async def listen_to(plan: Played, port: int, door: Door = _GUARDED) -> Heard:
    """Play the client's part of a plan."""
    loop = asyncio.get_running_loop()
    _, listener = await loop.create_connection(lambda: Listener(plan, door), "127.0.0.1", port)
    timer = loop.call_later(plan.leave.after_s, listener.leave) if plan.leave is not None else None
    try:
        await asyncio.wait_for(listener.over.wait(), PATIENCE_S)
    except TimeoutError:
        listener.heard.ended_at = time.monotonic()
    finally:
        if timer is not None:
            timer.cancel()
        listener.close()
    return listener.heard
