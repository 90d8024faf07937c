# SPDX-License-Identifier: Apache-2.0
"""Streamed chat and text completions: upstream messages into frames, releases into events.

What every stream shares, and `RelayedEvents`, which passes every message on as it is; what whole-text detectors found
follows in the last event. Decides nothing about findings and never holds text.
"""

import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.api.openai.deltas import CONTENT
from lockgate.api.openai.format import (
    UNSUITABLE_INPUT,
    UNSUITABLE_OUTPUT,
    Asked,
    encode,
    to_plain_results,
    to_results,
    warn,
)
from lockgate.api.openai.whole_answer import ChatDialect, Dialect, input_entries
from lockgate.api.receipts import NO_ACCOUNT
from lockgate.errors import BrokeProtocol, HeldTooMuch
from lockgate.gate.messages import is_read, merge_tool_calls
from lockgate.gate.release import Release
from lockgate.gate.values import Conversation, Detection, Frame, Generated, Subject
from lockgate.gate.verdicts import Verdict

DONE = b"data: [DONE]\n\n"
_MAX_CHOICES = 128


def encode_event(event: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + encode(event) + b"\n\n"


class ChoiceState:
    """What is known of one choice of a stream."""

    __slots__ = ("base", "calls", "has_finish", "is_read", "late", "reviewable", "segments", "trailing", "unsaid")

    def __init__(self) -> None:
        self.base: dict[str, Any] = {}  # its latest message with text
        self.reviewable: list[str] = []  # its text, where somebody reads it whole
        self.calls: dict[int, dict[str, Any]] = {}
        self.is_read = True
        self.has_finish = False
        self.segments: deque[Segment] = deque()  # not yet released whole, in the order of the model
        self.trailing: list[Detection] | None = None
        self.late: list[dict[str, Any]] = []  # under a policy the same, by text, as it is told
        self.unsaid: list[dict[str, Any]] = []  # messages without text whose logprobs leave with the next one


class Segment:
    """A run of text of one kind: content, reasoning or refusal. `start`: where it begins in all text of its kind."""

    __slots__ = ("choice", "field", "lane", "received", "start", "waiting")

    def __init__(self, lane: int, choice: int, field: str, start: int) -> None:
        self.lane = lane
        self.choice = choice
        self.field = field
        self.start = start
        self.received = 0
        self.waiting: list[Release] = []


class Manner(NamedTuple):
    """How a stream is told. `trailing` are detectors that report at the end; `hides`: findings must not be seen.

    `lanes`: what a policy reads of it; None where there is no policy.
    """

    trailing: frozenset[str] = frozenset()
    has_reviews: bool = False
    hides: bool = False
    fallback: str = ""
    max_held_chars: int = 1_048_576
    lanes: frozenset[str] | None = None


class Events:
    """What both kinds of streams share: numbering, the first message, the last event."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        self._dialect = dialect
        self._is_chat = isinstance(dialect, ChatDialect)
        self._asked = asked
        self._trailing = manner.trailing
        self._has_reviews = manner.has_reviews
        self._max_held_chars = manner.max_held_chars
        self._keeps_text = self._tells_late = bool(manner.has_reviews or manner.trailing)
        self._kept_chars = 0
        self._count = 0
        self._first: dict[str, Any] = {}
        self._choices: dict[int, ChoiceState] = {}
        self._usage: Any = None
        self._reviewed: dict[int, Sequence[Detection]] = {}
        self.found_in_prompt: Sequence[Detection] = ()
        self.warnings: list[dict[str, str]] = []
        self.is_blocked = False
        self.account = NO_ACCOUNT

    def _encode(self, event: Mapping[str, Any]) -> bytes:
        """The event, which leaves now."""
        if self.account.receipt is not None:
            self.account.add(event)
        return encode_event(event)

    def _encode_last(self, events: list[dict[str, Any]]) -> bytes:
        """The last events; the very last one tells the rest."""
        parts = [self._encode(event) for event in events[:-1]]
        if events:
            self.account.add(events[-1])
            parts.append(encode_event({**events[-1], **self.account.tell()}))
        return b"".join(parts) + DONE

    def subjects(self) -> Iterable[tuple[int, Subject]]:
        """What reviewers read, by choice."""
        for index in sorted(self._choices):
            choice = self._choices[index]
            text = "".join(choice.reviewable)
            if self._is_chat:
                message: dict[str, Any] = {"role": "assistant"} | ({"content": text} if text else {})
                if choice.calls:
                    message["tool_calls"] = [choice.calls[place] for place in sorted(choice.calls)]
                yield index, Conversation([*self._asked.messages, message], self._asked.tools)
            else:
                yield index, Generated(self._asked.prompt, text)

    def note_reviews(self, choice: int, found: Sequence[Detection]) -> None:
        """What reviewers found in a choice."""
        self._reviewed[choice] = found

    def _split(self, message: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any], dict[str, Any]]]:
        """The choices of a message, each with a message of its own."""
        choices = message["choices"]
        if not self._first:
            self._first = message
        for place, choice in enumerate(choices):
            if not isinstance(choice, dict):
                raise BrokeProtocol("openai", "a choice of the stream is no object")
            index = choice.get("index", 0)
            if not isinstance(index, int) or index < 0:
                raise BrokeProtocol("openai", "a choice of the stream has no index")
            own = message
            if len(choices) > 1:
                own = message | {"choices": [choice]}
                if place < len(choices) - 1:
                    own.pop("usage", None)
            yield index, choice, own

    def _note_bare(self, message: dict[str, Any]) -> None:
        """A message without choices: it may be the first, and it may tell the usage."""
        self._first = self._first or message
        if message.get("usage") is not None:
            self._usage = message["usage"]

    def _text_of(self, choice: Mapping[str, Any]) -> str:
        if self._is_chat:
            delta = choice.get("delta")
            if not isinstance(delta, dict | None):
                raise BrokeProtocol("openai", "the delta of a choice of the stream is no object")
            text = None if delta is None else delta.get("content")
        else:
            text = choice.get("text")
        if text is not None and not isinstance(text, str):
            raise BrokeProtocol("openai", "the content of the stream is no text")
        return text or ""

    def _remember(self, index: int, choice: Mapping[str, Any], text: str) -> ChoiceState:
        """Note what reviewers and roles need of a message."""
        known = self._choices.get(index)
        if known is None:
            if len(self._choices) >= _MAX_CHOICES:
                raise BrokeProtocol("openai", f"the model gives more than {_MAX_CHOICES} choices")
            known = self._choices[index] = ChoiceState()
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if "role" in delta:
                known.is_read = is_read(delta["role"])
            if self._has_reviews and isinstance(delta.get("tool_calls"), list):
                self._count_kept(len(encode(delta["tool_calls"])))
                merge_tool_calls(known.calls, delta["tool_calls"])
        if text and self._keeps_text:
            self._keep_text(known, text)
        return known

    def _keep_text(self, known: ChoiceState, text: str) -> None:
        self._count_kept(len(text))
        known.reviewable.append(text)

    def _count_kept(self, chars: int) -> None:
        """What is kept for those who read it whole has a bound, as text that is held has."""
        self._kept_chars += chars
        if self._kept_chars > self._max_held_chars * len(self._choices):
            raise HeldTooMuch(f"more than {self._max_held_chars} characters wait for a detector")

    def _note_trailing(self, release: Release) -> tuple[Detection, ...]:
        """The findings of the release itself; those of trailing detectors are kept for the last event."""
        if not (self._trailing and release.is_final):
            return release.detections
        late = [one for one in release.detections if one.detector_id in self._trailing]
        index = self._index_of(release)
        known = self._choices.get(index)
        if known is not None and (known.reviewable or not self._is_chat):
            known.trailing = (known.trailing or []) + late
        return tuple(one for one in release.detections if one.detector_id not in self._trailing)

    def _note_late(self, index: int, field: str, release: Release) -> tuple[Detection, ...]:
        """The same under a policy, where each text of a choice has findings of its own."""
        if not (self._trailing and release.is_final):
            return release.detections
        late = [one for one in release.detections if one.detector_id in self._trailing]
        if late or field == CONTENT:
            entry: dict[str, Any] = {"choice_index": index} | ({} if field == CONTENT else {"field": field})
            entry |= {"start_index": 0, "processed_index": release.end, "results": to_results(late)}
            self._choices[index].late.append(entry)
        return tuple(one for one in release.detections if one.detector_id not in self._trailing)

    def _index_of(self, release: Release) -> int:
        return release.choice

    def _build_ending(self, index: int, reason: str | None) -> dict[str, Any]:
        """An event that only ends a choice, or where it has no reason only stands for it."""
        base = self._choices[index].base or self._first
        event = {key: base[key] for key in ("id", "object", "created", "model") if key in base}
        told = {"delta": {"role": "assistant"}} if self._is_chat else {"text": ""}
        ending = {"index": index, **told, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return event | {"choices": [ending]}

    def _build_last(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The last events under a policy: what is told late goes along with the very last, for which a choice stands.

        Clients look for a choice in every event; only one that tells the usage may have none.
        """
        if not events:
            events = [self._build_ending(index, None) for index in sorted(self._choices)] or [self._build_bare(None)]
        return [*events[:-1], events[-1] | self._list_late()]

    def _list_late(self) -> dict[str, Any]:
        """What is told with the last event."""
        told: dict[str, Any] = {}
        detections = self._late_detections()
        if detections or self._tells_late:
            told["detections"] = detections
        warnings = self._late_warnings()
        return told | ({"warnings": warnings} if warnings else {})

    def _last_event(self, usage: Any) -> dict[str, Any]:
        return self._build_bare(usage) | self._list_late()

    def _build_bare(self, usage: Any) -> dict[str, Any]:
        """An event without choices."""
        first = self._first
        event: dict[str, Any] = {
            "id": first.get("id") or uuid.uuid4().hex,
            "object": self._dialect.chunk_object,
            "created": first.get("created") or int(time.time()),
            "model": first.get("model") or self._asked.model,
            "choices": [],
        }
        if usage is not None or not self._is_chat:
            event["usage"] = usage
        return event

    def _late_detections(self) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        for index in sorted(self._choices):
            known = self._choices[index]
            if known.trailing is not None:
                place = {"choice_index": index} | self._late_place(known)
                entries.append(place | {"results": to_results(known.trailing)})
            entries += known.late
            if index in self._reviewed:
                entries.append({"choice_index": index, "results": to_plain_results(self._reviewed[index])})
        inputs = input_entries(self._asked, self.found_in_prompt)
        return {key: value for key, value in (("input", inputs), ("output", entries)) if value}

    def _late_place(self, known: ChoiceState) -> dict[str, Any]:
        """Which text of a choice the late findings belong to: all of it."""
        return {"start_index": 0, "processed_index": sum(map(len, known.reviewable))}

    def _late_warnings(self) -> list[dict[str, str]]:
        warnings: list[dict[str, str]] = [UNSUITABLE_INPUT] if self.found_in_prompt else []
        if (self._trailing or self._has_reviews) and self._dialect.warns_of_empty_streams:
            words = self._dialect.empty_warning
            warnings += [
                warn("EMPTY_OUTPUT", words.format(index))
                for index in sorted(self._choices)
                if not self._choices[index].reviewable
            ]
        found = [known.trailing or any(one["results"] for one in known.late) for known in self._choices.values()]
        if any(found):
            warnings.append(UNSUITABLE_OUTPUT)
        return warnings + self.warnings


class RelayedEvents(Events):
    """Every upstream message as it is, at once; then, if somebody read the whole, one more event."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        self._is_plain = not self._keeps_text

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message as frames: one that carries it, in the lane of its choice."""
        number = self._count
        self._count += 1
        if self._is_plain:
            return (Frame(number, "", 0, message),)
        return self._read(number, message)

    def _read(self, number: int, message: dict[str, Any]) -> Iterable[Frame]:
        if not message["choices"]:
            self._note_bare(message)
            lane = next(reversed(self._choices), 0)
            return [Frame(number, "", lane, message)]
        frames = []
        for index, choice, own in self._split(message):
            text = self._text_of(choice)
            known = self._remember(index, choice, text)
            frames.append(Frame(number, text if known.is_read else "", index, own))
        return frames

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events of a release: the messages that came."""
        frames = release.frames
        if self._trailing:
            self._note_trailing(release)
        if len(frames) == 1 and self.account.receipt is None:
            return b"data: " + encode(frames[0].fields) + b"\n\n"
        return b"".join([self._encode(frame.fields) for frame in frames if frame.fields is not None])

    def finish(self) -> bytes:
        """The end of the stream."""
        is_due = not self._is_plain or bool(self.warnings or self.found_in_prompt or self.account.receipt)
        return self._encode_last([self._last_event(self._late_usage())] if is_due else [])

    def _late_usage(self) -> object:
        """The usage in the last event: none, as the message that told it has been passed on."""
        return None
