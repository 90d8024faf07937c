# SPDX-License-Identifier: Apache-2.0
"""What is sent is what the OpenAPI document says: every answer, error and event encodes as its documented type.

Answers under policies are checked in `tests/surfaces`, which asks every surface, whole and streamed.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lockgate.api.endpoints import ENDPOINTS
from tests.contracts.http_peers import Exchange, open_peer
from tests.server.documented import find_undocumented
from tests.server.gateways import gateway
from tests.server.http_client import JSON_TYPE, Answer, call

CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}}}
models: {{wise: {{openai: {{url: "http://127.0.0.1:{port}/v1", model: m}}, expose: true}}}}
agents: {{free: {{main: wise, sources: []}}}}
detectors:
  words: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [done]}}}}
  context: {{embedded: keywords, type: text_context_doc, options: {{keywords: [done]}}}}
policies: {{strict: {{input: {{words: {{}}}}, output: {{words: {{}}}}, on_finding: mask}}}}
classifier: {{model_path: none}}
"""
MESSAGES = [{"role": "user", "content": "Is it done?"}]
CHAT, TEXT, OLLAMA = "/v1/chat/completions", "/v1/completions", "/api/chat"
CONTENT, LINES = "/api/v2/text/detection/content", "/api/v2/text/detection/stream-content"
GETS = ("/v1/models", "/v1/models/wise", "/v1/models/none", "/api/tags", "/api/version", "/health", "/ready")
CONTEXT = {"content": "done", "context_type": "docs", "context": ["x"], "detectors": {"context": {}}}
POSTS: tuple[tuple[str, Any, int], ...] = (
    (CONTENT, {"content": "It is done.", "detectors": {"words": {}}}, 200),
    (CONTENT, {"content": "It is done.", "detectors": {"none": {}}}, 404),
    (CONTENT, {"content": 3}, 422),
    ("/api/v2/text/detection/context", CONTEXT, 200),
    ("/v1/moderations", {"input": "It is done.", "policy": "strict"}, 200),
    ("/v1/moderations", {"input": []}, 400),
    (CHAT, {"model": "wise", "messages": []}, 400),
    (CHAT, {"model": "wise", "messages": MESSAGES, "stream": True}, 200),  # it breaks off
    (CHAT, {"model": "other", "messages": MESSAGES, "stream": True}, 200),
    (CHAT, {"model": "agent/free", "messages": MESSAGES, "stream": True}, 503),
    (CHAT, {"model": "agent/free", "messages": MESSAGES, "n": 2}, 400),
    (TEXT, {"model": "wise", "prompt": "x", "echo": True}, 400),
    (OLLAMA, {"model": "wise", "messages": MESSAGES}, 200),
    (OLLAMA, {"model": "none", "messages": MESSAGES}, 404),
    (OLLAMA, {"model": "wise", "messages": []}, 400),
    ("/api/v1/chat", {"prompt": ""}, 422),
)


async def play(exchange: Exchange) -> None:
    """A model whose streams break off."""
    if exchange.received.path == "/v1/models":
        await exchange.answer(json.dumps({"object": "list", "data": [{"id": "big", "permission": []}]}).encode())
        return
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "It is done. "}, "finish_reason": None}
    await exchange.start("text/event-stream")
    await exchange.chunk(b"data: %b\n\n" % json.dumps({**head, "choices": [choice]}).encode())
    await exchange.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    async with open_peer(play) as peer, gateway(CONFIG.format(port=peer.port)) as opened:
        yield opened


def check(path: str, answer: Answer) -> None:
    assert answer.body, answer
    assert find_undocumented(path, answer) == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", GETS)
async def test_lists_and_states_are_as_documented(port: int, path: str) -> None:
    answer = await call(port, path, method="GET")
    assert answer.status == (404 if path.endswith("none") else 200)
    check(path, answer)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "body", "status"), POSTS)
async def test_answers_and_errors_are_as_documented(port: int, path: str, body: Any, status: int) -> None:
    answer = await call(port, path, json.dumps(body).encode(), headers=JSON_TYPE)
    assert answer.status == status, answer
    check(path, answer)


@pytest.mark.asyncio(loop_scope="module")
async def test_lines_and_the_error_that_ends_them_are_as_documented(port: int) -> None:
    lines = [{"content": "It is done. ", "detectors": {"words": {}}}, {"content": "Two."}, {"content": 3}]
    body = b"".join([json.dumps(one).encode() + b"\n" for one in lines])
    answer = await call(port, LINES, body, headers={"content-type": "application/x-ndjson"})
    assert [line for line in answer.body.splitlines() if b'"code"' in line] != []
    check(LINES, answer)


def test_every_documented_endpoint_has_a_type_for_each_answer() -> None:
    for one in ENDPOINTS:
        if one.summary:
            assert one.response, one.name
            assert None not in one.response.values(), one.name


def test_what_is_not_documented_and_what_is_missing_are_found() -> None:
    answer = Answer(200, {"content-type": "application/json"}, b'{"object":"list","data":[],"more":1}')
    assert find_undocumented("/v1/models", answer) == ["/v1/models 200 ModelList: .more is not documented"]
    answer = Answer(200, {"content-type": "application/json"}, b'{"data":[]}')
    assert "missing required field `object`" in find_undocumented("/v1/models", answer)[0]
