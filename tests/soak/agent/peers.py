# SPDX-License-Identifier: Apache-2.0
"""Behind the servers: models, an embedder and a searched index, over raw sockets, at a random pace.

All of them find in what they are asked whose question it is about, keep books of it, and say something that carries
its number. Whoever wants to know what moment it is may wait for one. Whether what was asked is right is not known here.
"""

import asyncio
import json
import random
import time
from typing import Any

from tests.soak.agent.talk import ANSWER, Call, draw_answer, find_mark, mark, name_label
from tests.soak.streams.peers import Books, HttpPeer, Request

CLASSIFY, REWRITE, EMBED, SEARCH = "classify", "rewrite", "embed", "search"
PHASE_1, TOKENS, COMMIT = "phase 1", "tokens", "commit"
_SCALE = 1000.0
_LINES = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


class TalkBooks(Books):
    """What was asked, and who waits for which moment. `pace` makes everything slower or faster."""

    def __init__(self, seed: int, pace: float = 1.0) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.pace = pace
        self._seed = seed
        self._waiting: dict[str, list[asyncio.Future[int]]] = {}

    def take(self, call: Call) -> random.Random:
        """Note a call; where its answer's chance comes from."""
        self.calls.append(call)
        return random.Random(f"{self._seed} {call.kind} {call.number} {len(self.calls)}")

    async def wait_for(self, moment: str) -> int:
        """Until the next time that it is this moment; of which question."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(moment, []).append(future)
        return await future

    def tell(self, moment: str, number: int) -> None:
        """It is this moment."""
        for future in self._waiting.pop(moment, ()):
            if not future.done():
                future.set_result(number)


class TalkPeer(HttpPeer):
    """One connection to any of them."""

    books: TalkBooks
    _playing: "asyncio.Task[None] | None" = None

    def answer(self, request: Request) -> None:
        """Play the part that the path names."""
        if request.path == "/api/tags":  # it need not tell which models it has
            self.send_json(404, {"error": "not found"})
            return
        if request.path in ("/", "/api/version"):
            self.send_json(200, {"version": {"number": "8.0.0"}} if request.path == "/" else {"version": "0"})
            return
        call = read_call(request)
        if call is None:
            self.books.complaints.append(f"{request.path} was asked without any question's number")
            self.send_json(404, {"error": "who?"})
            return
        rng = self.books.take(call)
        self._playing = asyncio.create_task(self._speak(call, rng) if call.kind == ANSWER else self._reply(call, rng))

    def connection_lost(self, error: Exception | None) -> None:
        """The server has gone, or wants no more."""
        if self._playing is not None:
            self._playing.cancel()
        super().connection_lost(error)

    async def _reply(self, call: Call, rng: random.Random) -> None:
        self.books.tell(PHASE_1, call.number)
        await asyncio.sleep(rng.uniform(0.0, 0.02) * self.books.pace)
        call.finished_at = time.monotonic()
        self.send_json(200, build_reply(call, rng))

    async def _speak(self, call: Call, rng: random.Random) -> None:
        pieces = draw_answer(call.number, len(self.books.calls), rng)
        call.text = "".join(pieces)
        longest_s = (0.0005 if len(pieces) > 50 else rng.choice((0.0, 0.004, 0.012))) * self.books.pace
        await asyncio.sleep(rng.uniform(0.0, 0.03) * self.books.pace)
        self.send(_LINES)
        for piece in pieces:
            self._send_line(_say(piece))
            self.books.tell(TOKENS, call.number)
            if longest_s:
                await asyncio.sleep(rng.uniform(0.0, longest_s))
        call.finished_at = time.monotonic()
        self.is_busy = False
        self._send_line(_say("", is_last=True))
        self.send(b"0\r\n\r\n")
        self.books.tell(COMMIT, call.number)

    def _send_line(self, value: dict[str, Any]) -> None:
        line = json.dumps(value).encode() + b"\n"
        self.send(f"{len(line):x}\r\n".encode() + line + b"\r\n")


def read_call(request: Request) -> Call | None:
    """Who is asked what, about which question; nothing if no number stands in it."""
    now = time.monotonic()
    asked = json.loads(request.body)
    if request.path == "/api/chat":
        messages = [(one["role"], one["content"]) for one in asked["messages"]]
        is_label = "RETRIEVAL" in messages[0][1]
        kind = ANSWER if asked["stream"] else CLASSIFY if is_label else REWRITE
    elif request.path == "/api/embed":
        kind, messages = EMBED, [("text", text) for text in asked["input"]]
    elif "knn" in asked:
        scaled, unit = asked["knn"]["query_vector"][:2]
        kind, messages = SEARCH, [("vector", mark(round(scaled / unit * _SCALE)))]
    else:
        kind, messages = SEARCH, [("words", asked["query"]["multi_match"]["query"])]
    number = find_mark(messages[-1][1])
    return Call(kind, number, messages, now) if number is not None else None


def build_reply(call: Call, rng: random.Random) -> dict[str, Any]:
    """What anybody but the speaking model says."""
    if call.kind == CLASSIFY:
        chosen = {"label": name_label(call.number), "topic": f"{mark(call.number)} again", "use_editor": False}
        return _say(json.dumps(chosen), is_last=True)
    if call.kind == REWRITE:
        return _say(f"words of {mark(call.number)}", is_last=True)
    if call.kind == EMBED:
        return {"embeddings": [[float(find_mark(text) or 0), _SCALE, 1.0] for _, text in call.messages]}
    leg = call.messages[0][0]
    return {"hits": {"hits": [_find(call.number, f"{leg}-{place}") for place in range(rng.randrange(4))]}}


def _find(number: int, name: str) -> dict[str, Any]:
    text = f"Passage {name} about {mark(number)}."
    return {"_id": f"{number}-{name}", "_index": "docs", "_score": 0.9, "_source": {"content": text, "title": name}}


def _say(text: str, *, is_last: bool = False) -> dict[str, Any]:
    counts = {"prompt_eval_count": 3, "eval_count": 2, "done_reason": "stop"} if is_last else {}
    return {"model": "m", "message": {"role": "assistant", "content": text}, "done": is_last, **counts}
