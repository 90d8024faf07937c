# SPDX-License-Identifier: Apache-2.0
"""Chat models of OpenAI-compatible servers as models of an answer: same words, same frames (D-27)."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from lockgate.backends import http
from lockgate.backends.endpoints import Endpoint
from lockgate.backends.upstreams import open_upstreams
from lockgate.errors import UpstreamError
from lockgate.gate.values import Frame, Message
from tests.contracts.http_peers import (
    Exchange,
    Peer,
    Script,
    break_off,
    drip,
    open_peer,
    reply,
    reply_json,
    send_raw,
    stream,
)
from tests.waits import HANG_S

TOKEN = "sk-al.1"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
MESSAGES = (Message("system", "s"), Message("user", "q"))
PARAMS = {"max_tokens": 10, "temperature": 0.5}
STREAM = {**PARAMS, "stream": True}
COMPLETION = {
    "id": "1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi ü"}, "finish_reason": "stop"}],
    "usage": {**USAGE, "completion_tokens_details": {}},
}
DONE = b"data: [DONE]\n\n"
FLAT = {"object": "error", "message": f"too long {TOKEN}", "type": "BadRequestError", "param": None, "code": 400}
WRAPPED = {"error": {"message": f"too long {TOKEN}", "type": "x", "code": "context_length_exceeded"}}

Bursts = list[list[Frame]]


def chunk(text: str | None, **more: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def ask(peer: Peer, params: dict[str, Any], prefix: str = "") -> tuple[Bursts, UpstreamError | None]:
    """The frames of an answer, burst by burst, and what it ended with."""
    bursts: Bursts = []
    url = f"openai+http://127.0.0.1:{peer.port}{prefix}"
    async with open_upstreams((), {}, {}) as upstreams:
        model = upstreams.model(Endpoint(url, "org/m", "al", "tenant", TOKEN, "tx"), "c-1")
        try:
            async with aclosing(model.generate(MESSAGES, params)) as frames:
                async for burst in frames:
                    bursts.append(burst if isinstance(burst, list) else [burst])
        except UpstreamError as error:
            return bursts, error
    return bursts, None


async def answer(script: Script, params: dict[str, Any] = STREAM) -> tuple[list[str], str]:
    """The pieces of an answer, and the words of its failure."""
    async with open_peer(script) as peer:
        bursts, error = await ask(peer, params)
    frames = [frame for burst in bursts for frame in burst]
    assert [frame.number for frame in frames] == list(range(len(frames)))
    return [frame.text for frame in frames], "" if error is None else error.message


async def test_a_model_is_asked_in_the_words_of_the_api() -> None:
    async with open_peer(reply_json(COMPLETION)) as peer:
        assert await ask(peer, PARAMS) == ([[Frame(0, "Hi ü", fields={"usage": USAGE})]], None)
        await ask(peer, STREAM)
    first, second = peer.received
    body = {"model": "org/m", "messages": [{"role": one.role, "content": one.text} for one in MESSAGES], **PARAMS}
    assert first.json == {**body, "stream": False}
    assert second.json == {**body, "stream": True, "stream_options": {"include_usage": True}}
    assert first.all("authorization") == [f"Bearer {TOKEN}"]
    assert first.all("x-correlation-id") == ["c-1"]
    assert (first.all("accept"), second.all("accept")) == (["*/*"], ["text/event-stream"])
    assert {name.lower() for name, _ in first.headers} == {
        "host", "content-length", "content-type", "accept", "accept-encoding", "user-agent", "x-correlation-id",
        "authorization",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/openai/v2", "/openai/v2/chat/completions"),
    ],
)
async def test_a_path_is_the_base_and_none_is_the_usual_one(prefix: str, path: str) -> None:
    async with open_peer(reply_json(COMPLETION)) as peer:
        await ask(peer, PARAMS, prefix)
    assert [received.path for received in peer.received] == [path]


async def test_only_the_first_choice_counts() -> None:
    other = {"index": 1, "message": {"content": "no"}, "delta": {"content": "no"}}
    mine = {"index": 0, "message": {"content": "yes"}, "delta": {"content": "yes"}}
    both = {"choices": [other, mine]}
    assert await answer(reply_json(both), PARAMS) == (["yes"], "")
    assert await answer(stream(event(both) + event({"choices": [other]}) + DONE)) == (["yes"], "")


async def test_frames_of_one_packet_come_together_and_usage_comes_last() -> None:
    last = event({"choices": [], "usage": USAGE})
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None})
    parts = [role, event(chunk("a")), event(chunk("b")) + event(chunk("c")), event(chunk(None)), last + DONE]
    async with open_peer(stream(*parts)) as peer:
        bursts, error = await ask(peer, STREAM)
    assert error is None
    assert bursts == [[Frame(0, "a")], [Frame(1, "b"), Frame(2, "c")], [Frame(3, "", fields={"usage": USAGE})]]


async def test_a_stream_may_end_without_saying_so_and_come_byte_by_byte() -> None:
    sent = event(chunk("a")) + event(chunk("ü😀")).rstrip()
    assert await answer(drip(sent)) == (["a", "ü😀"], "")


async def test_a_reply_that_is_no_stream_is_one_frame() -> None:
    assert await answer(reply_json(COMPLETION)) == (["Hi ü"], "")


@pytest.mark.parametrize(
    "script",
    [reply(b""), reply(b"<html>"), reply(b"[]"), reply(b"[" * 100_000), reply_json({"choices": []}),
     reply_json({"choices": [None]}), reply_json({"choices": [{"message": {}}]}),
     reply_json({"choices": [{"message": {"content": None}}]}),
     reply_json({"choices": [{"message": {"content": [1]}}]})],
)  # fmt: skip
async def test_an_answer_of_the_wrong_shape_is_invalid(script: Script) -> None:
    for params in (PARAMS, STREAM):
        assert await answer(script, params) == ([], "Invalid response from model")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, {"error": {"message": "no", "code": None}}, "Model access denied: no"),
        (404, {"error": "no such model"}, "Model request failed: HTTP 404 - no such model"),
        (400, FLAT, "Model request failed: HTTP 400 - too long ***"),
        (400, WRAPPED, "Model request failed: HTTP 400 - too long ***"),
        (401, {"detail": "who?"}, "Model request failed: HTTP 401 - who?"),
        (503, {"x": 1}, 'Model request failed: HTTP 503 - {"x": 1}'),
        (201, COMPLETION, "Model request failed: HTTP 201 - " + json.dumps(COMPLETION)[:200]),
    ],
)
async def test_a_refusal_has_the_agreed_words(status: int, body: Any, words: str) -> None:
    for params in (PARAMS, STREAM):
        assert await answer(reply_json(body, status), params) == ([], words)


async def test_a_redirect_is_never_followed() -> None:
    async with open_peer(reply_json(COMPLETION)) as elsewhere:

        async def script(exchange: Exchange) -> None:
            await exchange.answer(b"", 307, "", f"location: http://127.0.0.1:{elsewhere.port}/v1/chat/completions")

        assert await answer(script) == ([], "Model request failed: HTTP 307 - no details given")
    assert elsewhere.received == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (event(FLAT), "Model request failed: too long ***"),
        (event(WRAPPED), "Model request failed: too long ***"),
        (event({"error": "boom"}), "Model request failed: boom"),
        (b"data: garbage\n\n", "Invalid response from model"),
        (event({"content": "x"}), "Invalid response from model"),
        (b"data: " + b"x" * 5_000_000, "Invalid response from model"),
    ],
)
async def test_a_failure_inside_of_a_stream_comes_behind_the_frames_before_it(bad: bytes, words: str) -> None:
    assert await answer(stream(event(chunk("a")), bad, event(chunk("b")))) == (["a"], words)


@pytest.mark.parametrize("parts", [(), (b"<html>",), (b": nothing\n\n",)])
async def test_a_stream_without_a_single_event_is_invalid(parts: tuple[bytes, ...]) -> None:
    assert await answer(stream(*parts)) == ([], "Invalid response from model")


async def test_a_network_error_is_told_behind_the_frames_that_came() -> None:
    pieces, words = await answer(stream(event(chunk("a")), is_ended=False))
    assert pieces == ["a"]
    assert words.startswith("Network error: ")
    for params in (PARAMS, STREAM):
        for script in (break_off, send_raw()):
            assert (await answer(script, params))[1].startswith("Network error: ")


async def test_a_connection_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "END_WAIT_S", HANG_S)
    async with (
        open_peer(stream(event(chunk("a")) + DONE)) as peer,
        open_upstreams((), {}, {}) as upstreams,
    ):
        endpoint = Endpoint(f"openai+http://127.0.0.1:{peer.port}", "m")
        for _ in range(3):
            frames = upstreams.model(endpoint, "c").generate(MESSAGES, STREAM)
            assert [burst async for burst in frames] == [[Frame(0, "a")]]
    assert peer.connections == 1


async def test_closing_a_stream_closes_its_connection_at_once() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event(chunk("a")))
        await exchange.wait_until_left()
        left.set()

    async with open_peer(script) as peer, open_upstreams((), {}, {}) as upstreams:
        model = upstreams.model(Endpoint(f"openai+http://127.0.0.1:{peer.port}", "m"), "c")
        async with aclosing(model.generate(MESSAGES, STREAM)) as frames:
            assert await anext(frames) == [Frame(0, "a")]
        await left.wait()


async def test_a_configured_server_is_reached_by_its_name_here() -> None:
    async with open_peer(reply_json(COMPLETION)) as peer:
        own = Endpoint(f"openai+http://127.0.0.1:{peer.port}/v1", "m", token=TOKEN)
        async with open_upstreams(("10.0.0.0/8",), {}, {"chat": own}) as upstreams:
            model = upstreams.model(Endpoint("lockgate:", "chat", token="theirs"), "c-1")
            assert [frame async for frame in model.generate(MESSAGES, PARAMS)]
    [received] = peer.received
    assert received.json["model"] == "m"
    assert received.all("authorization") == [f"Bearer {TOKEN}"]
