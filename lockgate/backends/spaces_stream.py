# SPDX-License-Identifier: Apache-2.0
"""A model's answer as a SyftAI-Space streams it: server-sent events, each of which may hold a chunk in any format.

Decides what of an event is text, what is a failure, and where the answer ends. Refuses to know what is made of it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lockgate.backends.replies import DONE, AnswerReader, decode_any, mend
from lockgate.backends.spaces_format import find_summary, find_usage
from lockgate.gate.sse import SseEvent

_NO_ERROR = (None, False, "")


class SpaceReader(AnswerReader):
    """The pieces of an answer, whatever format each of its chunks has."""

    __slots__ = ()

    def _read_event(self, event: SseEvent) -> Iterator[str]:
        for data in _split(event.data):
            if self.is_over:
                return
            if event.event == "error":
                self.failure = _describe(data)
            elif data.strip() == DONE:
                self.is_done = True
            elif piece := self._read_chunk(data):
                yield mend(piece)

    def _read_chunk(self, data: str) -> str:
        chunk = _read_object(data)
        if chunk is None:
            return data
        if chunk.get("error") not in _NO_ERROR:
            self.failure = _describe_error(chunk["error"])
            return ""
        self.usage = find_usage(chunk) or self.usage
        return _find_text(chunk)


def _find_text(chunk: Mapping[str, Any]) -> str:
    """The text of a chunk in any of the formats."""
    for text in (find_summary(chunk), _find_delta(chunk.get("choices")), chunk.get("content"), chunk.get("text")):
        if isinstance(text, str):
            return text
    return ""


def _describe_error(error: object) -> str:
    """What an error says: its own words, else all of it."""
    said = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return mend(said) if isinstance(said, str) else json.dumps(error, separators=(",", ":"))


def _find_delta(choices: object) -> str | None:
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) else None
    text = delta.get("content") if isinstance(delta, dict) else None
    return text if isinstance(text, str) else None


def _read_object(data: str) -> dict[str, Any] | None:
    """A chunk that is an object; anything else is text."""
    if not data.lstrip().startswith("{"):
        return None
    try:
        chunk = decode_any(data)
    except (ValueError, RecursionError):
        return None
    return chunk if isinstance(chunk, dict) else None


def _split(data: str) -> list[str]:
    """The chunks of an event: one, but some senders leave out the empty lines between theirs."""
    if "\n" not in data or _read_object(data) is not None:
        return [data]
    lines = data.split("\n")
    is_list = all(line.strip() == DONE or _read_object(line) is not None for line in lines)
    return lines if is_list else [data]


def _describe(data: str) -> str:
    chunk = _read_object(data)
    return data if chunk is None else _describe_error(chunk.get("error", chunk))
