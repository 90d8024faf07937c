# SPDX-License-Identifier: Apache-2.0
"""Single values of a request for a turn, the same on gRPC and on HTTP: what can be used, and what is wrong with it.

Decides by the value alone, in words for the caller; the field's place and use play no part.
"""

import re
from base64 import b64decode

from lockgate.errors import InvalidRequest

MAX_SESSION_CHARS = 1024
_MAX_REQUEST_ID_CHARS = 200
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def check_session_id(session_id: str) -> None:
    """A session's id may be anything that is not long."""
    if len(session_id) > MAX_SESSION_CHARS:
        raise refuse("session_id", f"must have at most {MAX_SESSION_CHARS} characters")


def decode_text(name: str, value: str) -> str:
    """The text that a field holds in base64, in the standard alphabet and with padding; nothing for nothing."""
    if not _BASE64.fullmatch(value):
        raise refuse(name, "is not base64")
    try:
        return b64decode(value).decode()
    except UnicodeDecodeError:
        raise refuse(name, "is not UTF-8 text in base64") from None


def read_request_id(value: str) -> str:
    """The client's own name for a request; nothing where it is none that can be kept."""
    value = value.strip()
    return value if len(value) <= _MAX_REQUEST_ID_CHARS and value.isascii() and value.isprintable() else ""


def refuse(name: str, reason: str) -> InvalidRequest:
    """The error for a field."""
    return InvalidRequest(f"`{name}` {reason}", status=400)
