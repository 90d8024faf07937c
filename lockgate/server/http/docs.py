# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the wire types, and a page that shows it without loading anything from elsewhere."""

from functools import cache
from html import escape
from typing import Any

import msgspec

from lockgate._version import __version__
from lockgate.server.http import chat, generation, guardrails, openai
from lockgate.server.http.exchange import Exchange
from lockgate.wire.chat import ChatRequest
from lockgate.wire.classification import Classification, GenerationDetection
from lockgate.wire.guardrails import (
    ContentAnswer,
    ContentEvent,
    ContentLine,
    ContentRequest,
    ContextRequest,
    ErrorAnswer,
    GeneratedRequest,
    PlainAnswer,
)
from lockgate.wire.openai import Chat, ChatDetection, Text

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
_SSE = "text/event-stream"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_ERRORS = {
    "400": "not JSON, or a detector that this endpoint cannot use",
    "404": "no such detector",
    "413": "larger than the limits allow",
    "415": "wrong content type",
    "422": "wrong shape, or a rule is broken",
    "500": "a part behind us failed",
    "503": "too many requests at once, or a part behind us is not available",
    "504": "the request took longer than the limit",
}


@cache
def build_document() -> dict[str, Any]:
    """The document; the types say what the bodies look like."""
    types = (
        ContentRequest, ContentAnswer, ContentLine, ContentEvent, ErrorAnswer, ChatDetection, ContextRequest,
        GeneratedRequest, PlainAnswer, Classification, GenerationDetection, Chat, Text, ChatRequest,
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
                _errors(names[ErrorAnswer], "415", "503"),
            ),
            **_reviews(names),
            **_generating(names),
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
    """The endpoints that ask a model. Completions are served when `openai` is configured."""
    guarded = "A completion whose prompt and answer are read by detectors; with `stream`, server-sent events."
    rows = (
        (openai.CHAT_PATH, "completeChat", guarded, Chat, (_JSON, _SSE)),
        (openai.TEXT_PATH, "completeText", guarded, Text, (_JSON, _SSE)),
        (openai.CLIENT_CHAT_PATH, "clientChat", "The same under the name that clients know.", Chat, (_JSON, _SSE)),
        (openai.CLIENT_TEXT_PATH, "clientText", "The same under the name that clients know.", Text, (_JSON, _SSE)),
        (generation.CLASSIFICATION_PATH, "classify", "Text by model id, with findings.", Classification, (_JSON,)),
        (generation.STREAMING_PATH, "classifyStream", "The same as server-sent events.", Classification, (_SSE,)),
        (chat.CHAT_PATH, "answer", "An answer from the documents of many sources.", ChatRequest, (_JSON,)),
        (chat.STREAM_PATH, "answerStream", "The same as server-sent events, step by step.", ChatRequest, (_SSE,)),
        (generation.GENERATION_PATH, "generate", "Text, then what reviewers say of it.", GenerationDetection, (_JSON,)),
    )
    errors = _errors(names[ErrorAnswer])
    return {
        path: _operation(name, words, _body(_JSON, names[kind]), {one: {"schema": _ANY_OBJECT} for one in sent}, errors)
        for path, name, words, kind, sent in rows
    }


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
            "responses": {"200": {"description": "the findings", "content": answer}, **errors},
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
