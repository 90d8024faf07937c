# SPDX-License-Identifier: Apache-2.0
"""What stands behind the grounded answers: five sources and a model, scripted, in one process.

Every answer is made beforehand, so that it costs next to nothing. A slug says who is asked and how long that takes:
`docs3-50` is the fourth source and takes 50 ms, `model-0` the model without delay. A model that is asked for a stream
says its 200 tokens in one write, each in a separate HTTP chunk; `model-0-20` says one every 20 ms.

`GET /prompt` gives the last request that the model got; `GET /times` what each call took that had a delay, by
correlation id, and forgets it.

`python -m benchmarks.spaces PORT` serves until it is ended.
"""

import asyncio
import re
import socket
import sys
import time
from typing import NamedTuple

import msgspec
import uvloop

from benchmarks.measuring import read_answer, read_text
from benchmarks.processes import HOST

SOURCES, DOCUMENTS = 5, 5
SOURCE, MODEL = "docs", "model"
PROMPT_PATH, TIMES_PATH = b"/prompt", b"/times"
_CALL = re.compile(rb"/api/v1/endpoints/(docs|model)(\d?)-(\d+)(?:-(\d+))?/query")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CORRELATION = re.compile(rb"(?i)\r\nx-correlation-id: *(\S+)")
_WANTS_STREAM = re.compile(rb'"stream": *true')
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _answer(value: object) -> bytes:
    return _raw_answer(msgspec.json.encode(value))


def _raw_answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


def _documents(number: int) -> bytes:
    """Five documents of 2 KB."""
    text = read_text("plain") * 2
    found = [
        {
            "document_id": f"8f2b6c1de0a9-{number}-{place}",
            "content": text,
            "metadata": {"title": f"The harbour, part {number}-{place}", "language": "en"},
            "similarity_score": 0.9 - 0.07 * place - 0.01 * number,
        }
        for place in range(DOCUMENTS)
    ]
    return _answer({"summary": None, "references": {"documents": found, "provider_info": {"provider": "bench"}}})


class Script:
    """All that can be answered, and what is known of the calls."""

    def __init__(self) -> None:
        pieces = read_answer()
        usage = {"prompt_tokens": 13_000, "completion_tokens": len(pieces), "total_tokens": 13_000 + len(pieces)}
        message = {"role": "assistant", "content": "".join(pieces), "tokens": None}
        self.documents = [_documents(number) for number in range(SOURCES)]
        self.whole = _answer({"summary": {"id": "m", "model": "bench", "message": message, "usage": usage}})
        events = [msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": piece}}]}) for piece in pieces]
        lines = [b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"]]
        self.pieces = [_STREAM_HEAD, *[_chunk(line) for line in lines], b"0\r\n\r\n"]
        self.stream = b"".join(self.pieces)
        self.prompt = b"{}"
        self.times: dict[str, list[tuple[str, float]]] = {}


class _Call(NamedTuple):
    who: str
    correlation_id: str
    came_at: float
    answer: bytes


class Space(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._received = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember where answers go."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        received = self._received
        received += data
        while (end := received.find(b"\r\n\r\n") + 4) >= 4:
            length = _LENGTH.search(received, 0, end)
            whole = end + (int(length[1]) if length else 0)
            if len(received) < whole:
                return
            head, body = bytes(received[:end]), bytes(received[end:whole])
            del received[:whole]
            self._take(head, body)

    def _take(self, head: bytes, body: bytes) -> None:
        script, path = self._script, head.split(b" ", 2)[1]
        if path == PROMPT_PATH:
            self._transport.write(_raw_answer(script.prompt))
        elif path == TIMES_PATH:
            self._transport.write(_answer(script.times))
            script.times = {}
        elif (called := _CALL.fullmatch(path)) is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        elif called[4] is not None:
            self._say(0, int(called[4]) / 1000)
        else:
            correlation = _CORRELATION.search(head)
            answer = self._choose(called[1].decode(), called[2], body)
            call = _Call(called[1].decode(), correlation[1].decode() if correlation else "", time.monotonic(), answer)
            self._answer(call, int(called[3]) / 1000)

    def _choose(self, who: str, number: bytes, body: bytes) -> bytes:
        script = self._script
        if who == SOURCE:
            return script.documents[int(number)]
        script.prompt = body
        ends = body[:200] + body[-200:]  # the prompt is in the middle, and large
        return script.stream if _WANTS_STREAM.search(ends) else script.whole

    def _answer(self, call: _Call, delay_s: float) -> None:
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._answer_late, call)
        else:
            self._transport.write(call.answer)

    def _say(self, number: int, pace_s: float) -> None:
        """A stream, piece by piece."""
        if not self._transport.is_closing():
            self._transport.write(self._script.pieces[number])
            if number + 1 < len(self._script.pieces):
                asyncio.get_running_loop().call_later(pace_s, self._say, number + 1, pace_s)

    def _answer_late(self, call: _Call) -> None:
        self._transport.write(call.answer)
        times = self._script.times.setdefault(call.correlation_id, [])
        times.append((call.who, time.monotonic() - call.came_at))


async def serve(port: int) -> None:
    """Serve for ever."""
    script = Script()
    listening = socket.create_server((HOST, port), backlog=2048)
    server = await asyncio.get_running_loop().create_server(lambda: Space(script), sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
