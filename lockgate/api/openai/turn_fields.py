# SPDX-License-Identifier: Apache-2.0
"""The fields of a request to an agent or a configured model, in every wire format."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec

from lockgate.agent.routes import Editor
from lockgate.api.openai.format import ContentPart
from lockgate.api.receipts import AnswerAccount
from lockgate.api.shapes import Shape
from lockgate.api.turn_values import check_session_id, decode_text, refuse
from lockgate.errors import InvalidRequest
from lockgate.gate.values import Message
from lockgate.server.exchange import Exchange
from lockgate.sessions.turns import ASSISTANT, SYSTEM, USER

ROLES = {USER: USER, ASSISTANT: ASSISTANT, SYSTEM: SYSTEM, "developer": SYSTEM}
_EDITOR_FIELDS = ("editor_content", "selected_text", "extra_context")
_ACCOUNT_FIELD = "user_info"
UNBUFFERED = (b"x-accel-buffering", b"no")

AgentContent = Annotated[str | list[ContentPart], msgspec.Meta(title="Content")]
# Fields that every model accepts: read elsewhere, or without a meaning for the answer.
_ALWAYS = frozenset(
    {
        *("model", "messages", "prompt", "system", "stream", "stream_options", "max_completion_tokens"),
        *("session_id", "query_type", "user", "metadata", "store", "keep_alive"),
        *("safety_identifier", "prompt_cache_key"),
    }
)
# Defaults, which are accepted like empty values. A model that does not take `temperature` picks the likeliest token.
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "temperature": (0, 1),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
    "top_p": (1,),
}
_NOT_TAKEN = ("refusal", "audio", "function_call", "tool_call_id")  # of a message: refused
_ONE_ANSWER = "ask once for each answer"
_NAME_POLICY = "name a policy with a configured model, as `<model>@<policy>`"
_ADVICE: Mapping[str, str] = {
    "best_of": _ONE_ANSWER,
    "n": _ONE_ANSWER,
    "format": "say in a message how to answer",
    "response_format": "say in a message how to answer",
    "detectors": _NAME_POLICY,
    "policy": _NAME_POLICY,
    "guardrail_config": _NAME_POLICY,
}


class AgentMessage(msgspec.Struct):
    """A message of a conversation: text, as a string or in parts."""

    role: str
    content: AgentContent | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None
    tool_call_id: str | None = None


class AgentRequest(msgspec.Struct):
    """Fields of every wire format: its own, and those that Lockgate adds."""

    model: str
    stream: bool | None = None
    session_id: str | None = None
    query_type: str | None = None
    user: str | None = None


class TurnRequest(NamedTuple):
    """A decoded request. `sent` ends with the question; `includes_usage`: a stream ends with its counters."""

    model: str
    sent: tuple[Message, ...]
    is_stream: bool
    session_id: str = ""
    label: str = ""
    editor: Editor = Editor()
    account: str = ""
    params: Mapping[str, Any] = MappingProxyType({})
    includes_usage: bool = False


class TurnWriter(Protocol):
    """Writes one answer in one format. `account` and `warnings` are reported at its end."""

    account: AnswerAccount
    warnings: Sequence[Mapping[str, str]]

    def begin(self) -> bytes:
        """The bytes before the first piece of a stream."""

    def add(self, piece: str) -> bytes:
        """A piece of a stream."""

    def add_thought(self, piece: str) -> bytes:
        """A piece of the model's reasoning in a stream."""

    def finish(self, *, end: str, usage: Mapping[str, int] | None) -> bytes:
        """The end of a stream that is complete."""

    def write_whole(self, text: str, *, end: str, usage: Mapping[str, int] | None, thought: str = "") -> bytes:
        """A whole answer."""


class _Named(msgspec.Struct):
    model: str


_NAMED = Shape(_Named)
_peek = msgspec.json.Decoder(_Named).decode
decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def peek_model(raw: bytes) -> str:
    """The model that a body names, at little cost; empty if it cannot be read."""
    try:
        return _peek(raw).model
    except (ValueError, RecursionError):
        return ""


def read_model(raw: bytes) -> str:
    """The model that a body must name."""
    return _NAMED.decode(raw).model


def choose_params(fields: Mapping[str, Any], takes: frozenset[str], inside: str = "") -> dict[str, Any]:
    """The parameters among these fields that the model takes; raises InvalidRequest for one that it does not.

    `inside` is the name of the object that holds the fields, if it is not the body.
    """
    params = {}
    for name, value in fields.items():
        if value is None or name in _ALWAYS:
            continue
        if name in takes:
            params[name] = value
        elif not _is_default(name, value):
            place = f"{inside}.{name}" if inside else name
            raise InvalidRequest(f"`{place}` is not supported by this model: {_ADVICE.get(name, 'leave it out')}")
    return params


def _is_default(name: str, value: Any) -> bool:
    """Whether the value is empty, false, or the default; `false` is not 0."""
    is_empty = value is False or (isinstance(value, str | list | dict) and not value)
    return is_empty or (value in _DEFAULTS.get(name, ()) and (value is True) is (name == "parallel_tool_calls"))


def build_turn_request(
    request: AgentRequest,
    sent: tuple[Message, ...],
    params: Mapping[str, Any],
    *,
    is_stream: bool,
    includes_usage: bool = False,
) -> TurnRequest:
    """Build the request from its own parts and the fields that all formats have."""
    if request.session_id:
        check_session_id(request.session_id)
    editor, account = read_user(request.user) if request.user else (Editor(), "")
    return TurnRequest(
        request.model,
        sent,
        is_stream,
        request.session_id or "",
        request.query_type or "",
        editor,
        account,
        params,
        includes_usage,
    )


# Messages.


def read_messages(messages: Sequence[AgentMessage]) -> tuple[Message, ...]:
    """The messages up to the last of the user, which is the question; later ones are dropped."""
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
    role, content = ROLES.get(message.role), message.content
    if role is None or message.tool_calls:
        what = "tool calls" if role else "this role"
        raise InvalidRequest(
            f"messages[{place}]: {what} cannot be used here; roles are user, assistant, system and developer"
        )
    parts = content if isinstance(content, list) else []
    if message.images or any(part.type != "text" or part.text is None for part in parts):
        raise InvalidRequest(f"messages[{place}]: only text is supported")
    for field in _NOT_TAKEN:
        if getattr(message, field):
            raise InvalidRequest(f"messages[{place}]: `{field}` is not supported by this model: leave it out")
    return Message(role, content if isinstance(content, str) else "\n".join(part.text or "" for part in parts))


# Fields that Lockgate adds.


def read_user(user: str) -> tuple[Editor, str]:
    """The content of the user's editor and data about the user, from JSON in `user`; a plain name is ignored."""
    if not user.lstrip().startswith("{"):
        return Editor(), ""
    try:
        fields = decode_fields(user)
    except (ValueError, RecursionError):
        return Editor(), ""
    values = [fields.get(name) for name in _EDITOR_FIELDS]
    for name, value in zip(_EDITOR_FIELDS, values, strict=True):
        if not isinstance(value, str | None):
            raise refuse(f"user.{name}", "must be a string")
    account = fields.get(_ACCOUNT_FIELD)
    if not isinstance(account, dict | None):
        raise refuse(f"user.{_ACCOUNT_FIELD}", "must be an object")
    texts = [decode_text(f"user.{name}", value or "") for name, value in zip(_EDITOR_FIELDS, values, strict=True)]
    return Editor(*texts), msgspec.json.encode(account).decode() if account else ""


@contextmanager
def refuse_with_400() -> Iterator[None]:
    """Give each InvalidRequest status 400: clients of agents and configured models do not expect 422."""
    try:
        yield
    except InvalidRequest as error:
        refused = InvalidRequest(error.message, status=400)
        refused.unquoted = error.unquoted
        raise refused from error


async def start_events(exchange: Exchange) -> None:
    """Begin the stream of an agent or a configured model: an error ends it without `[DONE]`."""
    await exchange.reply.start_events([UNBUFFERED], error_event="")
