# SPDX-License-Identifier: Apache-2.0
"""Health of the process, and its description of itself (G-1, G-10 … G-12, D-12, D-16, D-17)."""

import re

import lockgate
from lockgate.config.report import ENDPOINTS
from tests.server.http_client import CONTENT, call
from tests.server.processes import ServerProcess


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
    assert (status, body) == (200, f'{{"services":{{{services}}}}}'.encode())


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
        assert await get(server.health_port, path) == (404, b"")


async def test_the_openapi_document_describes_the_routes_and_every_reference_leads_somewhere(
    server: ServerProcess,
) -> None:
    answer = await call(server.api_port, "/openapi.json", method="GET")
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    served = {path for path, _, _ in ENDPOINTS}
    assert served | {"/health", "/ready"} == document["paths"].keys()
    for name in re.findall(rb'"#/components/schemas/([^"]+)"', answer.body):
        assert name.decode() in document["components"]["schemas"]


async def test_the_docs_are_there_when_asked_for_and_load_nothing_from_elsewhere(narrow: ServerProcess) -> None:
    """D-17: works offline."""
    answer = await call(narrow.api_port, "/docs", method="GET")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert CONTENT.encode() in answer.body
    assert not re.search(rb"(?i)<(script|link|img|iframe|object|embed)|src=|href=|url\(|@import", answer.body)
