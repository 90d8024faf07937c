# SPDX-License-Identifier: Apache-2.0
"""What stands behind the gateways: an OpenAI-compatible server and a detector server, both scripted, in one process.

Every answer is made beforehand, so that it costs next to nothing. The `model` of a request says how it is streamed:
`burst` at once, `paced-10` with ten milliseconds before each token. The detector never finds anything.

`python -m benchmarks.upstream PORT` serves until it is ended.
"""

import asyncio
import itertools
import re
import socket
import sys
from typing import Any

import msgspec
import uvloop

from benchmarks.measuring import read_answer
from benchmarks.processes import HOST

BURST, PACED = "burst", "paced-"
CHAT_PATH = "/v1/chat/completions"
DETECTOR_PATH = "/api/v1/text/contents"
_PHASES = 64  # streams do not tick together: each starts a little later than the one before
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_STREAM_END = b"0\r\n\r\n"
_ID: dict[str, Any] = {"id": "chatcmpl-8f2b6c1de0a94b7f", "created": 1_700_000_000, "model": "granite-3.1-8b-instruct"}


def _answer(pieces: list[str]) -> bytes:
    message = {"role": "assistant", "content": "".join(pieces)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 40, "total_tokens": 40 + len(pieces), "completion_tokens": len(pieces)}
    return _json_answer({**_ID, "object": "chat.completion", "choices": [choice], "usage": usage})


def _json_answer(value: object) -> bytes:
    body = msgspec.json.encode(value)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return _chunk(msgspec.json.encode({**_ID, "object": "chat.completion.chunk", "choices": [choice]}))


def _chunk(body: bytes) -> bytes:
    """One event as one HTTP chunk."""
    event = b"data: " + body + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


class Script:
    """The answers of every connection."""

    def __init__(self, pieces: list[str]) -> None:
        self.unary = _answer(pieces)
        self.first = _STREAM_HEAD + _event({"role": "assistant", "content": ""})
        self.tokens = [_event({"content": piece}) for piece in pieces]
        self.last = _event({}, "stop") + _chunk(b"[DONE]") + _STREAM_END
        self.burst = self.first + b"".join(self.tokens) + self.last
        self.phases = itertools.cycle([number / _PHASES for number in range(_PHASES)])


class KeepAlive(asyncio.Protocol):
    """One connection; `take` gets every request that is complete."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, path: str, body: bytes) -> None:
        """Answer one request."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember where answers go."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n") + 4) >= 4:
            length = _LENGTH.search(self._rest, 0, end)
            whole = end + (int(length[1]) if length else 0)
            if len(self._rest) < whole:
                return
            path = self._rest.split(b" ", 2)[1].decode()
            body, self._rest = self._rest[end:whole], self._rest[whole:]
            self.take(path, body)


class Upstream(KeepAlive):
    """What the script says."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def take(self, path: str, body: bytes) -> None:
        """Answer one request."""
        self._answer(path, msgspec.json.decode(body) if body else {})

    def _answer(self, path: str, request: dict[str, Any]) -> None:
        if path == DETECTOR_PATH:
            self._transport.write(_json_answer([[] for _ in request["contents"]]))
        elif path != CHAT_PATH:
            self._transport.write(_json_answer({}))
        elif not request.get("stream"):
            self._transport.write(self._script.unary)
        elif request["model"] == BURST:
            self._transport.write(self._script.burst)
        else:
            self._start_paced(float(request["model"].removeprefix(PACED)) / 1000)

    def _start_paced(self, pace_s: float) -> None:
        self._transport.write(self._script.first)
        self._later(pace_s * (1 + next(self._script.phases)), pace_s, 0)

    def _later(self, delay_s: float, pace_s: float, number: int) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._send_token, pace_s, number)

    def _send_token(self, pace_s: float, number: int) -> None:
        if self._transport.is_closing():
            return
        if number == len(self._script.tokens):
            self._transport.write(self._script.last)
            return
        self._transport.write(self._script.tokens[number])
        self._later(pace_s, pace_s, number + 1)


async def serve(port: int) -> None:
    """Serve for ever."""
    script = Script(read_answer())
    listening = socket.create_server((HOST, port), backlog=2048)
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(script), sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
