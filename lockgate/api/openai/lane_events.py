# SPDX-License-Identifier: Apache-2.0
"""Streams of completions under a policy: every text of a choice is a lane of its own, from its first to its last word.

`LaneEvents` holds text until it is read. A lane ends only with the stream, so that nothing hides between two pieces of
one text that others stand between; each lane leaves as fast as it is read. Only calls wait for each other, and for the
content that was said before them: clients take a call for complete when the next one begins. The messages that end a
choice wait for the end of the stream: the last event bears the receipt. Decides nothing about findings.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.api.openai.deltas import (
    CALL_KEYS,
    CALLS_LANE,
    CONTENT,
    CONTENT_LANE,
    EVENT_KEYS,
    REASONING_KEYS,
    REFUSAL,
    choice_of,
    list_lane_texts,
    list_unread_keys,
)
from lockgate.api.openai.events import ChoiceState, Manner, Segment
from lockgate.api.openai.format import Asked
from lockgate.api.openai.guarded_events import GuardedEvents
from lockgate.api.openai.tool_calls import CallReader, list_call_texts, says_more, split_calls, with_texts
from lockgate.api.openai.whole_answer import FILTERED, Dialect
from lockgate.errors import HeldTooMuch
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict

_TOLD = frozenset({*EVENT_KEYS, "detections", "warnings"})
_ENDING = ("finish_reason", "stop_reason")
_SPOKEN = REASONING_KEYS | CALL_KEYS | {REFUSAL}  # what a model says besides content


class _Turn(NamedTuple):
    """A call whose turn it is, or will be: once so much content has left. Until then what leaves of it waits."""

    lane: int
    after: int
    waiting: list[Release]


class LaneEvents(GuardedEvents):
    """One event for each release; what carries no text is passed on in its place in the content."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        self._fallback = manner.fallback
        self._hides = manner.hides
        self._lanes = lanes = manner.lanes or frozenset()
        self._reads_content = not self._is_chat or CONTENT_LANE in lanes
        self._reads_calls = self._is_chat and CALLS_LANE in lanes
        unread = list_unread_keys(lanes)
        self._guarded = (REASONING_KEYS | {REFUSAL}) - unread
        self._unread = _SPOKEN & unread
        if manner.hides:
            self._kept = unread
        self._is_simple = self._is_simple and self._reads_content
        self._by_field: dict[tuple[int, str], Segment] = {}
        self._calls: dict[int, CallReader] = {}  # by lane
        self._turns: dict[int, _Turn] = {}  # the same
        self._queues: dict[int, deque[_Turn]] = {}  # by choice: calls that are not over, in their order
        self._heard: dict[int, int] = {}  # by choice: how much of the content has left
        self._endings: dict[int, dict[str, Any]] = {}  # by choice

    def _encode(self, event: Mapping[str, Any]) -> bytes:
        return super()._encode(self._trim(event))

    def _encode_last(self, events: list[dict[str, Any]]) -> bytes:
        return super()._encode_last([self._trim(event) for event in events])

    def _trim(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The event; where text is hidden, without what else it holds: that may tell what its texts no longer do."""
        return {key: value for key, value in event.items() if not self._hides or key in _TOLD}

    # Messages into frames.

    def _continue(self, number: int, message: dict[str, Any]) -> Frame | None:
        choices = message["choices"]
        if len(choices) != 1 or type(choices[0]) is not dict or choices[0].get("finish_reason") is not None:
            return None
        return super()._continue(number, message)

    def _add(self, frames: list[Frame], number: int, index: int, choice: dict[str, Any], own: dict[str, Any]) -> None:
        text = self._text_of(choice)
        known = self._remember(index, choice, text)
        whole = own = self._keep_ending(index, own, has_text=bool(text))
        calls: Sequence[dict[str, Any]] = ()
        if known.is_read:
            self._add_others(frames, number, index, own)
            own, calls = self._take_calls(own)
        if text and known.is_read and self._reads_content:
            own = self._add_unread(frames, number, index, own)
            known.base = own = self._with_unsaid(known, own)
            frames.append(self._speak(number, index, CONTENT, text)._replace(fields=own))
        elif not self._is_mute(choice_of(own), known):
            known.base = known.base or own
            frames.append(Frame(number, "", self._segment(index, CONTENT).lane, self._with_unsaid(known, own)))
        else:
            self._keep_unsaid(known, own)
        for call in calls:
            self._add_call(frames, number, index, call, whole)
        if known.unsaid and index in self._endings:
            self._endings[index] = self._with_unsaid(known, self._endings[index])

    def _keep_ending(self, index: int, own: dict[str, Any], *, has_text: bool) -> dict[str, Any]:
        """The message without what ends its choice, which is told last."""
        choice = choice_of(own)
        if choice.get("finish_reason") is None:
            return own
        told: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
        kept = {} if self._kept is not None or has_text else choice
        ending = {**kept, "index": index, **told, "logprobs": None, **{key: choice.get(key) for key in _ENDING}}
        self._endings[index] = {**own, "choices": [ending]}
        rest = {key: value for key, value in own.items() if key != "usage"}
        return rest | {"choices": [{**choice, **dict.fromkeys(_ENDING)}]}

    def _add_others(self, frames: list[Frame], number: int, index: int, own: dict[str, Any]) -> None:
        """The frames of texts besides content and calls."""
        delta = choice_of(own).get("delta")
        for field, words in list_lane_texts(delta, self._lanes) if isinstance(delta, dict) else ():
            frames.append(self._speak(number, index, field, words))

    def _take_calls(self, own: dict[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
        """The message without the calls that are read, and these."""
        choice = choice_of(own)
        delta = choice.get("delta")
        if not (self._reads_calls and isinstance(delta, dict) and any(delta.get(key) for key in CALL_KEYS)):
            return own, ()
        rest = {key: value for key, value in delta.items() if key not in CALL_KEYS}
        return {**own, "choices": [{**choice, "delta": rest}]}, list(split_calls(delta))

    def _add_call(
        self, frames: list[Frame], number: int, index: int, call: dict[str, Any], own: dict[str, Any]
    ) -> None:
        """The frames of a call, in its own lane: what names it comes before its text."""
        known = self._choices[index]
        names = with_texts(call, {}, hides=self._hides) if says_more(call) else {}
        named = _with_delta(own, names) if says_more(names) else None
        known.base = known.base or _with_delta(own, {})
        for text in list_call_texts(call):
            segment = self._segment(index, text.field)
            reader = self._calls.get(segment.lane)
            if reader is None:
                reader = self._calls[segment.lane] = CallReader(text)
                self._queue_up(segment)
            if named is not None:
                frames.append(Frame(number, "", segment.lane, named))
                named = None
            plain = reader.feed(text.text)
            if reader.held > self._max_held_chars:
                raise HeldTooMuch(f"more than {self._max_held_chars} characters wait for a detector")
            segment.received += len(plain)
            if plain:
                frames.append(Frame(number, plain, segment.lane))

    def _add_unread(self, frames: list[Frame], number: int, index: int, own: dict[str, Any]) -> dict[str, Any]:
        """What a message with content says in lanes that nobody reads is passed on by itself; the message without."""
        delta = choice_of(own).get("delta") or {}
        unread = {key: value for key, value in delta.items() if key in self._unread and value}
        if not unread:
            return own
        frames.append(Frame(number, "", self._segment(index, CONTENT).lane, _with_delta(own, unread)))
        rest = {key: value for key, value in delta.items() if key not in unread}
        return {**own, "choices": [{**choice_of(own), "delta": rest}]}

    def _is_mute(self, choice: Mapping[str, Any], known: ChoiceState) -> bool:
        delta = choice.get("delta")
        if not self._reads_content and isinstance(delta, dict) and delta.get(CONTENT):
            return False
        return super()._is_mute(choice, known)

    def _speak(self, number: int, index: int, field: str, text: str) -> Frame:
        segment = self._segment(index, field)
        segment.received += len(text)
        return Frame(number, text, segment.lane)

    def _segment(self, index: int, field: str) -> Segment:
        """The lane of a text; those before it stay open."""
        segment = self._by_field.get((index, field))
        if segment is None:
            segment = self._by_field[index, field] = Segment(len(self._segments), index, field, 0)
            self._segments.append(segment)
            if field == CONTENT:
                self._choices[index].segments.append(segment)
        return segment

    def _queue_up(self, segment: Segment) -> None:
        content = self._by_field.get((segment.choice, CONTENT))
        turn = self._turns[segment.lane] = _Turn(segment.lane, content.received if content is not None else 0, [])
        self._queues.setdefault(segment.choice, deque()).append(turn)

    # Releases into events.

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events of a release, and of those that waited for it."""
        segment = self._segments[release.choice]
        is_blocked = verdict is not None and verdict.is_blocked
        said = release.text.removesuffix(self._fallback) if is_blocked else release.text
        call = self._calls.get(segment.lane)
        if call is not None:
            said = call.release(release, verdict, said)
        release = release._replace(text=said)
        if is_blocked:
            return self._cut_off(segment, release._replace(text="") if self._is_waiting(segment) else release)
        if call is not None:
            return self._take_turn(segment, release)
        written = self._write(segment, release)
        if segment.field == CONTENT:
            self._heard[segment.choice] = release.end
            written += self._take_turns(segment.choice)
        return written

    def _take_turn(self, segment: Segment, release: Release) -> bytes:
        """A release of a call leaves when it is its turn."""
        self._hold(len(release.text) + 1)
        self._turns[segment.lane].waiting.append(release)
        return self._take_turns(segment.choice)

    def _take_turns(self, index: int) -> bytes:
        """Write what waits of the call whose turn it is; when that is over, of the next."""
        parts: list[bytes] = []
        queue = self._queues.get(index)
        while queue and queue[0].after <= self._heard.get(index, 0):
            turn = queue[0]
            for release in turn.waiting:
                self._hold(-len(release.text) - 1)
                parts.append(self._write(self._segments[turn.lane], release))
            is_over = bool(turn.waiting) and turn.waiting[-1].is_final
            turn.waiting.clear()
            if not is_over:
                break
            queue.popleft()
        return b"".join(parts)

    def _note_trailing(self, release: Release) -> tuple[Detection, ...]:
        segment = self._segments[release.choice]
        return self._note_late(segment.choice, segment.field, release)

    def _choice(
        self, segment: Segment, text: str, messages: Sequence[Mapping[str, Any]], *, is_complete: bool
    ) -> dict[str, Any]:
        choice = super()._choice(segment, text, messages, is_complete=is_complete)
        call = self._calls.get(segment.lane)
        if call is not None:
            choice["delta"] = {"role": "assistant", **(call.call.build(text) if text else {})}
        return choice

    def _cut_off(self, segment: Segment, release: Release) -> bytes:
        """The last event with text: what may still be said, then the fallback, which is content in any case."""
        self.is_blocked = True
        found = self._note_trailing(release)
        event = self._event(segment, release._replace(frames=()), found)
        [choice] = event["choices"]
        if segment.field == CONTENT:
            choice |= self._dialect.delta(release.text + self._fallback)
        else:
            if not release.text:
                choice["delta"].pop(segment.field, None)
            choice["delta"][CONTENT] = self._fallback
        return self._encode(event)

    def _is_waiting(self, segment: Segment) -> bool:
        """Whether this is a call whose turn has not come."""
        turn = self._turns.get(segment.lane)
        return turn is not None and (
            turn is not self._queues[segment.choice][0] or turn.after > self._heard.get(segment.choice, 0)
        )

    def _rest(self) -> list[dict[str, Any]]:
        if self.is_blocked:
            self._endings = {index: self._build_ending(index, FILTERED) for index in self._choices}
        events = [self._endings[index] for index in sorted(self._endings)]
        if self._usage is not None:
            events.append(self._build_bare(self._usage))
        return self._build_last(events)


def _with_delta(message: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """The message with only this to say."""
    rest = {key: value for key, value in message.items() if key != "usage"}
    return rest | {"choices": [{**choice_of(message), "delta": dict(delta), "logprobs": None}]}
