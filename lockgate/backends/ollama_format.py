# SPDX-License-Identifier: Apache-2.0
"""Encodes requests to an Ollama server and decodes its replies: chats, streamed chats and embeddings.

The answer is the text of a reply's message. The model's reasoning is kept apart.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lockgate.backends.http import refuse_dense
from lockgate.backends.http_model import ModelAnswer, PieceReader, Usage, count_usage
from lockgate.errors import UnreadableBody
from lockgate.gate.ndjson import LineSplitter
from lockgate.gate.values import Message

MAX_LINE_BYTES = 4 * 1024 * 1024
# Options that are called the same in OpenAI's API, and some that only Ollama has.
_SAME = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")
_OWN = ("top_k", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "num_ctx", "num_keep")
_OPTIONS = {"max_tokens": "num_predict", **{name: name for name in (*_SAME, *_OWN)}}  # our names, theirs
TAKES = frozenset({*_OPTIONS, "response_format"})
_MIN_LENGTH = 1e-30  # a shorter vector has no direction


class _OllamaError(msgspec.Struct, gc=False):
    message: str


class _StreamedMessage(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None


class _StreamLine(msgspec.Struct, gc=False):
    message: _StreamedMessage | None = None
    done: bool = False
    done_reason: Any = None
    error: str | _OllamaError | None = None
    prompt_eval_count: int | float | None = None
    eval_count: int | float | None = None


class _Name(msgspec.Struct, gc=False):
    name: str


class _Names(msgspec.Struct, gc=False):
    models: list[_Name]


class _EmbeddingReply(msgspec.Struct, gc=False):
    embeddings: list[list[float]]


_CUT = "length"  # the `done_reason` of an answer that reached its limit of tokens
_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_StreamLine).decode
_decode_names = msgspec.json.Decoder(_Names).decode
_decode_vectors = msgspec.json.Decoder(_EmbeddingReply).decode


def encode_chat(model: str, messages: Sequence[Message], params: Mapping[str, Any]) -> bytes:
    """Encodes a chat request; raises ValueError for text that is not valid Unicode."""
    chat = [{"role": one.role, "content": one.text} for one in messages]
    body: dict[str, Any] = {"model": model, "messages": chat, "stream": bool(params.get("stream"))}
    if options := {theirs: params[ours] for ours, theirs in _OPTIONS.items() if params.get(ours) is not None}:
        body["options"] = options
    if form := _find_format(params.get("response_format") or {}):
        body["format"] = form
    return _encode(body)


def _find_format(given: Mapping[str, Any]) -> Any:
    """Returns the format for the answer: JSON or its schema; None for plain text."""
    if given.get("type") == "json_object":
        return "json"
    schema = given.get("json_schema")
    return schema.get("schema") or "json" if isinstance(schema, dict) else None


def read_answer(body: bytes) -> ModelAnswer:
    """Decodes a whole answer; raises ValueError or RecursionError if it is none."""
    line = _decode_line(body)
    if not line.done or line.message is None or line.error is not None:
        raise ValueError("there is no complete answer in it")
    return ModelAnswer(line.message.content or "", _count(line))


def read_refusal(body: bytes) -> str:
    """Returns the message of an error; empty if there is none."""
    try:
        return _describe(_decode_line(body).error)
    except (ValueError, RecursionError):
        return ""


class OllamaChatReader(PieceReader):
    """Reads a streamed answer: a line of JSON for each piece; the last one has `done`."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._lines = LineSplitter(max_line_bytes)

    def feed(self, packet: bytes) -> list[str]:
        """Returns the pieces that these bytes complete, up to the end or the first failure; none is empty."""
        return self._read(self._lines.feed(packet))

    def finish(self) -> list[str]:
        """Returns the piece of a last line without a line end."""
        return self._read(self._lines.finish())

    def _read(self, lines: Iterable[bytes]) -> list[str]:
        pieces: list[str] = []
        try:
            for line in lines:
                if self.is_done or self.failure is not None:
                    break
                if (piece := self._read_line(line)) is not None:
                    pieces.append(piece)
        except UnreadableBody:  # a line that is too long; ignored after the end
            if not self.is_done and self.failure is None:
                self.failure = ""
        return pieces

    def _read_line(self, text: bytes) -> str | None:
        if not text or text.isspace():
            return None
        self.has_events = True
        try:
            line = _decode_line(text)
        except (ValueError, RecursionError):
            self.failure = ""
            return None
        if line.error is not None:
            self.failure = _describe(line.error)
            return None
        if line.done:
            self.is_done = self.has_end = True
            self.usage = _count(line)
            self.is_cut = line.done_reason == _CUT
        if line.message is None:
            return None
        if line.message.thinking:
            self.thoughts = [*self.thoughts, line.message.thinking]
        return line.message.content or None


def has_model(body: bytes, name: str) -> bool:
    """Returns whether a list of models names this one; raises ValueError or RecursionError."""
    names = {one.name for one in _decode_names(body).models}
    return name in names or f"{name}:latest" in names


def encode_texts(model: str, texts: Sequence[str]) -> bytes:
    """Encodes an embedding request; raises ValueError for text that is not valid Unicode."""
    return _encode({"model": model, "input": texts})


def read_vectors(body: bytes, count: int) -> list[list[float]]:
    """Decodes `count` vectors of one size and scales them to length 1; raises ValueError or RecursionError."""
    refuse_dense(body)
    vectors = _decode_vectors(body).embeddings
    if len(vectors) != count:
        raise ValueError("there is not one vector for each text")
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("the vectors differ in size")
    return [_normalise(vector) for vector in vectors]


def _normalise(vector: list[float]) -> list[float]:
    length = math.hypot(*vector)
    if not _MIN_LENGTH < length < math.inf:
        raise ValueError("a vector has no direction")
    return [one / length for one in vector]


def _count(line: _StreamLine) -> Usage | None:
    counts = (line.prompt_eval_count, line.eval_count)
    if counts == (None, None):
        return None
    prompt, answer = (count or 0 for count in counts)
    return count_usage({"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer})


def _describe(error: str | _OllamaError | None) -> str:
    return error.message if isinstance(error, _OllamaError) else error or ""
