# SPDX-License-Identifier: Apache-2.0
"""Our detectors as a service: the published contracts through our own clients, and byte for byte over raw HTTP."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.backends.chunker import ChunkerClient, open_chunker_client
from lockgate.backends.detector import DetectorClient, ReviewerClient, open_detector_client
from lockgate.errors import Rejected
from lockgate.gate.values import Chunk, Claim, Conversation, Excerpt, Generated, Subject
from lockgate.plugins import find_factory
from lockgate.testing import CHUNKER_TEXTS, check_chunker, check_detector
from tests.contracts.grpc_peers import frames_of
from tests.contracts.parts_process import PartsProcess
from tests.server.gateways import gateway
from tests.server.http_client import CONTENT, JSON_TYPE, Answer, build_request, call, connect, stream
from tests.waits import until

CONTENTS = "/api/v1/text/contents"
PROSE = (
    "Dear Dr. Ruiz, write to ana@example.org (or é@x.example). Pay with 4111 1111 1111 1111!\n\n"
    "😀 Call +1 415 555 2671, e.g. today. 中文句子。下一句！The key is AKIAIOSFODNN7EXAMPLE. "
) * 40
DETECTORS: list[tuple[str, dict[str, Any]]] = [
    ("pii", {}),
    ("pii", {"entities": ["EmailAddress"]}),
    ("secrets", {}),
    ("regex", {"patterns": ["[0-9]+"]}),
    ("keywords", {"keywords": ["mail", "句", "a", "b", "c", "d"]}),
    ("format", {"format": "json"}),
    ("citations", {"sources": ["al/notes"]}),
]


@asynccontextmanager
async def calling_detector(parts: PartsProcess, name: str) -> AsyncIterator[DetectorClient]:
    async with open_detector_client(name, parts.detector()) as client:
        assert isinstance(client, DetectorClient)
        yield client


@asynccontextmanager
async def calling_chunker(parts: PartsProcess, name: str) -> AsyncIterator[ChunkerClient]:
    async with open_chunker_client(name, parts.service(parts.chunkers_port)) as client:
        yield client


async def ask(parts: PartsProcess, body: Any, path: str = CONTENTS, **headers: str) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(parts.detectors_port, path, raw, headers={**JSON_TYPE, **names})


@pytest.mark.parametrize(("name", "params"), DETECTORS)
async def test_a_detector_behind_the_api_keeps_its_contract_and_finds_what_it_finds_here(
    parts: PartsProcess, name: str, params: Mapping[str, Any]
) -> None:
    excerpts = [Excerpt(text) for text in ("", *CHUNKER_TEXTS, PROSE, "{ [al/notes, bo/b]")]
    async with calling_detector(parts, name) as remote, find_factory("lockgate.detectors", name)({}) as embedded:
        await check_detector(remote, params)
        found = await remote.accept(params, ()).read(excerpts)
        assert found == [list(one) for one in await embedded.accept(params, ()).read(excerpts)]
        assert any(found)


@pytest.mark.parametrize("name", ["sentence", "paragraph", "word"])
async def test_a_chunker_behind_the_api_keeps_its_contract_and_cuts_as_it_cuts_here(
    parts: PartsProcess, name: str
) -> None:
    pieces = [PROSE[at : at + 7] for at in range(0, len(PROSE), 7)]
    async with calling_chunker(parts, name) as remote, find_factory("lockgate.chunkers", name)({}) as embedded:
        await check_chunker(remote)
        whole = [chunk._replace(is_forced=False) for chunk in await embedded.cut(PROSE)]
        assert await remote.cut(PROSE) == whole
        streamed = [chunk async for chunk in remote.stream(frames_of(pieces))]
        assert [chunk._replace(inputs=None) for chunk in streamed] == whole
        assert [chunk.inputs for chunk in streamed] == [_inputs_of(chunk, 7) for chunk in whole]
        assert await remote.cut("") == []


def _inputs_of(chunk: Chunk, size: int) -> tuple[int, int]:
    """The first and the last message with a character of the chunk, where each has `size` of them."""
    return chunk.start // size, (chunk.end - 1) // size


async def test_the_health_of_both_servers_can_be_asked(parts: PartsProcess) -> None:
    async with calling_detector(parts, "pii") as detector, calling_chunker(parts, "sentence") as chunker:
        assert (await detector.probe(())).status == "HEALTHY"
        assert (await chunker.probe(())).status == "HEALTHY"
    answer = await call(parts.detectors_port, "/health", method="GET", headers={})
    assert (answer.status, answer.body) == (200, b'{"status":"HEALTHY"}')


async def test_the_answer_has_one_list_per_text_with_places_in_code_points(parts: PartsProcess) -> None:
    answer = await ask(parts, {"contents": ["😀 ana@example.org", "none"], "detector_params": {}}, detector_id="pii")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.body.decode() == (
        '[[{"start":2,"end":17,"text":"ana@example.org","detection":"EmailAddress","detection_type":"pii",'
        '"score":0.95,"metadata":{"rule":"email"}}],[]]'
    )


async def test_no_texts_are_answered_with_no_lists_and_parameters_may_be_missing(parts: PartsProcess) -> None:
    assert (await ask(parts, {"contents": []}, detector_id="pii")).body == b"[]"


async def test_detector_id_names_the_detector_and_the_model_name_where_it_is_missing(parts: PartsProcess) -> None:
    body = {"contents": ["ana@example.org"]}
    named = await ask(parts, body, detector_id="secrets", x_model_name="pii")
    fallback = await ask(parts, body, x_model_name="pii")
    assert named.body == b"[[]]"
    assert len(fallback.json()[0]) == 1


async def test_a_threshold_is_honoured_and_without_one_nothing_is_left_out(parts: PartsProcess) -> None:
    body: dict[str, Any] = {"contents": ["Call 415-555-2671 or ana@example.org"]}
    scores = [one["score"] for one in (await ask(parts, body, detector_id="pii")).json()[0]]
    assert sorted(scores) == [0.85, 0.95]
    body["detector_params"] = {"threshold": 0.9}
    assert [one["score"] for one in (await ask(parts, body, detector_id="pii")).json()[0]] == [0.95]


@pytest.mark.parametrize(
    ("body", "detector", "status", "message"),
    [
        ({"contents": ["a"]}, "nobody", 404, "detector `nobody` not found"),
        ({"contents": ["a"]}, "", 422, "header `detector-id` must name a detector"),
        ({"contents": ["a"], "detector_params": {"x": 1}}, "secrets", 422, "unknown parameter `x`"),
        ({"contents": ["a"]}, "regex", 422, "`patterns` is required"),
        (
            {"contents": ["a"], "detector_params": {"threshold": "0.5"}},
            "pii",
            422,
            "`threshold` parameter specified for model `pii` must be a number",
        ),
        ({}, "pii", 422, "missing field `contents`"),
        ({"contents": "a"}, "pii", 422, "contents: invalid type: string, expected a sequence"),
        ({"contents": ["a"], "detector_params": []}, "pii", 422, "detector_params: invalid type: sequence"),
        (b"{", "pii", 400, "Failed to parse the request body as JSON"),
        (b'{"contents":["' + b"a" * 2_097_152 + b'"]}', "pii", 413, "length limit exceeded"),
    ],
)
async def test_errors_are_in_the_words_of_the_detector_api(
    parts: PartsProcess, body: Any, detector: str, status: int, message: str
) -> None:
    answer = await ask(parts, body, **({"detector_id": detector} if detector else {}))
    error = answer.json()
    assert (answer.status, sorted(error), error["code"]) == (status, ["code", "message"], status)
    assert message in error["message"]


async def test_a_wrong_type_and_a_head_that_is_too_large_are_told_in_the_same_words(parts: PartsProcess) -> None:
    answer = await call(parts.detectors_port, CONTENTS, b"{}", headers={"detector-id": "pii"})
    assert (answer.status, answer.json()["code"], "message" in answer.json()) == (415, 415, True)
    async with connect(parts.detectors_port) as client:
        await client.send(b"GET /health HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n")
        refused = await client.read_answer()
    assert refused.json() == {"code": 431, "message": "request head is too large"}


async def test_other_paths_and_methods_are_refused_without_a_body(parts: PartsProcess) -> None:
    lost = await call(parts.detectors_port, "/api/v2/text/detection/content", b"{}")
    wrong = await call(parts.detectors_port, CONTENTS, method="GET")
    assert (lost.status, lost.body) == (404, b"")
    assert (wrong.status, wrong.headers["allow"], wrong.body) == (405, "POST", b"")


@pytest.mark.parametrize(
    ("kind", "name", "subject"),
    [
        ("text_chat", "chat", Conversation([{"role": "user", "content": "no"}, {"role": "user", "content": "tea"}])),
        ("text_generation", "answer", Generated("tea?", "Yes, tea.")),
        ("text_context_doc", "claim", Claim("tea is green", "docs", ["green"])),
    ],
)
async def test_reviewers_have_paths_of_their_own(
    configured: PartsProcess, kind: str, name: str, subject: Subject
) -> None:
    async with open_detector_client(name, configured.detector(kind)) as client:
        assert isinstance(client, ReviewerClient)
        [found] = await client.accept({}, ()).review(subject)
        assert (found.detection, found.detection_type, found.score) == ("Keyword", "keyword", 1.0)
        assert await client.accept({"threshold": 1.1}, ()).review(subject) == []
        with pytest.raises(Rejected, match="unknown parameter `x`"):
            await client.accept({"x": 1}, ()).review(subject)


async def test_the_only_detector_of_its_type_need_not_be_named(configured: PartsProcess) -> None:
    contents = await ask(configured, {"contents": ["茶"]})
    chat = await ask(configured, {"messages": [{"role": "user", "content": "tea"}]}, "/api/v1/text/chat")
    assert (contents.status, len(contents.json()[0])) == (200, 1)
    assert (chat.status, len(chat.json())) == (200, 1)
    assert "start" not in chat.json()[0]


async def test_a_detector_of_another_type_or_that_runs_elsewhere_is_refused(configured: PartsProcess) -> None:
    wrong = await ask(configured, {"contents": ["a"]}, detector_id="chat")
    away = await ask(configured, {"contents": ["a"]}, detector_id="away")
    empty = await ask(configured, {"messages": []}, "/api/v1/text/chat")
    assert (wrong.status, wrong.json()["message"]) == (400, "detector `chat` is not supported by this endpoint")
    assert (away.status, away.json()["message"]) == (404, "detector `away` not found")
    assert (empty.status, empty.json()["message"]) == (422, "`messages` is required")


async def test_one_request_too_many_is_refused_in_the_same_words(configured: PartsProcess) -> None:
    request = build_request("POST", CONTENTS, b'{"contents":[]}')
    async with connect(configured.detectors_port) as client:
        await client.send(request)
        await client.read_answer()  # the server knows the connection: it sees what comes here before it sees a new one
        await client.send(request[:-5])
        refused = await ask(configured, {"contents": []})
        await client.send(request[-5:])
        assert (await client.read_answer()).body == b"[]"
    assert refused.json() == {"code": 503, "message": "too many requests at once, try again later"}
    assert refused.headers["retry-after"] == "1"


async def test_what_guards_the_api_and_not_the_parts_is_told_at_start(configured: PartsProcess) -> None:
    assert configured.has_logged("warning", reason="`callers` has no effect on parts")
    [started] = configured.events("started")
    assert started["detectors"] == ["words", "chat", "answer", "claim"]
    assert started["chunkers"] == ["whole", "short", "sentence", "paragraph", "word"]


async def test_every_request_leaves_one_line_in_the_log_and_joins_its_trace(parts: PartsProcess) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"detector_id": "pii", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    await ask(parts, {"contents": ["a@b.example"]}, **headers)
    line = {"trace_id": trace, "path": CONTENTS, "status": 200}
    await until(lambda: parts.has_logged("request", **line), "the line")
    assert "a@b.example" not in parts.log_path.read_text()


LOCAL = """
detectors:
  pii: {embedded: pii, chunker_id: sentence}
  keywords: {embedded: keywords, chunker_id: word}
"""
REMOTE = """
detectors:
  pii: {type: text_contents, chunker_id: sentence, default_threshold: 0.5, service: &detectors {hostname: 127.0.0.1, port: DETECTORS}}
  keywords: {type: text_contents, chunker_id: word, default_threshold: 0.5, service: *detectors}
chunkers:
  sentence: {type: sentence, service: &chunkers {hostname: 127.0.0.1, port: CHUNKERS}}
  word: {type: sentence, service: *chunkers}
"""  # noqa: E501


async def test_a_gateway_with_remote_parts_answers_as_one_with_embedded_parts(parts: PartsProcess) -> None:
    remote = REMOTE.replace("DETECTORS", str(parts.detectors_port)).replace("CHUNKERS", str(parts.chunkers_port))
    detectors = {"pii": {}, "keywords": {"keywords": ["key", "句"]}}
    text = PROSE[:700]
    body = json.dumps({"content": text, "detectors": detectors}).encode()
    lines = [{"content": text[at : at + 50]} for at in range(0, len(text), 50)]
    answers = []
    for config in (LOCAL, remote):
        async with gateway(config) as port:
            whole = await call(port, CONTENT, body)
            streamed = await stream(port, {"detectors": detectors, **lines[0]}, *lines[1:])
            answers.append((whole.json(), streamed.lines()))
    assert answers[0] == answers[1]
    assert len(answers[0][0]["detections"]) > 20
    assert answers[0][1][-1]["processed_index"] == len(text)
