# SPDX-License-Identifier: Apache-2.0
"""Streams of completions under a policy: every text of a choice is a lane of its own, from its first to its last word.

`LaneEvents` holds text until it is read. A lane ends only with the stream, so that nothing hides between two pieces of
one text that others stand between; each lane leaves as fast as it is read, in the model's own order. `ShadowEvents`
passes every message on as it came and lets all lanes be read beside. In both the messages that end a choice wait for
the end of the stream: the last event bears the receipt.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockgate.core.release import Release
from lockgate.core.values import Frame
from lockgate.core.verdicts import Verdict
from lockgate.wire.openai import Asked
from lockgate.wire.openai_answers import FILTERED, Dialect
from lockgate.wire.openai_calls import CallReader, CallText, list_call_texts, says_more, with_texts
from lockgate.wire.openai_deltas import (
    CALL_KEYS,
    CALLS_LANE,
    CONTENT,
    CONTENT_LANE,
    REASONING_KEYS,
    REFUSAL,
    choice_of,
    has_finish,
    list_lane_texts,
    list_unread_keys,
)
from lockgate.wire.openai_events import ChoiceState, Events, Manner, Segment
from lockgate.wire.openai_guarded import GuardedEvents

_ENDING = ("finish_reason", "stop_reason")


class LaneEvents(GuardedEvents):
    """One event for each release; what carries no text is passed on in its place in the content."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        self._fallback = manner.fallback
        self._lanes = manner.lanes
        self._reads_content = not self._is_chat or CONTENT_LANE in manner.lanes
        self._reads_calls = self._is_chat and CALLS_LANE in manner.lanes
        unread = list_unread_keys(manner.lanes)
        self._guarded = (REASONING_KEYS | {REFUSAL}) - unread
        if manner.hides:
            self._kept = unread
        self._is_simple = self._is_simple and self._reads_content
        self._calls: dict[int, CallReader] = {}  # by lane
        self._endings: dict[int, dict[str, Any]] = {}  # by choice

    # Messages into frames.

    def _continue(self, number: int, message: dict[str, Any]) -> Frame | None:
        choices = message["choices"]
        if len(choices) != 1 or type(choices[0]) is not dict or choices[0].get("finish_reason") is not None:
            return None
        return super()._continue(number, message)

    def _add(self, frames: list[Frame], number: int, index: int, choice: dict[str, Any], own: dict[str, Any]) -> None:
        text = self._text_of(choice)
        known = self._remember(index, choice, text)
        own = self._keep_ending(index, own)
        if known.is_read:
            own = self._add_others(frames, number, index, own)
        if text and known.is_read and self._reads_content:
            known.base = own = self._with_unsaid(known, own)
            frames.append(self._frame(frames, number, index, CONTENT, text)._replace(fields=own))
        elif not self._is_mute(choice_of(own), known):
            known.base = known.base or own
            lane = self._find_segment(known, CONTENT) or self._open(frames, number, index, CONTENT)
            frames.append(Frame(number, "", lane.lane, self._with_unsaid(known, own)))
        elif choice.get("logprobs") and self._kept is None:
            self._hold(1)
            known.unsaid.append(own)

    def _keep_ending(self, index: int, own: dict[str, Any]) -> dict[str, Any]:
        """The message without what ends its choice, which is told last."""
        choice = choice_of(own)
        if choice.get("finish_reason") is None:
            return own
        told: dict[str, Any] = {"index": index, "logprobs": None, "delta": {}}
        if not self._is_chat:
            told = {"index": index, "logprobs": None, "text": ""}
        self._endings[index] = {**own, "choices": [told | {key: choice.get(key) for key in _ENDING}]}
        rest = {key: value for key, value in own.items() if key != "usage"}
        return rest | {"choices": [{**choice, **dict.fromkeys(_ENDING)}]}

    def _add_others(self, frames: list[Frame], number: int, index: int, own: dict[str, Any]) -> dict[str, Any]:
        """The frames of texts besides the content; the message without those of calls."""
        choice = choice_of(own)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return own
        for field, words in list_lane_texts(delta, self._lanes):
            frames.append(self._frame(frames, number, index, field, words))
        if not (self._reads_calls and any(delta.get(key) for key in CALL_KEYS)):
            return own
        names = with_texts(delta, {})
        rest = {key: value for key, value in delta.items() if key not in CALL_KEYS}
        self._add_calls(
            frames, number, index, list(list_call_texts(delta)), {**own, "choices": [{**choice, "delta": names}]}
        )
        return {**own, "choices": [{**choice, "delta": rest}]}

    def _add_calls(
        self, frames: list[Frame], number: int, index: int, texts: Sequence[CallText], named: dict[str, Any]
    ) -> None:
        """The frames of calls: what names one comes before its text."""
        known = self._choices[index]
        known.base = known.base or named
        is_named = says_more(choice_of(named)["delta"])
        for text in texts:
            segment = self._find_segment(known, text.field) or self._open(frames, number, index, text.field)
            reader = self._calls.setdefault(segment.lane, CallReader(text))
            if is_named:
                frames.append(Frame(number, "", segment.lane, named))
                is_named = False
            plain = reader.feed(text.text)
            segment.received += len(plain)
            if plain:
                frames.append(Frame(number, plain, segment.lane))
        if is_named:
            lane = self._find_segment(known, CONTENT) or self._open(frames, number, index, CONTENT)
            frames.append(Frame(number, "", lane.lane, named))

    def _is_mute(self, choice: Mapping[str, Any], known: ChoiceState) -> bool:
        delta = choice.get("delta")
        if not self._reads_content and isinstance(delta, dict) and delta.get(CONTENT):
            return False
        return super()._is_mute(choice, known)

    def _frame(self, frames: list[Frame], number: int, index: int, field: str, text: str) -> Frame:
        segment = self._find_segment(self._choices[index], field) or self._open(frames, number, index, field)
        segment.received += len(text)
        return Frame(number, text, segment.lane)

    def _find_segment(self, known: ChoiceState, field: str) -> Segment | None:
        return next((one for one in known.segments if one.field == field), None)

    def _open(self, frames: list[Frame], number: int, index: int, field: str) -> Segment:
        """A new lane; those before it stay open. That of the content comes last in the list, where most text goes."""
        segment = Segment(len(self._segments), index, field, 0)
        self._segments.append(segment)
        segments = self._choices[index].segments
        if field == CONTENT or not segments or segments[-1].field != CONTENT:
            segments.append(segment)
        else:
            segments.appendleft(segment)
        return segment

    # Releases into events.

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events of a release."""
        segment = self._segments[release.choice]
        is_blocked = verdict is not None and verdict.is_blocked
        said = release.text.removesuffix(self._fallback) if is_blocked else release.text
        call = self._calls.get(segment.lane)
        if call is not None:
            said = call.release(release, verdict, said)
        if is_blocked:
            return self._cut_off(segment, release._replace(text=said))
        return self._write(segment, release._replace(text=said))

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
        event = self._event(segment, release, found)
        [choice] = event["choices"]
        if segment.field == CONTENT:
            choice |= self._dialect.delta(release.text + self._fallback)
        else:
            if not release.text:
                choice["delta"].pop(segment.field, None)
            choice["delta"][CONTENT] = self._fallback
        self._endings[segment.choice] = self._build_ending(segment.choice)
        return self._encode(event)

    def _rest(self) -> list[dict[str, Any]]:
        if self.is_blocked:
            self._endings = {index: self._build_ending(index) for index in self._choices}
        events = [self._endings[index] for index in sorted(self._endings)]
        has_more = self._trailing or self._has_reviews or self._usage is not None
        if has_more or self.warnings or self.found_in_prompt or not events:
            events.append(self._last_event(self._usage))
        return events

    def _build_ending(self, index: int) -> dict[str, Any]:
        """The end of a choice that a policy has cut off."""
        base = self._choices[index].base or self._first
        event = {key: base[key] for key in ("id", "object", "created", "model") if key in base}
        told = {"delta": {"role": "assistant"}} if self._is_chat else {"text": ""}
        ending = {"index": index, **told, "logprobs": None, "finish_reason": FILTERED, "stop_reason": None}
        return event | {"choices": [ending]}


class ShadowEvents(Events):
    """Every message as it came, at once; its texts are read beside, and nobody hears what was found."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        self._lanes = manner.lanes
        self._places: dict[tuple[int, str], int] = {}  # the lanes of texts
        self._calls: dict[int, CallReader] = {}
        self._waiting: list[dict[str, Any]] = []  # a message that may be the last
        self._tells_late = False

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message without a text, in a lane of its own, and its texts in theirs."""
        number = self._count
        self._count += 1
        frames = [Frame(number, "", 0, message)]
        if not message["choices"]:
            self._note_bare(message)
        for index, choice, _ in self._split(message):
            text = self._text_of(choice)
            if not self._remember(index, choice, text).is_read:
                continue
            if text and (not self._is_chat or CONTENT_LANE in self._lanes):
                frames.append(Frame(number, text, self._find_lane(index, CONTENT)))
            delta = choice.get("delta")
            if isinstance(delta, dict):
                frames += self._add_others(number, index, delta)
        return frames

    def _add_others(self, number: int, index: int, delta: Mapping[str, Any]) -> Iterable[Frame]:
        for field, words in list_lane_texts(delta, self._lanes):
            yield Frame(number, words, self._find_lane(index, field))
        for call in list_call_texts(delta) if CALLS_LANE in self._lanes else ():
            lane = self._find_lane(index, call.field)
            plain = self._calls.setdefault(lane, CallReader(call)).feed(call.text)
            if plain:
                yield Frame(number, plain, lane)

    def _find_lane(self, index: int, field: str) -> int:
        return self._places.setdefault((index, field), len(self._places) + 1)

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The messages that came; one that may be the last waits for the next."""
        parts = []
        for frame in release.frames:
            if frame.fields is None:
                continue
            message: dict[str, Any] = dict(frame.fields)
            parts += [self._encode(one) for one in self._waiting]
            may_be_last = not message["choices"] or any(has_finish({"choices": [one]}) for one in message["choices"])
            self._waiting = [message] if may_be_last else []
            parts += [] if may_be_last else [self._encode(message)]
        return b"".join(parts)

    def _late_detections(self) -> dict[str, Any]:
        return {}

    def _late_warnings(self) -> list[dict[str, str]]:
        return self.warnings

    def finish(self) -> bytes:
        """The end of the stream."""
        events, self._waiting = self._waiting, []
        if not events or self.warnings:
            events.append(self._last_event(None))
        return self._encode_last(events)
