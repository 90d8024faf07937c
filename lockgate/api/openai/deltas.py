# SPDX-License-Identifier: Apache-2.0
"""Messages of a streamed completion: reads their parts, and joins those that are sent together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CONTENT, REASONING, REFUSAL = "content", "reasoning_content", "refusal"
REASONING_KEYS = frozenset({REASONING, "reasoning"})
CALL_KEYS = frozenset({"tool_calls", "function_call"})
CONTENT_LANE, REASONING_LANE, CALLS_LANE = "content", "reasoning", "tool_arguments"  # as policies call them
ALL_LANES = frozenset({CONTENT_LANE, REASONING_LANE, CALLS_LANE})
PLAIN_KEYS = frozenset({"role", CONTENT})
EVENT_KEYS = ("id", "object", "created", "model", "system_fingerprint", "choices", "service_tier", "usage")
_CHAT_LOGPROBS = ("content", "refusal")
_TEXT_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def list_lane_texts(message: Mapping[str, Any], lanes: frozenset[str]) -> Iterable[tuple[str, str]]:
    """The texts of a message or a delta that lanes read, by field, except content and calls."""
    thoughts = message.get(REASONING) or message.get("reasoning")
    texts = ((REASONING, REASONING_LANE, thoughts), (REFUSAL, CONTENT_LANE, message.get(REFUSAL)))
    return [(field, text) for field, lane, text in texts if lane in lanes and isinstance(text, str) and text]


def list_unread_keys(lanes: frozenset[str]) -> frozenset[str]:
    """The keys of a message or a delta that lanes leave unread; calls always, as their names are not read."""
    unread = set(CALL_KEYS)
    if REASONING_LANE not in lanes:
        unread |= REASONING_KEYS
    if CONTENT_LANE not in lanes:
        unread |= {CONTENT, REFUSAL}
    return frozenset(unread)


def choice_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice of a message that has one."""
    choice: Mapping[str, Any] = message["choices"][0]
    return choice


def has_finish(message: Mapping[str, Any]) -> bool:
    """Whether the message ends its choice."""
    return choice_of(message).get("finish_reason") is not None


def add_extras(
    delta: dict[str, Any],
    messages: Sequence[Mapping[str, Any]],
    *,
    guarded: frozenset[str],
    keeps: frozenset[str] | None = None,
) -> None:
    """Add what the messages' deltas hold besides text: lists are joined, of other values the last one stays.

    Keys in `guarded` are sent separately, if at all; of the others those in `keeps` are added, or all without it.
    """
    for message in messages:
        own = choice_of(message).get("delta") or {}
        if len(own) == 1 and CONTENT in own:  # as in nearly every message
            continue
        for key, value in own.items():
            if key in PLAIN_KEYS or key in guarded or value is None:
                continue
            if keeps is not None and key not in keeps:
                continue
            delta[key] = [*delta[key], *value] if isinstance(delta.get(key), list) else value


def merge_logprobs(messages: Sequence[Mapping[str, Any]], *, is_chat: bool) -> dict[str, Any] | None:
    """The logprobs of messages, joined."""
    keys = _CHAT_LOGPROBS if is_chat else _TEXT_LOGPROBS
    merged: dict[str, list[Any]] = {} if is_chat else {key: [] for key in keys}
    for message in messages:
        logprobs = choice_of(message).get("logprobs")
        if not isinstance(logprobs, dict):
            continue
        for key in keys:
            if isinstance(logprobs.get(key), list):
                merged.setdefault(key, []).extend(logprobs[key])
    return merged if any(merged.values()) else None


def without_secrets(choice: Mapping[str, Any], keeps: frozenset[str]) -> dict[str, Any]:
    """The choice of a message without text, and without all fields that may show hidden text."""
    kept = {key: choice.get(key) for key in ("index", "finish_reason", "stop_reason")}
    if "delta" not in choice:
        return kept | {"text": "", "logprobs": None}
    delta = {key: value for key, value in (choice["delta"] or {}).items() if key in keeps}
    return kept | {"delta": delta, "logprobs": None}


def with_delta(message: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """The message with only this delta."""
    rest = {key: value for key, value in message.items() if key != "usage"}
    return rest | {"choices": [{**choice_of(message), "delta": dict(delta), "logprobs": None}]}


def without_text(message: Mapping[str, Any], *, keeps_calls: bool = True) -> dict[str, Any]:
    """The message without its text; without `keeps_calls` it only ends its choice."""
    choice = choice_of(message)
    if "delta" in choice:
        delta = choice["delta"] if keeps_calls else {}
        return with_delta(message, {key: value for key, value in delta.items() if key not in PLAIN_KEYS})
    rest = {key: value for key, value in message.items() if key != "usage"}  # it was sent with the text
    return rest | {"choices": [{**choice, "text": "", "logprobs": None}]}
