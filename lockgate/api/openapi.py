# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the table of endpoints, and a page that shows it."""

from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from typing import Any

import msgspec

from lockgate._version import __version__
from lockgate.api.endpoint import JSON, ApiEndpoint
from lockgate.api.endpoints import ENDPOINTS

Schema = dict[str, Any]
Schemas = Mapping[Any, Schema]  # by type


@cache
def build_document() -> dict[str, Any]:
    """Build the document; message types give the schemas."""
    documented = [one for one in ENDPOINTS if one.summary]
    types = list(dict.fromkeys(kind for one in documented for kind in _list_types(one)))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockgate",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "summary": "Detections on text, whole or while it streams",
        },
        "paths": {one.path: {one.method.lower(): _describe(one, by_type)} for one in documented},
        "components": {"schemas": components},
    }


def _list_types(one: ApiEndpoint) -> Iterable[Any]:
    """Every type that the description of an endpoint refers to."""
    yield from one.request
    for kind in one.response.values():
        yield from kind.values() if isinstance(kind, Mapping) else [kind]
    if one.request:
        yield one.format.error


def _describe(one: ApiEndpoint, schemas: Schemas) -> dict[str, Any]:
    """The operation of an endpoint; one without a request body is described by its answer alone."""
    content = {media: {"schema": _describe_response(kind, schemas)} for media, kind in one.response.items()}
    if not one.request:
        answer: dict[str, Any] = {"description": one.summary} | ({"content": content} if content else {})
        return {"operationId": one.name, "responses": {"200": answer}}
    kinds = [schemas[kind] for kind in one.request]
    schema = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
    responses: dict[str, Any] = {"200": {"description": "the answer", "content": content}}
    fault = {JSON: {"schema": schemas[one.format.error]}}
    for code in one.statuses or one.format.statuses:
        responses[code] = {"description": one.format.statuses[code], "content": fault}
    return {
        "operationId": one.name,
        "description": one.summary,
        "requestBody": {"required": True, "content": {one.request_media: {"schema": schema}}},
        "responses": responses,
    }


def _describe_response(kind: Any, schemas: Schemas) -> Schema:
    if not isinstance(kind, Mapping):
        return schemas[kind]
    events = [
        {
            "type": "object",
            "title": name,
            "properties": {"event": {"const": name}, "data": schemas[data]},
            "required": ["event", "data"],
        }
        for name, data in kind.items()
    ]
    return {"oneOf": events}


def render_page() -> bytes:
    """The document as an HTML page that loads no other resources."""
    document = build_document()
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = msgspec.json.format(msgspec.json.encode(operation), indent=2).decode()
            about = escape(operation.get("description", ""))
            parts.append(f"<h2><b>{method.upper()}</b> {escape(path)}</h2><p>{about}</p>{_folded('Details', shown)}")
    schemas = msgspec.json.format(msgspec.json.encode(document["components"]["schemas"]), indent=2).decode()
    parts.append(f"<h2>Messages</h2>{_folded('Schemas', schemas)}")
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
        "pre{overflow:auto;padding:1rem;outline:1px solid #8886}:root{color-scheme:light dark}"
    )
    title = f"Lockgate {escape(__version__)}"
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{style}</style><h1>{title}</h1>{''.join(parts)}</html>"
    )
    return page.encode()


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"
