# SPDX-License-Identifier: Apache-2.0
"""Chooses the messages and texts of a chat that detectors read, by role and content (ADR 009).

Detectors that a request itself names read the last message of the input, if its role is user, assistant or system, and
every choice of the output, unless its role is a tool's. Messages are plain maps; other fields are ignored. Under a
policy all texts are read: `lockgate.gate.coverage`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lockgate.errors import InvalidRequest

READ_ROLES = frozenset({"user", "assistant", "system"})
TOOL_ROLES = frozenset({"tool", "function"})
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_last_content(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequest unless the last message has text as a string."""
    content = messages[-1].get("content")
    if isinstance(content, list):
        raise InvalidRequest("Detection on array is not supported")
    if not content:
        raise InvalidRequest("if input detectors are provided, `content` must not be empty on last message")


def check_last_role(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequest unless detectors read messages with the last message's role."""
    if messages[-1].get("role") not in READ_ROLES:
        raise InvalidRequest("Last message role must be user, assistant, or system")


def check_reviewable(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequest unless every message has content or tool calls, and content only as text."""
    for message in messages:
        content = message.get("content")
        if content is None and message.get("tool_calls") is None:
            raise InvalidRequest("Message content cannot be empty")
        if isinstance(content, list) and any(part.get("type") != "text" for part in content):
            raise InvalidRequest("Only content of type text is allowed")


def is_read(role: object) -> bool:
    """Returns whether detectors of contents read an output with this role; a missing role counts as `assistant`."""
    return not (isinstance(role, str) and role in TOOL_ROLES)


def text_of(message: Mapping[str, Any]) -> str:
    """Returns the text of a message that detectors read: its content, or its first part with text."""
    if not is_read(message.get("role")):
        return ""
    content = message.get("content")
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str) and text:
            return text
    return ""


def all_text_of(message: Mapping[str, Any], between: str = "", *, of_any_role: bool = False) -> str:
    """Returns all text of a message that detectors read; texts of parts are joined."""
    content = message.get("content") if of_any_role or is_read(message.get("role")) else None
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, dict)] if isinstance(content, list) else []
    return between.join([text for text in texts if isinstance(text, str) and text])


def merge_tool_calls(calls: dict[int, dict[str, Any]], deltas: Sequence[Any]) -> None:
    """Merges streamed deltas into tool calls: servers send ids and names once, and arguments in pieces.

    Servers send deltas in many shapes; an unknown shape is not merged.
    """
    for delta in deltas:
        if not isinstance(delta, Mapping):
            continue
        index = delta.get("index")
        call = calls.setdefault(index if isinstance(index, int) else 0, {})
        if isinstance(index, int):
            call["index"] = index
        for key in ("id", "type"):
            if delta.get(key):
                call[key] = delta[key]
        for kind, piece in (("function", "arguments"), ("custom", "input")):
            if isinstance(delta.get(kind), Mapping):
                _merge_part(call, kind, piece, delta[kind])


def _merge_part(call: dict[str, Any], kind: str, piece: str, delta: Mapping[str, Any]) -> None:
    part = call.setdefault(kind, {piece: ""})
    call["type"] = kind
    if delta.get("name"):
        part["name"] = delta["name"]
    words = delta.get(piece) or ""
    part[piece] += words if isinstance(words, str) else json.dumps(words)
