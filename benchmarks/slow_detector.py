# SPDX-License-Identifier: Apache-2.0
"""A detector that looks at one call at a time and takes 5 ms for it, as a model on one accelerator does.

A call with many texts takes no longer than one with a single text. It never finds anything. `GET /calls` gives how many
calls and texts there were, and forgets them.

`python -m benchmarks.slow_detector PORT` serves until it is ended.
"""

import asyncio
import socket
import sys
from collections import deque

import msgspec
import uvloop

from benchmarks.processes import HOST
from benchmarks.upstream import DETECTOR_PATH, KeepAlive

CALLS_PATH = "/calls"
CALL_S = 0.005


class Desk:
    """Where calls wait; the first of them is being looked at."""

    def __init__(self) -> None:
        self.calls: deque[tuple[asyncio.Transport, bytes]] = deque()
        self.counted = [0, 0]

    def add(self, transport: asyncio.Transport, texts: int) -> None:
        """A call that came."""
        self.counted = [self.counted[0] + 1, self.counted[1] + texts]
        self.calls.append((transport, _answer([[]] * texts)))
        if len(self.calls) == 1:
            self._start()

    def _start(self) -> None:
        asyncio.get_running_loop().call_later(CALL_S, self._finish)

    def _finish(self) -> None:
        transport, answer = self.calls.popleft()
        transport.write(answer)
        if self.calls:
            self._start()


class SlowDetector(KeepAlive):
    """One connection."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    def take(self, path: str, body: bytes) -> None:
        """Answer when it is this call's turn."""
        if path == DETECTOR_PATH:
            self._desk.add(self._transport, len(msgspec.json.decode(body)["contents"]))
        else:
            self._transport.write(_answer(self._desk.counted))
            self._desk.counted = [0, 0]


def _answer(value: object) -> bytes:
    body = msgspec.json.encode(value)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def serve(port: int) -> None:
    """Serve for ever."""
    desk = Desk()
    listening = socket.create_server((HOST, port), backlog=2048)
    server = await asyncio.get_running_loop().create_server(lambda: SlowDetector(desk), sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
