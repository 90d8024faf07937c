# SPDX-License-Identifier: Apache-2.0
"""Sources and models of a SyftAI-Space, against servers that keep the contract and servers that break it."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest

from lockgate.backends import http
from lockgate.backends.endpoints import Endpoint
from lockgate.backends.upstreams import Upstreams, open_upstreams
from lockgate.errors import BrokeProtocol, Rejected, Unavailable, UpstreamError
from lockgate.gate.values import Document, Frame, Message
from lockgate.index.hits import FoundDocuments
from lockgate.interfaces import DataSource, Model
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
    stream,
)
from tests.waits import HANG_S, is_pending

T = TypeVar("T")
TOKEN, TRANSACTION = "sat-al.A+/=", "tx-1"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
REFERENCES = {
    "references": {"documents": [{"content": "c", "metadata": {"title": "T"}, "similarity_score": 0.5}], "cost": 1}
}
ANSWER = {"summary": {"message": {"role": "assistant", "content": "Hi ü"}, "usage": {**USAGE, "x": 1}}}
MESSAGES = (Message("system", "s"), Message("user", "q"))
PARAMS = {"max_tokens": 10, "temperature": 0.5}
STREAM = {**PARAMS, "stream": True}
OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
LIMIT = "the answer is longer than 33554432 bytes"


def endpoint(peer: Peer, **changes: Any) -> Endpoint:
    """An endpoint here, with both tokens."""
    whole = Endpoint(f"http://127.0.0.1:{peer.port}", "notes", "al", None, TOKEN, TRANSACTION)
    return whole._replace(**changes)


def event(chunk: Any) -> bytes:
    return b"data: " + (chunk if isinstance(chunk, str) else json.dumps(chunk)).encode() + b"\n\n"


@asynccontextmanager
async def open_both(script: Script) -> AsyncIterator[tuple[Peer, Upstreams]]:
    """A server that follows a script, and what may call it."""
    async with open_peer(script) as peer, open_upstreams((), {}, {}) as upstreams:
        yield peer, upstreams


async def search(script: Script, **changes: Any) -> Sequence[Document]:
    """What a source finds that follows a script."""
    async with open_both(script) as (peer, upstreams):
        source = upstreams.source(endpoint(peer, **changes), "c-1", 0.5)
        return await source.search("q", 5)


async def generate(model: Model, params: dict[str, Any]) -> tuple[list[list[Frame]], UpstreamError | None]:
    """The frames of an answer, burst by burst, and what it ended with."""
    bursts: list[list[Frame]] = []
    try:
        async with aclosing(model.generate(MESSAGES, params)) as frames:
            async for burst in frames:
                bursts.append(burst if isinstance(burst, list) else [burst])  # noqa: PERF401 - errors come behind
    except UpstreamError as error:
        return bursts, error
    return bursts, None


async def answer(script: Script, params: dict[str, Any] = STREAM) -> tuple[list[str], UpstreamError | None]:
    """The pieces of the answer of a model that follows a script, and what it ended with."""
    async with open_both(script) as (peer, upstreams):
        bursts, error = await generate(upstreams.model(endpoint(peer), "c-1"), params)
    frames = [frame for burst in bursts for frame in burst]
    assert [frame.number for frame in frames] == list(range(len(frames)))
    return [frame.text for frame in frames], error


async def failure_of(call: Awaitable[T]) -> UpstreamError:
    """The error that a call ends with."""
    with pytest.raises(UpstreamError) as caught:
        await call
    assert TOKEN not in str(caught.value)
    return caught.value


async def test_a_source_is_asked_with_exactly_the_agreed_request() -> None:
    async with open_both(reply_json(REFERENCES)) as (peer, upstreams):
        source: DataSource = upstreams.source(endpoint(peer, tenant="té"), "c-1", 0.25)
        assert await source.search("How?", 5) == [Document("T", "c", 0.5, None, "al/notes")]
    [received] = peer.received
    assert (received.method, received.path) == ("POST", "/api/v1/endpoints/notes/query")
    assert received.json == {
        "messages": "How?",
        "limit": 5,
        "similarity_threshold": 0.25,
        "include_metadata": True,
        "transaction_token": TRANSACTION,
    }
    headers = {name.lower(): value.encode("latin-1").decode() for name, value in received.headers}
    agent = headers.pop("user-agent")
    assert agent.startswith("lockgate/")
    assert headers == {
        "host": f"127.0.0.1:{peer.port}",
        "content-length": str(len(received.body)),
        "content-type": "application/json",
        "accept": "*/*",
        "accept-encoding": "identity",
        "x-correlation-id": "c-1",
        "x-tenant-name": "té",
        "authorization": f"Bearer {TOKEN}",
    }
    assert len(received.headers) == len(headers) + 1


async def test_a_model_is_asked_with_exactly_the_agreed_request() -> None:
    async with open_both(reply_json(ANSWER)) as (peer, upstreams):
        model = upstreams.model(endpoint(peer, token=None, transaction_token=None), "c-1")
        assert await generate(model, PARAMS) == ([[Frame(0, "Hi ü", fields={"usage": USAGE})]], None)
        await generate(model, STREAM)
    first, second = peer.received
    body = {"messages": [{"role": one.role, "content": one.text} for one in MESSAGES], **PARAMS, "stop_sequences": []}
    assert first.json == {**body, "stream": False}
    assert second.json == {**body, "stream": True}
    assert (first.all("accept"), second.all("accept")) == (["*/*"], ["text/event-stream"])
    assert {name.lower() for name, _ in first.headers} == {
        "host", "content-length", "content-type", "accept", "accept-encoding", "user-agent", "x-correlation-id",
    }  # fmt: skip


async def test_every_token_reaches_its_own_endpoint_only() -> None:
    async with open_both(reply_json(REFERENCES)) as (peer, upstreams):
        owners = [
            Endpoint(f"http://127.0.0.1:{peer.port}", f"s{n}", f"o{n}", f"t{n}", f"k{n}", f"x{n}") for n in range(9)
        ]
        bare = [Endpoint(f"http://127.0.0.1:{peer.port}", "s9")]
        sources = [upstreams.source(one, "c", 0.5) for one in owners + bare]
        await asyncio.gather(*[source.search("q", 1) for source in sources])
    for received in peer.received:
        number = received.path.split("/")[-2][1:]
        own = [f"Bearer k{number}"] if number != "9" else []
        assert received.all("authorization") == own
        assert received.all("x-tenant-name") == ([f"t{number}"] if own else [])
        assert received.json.get("transaction_token") == (f"x{number}" if own else None)


async def test_documents_are_cut_to_the_limit_and_the_others_counted() -> None:
    many = {"references": {"documents": [{"content": str(n)} for n in range(9)]}}
    found = await search(reply_json(many))
    assert isinstance(found, FoundDocuments)
    assert (len(found), found.left_out) == (5, 4)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, {"detail": "not yours"}, "Access denied: not yours"),
        (404, {"detail": "no such"}, "HTTP 404: no such"),
        (422, {"detail": [{"loc": ["x"]}]}, 'HTTP 422: [{"loc":["x"]}]'),
        (429, {"detail": "slow down"}, "HTTP 429: slow down"),
        (500, {"detail": "x" * 5000}, "HTTP 500: " + "x" * 1000),
        (503, {"error": "down"}, 'HTTP 503: {"error": "down"}'),
        (201, REFERENCES, "HTTP 201: " + json.dumps(REFERENCES)),
        (500, {"detail": f"bad {TOKEN} for {TRANSACTION}!"}, "HTTP 500: bad *** for ***!"),
    ],
)
async def test_a_refusal_has_the_agreed_words(status: int, body: Any, words: str) -> None:
    script = reply_json(body, status)
    error = await failure_of(search(script))
    assert error.message == words
    assert isinstance(error, Rejected) == (400 <= status < 500)
    detail = words.partition(": ")[2]
    of_model = "Model access denied: " if status == 403 else f"Model request failed: HTTP {status} - "
    for params in (PARAMS, STREAM):
        pieces, told = await answer(script, params)
        assert pieces == []
        assert told is not None
        assert told.message == of_model + detail


async def test_a_refusal_without_a_word_is_told_by_its_status() -> None:
    assert (await failure_of(search(reply(b" ", 502)))).message == "HTTP 502: no details given"
    assert (await failure_of(search(send_raw(b"HTTP/1.1 204 None\r\n\r\n")))).message == "HTTP 204: no details given"


async def test_an_error_page_is_told_by_its_beginning() -> None:
    error = await failure_of(search(reply(b"<html>" + b"x" * 300_000, 502, "text/html")))
    assert error.message == "HTTP 502: <html>" + "x" * 194


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_error_and_never_followed(status: int) -> None:
    async with open_peer(reply_json(REFERENCES)) as elsewhere:

        async def script(exchange: Exchange) -> None:
            target = f"location: http://127.0.0.1:{elsewhere.port}/x"
            await exchange.answer(b"moved", status, "text/plain", target)

        error = await failure_of(search(script))
        _, told = await answer(script)
    assert error.message == f"HTTP {status}: moved"
    assert told is not None
    assert told.message == f"Model request failed: HTTP {status} - moved"
    assert elsewhere.received == []


@pytest.mark.parametrize(
    "script",
    [reply(b""), reply(b"<html>"), reply(b"[]"), reply_json({"references": [1]}), reply(b'{"references":'),
     reply(b"[" * 100_000)],
)  # fmt: skip
async def test_an_answer_of_the_wrong_shape_is_an_error(script: Script) -> None:
    error = await failure_of(search(script))
    assert isinstance(error, BrokeProtocol)
    assert error.message == "the answer is not the JSON of a data source"
    for params in (PARAMS, STREAM):
        _, told = await answer(script, params)
        assert isinstance(told, BrokeProtocol)
        assert told.message == "Invalid response from model"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (break_off, "the connection was lost"),
        (send_raw(), "the connection was lost"),
        (send_raw(b"garbage\r\n\r\n"), "the answer is not HTTP"),
        (send_raw(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"), "the answer is not HTTP"),
        (send_raw(OK_HEAD + b"content-length: 99\r\n\r\n{"), "the answer broke off"),
        (send_raw(OK_HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"), "the answer broke off"),
        (send_raw(OK_HEAD + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n{}"), "the answer broke off"),
    ],
)
async def test_a_network_error_is_told_and_nothing_is_sent_twice(script: Script, words: str) -> None:
    async with open_both(script) as (peer, upstreams):
        error = await failure_of(upstreams.source(endpoint(peer), "c", 0.5).search("q", 5))
        assert error.message.startswith(words)
        assert len(peer.received) == 1
        for number, params in enumerate((PARAMS, STREAM), 2):
            _, told = await generate(upstreams.model(endpoint(peer), "c"), params)
            assert told is not None
            assert told.message.startswith(f"Network error: {words}")
            assert len(peer.received) == number


async def test_a_request_on_a_connection_that_was_closed_meanwhile_is_sent_once() -> None:
    async def script(exchange: Exchange) -> None:
        if len(peer.received) == 1:
            await exchange.answer(b"{}")
        else:
            exchange.reset()

    async with open_both(script) as (peer, upstreams):
        source = upstreams.source(endpoint(peer), "c", 0.5)
        assert await source.search("q", 5) == []
        await failure_of(source.search("q", 5))
    assert (len(peer.received), peer.connections) == (2, 1)


async def test_nobody_listening_is_told_without_an_address() -> None:
    async with open_both(break_off) as (peer, upstreams), open_closed_port() as service:
        closed = endpoint(peer, url=f"http://127.0.0.1:{service.port}")
        error = await failure_of(upstreams.source(closed, "c", 0.5).search("q", 5))
    assert (type(error), error.message) == (Unavailable, "cannot connect: Connection refused")


async def test_an_endless_body_ends_at_the_limit() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(OK_HEAD + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            await exchange.chunk(b" " * 4_000_000)

    assert (await failure_of(search(script))).message == LIMIT
    for params in (PARAMS, STREAM):
        _, told = await answer(script, params)
        assert told is not None
        assert told.message == f"Network error: {LIMIT}"


async def test_an_endless_stream_ends_at_the_limit() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        while True:
            await exchange.chunk(event("x" * 3_900_000))

    pieces, told = await answer(script)
    assert 1 <= len(pieces) <= 9
    assert told is not None
    assert told.message == f"Network error: {LIMIT}"


async def test_a_body_that_unpacks_to_far_more_ends_at_the_limit() -> None:
    body = gzip.compress(b" " * 100_000_000, 1)
    head = OK_HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert (await failure_of(search(send_raw(head + body)))).message == LIMIT


async def test_a_body_that_is_packed_all_the_same_is_understood() -> None:
    body = gzip.compress(json.dumps(REFERENCES).encode())
    head = OK_HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert len(await search(send_raw(head + body))) == 1


async def test_a_body_that_comes_in_drops_is_read_as_long_as_the_caller_waits() -> None:
    body = json.dumps(REFERENCES).encode()
    drops = [body[at : at + 9] for at in range(0, len(body), 9)]
    head = OK_HEAD + b"content-length: %d\r\n\r\n" % len(body)
    assert len(await search(send_raw(head, *drops))) == 1


async def leave(script: Script, call: Any) -> None:
    """Returns when a server that follows a script knows that the caller has left."""
    left = asyncio.Event()

    async def watched(exchange: Exchange) -> None:
        await script(exchange)
        await exchange.wait_until_left()
        left.set()

    async with open_both(watched) as (peer, upstreams):
        task = asyncio.create_task(call(upstreams, endpoint(peer)))
        await peer.has_received.wait()
        assert await is_pending(task)
        task.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("sent", [b"", OK_HEAD, OK_HEAD + b"content-length: 99\r\n\r\n{"])
async def test_a_caller_who_leaves_takes_the_connection_along_at_once(sent: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(sent)

    await leave(script, lambda upstreams, one: upstreams.source(one, "c", 0.5).search("q", 5))
    await leave(script, lambda upstreams, one: generate(upstreams.model(one, "c"), PARAMS))
    await leave(script, lambda upstreams, one: generate(upstreams.model(one, "c"), STREAM))


async def test_closing_a_stream_closes_its_connection_at_once() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event("a"))
        await exchange.wait_until_left()
        left.set()

    async with open_both(script) as (peer, upstreams):
        async with aclosing(upstreams.model(endpoint(peer), "c").generate(MESSAGES, STREAM)) as frames:
            assert await anext(frames) == [Frame(0, "a")]
        await left.wait()


async def test_frames_of_one_packet_come_together_and_usage_comes_last() -> None:
    chunks = [event({"content": "a"}), event({"text": "b"}) + event("c"), event({"usage": USAGE, "content": ""})]
    async with open_both(stream(*chunks, event("[DONE]"))) as (peer, upstreams):
        bursts, error = await generate(upstreams.model(endpoint(peer), "c"), STREAM)
    assert error is None
    assert bursts == [[Frame(0, "a")], [Frame(1, "b"), Frame(2, "c")], [Frame(3, "", fields={"usage": USAGE})]]


async def test_a_stream_may_end_without_saying_so() -> None:
    assert await answer(stream(event({"content": "a"}), b'data: {"content":"b"}')) == (["a", "b"], None)


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "Text/Event-Stream"])
async def test_the_type_of_a_stream_may_be_written_otherwise(kind: str) -> None:
    assert await answer(stream(event("a"), kind=kind)) == (["a"], None)


async def test_a_reply_that_is_no_stream_is_one_frame() -> None:
    assert await answer(reply_json(ANSWER)) == (["Hi ü"], None)


async def test_a_stream_that_is_cut_is_an_error_behind_the_frames_that_came() -> None:
    pieces, error = await answer(stream(event("a"), event("b"), is_ended=False))
    assert pieces == ["a", "b"]
    assert error is not None
    assert error.message.startswith("Network error: ")


async def test_a_failure_inside_of_a_stream_is_told_without_tokens() -> None:
    pieces, error = await answer(stream(event("a") + event({"error": {"message": f"bad {TOKEN}"}}) + event("b")))
    assert pieces == ["a"]
    assert error is not None
    assert error.message == "Model request failed: bad ***"


@pytest.mark.parametrize("parts", [(), (b": nothing\n\n",), (b"<html>",)])
async def test_a_stream_without_a_single_event_is_invalid(parts: tuple[bytes, ...]) -> None:
    pieces, error = await answer(stream(*parts))
    assert pieces == []
    assert error is not None
    assert error.message == "Invalid response from model"


async def test_a_connection_is_used_again_after_answers_and_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "END_WAIT_S", HANG_S)

    async def script(exchange: Exchange) -> None:
        if "text/event-stream" in exchange.received.all("accept"):
            await exchange.start()
            await exchange.chunk(event("a") + event("[DONE]"))
            await exchange.end()
        else:
            await exchange.answer(json.dumps({**ANSWER, **REFERENCES}).encode())

    async with open_both(script) as (peer, upstreams):
        for _ in range(3):
            await upstreams.source(endpoint(peer), "c", 0.5).search("q", 5)
            for params in (PARAMS, STREAM):
                assert (await generate(upstreams.model(endpoint(peer), "c"), params))[1] is None
    assert (peer.connections, len(peer.received)) == (1, 9)


async def test_cookies_are_not_kept() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(b"{}", 200, "application/json", "set-cookie: a=b; Path=/")

    async with open_both(script) as (peer, upstreams):
        for _ in range(2):
            await upstreams.source(endpoint(peer), "c", 0.5).search("q", 5)
    assert all(received.all("cookie") == [] for received in peer.received)


async def test_a_question_that_cannot_be_sent_is_an_error() -> None:
    text = "half a character: \ud800"
    async with open_both(reply_json(REFERENCES)) as (peer, upstreams):
        await failure_of(upstreams.source(endpoint(peer), "c", 0.5).search(text, 5))
        model = upstreams.model(endpoint(peer), "c")
        with pytest.raises(UpstreamError):
            await anext(model.generate((Message("user", text),), PARAMS))
    assert peer.received == []
