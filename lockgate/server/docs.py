# SPDX-License-Identifier: Apache-2.0
"""Serves the OpenAPI document, and a page that shows it without loading anything from elsewhere."""

from html import escape
from typing import Any

import msgspec

from lockgate._version import __version__
from lockgate.api.openapi import build_document
from lockgate.server.exchange import Exchange


async def openapi_document(exchange: Exchange) -> None:
    """GET /openapi.json."""
    await exchange.reply.answer_json(msgspec.json.encode(build_document()))


async def docs_page(exchange: Exchange) -> None:
    """GET /docs and /redoc."""
    policy = b"default-src 'none'; style-src 'unsafe-inline'"
    await exchange.reply.answer(
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
