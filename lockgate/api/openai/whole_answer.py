# SPDX-License-Identifier: Apache-2.0
"""WholeAnswer: turns a whole upstream answer to a chat or text completion into one with findings."""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.api.guarded_answer import AnswerWriter
from lockgate.api.openai.deltas import (
    CALL_KEYS,
    CALLS_LANE,
    CONTENT,
    CONTENT_LANE,
    REFUSAL,
    list_lane_texts,
    list_unread_keys,
)
from lockgate.api.openai.envelope import FILTERED, Envelope
from lockgate.api.openai.format import (
    UNSUITABLE_INPUT,
    UNSUITABLE_OUTPUT,
    CompletionRequest,
    encode,
    to_plain_results,
    to_results,
    warn,
)
from lockgate.api.openai.request_fields import BODY
from lockgate.api.openai.tool_calls import (
    FUNCTION_CALL,
    JSON_CONTENT,
    TOOL_CALLS,
    CallReader,
    CallText,
    keep_calls_with_text,
    list_call_texts,
    list_labels,
    with_texts,
)
from lockgate.errors import BrokeProtocol
from lockgate.gate.coverage import Path, describe
from lockgate.gate.input_texts import locate
from lockgate.gate.messages import all_text_of, is_read
from lockgate.gate.receipts import RequestPart
from lockgate.gate.release import Release
from lockgate.gate.values import Conversation, Detection, Frame, Generated, Subject
from lockgate.gate.verdicts import Action, Verdict, put_fallback
from lockgate.guard.request import InputBlocked

_ANSWER_KEYS = ("id", "object", "created", "model", "choices", "usage", "prompt_logprobs")
_CHOICE_KEYS = ("index", "message", "text", "logprobs", "finish_reason", "stop_reason")


class Dialect(NamedTuple):
    """How the answers of chat and text completions differ."""

    kind: str
    is_chat: bool  # a choice has a message or a delta; else it has a text
    whole_object: str
    chunk_object: str
    last_keys: tuple[str, ...]
    empty_warning: str

    def say(self, text: str, key: str = "message") -> dict[str, Any]:
        """The part of a choice that holds this text; `key` is `delta` in a stream."""
        return {key: {"role": "assistant", "content": text}} if self.is_chat else {"text": text}


_EMPTY = "Choice of index {} has no content"
_UNREAD = f"{_EMPTY}. Output detection was not executed"
CHATS = Dialect("chat", True, "chat.completion", "chat.completion.chunk", ("prompt_logprobs",), _EMPTY)
TEXTS = Dialect("text", False, "text_completion", "text_completion", ("usage",), _UNREAD)


class WholeAnswer(AnswerWriter):
    """Turns an answer's choices into frames, collects their findings, and writes the answer."""

    def __init__(
        self,
        dialect: Dialect,
        request: CompletionRequest,
        *,
        has_guards: bool,
        fallback: str | None = None,
        lanes: frozenset[str] | None = None,
        envelope: Envelope | None = None,
    ) -> None:
        super().__init__()
        self.envelope = self._envelope = envelope
        self._is_json = envelope is not None and envelope.is_json
        self._dialect = dialect
        self._is_chat = dialect.is_chat
        self._request = request
        self._has_guards = has_guards
        self._fallback = fallback or ""
        self._hides = fallback is not None  # other fields must not show what was found either
        self._is_ruled = lanes is not None  # by a policy, which reads messages of any role
        self._named_lanes = lanes or frozenset()  # by a policy; without one only the content is read
        self._reads_content = lanes is None or CONTENT_LANE in lanes or not dialect.is_chat
        self._calls: dict[int, CallReader] = {}  # by lane
        self._message: dict[str, Any] = {}
        self.choices: list[dict[str, Any]] = []  # of the upstream answer
        self._lanes: list[tuple[int, str]] = []  # the place of the choice, and which of its texts
        self._texts: dict[int, dict[str, str]] = {}  # to be sent, if something is hidden
        self._released_chars: dict[tuple[int, str], int] = {}  # counted in characters of the model
        self._blocked: set[tuple[int, str]] = set()
        self._dropped: set[tuple[int, str]] = set()  # texts after one that is blocked, and those of refused calls
        self._refused: dict[int, dict[int | None, Action]] = {}  # calls by choice that are left out: their places
        self._found: dict[int, list[Detection]] = {}
        self._elsewhere: list[tuple[int, str, tuple[Detection, ...]]] = []  # findings in other texts than contents
        self._empty: list[int] = []
        self._reviewed: dict[int, Sequence[Detection]] = {}

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """One frame for each choice that has a text to read."""
        self._message = message
        self.choices = message["choices"]
        if self._envelope is not None:
            self._envelope.note(message, "message")
        for place, choice in enumerate(self.choices):
            if not isinstance(choice, dict):
                raise BrokeProtocol("openai", "a choice of the answer is no object")
            text = self._text_of(choice)
            if not self._is_read(choice):
                continue
            if not text:
                self._empty.append(place)
            yield from self._read_choice(place, choice, text if self._reads_content else "")

    def _text_of(self, choice: Mapping[str, Any]) -> str:
        """The content of a choice, whose shape is checked here."""
        if not self._is_chat:
            text = choice.get("text")
            if not isinstance(text, str):
                raise BrokeProtocol("openai", "a choice of the answer has no text")
            return text
        message = choice.get("message")
        if not isinstance(message, dict):
            raise BrokeProtocol("openai", "a choice of the answer has no message")
        if not isinstance(message.get("content"), str | list | None):
            raise BrokeProtocol("openai", "the content of a choice of the answer is no text")
        return all_text_of(message, of_any_role=self._is_ruled)

    def _is_read(self, choice: Mapping[str, Any]) -> bool:
        """Whether detectors read this choice: without a policy not where it is the message of a tool."""
        return self._is_ruled or not self._is_chat or is_read(choice["message"].get("role"))

    def _read_choice(self, place: int, choice: Mapping[str, Any], content: str) -> Iterable[Frame]:
        """The frames of a choice's texts, in the order of a stream: reasoning, content, refusal, tool calls."""
        message = choice["message"] if self._is_chat else {}
        texts = dict(list_lane_texts(message, self._named_lanes))
        refusal = texts.pop(REFUSAL, "")
        for field, text in {**texts, CONTENT: content, REFUSAL: refusal}.items():
            if text and field == CONTENT and self._is_json:
                yield from self._decode(place, field, JSON_CONTENT._replace(text=text))
            elif text:
                yield self._frame(place, field, text)
        for call in list_call_texts(message, is_whole=True) if CALLS_LANE in self._named_lanes else ():
            yield from self._decode(place, call.field, call)

    def _decode(self, place: int, field: str, call: CallText) -> Iterable[Frame]:
        """The frame of what detectors read of JSON, or of a custom tool's input."""
        reader = CallReader(call, None if self._envelope is None else self._envelope.numbers)
        if plain := reader.feed(call.text):
            self._calls[len(self._lanes)] = reader
            yield self._frame(place, field, plain)

    def is_content(self, lane: int) -> bool:
        """Whether a lane is the content of a choice."""
        return self._lanes[lane][1] == CONTENT

    def _frame(self, place: int, field: str, text: str) -> Frame:
        self._lanes.append((place, field))
        return Frame(place, text, len(self._lanes) - 1)

    def subjects(self) -> Iterable[tuple[int, Subject]]:
        """What reviewers read, by choice."""
        for place, choice in enumerate(self.choices):
            if self._is_chat:
                yield place, Conversation([*self._request.messages, choice["message"]], self._request.tools)
            elif choice["text"]:
                yield place, Generated(self._request.prompt, choice["text"])

    def note_reviews(self, choice: int, found: Sequence[Detection]) -> None:
        """Keep what reviewers found in a choice."""
        self._reviewed[choice] = found

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """A choice has been read; nothing is sent yet."""
        place, field = self._lanes[release.choice]
        if field == CONTENT:
            self._found.setdefault(place, []).extend(release.detections)
        elif release.detections:
            self._elsewhere.append((place, field, release.detections))
        if self._hides and (place, field) not in self._blocked:
            self._keep(release, verdict)
        return b""

    def _keep(self, release: Release, verdict: Verdict | None) -> None:
        """Keep what may be sent of a release; one that is blocked is the last of its text."""
        place, field = self._lanes[release.choice]
        text, kept = release.text, release.end - release.start
        if verdict is not None:
            kept = verdict.kept
            if verdict.is_blocked:
                self._blocked.add((place, field))
                text = verdict.body
        call = self._calls.get(release.choice)
        if call is not None:
            text = call.release(release, verdict, text)
        texts = self._texts.setdefault(place, {})
        texts[field] = texts.get(field, "") + text
        self._released_chars[place, field] = release.start + kept

    def _choice(self, place: int) -> dict[str, Any]:
        """The choice as it is sent."""
        choice = self.choices[place]
        if not (self._hides and self._is_read(choice)):
            return self._write_choice(choice)
        self._refuse_calls(place)
        texts, is_blocked = self._list_left(place)
        left = {"index": self._index_of(place), "logprobs": None}
        if self._is_chat:
            left["message"] = self._replace_texts(place, texts, is_blocked=is_blocked)
        else:
            left["text"] = texts.get(CONTENT, "")
        is_cut = is_blocked or place in self._refused  # clients look for calls at any other reason
        left["finish_reason"] = FILTERED if is_cut else choice.get("finish_reason")
        return self._write_choice(left)

    def _index_of(self, place: int) -> Any:
        index = self.choices[place].get("index", place)
        return index if type(index) is int or not self._hides else place

    def _refuse_calls(self, place: int) -> None:
        """Leave out the calls of tools whose names must not leave: their texts are not sent."""
        envelope = self._envelope
        if envelope is None or not self._is_chat or CALLS_LANE not in self._named_lanes:
            return
        for at, key, label in list_labels(self.choices[place]["message"], is_whole=True):
            action = envelope.judge_label(label) if key == "name" else Action.ANNOTATE
            if action is Action.ANNOTATE:
                continue
            envelope.note_left_out_call()
            self._refused.setdefault(place, {})[at] = action
            if self.account.receipt is not None:
                self.account.receipt.note_action(action)
            name = FUNCTION_CALL if at is None else f"{TOOL_CALLS}/{at}"
            texts = self._texts.get(place, {})
            fields = [field for field in texts if field.startswith(f"{name}/")]
            self._drop(place, fields)
            for field in fields:
                del texts[field]

    def _replace_texts(self, place: int, texts: Mapping[str, str], *, is_blocked: bool) -> dict[str, Any]:
        """The message of a choice with these texts, and nothing that could show the original ones."""
        message: Mapping[str, Any] = self.choices[place]["message"]
        left: dict[str, Any] = {} if self._envelope is None else self._envelope.keep_names(message)
        left["content"] = None if message.get("content") is None else ""
        plain = {field: text for field, text in texts.items() if "/" not in field}
        kept = list_unread_keys(self._named_lanes)
        calls: dict[str, Any] = {}
        if CALLS_LANE in self._named_lanes:
            kept -= CALL_KEYS
            calls = with_texts(message, texts, hides=True, is_whole=True, without=self._refused.get(place, ()))
        if is_blocked:
            return left | plain | keep_calls_with_text(calls)
        return left | {key: message[key] for key in message if key in kept} | plain | calls

    def _write_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The choice with the keys that clients expect, in their order, then all others."""
        first: dict[str, Any] = {"index": 0}
        for key in _CHOICE_KEYS:
            if key in choice or key not in ("message", "text", "index"):
                first[key] = choice.get(key)
        return first | {key: value for key, value in choice.items() if key not in first}

    def _list_left(self, place: int) -> tuple[dict[str, str], bool]:
        """The texts of a choice to send, and whether one is blocked: the fallback follows that one, and no other."""
        left: dict[str, str] = {}
        texts = self._texts.get(place, {})
        fields = [field for of_choice, field in self._lanes if of_choice == place and field in texts]
        for at, field in enumerate(fields):
            is_blocked = (place, field) in self._blocked
            if texts[field] or not is_blocked:
                left[field] = texts[field]
            if is_blocked:
                self._drop(place, fields[at + 1 :])
                return self._put_fallback(left), True
        if max(self._refused.get(place, {}).values(), default=Action.MASK) is not Action.MASK:
            calls = [field for field in fields if "/" in field]
            self._drop(place, calls)
            return self._put_fallback({field: text for field, text in left.items() if field not in calls}), True
        return left, False

    def _put_fallback(self, left: Mapping[str, str]) -> dict[str, str]:
        content = left.get(CONTENT, "")
        return {**left, CONTENT: content + put_fallback(self._fallback, has_left=bool(content))}

    def _drop(self, place: int, fields: Iterable[str]) -> None:
        """Do not send these texts after all: they are not counted, and their findings are not reported."""
        for field in fields:
            self._dropped.add((place, field))
            if self.account.receipt is not None:
                self.account.receipt.note_dropped(RequestPart.ANSWER, self._released_chars[place, field])

    def finish(self) -> bytes:
        """The answer."""
        answer = self._build_answer()
        self._elsewhere = [one for one in self._elsewhere if one[:2] not in self._dropped]
        for place in [place for place, field in self._dropped if field == CONTENT]:
            self._found.pop(place, None)
        if detections := self._detections():
            answer["detections"] = detections
        if warnings := self._warnings():
            answer["warnings"] = warnings
        self.account.add(answer)
        return encode(answer | self.account.tell())

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a prompt that is blocked."""
        answer = self._build_blocked(blocked, fallback)
        answer["warnings"] += self.warnings
        self.account.add(answer)
        return encode(answer | self.account.tell())

    def _build_blocked(self, blocked: InputBlocked, fallback: str) -> dict[str, Any]:
        return build_blocked(self._dialect, self._request, blocked, fallback)

    def _build_answer(self) -> dict[str, Any]:
        """The upstream answer as it is sent, without findings."""
        message = self._message
        answer = {key: message[key] for key in _ANSWER_KEYS if key in message}
        if not self._hides:
            answer |= {key: value for key, value in message.items() if key not in ("detections", "warnings")}
        choices = [self._choice(place) for place in range(len(self.choices))]
        if self._hides and self._envelope is not None:  # other fields of an answer may show the hidden text
            written = {"choices": choices} | ({"usage": message["usage"]} if "usage" in message else {})
            answer = self._envelope.close(written, kind=self._dialect.whole_object, model=self._request.model)
        else:
            answer["choices"] = choices
        for key in self._dialect.last_keys:
            answer.setdefault(key, None)
        return answer

    def _detections(self) -> dict[str, Any]:
        entries = []
        for place in range(len(self.choices)):
            results = to_results(sorted(self._found.get(place, ()), key=lambda one: one.start))
            results += to_plain_results(self._reviewed.get(place, ()))
            if results:
                entries.append({"choice_index": self._index_of(place), "results": results})
        for place, field, found in self._elsewhere:
            entries.append({"choice_index": self._index_of(place), "field": field, "results": to_results(found)})
        inputs = input_entries(self._request, self.found_in_prompt)
        return {key: value for key, value in (("input", inputs), ("output", entries)) if value}

    def _warnings(self) -> list[dict[str, str]]:
        warnings = [UNSUITABLE_INPUT] if self.found_in_prompt else []
        if self._has_guards:
            words = self._dialect.empty_warning
            warnings += [warn("EMPTY_OUTPUT", words.format(self._index_of(place))) for place in self._empty]
        if any(self._found.values()) or self._elsewhere:
            warnings.append(UNSUITABLE_OUTPUT)
        return warnings + self.warnings


def build_blocked(
    dialect: Dialect,
    request: CompletionRequest,
    blocked: InputBlocked,
    fallback: str,
) -> dict[str, Any]:
    """The answer to a blocked prompt, whole or as the one event of a stream; a policy adds its fallback."""
    choices: list[dict[str, Any]] = []
    if not blocked.input.is_refused:
        part = dialect.say(fallback, "delta" if request.is_stream else "message")
        choices = [{"index": 0, **part, "logprobs": None, "finish_reason": FILTERED, "stop_reason": None}]
    answer: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "object": dialect.chunk_object if request.is_stream else dialect.whole_object,
        "created": int(time.time()),
        "model": request.model,
        "choices": choices,
        "usage": {"prompt_tokens": blocked.tokens, "total_tokens": 0, "completion_tokens": 0},
    }
    if not request.is_stream:
        for key in dialect.last_keys:
            answer.setdefault(key, None)
    answer["detections"] = {"input": input_entries(request, blocked.input.found)}
    answer["warnings"] = [UNSUITABLE_INPUT]
    return answer


def _describe_place(path: Path) -> dict[str, Any]:
    """Where a text of the request stands: the index of its message, and its field unless that is its content."""
    place: dict[str, Any] = {}
    if path[0] == "messages" or path == ("prompt",):
        place["message_index"] = path[1] if len(path) > 1 else 0
    if path[2:] != ("content",) and path != ("prompt",):
        place["field"] = describe(path, BODY)
    return place


def input_entries(request: CompletionRequest, found: Sequence[Detection]) -> list[dict[str, Any]]:
    """What was found in the prompt."""
    if not found:
        return []
    if request.read:
        return [{**_describe_place(one.path), "results": to_results(own)} for one, own in locate(request.read, found)]
    place = len(request.messages) - 1 if "messages" in request.body else 0
    return [{"message_index": place, "results": to_results(found)}]
