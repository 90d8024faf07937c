# SPDX-License-Identifier: Apache-2.0
"""Remote detectors that misbehave, seen through every endpoint that asks them (G-32, G-34, G-105, G-114, G-164)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import build_nlp_server
from tests.contracts.http_peers import (
    Exchange,
    Peer,
    Script,
    break_off,
    open_closed_port,
    open_peer,
    reply,
    reply_json,
    send_raw,
    stay_silent,
    stream,
)
from tests.server.endings import ended_badly, ended_well, error_of, failure, failure_after
from tests.server.gateways import (
    CHAT,
    TEXT,
    V1,
    V1_STREAM,
    ask,
    chunk,
    events_of,
    gateway,
    listen,
    results_in,
    sse,
    text_in,
)
from tests.server.http_client import CONTENT, NDJSON_TYPE, STREAM, Answer
from tests.server.http_client import stream as stream_content

SAID = "One is done. Two is done. Three"
STATUSES = [400, 401, 403, 404, 408, 409, 422, 429, 500, 502, 503, 504]
USER = [{"role": "user", "content": "Hello. You"}]
DETECTION = "/api/v2/text/detection/"


def config(model: int, detector: int, extra: str = "", patience: int = 600) -> str:
    at = f"service: {{hostname: 127.0.0.1, port: {detector}, request_timeout: {patience}}}, default_threshold: 0.5"
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model}, request_timeout: 600}}}}
detectors:
  bad: {{type: text_contents, chunker_id: sentence, {at}}}
  worse: {{type: text_contents, chunker_id: sentence, {at}}}
  whole: {{type: text_contents, chunker_id: whole_doc_chunker, {at}}}
  talk: {{type: text_chat, chunker_id: whole_doc_chunker, {at}}}
  about: {{type: text_generation, chunker_id: whole_doc_chunker, {at}}}
  facts: {{type: text_context_doc, chunker_id: whole_doc_chunker, {at}}}
  fine: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [done]}}}}
{extra}
"""


async def speak(exchange: Exchange) -> None:
    """A model that answers as it is asked."""
    is_chat = "chat" in exchange.received.path
    asked = exchange.received.json
    if not asked.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": SAID}, "text": SAID, "finish_reason": "stop"}
        await exchange.answer(json.dumps({"id": "c1", "choices": [choice], "usage": None}).encode())
        return
    messages = [chunk(piece) for piece in ("One is done. ", "Two is done. ", "Three")]
    if not is_chat:
        messages = [
            {**one, "choices": [{"index": 0, "text": one["choices"][0]["delta"]["content"]}]} for one in messages
        ]
    await stream(sse(*messages, {**chunk(), "choices": [], "usage": {"total_tokens": 1}}, "[DONE]"))(exchange)


@asynccontextmanager
async def before(
    script: Script, extra: str = "", patience: int = 600, **environ: str
) -> AsyncIterator[tuple[int, Peer]]:
    async with (
        open_peer(speak) as model,
        open_peer(script) as detector,
        gateway(config(model.port, detector.port, extra, patience), **environ) as port,
    ):
        yield port, detector


def chat(is_stream: bool, **detectors: Any) -> dict[str, Any]:
    return {"model": "m", "stream": is_stream, "messages": USER, "detectors": detectors}


def text(is_stream: bool, **detectors: Any) -> dict[str, Any]:
    return {"model": "m", "stream": is_stream, "prompt": "Hello. You", "detectors": detectors}


V1_BODY = {"model_id": "m", "inputs": "Hello. You", "guardrail_config": {"input": {"models": {"bad": {}}}}}
WHOLE_CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "content": (CONTENT, "bad", {"content": "Hello. You", "detectors": {"fine": {}, "bad": {}}}),
    "content whole": (CONTENT, "whole", {"content": "Hello. You", "detectors": {"whole": {}}}),
    "chat": (DETECTION + "chat", "talk", {"messages": USER, "detectors": {"talk": {}}}),
    "context": (DETECTION + "context", "facts",
                {"content": "x", "context_type": "docs", "context": ["y"], "detectors": {"facts": {}}}),
    "generated": (DETECTION + "generated", "about",
                  {"prompt": "x", "generated_text": "y", "detectors": {"about": {}}}),
    "v1 input": (V1, "bad", V1_BODY),
    "chat input": (CHAT, "bad", chat(False, input={"bad": {}})),
    "chat output": (CHAT, "bad", chat(False, output={"fine": {}, "bad": {}})),
    "chat output whole": (CHAT, "whole", chat(False, output={"whole": {}})),
    "chat review": (CHAT, "talk", chat(False, output={"fine": {}, "talk": {}})),
    "text input": (TEXT, "bad", text(False, input={"bad": {}})),
    "text output": (TEXT, "bad", text(False, output={"bad": {}})),
    "text review": (TEXT, "about", text(False, output={"about": {}})),
}  # fmt: skip
# How much of the text may have left before the error.
STREAM_CASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "chat input": (CHAT, "bad", chat(True, input={"bad": {}}), ""),
    "chat chunked": (CHAT, "bad", chat(True, output={"fine": {}, "bad": {}}), ""),
    "chat whole": (CHAT, "whole", chat(True, output={"whole": {}}), SAID),
    "chat whole behind chunks": (CHAT, "whole", chat(True, output={"fine": {}, "whole": {}}), SAID),
    "chat review": (CHAT, "talk", chat(True, output={"talk": {}}), SAID),
    "chat review behind chunks": (CHAT, "talk", chat(True, output={"fine": {}, "talk": {}}), SAID),
    "text input": (TEXT, "bad", text(True, input={"bad": {}}), ""),
    "text chunked": (TEXT, "bad", text(True, output={"bad": {}, "fine": {}}), ""),
    "text whole": (TEXT, "whole", text(True, output={"whole": {}}), SAID),
    "text review": (TEXT, "about", text(True, output={"about": {}, "fine": {}}), SAID),
}


async def ask_whole(port: int) -> Iterable[tuple[str, Answer]]:
    answers = await asyncio.gather(*[ask(port, path, body) for path, _, body in WHOLE_CASES.values()])
    return zip([name for _, name, _ in WHOLE_CASES.values()], answers, strict=True)


async def ask_streams(port: int) -> Iterable[tuple[str, str, str, Answer]]:
    cases = STREAM_CASES.values()
    answers = await asyncio.gather(*[ask(port, path, body) for path, _, body, _ in cases])
    return [(path, name, left, answer) for (path, name, _, left), answer in zip(cases, answers, strict=True)]


def said(path: str, events: list[Any]) -> str:
    if path == CHAT:
        return text_in(events)
    return "".join(choice["text"] for event in events for choice in event["choices"])


async def check_everywhere(port: int, status: int, words: str) -> None:
    """The same failure at every endpoint, and the text that stays."""

    def error(name: str) -> dict[str, Any]:
        return failure_after(name, status, words)

    line = {"detectors": {"fine": {}, "bad": {}}, "content": SAID}
    whole, streamed, v1, lines = await asyncio.gather(
        ask_whole(port), ask_streams(port), ask(port, V1_STREAM, V1_BODY), stream_content(port, line)
    )
    for name, answer in whole:
        assert (answer.status, answer.json()) == (error(name)["code"], error(name))
    for path, name, left, answer in streamed:
        rest = ended_badly(events_of(answer), error(name))
        assert said(path, rest) == left
        assert [event for event in rest if not event["choices"] and "detections" in event] == []
    assert ended_badly(events_of(v1), error("bad"), has_mark=False) == []
    assert lines.lines() == [error("bad")]


@pytest.mark.parametrize("status", STATUSES)
async def test_the_statuses_of_detectors_reach_the_caller_or_not(status: int) -> None:
    """D-41, G-114: a body of another form has no words."""
    async with before(reply_json({"code": status, "message": "too hot"}, status)) as (port, peer):
        await check_everywhere(port, status, "too hot")
        peer.script = reply(b"", status)
        await check_everywhere(port, status, "")


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        (500, {"code": 404, "message": "no such thing"}, 404, "no such thing"),
        (422, {"code": 500, "message": "bug"}, 500, "bug"),
        (422, {"code": 7, "message": "odd"}, 422, "odd"),
        (503, {"code": 1000, "message": "odd"}, 503, "odd"),
        (400, {"code": -1, "message": "odd"}, 400, ""),
        (400, {"code": "400", "message": "odd"}, 400, ""),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, 422, ""),
        (404, {"detail": "Not Found"}, 404, ""),
        (201, [[]], 500, ""),
        (204, None, 500, ""),
        (302, {"code": 302, "message": "there"}, 500, "there"),
    ],
)
async def test_the_code_in_the_body_counts_unless_it_is_none(status: int, body: Any, expected: int, words: str) -> None:
    """G-114, LIM-35."""
    async with before(reply(b"", status) if body is None else reply_json(body, status)) as (port, _):
        await check_everywhere(port, expected, words)


BROKEN: dict[str, Script] = {
    "resets": break_off,
    "is silent": stay_silent,
    "speaks no HTTP": send_raw(b"220 mail\r\n\r\n"),
    "breaks off": send_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n[["),
    "has a page": reply(b"<html></html>", kind="text/html"),
    "answers nothing": reply(b""),
    "answers null": reply(b"null"),
    "answers an object": reply_json({"detections": []}),
    "answers numbers": reply_json([[5]]),
    "has half an answer": reply(b'[[{"start":0'),
    "nests too deep": reply(b"[" * 100_000),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_detector_that_breaks_down_is_named_by_one_error_and_nothing_unread_leaves(how: str) -> None:
    """D-41."""
    async with before(BROKEN[how], patience=1 if how == "is silent" else 600) as (port, _):
        await check_everywhere(port, 504 if how == "is silent" else 502, "")


async def test_a_detector_that_is_not_there_is_named_by_one_error() -> None:
    async with (
        open_peer(speak) as model,
        open_closed_port() as nobody,
        gateway(config(model.port, nobody.port or 0)) as port,
    ):
        await check_everywhere(port, 503, "")


FOUND = {"start": 0, "end": 3, "text": "One", "detection": "x", "detection_type": "y", "score": 0.9}


@pytest.mark.parametrize(
    "change",
    [
        {"start": -1},
        {"start": 1.5},
        {"end": 2**64},
        {"start": 3, "end": 2},
        {"start": None},
        {"score": "high"},
        {"detection": None},
        {"text": 5},
    ],
    ids=repr,
)
async def test_a_finding_of_the_wrong_shape_lets_nothing_out(change: dict[str, Any]) -> None:
    """G-111."""
    async with before(reply_json([[FOUND | change]])) as (port, _):
        for name in ("content", "chat output", "text output", "chat input"):
            path, _, body = WHOLE_CASES[name]
            answer = await ask(port, path, body)
            assert (answer.status, answer.json()) == (502, failure("bad"))
        for name in ("chat chunked", "chat whole", "text chunked"):
            path, asked, body, left = STREAM_CASES[name]
            assert said(path, ended_badly(events_of(await ask(port, path, body)), failure(asked))) == left


LIES: dict[str, list[Any]] = {
    "a list is missing": [[FOUND], []],
    "there is a list too many": [[], [], [], []],
    "nothing": [],
    "a place behind the text": [[], [FOUND | {"start": 13, "end": 16, "text": "Two"}], []],
    "a place beyond any text": [[], [FOUND | {"start": 900, "end": 2**62}], []],
    "an empty place": [[], [FOUND | {"end": 0, "text": ""}], []],
    "another text": [[], [FOUND | {"text": "She"}], []],
}


@pytest.mark.parametrize("how", LIES)
async def test_an_answer_that_breaks_the_contract_is_a_failure_of_the_detector(how: str) -> None:
    """D-38."""
    streamed = LIES[how] if how.startswith(("there", "nothing")) else [LIES[how][1]]
    async with before(reply_json(LIES[how])) as (port, peer):
        answer = await ask(port, CONTENT, {"content": SAID, "detectors": {"bad": {}}})
        assert (answer.status, answer.json()) == (502, failure("bad"))
        peer.script = reply_json(streamed if streamed != [[]] else [])
        path, _, request, _ = STREAM_CASES["chat chunked"]
        events = events_of(await ask(port, path, request))
        assert events == [{"$error": failure("bad")}, "[DONE]"]


async def test_the_orchestrators_rules_believe_a_detector() -> None:
    """G-101: lists that are missing mean nothing found, and lists beyond are ignored."""
    body = {"content": SAID, "detectors": {"bad": {}}}
    async with before(reply_json([[FOUND]]), LOCKGATE_COMPAT="fms") as (port, peer):
        found = (await ask(port, CONTENT, body)).json()["detections"]
        assert [(one["start"], one["end"], one["text"]) for one in found] == [(0, 3, "One")]
        assert peer.received[-1].json["contents"] == ["One is done. ", "Two is done. ", "Three"]
        peer.script = reply_json([[], [FOUND | {"text": "?"}], [], [FOUND], [FOUND]])
        found = (await ask(port, CONTENT, body)).json()["detections"]
        assert [(one["start"], one["end"], one["text"]) for one in found] == [(13, 16, "?")]
        peer.script = reply_json([[FOUND | {"start": 900, "end": 2**62, "text": "?"}]])
        found = (await ask(port, CONTENT, body)).json()["detections"]
        assert [(one["start"], one["end"]) for one in found] == [(900, 2**62)]
        for answered in ([], [[], [FOUND], [FOUND]]):
            peer.script = reply_json(answered)
            path, _, request, _ = STREAM_CASES["chat chunked"]
            events = ended_well(events_of(await ask(port, path, request)))
            assert text_in(events) == SAID
            assert {one["detector_id"] for one in results_in(events)} == {"fine"}


@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_what_was_read_before_the_failure_has_left_and_nothing_else(compat: str) -> None:
    """G-147, G-164. The detector fails when the client has heard what was read."""
    is_heard = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        if exchange.received.json["contents"][0].startswith("One"):
            await exchange.answer(b"[[]]")
        else:
            await is_heard.wait()
            await exchange.answer(b'{"code":503,"message":"gone"}', 503)

    def hear(answer: Answer) -> None:
        if b"done. " in answer.body or b'"processed_index":13' in answer.body:
            is_heard.set()

    of_fms = error_of(503, "detector request failed for `bad`: gone")
    gone = of_fms if compat == "fms" else failure("bad", 503, "gone")
    async with before(script, LOCKGATE_COMPAT=compat) as (port, _):
        for path, make in ((CHAT, chat), (TEXT, text)):
            reviewer = "talk" if path == CHAT else "about"
            for names in (["bad"], ["fine", "bad"], ["bad", reviewer]):
                output: dict[str, Any] = {name: {} for name in names}
                is_heard.clear()
                events = events_of(await listen(port, path, make(True, output=output), hear))
                assert said(path, ended_badly(events, gone)) == "One is done. "
        is_heard.clear()
        lines = (await listen(port, STREAM, {"detectors": {"bad": {}}, "content": SAID}, hear, NDJSON_TYPE)).lines()
        assert [one.get("processed_index") for one in lines] == [13, None]
        assert lines[-1] == gone


async def test_detectors_that_fail_at_once_are_one_error() -> None:
    """G-105."""
    async with before(reply_json({"code": 503, "message": "gone"}, 503)) as (port, _):
        both: dict[str, Any] = {"bad": {}, "worse": {}}
        errors = [failure(name, 503, "gone") for name in both]
        answer = await ask(port, CONTENT, {"content": SAID, "detectors": both})
        assert answer.json() in errors
        for output in (both, both | {"whole": {}, "talk": {}}):
            events = events_of(await ask(port, CHAT, chat(True, output=output)))
            assert len(events) == 2
            assert events[0]["$error"] in errors
            assert events[1] == "[DONE]"
        assert len((await stream_content(port, {"detectors": both, "content": SAID})).lines()) == 1


async def test_reviewers_that_fail_at_once_are_one_error() -> None:
    extra = """
  gossip: {type: text_chat, embedded: "tests.server.slow_parts:open_broken_detector"}
"""
    async with before(reply_json({"code": 503, "message": "gone"}, 503), extra) as (port, _):
        gone, odd = failure("talk", 503, "gone"), {"code": 502, "details": "`gossip` failed"}
        answer = await ask(port, DETECTION + "chat", {"messages": USER, "detectors": {"talk": {}, "gossip": {}}})
        assert answer.json() in (gone, odd)
        events = events_of(await ask(port, CHAT, chat(True, output={"talk": {}, "gossip": {}})))
        assert events[-2:] in ([{"$error": gone}, "[DONE]"], [{"$error": odd}, "[DONE]"])
        assert text_in(events[:-2]) == SAID


async def test_a_reviewer_of_generated_text_that_fails_fails_the_request() -> None:
    """G-71."""

    async def generate(_message: Any, _context: Any) -> Any:
        return nlp.GeneratedTextResult(generated_text=SAID)

    server = build_nlp_server({"TextGenerationTaskPredict": generate})
    body = {"model_id": "m", "prompt": "Hello", "detectors": {"about": {}}}
    async with server.listening() as backend:
        extra = f"generation: {{provider: nlp, service: {{hostname: 127.0.0.1, port: {backend}}}}}"
        async with before(reply_json({"code": 400, "message": "no"}, 400), extra) as (port, peer):
            answer = await ask(port, "/api/v2/text/generation-detection", body)
            assert (answer.status, answer.json()) == (502, failure("about", 502, "no"))
            peer.script = break_off
            answer = await ask(port, "/api/v2/text/generation-detection", body)
            assert (answer.status, answer.json()) == (502, failure("about"))


async def test_a_failure_does_not_wait_for_a_slow_detector_and_takes_it_along() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        if "worse" in exchange.received.all("detector-id"):
            await exchange.wait_until_left()
            left.set()
        else:
            await exchange.answer(b'{"code":400,"message":"no"}', 400)

    no = failure("bad", 502, "no")
    async with before(script) as (port, _):
        events = events_of(await ask(port, CHAT, chat(True, output={"worse": {}, "bad": {}})))
        assert ended_badly(events, no) == []
        await left.wait()
