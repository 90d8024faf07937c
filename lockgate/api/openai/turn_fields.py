# SPDX-License-Identifier: Apache-2.0
"""What a request to an agent or a configured model holds, whatever its dialect: plain values, checked one by one.

Decides which values can be used and in which words the others are refused. Refuses to know who will answer, and how an
answer is written: that is for `agent_openai` and `agent_ollama`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

from lockgate.agent.routes import Editor
from lockgate.api.openai.format import ContentPart, refuse_typos
from lockgate.api.shapes import Shape
from lockgate.api.turn_values import check_session_id, decode_text, refuse
from lockgate.errors import InvalidRequest
from lockgate.gate.values import Message
from lockgate.sessions.turns import ASSISTANT, SYSTEM, USER

_ROLES = {USER: USER, ASSISTANT: ASSISTANT, SYSTEM: SYSTEM, "developer": SYSTEM}
_EDITOR_FIELDS = ("editor_content", "selected_text", "extra_context")
_ACCOUNT_FIELD = "user_info"

AgentContent = Annotated[str | list[ContentPart], msgspec.Meta(title="Content")]
Unfit = tuple[str, Callable[[Any], bool], str]  # a field, which of its values mean something, and what to do instead
_GUARDS = tuple(
    (name, bool, "name a policy with a configured model, as `<model>@<policy>`")
    for name in ("detectors", "policy", "guardrail_config")
)


class AgentMessage(msgspec.Struct):
    """A message of a conversation: text, as a string or in parts."""

    role: str
    content: AgentContent | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None


class AgentRequest(msgspec.Struct):
    """What every dialect has, as its own field or as one of ours."""

    model: str
    stream: bool | None = None
    session_id: str | None = None
    query_type: str | None = None
    user: str | None = None


class Params(NamedTuple):
    """How the model shall answer, where the client says so; `Ask` wants a map."""

    max_tokens: int | None = None
    temperature: float | None = None

    def told(self) -> Mapping[str, Any]:
        """Those that were chosen."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Wanted(NamedTuple):
    """A request, read. `sent` ends with the question; `tells_usage`: a stream shall end with its counters."""

    model: str
    sent: tuple[Message, ...]
    is_stream: bool
    session_id: str = ""
    label: str = ""
    editor: Editor = Editor()
    account: str = ""
    params: Mapping[str, Any] = MappingProxyType({})
    tells_usage: bool = False

    @property
    def question(self) -> str:
        """What is asked."""
        return self.sent[-1].text


class _Named(msgspec.Struct):
    model: str


_NAMED = Shape(_Named)
_peek = msgspec.json.Decoder(_Named).decode
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def peek_model(raw: bytes) -> str:
    """The model that a body names, at little cost; nothing where it cannot be read."""
    try:
        return _peek(raw).model
    except (ValueError, RecursionError):
        return ""


def read_model(raw: bytes) -> str:
    """The same, of a body that must name one."""
    return _NAMED.decode(raw).model


def refuse_unfit(raw: bytes, unfit: Sequence[Unfit]) -> None:
    """What would be expected of an answer and cannot be given is not left out in silence."""
    fields = _split(raw)
    for name, is_asked, advice in (*unfit, *_GUARDS):
        if name in fields and is_asked(msgspec.json.decode(fields[name])):
            raise InvalidRequest(f"`{name}` is not supported by agents and configured models: {advice}")
    refuse_typos(fields)


def build_wanted(request: AgentRequest, sent: tuple[Message, ...], params: Params, *, is_stream: bool) -> Wanted:
    """What a request wants, of its own fields and of those that all have."""
    session_id = request.session_id or ""
    check_session_id(session_id)
    editor, account = read_user(request.user or "")
    return Wanted(
        request.model,
        sent,
        is_stream,
        session_id,
        request.query_type or "",
        editor,
        account,
        params.told(),
    )


# Messages.


def read_messages(messages: Sequence[AgentMessage]) -> tuple[Message, ...]:
    """The messages up to the last of the user, which is the question; what stands behind it is nobody's."""
    if not messages:
        raise InvalidRequest("`messages` must not be empty")
    read = [_read_message(place, one) for place, one in enumerate(messages)]
    last = max((place for place, one in enumerate(read) if one.role == USER), default=None)
    if last is None:
        raise InvalidRequest("`messages` must hold a message with role `user`")
    if not read[last].text.strip():
        raise InvalidRequest(f"messages[{last}]: the question must not be empty")
    return tuple(read[: last + 1])


def read_prompt(prompt: str, system: str = "") -> tuple[Message, ...]:
    """A question without a conversation."""
    if not prompt.strip():
        raise InvalidRequest("`prompt` must not be empty")
    return (*([Message(SYSTEM, system)] if system else []), Message(USER, prompt))


def _read_message(place: int, message: AgentMessage) -> Message:
    role = _ROLES.get(message.role)
    if role is None or message.tool_calls:
        what = "tool calls" if role else f"role `{message.role}`"
        raise InvalidRequest(
            f"messages[{place}]: {what} cannot be used here; roles are user, assistant, system and developer"
        )
    return Message(role, _read_content(place, message))


def _read_content(place: int, message: AgentMessage) -> str:
    content = message.content
    parts = content if isinstance(content, list) else []
    if message.images or any(part.type != "text" or part.text is None for part in parts):
        raise InvalidRequest(f"messages[{place}]: only text is supported")
    return content if isinstance(content, str) else "\n".join(part.text or "" for part in parts)


# Fields of ours.


def read_user(user: str) -> tuple[Editor, str]:
    """What the user has before the eyes and what is said about the user, if `user` is a JSON text that tells it.

    Any other `user` is the name of one, which is not needed here.
    """
    fields = _read_object(user)
    told = [fields.get(name) for name in _EDITOR_FIELDS]
    for name, value in zip(_EDITOR_FIELDS, told, strict=True):
        if not isinstance(value, str | None):
            raise refuse(f"user.{name}", "must be a string")
    account = fields.get(_ACCOUNT_FIELD)
    if not isinstance(account, dict | None):
        raise refuse(f"user.{_ACCOUNT_FIELD}", "must be an object")
    texts = [decode_text(f"user.{name}", value or "") for name, value in zip(_EDITOR_FIELDS, told, strict=True)]
    return Editor(*texts), msgspec.json.encode(account).decode() if account else ""


def _read_object(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {}
    try:
        fields: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        return {}
    return fields
