# SPDX-License-Identifier: Apache-2.0
"""Requests for chat and text completions: which fields are checked, and what goes upstream.

Only fields that Lockgate uses are checked; others are passed on unchanged, in both directions.
`whole_answer` and `events` write the answers.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

from lockgate.api.guardrails.format import DetectorMap, MaskList, Masks, read_masks
from lockgate.api.openai.answer_types import ClientError, ClientFault
from lockgate.api.openai.grounds import take_from_tools
from lockgate.api.shapes import Shape, refuse_typos
from lockgate.errors import InvalidRequest, Refusal
from lockgate.gate.input_texts import InputText
from lockgate.gate.values import Conversation, Detection

INPUT_WARNING = (
    "Unsuitable input detected. Please check the detected entities on your input and try again with the unsuitable "
    "input removed."
)
OUTPUT_WARNING = "Unsuitable output detected."

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Role(enum.Enum):
    """The author of a message."""

    USER = "user"
    DEVELOPER = "developer"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"
    FUNCTION = "function"


class ContentPart(msgspec.Struct):
    """A part of a message; only its text is read."""

    type: str
    text: str | None = None


Content = Annotated[str | list[ContentPart], msgspec.Meta(title="Content")]


class ChatMessage(msgspec.Struct):
    """A message of a chat."""

    role: Role
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


Prompts = Annotated[str | list[Any], msgspec.Meta(title="Prompt")]
Message = Annotated[ChatMessage, msgspec.Meta(title="Message")]  # the reference's name, in errors


class DetectorsOrPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors by section, and the policy."""

    input: DetectorMap = {}
    output: DetectorMap = {}
    grounding: dict[str, Any] = {}
    policy: str | None = None


class ChatFields(msgspec.Struct):
    """The fields of every body of chat completions."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    tools: list[Any] | None = None


class TextFields(msgspec.Struct, rename={"prompt_masks": "_prompt_masks"}):
    """The fields of every body of text completions."""

    model: str
    prompt: str
    stream: bool | None = None
    prompt_masks: MaskList | None = None


class Chat(ChatFields):
    """Body of chat completions."""

    detectors: DetectorsOrPolicy = msgspec.field(default_factory=DetectorsOrPolicy)


class Text(TextFields):
    """Body of text completions; the prompt may be several texts, or token ids."""

    prompt: Prompts  # type: ignore[assignment]
    detectors: DetectorsOrPolicy = msgspec.field(default_factory=DetectorsOrPolicy)


class ChatDetection(msgspec.Struct, forbid_unknown_fields=True):
    """Body of detection/chat."""

    detectors: DetectorMap
    messages: list[Message]
    tools: list[Any] = []


CHAT_DETECTION = Shape(ChatDetection)
CHAT, TEXT = Shape(Chat), Shape(Text)
_OWN_KEYS = frozenset({"detectors", "_prompt_masks"})
_FIRST = ("stream", "model", "messages", "prompt", "tools")


class CompletionRequest(NamedTuple):
    """A request as the endpoints need it; `body` is what goes upstream."""

    model: str
    body: dict[str, Any]
    is_stream: bool
    input: DetectorMap
    output: DetectorMap
    policy: str | None = None
    masks: Masks = ()
    text: str = ""  # of the prompt, as the request's own detectors read it
    read: Sequence[InputText] = ()  # under a policy: all texts that are read
    size: int = 0  # of the body, in bytes
    caller: str = ""
    grounding: Mapping[str, Any] = MappingProxyType({})
    grounds_from_tools: bool = False  # results of tools are documents

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages of a chat, as they came."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def choices(self) -> int:
        """How many answers the model is to give: `n` for each prompt."""
        count, prompt = self.body.get("n"), self.body.get("prompt")
        has_prompts = isinstance(prompt, list) and isinstance(prompt[0] if prompt else None, str | list)
        return (count if isinstance(count, int) else 1) * (len(prompt or ()) if has_prompts else 1)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the model may call."""
        return self.body.get("tools") or ()

    @property
    def prompt(self) -> str:
        """The prompt of a text completion; several are joined."""
        prompt = self.body["prompt"]
        return prompt if isinstance(prompt, str) else "\n\n".join([one for one in prompt if isinstance(one, str)])


def read_request(shape: Shape[Any], raw: bytes, *, refuses_typos: bool = True) -> CompletionRequest:
    """Decode a request: check known fields, keep the others."""
    known = shape.decode(raw)
    whole = _decode(raw)
    tools, masks = getattr(known, "tools", None), getattr(known, "prompt_masks", None)
    if tools:
        _check_tools(tools)
    if refuses_typos:
        refuse_typos(whole)
    body = {key: whole[key] for key in _FIRST if key in whole}
    body |= {key: value for key, value in whole.items() if key not in _FIRST and key not in _OWN_KEYS}
    detectors = known.detectors
    grounding: dict[str, Any] = dict(getattr(detectors, "grounding", {}))
    from_tools = bool(grounding) and take_from_tools(grounding)
    return CompletionRequest(
        known.model,
        body,
        bool(known.stream),
        detectors.input,
        detectors.output,
        getattr(detectors, "policy", None),
        read_masks(masks, "_prompt_masks") if masks else (),
        size=len(raw),
        grounding=grounding,
        grounds_from_tools=from_tools,
    )


read_chat_completion, read_text_completion = partial(read_request, CHAT), partial(read_request, TEXT)


def read_chat(raw: bytes) -> tuple[DetectorMap, Conversation]:
    """A request of detection/chat: detectors and conversation."""
    known = CHAT_DETECTION.decode(raw)
    _check_tools(known.tools)
    whole = _decode(raw)
    return known.detectors, Conversation(whole["messages"], whole.get("tools", ()))


def _check_tools(tools: Sequence[Any]) -> None:
    for place, tool in enumerate(tools):
        if not _is_tool(tool):
            raise InvalidRequest(f"tools[{place}]: data did not match any variant of untagged enum Tool")


def _is_tool(tool: Any) -> bool:
    """A tool is a function or a custom one; either has a name."""
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        return False
    parts = [tool.get("function"), tool.get("custom")]
    return any(isinstance(part, dict) and isinstance(part.get("name"), str) for part in parts)


def to_results(found: Iterable[Detection], shift: int = 0) -> list[dict[str, Any]]:
    """Findings with their position, moved by `shift`."""
    return [
        {
            "start": one.start + shift,
            "end": one.end + shift,
            "text": one.text,
            **_plain(one),
        }
        for one in found
    ]


def to_plain_results(found: Iterable[Detection]) -> list[dict[str, Any]]:
    """Findings of reviewers, which have no position."""
    return [_plain(one) for one in found]


def _plain(one: Detection) -> dict[str, Any]:
    result: dict[str, Any] = {
        "detector_id": one.detector_id,
        "detection_type": one.detection_type,
        "detection": one.detection,
        "score": float(one.score),
    }
    if one.evidence:
        result["evidence"] = list(one.evidence)
    if one.metadata:
        result["metadata"] = dict(sorted(one.metadata.items()))
    return result


def encode_event(event: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + encode(event) + b"\n\n"


def encode_client_error(code: int, details: str, refusal: Refusal | None = None) -> bytes:
    """An error body with Lockgate's fields and the `error` object that OpenAI clients read."""
    kind = "invalid_request_error" if code < 500 else "server_error"
    kind, name = (kind, "") if refusal is None else (refusal.kind or kind, refusal.code)
    return encode(ClientError(code, details, ClientFault(details, kind, None, name or code)))


def warn(kind: str, message: str) -> dict[str, str]:
    """A warning."""
    return {"type": kind, "message": message}


UNSUITABLE_OUTPUT = warn("UNSUITABLE_OUTPUT", OUTPUT_WARNING)
UNSUITABLE_INPUT = warn("UNSUITABLE_INPUT", INPUT_WARNING)
