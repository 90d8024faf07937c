# SPDX-License-Identifier: Apache-2.0
"""Chat and text completions as the Rust orchestrator writes them: its order of keys, its nulls, its events.

An event is made of the messages that the chunker names for its chunk (G-145). There are no policies and no receipts.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockgate.api.openai.deltas import EVENT_KEYS, REASONING_KEYS, has_finish
from lockgate.api.openai.events import EventWriter, Messages
from lockgate.api.openai.format import CompletionRequest, to_results
from lockgate.api.openai.stream_order import StreamOrder
from lockgate.api.openai.stream_reader import ChoiceState, Segment, StreamOptions, StreamReader
from lockgate.api.openai.whole_answer import Dialect, WholeAnswer
from lockgate.errors import HeldTooMuch
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict
from lockgate.guard.request import InputBlocked

_USAGE_KEYS = ("prompt_tokens", "total_tokens", "completion_tokens")
_FIRST_KEYS = ("index", "delta", "text")
_NULL_KEYS = ("logprobs", "finish_reason", "stop_reason")  # written as null if a message has none
MAX_MESSAGES = 65_536


class MessageLog:
    """The messages of a stream by number, until no later event needs them."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[tuple[int, dict[str, Any]]] = deque()

    def add(self, number: int, message: dict[str, Any]) -> None:
        """Adds a message; raises HeldTooMuch."""
        self._messages.append((number, message))
        if len(self._messages) > MAX_MESSAGES:
            raise HeldTooMuch(f"more than {MAX_MESSAGES} messages wait for a chunk")

    def take(self, first: int, last: int) -> list[dict[str, Any]]:
        """Returns the messages from `first` to `last`; drops earlier ones."""
        messages = self._messages
        while messages and messages[0][0] < first:
            messages.popleft()
        return [message for number, message in messages if first <= number <= last]


class FmsWholeAnswer(WholeAnswer):
    """An answer whose messages have no nulls and whose usage has another order of keys."""

    def _write_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        message = choice.get("message")
        if isinstance(message, dict):
            choice = {**choice, "message": {key: value for key, value in message.items() if value is not None}}
        return super()._write_choice(choice)

    def _build_answer(self) -> dict[str, Any]:
        answer = super()._build_answer()
        usage = answer.get("usage")
        if isinstance(usage, dict):
            answer["usage"] = {key: usage[key] for key in _USAGE_KEYS if key in usage} | usage
        return answer

    def _build_blocked(self, blocked: InputBlocked, fallback: str) -> dict[str, Any]:
        """Builds the answer to a blocked prompt; for a chat, `object` is empty."""
        answer = super()._build_blocked(blocked, fallback)
        if self._is_chat:
            answer["object"] = ""
        return answer


class FmsStreamReader(StreamReader):
    """Reads content only: drops reasoning, passes a refusal unread. Keeps messages for the chunks that name them."""

    def __init__(self, options: StreamOptions, order: StreamOrder, *, is_chat: bool) -> None:
        super().__init__(options, order, is_chat=is_chat)
        self._lanes = frozenset()
        self._is_simple = False
        self._keeps_logprobs = False  # events take those of messages without text from the log
        self.guarded = REASONING_KEYS
        self.ledgers: dict[int, MessageLog] = {}  # by choice
        self.ends: dict[int, tuple[int, dict[str, Any]]] = {}  # the latest message of each choice

    def pass_on(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message in one frame, its keys in order."""
        return super().pass_on(_in_order(message, is_chat=self._is_chat))

    def read_along(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message in frames with its text, its keys in order."""
        return super().read_along(_in_order(message, is_chat=self._is_chat))

    def _add(self, index: int, choice: dict[str, Any], own: dict[str, Any]) -> None:
        super()._add(index, choice, own)
        self.ledgers.setdefault(index, MessageLog()).add(self._number, own)
        self.ends[index] = self._number, own


class FmsEventWriter(EventWriter):
    """Each event carries the messages that the chunker names; the last message of each text follows all texts."""

    _reader_type = FmsStreamReader
    _reader: FmsStreamReader
    _repeats_usage = True

    def __init__(self, dialect: Dialect, asked: CompletionRequest, options: StreamOptions) -> None:
        super().__init__(dialect, asked, options)
        self._carried: dict[int, int] = {}  # by choice: the last message of its last event

    def _take_held(self, segment: Segment, release: Release, verdict: Verdict | None) -> bytes:
        """Returns the events of a release; after the last text of a text completion, the last messages too."""
        written = super()._take_held(segment, release, verdict)
        if self._is_chat or not self._order.is_empty:
            return written
        return written + b"".join(self._last_messages())

    def _last_messages(self) -> list[bytes]:
        """The last message of each text, unless an event has carried it."""
        ends, self._reader.ends = self._reader.ends, {}
        return [
            self._encode(_in_order(message, is_chat=False))
            for index, (number, message) in sorted(ends.items())
            if self._carried.get(index) != number and (index in self._carried or has_finish(message))
        ]

    def _start_event(self, index: int, messages: Messages, *, is_complete: bool) -> dict[str, Any]:
        """The fields of the last message with its usage, also while its text has not ended."""
        return super()._start_event(index, messages, is_complete=True)

    def _build_entry(self, segment: Segment, release: Release, found: Sequence[Detection]) -> dict[str, Any]:
        return {"choice_index": segment.choice, "results": to_results(found, -release.start)}

    def _messages_of(self, segment: Segment, release: Release) -> tuple[Messages, bool]:
        """The messages that the chunker names, and whether the text is the end of the last one."""
        first, last = release.inputs
        messages = self._reader.ledgers[segment.choice].take(first, last)
        self._carried[segment.choice] = last
        return messages, any(frame.number == last for frame in release.frames)

    def _pass_on(self, index: int, message: Mapping[str, Any]) -> bytes:
        """Returns the event of a message without text; none for a text completion: `_last_messages` come at its end."""
        written = super()._pass_on(index, message)
        return written if self._is_chat else b""

    def _late_place(self, known: ChoiceState) -> dict[str, Any]:
        return {}


def _in_order(message: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """The message with known keys first, in the orchestrator's order, and with its nulls."""
    known = {key: message[key] for key in EVENT_KEYS if key in message}
    if not is_chat:
        known["usage"] = message.get("usage")
    known["choices"] = [_choice_in_order(choice) for choice in message["choices"]]
    return known | {key: value for key, value in message.items() if key not in known}


def _choice_in_order(choice: object) -> object:
    if not isinstance(choice, dict):
        return choice
    known = {key: choice[key] for key in _FIRST_KEYS if key in choice}
    known |= {key: choice.get(key) for key in _NULL_KEYS}
    return known | {key: value for key, value in choice.items() if key not in known}
