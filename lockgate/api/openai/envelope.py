# SPDX-License-Identifier: Apache-2.0
"""Envelope: the fields of a completion besides its texts, under a policy.

Numbers, booleans and words of a closed list are technical. Names, ids and other strings of known fields are read by the
detectors of the answer; where the policy hides text, one with a finding is left out, and an id gets a new value.
All other fields are left out there, and elsewhere passed and counted as not read.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lockgate.api.openai.deltas import (
    ALL_LANES,
    CALL_KEYS,
    CALLS_LANE,
    CONTENT,
    PLAIN_KEYS,
    REASONING_KEYS,
    REFUSAL,
    list_unread_keys,
)
from lockgate.api.openai.tool_calls import list_labels
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.arguments import Numbers
from lockgate.gate.receipts import Receipt
from lockgate.gate.verdicts import Action

FILTERED = "content_filter"
_HEAD = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_REPORTED = ("detections", "warnings")
_REPORT = ("usage", *_REPORTED)
_TOP = frozenset({*_HEAD, *_REPORT, "choices"})
_CHOICE = frozenset({"index", "delta", "message", "text", "finish_reason", "stop_reason"})
_PART = PLAIN_KEYS | CALL_KEYS | REASONING_KEYS | {REFUSAL, "name", "tool_call_id"}  # of a message or delta
_USUAL = ("finish_reason", "stop_reason", "logprobs")
_OBJECTS = frozenset({"chat.completion", "chat.completion.chunk", "text_completion"})
_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "standard", "batch", "on_demand"})
_ROLES = frozenset({"assistant", "user", "system", "developer", "tool", "function"})
_REASONS = frozenset(
    {"stop", "length", "tool_calls", FILTERED, "function_call", "abort", "error", "eos", "eos_token", "stop_sequence"}
)
_TECHNICAL = _OBJECTS | _TIERS | _REASONS  # words that no detector reads
_REPLACED = ("id", "model", "object")  # clients need them
_TEXT_PART = frozenset({"type", "text"})  # of content in a list
NAMES = ("name", "tool_call_id")  # of a message
_COUNTERS = frozenset(
    {
        *("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"),
        *("cached_tokens", "audio_tokens", "text_tokens", "image_tokens", "reasoning_tokens"),
        *("accepted_prediction_tokens", "rejected_prediction_tokens"),
    }
)
# Fields that a receipt may name: the name of any other field may be what a policy hides.
_NAMED = frozenset(
    {
        *("logprobs", "prompt_logprobs", "annotations", "audio", "citations", "name", "tool_call_id", "tool_calls"),
        *("function_call", "content", "reasoning", "reasoning_content", "reasoning_details", "refusal", "images"),
        *("prompt_filter_results", "content_filter_results", "provider", "role", "kv_transfer_params"),
        *("token_ids", "prompt_token_ids", "parsed", "thinking", "citation_metadata", "search_results"),
    }
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_LABEL = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # of a tool call: its id, and the name of its tool
_COUNTER = re.compile(r"[a-z0-9_]{1,64}")


class Envelope:
    """The envelope of one answer, streamed or whole. `lanes` are those that the policy reads.

    `is_json`: content that is masked stays JSON, as it was asked for. `receipt` and `numbers`, which makes up numbers
    in place of hidden ones, are those of the request. `sizes`: of a message and its choice that need not be noted,
    if it only continues the content: it has as many fields as the one before it, which are left out if unknown.
    """

    def __init__(
        self, fields: AnswerFields, *, hides: bool, lanes: frozenset[str] = ALL_LANES, is_json: bool = False
    ) -> None:
        self.fields = fields
        self.receipt = Receipt()
        self.numbers: Numbers | None = None
        self.is_json = is_json and hides
        self.sizes = (-1, -1)
        self._hides = hides
        self._passing = list_unread_keys(lanes) - (CALL_KEYS if CALLS_LANE in lanes else frozenset())
        self._head: dict[str, Any] = {}
        self._built: dict[str, Any] | None = None
        self._is_complete = False
        self._size = 0  # of the latest message
        self._keys: Any = None  # of the latest message, if all are known
        self._latest: list[Any] = []  # the values of its head
        self._usual: dict[str, Any] = {}  # its choice without its part, as it is in a message that continues a text
        self._counted: set[str] = set()
        self._ids: dict[str, str] = {}  # new ids by the model's

    # Reading.

    def note(self, message: Mapping[str, Any], part_key: str = "delta") -> None:
        """Lets the detectors read the strings of a message that are no texts; counts unknown fields."""
        choices, usage = message["choices"], message.get("usage")
        values = list(map(message.get, _HEAD))
        if not usage and message.keys() == self._keys and values == self._latest and self._is_usual(choices, part_key):
            return
        self._latest = values.copy()
        for key in _HEAD if not self._is_complete else ():
            if key in message and not self._head.get(key):
                self._head[key], self._built = message[key], None
        if self._hides:  # others are left out
            values = list(self._head.values())
        self._size, self._is_complete = len(message), bool(self._head.get("id") and self._head.get("model"))
        self._count("", message, _TOP)
        if usage:
            values += _list_names(usage)
            if type_usage(usage, lambda _: True) != usage:
                self._note("usage")
        self._keys = message.keys() if _TOP.issuperset(message) else None
        for choice in choices:
            if isinstance(choice, dict):
                self._usual = {key: None for key in choice if key in _USUAL} | {"index": choice.get("index")}
                values += self._note_choice(choice, choice.get(part_key))
        for value in values:
            if type(value) is str and value not in _TECHNICAL and not self.fields.add(value) and not self._hides:
                self._note("other")

    def without_report(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the message without findings of the model's server: clients would take them for the policy's."""
        reported = [key for key in _REPORTED if key in message]
        for key in reported:
            if key not in self._counted:
                self._counted.add(key)
                self.receipt.note_left_out(key)
        return {key: value for key, value in message.items() if key not in _REPORTED} if reported else message

    def _is_usual(self, choices: list[Any], part_key: str) -> bool:
        """Whether a message has one choice, which only continues the content as those before it did."""
        choice = choices[0] if len(choices) == 1 else None
        part = choice.get(part_key) if type(choice) is dict else None
        return type(part) is dict and len(part) == 1 and CONTENT in part and choice == {**self._usual, part_key: part}

    def _note_choice(self, choice: Mapping[str, Any], part: Any) -> list[Any]:
        """Counts unknown fields of a choice; returns the values to be read."""
        if self._is_complete and self._hides:
            self.sizes = (self._size, len(choice))
        self._count("choices[].", choice, _CHOICE)
        values = [choice.get("finish_reason"), choice.get("stop_reason")]
        if isinstance(part, dict):
            values += [part.get(key) for key in NAMES]
            self._count("choices[].message.", part, _PART)
            if "tool_calls" not in self._passing and any(part.get(key) for key in CALL_KEYS):
                values += [one for _, _, one in list_labels(part) if type(one) is str and _LABEL.fullmatch(one)]
        return values

    def _count(self, prefix: str, values: Mapping[str, Any], known: frozenset[str]) -> None:
        for key, value in values.items():
            if key in self._passing and prefix.endswith("message.") and value and key not in self._counted:
                self._counted.add(key)
                self.receipt.note_unread(key)
            elif key == "content" and isinstance(value, list) and not all(map(_is_text_part, value)):
                self._note("choices[].message.content")
            elif key not in known and value and isinstance(value, str | dict | list):
                is_named = key in _NAMED or (not self._hides and _PLAIN_NAME.fullmatch(key) is not None)
                self._note(prefix + (key if is_named else "other"))

    def _note(self, name: str) -> None:
        """Counts a field that is left out, or goes on unread; of a stream once."""
        if name not in self._counted:
            self._counted.add(name)
            (self.receipt.note_left_out if self._hides else self.receipt.note_unread)(name)

    # Writing, where the policy hides text.

    def close(self, event: Mapping[str, Any], *, kind: str, model: str) -> dict[str, Any]:
        """The event with nothing but its choices and report, technical fields, and strings that were read."""
        if self._built is None:
            self._built = self._build_head(kind, model)
        closed = {**self._built, "choices": [self._close_choice(one) for one in event["choices"]]}
        for key in _REPORT:
            if key in event:
                closed[key] = type_usage(event[key], self._is_cleared) if key == "usage" else event[key]
        return closed

    def _build_head(self, kind: str, model: str) -> dict[str, Any]:
        head: dict[str, Any] = {}
        for key, value in self._head.items():
            is_number = key == "created" and type(value) in (int, float)
            if not value or is_number or self._may_leave(key, value):
                head[key] = value or None
            elif key in _REPLACED:
                head[key] = {"id": uuid.uuid4().hex, "model": model, "object": kind}[key]
        return head

    def _close_choice(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """The choice with its reasons and the labels of its calls as they may leave."""
        part = choice.get("delta") or choice.get("message") or {}
        has_calls = "tool_calls" not in self._passing and part.get("tool_calls")
        reasons = [(key, choice[key]) for key in ("finish_reason", "stop_reason") if choice.get(key) is not None]
        if not (reasons or has_calls):
            return choice
        closed = dict(choice)
        for key, reason in reasons:
            if not (type(reason) is int or self._may_leave(f"choices[].{key}", reason)):
                closed[key] = "stop" if key == "finish_reason" else None
        if has_calls:
            name = "delta" if "delta" in choice else "message"
            closed[name] = {**part, "tool_calls": [self._close_call(one) for one in part["tool_calls"]]}
        return closed

    def _close_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        closed = {key: value for key, value in call.items() if key != "index" or type(value) is int}
        if "type" in call:
            closed["type"] = "custom" if call["type"] == "custom" else "function"
        label = call.get("id")
        if self.judge_label(label) is not Action.ANNOTATE:
            self._note("tool_calls[].id")
            closed["id"] = self._ids.setdefault(str(label), f"call_{uuid.uuid4().hex}")
        return closed

    def judge_label(self, label: Any) -> Action:
        """Returns the action on the id of a call or the name of its tool; ANNOTATE lets it leave."""
        if not label:
            return Action.ANNOTATE
        return self.fields.find_action(label) if type(label) is str and _LABEL.fullmatch(label) else Action.MASK

    def note_left_out_call(self) -> None:
        """Counts a call that is left out because of the name of its tool."""
        self._note("tool_calls[].name")

    def keep_names(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the role, the name and the id of a message as they may leave."""
        role = message.get("role", "assistant")
        kept = {"role": role if type(role) is str and role in _ROLES else "assistant"}
        return kept | {key: message[key] for key in NAMES if key in message and self._may_leave(key, message[key])}

    def _may_leave(self, name: str, value: Any) -> bool:
        """Returns whether a string is technical, or was read; counts it as left out if not."""
        if value is None:
            return True
        if type(value) is str and (value in _TECHNICAL or self._is_cleared(value)):
            return True
        self._note(name)
        return False

    def _is_cleared(self, value: str) -> bool:
        return self.fields.find_action(value) is Action.ANNOTATE


def _is_text_part(part: Any) -> bool:
    """Whether a part of content is nothing but a text, which detectors read."""
    if not (isinstance(part, dict) and part.keys() <= _TEXT_PART):
        return False
    return part.get("type", "text") == "text" and isinstance(part.get("text", ""), str)


def asks_for_json(body: Mapping[str, Any]) -> bool:
    """Returns whether a request asks for content that is JSON."""
    form = body.get("response_format")
    return isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")


def type_usage(usage: Any, is_cleared: Callable[[str], bool], depth: int = 3) -> Any:
    """Returns the counters of a usage: numbers under known names, or under names that may leave."""
    if not isinstance(usage, dict) or not depth:
        return None
    typed: dict[str, Any] = {}
    for key, value in usage.items():
        if key in _COUNTERS or (_COUNTER.fullmatch(key) and is_cleared(key)):
            if isinstance(value, dict):
                typed[key] = type_usage(value, is_cleared, depth - 1)
            elif value is None or isinstance(value, int | float):
                typed[key] = value
    return typed


def _list_names(usage: Any, depth: int = 3) -> Iterable[str]:
    """The names of counters that are not known."""
    for key, value in usage.items() if isinstance(usage, dict) and depth else ():
        if key not in _COUNTERS and _COUNTER.fullmatch(key):
            yield key
        yield from _list_names(value, depth - 1)
