# SPDX-License-Identifier: Apache-2.0
"""GuardedEvents: a stream of completions whose text is held until it is read.

Each release becomes an event of its own. What carries no text (tool calls, the end of a choice) is passed on in its
place, behind the text that came before it. Reasoning and refusals are texts of their own, in the order of the model.
Whatever a message carries besides text leaves once, with the message's last character.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockgate.api.openai.deltas import (
    CONTENT,
    PLAIN_KEYS,
    REASONING_KEYS,
    REFUSAL,
    add_extras,
    choice_of,
    has_finish,
    merge_logprobs,
    merge_text_logprobs,
    other_texts,
    without_secrets,
    without_text,
)
from lockgate.api.openai.events import ChoiceState, Events, Manner, Segment
from lockgate.api.openai.format import UNSUITABLE_INPUT, UNSUITABLE_OUTPUT, Asked, to_results
from lockgate.api.openai.whole_answer import Dialect, input_entries
from lockgate.errors import HeldTooMuch
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict


class GuardedEvents(Events):
    """One event for each release, and what carries no text in its place."""

    def __init__(self, dialect: Dialect, asked: Asked, manner: Manner) -> None:
        super().__init__(dialect, asked, manner)
        # Parts of a delta that may leave unread, where all else may tell what its text no longer does; None: all may.
        self._kept: frozenset[str] | None = None
        self._held_chars = 0
        self._segments: list[Segment] = []
        self._lengths: dict[tuple[int, str], int] = {}
        # parts of a delta that leave as texts of their own, if at all
        self._guarded = REASONING_KEYS | {REFUSAL}
        self._is_simple = self._is_chat

    # Messages into frames.

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message as frames, in the lanes of its texts."""
        number = self._count
        self._count += 1
        if self._is_simple:
            frame = self._continue(number, message)
            if frame is not None:
                return (frame,)
        if not message["choices"]:
            self._note_bare(message)
            return []
        frames: list[Frame] = []
        for index, choice, own in self._split(message):
            self._add(frames, number, index, choice, own)
        return frames

    def _continue(self, number: int, message: dict[str, Any]) -> Frame | None:
        """The frame of a message that only goes on with the content of its choice, as nearly every one does."""
        choices = message["choices"]
        if len(choices) != 1 or type(choices[0]) is not dict:
            return None
        choice: dict[str, Any] = choices[0]
        delta, index = choice.get("delta"), choice.get("index", 0)
        known = self._choices.get(index) if type(index) is int else None
        if type(delta) is not dict or len(delta) != 1 or known is None or not known.segments:
            return None
        text = delta.get(CONTENT)
        segment = known.segments[-1]
        if type(text) is not str or not text or segment.field != CONTENT or not known.is_read or known.unsaid:
            return None
        if self._keeps_text:
            self._keep_text(known, text)
        known.base = message
        segment.received += len(text)
        return Frame(number, text, segment.lane, message)

    def _add(self, frames: list[Frame], number: int, index: int, choice: dict[str, Any], own: dict[str, Any]) -> None:
        text = self._text_of(choice)
        known = self._remember(index, choice, text)
        delta = choice.get("delta")
        if isinstance(delta, dict) and known.is_read:
            for field, words in self._list_others(delta):
                frames.append(self._frame(frames, number, index, field, words))
        if text and known.is_read:
            known.base = own = self._with_unsaid(known, own)
            frames.append(self._frame(frames, number, index, CONTENT, text)._replace(fields=own))
        elif not self._is_mute(choice, known):
            lane = known.segments[-1] if known.segments else self._open(frames, number, index, CONTENT)
            frames.append(Frame(number, "", lane.lane, self._with_unsaid(known, own)))
        else:
            self._keep_unsaid(known, own)

    def _list_others(self, delta: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """The texts of a delta besides its content."""
        return other_texts(delta)

    def _keep_unsaid(self, known: ChoiceState, own: dict[str, Any]) -> None:
        """Keep a message without text for its log probabilities, if it has any that may leave."""
        if choice_of(own).get("logprobs") and self._kept is None:
            self._hold(1)
            known.unsaid.append(own)

    def _with_unsaid(self, known: ChoiceState, own: dict[str, Any]) -> dict[str, Any]:
        """The message with the logprobs of those before it that had no text: part of a character is a token too."""
        if not known.unsaid:
            return own
        messages = [*known.unsaid, own]
        self._hold(-len(known.unsaid))
        known.unsaid = []
        merged = merge_logprobs(messages) if self._is_chat else merge_text_logprobs(messages)
        return {**own, "choices": [{**choice_of(own), "logprobs": merged}]}

    def _frame(self, frames: list[Frame], number: int, index: int, field: str, text: str) -> Frame:
        segments = self._choices[index].segments
        segment = segments[-1] if segments else None
        if segment is None or segment.field != field:
            segment = self._open(frames, number, index, field)
        segment.received += len(text)
        return Frame(number, text, segment.lane)

    def _open(self, frames: list[Frame], number: int, index: int, field: str) -> Segment:
        """A new segment; the one before has all its text, so what it still holds need not wait for more."""
        segments = self._choices[index].segments
        if segments:
            before = segments[-1]
            frames.append(Frame(number, "", before.lane, None, is_last=True))
            self._lengths[index, before.field] = before.start + before.received
        segment = Segment(len(self._segments), index, field, self._lengths.get((index, field), 0))
        self._segments.append(segment)
        segments.append(segment)
        return segment

    # Releases into events.

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events of a release, and of those that waited for it."""
        segment = self._segments[release.choice]
        open_segments = self._choices[segment.choice].segments
        if open_segments[0] is not segment:
            segment.waiting.append(release)
            self._hold(len(release.text))
            return b""
        parts = [self._write(segment, release)]
        is_over = release.is_final
        while is_over:
            open_segments.popleft()
            is_over = False
            if open_segments:
                segment = open_segments[0]
                for waiting in segment.waiting:
                    self._hold(-len(waiting.text))
                    parts.append(self._write(segment, waiting))
                    is_over = waiting.is_final
                segment.waiting = []
        return b"".join(parts)

    def finish(self) -> bytes:
        """The end of the stream."""
        return self._encode_last(self._rest())

    def _rest(self) -> list[dict[str, Any]]:
        """What is told behind all text."""
        is_due = bool(self._trailing or self._has_reviews or self._usage is not None or self.account.receipt)
        if is_due or self.warnings or self.found_in_prompt:
            return [self._last_event(self._usage)]
        return []

    def _index_of(self, release: Release) -> int:
        return self._segments[release.choice].choice

    def _hold(self, chars: int) -> None:
        self._held_chars += chars
        if self._held_chars > self._max_held_chars:
            raise HeldTooMuch(f"more than {self._max_held_chars} characters wait for a detector")

    def _write(self, segment: Segment, release: Release) -> bytes:
        known = self._choices[segment.choice]
        found = self._note_trailing(release)
        parts = []
        if release.text or found:
            parts.append(self._encode(self._event(segment, release, found)))
        for frame in self._bare_and_after(release):
            if not frame.text:
                parts.append(self._pass_on(segment.choice, frame.fields))
            elif not self._is_mute(choice_of(message := without_text(frame.fields)), known):
                parts.append(self._pass_on(segment.choice, message))
        ended = [one.fields for one in release.frames if one.text and one.fields is not None and has_finish(one.fields)]
        if ended and not known.has_finish:  # the chunker has named other frames
            parts.append(self._pass_on(segment.choice, without_text(ended[-1], keeps_calls=False)))
        if release.is_final and segment.field == CONTENT:
            known.base = {}
        return b"".join(parts)

    def _bare_and_after(self, release: Release) -> list[Any]:
        """The frames from the first one on that carries something and has no text: they are told one by one."""
        frames = [frame for frame in release.frames if frame.fields is not None]
        place = next((at for at, frame in enumerate(frames) if not frame.text), len(frames))
        return frames[place:] if self._is_chat else [frame for frame in frames if not frame.text]

    def _event(self, segment: Segment, release: Release, found: Sequence[Detection]) -> dict[str, Any]:
        index = segment.choice
        messages, is_complete = self._messages_of(segment, release)
        event = self._start_event(index, messages, is_complete=is_complete)
        choice = self._choice(segment, release.text, messages, is_complete=is_complete)
        bare = self._bare_and_after(release)
        if self._is_chat:
            spoken = [one.fields for one in release.frames if one.text and one.fields is not None and one not in bare]
            add_extras(choice["delta"], spoken, guarded=self._guarded, keeps=self._kept)
            if bare:
                choice |= {"finish_reason": None, "stop_reason": None}  # a tool call comes first; the end follows it
        if choice["finish_reason"] is not None:
            self._choices[index].has_finish = True
        event["choices"] = [choice]
        if not self._is_chat:
            event.setdefault("usage", None)
        event["detections"] = {"output": [self._build_entry(segment, release, found)]}
        if self.found_in_prompt:
            event["detections"] = {"input": input_entries(self._asked, self.found_in_prompt)} | event["detections"]
        warnings = [UNSUITABLE_INPUT] if self.found_in_prompt else []
        self.found_in_prompt = ()
        if found:
            warnings.append(UNSUITABLE_OUTPUT)
        if warnings:
            event["warnings"] = warnings
        return event

    def _start_event(self, index: int, messages: Sequence[Mapping[str, Any]], *, is_complete: bool) -> dict[str, Any]:
        """The fields of the last message; its usage leaves once, with the end of its text."""
        base = messages[-1] if messages else self._choices[index].base or self._first
        event = {key: value for key, value in base.items() if key not in ("detections", "warnings")}
        if not is_complete:
            event.pop("usage", None)
        return event

    def _build_entry(self, segment: Segment, release: Release, found: Sequence[Detection]) -> dict[str, Any]:
        """The findings of a release, placed in all text of its kind."""
        entry: dict[str, Any] = {"choice_index": segment.choice}
        if segment.field != CONTENT:
            entry["field"] = segment.field
        entry |= {"start_index": segment.start + release.start, "processed_index": segment.start + release.end}
        return entry | {"results": to_results(found, segment.start)}

    def _messages_of(self, segment: Segment, release: Release) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The messages that an event is made of, and whether its text is the end of the last one."""
        own = [frame.fields for frame in release.frames if frame.text and frame.fields is not None]
        return own, bool(own)

    def _choice(
        self, segment: Segment, text: str, messages: Sequence[Mapping[str, Any]], *, is_complete: bool
    ) -> dict[str, Any]:
        latest = choice_of(messages[-1]) if messages else {}
        choice: dict[str, Any] = {"index": segment.choice}
        if self._is_chat:
            choice["delta"] = {"role": "assistant", segment.field: text}
            choice["logprobs"] = merge_logprobs(messages) if self._kept is None else None
        else:
            choice["text"] = text
            choice["logprobs"] = merge_text_logprobs(messages) if self._kept is None else None
        for key in ("finish_reason", "stop_reason"):
            choice[key] = latest.get(key) if is_complete else None
        if self._kept is not None:
            return choice
        return choice | {key: value for key, value in latest.items() if key not in choice and key != "delta"}

    def _pass_on(self, index: int, message: Mapping[str, Any]) -> bytes:
        """The event of a message without text to read."""
        known = self._choices[index]
        choice = choice_of(message)
        if has_finish(message):
            if known.has_finish:  # it has ended before: that is told once
                choice = {**choice, "finish_reason": None}
                if self._is_mute(choice, known):
                    return b""
            known.has_finish = True
        if self._kept is not None and known.is_read:
            choice = without_secrets(choice, self._kept)
        if not self._is_chat:
            return self._encode({**message, "choices": [choice]})
        delta = {key: value for key, value in (choice.get("delta") or {}).items() if key not in self._guarded}
        if known.is_read:
            delta["role"] = "assistant"
        return self._encode({**message, "choices": [{**choice, "delta": delta}]})

    def _is_mute(self, choice: Mapping[str, Any], known: ChoiceState) -> bool:
        """Whether a message without text to read says nothing: it only names a role, or is empty."""
        if choice.get("finish_reason") is not None:
            return False
        if not self._is_chat:
            return True
        delta = choice.get("delta") or {}
        if not known.is_read and delta.get("content"):
            return False
        return all(key in PLAIN_KEYS or key in self._guarded or not value for key, value in delta.items())
