# SPDX-License-Identifier: Apache-2.0
"""What a request for a turn carries besides the question, and the agent's own messages on gRPC.

Decides what is wrong with a field, in words for the caller. Refuses to know what becomes of it.
"""

import base64
import binascii
import json
from typing import NamedTuple

from lockgate.core.routes import Editor
from lockgate.errors import InvalidRequest
from lockgate.wire.protos.assistance_pb2 import AgentRequest

MAX_SESSION_CHARS = 256
_MAX_REQUEST_ID_CHARS = 200


class Asked(NamedTuple):
    """A request, read."""

    query: str
    session_id: str
    editor: Editor
    account: str
    query_type: str


def read_agent_request(request: AgentRequest) -> Asked:
    """The request; raises InvalidRequest."""
    if not request.query.strip():
        raise refuse("query", "must not be empty")
    check_session_id(request.session_id)
    editor = Editor(
        decode_text("editor_content", request.editor_content),
        decode_text("selected_text", request.selected_text),
        decode_text("extra_context", request.extra_context),
    )
    if request.user_info:
        check_json("user_info", request.user_info)
    return Asked(request.query, request.session_id, editor, request.user_info, request.query_type)


def check_session_id(session_id: str) -> None:
    """A session's id is short and visible."""
    if len(session_id) > MAX_SESSION_CHARS:
        raise refuse("session_id", f"must have at most {MAX_SESSION_CHARS} characters")
    if not session_id.isprintable():
        raise refuse("session_id", "must have visible characters only")


def decode_text(name: str, value: str) -> str:
    """The text that a field holds in base64, in the standard alphabet and with padding; nothing for nothing."""
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise refuse(name, "is not base64") from None
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        raise refuse(name, "is not UTF-8 text in base64") from None


def check_json(name: str, text: str) -> None:
    """The text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise refuse(name, "is not JSON") from None


def read_request_id(value: str) -> str:
    """The client's own name for a request; nothing where it is none that can be kept."""
    value = value.strip()
    return value if len(value) <= _MAX_REQUEST_ID_CHARS and value.isascii() and value.isprintable() else ""


def refuse(name: str, reason: str) -> InvalidRequest:
    """The error for a field."""
    return InvalidRequest(f"`{name}` {reason}", status=400)
