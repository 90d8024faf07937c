# SPDX-License-Identifier: Apache-2.0
"""StreamReader: turns the messages of a streamed completion into frames, in the lanes of their texts."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockgate.api.openai.deltas import (
    CALL_KEYS,
    CALLS_LANE,
    CONTENT,
    CONTENT_LANE,
    PLAIN_KEYS,
    REASONING_KEYS,
    REASONING_LANE,
    REFUSAL,
    choice_of,
    list_lane_texts,
    list_unread_keys,
    merge_logprobs,
    with_delta,
)
from lockgate.api.openai.envelope import Envelope
from lockgate.api.openai.format import encode
from lockgate.api.openai.stream_order import StreamOrder
from lockgate.api.openai.tool_calls import (
    JSON_CONTENT,
    TOOL_CALLS,
    CallReader,
    CallText,
    has_name,
    list_call_texts,
    says_more,
    split_calls,
    take_labels,
    with_texts,
)
from lockgate.errors import BrokeProtocol, HeldTooMuch
from lockgate.gate.messages import is_read, merge_tool_calls
from lockgate.gate.values import Detection, Frame

_MAX_CHOICES = 128
_ENDING = ("finish_reason", "stop_reason")
_TEXT_LANES = frozenset({CONTENT_LANE, REASONING_LANE})
_OTHER_KEYS = REASONING_KEYS | {REFUSAL}  # of a delta: texts besides content and calls


class StreamOptions(NamedTuple):
    """What a policy, or a request's own detectors, require of a stream.

    `trailing`: detectors that report at the end. `holds`: text waits until it is read; else messages pass unchanged.
    `lanes`: what a policy reads; None without a policy. `hides`: text with findings must not be sent.
    """

    trailing: frozenset[str] = frozenset()
    has_reviews: bool = False
    hides: bool = False
    fallback: str = ""
    max_held_chars: int = 1_048_576
    lanes: frozenset[str] | None = None
    holds: bool = False
    is_shadow: bool = False
    envelope: Envelope | None = None


@dataclass(slots=True)
class Segment:
    """One lane: text of one field of a choice. `start`: where it begins in all text of this field.

    `call` reads the text if it is that of a tool call or JSON; `labels` are those of the call, `opening` its first
    messages while they wait for text of it.
    """

    lane: int
    choice: int
    field: str
    start: int = 0
    received: int = 0
    call: CallReader | None = None
    labels: dict[str, Any] | None = None
    opening: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)


@dataclass(slots=True)
class ChoiceState:
    """What is known of one choice."""

    base: dict[str, Any] = field(default_factory=dict)  # its latest message with text
    reviewable: list[str] = field(default_factory=list)  # its text, where detectors read it whole
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    labels: dict[int | None, dict[str, Any]] = field(default_factory=dict)  # of calls by place
    ids: dict[int, Any] = field(default_factory=dict)  # of calls by place
    places: dict[int, int] = field(default_factory=dict)  # of the latest call with an index, by that index
    is_read: bool = True
    open: dict[str, Segment] = field(default_factory=dict)  # by field
    ends: dict[str, int] = field(default_factory=dict)  # by field: where its latest segment ended
    latest: Segment | None = None  # lane of messages without text: the latest run, or the content
    trailing: list[Detection] | None = None
    late: list[dict[str, Any]] = field(default_factory=list)  # the same under a policy: entries by field
    textless: list[dict[str, Any]] = field(default_factory=list)  # their logprobs are sent with the next message
    role: dict[str, str] = field(default_factory=lambda: {"role": "assistant"})  # for the next delta


class StreamReader:
    """Reads the messages of one stream and knows its choices and segments.

    Without a policy each run of one kind of text is a segment; under a policy each field of a choice is one, from its
    first to its last piece, so that no finding is lost between two pieces.
    """

    def __init__(self, options: StreamOptions, order: StreamOrder, *, is_chat: bool) -> None:
        self._options = options
        self._order = order
        self._is_chat = is_chat
        self._is_ruled = options.lanes is not None
        self._heeds_roles = is_chat and not self._is_ruled  # a policy reads messages of any role
        self._lanes = lanes = _TEXT_LANES if options.lanes is None else options.lanes
        unread = list_unread_keys(lanes)
        self._reads_content = not is_chat or CONTENT_LANE in lanes
        self._reads_calls = is_chat and CALLS_LANE in lanes
        self._unread = (_OTHER_KEYS | CALL_KEYS) & unread if self._is_ruled else frozenset()
        self._envelope = options.envelope
        self._is_json = options.envelope is not None and options.envelope.is_json
        self._is_simple = is_chat and self._reads_content and not self._is_json
        self._keeps_logprobs = not options.hides
        self._kept_chars = 0
        self._number = -1  # of the current message
        self._frames: list[Frame] = []  # of the current message
        self.guarded = _OTHER_KEYS - unread  # keys of a delta that are sent as separate texts or not at all
        self.kept = unread if options.hides else None  # keys that may be sent unread; None: all may
        self.keeps_text = options.has_reviews or bool(options.trailing)  # detectors read it whole
        self.first: dict[str, Any] = {}
        self.usage: Any = None
        self.choices: dict[int, ChoiceState] = {}
        self.segments: list[Segment] = []

    def choose(self) -> Callable[[dict[str, Any]], Iterable[Frame]]:
        """The method that reads messages under these options."""
        if self._options.holds:
            return self.read_held
        if self._is_ruled:
            self.segments.append(Segment(0, 0, ""))  # the lane in which messages pass
            return self.read_beside
        return self.read_along if self.keeps_text else self.pass_on

    # Messages that pass unchanged.

    def pass_on(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message in one frame, unread."""
        self._number = number = self._number + 1
        return (Frame(number, "", 0, message),)

    def read_along(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message as frames with its text, in the lanes of its choices."""
        self._number = number = self._number + 1
        frames = []
        for index, choice, own in self._split(message):
            text = self._text_of(choice)
            known = self._remember(index, choice, text)
            frames.append(Frame(number, text if known.is_read else "", index, own))
        return frames or (Frame(number, "", next(reversed(self.choices), 0), message),)

    def read_beside(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message without text in the first lane, and its texts in their lanes."""
        self._number += 1
        self._frames = [Frame(self._number, "", 0, message)]
        for index, choice, _ in self._split(message):
            text = self._text_of(choice)
            if not self._remember(index, choice, text).is_read:
                continue
            if text and self._reads_content:
                self._emit(self._find_segment(index, CONTENT), text)
            delta = choice.get("delta")
            if self._is_chat and isinstance(delta, dict):
                self._add_others(index, delta)
                for call in list_call_texts(delta) if self._reads_calls else ():
                    segment = self._find_segment(index, call.field)
                    segment.call = segment.call or CallReader(call, is_held=False)
                    self._emit(segment, segment.call.feed(call.text))
        return self._frames

    # Messages whose text is held.

    def read_held(self, message: dict[str, Any]) -> Iterable[Frame]:
        """The message as frames in the lanes of its texts; the frame of its content has the message too."""
        self._number += 1
        if self._is_simple:
            frame = self._continue(message)
            if frame is not None:
                return (frame,)
        self._frames = []
        for index, choice, own in self._split(message):
            self._add(index, choice, own)
        return self._frames

    def _continue(self, message: dict[str, Any]) -> Frame | None:
        """The frame of a message that only continues the content of its choice, as is usual; else None."""
        choices = message["choices"]
        if len(choices) != 1 or type(choices[0]) is not dict:
            return None
        choice: dict[str, Any] = choices[0]
        delta, index = choice.get("delta"), choice.get("index", 0)
        known = self.choices.get(index) if type(index) is int else None
        if type(delta) is not dict or len(delta) != 1 or known is None or known.latest is None:
            return None
        text, segment = delta.get(CONTENT), known.latest
        if type(text) is not str or not text or segment.field != CONTENT or not known.is_read or known.textless:
            return None
        if self._is_ruled and choice.get("finish_reason") is not None:
            return None
        envelope = self._envelope
        if envelope is not None and ((len(message), len(choice)) != envelope.sizes or choice.get("logprobs")):
            envelope.note(message)
        if self.keeps_text:
            self._keep_text(known, text)
        known.base = message
        segment.received += len(text)
        return Frame(self._number, text, segment.lane, message)

    def _add(self, index: int, choice: dict[str, Any], own: dict[str, Any]) -> None:
        """Add the frames of a message with one choice."""
        text = self._text_of(choice)
        known = self._remember(index, choice, text)
        if not self._is_chat and "delta" in choice:
            rest = {key: value for key, value in choice.items() if key != "delta"}  # only chats have it
            own = {**own, "choices": [rest]}
        if self._is_ruled:
            own = self._keep_ending(index, own, has_text=bool(text))
        whole = own
        calls: Sequence[dict[str, Any]] = ()
        if self._is_chat and known.is_read:
            self._add_others(index, choice_of(own).get("delta"))
            own, calls = self._take_calls(known, own)
        if text and known.is_read and self._reads_content:
            own = self._add_unread(index, own)
            known.base = own = self._with_earlier_logprobs(known, own)
            segment = self._find_segment(index, CONTENT)
            if self._is_json:
                text = self._decode(segment, JSON_CONTENT, text)
            self._emit(segment, text, own if text else None)
        elif not self.is_empty(choice_of(own), known):
            if self._is_ruled:
                known.base = known.base or own
            self._emit(known.latest or self._open(index, CONTENT), "", self._with_earlier_logprobs(known, own))
        elif self._keeps_logprobs and choice_of(own).get("logprobs"):
            self._order.hold(1)
            known.textless.append(own)
        for call in calls:
            self._add_call(index, call, whole)
        if known.textless and index in self._order.endings:
            self._order.endings[index] = self._with_earlier_logprobs(known, self._order.endings[index])

    def _keep_ending(self, index: int, own: dict[str, Any], *, has_text: bool) -> dict[str, Any]:
        """The message without its choice's end, which is written last."""
        choice = choice_of(own)
        if choice.get("finish_reason") is None:
            return own
        empty: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
        kept = {} if self.kept is not None or has_text else choice
        ending = {**kept, "index": index, **empty, "logprobs": None, **{key: choice.get(key) for key in _ENDING}}
        self._order.endings[index] = {**own, "choices": [ending]}
        rest = {key: value for key, value in own.items() if key != "usage"}
        return rest | {"choices": [{**choice, **dict.fromkeys(_ENDING)}]}

    def _add_others(self, index: int, delta: Any) -> None:
        """Add the frames of texts besides content and calls."""
        for name, text in list_lane_texts(delta, self._lanes) if isinstance(delta, dict) else ():
            self._emit(self._find_segment(index, name), text)

    def _take_calls(self, known: ChoiceState, own: dict[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
        """The message without the calls that are read, and these calls."""
        choice = choice_of(own)
        delta = choice.get("delta")
        if not (self._reads_calls and isinstance(delta, dict) and any(delta.get(key) for key in CALL_KEYS)):
            return own, ()
        rest = {key: value for key, value in delta.items() if key not in CALL_KEYS}
        calls = [self._place_call(known, call) for call in split_calls(delta)]
        return {**own, "choices": [{**choice, "delta": rest}]}, calls

    def _place_call(self, known: ChoiceState, call: dict[str, Any]) -> dict[str, Any]:
        """The call at its own index: some servers give several calls the same one, or none; their ids differ."""
        if TOOL_CALLS not in call:
            return call
        [one] = call[TOOL_CALLS]
        given, label = one["index"], one.get("id")
        place = known.places.get(given, given)
        if label and has_name(one):
            if known.ids.get(place, label) != label:
                place = max(known.ids) + 1
            known.ids[place] = label
            known.places[given] = place
        return call if place == given else {TOOL_CALLS: [{**one, "index": place}]}

    def _add_call(self, index: int, call: dict[str, Any], own: dict[str, Any]) -> None:
        """Add the frames of a call, in its own lane: its name comes before its text."""
        known = self.choices[index]
        texts = list(list_call_texts(call))
        labels = known.labels.setdefault(texts[0].place, {})
        if self._options.hides:
            call = take_labels(call, labels)
        names = with_texts(call, {}, hides=self._options.hides) if says_more(call) else {}
        named = with_delta(own, names) if says_more(names) else None
        known.base = known.base or with_delta(own, {})
        for text in texts:
            segment = self._find_segment(index, text.field)
            if segment.call is None:
                segment.labels = labels
                content = known.open.get(CONTENT)
                self._order.enqueue(index, segment.lane, after=content.received if content is not None else 0)
            self._emit(segment, "", named)
            named = None
            self._emit(segment, self._decode(segment, text, text.text))

    def _decode(self, segment: Segment, call: CallText, text: str) -> str:
        """The text that detectors read of a piece of JSON, or of a custom tool's input."""
        if segment.call is None:
            segment.call = CallReader(call, None if self._envelope is None else self._envelope.numbers)
        plain = segment.call.feed(text)
        if segment.call.held > self._options.max_held_chars:
            raise HeldTooMuch(f"more than {self._options.max_held_chars} characters wait for a detector")
        return plain

    def _add_unread(self, index: int, own: dict[str, Any]) -> dict[str, Any]:
        """Add a frame of the fields that no detector reads; return the message without them."""
        delta = choice_of(own).get("delta") or {}
        unread = {key: value for key, value in delta.items() if key in self._unread and value}
        if not unread:
            return own
        self._emit(self._find_segment(index, CONTENT), "", with_delta(own, unread))
        rest = {key: value for key, value in delta.items() if key not in unread}
        return {**own, "choices": [{**choice_of(own), "delta": rest}]}

    def _with_earlier_logprobs(self, known: ChoiceState, own: dict[str, Any]) -> dict[str, Any]:
        """The message with the logprobs of those before it that had no text: a token may be part of a character."""
        if not known.textless:
            return own
        messages = [*known.textless, own]
        self._order.hold(-len(known.textless))
        known.textless = []
        merged = merge_logprobs(messages, is_chat=self._is_chat)
        return {**own, "choices": [{**choice_of(own), "logprobs": merged}]}

    def is_empty(self, choice: Mapping[str, Any], known: ChoiceState) -> bool:
        """Whether a message without text to read has nothing to pass on: at most a role."""
        if choice.get("finish_reason") is not None:
            return False
        if not self._is_chat:
            return True
        delta = choice.get("delta") or {}
        if delta.get(CONTENT) and not (known.is_read and self._reads_content):
            return False
        return all(key in PLAIN_KEYS or key in self.guarded or not value for key, value in delta.items())

    # Segments.

    def _emit(self, segment: Segment, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """Add a frame, unless it has neither text nor fields."""
        if text or fields is not None:
            segment.received += len(text)
            self._frames.append(Frame(self._number, text, segment.lane, fields))

    def _find_segment(self, index: int, name: str) -> Segment:
        return self.choices[index].open.get(name) or self._open(index, name)

    def _open(self, index: int, name: str) -> Segment:
        """Open a segment. A run before it is complete, so its held text need not wait for more."""
        known = self.choices[index]
        segment = Segment(len(self.segments), index, name)
        if not self._is_ruled:
            for before in known.open.values():
                self._frames.append(Frame(self._number, "", before.lane, None, is_last=True))
                known.ends[before.field] = before.start + before.received
            known.open.clear()
            segment.start = known.ends.get(name, 0)
            self._order.enqueue(index, segment.lane)
        known.open[name] = segment
        if name == CONTENT or not self._is_ruled:
            known.latest = segment
        self.segments.append(segment)
        return segment

    # Choices of messages.

    def _split(self, message: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any], dict[str, Any]]]:
        """The choices of a message, each with a message that has no other; one without choices may have the usage."""
        choices = message["choices"]
        if self._envelope is not None:
            self._envelope.note(message)
            message = self._envelope.without_report(message)
        self.first = self.first or message
        if not choices and message.get("usage") is not None:
            self.usage = message["usage"]
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
        """Note the role, the tool calls and the text of a choice."""
        known = self.choices.get(index)
        if known is None:
            if len(self.choices) >= _MAX_CHOICES:
                raise BrokeProtocol("openai", f"the model gives more than {_MAX_CHOICES} choices")
            known = self.choices[index] = ChoiceState()
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if self._heeds_roles and "role" in delta:
                known.is_read = is_read(delta["role"])
            if self._options.has_reviews and isinstance(delta.get("tool_calls"), list):
                self._count_kept(len(encode(delta["tool_calls"])))
                merge_tool_calls(known.calls, delta["tool_calls"])
        if text and self.keeps_text:
            self._keep_text(known, text)
        return known

    def _keep_text(self, known: ChoiceState, text: str) -> None:
        self._count_kept(len(text))
        known.reviewable.append(text)

    def _count_kept(self, chars: int) -> None:
        """Count text that detectors read whole, which is limited like held text."""
        self._kept_chars += chars
        limit = self._options.max_held_chars
        if self._kept_chars > limit * len(self.choices):
            raise HeldTooMuch(f"more than {limit} characters wait for a detector")
