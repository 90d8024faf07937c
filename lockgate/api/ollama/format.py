# SPDX-License-Identifier: Apache-2.0
"""Ollama's wire format. `lockgate.backends.ollama_format` reads the answers of an Ollama server."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from lockgate.api.openai.answer_types import AnswerReport
from lockgate.api.openai.format import encode
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
from lockgate.errors import InvalidRequest, Refusal

LATEST = ":latest"  # what clients add to a name that has no version
_OPTION = "options"
# Some readers of lines, such as the official client, split at these; JSON allows them inside a string.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


class OllamaOptions(msgspec.Struct):
    """Parameters of the model."""

    num_predict: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Annotated[str | list[str], msgspec.Meta(title="Stop")] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class _Ollama(AgentRequest, kw_only=True):
    options: OllamaOptions | None = None
    format: Annotated[str | dict[str, Any], msgspec.Meta(title="Format")] | None = None


class OllamaChat(_Ollama, kw_only=True):
    """Body of /api/chat."""

    messages: list[AgentMessage]


class OllamaText(_Ollama, kw_only=True):
    """Body of /api/generate."""

    prompt: str
    system: str | None = None


class OllamaMessage(msgspec.Struct):
    """A message, or a piece of it in a line of a stream."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET


class OllamaAnswer(AnswerReport, kw_only=True):
    """An answer, or one line of it; the last line has counters and times. `response` is of /api/generate."""

    model: str
    created_at: str
    message: OllamaMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET


class OllamaModelEntry(msgspec.Struct):
    """A model that a request may name."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: dict[str, Any]


class OllamaModels(msgspec.Struct):
    """The list of models."""

    models: list[OllamaModelEntry]


class OllamaVersion(msgspec.Struct):
    """Lockgate's version."""

    version: str


class OllamaFault(msgspec.Struct):
    """Why there is no answer, or why it ends early."""

    error: str


_CHAT, _TEXT = Shape(OllamaChat), Shape(OllamaText)


def read_chat(raw: bytes, takes: frozenset[str]) -> TurnRequest:
    """A request of /api/chat to a model that takes these parameters."""
    request = _CHAT.decode(raw)
    return _build_request(request, read_messages(request.messages), _read_params(request, raw, takes))


def read_text(raw: bytes, takes: frozenset[str]) -> TurnRequest:
    """A request of /api/generate to a model that takes these parameters."""
    request = _TEXT.decode(raw)
    return _build_request(request, read_prompt(request.prompt, request.system or ""), _read_params(request, raw, takes))


def _build_request(request: _Ollama, sent: Any, params: Mapping[str, Any]) -> TurnRequest:
    return build_turn_request(request, sent, params, is_stream=request.stream is not False)


def _read_params(request: _Ollama, raw: bytes, takes: frozenset[str]) -> dict[str, Any]:
    """The parameters under OpenAI's names."""
    fields = decode_fields(raw)
    refuse_typos(name for name in fields if name not in ("policy", "guardrail_config"))
    options = fields.pop(_OPTION, None) or {}
    tokens = options.pop("num_predict", None)
    if tokens is not None and tokens >= 1:  # else there is no limit
        fields["max_tokens"] = tokens
    if (options.get("temperature") or 0) < 0:
        raise InvalidRequest("`options.temperature` must not be negative")
    if request.format and "response_format" in takes:
        fields["response_format"] = _to_response_format(fields.pop("format"))
    return choose_params(fields, takes) | choose_params(options, takes, _OPTION)


def _to_response_format(wanted: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(wanted, dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}}
    if wanted != "json":
        raise InvalidRequest("`format` must be `json` or a schema")
    return {"type": "json_object"}


class OllamaChatWriter:
    """Writes one answer of a chat, as one object or a line for each piece."""

    def __init__(self, wanted: TurnRequest) -> None:
        self._model = wanted.model
        self._started_ns = time.monotonic_ns()
        self._first_ns = 0
        self.account = NO_ACCOUNT
        self.warnings: Sequence[Mapping[str, str]] = ()

    def begin(self) -> bytes:
        """Nothing: every line is complete."""
        self._first_ns = time.monotonic_ns()
        return b""

    def add(self, piece: str) -> bytes:
        """A piece."""
        line = {**self._head(), **self._say(piece), "done": False}
        if self.account.receipt is not None:
            self.account.add(line)
        return _line(line)

    def add_thought(self, piece: str) -> bytes:
        """A piece of the model's reasoning."""
        line = {**self._head(), **self._say("", piece), "done": False}
        if self.account.receipt is not None:
            self.account.add(line)
        return _line(line)

    def finish(self, *, end: str, usage: Mapping[str, int] | None) -> bytes:
        """The end of a stream that is complete."""
        return _line(self._end("", end, usage))

    def write_whole(self, text: str, *, end: str, usage: Mapping[str, int] | None, thought: str = "") -> bytes:
        """A whole answer."""
        return encode(self._end(text, end, usage, thought))

    def _say(self, text: str, thought: str = "") -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text} | ({"thinking": thought} if thought else {})}

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": _write_time(time.time())}

    def _end(self, text: str, end: str, usage: Mapping[str, int] | None, thought: str = "") -> dict[str, Any]:
        now = time.monotonic_ns()
        first = self._first_ns or now
        done = {"done": True, "done_reason": end}
        counts = {} if usage is None else _count(usage)
        times = {
            "total_duration": now - self._started_ns,
            "load_duration": 0,
            "prompt_eval_duration": first - self._started_ns,
            "eval_duration": now - first,
        }
        last = {**self._head(), **self._say(text, thought), **done, **times, **counts}
        self.account.add(last)
        return last | ({"warnings": self.warnings} if self.warnings else {}) | self.account.tell()


class OllamaTextWriter(OllamaChatWriter):
    """Writes one answer of /api/generate."""

    def _say(self, text: str, thought: str = "") -> dict[str, Any]:
        return {"response": text} | ({"thinking": thought} if thought else {})


def _count(usage: Mapping[str, int]) -> dict[str, int]:
    return {
        "prompt_eval_count": usage.get("prompt_tokens", 0),
        "eval_count": usage.get("completion_tokens", 0),
    }


def _line(value: dict[str, Any]) -> bytes:
    line = encode(value)
    if not line.isascii():
        for end, escaped in _LINE_ENDS:
            line = line.replace(end, escaped)
    return line + b"\n"


def _write_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def encode_error(_: int, words: str, _refusal: Refusal | None = None) -> bytes:
    """An error, as the whole body; only HTTP has the status."""
    return encode(OllamaFault(words))


def encode_error_line(words: str) -> bytes:
    """An error, as the last line of a stream."""
    return _line({"error": words})


def encode_unknown_model(name: str) -> bytes:
    """The error for a model that does not exist."""
    return encode_error(404, f"model '{name}' not found")


def encode_models(names: Iterable[str], created: int) -> bytes:
    """The list of models."""
    return encode(OllamaModels([_describe(name, created) for name in names]))


def _describe(name: str, created: int) -> OllamaModelEntry:
    """The entry of a model; its weights are not known here, so its digest is that of its name."""
    details = {
        "parent_model": "",
        "format": "",
        "family": "lockgate",
        "families": ["lockgate"],
        "parameter_size": "",
        "quantization_level": "",
    }
    return OllamaModelEntry(name, name, _write_time(created), 0, sha256(name.encode()).hexdigest(), details)
