# SPDX-License-Identifier: Apache-2.0
"""Health of the process, and its description of itself (G-1, G-10 … G-12, D-12, D-16, D-17)."""

import json
import re
from datetime import datetime
from typing import Any

import lockgate
from lockgate.api.endpoints import ENDPOINTS
from tests.server.http_client import CONTENT, call
from tests.server.processes import ServerProcess
from tests.server.spaces import CHAT, STREAM, ask_chat, chat_request, collect, open_space


async def get(port: int, path: str) -> tuple[int, bytes]:
    answer = await call(port, path, method="GET", headers={})
    return answer.status, answer.body


async def test_health_names_the_versions(server: ServerProcess, fms: ServerProcess) -> None:
    """G-10, D-12."""
    emulated = b'{"fms-guardrails-orchestr8":"0.18.3"'
    assert await get(server.health_port, "/health") == (
        200,
        emulated + f',"lockgate":"{lockgate.__version__}"}}'.encode(),
    )
    assert await get(fms.health_port, "/health") == (200, emulated + b"}")


async def test_info_lists_every_part(mixed: ServerProcess) -> None:
    """G-11, G-12."""
    status, body = await get(mixed.health_port, "/info")
    names = ["word", "sentence", "paragraph"]
    names += ["words", "pii", "paragraphs", "whole", "regex", "chat", "slow", "broken"]
    services = ",".join(f'"{name}":{{"status":"HEALTHY"}}' for name in names)
    assert status == 200
    assert body.startswith(f'{{"services":{{{services}}},"settings":{{"hash":"'.encode())


async def test_info_has_a_hash_and_a_time_of_the_settings_but_not_under_fms(
    mixed: ServerProcess, fms: ServerProcess
) -> None:
    settings = json.loads((await get(mixed.health_port, "/info"))[1])["settings"]
    assert re.fullmatch("[0-9a-f]{64}", settings["hash"])
    assert datetime.fromisoformat(settings["loaded_at"]).tzinfo is not None
    assert list(json.loads((await get(fms.health_port, "/info"))[1])) == ["services"]


async def test_the_api_port_answers_health_and_ready_but_not_under_fms(
    server: ServerProcess, fms: ServerProcess
) -> None:
    """D-16."""
    assert await get(server.api_port, "/health") == (200, b'{"status":"healthy","service":"lockgate"}')
    assert await get(server.api_port, "/ready") == (200, b'{"status":"ready","checks":{}}')
    for path in ("/health", "/ready", "/openapi.json", "/docs"):
        assert await get(fms.api_port, path) == (404, b"")


async def test_the_health_port_has_no_api(server: ServerProcess) -> None:
    """G-1."""
    for path in (CONTENT, "/ready", "/docs", "/openapi.json"):
        assert (await get(server.health_port, path))[0] == 404


async def test_the_openapi_document_describes_the_routes_and_every_reference_leads_somewhere(
    server: ServerProcess,
) -> None:
    answer = await call(server.api_port, "/openapi.json", method="GET")
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    assert {one.path for one in ENDPOINTS if one.summary} == document["paths"].keys()
    for name in re.findall(rb'"#/components/schemas/([^"]+)"', answer.body):
        assert name.decode() in document["components"]["schemas"]


def find_unknown(value: Any, schema: dict[str, Any], schemas: dict[str, Any], place: str = "") -> list[str]:
    """The places of what a schema does not describe, and of what it demands and is missing."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(value, list):
        return [one for item in value for one in find_unknown(item, schema["items"], schemas, f"{place}[]")]
    schema = next((one for one in schema.get("anyOf", ()) if one["type"] == "object"), schema)
    if not isinstance(value, dict) or not schema.keys() & {"properties", "additionalProperties"}:
        return []
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    found = [f"{place}.{key}" for key in schema.get("required", ()) if key not in value]
    for key, item in value.items():
        inner = known.get(key, others)
        found += [f"{place}.{key}"] if inner is None else find_unknown(item, inner or {}, schemas, f"{place}.{key}")
    return found


async def test_the_openapi_document_describes_answers_their_events_and_their_errors(server: ServerProcess) -> None:
    document = (await call(server.api_port, "/openapi.json", method="GET")).json()
    schemas = document["components"]["schemas"]
    responses = {path: document["paths"][path]["post"]["responses"] for path in (CHAT, STREAM)}
    whole = responses[CHAT]["200"]["content"]["application/json"]["schema"]
    kinds = responses[STREAM]["200"]["content"]["text/event-stream"]["schema"]["oneOf"]
    events = {kind["properties"]["event"]["const"]: kind["properties"]["data"] for kind in kinds}
    fault = responses[CHAT]["400"]["content"]["application/json"]["schema"]
    document_with_mail = ("Mail", "Write to ana@example.org.", 0.9)
    async with open_space({"docs": [document_with_mail], "llm": "Mail bob@example.org [al/docs]."}) as space:
        guards: dict[str, Any] = {name: {"pii": {}} for name in ("documents", "output")}
        asked = chat_request(space, "docs", detectors=guards | {"on_finding": {"documents": "flag"}})
        status, told = await ask_chat(server.api_port, asked)
        assert (status, told["outcome"], find_unknown(told, whole, schemas)) == (200, "answered", [])
        assert told.keys() | {"pseudonyms"} == schemas["Answer"]["properties"].keys()
        heard = await collect(server.api_port, asked)
        assert [find_unknown(data, events[name], schemas) for name, data in heard] == [[]] * len(heard)
        assert {name for name, _ in heard} | {"error"} == events.keys()
        asked["model"] = {"url": space.url, "slug": "a/b"}
        status, told = await ask_chat(server.api_port, asked)
        assert (status, find_unknown(told, fault, schemas)) == (422, [])
    assert all(responses[path].keys() >= {"400", "401", "404", "413", "422", "429", "504"} for path in responses)
    assert not any("415" in responses[path] for path in responses)


async def test_the_docs_are_there_when_asked_for_and_load_nothing_from_elsewhere(narrow: ServerProcess) -> None:
    """D-17: works offline."""
    answer = await call(narrow.api_port, "/docs", method="GET")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert CONTENT.encode() in answer.body
    assert not re.search(rb"(?i)<(script|link|img|iframe|object|embed)|src=|href=|url\(|@import", answer.body)
