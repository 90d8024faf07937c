# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.soak.streams.steady_model TOKENS FILE`: a model for very many streams at ten tokens a second.

Cheap, for it shares the machine with what it measures: every packet is built before the first request, and one timer
serves all streams. A request's `max_tokens` says how many it gets. Prints its port; when its input closes it writes
to the file when it sent each sentence's end.
"""

import asyncio
import json
import re
import sys
import time
from array import array
from itertools import cycle
from pathlib import Path
from typing import cast

import uvloop

from tests.soak.streams.plans import STREAM_HEADER
from tests.soak.streams.steady_text import TOKEN_S, sentence_tokens, tokens

_TICKS = 20  # per token: the streams do not all speak at once
_NAME = re.compile(rb"(?i)" + STREAM_HEADER.encode() + rb": *(\w+)")
_WANTED = re.compile(rb"\"max_tokens\": *(\d+)")
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _build(count: int) -> list[bytes]:
    """A packet for each token, and the one that ends a stream."""
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "steady"}
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": token}, None) for token in tokens(count)] + [
        ({}, "stop")
    ]
    events = []
    for delta, finish in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        events.append(b"data: " + json.dumps({**base, "choices": [choice]}).encode() + b"\n\n")
    packets = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    done = b"data: [DONE]\n\n"
    packets[-1] += b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done)
    return packets


class _Model:
    def __init__(self, count: int) -> None:
        self.packets = _build(count)
        self.noted = frozenset(sentence_tokens(count))
        self.times: dict[str, array[float]] = {}
        self.slots: list[set[_Stream]] = [set() for _ in range(_TICKS)]
        self.next_slot = cycle(self.slots)

    async def tick(self) -> None:
        """Every stream of a slot says its next token."""
        started = time.monotonic()
        number = 0
        while True:
            for stream in list(self.slots[number % _TICKS]):
                stream.say()
            number += 1
            await asyncio.sleep(max(0.0, started + number * TOKEN_S / _TICKS - time.monotonic()))


class _Stream(asyncio.Protocol):
    def __init__(self, model: _Model) -> None:
        self._model = model
        self._raw = b""
        self._slot: set[_Stream] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._raw += data
        head, end, body = self._raw.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return
        self._raw = b""
        name = _NAME.search(head)
        self._times = self._model.times.setdefault(name[1].decode() if name else "?", array("d"))
        wanted = _WANTED.search(body)
        self._count = int(wanted[1]) if wanted else 0
        self._number = 0
        self._slot = next(self._model.next_slot)
        self._slot.add(self)
        self._transport.write(_HEAD)

    def connection_lost(self, _error: Exception | None) -> None:
        self._slot.discard(self)

    def say(self) -> None:
        if self._number == self._count:
            self._transport.write(self._model.packets[-1])
            self._slot.discard(self)
            return
        if self._number in self._model.noted:
            self._times.append(time.monotonic())
        self._transport.write(self._model.packets[self._number])
        self._number += 1


async def _serve(count: int, path: Path) -> None:
    loop = asyncio.get_running_loop()
    model = _Model(count)
    server = await loop.create_server(lambda: _Stream(model), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    ticking = asyncio.create_task(model.tick())
    await loop.run_in_executor(None, sys.stdin.read)
    ticking.cancel()
    server.close()
    path.write_text(  # noqa: ASYNC240 - nothing else is to be done any more
        json.dumps({name: list(times) for name, times in model.times.items()})
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
