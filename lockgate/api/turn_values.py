# SPDX-License-Identifier: Apache-2.0
"""Checks and decodes single fields of a request to an agent, for gRPC and HTTP; the errors name the field."""

import re
from base64 import b64decode

from lockgate.errors import InvalidRequest

MAX_SESSION_CHARS = 1024
_MAX_REQUEST_ID_CHARS = 200
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def check_session_id(session_id: str) -> None:
    """Refuse a session id that is too long."""
    if len(session_id) > MAX_SESSION_CHARS:
        raise refuse("session_id", f"must have at most {MAX_SESSION_CHARS} characters")


def decode_text(name: str, value: str) -> str:
    """Decode a field's text from padded base64 in the standard alphabet; an empty value is an empty text."""
    if not _BASE64.fullmatch(value):
        raise refuse(name, "is not base64")
    try:
        return b64decode(value).decode()
    except UnicodeDecodeError:
        raise refuse(name, "is not UTF-8 text in base64") from None


def read_request_id(value: str) -> str:
    """The client's request id; empty if it is too long or not printable ASCII."""
    value = value.strip()
    return value if len(value) <= _MAX_REQUEST_ID_CHARS and value.isascii() and value.isprintable() else ""


def refuse(name: str, reason: str) -> InvalidRequest:
    """Build the error for a field."""
    return InvalidRequest(f"`{name}` {reason}", status=400)
