# SPDX-License-Identifier: Apache-2.0
"""The body of a streamed answer: what is written within one turn of the loop leaves as one chunk.

uvicorn writes the head and the end and keeps the state of the connection; what lies between goes straight to the
transport. Decides when bytes leave and whether a silent stream gives a sign of life. Knows nothing of what they mean.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_WAITING_BYTES = 65_536
_SHORTEST_WAIT_S = 0.001


class StreamedBody:
    """One body. Bytes wait for the end of the current turn at most, and never more than a bounded number of them."""

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
        if cycle.scope["http_version"] == "1.0":  # knows no chunks: the end of the connection is the end of the body
            cycle.chunked_encoding = False

    @property
    def is_stuck(self) -> bool:
        """Whether the client does not read what has been sent."""
        return self._cycle.flow.write_paused and not self._cycle.disconnected

    async def drain(self) -> None:
        """Until the client reads on or leaves."""
        await self._cycle.flow.drain()

    def keep_alive(self, pulse: bytes, every_s: float) -> None:
        """Send `pulse` whenever nothing has been sent for that long; it ends in a blank line, as events do."""
        self._pulse, self._every_s = pulse, every_s
        self._sent_at = self._loop.time()
        self._pulse_timer = self._loop.call_later(every_s, self._beat)

    def add(self, data: bytes) -> None:
        """More bytes."""
        self._parts.append(data)
        self._size += len(data)
        if self._size >= MAX_WAITING_BYTES:
            self.flush()
        elif self._turn is None:
            self._turn = self._loop.call_soon(self._end_turn)

    def flush(self) -> None:
        """Send what waits, now."""
        data = self._take()
        transport = self._cycle.transport
        if not data or self._is_silent or self._cycle.disconnected or transport.is_closing():
            return
        self._sent_at = self._loop.time()
        self._tail = (self._tail + data[-2:])[-2:]
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._cycle.chunked_encoding else data)

    def finish(self) -> bytes:
        """The bytes that still wait; they leave with uvicorn's end of the answer. Nothing more may be added."""
        rest = self._take()
        self._stop_pulse()
        if not self._cycle.chunked_encoding:
            self._cycle.expected_content_length = len(rest)  # uvicorn counts only what it sends itself
        return rest

    def close(self) -> None:
        """Send nothing more: the client has left, or the answer is complete."""
        self._take()
        self._stop_pulse()

    def _end_turn(self) -> None:
        self._turn = None
        self.flush()

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

    def _stop_pulse(self) -> None:
        if self._pulse_timer is not None:
            self._pulse_timer.cancel()
            self._pulse_timer = None
