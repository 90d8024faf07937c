# SPDX-License-Identifier: Apache-2.0
"""A configured model as a backend of completions: its answers are messages in OpenAI's format.

A model whose server has OpenAI's API gets every field of a request. The frames of other models become messages.
Both kinds answer chats: the prompt of a text completion becomes a user message.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from lockgate.agent.answer import (
    MAX_WHOLE_CHARS,
    PACE,
    ModelCall,
    Pace,
    TurnResult,
    collect,
    fail_model,
    keep_pace,
    list_params,
    listen,
)
from lockgate.api.openai import turn_format
from lockgate.api.openai.deltas import CONTENT, REASONING
from lockgate.api.openai.format import CHAT, CompletionRequest, read_request
from lockgate.api.openai.turn_fields import ROLES, choose_params
from lockgate.api.openai.whole_answer import TEXTS, Dialect
from lockgate.api.shapes import Shape
from lockgate.errors import BrokeProtocol, HeldTooMuch, InvalidRequest, LockgateError, Rejected, UpstreamError
from lockgate.gate.messages import all_text_of
from lockgate.gate.values import Frame, Generation, Message
from lockgate.guard.stream import Source
from lockgate.interfaces import Backend, ChatModel, Headers, Model

_TEXT = Shape(turn_format.GuardedText)
_BODY = ("stream", "stream_options", "messages", "prompt")
_DOCUMENTS = "documents"  # for detectors of grounding; only models whose server has OpenAI's API get them
_GUARDS = frozenset({"detectors", "_prompt_masks", _DOCUMENTS})
_TEXT_ONLY = frozenset({"best_of", "echo", "logprobs", "suffix"})  # a chat has no such parameter, or another one


class ConfiguredModel(ABC):
    """A configured model, as a Backend. Its answers have the model name of the request."""

    takes_documents = True  # its server may read `documents`; else they are only for detectors of grounding

    def __init__(self, model: Model, pace: Pace) -> None:
        self._model = model
        self._pace = pace
        self.takes = list_params(model)

    @abstractmethod
    def read(self, dialect: Dialect, raw: bytes) -> CompletionRequest:
        """A request to the model; raises InvalidRequest for what the model cannot do."""

    async def generate(self, request: Generation) -> dict[str, Any]:
        """The whole answer."""
        return _rename(await self._answer(_to_chat(request)), request)

    async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """The messages of the answer; the usage only where the request asks for it."""
        includes_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        async with aclosing(self._answer_stream(_to_chat(request))) as bursts:
            async for burst in bursts:
                messages = burst if includes_usage else [_without_usage(one) for one in burst if one["choices"]]
                if messages:
                    yield [_rename(one, request) for one in messages]

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """Configured models count no tokens."""
        return 0

    @abstractmethod
    async def _answer(self, request: Generation) -> dict[str, Any]:
        """The whole answer to a chat."""

    @abstractmethod
    def _answer_stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """The messages of the answer to a chat."""


def configure(model: Model, pace: Pace = PACE) -> ConfiguredModel:
    """A model as a backend of completions."""
    return _PassthroughModel(model, model.chat, pace) if isinstance(model, ChatModel) else _TextModel(model, pace)


class _PassthroughModel(ConfiguredModel):
    """A model whose server has OpenAI's API: it gets every field. Each message of a stream has a time limit."""

    def __init__(self, model: Model, chat: Backend, pace: Pace) -> None:
        super().__init__(model, pace)
        self._chat = chat

    def read(self, dialect: Dialect, raw: bytes) -> CompletionRequest:
        request = _read(dialect, raw)
        if dialect is TEXTS:
            choose_params({name: request.body.get(name) for name in _TEXT_ONLY}, frozenset())
        return request

    async def _answer(self, request: Generation) -> dict[str, Any]:
        try:
            return await self._chat.generate(request)
        except UpstreamError as error:
            raise self._fail(error, False) from error

    def _answer_stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        return keep_pace(partial(self._chat.stream, request), self._pace, self._fail, bool)

    def _fail(self, error: UpstreamError, has_begun: bool) -> LockgateError:
        """The error for a failure of the server; one that refuses the request blames the caller."""
        failed = fail_model(self._model, error, has_begun)
        is_refused = isinstance(error, Rejected) and error.status in (400, 422)
        return InvalidRequest("the model refused the request", status=400) if is_refused else failed


class _TextModel(ConfiguredModel):
    """A model that answers with frames of text."""

    takes_documents = False

    def read(self, dialect: Dialect, raw: bytes) -> CompletionRequest:
        request = _read(dialect, raw)
        read = turn_format.read_text if dialect is TEXTS else turn_format.read_chat
        params = read(raw, self.takes | _GUARDS).params
        kept = {name: value for name, value in request.body.items() if name in (*_BODY, _DOCUMENTS)}
        return request._replace(body=kept | {name: params[name] for name in params if name not in _GUARDS})

    async def _answer(self, request: Generation) -> dict[str, Any]:
        facts, thoughts = TurnResult(), list[str]()
        async with aclosing(collect(_keep_thoughts(self._listen(request, facts), thoughts))) as frames:
            [text] = [burst.text async for burst in frames if isinstance(burst, Frame)]
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thoughts:
            message[REASONING] = "".join(thoughts)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _find_end(facts)}
        return {**_head("chat.completion"), "choices": [choice], "usage": _count(facts)}

    async def _answer_stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        facts, head = TurnResult(), _head("chat.completion.chunk")
        opening = [_chunk(head, {"role": "assistant", "content": ""})]
        async with aclosing(self._listen(request, facts)) as source:
            async for burst in source:
                frames = burst if isinstance(burst, list) else [burst]
                said = [(CONTENT, one.text) if one.text else (REASONING, _find_thought(one)) for one in frames]
                yield [*opening, *[_chunk(head, {key: text}) for key, text in said if text]]
                opening = []
        usage = _count(facts)
        counted = [] if usage is None else [{**head, "choices": [], "usage": usage}]
        yield [*opening, _chunk(head, {}, _find_end(facts)), *counted]

    def _listen(self, request: Generation, facts: TurnResult) -> AsyncGenerator[Frame | list[Frame], None]:
        body = request.body
        messages = [Message(ROLES[one["role"]], all_text_of(one, "\n")) for one in body["messages"]]
        params = {name: value for name, value in body.items() if name in self.takes}
        return listen(ModelCall(self._model, messages, params, self._pace), facts)


def _find_thought(frame: Frame) -> str:
    """The text of the model's reasoning in a frame."""
    thought = None if frame.fields is None else frame.fields.get("reasoning")
    return thought if isinstance(thought, str) else ""


async def _keep_thoughts(source: Source, thoughts: list[str]) -> Source:
    """The frames; the reasoning in them is kept."""
    left = MAX_WHOLE_CHARS
    async with aclosing(source):
        async for burst in source:
            found = [_find_thought(one) for one in (burst if isinstance(burst, list) else [burst])]
            thoughts += [one for one in found if one]
            left -= sum(map(len, found))
            if left < 0:
                raise HeldTooMuch(f"the answer has more than {MAX_WHOLE_CHARS} characters: ask for a stream")
            yield burst


def _read(dialect: Dialect, raw: bytes) -> CompletionRequest:
    request = read_request(_TEXT if dialect is TEXTS else CHAT, raw)
    refuse_session(request.body)
    if dialect is TEXTS:
        request.body["prompt"] = turn_format.find_prompt(request.body["prompt"])
    return request


def refuse_session(body: dict[str, Any]) -> None:
    """Raise InvalidRequest for fields that only agents have; remove empty ones."""
    for name in ("session_id", "query_type"):
        if body.pop(name, None):
            raise InvalidRequest(f"`{name}` needs an agent: a model alone knows only what `messages` tell")


def _to_chat(request: Generation) -> Generation:
    """The request as one for a chat."""
    if "messages" in request.body:
        return request
    body = {name: value for name, value in request.body.items() if name not in _TEXT_ONLY}
    messages = [{"role": "user", "content": body.pop("prompt")}]
    return request._replace(body={"messages": messages, **body}, kind="chat")


def _rename(message: dict[str, Any], request: Generation) -> dict[str, Any]:
    """The message with the request's model name, for a text completion in its format."""
    renamed = {**message, "model": request.model}
    if request.kind == "chat":
        return renamed
    name = str(message.get("id", "")).removeprefix("chat")
    return renamed | {
        "id": name,
        "object": "text_completion",
        "choices": [_to_text(one) for one in message["choices"]],
    }


def _to_text(choice: Any) -> dict[str, Any]:
    message = (choice.get("delta") or choice.get("message") or {}) if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise BrokeProtocol("openai", "a choice of the answer has no message")
    kept = {key: choice.get(key) for key in ("index", "finish_reason")}
    if message.get(REASONING):  # a text completion has no place for it: without a policy it is passed as it came
        kept[REASONING] = message[REASONING]
    return {"index": 0, "text": message.get("content") or "", "logprobs": None} | kept


def _without_usage(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "usage"} if "usage" in message else message


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time())}


def _chunk(head: Mapping[str, Any], delta: Mapping[str, Any], end: str | None = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}


def _find_end(facts: TurnResult) -> str:
    return "length" if facts.is_cut else "stop"


def _count(facts: TurnResult) -> dict[str, int] | None:
    return None if facts.usage is None else turn_format.count(facts.usage)
