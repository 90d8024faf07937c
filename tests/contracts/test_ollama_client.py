# SPDX-License-Identifier: Apache-2.0
"""Ollama's own API, and models of the settings in general: frames at once, an end that counts, reading that stops."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from lockgate.backends import http
from lockgate.backends.ollama import MAX_BATCH, open_ollama_embedder, open_ollama_model
from lockgate.backends.openai_model import open_openai_model
from lockgate.config.agent_settings import OllamaModelSettings, OpenAIModelSettings
from lockgate.config.settings import Secret
from lockgate.errors import BrokeOff, BrokeProtocol, Rejected, Unavailable, UpstreamError
from lockgate.gate.values import Frame, Health, Message
from lockgate.interfaces import Model, Probe
from lockgate.telemetry import client_call
from tests.contracts.http_peers import (
    Exchange,
    Peer,
    Script,
    break_off,
    drip,
    open_closed_port,
    open_peer,
    reply,
    reply_json,
    send_raw,
    stay_silent,
    stream,
)
from tests.waits import HANG_S, settled

NDJSON = "application/x-ndjson"
TOKEN = "sk-main.1"
MESSAGES = (Message("system", "s"), Message("user", "q"))
PARAMS = {"max_tokens": 10, "temperature": 0.5}
STREAM = {**PARAMS, "stream": True}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
LAST = {"message": {"role": "assistant", "content": ""}, "done": True, "prompt_eval_count": 5, "eval_count": 2}
WHOLE = {**LAST, "message": {"role": "assistant", "content": "Hi ü", "thinking": "hm"}}
INVALID = "Invalid response from model"
CUT_SHORT = "The model's stream ended before its answer was complete"

Bursts = list[list[Frame]]


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def say(text: str) -> bytes:
    return line({"model": "m", "message": {"role": "assistant", "content": text}, "done": False})


def lines(*parts: bytes, is_ended: bool = True) -> Script:
    return stream(*parts, kind=NDJSON, is_ended=is_ended)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: str | None, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


def at(peer: Peer, prefix: str = "") -> OllamaModelSettings:
    return OllamaModelSettings(f"http://127.0.0.1:{peer.port}{prefix}", "m:1b")


@asynccontextmanager
async def open_openai(peer: Peer, prefix: str = "/v1") -> AsyncIterator[Any]:
    settings = OpenAIModelSettings(f"http://127.0.0.1:{peer.port}{prefix}", "m", "KEY", Secret(TOKEN))
    async with open_openai_model(settings) as model:
        yield model


async def collect(model: Model, params: dict[str, Any]) -> tuple[Bursts, UpstreamError | None]:
    bursts: Bursts = []
    try:
        async with aclosing(model.generate(MESSAGES, params)) as frames:
            async for burst in frames:
                bursts.append(burst if isinstance(burst, list) else [burst])
    except UpstreamError as error:
        return bursts, error
    return bursts, None


async def answer(script: Script, params: dict[str, Any] = STREAM) -> tuple[list[str], UpstreamError | None]:
    """The pieces of an answer, and its failure."""
    async with open_peer(script) as peer, open_ollama_model(at(peer)) as model:
        bursts, error = await collect(model, params)
    frames = [frame for burst in bursts for frame in burst]
    assert [frame.number for frame in frames] == list(range(len(frames)))
    return [frame.text for frame in frames], error


async def fail(script: Script, params: dict[str, Any] = STREAM) -> tuple[list[str], type, str]:
    pieces, error = await answer(script, params)
    assert error is not None
    assert error.service == "ollama"
    return pieces, type(error), error.message


async def test_a_model_is_asked_in_the_words_of_the_api() -> None:
    async with open_peer(reply_json(WHOLE)) as peer, open_ollama_model(at(peer, "/ollama/")) as model:
        assert await collect(model, PARAMS) == ([[Frame(0, "Hi ü", fields={"usage": USAGE})]], None)
        await collect(model, STREAM)
    first, second = peer.received
    body = {"model": "m:1b", "messages": [{"role": one.role, "content": one.text} for one in MESSAGES]}
    options = {"num_predict": 10, "temperature": 0.5}
    assert first.json == {**body, "stream": False, "options": options}
    assert second.json == {**body, "stream": True, "options": options}
    assert first.path == "/ollama/api/chat"
    assert (first.all("accept"), second.all("accept")) == (["*/*"], [NDJSON])
    assert (first.all("content-type"), first.all("authorization")) == (["application/json"], [])


async def test_a_model_of_the_settings_joins_the_trace() -> None:
    async with open_peer(reply_json(WHOLE)) as peer, open_ollama_model(at(peer)) as model:
        with client_call("source", "around"):
            await collect(model, PARAMS)
    assert len(peer.received[0].all("traceparent")) == 1


async def test_every_line_is_a_frame_at_once_and_those_of_one_packet_come_together() -> None:
    read = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start(NDJSON)
        for part in (say("a"), say("b") + say("c"), say("")):
            await exchange.chunk(part)
            if part != say(""):
                await read.wait()
                read.clear()
        await exchange.chunk(line(LAST))
        await exchange.end()

    async with open_peer(script) as peer, open_ollama_model(at(peer)) as model:
        bursts: Bursts = []
        async for burst in model.generate(MESSAGES, STREAM):
            assert isinstance(burst, list)
            bursts.append(burst)
            read.set()  # the server says no more before it is read
    assert bursts == [[Frame(0, "a")], [Frame(1, "b"), Frame(2, "c")], [Frame(3, "", fields={"usage": USAGE})]]


async def test_lines_may_come_byte_by_byte_and_under_any_content_type() -> None:
    sent = say("a") + say("ü😀") + line(LAST)
    assert await answer(drip(sent, NDJSON)) == (["a", "ü😀", ""], None)
    for kind in ("application/json", "text/plain"):
        assert await answer(stream(sent, kind=kind)) == (["a", "ü😀", ""], None)
    assert await answer(reply(line(WHOLE).strip())) == (["", "Hi ü", ""], None)  # the first has the reasoning


async def test_a_stream_without_its_closing_line_is_a_failure() -> None:
    assert await fail(lines(say("a"), say("b"))) == (["a", "b"], BrokeProtocol, CUT_SHORT)
    assert await fail(lines(say("a"), say("b")[:-9])) == (["a"], BrokeProtocol, INVALID)
    assert await fail(lines()) == ([], BrokeProtocol, INVALID)


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (line({"error": "out of memory"}), UpstreamError, "Model request failed: out of memory"),
        (b"garbage\n", BrokeProtocol, INVALID),
        (b"x" * 5_000_000, BrokeProtocol, INVALID),
    ],
)
async def test_a_failure_inside_of_a_stream_comes_behind_the_frames_before_it(
    bad: bytes, kind: type, words: str
) -> None:
    assert await fail(lines(say("a"), bad, line(LAST))) == (["a"], kind, words)


@pytest.mark.parametrize("params", [PARAMS, STREAM])
async def test_a_refusal_is_told_in_the_servers_words(params: dict[str, Any]) -> None:
    words = "Model request failed: HTTP 404 - model 'm' not found"
    assert await fail(reply_json({"error": "model 'm' not found"}, 404), params) == ([], Rejected, words)
    words = "Model request failed: HTTP 500 - <html>"
    assert await fail(reply(b"<html>", 500), params) == ([], UpstreamError, words)
    words = "Model request failed: HTTP 503 - no details given"
    assert await fail(reply(b"", 503), params) == ([], Unavailable, words)
    for script in (reply(b"<html>"), reply(b"{}"), reply_json([WHOLE])):
        pieces, kind, words = await fail(script, params)
        assert (pieces, kind) == ([], BrokeProtocol)
        assert words in (INVALID, CUT_SHORT)


async def test_a_network_error_is_told_behind_the_frames_that_came() -> None:
    pieces, kind, words = await fail(lines(say("a"), is_ended=False))
    assert (pieces, kind) == (["a"], BrokeOff)
    assert words.startswith("Network error: ")
    for script in (break_off, send_raw()):
        assert (await fail(script))[1] is BrokeOff
    async with open_closed_port() as service:
        settings = OllamaModelSettings(f"http://127.0.0.1:{service.port}", "m")
        async with open_ollama_model(settings) as model:
            _, error = await collect(model, STREAM)
    assert isinstance(error, Unavailable)
    assert str(service.port) not in error.message


async def test_a_prompt_that_is_no_text_is_refused_before_it_is_sent() -> None:
    async with open_peer() as peer, open_ollama_model(at(peer)) as model:
        with pytest.raises(BrokeProtocol, match="no valid text"):
            await anext(model.generate((Message("user", "\ud83d"),), STREAM))
    assert peer.received == []


async def test_a_connection_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "END_WAIT_S", HANG_S)
    async with open_peer(lines(say("a") + line(LAST))) as peer, open_ollama_model(at(peer)) as model:
        for _ in range(3):
            assert (await collect(model, STREAM))[1] is None
    assert peer.connections == 1


async def test_closing_a_stream_closes_its_connection_at_once() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start(NDJSON)
        await exchange.chunk(say("a"))
        await exchange.wait_until_left()
        left.set()

    async with open_peer(script) as peer, open_ollama_model(at(peer)) as model:
        async with aclosing(model.generate(MESSAGES, STREAM)) as frames:
            assert await anext(frames) == [Frame(0, "a")]
        await left.wait()


async def test_cancelling_a_stream_closes_its_connection_at_once() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await stay_silent(exchange)
        left.set()

    async with open_peer(script) as peer, open_ollama_model(at(peer)) as model:
        task = asyncio.create_task(collect(model, STREAM))
        await peer.has_received.wait()
        task.cancel()
        await left.wait()
        assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError


Opening = Callable[[Peer], Any]


@pytest.mark.parametrize(
    ("opening", "part", "kind"),
    [(lambda peer: open_ollama_model(at(peer)), say("x" * 900), NDJSON),
     (open_openai, delta("x" * 900), "text/event-stream")],
    ids=["ollama", "openai"],
)  # fmt: skip
async def test_a_model_that_nobody_reads_can_say_no_more(opening: Opening, part: bytes, kind: str) -> None:
    sent = 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        exchange._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
        await exchange.start(kind)
        while True:
            exchange._writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await exchange._writer.drain()
            sent += len(part)

    async with open_peer(script) as peer, opening(peer) as model, aclosing(model.generate(MESSAGES, STREAM)) as frames:
        read = 0
        for _ in range(2):
            for _ in range(30):  # it is read fast at first: what the system keeps must not grow with it
                read += len(await anext(frames)) * len(part)
            assert await settled(lambda: sent) - read < 512 * 1024  # what the server's own side holds included


async def test_a_long_stream_is_no_long_answer() -> None:
    part = say("x" * 100_000)

    async def script(exchange: Exchange) -> None:
        await exchange.start(NDJSON)
        for _ in range(340):  # 34 MB
            exchange._writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await exchange._writer.drain()
        await exchange.chunk(line(LAST))
        await exchange.end()

    async with open_peer(script) as peer, open_ollama_model(at(peer)) as model:
        size = 0
        async for burst in model.generate(MESSAGES, STREAM):
            assert isinstance(burst, list)
            size += sum([len(frame.text) for frame in burst])
    assert size == 34_000_000


# ---------------------------------------------------------------- OpenAI-compatible servers of the settings
@pytest.mark.parametrize(
    ("parts", "pieces", "words"),
    [
        ((delta("a"), delta("b")), ["a", "b"], CUT_SHORT),
        ((delta("a"), delta(None, "stop")), ["a"], ""),
        ((delta("a", "length"),), ["a", ""], ""),
        ((delta("a"), b"data: [DONE]\n\n"), ["a"], ""),
        ((delta("a"), delta(None, "stop"), event({"choices": [], "usage": USAGE})), ["a", ""], ""),
        ((delta("a"), event({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})), ["a"], CUT_SHORT),
        ((delta("a"), event({"choices": [{"index": 0}]})), ["a"], CUT_SHORT),
    ],
)
async def test_a_stream_of_events_needs_an_end_too(parts: tuple[bytes, ...], pieces: list[str], words: str) -> None:
    async with open_peer(stream(*parts)) as peer, open_openai(peer) as model:
        bursts, error = await collect(model, STREAM)
    assert [frame.text for burst in bursts for frame in burst] == pieces
    assert ("" if error is None else error.message) == words
    assert error is None or isinstance(error, BrokeProtocol)


async def test_the_token_is_sent_and_never_told() -> None:
    refusal = {"error": {"message": f"wrong key {TOKEN}"}}
    async with open_peer(reply_json(refusal, 401)) as peer, open_openai(peer) as model:
        _, error = await collect(model, STREAM)
    assert error is not None
    assert error.message == "Model request failed: HTTP 401 - wrong key ***"
    [received] = peer.received
    assert (received.path, received.all("authorization")) == ("/v1/chat/completions", [f"Bearer {TOKEN}"])
    assert TOKEN not in repr(model.__dict__.get("_caller"))


# ---------------------------------------------------------------- embeddings
async def embed(peer: Peer, texts: list[str]) -> list[list[float]]:
    async with open_ollama_embedder(at(peer)) as embedder:
        return [list(vector) for vector in await embedder.embed(texts)]


async def test_texts_become_vectors_of_length_one() -> None:
    async with open_peer(reply_json({"model": "m", "embeddings": [[3.0, 4.0], [0, 2]]})) as peer:
        assert await embed(peer, ["a ü", "b"]) == [pytest.approx([0.6, 0.8]), [0.0, 1.0]]
    [received] = peer.received
    assert (received.method, received.path) == ("POST", "/api/embed")
    assert received.json == {"model": "m:1b", "input": ["a ü", "b"]}


async def test_many_texts_are_asked_about_in_batches_and_none_not_at_all() -> None:
    async def script(exchange: Exchange) -> None:
        texts = exchange.received.json["input"]
        await exchange.answer(json.dumps({"embeddings": [[1, int(text)] for text in texts]}).encode())

    async with open_peer(script) as peer:
        assert await embed(peer, []) == []
        vectors = await embed(peer, [str(number) for number in range(MAX_BATCH + 5)])
    assert [len(received.json["input"]) for received in peer.received] == [MAX_BATCH, 5]
    assert [round(vector[1] / vector[0]) for vector in vectors] == list(range(MAX_BATCH + 5))


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (reply_json({"embeddings": [[1.0]]}), BrokeProtocol, "not one vector"),
        (reply_json({"embeddings": [[1.0], [0.0]]}), BrokeProtocol, "not one vector"),
        (reply_json({"embedding": [1.0]}), BrokeProtocol, "not one vector"),
        (reply(b"<html>"), BrokeProtocol, "not one vector"),
        (reply_json({"error": "no such model"}, 404), Rejected, "HTTP 404 - no such model"),
        (reply(b"down", 500), UpstreamError, "HTTP 500 - no details given"),
        (break_off, BrokeOff, "Embedding failed: "),
    ],
)
async def test_an_embedding_that_fails_is_an_upstream_error(script: Script, kind: type, words: str) -> None:
    async with open_peer(script) as peer:
        with pytest.raises(UpstreamError) as caught:
            await embed(peer, ["a", "b"])
    assert type(caught.value) is kind
    assert words in caught.value.message


async def test_a_text_that_is_none_is_refused_before_it_is_sent() -> None:
    async with open_peer() as peer:
        with pytest.raises(BrokeProtocol, match="no valid text"):
            await embed(peer, ["\ud83d"])
    assert peer.received == []


# ---------------------------------------------------------------- probes
Probing = Callable[[Peer], Awaitable[Health]]


async def probe(opening: Any) -> Health:
    async with opening as part:
        probe: Probe = part
        return await probe.probe([("x-secret", "1")])


@pytest.mark.parametrize(
    ("probing", "path", "is_strict"),
    [
        (lambda peer: probe(open_ollama_model(at(peer, "/o"))), "/o/api/version", True),
        (lambda peer: probe(open_ollama_embedder(at(peer))), "/api/version", True),
        (lambda peer: probe(open_openai(peer)), "/v1/models", False),
    ],
    ids=["model", "embedder", "openai"],
)
async def test_a_server_that_answers_is_there(probing: Probing, path: str, is_strict: bool) -> None:
    async with open_peer(reply_json({"version": "0.9"})) as peer:
        assert await probing(peer) == Health("HEALTHY")
        peer.script = reply_json({}, 404)
        assert await probing(peer) == (Health("UNKNOWN", 404, "Not Found") if is_strict else Health("HEALTHY"))
        peer.script = reply_json({}, 500)
        assert await probing(peer) == Health("UNHEALTHY", 500, "Internal Server Error")
        peer.script = break_off
        health = await probing(peer)
        assert (health.status, health.code) == ("UNKNOWN", 500)
    asked = {(received.method, received.path) for received in peer.received}
    assert asked - {("GET", "/o/api/tags")} == {("GET", path)}
    assert not any(received.all("x-secret") for received in peer.received)


@pytest.mark.parametrize(
    ("names", "is_there"), [(["m:1b:latest"], True), (["m:1b"], True), (["m", "m:1bb"], False), ([], False)]
)
async def test_a_model_that_the_server_does_not_have_is_not_there(names: list[str], *, is_there: bool) -> None:
    async with open_peer(reply_json({"models": [{"name": name} for name in names]})) as peer:
        health = await probe(open_ollama_model(at(peer)))
    words = "there is no model `m:1b`: `ollama pull` fetches it"
    assert health == (Health("HEALTHY") if is_there else Health("UNHEALTHY", 404, words))


async def test_a_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PROBE_TIMEOUT_S", 0.05)
    async with open_peer(stay_silent) as peer:
        health = await probe(open_ollama_model(at(peer)))
    assert (health.status, health.code) == ("UNKNOWN", 500)
