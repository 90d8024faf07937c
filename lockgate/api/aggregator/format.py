# SPDX-License-Identifier: Apache-2.0
"""Messages of the retrieve-and-answer API; without detectors each is as the existing aggregator writes it."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from lockgate.api.guardrails.format import ContentDetection, DetectorMap, from_detections
from lockgate.api.openai.format import UNSUITABLE_INPUT, UNSUITABLE_OUTPUT, warn
from lockgate.api.receipts import ReceiptBody, add_frames, build_receipt, describe_failure
from lockgate.api.shapes import refuse_typos
from lockgate.backends.endpoints import Endpoint
from lockgate.errors import CheckFailed, GenerationFailed, InvalidField, Refusal
from lockgate.gate.receipts import FrameChain
from lockgate.gate.values import Detection
from lockgate.gate.verdicts import DOCUMENT_WORDS, TEXT_WORDS
from lockgate.rag.answer import (
    AnswerResult,
    GenerationStarted,
    RetrievalEnded,
    RetrievalStarted,
    SourceEnded,
    Step,
    Token,
)
from lockgate.rag.sources import InspectedDocument, Retrieval, name_documents

UNSUITABLE_DOCUMENTS = warn("UNSUITABLE_DOCUMENTS", "Unsuitable documents detected among those that were retrieved.")
_MAX_COUNT = 2**63 - 1
_ERROR_NAMES = {
    401: "unauthorized",
    404: "not_found",
    413: "request_too_large",
    422: "validation_error",
    429: "too_many_requests",
    500: "internal_error",
    503: "unavailable",
    504: "timeout",
}
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")

Fault = InvalidField | GenerationFailed | CheckFailed
if TYPE_CHECKING:
    TextWord: TypeAlias = str
    DocumentWord: TypeAlias = str
else:
    TextWord, DocumentWord = Literal[tuple(TEXT_WORDS)], Literal[tuple(DOCUMENT_WORDS)]


class EndpointRef(msgspec.Struct):
    """A user's endpoint: a source or the model. A source gets `query_override` in place of the prompt."""

    url: str
    slug: str
    name: str = ""
    tenant_name: str | None = None
    owner_username: str | None = None
    query_override: str | None = None


MessageRole: TypeAlias = Literal["system", "user", "assistant"]


class ChatTurn(msgspec.Struct):
    """A message of the conversation before the prompt."""

    role: MessageRole
    content: str


class OnFinding(msgspec.Struct, forbid_unknown_fields=True):
    """The action on text with findings, by section."""

    input: TextWord = "block"
    documents: DocumentWord = "drop"
    output: TextWord = "annotate"
    grounding: TextWord = "annotate"


class ChatDetectors(msgspec.Struct, forbid_unknown_fields=True):
    """The detectors by section; an unknown key is refused, as a typo could switch a detector off."""

    input: DetectorMap = {}
    documents: DetectorMap = {}
    output: DetectorMap = {}
    grounding: DetectorMap = {}
    on_finding: OnFinding | None = None
    fallback: str | None = None
    policy: str | None = None


class ChatRequest(msgspec.Struct):
    """Body of both endpoints; unknown fields are ignored. With `retrieval_only` the model is not called."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    model: EndpointRef
    data_sources: list[EndpointRef] = []
    endpoint_tokens: dict[str, str] = {}
    transaction_tokens: dict[str, str] = {}
    top_k: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MAX_COUNT)] = 1024
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.7
    similarity_threshold: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    custom_system_prompt: str | None = None
    stream: bool = False
    detectors: ChatDetectors | None = None
    citations: bool = False
    messages: list[ChatTurn] | None = None
    retrieval_only: bool = False

    def endpoint(self, ref: EndpointRef) -> Endpoint:
        """The endpoint with the tokens of its owner and of no other."""
        owner = ref.owner_username
        if owner is None:
            return Endpoint(ref.url, ref.slug, None, ref.tenant_name)
        tokens = self.endpoint_tokens.get(owner), self.transaction_tokens.get(owner)
        return Endpoint(ref.url, ref.slug, owner, ref.tenant_name, *tokens)


class AnswerSource(msgspec.Struct):
    """A document that was used."""

    slug: str
    content: str


class AnswerRetrieval(msgspec.Struct):
    """How the query of one source ended. `documents_left_out`: sent beyond those asked for, or beyond the limits."""

    path: str
    documents_retrieved: int
    status: Literal["success", "error", "timeout"]
    error_message: str | None
    documents_left_out: int | msgspec.UnsetType = msgspec.UNSET
    documents_cut: int | msgspec.UnsetType = msgspec.UNSET


class AnswerTimes(msgspec.Struct):
    """How long the steps took."""

    retrieval_time_ms: int
    generation_time_ms: int
    total_time_ms: int


class AnswerCitation(msgspec.Struct):
    """A source named in the answer: `path` is the text from `start` to `end`."""

    path: str
    start: int
    end: int
    is_retrieved: bool


class InputDetection(ContentDetection, omit_defaults=True):
    """A finding in the request; `field` is its place, empty for the prompt."""

    field: str = ""


class AnswerDocument(msgspec.Struct):
    """A document in which something was found; `title_results` where it was found in the title."""

    path: str
    title: str
    outcome: Literal["dropped", "masked", "flagged"]
    results: list[ContentDetection]
    title_results: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET


class AnswerDetections(msgspec.Struct):
    """The findings by section; one without findings is left out."""

    input: list[InputDetection] | msgspec.UnsetType = msgspec.UNSET
    documents: list[AnswerDocument] | msgspec.UnsetType = msgspec.UNSET
    sources: list[AnswerDocument] | msgspec.UnsetType = msgspec.UNSET
    output: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET
    grounding: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET


class AnswerWarning(msgspec.Struct):
    """A warning: its code and its text."""

    type: str
    message: str


class AnswerDone(msgspec.Struct, kw_only=True):
    """The end of an answer. `outcome` and the fields after it are there if detectors are used."""

    sources: dict[str, AnswerSource]
    retrieval_info: list[AnswerRetrieval]
    metadata: AnswerTimes
    usage: dict[str, int] | None
    citations: list[AnswerCitation] | msgspec.UnsetType = msgspec.UNSET
    outcome: Literal["answered", "prompt_blocked", "answer_blocked"] | msgspec.UnsetType = msgspec.UNSET
    detections: AnswerDetections | msgspec.UnsetType = msgspec.UNSET
    warnings: list[AnswerWarning] | msgspec.UnsetType = msgspec.UNSET
    receipt: ReceiptBody | msgspec.UnsetType = msgspec.UNSET
    pseudonyms: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Answer(AnswerDone, kw_only=True):
    """A whole answer. `outcome` and the fields after it are there if detectors are used."""

    response: str


class AnswerFault(msgspec.Struct):
    """Why there is no answer; what `details` holds depends on the kind of the error."""

    error: str
    message: str
    details: dict[str, Any]


class RetrievalStart(msgspec.Struct):
    """Retrieval from so many sources begins."""

    sources: int


class SourceComplete(msgspec.Struct):
    """A source has ended. The last three counts are there if detectors are used."""

    path: str
    status: Literal["success", "error", "timeout"]
    documents: int
    dropped: int | msgspec.UnsetType = msgspec.UNSET
    masked: int | msgspec.UnsetType = msgspec.UNSET
    flagged: int | msgspec.UnsetType = msgspec.UNSET


class RetrievalComplete(msgspec.Struct):
    """All sources have ended."""

    total_documents: int
    time_ms: int


class GenerationStart(msgspec.Struct):
    """The model is called."""


class AnswerToken(msgspec.Struct):
    """A piece of the answer, with its findings and its range if detectors are used."""

    content: str
    detections: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET
    start_index: int | msgspec.UnsetType = msgspec.UNSET
    processed_index: int | msgspec.UnsetType = msgspec.UNSET


class AnswerBroken(msgspec.Struct):
    """The stream ends with an error, before the answer or within it."""

    message: str


# The events of a streamed answer of the aggregator, in their order.
ANSWER_EVENTS: dict[str, type[msgspec.Struct]] = {
    "retrieval_start": RetrievalStart,
    "source_complete": SourceComplete,
    "retrieval_complete": RetrievalComplete,
    "generation_start": GenerationStart,
    "token": AnswerToken,
    "done": AnswerDone,
    "error": AnswerBroken,
}


class AnswerDetails:
    """Which optional fields one answer has, and the digest chain of its text."""

    __slots__ = ("chain", "has_citations", "has_names", "is_guarded")

    def __init__(self, is_guarded: bool = False, has_citations: bool = False, *, has_names: bool = False) -> None:
        self.is_guarded = is_guarded
        self.has_citations = has_citations
        self.has_names = has_names
        self.chain = FrameChain()


_decode = msgspec.json.Decoder(ChatRequest).decode
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def read_request(body: bytes) -> ChatRequest:
    """Decode a request; raises InvalidField, also for a key that may be a misspelt `detectors`."""
    try:
        request = _decode(body)
        refuse_typos(_decode_keys(body))
        return request
    except msgspec.ValidationError as error:
        raise read_fault(str(error)) from None
    except (ValueError, RecursionError):
        raise InvalidField("", "the body is not valid JSON") from None


def read_fault(text: str) -> InvalidField:
    """Turn msgspec's error text into an error for the field at fault, without its value; unknown texts are kept."""
    found = _PLACE.fullmatch(text)
    text, place = (found[1], found[2]) if found else (text, "")
    if missing := _MISSING.match(text):
        return InvalidField(f"{place}.{missing[1]}".lstrip("."), "field required")
    if text.startswith("Invalid enum value"):
        text = "Invalid enum value"  # without the value, which may be what a policy hides
        choices: Iterable[str] = DOCUMENT_WORDS if place.endswith(".documents") else TEXT_WORDS
        if place.endswith(".role"):
            choices = get_args(MessageRole)
    elif text.startswith("Object contains unknown field"):
        choices = (OnFinding if place.endswith("on_finding") else ChatDetectors).__struct_fields__
    else:
        return InvalidField(place, text)
    return InvalidField(place, f"{text}, expected one of {', '.join(choices)}")


# Answers.


def encode_response(text: str, outcome: AnswerResult, details: AnswerDetails) -> bytes:
    """The whole answer."""
    body = {"response": text}
    if details.is_guarded:
        add_frames(details.chain, body)
    return _encode(body | _build_outcome(outcome, outcome.retrievals, details))


def encode_done(outcome: AnswerResult, details: AnswerDetails) -> bytes:
    """The last event of an answer."""
    return _event(b"done", _build_outcome(outcome, outcome.ended, details))


def encode_step(step: Step, details: AnswerDetails) -> bytes:
    """A step as its event."""
    match step:
        case Token():
            token: dict[str, Any] = {"content": step.text}
            if details.is_guarded:
                add_frames(details.chain, token)
                token["detections"] = from_detections(step.detections)
                token["start_index"], token["processed_index"] = step.start, step.end
            return _event(b"token", token)
        case RetrievalStarted():
            return _event(b"retrieval_start", {"sources": step.sources})
        case SourceEnded():
            return _event(b"source_complete", _describe_source(step.retrieval, details))
        case RetrievalEnded():
            return _event(b"retrieval_complete", {"total_documents": step.documents, "time_ms": step.time_ms})
        case GenerationStarted():
            return _event(b"generation_start", {})


def encode_error_event(message: str) -> bytes:
    """The event that ends a stream which cannot go on."""
    return _event(b"error", {"message": message})


# Errors.


def encode_error(status: int, details: str, _refusal: Refusal | None = None) -> bytes:
    """An error without details."""
    name = _ERROR_NAMES.get(status, "error")
    if name == "error":
        with suppress(ValueError):
            name = HTTPStatus(status).phrase.lower().replace(" ", "_")
    return _encode({"error": name, "message": details, "details": {}})


def encode_fault(error: Fault) -> bytes:
    """An error with details."""
    details: dict[str, Any]
    match error:
        case InvalidField():
            fields = [{"field": error.field, "message": error.reason}] if error.field else []
            name, details = "validation_error", {"fields": fields}
        case CheckFailed():
            name, details = "check_failed", {"part": error.part}
        case GenerationFailed():
            name, details = "generation_failed", {"model_path": error.path, "latency_ms": error.latency_ms}
    return _encode({"error": name, "message": error.message, "details": details})


# Parts of answers.


def _event(name: bytes, body: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, _encode(body))


def _describe_retrieval(one: Retrieval) -> dict[str, Any]:
    body: dict[str, Any] = {"path": one.path, "documents_retrieved": one.retrieved, "status": one.status.value}
    body["error_message"] = one.error
    if one.left_out:
        body["documents_left_out"] = one.left_out
    if one.cut:
        body["documents_cut"] = one.cut
    return body


def _describe_source(one: Retrieval, details: AnswerDetails) -> dict[str, Any]:
    body: dict[str, Any] = {"path": one.path, "status": one.status.value, "documents": one.retrieved}
    if details.is_guarded:
        dropped = sum([found.is_dropped for found in one.inspected])
        masked = sum([found.is_masked for found in one.inspected])
        body |= {"dropped": dropped, "masked": masked, "flagged": len(one.inspected) - dropped - masked}
    return body


def _build_outcome(outcome: AnswerResult, retrievals: Iterable[Retrieval], details: AnswerDetails) -> dict[str, Any]:
    """The fields that whole answers and last events share."""
    named = name_documents(outcome.retrievals if outcome.shown is None else outcome.shown)
    body: dict[str, Any] = {
        "sources": {title: {"slug": one.source, "content": one.text} for title, one in named.items()},
        "retrieval_info": [_describe_retrieval(one) for one in retrievals],
        "metadata": {
            "retrieval_time_ms": outcome.retrieval_ms,
            "generation_time_ms": outcome.generation_ms,
            "total_time_ms": outcome.total_ms,
        },
        "usage": outcome.usage,
    }
    if details.has_citations or details.is_guarded:
        body["citations"] = [
            {"path": one.path, "start": one.start, "end": one.end, "is_retrieved": one.is_known}
            for one in outcome.citations
        ]
    if details.is_guarded:
        answered = "answer_blocked" if outcome.is_answer_blocked else "answered"
        body["outcome"] = "prompt_blocked" if outcome.is_prompt_blocked else answered
        body["detections"] = _build_detections(outcome)
        body["warnings"] = _build_warnings(outcome)
        body["receipt"] = build_receipt(outcome.receipt, details.chain)
        if details.has_names:
            body["pseudonyms"] = dict(outcome.pseudonyms)
    return body


def _build_detections(outcome: AnswerResult) -> dict[str, Any]:
    inspected = [one for retrieval in outcome.retrievals for one in retrieval.inspected]
    found = outcome.found_in_answer
    sections = {
        "input": from_detections(outcome.found_in_prompt) + _list_found_in_fields(outcome),
        "documents": [describe_inspected(one) for one in inspected],
        "sources": [describe_inspected(one) for one in outcome.inspected_sources],
        "output": from_detections([one for one in found if one.detector_id not in outcome.grounding]),
        "grounding": from_detections([one for one in found if one.detector_id in outcome.grounding]),
    }
    return {section: results for section, results in sections.items() if results}


def _list_found_in_fields(outcome: AnswerResult) -> list[ContentDetection]:
    fields = [field for field, _ in outcome.found_in_fields]
    plain = map(msgspec.structs.asdict, from_detections([one for _, one in outcome.found_in_fields]))
    return [InputDetection(**one, field=field) for field, one in zip(fields, plain, strict=True)]


def describe_inspected(
    one: InspectedDocument, write: Callable[[Iterable[Detection]], Any] = from_detections
) -> dict[str, Any]:
    """A document's findings and outcome; `write` encodes the findings."""
    outcome = "dropped" if one.is_dropped else "masked" if one.is_masked else "flagged"
    entry: dict[str, Any] = {"path": one.source, "title": one.title, "outcome": outcome}
    entry["results"] = write(one.detections)
    if one.found_in_title:
        entry["title_results"] = write(one.found_in_title)
    return entry


def _build_warnings(outcome: AnswerResult) -> list[dict[str, str]]:
    warnings = [UNSUITABLE_INPUT] if outcome.found_in_prompt or outcome.found_in_fields else []
    if any(retrieval.inspected for retrieval in outcome.retrievals):
        warnings.append(UNSUITABLE_DOCUMENTS)
    if outcome.found_in_answer or outcome.inspected_sources:
        warnings.append(UNSUITABLE_OUTPUT)
    return warnings + [warn(*describe_failure(name, ends=ends)) for name, ends in outcome.failed_detectors.items()]
