# SPDX-License-Identifier: Apache-2.0
"""What a request for a turn carries besides the question, and the agent's own messages on gRPC.

Decides what is wrong with a field, in words for the caller. Refuses to know what becomes of it.
"""

from typing import NamedTuple

import msgspec

from lockgate.agent.routes import Editor
from lockgate.api.turn_values import check_session_id, decode_text, refuse
from lockgate.protos.assistance_pb2 import AgentRequest


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


def check_json(name: str, text: str) -> None:
    """The text is JSON."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise refuse(name, "is not JSON") from None
