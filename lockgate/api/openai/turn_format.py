# SPDX-License-Identifier: Apache-2.0
"""Requests to agents and configured models in OpenAI's format, and answers of agents."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from lockgate.api.guardrails.format import MaskList
from lockgate.api.openai.events import DONE
from lockgate.api.openai.format import DetectorsOrPolicy, encode, encode_event
from lockgate.api.openai.turn_fields import (
    AgentMessage,
    AgentRequest,
    TurnRequest,
    build_turn_request,
    choose_params,
    decode_fields,
    read_messages,
    read_prompt,
)
from lockgate.api.receipts import NO_ACCOUNT
from lockgate.api.shapes import Shape, refuse_typos
from lockgate.errors import InvalidRequest
from lockgate.gate.values import Message

_USAGE_KEYS = ("prompt_tokens", "completion_tokens", "total_tokens")


Prompt = Annotated[str | list[str], msgspec.Meta(title="Prompt")]


class TurnStreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class _TurnCompletion(AgentRequest, kw_only=True):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Annotated[str | list[str], msgspec.Meta(title="Stop")] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    stream_options: Annotated[TurnStreamOptions, msgspec.Meta(title="StreamOptions")] | None = None


class AgentChat(_TurnCompletion, kw_only=True):
    """Body of chat completions, where an agent or a configured model answers."""

    messages: list[AgentMessage]


class AgentText(_TurnCompletion, kw_only=True):
    """Body of text completions, where an agent or a configured model answers."""

    prompt: Prompt


class GuardedText(msgspec.Struct, rename={"prompt_masks": "_prompt_masks"}):
    """Body of text completions to a configured model, with detectors."""

    model: str
    prompt: Prompt
    stream: bool | None = None
    prompt_masks: MaskList | None = None
    detectors: DetectorsOrPolicy = msgspec.field(default_factory=DetectorsOrPolicy)


_CHAT, _TEXT = Shape(AgentChat), Shape(AgentText)


def read_chat(raw: bytes, takes: frozenset[str]) -> TurnRequest:
    """A request of chat completions to a model that takes these parameters."""
    request = _CHAT.decode(raw)
    return _read(request, raw, takes, read_messages(request.messages))


def read_text(raw: bytes, takes: frozenset[str]) -> TurnRequest:
    """A request of text completions to a model that takes these parameters."""
    request = _TEXT.decode(raw)
    return _read(request, raw, takes, read_prompt(find_prompt(request.prompt)))


def find_prompt(prompt: str | list[str]) -> str:
    """The prompt, also from a list of one."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if len(prompts) != 1:
        raise InvalidRequest("`prompt` must be one text")
    return prompts[0]


def _read(request: _TurnCompletion, raw: bytes, takes: frozenset[str], sent: tuple[Message, ...]) -> TurnRequest:
    fields = decode_fields(raw)
    refuse_typos(name for name in fields if name not in ("policy", "guardrail_config"))
    if request.max_completion_tokens is not None:
        fields["max_tokens"] = request.max_completion_tokens
    tokens = fields.get("max_tokens")
    if tokens is not None and tokens < 1:
        raise InvalidRequest("`max_tokens` must be at least 1")
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise InvalidRequest("`temperature` must be between 0 and 2")
    options = request.stream_options
    return build_turn_request(
        request,
        sent,
        choose_params(fields, takes),
        is_stream=bool(request.stream),
        includes_usage=bool(options and options.include_usage),
    )


class ChatTurnWriter:
    """Writes one answer of a chat."""

    _prefix: ClassVar = "chatcmpl-"
    _whole: ClassVar = "chat.completion"
    _chunk: ClassVar = "chat.completion.chunk"
    _nothing: ClassVar[Mapping[str, Any]] = {"delta": {}}

    def __init__(self, wanted: TurnRequest) -> None:
        self._includes_usage = wanted.is_stream and wanted.includes_usage
        kind = self._chunk if wanted.is_stream else self._whole
        self._head = {
            "id": self._prefix + uuid.uuid4().hex,
            "object": kind,
            "created": int(time.time()),
            "model": wanted.model,
        }
        self.account = NO_ACCOUNT
        self.warnings: Sequence[Mapping[str, str]] = ()

    def begin(self) -> bytes:
        """The event before the first piece."""
        return self._event({"delta": {"role": "assistant", "content": ""}})

    def add(self, piece: str) -> bytes:
        """A piece."""
        return self._event({"delta": {"content": piece}})

    def add_thought(self, piece: str) -> bytes:
        """A piece of the model's reasoning."""
        return self._event({"delta": {"reasoning_content": piece}})

    def finish(self, *, end: str, usage: Mapping[str, int] | None) -> bytes:
        """The end of a stream that is complete."""
        report = self._build_report()
        if not (self._includes_usage and usage is not None):
            return self._event(self._nothing, end, report) + DONE
        counted = {**self._head, "choices": [], "usage": count(usage), **report}
        return self._event(self._nothing, end) + encode_event(counted) + DONE

    def _build_report(self) -> dict[str, Any]:
        """Warnings, findings and the receipt."""
        return ({"warnings": self.warnings} if self.warnings else {}) | self.account.tell()

    def write_whole(self, text: str, *, end: str, usage: Mapping[str, int] | None, thought: str = "") -> bytes:
        """A whole answer."""
        choice = {"index": 0, **self._say(text, thought), "logprobs": None, "finish_reason": end}
        whole = {**self._head, "choices": [choice], "usage": count(usage) if usage is not None else None}
        self.account.add(whole)
        return encode({**whole, **self._build_report()})

    def _say(self, text: str, thought: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"message": message | ({"reasoning_content": thought} if thought else {})}

    def _event(
        self,
        part: Mapping[str, Any],
        end: str | None = None,
        report: Mapping[str, Any] | None = None,
    ) -> bytes:
        event = {
            **self._head,
            "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": end}],
        }
        if self._includes_usage:
            event["usage"] = None
        if self.account.receipt is not None:
            self.account.add(event)
        return encode_event({**event, **report} if report else event)


class TextTurnWriter(ChatTurnWriter):
    """Writes one answer of a text completion."""

    _prefix: ClassVar = "cmpl-"
    _whole: ClassVar = "text_completion"
    _chunk: ClassVar = "text_completion"
    _nothing: ClassVar[Mapping[str, Any]] = {"text": ""}

    def begin(self) -> bytes:
        """Nothing: a text has no role."""
        return b""

    def add(self, piece: str) -> bytes:
        """A piece."""
        return self._event({"text": piece})

    def add_thought(self, piece: str) -> bytes:
        """Nothing: a text completion has no place for reasoning."""
        return b""

    def _say(self, text: str, thought: str) -> dict[str, Any]:
        return {"text": text}


def count(usage: Mapping[str, int]) -> dict[str, int]:
    """The counters that clients expect, from those of the model."""
    counted = {name: usage.get(name, 0) for name in _USAGE_KEYS}
    counted["total_tokens"] = counted["total_tokens"] or counted["prompt_tokens"] + counted["completion_tokens"]
    return counted
