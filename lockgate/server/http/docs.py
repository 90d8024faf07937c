# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the wire types, and a page that shows it without loading anything from elsewhere."""

from functools import cache
from html import escape
from typing import Any, Literal

import msgspec

from lockgate._version import __version__
from lockgate.core.endpoints import (
    CHAT_PATH,
    CHAT_STREAM_PATH,
    MODERATIONS_PATH,
    OLLAMA_CHAT_PATH,
    OLLAMA_MODELS_PATH,
    OLLAMA_TEXT_PATH,
    OLLAMA_VERSION_PATH,
)
from lockgate.server.http import agent, generation, guardrails, openai
from lockgate.server.http.exchange import Exchange
from lockgate.wire.agent_ollama import OllamaChat, OllamaText
from lockgate.wire.agent_openai import AgentChat, AgentText
from lockgate.wire.chat import ChatRequest
from lockgate.wire.classification import Classification, GenerationDetection
from lockgate.wire.guardrails import (
    ContentAnswer,
    ContentDetection,
    ContentEvent,
    ContentLine,
    ContentRequest,
    ContextRequest,
    ErrorAnswer,
    GeneratedRequest,
    PlainAnswer,
)
from lockgate.wire.moderations import ModerationAnswer, ModerationRequest
from lockgate.wire.openai import Chat, ChatDetection, Text
from lockgate.wire.receipts import ReceiptBody

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
_SSE = "text/event-stream"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_ERRORS = {
    "400": "not JSON, or a detector that this endpoint cannot use",
    "401": "the caller is not known",
    "404": "no such detector",
    "413": "larger than the limits allow",
    "415": "wrong content type",
    "422": "wrong shape, or a rule is broken",
    "429": "the caller's share is used up",
    "500": "a part behind us failed",
    "503": "too many requests at once, or a part behind us is not available",
    "504": "the request took longer than the limit",
}
_ANSWER_ERRORS = {
    "400": "the model gave no answer (in a stream this is an event), or a detector that cannot read this",
    "401": "the caller is not known",
    "404": "no such detector",
    "413": "larger than the limits allow",
    "422": "not JSON, wrong content type, wrong shape, or a rule is broken",
    "429": "the caller's share is used up",
    "500": "a detector or a chunker gave no answer (in a stream this is an event), or a bug",
    "503": "too many requests at once",
    "504": "the request took longer than the limit",
}


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


# The events of a streamed answer, in their order.
_ANSWER_EVENTS = {
    "retrieval_start": RetrievalStart,
    "source_complete": SourceComplete,
    "retrieval_complete": RetrievalComplete,
    "generation_start": GenerationStart,
    "token": AnswerToken,
    "done": AnswerDone,
    "error": AnswerBroken,
}


@cache
def build_document() -> dict[str, Any]:
    """The document; the types say what the bodies look like."""
    types = (
        ContentRequest, ContentAnswer, ContentLine, ContentEvent, ErrorAnswer, ChatDetection, ContextRequest,
        GeneratedRequest, PlainAnswer, Classification, GenerationDetection, Chat, Text, ChatRequest, Answer,
        AnswerFault, *_ANSWER_EVENTS.values(), AgentChat, AgentText, OllamaChat, OllamaText, OllamaFault,
        ModerationRequest, ModerationAnswer,
    )  # fmt: skip
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    names = dict(zip(types, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockgate",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "summary": "Detections on text, whole or while it streams",
        },
        "paths": {
            guardrails.CONTENT_PATH: _operation(
                "detectContent", "Findings of every requested detector on a text, by where they start.",
                _body(_JSON, names[ContentRequest]), _body(_JSON, names[ContentAnswer]), _errors(names[ErrorAnswer]),
            ),
            guardrails.STREAM_CONTENT_PATH: _operation(
                "streamContent",
                "One line of text in, one line out for each part that every requested detector has read. Full duplex: "
                "answers come while the request is still being sent. An error after the start is the last line.",
                _body(_NDJSON, names[ContentLine]), _body(_NDJSON, names[ContentEvent]),
                _errors(names[ErrorAnswer], "401", "415", "429", "503"),
            ),
            **_reviews(names),
            **_generating(names),
            **_answering(names),
            **_speaking(names),
            MODERATIONS_PATH: _operation(
                "moderate",
                "What the detectors of a policy find in texts, by category. The policy is that of `policy`, else "
                "`model` if it is one or ends in `@` and one, else that of the settings. A list of parts is one input.",
                _body(_JSON, names[ModerationRequest]), _body(_JSON, names[ModerationAnswer]),
                _errors(names[ErrorAnswer]),
            ),
            "/health": {"get": {"operationId": "health", "responses": {"200": {"description": "the process is up"}}}},
            "/ready": {"get": {"operationId": "ready", "responses": {"200": {"description": "requests are taken"}}}},
        },
        "components": {"schemas": components},
    }  # fmt: skip


def _reviews(names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """The endpoints on which detectors read something whole."""
    rows = (
        (guardrails.CHAT_PATH, "detectChat", "Findings on a chat, in the order of the detectors.", ChatDetection),
        (guardrails.CONTEXT_PATH, "detectContext", "Findings on a text beside its context.", ContextRequest),
        (guardrails.GENERATED_PATH, "detectGenerated", "Findings on a prompt and its answer.", GeneratedRequest),
    )
    answer, errors = _body(_JSON, names[PlainAnswer]), _errors(names[ErrorAnswer])
    return {
        path: _operation(name, words, _body(_JSON, names[kind]), answer, errors) for path, name, words, kind in rows
    }


def _generating(names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """The endpoints that ask a model; completions, where a server behind us answers them."""
    guarded = "A completion whose prompt and answer are read by detectors; with `stream`, server-sent events."
    rows = (
        (openai.CHAT_PATH, "completeChat", guarded, Chat, (_JSON, _SSE)),
        (openai.TEXT_PATH, "completeText", guarded, Text, (_JSON, _SSE)),
        (generation.CLASSIFICATION_PATH, "classify", "Text by model id, with findings.", Classification, (_JSON,)),
        (generation.STREAMING_PATH, "classifyStream", "The same as server-sent events.", Classification, (_SSE,)),
        (generation.GENERATION_PATH, "generate", "Text, then what reviewers say of it.", GenerationDetection, (_JSON,)),
    )
    errors = _errors(names[ErrorAnswer])
    return {
        path: _operation(name, words, _body(_JSON, names[kind]), {one: {"schema": _ANY_OBJECT} for one in sent}, errors)
        for path, name, words, kind, sent in rows
    }


def _answering(names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """The endpoints that answer from documents; their errors have a shape of their own."""
    content = _body(_JSON, names[AnswerFault])
    errors = {code: {"description": words, "content": content} for code, words in _ANSWER_ERRORS.items()}
    request = _body(_JSON, names[ChatRequest])
    whole = "An answer from the documents of many sources."
    streamed = (
        "The same as server-sent events, step by step. The schema is that of one event; `data` is sent as JSON. "
        "They come in the order shown: `source_complete` for each source, `token` for each piece; `done` is the last, "
        "or `error` in place of all that would follow."
    )
    return {
        CHAT_PATH: _operation("answer", whole, request, _body(_JSON, names[Answer]), errors),
        CHAT_STREAM_PATH: _operation("answerStream", streamed, request, _body(_SSE, _one_event(names)), errors),
    }


def _speaking(names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """What clients of OpenAI's and Ollama's call."""
    ours = "`model` is `brunix`, `agent/<name>`, a configured model, or one under a policy, `<model>@<policy>`."
    passed = f"{ours} With `openai` configured any other goes to that server, its prompt and answer read by detectors."
    events, lines = (
        f"{passed} With `stream`, server-sent events.",
        f"{ours} One line per piece, unless `stream` is off.",
    )
    rows = (
        (openai.CLIENT_CHAT_PATH, "clientChat", events, (Chat, AgentChat), (_JSON, _SSE), ErrorAnswer),
        (openai.CLIENT_TEXT_PATH, "clientText", events, (Text, AgentText), (_JSON, _SSE), ErrorAnswer),
        (OLLAMA_CHAT_PATH, "ollamaChat", lines, (OllamaChat,), (_JSON, _NDJSON), OllamaFault),
        (OLLAMA_TEXT_PATH, "ollamaGenerate", lines, (OllamaText,), (_JSON, _NDJSON), OllamaFault),
    )
    lists = (
        (agent.MODELS_PATH, "listModels", "whom a request may name"),
        (OLLAMA_MODELS_PATH, "ollamaTags", "the same, for clients of Ollama's"),
        (OLLAMA_VERSION_PATH, "ollamaVersion", "our version"),
    )
    posts = {
        path: _operation(
            name,
            words,
            _body(_JSON, {"anyOf": [names[kind] for kind in kinds]}),
            {one: {"schema": _ANY_OBJECT} for one in sent},
            _errors(names[fault]),
        )
        for path, name, words, kinds, sent, fault in rows
    }
    return posts | {
        path: {"get": {"operationId": name, "responses": {"200": {"description": words}}}}
        for path, name, words in lists
    }


def _one_event(names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    kinds = [
        {
            "type": "object",
            "title": event,
            "properties": {"event": {"const": event}, "data": names[kind]},
            "required": ["event", "data"],
        }
        for event, kind in _ANSWER_EVENTS.items()
    ]
    return {"oneOf": kinds}


def _body(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _errors(schema: dict[str, Any], *codes: str) -> dict[str, Any]:
    """Those that may come as a status; without codes, all."""
    content = _body(_JSON, schema)
    return {code: {"description": _ERRORS[code], "content": content} for code in codes or _ERRORS}


def _operation(
    name: str, description: str, request: dict[str, Any], answer: dict[str, Any], errors: dict[str, Any]
) -> dict[str, Any]:
    return {
        "post": {
            "operationId": name,
            "description": description,
            "requestBody": {"required": True, "content": request},
            "responses": {"200": {"description": "the answer", "content": answer}, **errors},
        }
    }


async def openapi_document(exchange: Exchange) -> None:
    """GET /openapi.json."""
    await exchange.answer_json(msgspec.json.encode(build_document()))


async def docs_page(exchange: Exchange) -> None:
    """GET /docs and /redoc."""
    policy = b"default-src 'none'; style-src 'unsafe-inline'"
    await exchange.answer(
        200,
        _render(build_document()).encode(),
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy),
    )


def _render(document: dict[str, Any]) -> str:
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = msgspec.json.format(msgspec.json.encode(operation), indent=2).decode()
            words = escape(operation.get("description", ""))
            parts.append(f"<h2><b>{method.upper()}</b> {escape(path)}</h2><p>{words}</p>{_folded('Details', shown)}")
    schemas = msgspec.json.format(msgspec.json.encode(document["components"]["schemas"]), indent=2).decode()
    parts.append(f"<h2>Messages</h2>{_folded('Schemas', schemas)}")
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
        "pre{overflow:auto;padding:1rem;border:1px solid #8886}:root{color-scheme:light dark}"
    )
    title = f"Lockgate {escape(__version__)}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{style}</style><h1>{title}</h1>{''.join(parts)}</html>"
    )


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"
