# SPDX-License-Identifier: Apache-2.0
"""Chat and text completions as the Rust orchestrator writes them: its order of keys, its nulls, its events.

An event is made of the messages that the chunker names for its chunk (G-145), spans count from the text of the event,
and reasoning is dropped. Policies do not exist here, so no text is hidden and no receipt is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockgate.api.openai import whole_answer as openai_answers
from lockgate.api.openai.deltas import EVENT_KEYS, REASONING_KEYS, has_finish
from lockgate.api.openai.events import ChoiceState, Manner, RelayedEvents, Segment
from lockgate.api.openai.format import Asked, to_results
from lockgate.api.openai.guarded_events import GuardedEvents
from lockgate.api.openai.whole_answer import Dialect, WholeAnswer
from lockgate.compat.fms.ledger import Ledger
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict

_USAGE_KEYS = ("prompt_tokens", "total_tokens", "completion_tokens")
_SPOKEN_KEYS = ("index", "delta", "text")
_NULL_KEYS = ("logprobs", "finish_reason", "stop_reason")  # written as null where a message has none


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


def build_blocked(dialect: Dialect, asked: Asked, found: Sequence[Detection], tokens: int) -> dict[str, Any]:
    """The answer to a prompt in which something was found: a whole chat does not name its object."""
    answer = openai_answers.build_blocked(dialect, asked, found, tokens)
    if dialect.kind == "chat" and not asked.is_stream:
        answer["object"] = ""
    return answer


class FmsRelayedEvents(RelayedEvents):
    """Every message with its keys in order; the last event repeats the usage."""

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message as frames, its keys in order."""
        return super().to_frames(_in_order(message, is_chat=self._is_chat))

    def _late_place(self, known: ChoiceState) -> dict[str, Any]:
        return {}

    def _late_usage(self) -> object:
        return self._usage


class FmsGuardedEvents(GuardedEvents):
    """Each event carries the messages that the chunker names; the last message of each text follows all texts."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        self._guarded = REASONING_KEYS
        self._is_simple = False
        self._ledgers: dict[int, Ledger] = {}  # by choice
        self._ends: dict[int, tuple[int, dict[str, Any]]] = {}  # the latest message of each choice
        self._told: dict[int, int] = {}  # the last message of each choice's last event

    def _add(self, frames: list[Frame], number: int, index: int, choice: dict[str, Any], own: dict[str, Any]) -> None:
        super()._add(frames, number, index, choice, own)
        self._ledgers.setdefault(index, Ledger()).add(number, own)
        self._ends[index] = number, own

    def _list_others(self, delta: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """No text besides the content: reasoning is dropped, a refusal passes unread."""
        return ()

    def _keep_unsaid(self, known: ChoiceState, own: dict[str, Any]) -> None:
        """Log probabilities of messages without text are not kept: events take them from the ledger."""

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events of a release; behind the last text of a text completion, the last messages too."""
        written = super().take(release, verdict)
        if self._is_chat or any(one.segments for one in self._choices.values()):
            return written
        return written + b"".join(self._last_messages())

    def _last_messages(self) -> list[bytes]:
        """The last message of each text, unless an event has carried it."""
        ends, self._ends = self._ends, {}
        return [
            self._encode(_in_order(message, is_chat=False))
            for index, (number, message) in sorted(ends.items())
            if self._told.get(index) != number and (index in self._told or has_finish(message))
        ]

    def _start_event(self, index: int, messages: Sequence[Mapping[str, Any]], *, is_complete: bool) -> dict[str, Any]:
        """The fields of the last message, its usage included, also while its text has not ended."""
        return super()._start_event(index, messages, is_complete=True)

    def _build_entry(self, segment: Segment, release: Release, found: Sequence[Detection]) -> dict[str, Any]:
        return {"choice_index": segment.choice, "results": to_results(found, -release.start)}

    def _messages_of(self, segment: Segment, release: Release) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The messages that the chunker names, and whether the text is the end of the last one."""
        first, last = release.inputs
        messages = self._ledgers[segment.choice].take(first, last)
        self._told[segment.choice] = last
        return messages, any(frame.number == last for frame in release.frames)

    def _pass_on(self, index: int, message: Mapping[str, Any]) -> bytes:
        """The event of a message without text; of text completions the last message follows at the end."""
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
    known = {key: choice[key] for key in _SPOKEN_KEYS if key in choice}
    known |= {key: choice.get(key) for key in _NULL_KEYS}
    return known | {key: value for key, value in choice.items() if key not in known}
