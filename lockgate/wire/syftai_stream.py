# SPDX-License-Identifier: Apache-2.0
"""A model's answer as a SyftAI-Space streams it: server-sent events, each of which may hold a chunk in any format.

Decides what of an event is text, what is a failure, and where the answer ends. Refuses to know what is made of it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lockgate.core.sse import SseEvent, SseParser
from lockgate.errors import BrokeProtocol
from lockgate.wire.syftai_space import Usage, decode_any, find_summary, find_usage, mend

_DONE = "[DONE]"
_NO_ERROR = (None, False, "")


class AnswerReader:
    """Bytes in, pieces of the answer out; any cut of the bytes gives the same pieces.

    `failure` is what the model says went wrong behind the pieces last handed out, or "" where it broke the rules.
    """

    __slots__ = ("_parser", "failure", "has_events", "is_done", "usage")

    def __init__(self) -> None:
        self._parser = SseParser()
        self.failure: str | None = None
        self.has_events = False
        self.is_done = False
        self.usage: Usage | None = None

    def feed(self, packet: bytes) -> list[str]:
        """The pieces that these bytes complete, up to the end or the first failure; none is empty."""
        try:
            events = self._parser.feed(packet)
        except BrokeProtocol:
            self.failure = ""
            return []
        return [piece for event in events for piece in self._read_event(event)]

    def finish(self) -> list[str]:
        """The pieces of a last event that nobody closed; no bytes follow."""
        return self.feed(b"\n\n")

    def _read_event(self, event: SseEvent) -> Iterator[str]:
        self.has_events = True
        for data in _split(event.data):
            if self.is_done or self.failure is not None:
                return
            if event.event == "error":
                self.failure = _describe(data)
            elif data.strip() == _DONE:
                self.is_done = True
            elif piece := self._read_chunk(data):
                yield mend(piece)

    def _read_chunk(self, data: str) -> str:
        chunk = _read_object(data)
        if chunk is None:
            return data
        if chunk.get("error") not in _NO_ERROR:
            self.failure = describe_error(chunk["error"])
            return ""
        self.usage = find_usage(chunk) or self.usage
        return find_text(chunk)


def find_text(chunk: Mapping[str, Any]) -> str:
    """The text of a chunk in any of the formats."""
    for text in (find_summary(chunk), _find_delta(chunk.get("choices")), chunk.get("content"), chunk.get("text")):
        if isinstance(text, str):
            return text
    return ""


def describe_error(error: object) -> str:
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
    is_list = all(line.strip() == _DONE or _read_object(line) is not None for line in lines)
    return lines if is_list else [data]


def _describe(data: str) -> str:
    chunk = _read_object(data)
    return data if chunk is None else describe_error(chunk.get("error", chunk))
