# SPDX-License-Identifier: Apache-2.0
"""The OpenAI client against a server that keeps the API, and against servers that break it (G-136 to G-139)."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from lockgate.backends import http
from lockgate.backends.openai import OpenAIClient, open_openai_client
from lockgate.config.settings import OpenAISettings, Secret
from lockgate.errors import BrokeOff, BrokeProtocol, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Generation, Health
from lockgate.interfaces import Backend, Probe
from tests.contracts.http_peers import (
    Exchange,
    Script,
    break_off,
    drip,
    let_time_pass,
    open_closed_port,
    open_peer,
    reply,
    reply_json,
    send_raw,
    stream,
    texts_of,
)
from tests.waits import HANG_S, LoopClock, is_pending, latency, settled

CHAT = Generation("m", {"model": "m", "stream": True, "messages": [], "a_first": None}, kind="chat")
TEXT = Generation("m", {"model": "m", "prompt": "p"}, kind="text")
FLAT = {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400}
WRAPPED = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
CHAT_FAILED = "chat completion request failed for `m`: "
DONE = b"data: [DONE]\n\n"


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "delta": {"content": text}}], **more}


def event(text: str) -> bytes:
    return b"data: " + json.dumps(message(text), ensure_ascii=False).encode() + b"\n\n"


def error_event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def collect(settings: OpenAISettings, request: Generation = CHAT) -> tuple[list[list[str]], UpstreamError | None]:
    """The texts of a stream, list by list, and what it ended with."""
    lists: list[Sequence[dict[str, Any]]] = []
    async with open_openai_client(settings) as client:
        try:
            async with aclosing(client.stream(request)) as messages:
                async for together in messages:
                    lists.append(together)  # noqa: PERF401 - what came before an error counts too
        except UpstreamError as error:
            return texts_of(lists), error
    return texts_of(lists), None


async def stream_of(script: Script, **changes: Any) -> tuple[list[str], UpstreamError | None]:
    """The texts of a stream that follows the script."""
    async with open_peer(script) as peer:
        lists, error = await collect(peer.openai(**changes))
    return [text for together in lists for text in together], error


async def test_the_client_is_a_backend_that_can_be_probed() -> None:
    async with open_peer(reply_json({"choices": []})) as peer, open_openai_client(peer.openai()) as client:
        backend: Backend = client
        probe: Probe = client
        assert await backend.generate(TEXT) == {"choices": []}
        assert await probe.probe(()) == Health("HEALTHY")
    assert peer.received[-1].path == "/health"


async def test_a_probe_goes_to_the_health_service_where_there_is_one() -> None:
    async with open_peer() as peer, open_peer(reply(b"", 503)) as other:
        settings = OpenAISettings(peer.service(), other.service())
        async with open_openai_client(settings) as client:
            assert await client.probe(()) == Health("UNHEALTHY", 503, "Service Unavailable")
    assert peer.received == []


@pytest.mark.parametrize(("request_", "path"), [(CHAT, "/p/v1/chat/completions"), (TEXT, "/p/v1/completions")])
async def test_the_body_goes_out_as_it_is_to_the_endpoint_of_its_kind(request_: Generation, path: str) -> None:
    async with (
        open_peer(reply_json({"choices": []})) as peer,
        open_openai_client(peer.openai(path_prefix="p")) as client,
    ):
        await client.generate(request_)
    [received] = peer.received
    assert received.path == path
    assert received.body == json.dumps(request_.body, separators=(",", ":")).encode()
    assert len(received.all("traceparent")) == 1
    assert received.all("content-type") == ["application/json"]


async def test_the_configured_token_replaces_the_callers() -> None:
    request = TEXT._replace(headers=[("authorization", "Bearer caller"), ("x-tenant", "a"), ("x-tenant", "b")])
    async with (
        open_peer(reply_json({"choices": []})) as peer,
        open_openai_client(peer.openai(api_token_value=Secret("ours"))) as client,
    ):
        await client.generate(request)
    [received] = peer.received
    assert received.all("authorization") == ["Bearer ours"]
    assert received.all("x-tenant") == ["a", "b"]


async def test_a_whole_answer_is_lossless() -> None:
    answer = {"z": [1.5, 12345678901234567890123, None], "choices": [{"x": {"ü": True}}], "a": "😀"}
    async with open_peer(reply_json(answer)) as peer, open_openai_client(peer.openai()) as client:
        found = await client.generate(CHAT)
    assert json.dumps(found) == json.dumps(answer)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"choices":null}', b'{"choices":{}}', b"garbage", b"[" * 5000, json.dumps(FLAT).encode()],
)
async def test_a_whole_answer_of_the_wrong_shape_breaks_the_protocol(body: bytes) -> None:
    async with open_peer(reply(body)) as peer, open_openai_client(peer.openai()) as client:
        with pytest.raises(BrokeProtocol, match="no completion") as caught:
            await client.generate(CHAT)
    assert caught.value.status == 500


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503, 201, 302])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (FLAT, "too long"),
        (WRAPPED, "too long"),
        ({"error": {"message": "m", "type": "t", "code": "invalid"}}, "unknown error occurred"),
        ({"error": {"message": "m", "type": "t"}}, "unknown error occurred"),
        ({"detail": "Not Found"}, "unknown error occurred"),
    ],
)
async def test_a_refusal_has_the_http_status_and_the_servers_words(status: int, body: Any, words: str) -> None:
    async with open_peer(reply_json(body, status)) as peer, open_openai_client(peer.openai()) as client:
        with pytest.raises(UpstreamError) as whole:
            await client.generate(TEXT)
        _, streamed = await collect(peer.openai())
    assert (whole.value.status, whole.value.message) == (status, f"completion request failed for `m`: {words}")
    assert streamed is not None
    assert (streamed.status, streamed.message) == (status, CHAT_FAILED + words)
    assert isinstance(streamed, Rejected) == (400 <= status < 500)


async def test_tokens_are_counted_by_the_server() -> None:
    async with (
        open_peer(reply_json({"count": 7, "tokens": "whatever"})) as peer,
        open_openai_client(peer.openai()) as client,
    ):
        assert await client.tokenize("m", "tëxt", [("x-tenant", "a")]) == 7
    [received] = peer.received
    assert (received.path, received.body) == ("/tokenize", '{"model":"m","prompt":"tëxt"}'.encode())
    assert received.all("x-tenant") == ["a"]


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (reply_json({"count": -1}), 500, "the answer does not fit"),
        (reply_json({"count": "7"}), 500, "the answer does not fit"),
        (reply_json([]), 500, "the answer does not fit"),
        (reply(b"garbage"), 500, "the answer does not fit"),
        (reply_json(WRAPPED, 404), 404, "too long"),
        (reply(b"", 404), 404, "unknown error occurred"),
        (break_off, 408, "the connection was lost"),
    ],
)
async def test_a_failed_count_says_so(script: Script, status: int, words: str) -> None:
    async with open_peer(script) as peer, open_openai_client(peer.openai()) as client:
        with pytest.raises(UpstreamError) as caught:
            await client.tokenize("m", "text", ())
    assert caught.value.status == status
    assert caught.value.message.startswith(f"tokenize request failed for `m`: {words}")


async def test_messages_of_one_packet_come_together() -> None:
    async with open_peer(stream(event("a"), event("b") + event("c"), event("d") + DONE)) as peer:
        assert await collect(peer.openai()) == ([["a"], ["b", "c"], ["d"]], None)


async def test_streamed_messages_are_lossless() -> None:
    sent = message("x", usage=None, prompt_tokens_details={"n": 1.25}, service_tier="ü")
    async with open_peer(stream(error_event(sent), DONE)) as peer, open_openai_client(peer.openai()) as client:
        found = [one async for together in client.stream(CHAT) for one in together]
    assert json.dumps(found) == json.dumps([sent])


async def test_one_event_may_come_byte_by_byte() -> None:
    assert await stream_of(drip(event("a") + event("ü😀") + DONE)) == (["a", "ü😀"], None)


async def test_half_a_character_at_the_border_of_a_packet_is_no_fault() -> None:
    whole = event("ü😀")
    at = whole.index("😀".encode()) + 2
    assert await stream_of(stream(whole[:at], whole[at:], DONE)) == (["ü😀"], None)


async def test_line_ends_may_be_mixed() -> None:
    parts = event("a").replace(b"\n", b"\r\n"), event("b"), event("c").replace(b"\n", b"\r"), DONE
    assert await stream_of(stream(*parts)) == (["a", "b", "c"], None)


async def test_a_line_separator_inside_of_text_ends_no_line() -> None:
    assert await stream_of(stream(event("a\u2028b\u0085c"), DONE)) == (["a\u2028b\u0085c"], None)


async def test_comments_and_event_names_are_ignored_and_many_lines_are_one() -> None:
    many = b'event: chunk\nid: 5\nretry: 1\ndata: {"choices":\ndata: [{"delta":\ndata:{"content":"a"}}]}\n\n'
    assert await stream_of(stream(b": keep-alive\n\n", many, b":\n\nevent: end\n" + DONE)) == (["a"], None)


async def test_a_stream_may_end_without_its_mark() -> None:
    assert await stream_of(stream(event("a"))) == (["a"], None)
    assert await stream_of(stream(b": nothing\n\n")) == ([], None)
    assert await stream_of(stream()) == ([], None)


async def test_nothing_after_the_mark_counts() -> None:
    assert await stream_of(stream(event("a") + DONE + event("b"), error_event(FLAT))) == (["a"], None)


async def test_an_event_that_is_cut_off_by_the_end_is_dropped() -> None:
    assert await stream_of(stream(event("a"), event("b")[:-1])) == (["a"], None)


@pytest.mark.parametrize("error_object", [FLAT, WRAPPED], ids=["flat", "wrapped"])
@pytest.mark.parametrize("before", [[], ["a", "b"]], ids=["first", "later"])
@pytest.mark.parametrize("is_one_packet", [True, False])
async def test_an_error_inside_of_a_stream_comes_after_what_was_good(
    error_object: Any, before: list[str], is_one_packet: bool
) -> None:
    parts = [*map(event, before), error_event(error_object), event("never")]
    texts, error = await stream_of(stream(*([b"".join(parts)] if is_one_packet else parts)))
    assert texts == before
    assert error is not None
    assert (error.status, error.message) == (400, "too long")


@pytest.mark.parametrize("code", [503, 404, 422, 500, 0, 65535])
async def test_an_error_inside_of_a_stream_has_its_own_code(code: int) -> None:
    _, error = await stream_of(stream(error_event({"error": {**WRAPPED["error"], "code": code}})))
    assert error is not None
    assert error.status == code


@pytest.mark.parametrize(
    "data",
    [
        b"garbage", b"null", b"[]", b"{}", b'{"choices":null}', b'{"error":{"code":"x"}}', b"[" * 5000, b'"\xff"',
    ],
)  # fmt: skip
async def test_an_event_that_is_neither_message_nor_error_breaks_the_protocol(data: bytes) -> None:
    texts, error = await stream_of(stream(event("a") + b"data: " + data + b"\n\n" + event("never")))
    assert texts == ["a"]
    assert isinstance(error, BrokeProtocol)
    assert error.status == 500


async def test_an_event_without_data_is_skipped() -> None:
    texts, error = await stream_of(stream(event("a") + b"data: \n\n" + event("b") + b"data: [DONE]\n\n"))
    assert (texts, error) == (["a", "b"], None)


@pytest.mark.parametrize(
    ("script", "kind", "status", "words"),
    [
        (reply_json(FLAT), Rejected, 400, "too long"),
        (reply_json(WRAPPED), Rejected, 400, "too long"),
        (reply_json(message("whole")), BrokeProtocol, 500, CHAT_FAILED + "the answer is JSON, not a stream of events"),
        (reply(b"[]", 200, "application/problem+json"), BrokeProtocol, 500, CHAT_FAILED + "the answer is JSON"),
        (reply(b"<html>\n\n</html>", 200, "text/html"), BrokeProtocol, 500, CHAT_FAILED + "the answer is not a stream"),
        (reply(b"", 200, ""), BrokeProtocol, 500, CHAT_FAILED + "the answer is not a stream"),
    ],
)
async def test_a_200_that_is_no_stream_is_never_an_empty_answer(
    script: Script, kind: type[UpstreamError], status: int, words: str
) -> None:
    texts, error = await stream_of(script)
    assert texts == []
    assert type(error) is kind
    assert (error.status, error.message[: len(words)]) == (status, words)


@pytest.mark.parametrize("kind", ["", "text/plain", "text/event-stream; charset=utf-8"])
async def test_events_are_events_whatever_their_type_is_called(kind: str) -> None:
    assert await stream_of(reply(event("a") + DONE, 200, kind)) == (["a"], None)


@pytest.mark.parametrize(
    ("script", "kind", "status"),
    [
        (break_off, BrokeOff, 408),
        (send_raw(b"garbage\r\n\r\n"), BrokeProtocol, 500),
        (let_time_pass, TimedOut, 408),
    ],
)
async def test_a_stream_that_does_not_open_is_a_failure(script: Script, kind: type[UpstreamError], status: int) -> None:
    texts, error = await stream_of(script)
    assert (texts, type(error)) == ([], kind)
    assert error is not None
    assert error.status == status
    assert error.message.startswith(CHAT_FAILED)


async def test_a_server_that_refuses_connections_is_unavailable() -> None:
    async with open_closed_port() as service:
        _, error = await collect(OpenAISettings(service))
    assert isinstance(error, Unavailable)
    assert error.status == 408


async def test_a_stream_that_is_reset_is_a_failure_and_no_end() -> None:
    texts, error = await stream_of(stream(event("a"), event("b")[:10], is_ended=False))
    assert texts == ["a"]
    assert isinstance(error, BrokeOff)
    assert error.status == 408


async def test_a_stream_that_is_closed_before_its_end_is_a_failure_and_no_end() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event("a"))
        await exchange.wait_until_taken()
        exchange.hang_up()

    texts, error = await stream_of(script)
    assert (texts, type(error)) == (["a"], BrokeOff)


async def test_a_chunk_that_breaks_the_rules_ends_the_stream_at_once() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event("a"))
        await exchange.wait_until_taken()
        await exchange.send(b"zz\r\nfoo")
        await exchange.wait_until_left()

    texts, error = await stream_of(script)
    assert (texts, type(error)) == (["a"], BrokeOff)


async def test_an_event_without_end_is_bounded() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for _ in range(100):
            await exchange.chunk(b"data: " + b"x" * 100_000)
        await exchange.wait_until_left()

    _, error = await stream_of(script)
    assert isinstance(error, BrokeProtocol)
    assert "longer than" in error.message


@pytest.mark.parametrize("limits_silence", [False, True])
async def test_a_stream_that_has_begun_may_pause_as_long_as_the_request_timeout_if_that_counts(
    limits_silence: bool,
) -> None:
    is_late = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event("a"))
        await is_late.wait()
        await exchange.chunk(event("b"), DONE)
        await exchange.end()

    async with (
        open_peer(script) as peer,
        open_openai_client(peer.openai(request_timeout=600), limits_silence=limits_silence) as client,
    ):
        messages = client.stream(CHAT)
        assert texts_of([await anext(messages)]) == [["a"]]
        waiting = asyncio.ensure_future(anext(messages))
        assert await is_pending(waiting)
        LoopClock().advance()
        if limits_silence:
            with pytest.raises(TimedOut):
                await waiting
            return
        assert await is_pending(waiting)
        is_late.set()
        assert texts_of([await waiting, *[one async for one in messages]]) == [["b"]]


@pytest.mark.parametrize("delay_s", [0.0, 0.005])
async def test_a_connection_is_used_again_after_a_stream_has_ended(
    delay_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "END_WAIT_S", HANG_S)

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event("a") + DONE)
        await latency(delay_s)
        await exchange.end()

    async with open_peer(script) as peer, open_openai_client(peer.openai()) as client:
        for _ in range(3):
            assert len([one async for one in client.stream(CHAT)]) == 1
    assert peer.connections == 1


async def test_a_server_that_never_ends_its_body_does_not_hold_up_the_end() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(event("a") + DONE)
        await exchange.wait_until_left()

    async with open_peer(script) as peer, open_openai_client(peer.openai()) as client:
        assert len([one async for one in client.stream(CHAT)]) == 1


async def endless(exchange: Exchange, left: asyncio.Event) -> None:
    await exchange.start()
    await exchange.chunk(event("a"))
    await exchange.wait_until_left()
    left.set()


@pytest.mark.parametrize("how", ["closed", "cancelled while waiting", "left by an error"])
async def test_the_server_sees_at_once_that_nobody_listens_any_more(how: str) -> None:
    left = asyncio.Event()
    async with open_peer(lambda exchange: endless(exchange, left)) as peer, open_openai_client(peer.openai()) as client:
        messages = client.stream(CHAT)
        assert len(await anext(messages)) == 1
        if how == "closed":
            await messages.aclose()
        elif how == "cancelled while waiting":
            waiting = asyncio.ensure_future(anext(messages))
            assert await is_pending(waiting)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            with pytest.raises(ZeroDivisionError):
                await messages.athrow(ZeroDivisionError())
        await left.wait()
        assert len(peer.received) == 1
        peer.script = reply_json({"choices": []})
        await client.generate(TEXT)
        assert peer.connections == 2


async def test_a_stream_that_is_cancelled_while_it_opens_closes_its_connection() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.wait_until_left()
        left.set()

    async with open_peer(script) as peer, open_openai_client(peer.openai()) as client:
        opening = asyncio.create_task(anext(client.stream(CHAT)))
        await peer.has_received.wait()
        opening.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await opening


async def test_a_reader_that_is_slow_slows_the_server_down() -> None:
    sent = 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start()
        for _ in range(400):
            await exchange.chunk(event("x" * 100_000))
            sent += 1

    async with (
        open_peer(script) as peer,
        open_openai_client(peer.openai()) as client,
        aclosing(client.stream(CHAT)) as messages,
    ):
        await anext(messages)
        assert await settled(lambda: sent) < 200


async def test_many_streams_run_at_once() -> None:
    async with open_peer(stream(event("a"), event("b"), DONE)) as peer, open_openai_client(peer.openai()) as client:

        async def run(client: OpenAIClient) -> int:
            return len([one async for together in client.stream(CHAT) for one in together])

        assert set(await asyncio.gather(*[run(client) for _ in range(60)])) == {2}
