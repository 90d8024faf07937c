# SPDX-License-Identifier: Apache-2.0
"""Sources and models of plugins that raise or answer in a wrong shape fail as services would, on every surface."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.server.gateways import ask, gateway
from tests.server.http_client import Answer
from tests.server.odd_plugins import SECRET
from tests.server.odd_sources import FRAMES, SEARCHES

BOTH = pytest.mark.parametrize("is_stream", [False, True])
CHAT, ANSWERS = "/v1/chat/completions", "/api/v1/chat"
GENERIC = b"unexpected error"
ALLOWED = {"finds a generator", "finds a document from nowhere"}  # understood where the source is one of this instance


@asynccontextmanager
async def before(model: str = "", source: str = "") -> AsyncIterator[int]:
    config = f"""
models: {{main: {{embedded: "tests.server.odd_sources:open_odd_model", options: {{how: {model!r}}}, expose: true}}}}
sources: {{docs: {{embedded: "tests.server.odd_sources:open_odd_source", options: {{how: {source!r}}}, expose: true}}}}
agents: {{default: {{main: main, sources: [docs]}}}}
"""
    async with gateway(config) as port:
        yield port


async def ask_all(port: int, *, is_stream: bool) -> dict[str, Answer]:
    """The answers of a configured model, an agent and the aggregator."""
    asked: dict[str, Any] = {
        name: {"model": name, "stream": is_stream, "messages": [{"role": "user", "content": "Tea?"}]}
        for name in ("main", "agent/default")
    }
    answers = {name: await ask(port, CHAT, body) for name, body in asked.items()}
    own = {"url": "lockgate:", "slug": "docs", "name": "docs"}
    body = {"prompt": "Tea?", "data_sources": [own], "model": {**own, "slug": "main", "name": "main"}}
    answers["aggregator"] = await ask(port, f"{ANSWERS}/stream" if is_stream else ANSWERS, body)
    for answer in answers.values():
        assert SECRET.encode() not in answer.body
        assert GENERIC not in answer.body
    return answers


@BOTH
@pytest.mark.parametrize("how", SEARCHES)
async def test_a_source_fails_alone_and_the_answer_is_given(how: str, is_stream: bool) -> None:
    async with before(source=how) as port:
        answers = await ask_all(port, is_stream=is_stream)
    for answer in answers.values():
        assert answer.status == 200
        assert b"Tea." in answer.body
    if how not in ALLOWED:
        assert b'"status":"error","error_message":"The source failed"' in answers["aggregator"].body


@BOTH
@pytest.mark.parametrize("how", [how for how in FRAMES if how != "says nothing"])
async def test_a_model_fails_and_the_client_is_not_left_with_an_internal_error(how: str, is_stream: bool) -> None:
    async with before(model=how) as port:
        answers = await ask_all(port, is_stream=is_stream)
    for name in ("main", "agent/default"):
        assert answers[name].status == 503
        assert b"the model is not available" in answers[name].body
    assert b"Model generation failed: the model failed" in answers["aggregator"].body


@BOTH
async def test_plugins_that_keep_their_contract_answer(is_stream: bool) -> None:
    async with before() as port:
        answers = await ask_all(port, is_stream=is_stream)
    assert all(b"Tea." in answer.body for answer in answers.values())
    assert b"kettle" in answers["aggregator"].body
