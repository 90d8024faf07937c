# SPDX-License-Identifier: Apache-2.0
"""The answers of chat and text completions, whole and as chunks of a stream. A model's other fields are passed on."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from lockgate.api.receipts import ReceiptBody


class CompletionFinding(msgspec.Struct, kw_only=True):
    """A finding; one of a reviewer has no position."""

    start: int | UnsetType = UNSET
    end: int | UnsetType = UNSET
    text: str | UnsetType = UNSET
    detector_id: str
    detection_type: str
    detection: str
    score: float
    evidence: list[Any] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class FoundInMessage(msgspec.Struct):
    """Findings in a message of the request."""

    message_index: int
    results: list[CompletionFinding]


class FoundInChoice(msgspec.Struct, kw_only=True):
    """Findings in a choice, in its content or in `field`; in a stream with the range of the text that was read."""

    choice_index: int
    field: str | UnsetType = UNSET
    start_index: int | UnsetType = UNSET
    processed_index: int | UnsetType = UNSET
    results: list[CompletionFinding]


class FoundInDocument(msgspec.Struct):
    """Findings in a retrieved document; `title_results` where it was found in the title."""

    path: str
    title: str
    outcome: Literal["dropped", "masked", "flagged"]
    results: list[CompletionFinding]
    title_results: list[CompletionFinding] | UnsetType = UNSET


class CompletionDetections(msgspec.Struct):
    """The findings by section; only agents have documents."""

    input: list[FoundInMessage] | UnsetType = UNSET
    documents: list[FoundInDocument] | UnsetType = UNSET
    output: list[FoundInChoice] | UnsetType = UNSET
    grounding: list[FoundInChoice] | UnsetType = UNSET


class CompletionWarning(msgspec.Struct):
    """A warning: its code and its text."""

    type: str
    message: str


class AnswerReport(msgspec.Struct, kw_only=True):
    """The report at the end of an answer. `pseudonyms` are sent if a header asks for them."""

    detections: CompletionDetections | UnsetType = UNSET
    warnings: list[CompletionWarning] | UnsetType = UNSET
    receipt: ReceiptBody | UnsetType = UNSET
    pseudonyms: dict[str, str] | UnsetType = UNSET


class CalledFunction(msgspec.Struct):
    """A function that is called, or a piece of it."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CalledTool(msgspec.Struct):
    """A custom tool that is called, or a piece of it."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    """A tool call, or a piece of it in a stream."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledTool | UnsetType = UNSET


class AnswerMessage(msgspec.Struct):
    """A message, or a piece of it in a stream."""

    role: str | UnsetType = UNSET
    content: str | list[Any] | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType | None = UNSET
    function_call: CalledFunction | UnsetType | None = UNSET


class CompletionChoice(msgspec.Struct, kw_only=True):
    """A choice: a message, a piece of one, or a text."""

    index: int
    message: AnswerMessage | UnsetType = UNSET
    delta: AnswerMessage | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: dict[str, Any] | UnsetType | None = UNSET
    finish_reason: str | UnsetType | None = UNSET
    stop_reason: Any = UNSET


class CompletionAnswer(AnswerReport, kw_only=True):
    """A completion, or one chunk of it."""

    id: str | UnsetType = UNSET
    object: str | UnsetType = UNSET
    created: int | UnsetType = UNSET
    model: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET
    choices: list[CompletionChoice]
    usage: dict[str, Any] | UnsetType | None = UNSET
    prompt_logprobs: Any = UNSET


class ModelEntry(msgspec.Struct):
    """A model that a request may name."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(msgspec.Struct):
    """The list of models."""

    object: str
    data: list[ModelEntry]


class ClientFault(msgspec.Struct):
    """The error object that OpenAI clients read."""

    message: str
    type: str
    param: str | None
    code: int | str


class ClientError(msgspec.Struct):
    """Every error, as body or as event."""

    code: int
    details: str
    error: ClientFault
