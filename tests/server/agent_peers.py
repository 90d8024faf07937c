# SPDX-License-Identifier: Apache-2.0
"""A scripted Ollama for agents: answers by the words of the question, and remembers every prompt."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.contracts.http_peers import Exchange, open_peer
from tests.waits import HANG_S

WORDS = ["Hello", " there", "\u2028", "!"]
SAID = "".join(WORDS)
NDJSON = "application/x-ndjson"


class ScriptedOllama:
    """`fail` in a question: 500; `break` in it: the connection ends in the middle; `wait`: until it may go on."""

    def __init__(self) -> None:
        self.prompts: list[list[dict[str, str]]] = []  # of answers, not of what the agent asks for itself
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._may_go_on = asyncio.Event()
        self._is_over = asyncio.Event()
        self._is_open = threading.Event()

    def go_on(self) -> None:
        """Let those go on that wait."""
        self._loop.call_soon_threadsafe(self._may_go_on.set)

    def stop(self) -> None:
        """End `run`."""
        self._loop.call_soon_threadsafe(self._is_over.set)

    def wait_until_open(self) -> None:
        """Until it can be called."""
        assert self._is_open.wait(HANG_S)

    def run(self) -> None:
        """Serve on a free port of loopback, in a loop of its own."""

        async def serve() -> None:
            async with open_peer(self.play) as peer:
                self.port = peer.port
                self._is_open.set()
                await self._is_over.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve())

    async def play(self, exchange: Exchange) -> None:
        """One request."""
        path = exchange.received.path
        if path == "/api/version":
            await exchange.answer(b'{"version": "0"}')
        elif path == "/api/embed":
            count = len(exchange.received.json["input"])
            await exchange.answer(json.dumps({"embeddings": [[1.0, 0.0]] * count}).encode())
        else:
            await self._chat(exchange, exchange.received.json)

    async def _chat(self, exchange: Exchange, asked: dict[str, Any]) -> None:
        if not asked["stream"]:
            await exchange.answer(json.dumps(_say("CONVERSATIONAL", is_last=True)).encode())
            return
        self.prompts.append(asked["messages"])
        question = asked["messages"][-1]["content"]
        if "fail" in question:
            await exchange.answer(b'{"error": "out of memory"}', 500)
            return
        await exchange.start(NDJSON)
        await exchange.chunk(_line(_say(WORDS[0])))
        if "wait" in question:
            await self._may_go_on.wait()
        for word in WORDS[1:]:
            await exchange.chunk(_line(_say(word)))
            if "break" in question:
                exchange.reset()
                return
        await exchange.chunk(_line(_say("", is_last=True)))
        await exchange.end()


def _say(text: str, *, is_last: bool = False) -> dict[str, Any]:
    counts = {"prompt_eval_count": 3, "eval_count": 2, "done_reason": "stop"} if is_last else {}
    return {"model": "m", "message": {"role": "assistant", "content": text}, "done": is_last, **counts}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


@contextmanager
def ollama_at_work() -> Iterator[ScriptedOllama]:
    """It, in a thread of its own: clients that wait do not make it wait."""
    ollama = ScriptedOllama()
    thread = threading.Thread(target=ollama.run, daemon=True)
    thread.start()
    ollama.wait_until_open()
    try:
        yield ollama
    finally:
        ollama.stop()
        thread.join(HANG_S)
