# SPDX-License-Identifier: Apache-2.0
"""Shapes of responses: what the OpenAPI document describes. A test holds every kind of response against its shape."""

from typing import Any, Literal

import msgspec

from lockgate.api.guardrails.format import ContentDetection
from lockgate.api.receipts import ReceiptBody


class AnswerSource(msgspec.Struct):
    """A document that was used."""

    slug: str
    content: str


class AnswerRetrieval(msgspec.Struct):
    """How the query of one source ended."""

    path: str
    documents_retrieved: int
    status: Literal["success", "error", "timeout"]
    error_message: str | None


class AnswerTimes(msgspec.Struct):
    """How long it took."""

    retrieval_time_ms: int
    generation_time_ms: int
    total_time_ms: int


class AnswerCitation(msgspec.Struct):
    """A source named in the answer: the text from `start` to `end` is `path`."""

    path: str
    start: int
    end: int
    is_retrieved: bool


class AnswerDocument(msgspec.Struct):
    """A document in which something was found; `title_results` where it was found in the title."""

    path: str
    title: str
    outcome: Literal["dropped", "masked", "flagged"]
    results: list[ContentDetection]
    title_results: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET


class AnswerDetections(msgspec.Struct):
    """What was found, by section; one without findings is left out."""

    input: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET
    documents: list[AnswerDocument] | msgspec.UnsetType = msgspec.UNSET
    output: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET
    grounding: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET


class AnswerWarning(msgspec.Struct):
    """What the reader should know."""

    type: str
    message: str


class AnswerDone(msgspec.Struct, kw_only=True):
    """What is told at the end. `outcome` and what follows it: where detectors were asked for."""

    sources: dict[str, AnswerSource]
    retrieval_info: list[AnswerRetrieval]
    metadata: AnswerTimes
    usage: dict[str, int] | None
    citations: list[AnswerCitation] | msgspec.UnsetType = msgspec.UNSET
    outcome: Literal["answered", "prompt_blocked", "answer_blocked"] | msgspec.UnsetType = msgspec.UNSET
    detections: AnswerDetections | msgspec.UnsetType = msgspec.UNSET
    warnings: list[AnswerWarning] | msgspec.UnsetType = msgspec.UNSET
    receipt: ReceiptBody | msgspec.UnsetType = msgspec.UNSET


class Answer(AnswerDone, kw_only=True):
    """A whole answer. `outcome` and what follows it: where detectors were asked for."""

    response: str


class AnswerFault(msgspec.Struct):
    """Why there is no answer; what `details` holds depends on the kind of the error."""

    error: str
    message: str
    details: dict[str, Any]


class RetrievalStart(msgspec.Struct):
    """So many sources are asked."""

    sources: int


class SourceComplete(msgspec.Struct):
    """A source has ended; what became of its documents is told where detectors were asked for."""

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
    """The model is asked."""


class AnswerToken(msgspec.Struct):
    """A piece of the answer; what was found in it, and its place, where detectors were asked for."""

    content: str
    detections: list[ContentDetection] | msgspec.UnsetType = msgspec.UNSET
    start_index: int | msgspec.UnsetType = msgspec.UNSET
    processed_index: int | msgspec.UnsetType = msgspec.UNSET


class AnswerBroken(msgspec.Struct):
    """The stream ends here, without an answer or in the middle of it."""

    message: str


class OllamaFault(msgspec.Struct):
    """Why there is no answer, or no more of it."""

    error: str


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
