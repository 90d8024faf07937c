# SPDX-License-Identifier: Apache-2.0
"""Encodes requests of the detector API and decodes the variants of its answers and errors.

Bodies that do not fit raise ValueError or RecursionError, whose messages quote nothing of the text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from lockgate.errors import Refusal
from lockgate.gate.values import (
    TEXT_CHAT,
    TEXT_CONTENTS,
    TEXT_CONTEXT_DOC,
    TEXT_GENERATION,
    UNANSWERED,
    Claim,
    Conversation,
    Detection,
    Generated,
    Subject,
    find_span_fault,
)

PATHS: Mapping[str, str] = {
    TEXT_CONTENTS: "/api/v1/text/contents",
    TEXT_GENERATION: "/api/v1/text/generation",
    TEXT_CHAT: "/api/v1/text/chat",
    TEXT_CONTEXT_DOC: "/api/v1/text/context/doc",
}
HEALTH_PATH = "/health"

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
NoKeys = Annotated[dict[str, Any], msgspec.Meta(max_length=0)]
Objects = list[dict[str, Any]]


class ContentsRequest(msgspec.Struct):
    """The body for a `text_contents` detector; the answer has one list of results per text."""

    contents: list[str]
    detector_params: dict[str, Any] = {}


class GenerationRequest(msgspec.Struct):
    """The body for a `text_generation` detector."""

    prompt: str
    generated_text: str
    detector_params: dict[str, Any] = {}


class ChatDetectionRequest(msgspec.Struct):
    """The body for a `text_chat` detector; messages and tools are not decoded further."""

    messages: Objects
    tools: Objects = []
    detector_params: dict[str, Any] = {}


class ContextDetectionRequest(msgspec.Struct):
    """The body for a `text_context_doc` detector."""

    content: str
    context_type: Literal["docs", "url"]
    context: list[str]
    detector_params: dict[str, Any] = {}


class InnerEvidence(msgspec.Struct, omit_defaults=True):
    """What supports a piece of evidence."""

    name: str
    value: str | None = None
    score: float | None = None


class Evidence(msgspec.Struct, omit_defaults=True):
    """What supports a finding."""

    name: str
    value: str | None = None
    score: float | None = None
    evidence: list[InnerEvidence] | NoKeys | None = None


class PlainResult(msgspec.Struct, omit_defaults=True):
    """A finding about the whole text or chat, without a place in it."""

    detection: str
    detection_type: str
    score: float
    evidence: list[Evidence] | NoKeys | None = None
    metadata: dict[str, Any] | None = None


class ContentResult(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A finding with its place in its text, in code points."""

    start: Offset
    end: Offset
    text: str | None = None
    detection: str
    detection_type: str
    score: float
    evidence: list[Evidence] | NoKeys | None = None
    metadata: dict[str, Any] | None = None


class ErrorBody(msgspec.Struct):
    """A detector's error."""

    code: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    message: str


_encode = msgspec.json.Encoder().encode
_decode_contents = msgspec.json.Decoder(list[list[ContentResult]]).decode
_decode_of_text = msgspec.json.Decoder(list[ContentResult]).decode
_decode_lists = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_results = msgspec.json.Decoder(list[PlainResult]).decode
_decode_error = msgspec.json.Decoder(ErrorBody).decode


def encode_contents(texts: list[str], params: dict[str, Any]) -> bytes:
    """Encodes the request for some texts."""
    return _encode(ContentsRequest(texts, params))


def encode_params(params: dict[str, Any]) -> bytes:
    """Encodes the parameters as requests have them."""
    return _encode(params)


def encode_subject(subject: Subject, params: dict[str, Any]) -> bytes:
    """Encodes the request for a subject; leaves out null keys of messages and tools."""
    match subject:
        case Conversation(messages, tools):
            # Deeper levels hold free JSON, where null has a meaning: a tool's parameters are a schema.
            slim = [_without_nulls(one, 3) for one in messages], [_without_nulls(one, 2) for one in tools]
            return _encode(ChatDetectionRequest(*slim, params))
        case Generated(prompt, text):
            return _encode(GenerationRequest(prompt, text, params))
        case Claim(content, context_type, context):
            claim = {"content": content, "context_type": context_type, "context": list(context)}
            return _encode({**claim, "detector_params": params})


def read_contents(body: bytes, texts: Sequence[str]) -> list[list[Detection]]:
    """Returns the findings of each text; the answer must have exactly one list per text, and every span its text."""
    lists = _decode_contents(body)
    _check_count(len(lists), len(texts))
    return [[_place(one, text) for one in of_text] for of_text, text in zip(lists, texts, strict=True)]


def read_contents_as_sent(body: bytes, texts: Sequence[str]) -> list[list[Detection]]:
    """Returns the findings of each text; a missing list becomes UNANSWERED, surplus lists and spans do not matter."""
    lists = _decode_contents(body)
    found = [[_take(one, text) for one in of_text] for of_text, text in zip(lists, texts, strict=False)]
    while len(found) < len(texts):
        found.append(UNANSWERED)
    return found


def read_shared_contents(
    body: bytes, parts: Sequence[Sequence[str]]
) -> list[list[list[Detection]] | ValueError | RecursionError]:
    """Returns for each part the findings of its texts, or the error in that part alone.

    The answer must have exactly one list per text: else the findings cannot be assigned.
    """
    lists = _decode_lists(body)
    _check_count(len(lists), sum(len(texts) for texts in parts))
    following = iter(lists)
    return [_read_part([next(following) for _ in texts], texts) for texts in parts]


def read_results(body: bytes) -> list[Detection]:
    """Decodes findings about the whole; their place is always 0."""
    return [_to_detection(one, 0, 0, "") for one in _decode_results(body)]


def read_refusal(status: int, body: bytes) -> tuple[int, str]:
    """Returns an error's message and its status: the body's code if it is an HTTP status."""
    try:
        error = _decode_error(body)
    except (ValueError, RecursionError):
        return status, ""
    return error.code if 100 <= error.code <= 999 else status, error.message


def encode_found_contents(found: Iterable[Iterable[Detection]]) -> bytes:
    """Encodes the answer of a `text_contents` detector."""
    return _encode(
        [
            [ContentResult(start=one.start, end=one.end, text=one.text, **_list_fields(one)) for one in of_text]
            for of_text in found
        ]
    )


def encode_found_results(found: Iterable[Detection]) -> bytes:
    """Encodes the answer of any other detector."""
    return _encode([PlainResult(**_list_fields(one)) for one in found])


def encode_refusal(code: int, message: str, _refusal: Refusal | None = None) -> bytes:
    """Encodes an error."""
    return _encode(ErrorBody(code, message))


def to_subject(request: GenerationRequest | ChatDetectionRequest | ContextDetectionRequest) -> Subject:
    """Returns the subject of a request."""
    match request:
        case GenerationRequest():
            return Generated(request.prompt, request.generated_text)
        case ChatDetectionRequest():
            return Conversation(request.messages, request.tools)
        case ContextDetectionRequest():
            return Claim(request.content, request.context_type, request.context)


def to_evidence(items: list[Evidence] | dict[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """Returns evidence as plain mappings without absent keys."""
    if not items or isinstance(items, dict):
        return ()
    for one in items:
        one.evidence = one.evidence or None
    return tuple(msgspec.to_builtins(items))


def _read_part(
    lists: Sequence[msgspec.Raw], texts: Sequence[str]
) -> list[list[Detection]] | ValueError | RecursionError:
    try:
        return [[_place(one, text) for one in _decode_of_text(raw)] for raw, text in zip(lists, texts, strict=True)]
    except (ValueError, RecursionError) as error:
        return error


def _check_count(lists: int, texts: int) -> None:
    if lists != texts:
        raise ValueError(f"{lists} lists of results for {texts} texts")


def _place(one: ContentResult, text: str) -> Detection:
    found = _take(one, text)
    fault = find_span_fault(found, text)
    if fault:
        raise ValueError(fault)
    return found


def _take(one: ContentResult, text: str) -> Detection:
    if one.end < one.start:
        raise ValueError("a result ends before it starts")
    return _to_detection(one, one.start, one.end, text[one.start : one.end] if one.text is None else one.text)


def _to_detection(one: ContentResult | PlainResult, start: int, end: int, text: str) -> Detection:
    evidence = to_evidence(one.evidence)
    return Detection(start, end, text, one.detection, one.detection_type, one.score, "", evidence, one.metadata or None)


def _list_fields(one: Detection) -> dict[str, Any]:
    """Returns the fields of a result besides its place."""
    return {
        "detection": one.detection,
        "detection_type": one.detection_type,
        "score": float(one.score),
        "evidence": msgspec.convert(list(one.evidence), list[Evidence]) if one.evidence else None,
        "metadata": dict(one.metadata) if one.metadata else None,
    }


def _without_nulls(value: Any, depth: int) -> Any:
    """Returns the value without the null keys of its objects, down to `depth` nested objects."""
    if depth and isinstance(value, Mapping):
        return {key: _without_nulls(inner, depth - 1) for key, inner in value.items() if inner is not None}
    if depth and isinstance(value, list):
        return [_without_nulls(inner, depth) for inner in value]
    return value
