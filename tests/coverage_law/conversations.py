# SPDX-License-Identifier: Apache-2.0
"""Random conversations with tools under a policy that masks: the client keeps the history, as function calling does."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from lockgate.gate.sse import SseParser
from tests.coverage_law.planting import MARK
from tests.coverage_law.requests import TOOL
from tests.coverage_law.verdicts import find_receipt, judge_answer
from tests.coverage_law.world import ModelReply, World
from tests.server.http_client import Answer
from tests.soak.policies.digests import verify_as_server

_HEAD = {"id": "c1", "created": 1, "model": "m"}
_WORDS = ("Two books.", "See the shelf.", "It opens at nine.", f"Ask {MARK} about it.", f"{MARK}", "Zwölf ▒ Bücher.")


class Conversation:
    """One conversation; `faults` are the laws that it breaks."""

    def __init__(self, world: World, seed: int) -> None:
        self.faults: list[str] = []
        self._world = world
        self._random = Random(seed)
        self._messages: list[dict[str, Any]] = []

    async def play(self) -> list[str]:
        """Some turns; in each the model may call tools before it answers."""
        for _ in range(self._random.randrange(1, 4)):
            self._messages.append({"role": "user", "content": self._draw_content()})
            for _ in range(self._random.randrange(3)):
                if not await self._ask(self._draw_calls()):
                    return self.faults
                self._answer_calls()
            if not await self._ask({"role": "assistant", "content": self._draw_text()}):
                return self.faults
        return self.faults

    # What is said.

    def _draw_text(self) -> str:
        return " ".join(self._random.choices(_WORDS, k=self._random.randrange(1, 4)))

    def _draw_content(self) -> Any:
        if self._random.random() < 0.7:
            return self._draw_text()
        return [{"type": "text", "text": self._draw_text()} for _ in range(self._random.randrange(1, 3))]

    def _draw_value(self, depth: int = 0) -> Any:
        kind = self._random.randrange(5 if depth < 2 else 3)
        if kind == 3:
            return [self._draw_value(depth + 1) for _ in range(self._random.randrange(3))]
        if kind == 4:
            return {f"k{at}": self._draw_value(depth + 1) for at in range(self._random.randrange(3))}
        return (self._draw_text(), self._random.randrange(10**9), None)[kind]

    def _draw_calls(self) -> dict[str, Any]:
        calls = []
        for at in range(self._random.randrange(1, 3)):
            arguments = {"title": self._draw_value(), "note": self._draw_value()}
            said = json.dumps(arguments, ensure_ascii=self._random.random() < 0.5)
            calls.append({"id": f"call_{at}", "type": "function", "function": {"name": "find", "arguments": said}})
        return {"role": "assistant", "content": None, "tool_calls": calls}

    def _answer_calls(self) -> None:
        for call in self._messages[-1]["tool_calls"]:
            is_json = self._random.random() < 0.6
            content = json.dumps(self._draw_value()) if is_json else self._draw_text()
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    # One request.

    async def _ask(self, message: dict[str, Any]) -> bool:
        """Lets the model answer with this message; returns whether the conversation goes on."""
        is_stream = self._random.random() < 0.5
        self._world.forget()
        self._world.reply = self._build_stream(message) if is_stream else _build_whole(message)
        body = {"model": "m", "messages": self._messages, "tools": [TOOL], "stream": is_stream}
        model = self._random.choice(["m", "configured"])
        answer = await self._world.post("/mask/v1/chat/completions", {**body, "model": model})
        self._check(answer, is_stream=is_stream)
        if self.faults:
            return False
        heard = assemble(answer) if is_stream else answer.json()["choices"][0]["message"]
        self._check_calls("the client", heard)
        self._messages.append({key: heard.get(key) for key in ("role", "content", "tool_calls") if key in heard})
        return not self.faults

    def _build_stream(self, message: dict[str, Any]) -> ModelReply:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": message["content"] and ""}]
        deltas += [{"content": piece} for piece in self._cut(message["content"] or "")]
        for at, call in enumerate(message.get("tool_calls") or ()):
            function = {**call["function"], "arguments": ""}
            deltas.append({"tool_calls": [{**call, "index": at, "function": function}]})
            pieces = self._cut(call["function"]["arguments"])
            deltas += [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in pieces]
        ends: list[tuple[dict[str, Any], str]] = [({}, "tool_calls" if message.get("tool_calls") else "stop")]
        packets = []
        for delta, reason in [*[(one, None) for one in deltas], *ends]:
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            event = {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}
            packets.append(b"data: %b\n\n" % json.dumps(event).encode())
        return ModelReply(kind="text/event-stream", packets=[b"".join([*packets, b"data: [DONE]\n\n"])])

    def _cut(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            size = self._random.randrange(1, 9)
            yield text[at : at + size]
            at += size

    # The laws.

    def _check(self, answer: Answer, *, is_stream: bool) -> None:
        receipt = find_receipt(answer)
        if answer.status != 200 or receipt is None:
            self.faults.append(f"status {answer.status}: {answer.body[:300]!r}")
            return
        if leaks := self._world.find_leaks():
            self.faults.append(f"the mark reached {leaks}")
        if fault := judge_answer(answer):
            self.faults.append(fault)
        if not receipt["covered"]:
            self.faults.append(f"not covered: {receipt}")
        events = _list_events(answer) if is_stream else [answer.json()]
        if is_stream and not verify_as_server(events, dict(receipt)):
            self.faults.append(f"the receipt does not verify: {receipt}")
        for received in self._world.received:
            for message in received.json["messages"]:
                self._check_calls("the model", message)
        sent = [message for received in self._world.received for message in received.json["messages"]]
        for own, theirs in zip(self._messages, sent, strict=True):
            if own["role"] == "tool" and _is_json(own["content"]) and not _is_json(theirs["content"]):
                self.faults.append(f"a result of a tool is no JSON: {theirs['content']!r}")

    def _check_calls(self, reader: str, message: dict[str, Any]) -> None:
        for call in message.get("tool_calls") or ():
            if not _is_json(call["function"]["arguments"]):
                self.faults.append(f"{reader} gets arguments that are no JSON: {call['function']['arguments']!r}")


def _build_whole(message: dict[str, Any]) -> ModelReply:
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    return ModelReply(json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice]}).encode())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _list_events(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(one.data) for one in SseParser().feed(answer.body) if one.data != "[DONE]"]


def assemble(answer: Answer) -> dict[str, Any]:
    """The message of a stream, put together as clients do."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for event in _list_events(answer):
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                call["id"] = piece.get("id") or call.get("id")
                for key in ("name", "arguments"):
                    call["function"][key] += (piece.get("function") or {}).get(key) or ""
    return {**message, "tool_calls": [calls[at] for at in sorted(calls)]} if calls else message
