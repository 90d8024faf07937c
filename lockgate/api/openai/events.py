# SPDX-License-Identifier: Apache-2.0
"""EventWriter: turns the releases of a streamed chat or text completion into events."""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockgate.api.guarded_answer import AnswerWriter
from lockgate.api.openai.deltas import (
    CONTENT,
    add_extras,
    choice_of,
    has_finish,
    merge_logprobs,
    without_secrets,
    without_text,
)
from lockgate.api.openai.envelope import FILTERED
from lockgate.api.openai.format import (
    UNSUITABLE_INPUT,
    UNSUITABLE_OUTPUT,
    CompletionRequest,
    encode,
    encode_event,
    to_plain_results,
    to_results,
    warn,
)
from lockgate.api.openai.stream_order import StreamOrder
from lockgate.api.openai.stream_reader import ChoiceState, Segment, StreamOptions, StreamReader
from lockgate.api.openai.whole_answer import Dialect, build_blocked, input_entries
from lockgate.gate.receipts import RequestPart
from lockgate.gate.release import Release
from lockgate.gate.values import Conversation, Detection, Frame, Generated, Subject
from lockgate.gate.verdicts import Action, Verdict, put_fallback
from lockgate.guard.request import InputBlocked

DONE = b"data: [DONE]\n\n"
Messages = Sequence[Mapping[str, Any]]


class EventWriter(AnswerWriter):
    """Writes one stream.

    Messages that are not held are written unchanged. Of held text each release is one event. A message without text is
    written after the text before it; other fields of a message are written once, with its last character.
    """

    is_stream = True
    _reader_type: type[StreamReader] = StreamReader
    _repeats_usage = False  # in the last event, though it was sent before

    def __init__(self, dialect: Dialect, request: CompletionRequest, options: StreamOptions) -> None:
        super().__init__()
        if options.is_shadow:
            options = options._replace(trailing=frozenset())  # findings are not reported
        self._dialect = dialect
        self._is_chat = dialect.is_chat
        self._request = request
        self._options = options
        self._trailing = options.trailing
        self._is_ruled = options.lanes is not None
        self._relays = not (options.holds or self._is_ruled)
        self.envelope = options.envelope
        self._envelope = options.envelope if options.hides and options.holds else None  # where text is hidden
        self._order = StreamOrder(options.max_held_chars)
        self._reader = self._reader_type(options, self._order, is_chat=dialect.is_chat)
        self._choices = self._reader.choices
        self._segments = self._reader.segments
        self._reviewed: dict[int, Sequence[Detection]] = {}
        self.to_frames = self._reader.choose()
        self._cut: set[int] = set()  # choices that a policy has cut off
        self._said: set[int] = set()  # choices whose content was sent unread
        self._without_calls: set[int] = set()  # choices of which a call was left out

    def subjects(self) -> Iterable[tuple[int, Subject]]:
        """What reviewers read, by choice."""
        for index in sorted(self._choices):
            choice = self._choices[index]
            text = "".join(choice.reviewable)
            if self._is_chat:
                message: dict[str, Any] = {"role": "assistant"} | ({"content": text} if text else {})
                if choice.calls:
                    message["tool_calls"] = [choice.calls[place] for place in sorted(choice.calls)]
                yield index, Conversation([*self._request.messages, message], self._request.tools)
            else:
                yield index, Generated(self._request.prompt, text)

    def note_reviews(self, choice: int, found: Sequence[Detection]) -> None:
        """Keep what reviewers found in a choice."""
        self._reviewed[choice] = found

    def is_cut(self, lane: int) -> bool:
        """Whether the choice of a lane has been cut off: nothing more of it is written."""
        return bool(self._cut) and self._segments[lane].choice in self._cut

    def is_content(self, lane: int) -> bool:
        """Whether a lane is the content of a choice."""
        return self._segments[lane].field in (CONTENT, "text", "")

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The events to send for this release."""
        if self._relays:
            frames = release.frames
            if self._trailing:
                self._note_late(release.choice, CONTENT, release)
            if len(frames) == 1 and self.account.receipt is None:
                return b"data: " + encode(frames[0].fields) + b"\n\n"
            return b"".join([self._encode(frame.fields) for frame in frames if frame.fields is not None])
        segment = self._segments[release.choice]
        if self._options.holds:
            return self._take_held(segment, release, verdict)
        if segment.field:
            self._note_late(segment.choice, segment.field, release)
            return b""
        messages = [frame.fields for frame in release.frames if frame.fields is not None]
        return b"".join([self._encode(one) for message in messages for one in self._order.pass_message(message)])

    def finish(self) -> bytes:
        """The end of the stream."""
        return self._encode_last(self._build_last())

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a prompt that is blocked: one event."""
        answer = build_blocked(self._dialect, self._request, blocked, fallback)
        answer["warnings"] += self.warnings
        self.account.add(answer)
        return encode_event(answer | self.account.tell()) + DONE

    def _encode_last(self, events: list[dict[str, Any]]) -> bytes:
        """The last events; the very last one has the receipt."""
        parts = [self._encode(event) for event in events[:-1]]
        if events:
            last: Mapping[str, Any] = events[-1]
            if self._envelope is not None:
                last = self._envelope.close(last, kind=self._dialect.chunk_object, model=self._request.model)
            self.account.add(last)
            parts.append(encode_event({**last, **self.account.tell()}))
        return b"".join(parts) + DONE

    def _encode(self, event: Mapping[str, Any]) -> bytes:
        """Encode an event, and add it to the digest."""
        if self._envelope is not None:
            event = self._envelope.close(event, kind=self._dialect.chunk_object, model=self._request.model)
        if self.account.receipt is not None:
            self.account.add(event)
        return b"data: " + encode(event) + b"\n\n"

    # Text that was held.

    def _take_held(self, segment: Segment, release: Release, verdict: Verdict | None) -> bytes:
        if segment.labels and self._envelope is not None:
            action = self._envelope.judge_label(segment.labels.get("name"))
            if action is not Action.ANNOTATE:
                return self._leave_out_call(segment, release, verdict, action)
        text = release.text
        if verdict is not None and verdict.is_blocked:
            text = verdict.body
        if segment.call is not None:
            text = segment.call.release(release, verdict, text)
        if text is not release.text:
            release = release._replace(text=text)
        if verdict is not None and verdict.is_blocked:
            return self._cut_off(segment, release, verdict.kept)
        leaving = self._order.take(segment.choice, segment.lane, release)
        if self._is_ruled and segment.field == CONTENT:
            leaving += self._order.pass_content(segment.choice, release.end)
        return b"".join([self._write(self._segments[lane], one) for lane, one in leaving])

    def _leave_out_call(self, segment: Segment, release: Release, verdict: Verdict | None, action: Action) -> bytes:
        """Leave out a call whose tool has a name that must not leave; `stop` and `block` end its choice."""
        if self.account.receipt is not None:
            kept = release.end - release.start if verdict is None else verdict.kept
            self.account.receipt.note_dropped(RequestPart.ANSWER, kept)
            self.account.receipt.note_action(action)
        if self._envelope is not None:
            self._envelope.note_left_out_call()
        self._without_calls.add(segment.choice)
        bare = release._replace(end=release.start, text="", detections=(), frames=())
        if action is not Action.MASK or (verdict is not None and verdict.is_blocked):
            return self._cut_off(segment, bare, 0)
        leaving = self._order.take(segment.choice, segment.lane, bare)
        return b"".join([self._write(self._segments[lane], one) for lane, one in leaving])

    def _cut_off(self, segment: Segment, release: Release, kept: int) -> bytes:
        """The last event with text: what may still be sent, then the fallback, which is always content.

        The release has `kept` characters of the model; those of texts that wait are dropped.
        """
        self._cut.add(segment.choice)
        self.is_blocked = len(self._cut) >= self._request.choices
        dropped = 0
        if self._order.is_waiting(segment.choice, segment.lane):
            release, dropped = release._replace(text=""), kept
        dropped += self._order.drop(segment.choice)
        if self.account.receipt is not None:
            self.account.receipt.note_dropped(RequestPart.ANSWER, dropped)
        found = self._note_late(segment.choice, segment.field, release)
        event = self._event(segment, release._replace(frames=()), found)
        [choice] = event["choices"]
        content = release.text if segment.field == CONTENT else ""
        has_content = bool(content) or segment.choice in self._said or self._order.has_content(segment.choice)
        content += put_fallback(self._options.fallback, has_left=has_content)
        if segment.field == CONTENT:
            choice |= self._dialect.say(content, "delta")
        else:
            if not release.text:
                choice["delta"].pop(segment.field, None)
            choice["delta"][CONTENT] = content
        return self._encode(event)

    def _write(self, segment: Segment, release: Release) -> bytes:
        index = segment.choice
        known = self._choices[index]
        found = self._note_late(index, segment.field, release)
        frames = [frame for frame in release.frames if frame.fields is not None]
        bare = self._list_bare(frames)
        if segment.call is not None and self._options.hides and not (release.text or release.is_final or found):
            segment.opening += [frame.fields for frame in bare]  # clients may run a call of which only the name came
            return b""
        parts = [self._pass_on(index, message) for message in segment.opening]
        segment.opening.clear()
        if release.text or found:
            parts.append(self._encode(self._event(segment, release, found, bare)))
        for frame in bare:
            if not frame.text:
                parts.append(self._pass_on(index, frame.fields))
            elif not self._reader.is_empty(choice_of(message := without_text(frame.fields)), known):
                parts.append(self._pass_on(index, message))
        if index not in self._order.ended:
            ended = [one.fields for one in frames if one.text and one.fields is not None and has_finish(one.fields)]
            if ended:  # the chunker named other frames than these
                parts.append(self._pass_on(index, without_text(ended[-1], keeps_calls=False)))
        if release.is_final and segment.field == CONTENT:
            known.base = {}
        return b"".join(parts)

    def _list_bare(self, frames: list[Any]) -> list[Any]:
        """The frames to write one by one: in a chat from the first without text on, else those without text."""
        if not self._is_chat:
            return [frame for frame in frames if not frame.text]
        for place, frame in enumerate(frames):
            if not frame.text:
                return frames[place:]
        return []

    def _event(
        self, segment: Segment, release: Release, found: Sequence[Detection], bare: Sequence[Frame] = ()
    ) -> dict[str, Any]:
        """The event of a release with text or findings."""
        index = segment.choice
        messages, is_complete = self._messages_of(segment, release)
        event = self._start_event(index, messages, is_complete=is_complete)
        choice = self._choice(segment, release.text, messages, is_complete=is_complete)
        if self._is_chat:
            texts = [one.fields for one in release.frames if one.text and one.fields is not None and one not in bare]
            add_extras(choice["delta"], texts, guarded=self._reader.guarded, keeps=self._reader.kept)
            if bare:
                choice |= {"finish_reason": None, "stop_reason": None}  # a tool call comes first; the end follows it
        if choice["finish_reason"] is not None:
            self._order.end(index)
        event["choices"] = [choice]
        if not self._is_chat:
            event.setdefault("usage", None)
        event["detections"] = {"output": [self._build_entry(segment, release, found)]}
        warnings = [UNSUITABLE_OUTPUT] if found else []
        if self.found_in_prompt:
            event["detections"] = {"input": input_entries(self._request, self.found_in_prompt)} | event["detections"]
            warnings.insert(0, UNSUITABLE_INPUT)
            self.found_in_prompt = ()
        if warnings:
            event["warnings"] = warnings
        return event

    def _take_role(self, index: int) -> dict[str, str]:
        """The role for a delta of this choice. Under a policy only its first delta has one: clients join its words."""
        known = self._choices[index]
        role = known.role
        if self._is_ruled:
            known.role = {}
        return role

    def _messages_of(self, segment: Segment, release: Release) -> tuple[Messages, bool]:
        """The messages that an event is made of, and whether its text is the end of the last one."""
        own = [frame.fields for frame in release.frames if frame.text and frame.fields is not None]
        return own, bool(own)

    def _start_event(self, index: int, messages: Messages, *, is_complete: bool) -> dict[str, Any]:
        """The fields of the last message; its usage is sent once, with the end of its text."""
        base = messages[-1] if messages else self._choices[index].base or self._reader.first
        event = {key: value for key, value in base.items() if key not in ("detections", "warnings")}
        if not is_complete:
            event.pop("usage", None)
        return event

    def _choice(self, segment: Segment, text: str, messages: Messages, *, is_complete: bool) -> dict[str, Any]:
        latest = choice_of(messages[-1]) if messages else {}
        is_open = self._reader.kept is None
        choice: dict[str, Any] = {"index": segment.choice}
        if not self._is_chat:
            choice["text"] = text
        elif segment.call is None:
            choice["delta"] = {**self._take_role(segment.choice), segment.field: text}
        else:
            choice["delta"] = {**self._take_role(segment.choice), **(segment.call.call.build(text) if text else {})}
        choice["logprobs"] = merge_logprobs(messages, is_chat=self._is_chat) if is_open else None
        for key in ("finish_reason", "stop_reason"):
            choice[key] = latest.get(key) if is_complete else None
        if is_open:
            choice |= {key: value for key, value in latest.items() if key not in choice and key != "delta"}
        return choice

    def _build_entry(self, segment: Segment, release: Release, found: Sequence[Detection]) -> dict[str, Any]:
        """The findings of a release, placed in all text of its field."""
        entry: dict[str, Any] = {"choice_index": segment.choice}
        if segment.field != CONTENT:
            entry["field"] = segment.field
        entry |= {"start_index": segment.start + release.start, "processed_index": segment.start + release.end}
        return entry | {"results": to_results(found, segment.start)}

    def _pass_on(self, index: int, message: Mapping[str, Any]) -> bytes:
        """The event of a message without text to read."""
        known = self._choices[index]
        choice = choice_of(message)
        if has_finish(message) and not self._order.end(index):
            choice = {**choice, "finish_reason": None}
            if self._reader.is_empty(choice, known):
                return b""
        if self._reader.kept is not None and known.is_read:
            choice = without_secrets(choice, self._reader.kept)
        if not self._is_chat:
            return self._encode({**message, "choices": [choice]})
        guarded = self._reader.guarded
        delta = {key: value for key, value in (choice.get("delta") or {}).items() if key not in guarded}
        if delta.get(CONTENT):
            self._said.add(index)
        if known.is_read:
            if self._is_ruled:
                delta.pop("role", None)
            delta |= self._take_role(index)
        return self._encode({**message, "choices": [{**choice, "delta": delta}]})

    # The end.

    def _note_late(self, index: int, field: str, release: Release) -> tuple[Detection, ...]:
        """The findings to send with the release; those of trailing detectors are kept for the last event."""
        if not (self._trailing and release.is_final):
            return release.detections
        late = [one for one in release.detections if one.detector_id in self._trailing]
        known = self._choices.get(index)
        if known is not None and self._is_ruled:
            if late or field == CONTENT:
                entry: dict[str, Any] = {"choice_index": index} | ({} if field == CONTENT else {"field": field})
                entry |= {"start_index": 0, "processed_index": release.end, "results": to_results(late)}
                known.late.append(entry)
        elif known is not None and (known.reviewable or not self._is_chat):
            known.trailing = (known.trailing or []) + late
        return tuple(one for one in release.detections if one.detector_id not in self._trailing)

    def _build_last(self) -> list[dict[str, Any]]:
        """The last events, with the report.

        Without a policy one without choices, if there is anything to report. Under a policy those that waited;
        clients expect a choice in each, except in one with the usage.
        """
        usage = self._reader.usage if self._options.holds or self._repeats_usage else None
        is_due = self._reader.keeps_text or self.account.receipt or self.warnings or self.found_in_prompt
        if self.is_blocked:
            self._order.endings.clear()
        for index in self._choices if self.is_blocked else self._cut:
            self._order.endings[index] = self._build_ending(index, FILTERED)
        for index in self._without_calls & self._order.endings.keys():  # clients look for calls at any other reason
            self._order.endings[index]["choices"][0]["finish_reason"] = FILTERED
        events = self._order.list_last()
        if usage is not None or (is_due and not self._is_ruled):
            events.append(self._build_bare(usage))
        if self._is_ruled and not events:
            events = [self._build_ending(index, None) for index in sorted(self._choices)] or [self._build_bare(None)]
        return [*events[:-1], *[one | self._list_late() for one in events[-1:]]]

    def _build_ending(self, index: int, reason: str | None) -> dict[str, Any]:
        """An event that only ends a choice, or without a reason only names it."""
        base = self._choices[index].base or self._reader.first
        event = {key: base[key] for key in ("id", "object", "created", "model") if key in base}
        empty = {"delta": self._take_role(index)} if self._is_chat else {"text": ""}
        ending = {"index": index, **empty, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return event | {"choices": [ending]}

    def _build_bare(self, usage: Any) -> dict[str, Any]:
        """An event without choices."""
        first = self._reader.first
        event: dict[str, Any] = {
            "id": first.get("id") or uuid.uuid4().hex,
            "object": self._dialect.chunk_object,
            "created": first.get("created") or int(time.time()),
            "model": first.get("model") or self._request.model,
            "choices": [],
        }
        if usage is not None or not self._is_chat:
            event["usage"] = usage
        return event

    def _list_late(self) -> dict[str, Any]:
        """The report of the last event; in shadow it has no findings."""
        late: dict[str, Any] = {}
        warnings = self.warnings
        if not self._options.is_shadow:
            detections = self._late_detections()
            if detections or self._reader.keeps_text:
                late["detections"] = detections
            warnings = self._late_warnings()
        return late | ({"warnings": warnings} if warnings else {})

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
        inputs = input_entries(self._request, self.found_in_prompt) if self.found_in_prompt else []
        return {key: value for key, value in (("input", inputs), ("output", entries)) if value}

    def _late_place(self, known: ChoiceState) -> dict[str, Any]:
        """Which text of a choice the late findings belong to: all of it."""
        return {"start_index": 0, "processed_index": sum(map(len, known.reviewable))}

    def _late_warnings(self) -> list[dict[str, str]]:
        warnings: list[dict[str, str]] = [UNSUITABLE_INPUT] if self.found_in_prompt else []
        if self._reader.keeps_text and self._is_chat:
            words = self._dialect.empty_warning
            empty = [index for index in sorted(self._choices) if not self._choices[index].reviewable]
            warnings += [warn("EMPTY_OUTPUT", words.format(index)) for index in empty]
        found = [known.trailing or any(one["results"] for one in known.late) for known in self._choices.values()]
        if any(found):
            warnings.append(UNSUITABLE_OUTPUT)
        return warnings + self.warnings
