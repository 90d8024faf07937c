# SPDX-License-Identifier: Apache-2.0
"""Configured models under `/v1`, served by the route of proxied ones: policies, detectors, failures."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange, Peer, Script, open_peer, reply_json
from tests.server.gateways import ask, events_of, gateway
from tests.server.http_client import build_request, connect
from tests.waits import until

CHAT, OLLAMA_CHAT = "/v1/chat/completions", "/api/chat"
CONFIG = """
models:
  wise: {{openai: {{url: "http://127.0.0.1:{port}/v1", model: m}}}}
  lama: {{ollama: {{url: "http://127.0.0.1:{port}", model: m}}}}
  safe: {{openai: {{url: "http://127.0.0.1:{port}/v1", model: m}}, policy: masked}}
detectors:
  words: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [done, Hello]}}}}
policies:
  masked: {{output: {{words: {{}}}}, on_finding: mask}}
  strict: {{input: {{words: {{}}}}, on_finding: block, fallback: No.}}
"""
SAID = "One is done."
FINDING = {"start": 7, "end": 11, "text": "████"}
LINE = {"message": {"role": "assistant", "content": SAID}, "done": True, "done_reason": "stop"}


def build_chunk(text: str, end: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": end}
    return b"data: %b\n\n" % json.dumps({"id": "c", "created": 1, "model": "m", "choices": [choice]}).encode()


async def say(exchange: Exchange) -> None:
    """Both servers, whole and streamed."""
    if exchange.received.path == "/api/chat":
        await exchange.answer(json.dumps(LINE).encode())
    elif exchange.received.json.get("stream"):
        await exchange.start("text/event-stream")
        await exchange.chunk(build_chunk("One is ") + build_chunk("done.", "stop") + b"data: [DONE]\n\n")
        await exchange.end()
    else:
        choice = {"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}
        await exchange.answer(json.dumps({"id": "c", "created": 1, "model": "m", "choices": [choice]}).encode())


@asynccontextmanager
async def open_house(script: Script = say) -> AsyncIterator[tuple[int, Peer]]:
    async with open_peer(script) as peer, gateway(CONFIG.format(port=peer.port)) as port:
        yield port, peer


def body(model: str, *, is_stream: bool = False, **fields: Any) -> dict[str, Any]:
    return {"model": model, "stream": is_stream, "messages": [{"role": "user", "content": "Hello?"}], **fields}


def list_results(values: list[Any], section: str) -> list[dict[str, Any]]:
    """All findings of a section, without what the detector says of them."""
    entries = [one for value in values for one in (value.get("detections") or {}).get(section, ())]
    return [{key: one[key] for key in FINDING} for entry in entries for one in entry["results"]]


@pytest.mark.parametrize("model", ["wise@masked", "lama@masked", "safe"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_findings_are_told_with_the_text_and_the_receipt_last(model: str, is_stream: bool) -> None:
    async with open_house() as (port, _):
        answer = await ask(port, CHAT, body(model, is_stream=is_stream))
    values = events_of(answer)[:-1] if is_stream else [answer.json()]
    choices = [one for value in values for one in value["choices"]]
    said = [(one.get("delta") or one.get("message") or {}).get("content") or "" for one in choices]
    assert "".join(said) == "One is ████."
    assert list_results(values, "output") == [FINDING]
    assert [value["receipt"]["outcome"] for value in values if "receipt" in value] == ["masked"]
    assert ("receipt" in values[-1], {value["model"] for value in values}) == (True, {model})


@pytest.mark.parametrize("model", ["wise", "lama"])
async def test_a_request_may_name_detectors_and_policies(model: str) -> None:
    async with open_house() as (port, peer):
        own = (await ask(port, CHAT, body(model, detectors={"output": {"words": {}}}))).json()
        named = (await ask(port, CHAT, body(model, detectors={"policy": "masked"}))).json()
        asked = len(peer.received)
        refused = (await ask(port, CHAT, body(model, detectors={"input": {"words": {}}}))).json()
        blocked = (await ask(port, CHAT, body(f"{model}@strict"))).json()
        wrong = await ask(port, CHAT, body(f"{model}@strict", detectors={"policy": "masked"}))
        unknown = await ask(port, CHAT, body(model, detectors={"policy": "none"}))
        assert len(peer.received) == asked
    assert [one["text"] for one in own["detections"]["output"][0]["results"]] == ["done"]
    assert named["choices"][0]["message"]["content"] == "One is ████."
    assert (refused["choices"], refused["detections"]["input"][0]["message_index"]) == ([], 0)
    assert (blocked["choices"][0]["message"]["content"], blocked["model"]) == ("No.", f"{model}@strict")
    assert (wrong.status, unknown.status) == (400, 400)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_failure_before_the_first_text_has_its_status_and_no_word_of_the_server(is_stream: bool) -> None:
    for status in (400, 401, 422, 500):
        async with open_house(reply_json({"error": {"message": "secret"}}, status)) as (port, _):
            for model in ("wise", "lama"):
                answer = await ask(port, CHAT, body(model, is_stream=is_stream))
                is_refused = model == "wise" and status in (400, 422)  # which may be for any of its fields
                expected = (400, "the model refused the request") if is_refused else (503, "the model is not available")
                assert (answer.status, answer.json()["details"]) == expected


async def test_an_answer_that_breaks_off_ends_with_an_error_and_without_done() -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.start("text/event-stream")
        await exchange.chunk(build_chunk("One is "))
        await exchange.end()

    async with open_house(break_off) as (port, _):
        *others, last = events_of(await ask(port, CHAT, body("wise", is_stream=True)))
    assert [one["choices"][0]["delta"]["content"] for one in others] == ["One is "]
    assert (last["error"]["message"], last["error"]["code"]) == ("the model is not available", 503)


async def test_a_client_that_leaves_closes_the_connection_of_the_model() -> None:
    left = asyncio.Event()

    async def linger(exchange: Exchange) -> None:
        await exchange.start("text/event-stream")
        await exchange.chunk(build_chunk("One is "))
        await exchange.wait_until_left()
        left.set()

    async with open_house(linger) as (port, _):
        async with connect(port) as client:
            await client.send(build_request("POST", CHAT, json.dumps(body("wise", is_stream=True)).encode()))
            await client.read_head()
            assert b"One is " in await client.read_chunk()
        await until(left.is_set, "the end of the model's connection")


@pytest.mark.parametrize("field", ["session_id", "query_type"])
@pytest.mark.parametrize("model", ["wise", "lama"])
async def test_a_model_alone_has_no_session(model: str, field: str) -> None:
    async with open_house() as (port, peer):
        for path in (CHAT, OLLAMA_CHAT):
            answer = await ask(port, path, {**body(model), field: "s"})
            words = answer.json()["error"]["message"] if path == CHAT else answer.json()["error"]
            assert answer.status == 400
            assert words == f"`{field}` needs an agent: a model alone knows only what `messages` tell"
            assert (await ask(port, path, {**body(model), field: ""})).status == 200
    assert len(peer.received) == 2


@pytest.mark.parametrize("model", ["wise", "lama"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_clients_of_ollama_get_the_same_answer_as_lines(model: str, is_stream: bool) -> None:
    async with open_house() as (port, peer):
        plain = await ask(port, OLLAMA_CHAT, body(model, is_stream=is_stream))
        masked = await ask(port, OLLAMA_CHAT, body(f"{model}@masked:latest", is_stream=is_stream))
        asked = len(peer.received)
        blocked = await ask(port, OLLAMA_CHAT, body(f"{model}@strict", is_stream=is_stream))
        refused = await ask(port, OLLAMA_CHAT, body(model, detectors={"policy": "masked"}))
        assert len(peer.received) == asked
    for answer, said, reason in (
        (plain, SAID, "stop"),
        (masked, "One is ████.", "stop"),
        (blocked, "No.", "content_filter"),
    ):
        lines = answer.lines() if is_stream else [answer.json()]
        assert "".join(one["message"]["content"] for one in lines) == said
        assert [one["done"] for one in lines] == [False] * (len(lines) - 1) + [True]
        assert lines[-1]["done_reason"] == reason
    last = masked.lines()[-1] if is_stream else masked.json()
    assert (list_results([last], "output"), last["receipt"]["outcome"]) == ([FINDING], "masked")
    assert last["receipt"]["lanes"] == ["content", "reasoning"]
    last = blocked.lines()[-1] if is_stream else blocked.json()
    assert [one["text"] for one in last["detections"]["input"][0]["results"]] == ["█████"]
    assert refused.status == 400


async def test_a_failure_is_the_status_or_the_last_line_for_clients_of_ollama() -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.start("text/event-stream")
        await exchange.chunk(build_chunk("One is "))
        await exchange.end()

    async with open_house(reply_json({}, 500)) as (port, _):
        answer = await ask(port, OLLAMA_CHAT, body("wise", is_stream=True))
        assert (answer.status, answer.json()) == (503, {"error": "the model is not available"})
    async with open_house(break_off) as (port, _):
        first, last = (await ask(port, OLLAMA_CHAT, body("wise", is_stream=True))).lines()
    assert (first["message"]["content"], last) == ("One is ", {"error": "the model is not available"})
