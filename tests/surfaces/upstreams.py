# SPDX-License-Identifier: Apache-2.0
"""What stands behind the gateway of the table, on loopback: a model in three dialects, a source, remote detectors."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import Context, build_nlp_server
from tests.contracts.http_peers import Exchange, open_peer, reply_json
from tests.surfaces.cells import FIRST_DOCUMENT, FIRST_TITLE, SECOND_TITLE, SECRET, Choice, Order, Scene
from tests.waits import forever

AGENT_MODEL = "agent-model"  # also asked by the agent for itself: what the question is about, and in other words
HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
NDJSON = "application/x-ndjson"


def cut(text: str) -> list[str]:
    """A text in pieces of seven characters, as a model would say it."""
    return [text[start : start + 7] for start in range(0, len(text), 7)]


class Progress:
    """How far the parts of one request are that work at the same time."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.is_asked = asyncio.Event()  # the model
        self.is_question_read = asyncio.Event()
        self.is_answer_read = asyncio.Event()


class Upstreams:
    """All of them. `scene` says what they say; `prompts` are what the model was asked for answers."""

    def __init__(self) -> None:
        self.set_scene(Scene())

    def set_scene(self, scene: Scene, order: Order = "") -> None:
        """The next cell."""
        self.scene = scene
        self.prompts: list[str] = []
        self._progress = Progress(order)

    async def play_model(self, exchange: Exchange) -> None:
        """One request in the words of OpenAI or of Ollama."""
        body = exchange.received.json if exchange.received.body else {}
        prompt = json.dumps(body.get("messages") or body.get("prompt"))
        if body.get("model") == AGENT_MODEL and FIRST_DOCUMENT not in prompt:
            await exchange.answer(json.dumps({"message": {"content": "gates"}, "done": True}).encode())
            return
        if exchange.received.path == "/tokenize":
            await exchange.answer(b'{"count": 1}')
            return
        await self._begin_answer(prompt)
        dialect = OllamaDialect if exchange.received.path == "/api/chat" else OpenAIDialect
        writer = dialect(self.scene.choices[: body.get("n") or 1], is_chat="messages" in body)
        if not body.get("stream"):
            await exchange.answer(json.dumps(writer.write_whole()).encode())
            return
        await exchange.start(writer.kind)
        await exchange.chunk(writer.write_stream())
        await exchange.end()

    async def generate(self, message: Any, _context: Context) -> Any:
        """One request in the words of caikit."""
        await self._begin_answer(message.text)
        return nlp.GeneratedTextResult(generated_text=self.scene.choices[0].content, finish_reason="EOS_TOKEN")

    async def generate_stream(self, message: Any, _context: Context) -> AsyncIterator[Any]:
        """The same, streamed."""
        await self._begin_answer(message.text)
        for piece in cut(self.scene.choices[0].content):
            yield nlp.GeneratedTextStreamResult(generated_text=piece)
        yield nlp.GeneratedTextStreamResult(details=nlp.TokenStreamDetails(finish_reason="EOS_TOKEN"))

    async def count_tokens(self, _message: Any, _context: Context) -> Any:
        """The tokens of a text that the gateway withheld from the model."""
        return nlp.TokenizationResults(token_count=1)

    async def _begin_answer(self, prompt: str) -> None:
        progress = self._progress
        self.prompts.append(prompt)
        progress.is_asked.set()
        if progress.order != "question first":
            return
        await progress.is_question_read.wait()
        if SECRET in self.scene.question:  # the policy blocks it, so the gateway leaves
            await forever()

    async def play_late(self, exchange: Exchange) -> None:
        """A detector of the question that answers when the model is asked, or when its answer has been read."""
        progress = self._progress
        await (progress.is_asked if progress.order == "question first" else progress.is_answer_read).wait()
        await _answer_findings(exchange)
        progress.is_question_read.set()

    async def play_far(self, exchange: Exchange) -> None:
        """A detector of the answer."""
        progress = self._progress
        await _answer_findings(exchange)
        progress.is_answer_read.set()

    async def play_source(self, exchange: Exchange) -> None:
        """Two documents, of which the second is the scene's."""
        found = [(FIRST_TITLE, FIRST_DOCUMENT, 0.9), (SECOND_TITLE, self.scene.document, 0.8)]
        documents = [
            {"content": text, "metadata": {"title": title}, "similarity_score": score} for title, text, score in found
        ]
        await exchange.answer(json.dumps({"summary": None, "references": {"documents": documents}}).encode())


class OllamaDialect:
    """What the model says in lines of JSON."""

    kind = NDJSON

    def __init__(self, choices: tuple[Choice, ...], *, is_chat: bool) -> None:
        self._text, self._thought = choices[0].content, choices[0].reasoning

    def write_whole(self) -> Any:
        """One document."""
        message = {"role": "assistant", "content": self._text, "thinking": self._thought}
        return {"message": message, "done": True, "done_reason": "stop"}

    def write_stream(self) -> bytes:
        """All lines."""
        lines: list[Any] = [
            *[{"message": {"role": "assistant", "content": "", "thinking": one}} for one in cut(self._thought)],
            *[{"message": {"role": "assistant", "content": one}} for one in cut(self._text)],
        ]
        lines = [{**line, "done": False} for line in lines]
        last = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
        return b"".join([json.dumps(line).encode() + b"\n" for line in [*lines, last]])


class OpenAIDialect:
    """What the model says in completions."""

    kind = "text/event-stream"

    def __init__(self, choices: tuple[Choice, ...], *, is_chat: bool) -> None:
        self._choices = choices
        self._is_chat = is_chat

    def write_whole(self) -> Any:
        """One document."""
        choices = [
            {"index": index, **self._write_message(choice), "finish_reason": self._find_end(choice)}
            for index, choice in enumerate(self._choices)
        ]
        return {**HEAD, "object": "chat.completion", "choices": choices, "usage": None}

    def write_stream(self) -> bytes:
        """All events."""
        events = [
            {**HEAD, "choices": [{"index": index, **said, "finish_reason": None}]}
            for index, choice in enumerate(self._choices)
            for said in self._write_deltas(choice)
        ]
        nothing: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
        ends = [
            {**HEAD, "choices": [{"index": index, **nothing, "finish_reason": self._find_end(choice)}]}
            for index, choice in enumerate(self._choices)
        ]
        return b"".join([b"data: %b\n\n" % json.dumps(one).encode() for one in [*events, *ends]]) + b"data: [DONE]\n\n"

    def _find_end(self, choice: Choice) -> str:
        return "tool_calls" if self._is_chat and choice.arguments else "stop"

    def _write_message(self, choice: Choice) -> dict[str, Any]:
        if not self._is_chat:
            return {"text": choice.content}
        message: dict[str, Any] = {"role": "assistant", "content": choice.content or None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.arguments:
            message["tool_calls"] = [_write_call(choice.arguments)]
        return {"message": message}

    def _write_deltas(self, choice: Choice) -> list[dict[str, Any]]:
        if not self._is_chat:
            return [{"text": piece} for piece in cut(choice.content)]
        thoughts = [{"reasoning_content": piece} for piece in cut(choice.reasoning)]
        words = [{"content": piece} for piece in cut(choice.content)]
        calls: list[dict[str, Any]] = []
        if choice.arguments:
            calls.append({"tool_calls": [{"index": 0, **_write_call("")}]})
            pieces = [{"index": 0, "function": {"arguments": piece}} for piece in cut(choice.arguments)]
            calls += [{"tool_calls": [piece]} for piece in pieces]
        return [{"delta": one} for one in [*thoughts, *words, *calls]]


def _write_call(arguments: str) -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": "write", "arguments": arguments}}


async def _answer_findings(exchange: Exchange) -> None:
    contents = exchange.received.json["contents"]
    await exchange.answer(json.dumps([_find_secret(text) for text in contents]).encode())
    await exchange.wait_until_taken()


def _find_secret(text: str) -> list[dict[str, Any]]:
    start = text.find(SECRET)
    if start < 0:
        return []
    end = start + len(SECRET)
    kind = {"detection": "EmailAddress", "detection_type": "pii", "score": 0.95}
    return [{"start": start, "end": end, "text": SECRET, **kind}]


class Ports(NamedTuple):
    """Where they listen."""

    model: int
    generation: int
    source: int
    detectors: Mapping[str, int]


@asynccontextmanager
async def open_upstreams(upstreams: Upstreams) -> AsyncIterator[Ports]:
    """All of them on free ports."""
    methods = {
        "TextGenerationTaskPredict": upstreams.generate,
        "ServerStreamingTextGenerationTaskPredict": upstreams.generate_stream,
        "TokenizationTaskPredict": upstreams.count_tokens,
    }
    async with (
        open_peer(upstreams.play_model) as model,
        open_peer(upstreams.play_source) as source,
        open_peer(upstreams.play_late) as late,
        open_peer(upstreams.play_far) as far,
        open_peer(reply_json({"code": 500, "message": "broken"}, 500)) as broken,
        open_peer(reply_json({"code": 422, "message": "refused"}, 422)) as refusing,
        build_nlp_server(methods).listening() as generation,
    ):
        detectors = {"late": late.port, "far": far.port, "broken": broken.port, "refusing": refusing.port}
        yield Ports(model.port, generation, source.port, detectors)
