# SPDX-License-Identifier: Apache-2.0
"""What stands behind the agent: a model and an embedder as Ollama serves them, and an index, scripted, in one process.

Each kind of call takes its time, of `WAITS_MS`. A streamed answer has `TOKENS` tokens; a question that says
`pace-20-100` gets 100 tokens instead, one every 20 ms, and each token is the time at which it was written, in
nanoseconds of the machine's one monotonic clock.

`GET /times` gives what each call took by the script's own clock, from its last byte to the answer's first, and forgets
it. It does not know who asks.

`python -m benchmarks.agent_upstream PORT` serves until it is ended.
"""

import asyncio
import itertools
import re
import socket
import sys
import time
from typing import Any

import msgspec
import uvloop

from benchmarks.measuring import read_text
from benchmarks.processes import HOST
from benchmarks.upstream import KeepAlive

CLASSIFY, REWRITE, EMBED, WORDS, MEANING, SPEAK = "classify", "rewrite", "embed", "words", "meaning", "speak"
WAITS_MS = {CLASSIFY: 30, REWRITE: 20, EMBED: 15, WORDS: 25, MEANING: 25, SPEAK: 50}
TOKENS, GAP_S = 10, 0.005
CHAT_PATH, EMBED_PATH, SEARCH_PATH, TIMES_PATH = "/api/chat", "/api/embed", "/bench/_search", "/times"
_DOCUMENTS = 8
_DIMENSIONS = 384
_PHASES = 64  # streams do not tick together: each starts a little later than the one before
_PACE = re.compile(rb"pace-(\d+)-(\d+)")
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
_STREAM_END = b"0\r\n\r\n"


def _answer(value: object) -> bytes:
    body = msgspec.json.encode(value)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _line(text: str, *, is_last: bool = False) -> bytes:
    said: dict[str, Any] = {"model": "bench", "created_at": "2026-01-01T00:00:00Z"}
    said |= {"message": {"role": "assistant", "content": text}, "done": is_last}
    return msgspec.json.encode(said | ({"prompt_eval_count": 40, "eval_count": 10} if is_last else {}))


def _chunk(line: bytes) -> bytes:
    """One line as one HTTP chunk."""
    return b"%x\r\n%s\n\r\n" % (len(line) + 1, line)


def _hits() -> bytes:
    """Documents of 1 KB."""
    source = {"title": "The harbour", "content": read_text("plain")}
    found = [
        {"_id": f"doc-{place}", "_index": "bench", "_score": 0.9 - 0.05 * place, "_source": source}
        for place in range(_DOCUMENTS)
    ]
    return _answer({"took": 1, "timed_out": False, "hits": {"hits": found}})


class Script:
    """All that can be answered, and what is known of the calls."""

    def __init__(self) -> None:
        label = '{"label": "RETRIEVAL", "topic": "the harbour", "use_editor": false}'
        said = {CLASSIFY: label, REWRITE: "harbour stay date change"}
        self.whole = {kind: _answer(msgspec.Raw(_line(text, is_last=True))) for kind, text in said.items()}
        self.whole[EMBED] = _answer({"embeddings": [[0.05] * _DIMENSIONS]})
        self.whole[WORDS] = self.whole[MEANING] = _hits()
        self.token = _chunk(_line(" word"))
        self.last = _chunk(_line("", is_last=True)) + _STREAM_END
        self.phases = itertools.cycle([number / _PHASES for number in range(_PHASES)])
        self.times: list[tuple[str, float]] = []


class Upstream(KeepAlive):
    """What the script says, each answer when its time has come."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self._later = asyncio.get_running_loop().call_later

    def take(self, path: str, body: bytes) -> None:
        """Answer one request."""
        self._take(path, body, time.monotonic())

    def _take(self, path: str, body: bytes, came_at: float) -> None:
        kind = _find_kind(path, body)
        if path == TIMES_PATH:
            self._transport.write(_answer(self._script.times))
            self._script.times = []
        elif not kind:
            self._transport.write(_answer({"version": {"number": "8.0.0"}}))
        elif kind == SPEAK and (paced := _PACE.search(body)) is not None:
            pace_s = int(paced[1]) / 1000
            self._transport.write(_STREAM_HEAD)
            self._later(pace_s * (1 + next(self._script.phases)), self._stamp, pace_s, int(paced[2]))
        else:
            self._later(WAITS_MS[kind] / 1000, self._answer, kind, came_at)

    def _answer(self, kind: str, came_at: float) -> None:
        if kind == SPEAK:
            self._transport.write(_STREAM_HEAD + self._script.token)
            self._later(GAP_S, self._speak, TOKENS - 1)
        else:
            self._transport.write(self._script.whole[kind])
        self._script.times.append((kind, time.monotonic() - came_at))

    def _speak(self, left: int) -> None:
        self._transport.write(self._script.token if left else self._script.last)
        if left:
            self._later(GAP_S, self._speak, left - 1)

    def _stamp(self, pace_s: float, left: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_chunk(_line(str(time.monotonic_ns()))) if left else self._script.last)
        if left:
            self._later(pace_s, self._stamp, pace_s, left - 1)


def _find_kind(path: str, body: bytes) -> str:
    """The kind of a request; empty for all other requests to such servers."""
    if path == CHAT_PATH:
        if b'"stream":true' in body:
            return SPEAK
        return CLASSIFY if b"CODE_GENERATION" in body else REWRITE
    if path == SEARCH_PATH:
        return MEANING if b'"knn"' in body else WORDS
    return EMBED if path == EMBED_PATH else ""


async def serve(port: int) -> None:
    """Serve for ever."""
    script = Script()
    listening = socket.create_server((HOST, port), backlog=2048)
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(script), sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
