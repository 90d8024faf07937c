# SPDX-License-Identifier: Apache-2.0
"""The detector client against a server that keeps the detector API, and against servers that break it."""

import asyncio
import gzip
import json
import socket
import traceback
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from lockgate.backends import http as http_module
from lockgate.backends.connections import NEVER_PASSED
from lockgate.backends.detector import DetectorClient, ReviewerClient, open_detector_client
from lockgate.backends.http import open_http
from lockgate.config.settings import DetectorSettings, Secret
from lockgate.errors import BrokeOff, BrokeProtocol, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Claim, Conversation, Detection, Excerpt, Generated, Health, Subject
from lockgate.interfaces import Detector, Headers, LookbehindDetector, Probe, Reviewer
from tests.contracts.http_peers import (
    Exchange,
    Peer,
    Script,
    break_off,
    let_time_pass,
    open_closed_port,
    open_peer,
    reply,
    reply_json,
    send_raw,
    stay_silent,
)
from tests.waits import LoopClock, linger, until

RESULT = {"start": 0, "end": 2, "text": "he", "detection": "d", "detection_type": "t", "score": 0.5}
FAILED = "detector request failed for `pii`: "
OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


async def read_from(settings: DetectorSettings, *texts: str, headers: Headers = ()) -> Any:
    async with open_detector_client("pii", settings) as client:
        assert isinstance(client, DetectorClient)
        return await client.accept({"b": 1, "a": 2}, headers).read([Excerpt(text) for text in texts])


async def failure_of(settings: DetectorSettings) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await read_from(settings, "hello")
    assert caught.value.service == "pii"
    assert caught.value.message.startswith(FAILED)
    return caught.value


def in_turn(*scripts: Script) -> Script:
    """Answers each request by the next script; the last one stays."""
    left = list(scripts)

    async def script(exchange: Exchange) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return script


async def test_all_texts_go_out_in_one_request_and_come_back_in_order() -> None:
    async with open_peer(reply_json([[RESULT], [], [RESULT, RESULT]])) as peer:
        found = await read_from(peer.detector(), "hello", "x", "hey")
    [request] = peer.received
    assert (request.method, request.path) == ("POST", "/api/v1/text/contents")
    assert request.body == b'{"contents":["hello","x","hey"],"detector_params":{"b":1,"a":2}}'
    expected = Detection(0, 2, "he", "d", "t", 0.5)
    assert found == [[expected], [], [expected, expected]]


async def test_a_detector_client_is_a_detector_that_never_looks_back_and_can_be_probed() -> None:
    async with open_peer() as peer, open_detector_client("pii", peer.detector()) as client:
        assert isinstance(client, DetectorClient)
        assert isinstance(client, LookbehindDetector)
        detector: Detector = client
        probe: Probe = client
        assert detector is client
        assert (client.lookbehind_chars, (await probe.probe(())).status) == (0, "HEALTHY")


async def test_nothing_is_asked_about_nothing() -> None:
    async with open_peer() as peer:
        assert await read_from(peer.detector()) == []
    assert peer.received == []


@pytest.mark.parametrize(
    ("kind", "subject", "path", "body"),
    [
        ("text_generation", Generated("p", "t"), "/api/v1/text/generation", {"prompt": "p", "generated_text": "t"}),
        (
            "text_chat",
            Conversation([{"role": "user", "name": None}]),
            "/api/v1/text/chat",
            {"messages": [{"role": "user"}], "tools": []},
        ),
        (
            "text_context_doc",
            Claim("c", "url", ["u"]),
            "/api/v1/text/context/doc",
            {"content": "c", "context_type": "url", "context": ["u"]},
        ),
    ],
)
async def test_a_reviewer_is_asked_by_its_type(kind: Any, subject: Subject, path: str, body: dict[str, Any]) -> None:
    answer = [{"detection": "Yes", "detection_type": "risk", "score": 1, "evidence": [{"name": "n"}]}]
    async with open_peer(reply_json(answer)) as peer, open_detector_client("risk", peer.detector(kind)) as client:
        assert isinstance(client, ReviewerClient)
        reviewer: Reviewer = client
        found = await reviewer.accept({"q": 1}, ()).review(subject)
    [request] = peer.received
    assert (request.path, request.json) == (path, {**body, "detector_params": {"q": 1}})
    assert found == [Detection(0, 0, "", "Yes", "risk", 1.0, evidence=({"name": "n"},))]


async def test_a_reviewer_refuses_a_subject_of_another_type() -> None:
    async with open_peer() as peer, open_detector_client("risk", peer.detector("text_chat")) as client:
        assert isinstance(client, ReviewerClient)
        with pytest.raises(RuntimeError, match="`risk` reads Conversation, not Generated"):
            await client.accept({}, ()).review(Generated("p", "t"))
    assert peer.received == []


@pytest.mark.parametrize(
    ("prefix", "path", "expected"),
    [
        ("", None, "/api/v1/text/contents"),
        ("a/b", None, "/a/b/api/v1/text/contents"),
        ("a", "/my/path", "/a/my/path"),
        ("a%20b", None, "/a%20b/api/v1/text/contents"),
    ],
)
async def test_the_address_has_the_prefix_and_the_detectors_own_path(
    prefix: str, path: str | None, expected: str
) -> None:
    async with open_peer() as peer:
        await read_from(peer.detector(path=path, path_prefix=prefix), "x")
    assert peer.received[0].path == expected


async def test_fixed_headers_replace_those_passed_on_and_the_rest_keeps_all_values() -> None:
    passed = [
        ("Detector-Id", "theirs"), ("x-model-name", "theirs"), ("Content-Type", "text/plain"),
        ("traceparent", "00-theirs"), ("Authorization", "Bearer caller"),
        ("x-tenant", "a"), ("X-Tenant", "b"), ("x-name", "MÃ¼ller"),
    ]  # fmt: skip
    async with open_peer() as peer:
        await read_from(peer.detector(), "x", headers=passed)
        await read_from(peer.detector(api_token_value=Secret("ours")), "x", headers=passed)
    first, second = peer.received
    assert first.all("detector-id") == first.all("x-model-name") == ["pii"]
    assert first.all("content-type") == ["application/json"]
    assert first.all("x-tenant") == ["a", "b"]
    assert first.all("x-name") == ["MÃ¼ller"]  # as the peer reads Latin-1: the same bytes as came in
    [trace] = first.all("traceparent")
    assert trace != "00-theirs"
    assert first.all("authorization") == ["Bearer caller"]
    assert second.all("authorization") == ["Bearer ours"]


async def test_headers_of_the_callers_own_connection_are_never_passed_on() -> None:
    names = sorted(NEVER_PASSED)
    async with open_peer() as peer:
        await read_from(peer.detector(), "x", headers=[(name.title(), "theirs") for name in names])
    [request] = peer.received
    assert [value for name in names for value in request.all(name) if value == "theirs"] == []
    assert request.all("host") == [f"127.0.0.1:{peer.port}"]
    assert request.all("accept-encoding") == ["identity"]


async def test_cookies_are_not_kept_and_proxies_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    async def script(exchange: Exchange) -> None:
        await exchange.answer(b"[[]]", 200, "application/json", "set-cookie: a=b")

    async with open_peer(script) as peer, open_detector_client("pii", peer.detector()) as client:
        assert isinstance(client, DetectorClient)
        reading = client.accept({}, ())
        await reading.read([Excerpt("x")])
        await reading.read([Excerpt("x")])
    assert peer.received[1].all("cookie") == []
    assert peer.connections == 1


@pytest.mark.parametrize(
    "status", [400, 404, 422, 503, 401, 403, 408, 409, 429, 500, 501, 502, 504, 201, 204, 302, 307]
)
async def test_every_status_but_200_is_a_failure_with_that_status(status: int) -> None:
    async with open_peer(reply(b"", status)) as peer:
        error = await failure_of(peer.detector())
    assert (error.status, error.message, len(peer.received)) == (status, FAILED, 1)
    assert isinstance(error, Rejected) == (400 <= status < 500)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"code": 404, "message": "no model"}, (404, FAILED + "no model")),
        ({"code": 7, "message": "odd"}, (422, FAILED + "odd")),
        ({"detail": "FastAPI"}, (422, FAILED)),
        ({"code": "404", "message": "no model"}, (422, FAILED)),
    ],
)
async def test_the_words_and_code_of_an_error_body_are_used(body: Any, expected: tuple[int, str]) -> None:
    async with open_peer(reply_json(body, 422)) as peer:
        error = await failure_of(peer.detector())
    assert (error.status, error.message) == expected


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"{}", b"[", b"garbage", b"[1]", b'[[{"start":0}]]', b"\xff\xfe", b"[" * 5000, b"<html></html>"],
)
async def test_a_200_with_the_wrong_shape_breaks_the_protocol(body: bytes) -> None:
    async with open_peer(reply(body)) as peer:
        error = await failure_of(peer.detector())
    assert isinstance(error, BrokeProtocol)
    assert error.status == 500


@pytest.mark.parametrize(
    ("script", "kind", "status"),
    [
        (break_off, BrokeOff, 408),
        (send_raw(), BrokeOff, 408),
        (send_raw(b"garbage\r\n\r\n"), BrokeProtocol, 500),
        (send_raw(b"HTTP/1.1 200"), BrokeOff, 408),
        (send_raw(OK_HEAD + b"content-length: 100\r\n\r\n[["), BrokeOff, 408),
        (send_raw(OK_HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n[[\r\n"), BrokeOff, 408),
        (send_raw(OK_HEAD + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n[["), BrokeOff, 408),
        (send_raw(OK_HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n[]"), BrokeOff, 408),
    ],
)
async def test_a_connection_that_fails_is_one_failure_below_http(
    script: Script, kind: type[UpstreamError], status: int
) -> None:
    async with open_peer(script) as peer:
        error = await failure_of(peer.detector())
    assert (type(error), error.status) == (kind, status)
    assert len(peer.received) == 1


async def test_a_body_that_is_reset_in_the_middle_is_a_failure() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(OK_HEAD + b"content-length: 100\r\n\r\n[[", b"]")
        exchange.reset()

    async with open_peer(script) as peer:
        error = await failure_of(peer.detector())
    assert (type(error), error.status, len(peer.received)) == (BrokeOff, 408, 1)


async def test_a_body_that_is_compressed_all_the_same_is_understood() -> None:
    body = gzip.compress(json.dumps([[RESULT]]).encode())
    head = OK_HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with open_peer(send_raw(head + body)) as peer:
        assert len((await read_from(peer.detector(), "hello"))[0]) == 1


async def test_a_server_that_refuses_connections_is_unavailable() -> None:
    async with open_closed_port() as service:
        error = await failure_of(DetectorSettings("text_contents", "c", 0.5, service=service))
    assert (type(error), error.status) == (Unavailable, 408)
    assert "cannot connect" in error.message


async def test_a_host_name_that_nobody_knows_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_more: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with open_peer() as peer:
        settings = peer.detector(hostname="detector.example")
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        error = await failure_of(settings)
    assert (type(error), error.status) == (Unavailable, 408)
    assert "cannot be resolved" in error.message


async def test_a_server_that_says_nothing_is_given_up_after_the_request_timeout() -> None:
    async with open_peer(stay_silent) as peer:
        error = await failure_of(peer.detector(request_timeout=0.1))
    assert (type(error), error.status) == (TimedOut, 408)


async def test_a_body_that_never_ends_is_given_up_too() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(OK_HEAD + b"content-length: 100\r\n\r\n[")
        await exchange.wait_until_left()

    async with open_peer(script) as peer:
        error = await failure_of(peer.detector(request_timeout=0.1))
    assert (type(error), error.status) == (TimedOut, 408)


async def test_head_and_body_have_one_deadline_together() -> None:
    async def script(exchange: Exchange) -> None:
        LoopClock().advance(400)
        await exchange.send(OK_HEAD + b"content-length: 2\r\n\r\n[")
        await linger()
        LoopClock().advance(400)
        await linger()
        await exchange.send(b"]")

    async with open_peer(script) as peer:
        error = await failure_of(peer.detector(request_timeout=600))
    assert (type(error), error.status) == (TimedOut, 408)


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "MAX_ANSWER_BYTES", 100_000)

    async def script(exchange: Exchange) -> None:
        await exchange.send(OK_HEAD + b"content-length: 900000000\r\n\r\n")
        for _ in range(1000):
            await exchange.send(b" " * 10_000)

    async with open_peer(script) as peer:
        error = await failure_of(peer.detector())
    assert isinstance(error, BrokeProtocol)
    assert "longer than 100000 bytes" in error.message


async def test_a_large_request_goes_out_whole() -> None:
    text = "ä" * 3_000_000
    async with open_peer() as peer:
        await read_from(peer.detector(), text)
    assert peer.received[0].json["contents"] == [text]


async def test_connections_are_reused_one_after_the_other_and_not_limited_in_number() -> None:
    async def script(exchange: Exchange) -> None:
        await until(lambda: len(peer.received) >= 120, "all requests at once")
        await exchange.answer(b"[[]]")

    async with (
        open_peer(script) as peer,
        open_detector_client("pii", replace(peer.detector(), batch_contents=1)) as client,
    ):
        assert isinstance(client, DetectorClient)
        reading = client.accept({}, ())
        await asyncio.gather(*[reading.read([Excerpt("x")]) for _ in range(120)])
        assert peer.connections == 120
        await reading.read([Excerpt("x")])
        assert peer.connections == 120


async def test_a_cancelled_call_closes_its_connection_at_once() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.wait_until_left()
        left.set()

    async with open_peer(script) as peer:
        call = asyncio.create_task(read_from(peer.detector(), "x"))
        await peer.has_received.wait()
        call.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await call


async def read_twice(peer: Peer, second: Script) -> Any:
    """A first call that succeeds, then one that meets `second` on the same connection."""
    async with open_detector_client("pii", peer.detector()) as client:
        assert isinstance(client, DetectorClient)
        reading = client.accept({}, ())
        peer.script = reply_json([[RESULT]])
        await reading.read([Excerpt("hello")])
        assert peer.connections == 1
        peer.script = second
        return await reading.read([Excerpt("hello")])


async def test_a_connection_that_the_server_has_closed_is_not_taken_from_the_pool() -> None:
    async with open_peer() as peer, open_detector_client("pii", peer.detector()) as client:
        assert isinstance(client, DetectorClient)
        reading = client.accept({}, ())
        await reading.read([Excerpt("x")])
        await peer.part_from_all()
        await reading.read([Excerpt("x")])
        assert [request.connection for request in peer.received] == [1, 2]


@pytest.mark.parametrize(
    "script",
    [
        send_raw(b"HTTP/1.1 200"),
        send_raw(OK_HEAD + b"content-length: 100\r\n\r\n[["),
        send_raw(b"garbage\r\n\r\n"),
        reply(b"", 503),
    ],
    ids=["half a head", "half a body", "garbage", "refusal"],
)
async def test_a_request_that_was_answered_at_all_is_never_sent_again(script: Script) -> None:
    async with open_peer() as peer:
        with pytest.raises(UpstreamError):
            await read_twice(peer, script)
    assert len(peer.received) == 2


@pytest.mark.parametrize("script", [break_off, let_time_pass, reply(b"", 500), send_raw(b"x" * 50 + b"\r\n\r\n")])
async def test_no_failure_tells_the_token(script: Script) -> None:
    async with open_peer(script) as peer:
        error = await failure_of(peer.detector(api_token_value=Secret("hush-hush")))
        told = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
    assert peer.received[0].all("authorization") == ["Bearer hush-hush"]
    assert "hush-hush" not in told


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (reply(b""), Health("HEALTHY")),
        (reply(b"ok", 200, "text/plain"), Health("HEALTHY")),
        (reply_json({"status": "HEALTHY", "reason": "dropped"}), Health("HEALTHY")),
        (reply_json({"status": "UNHEALTHY", "reason": "no model"}), Health("UNHEALTHY", 200, "no model")),
        (reply_json({"status": "UNKNOWN", "reason": 5}), Health("UNKNOWN", 200, None)),
        (reply_json({"status": "fine"}), Health("HEALTHY")),
        (reply(b"", 204), Health("UNKNOWN", 204, "No Content")),
        (reply(b"", 302), Health("UNKNOWN", 302, "Found")),
        (reply(b"", 404), Health("UNKNOWN", 404, "Not Found")),
        (reply(b"", 413), Health("UNKNOWN", 413, "Payload Too Large")),
        (reply(b"", 422), Health("UNKNOWN", 422, "Unprocessable Entity")),
        (reply(b"", 500), Health("UNHEALTHY", 500, "Internal Server Error")),
        (reply(b"", 503), Health("UNHEALTHY", 503, "Service Unavailable")),
        (reply(b"", 599), Health("UNHEALTHY", 599, None)),
    ],
)
async def test_health_is_read_from_the_answer(script: Script, expected: Health) -> None:
    async with open_peer(script) as peer, open_detector_client("pii", peer.detector(path_prefix="p")) as client:
        assert await client.probe([("x-tenant", "a"), ("host", "theirs")]) == expected
    [request] = peer.received
    assert (request.method, request.path, request.all("x-tenant")) == ("GET", "/p/health", ["a"])


async def test_a_probe_sends_neither_token_nor_trace_nor_id() -> None:
    async with open_peer() as peer:
        settings = peer.detector(api_token_value=Secret("hush"))
        async with open_detector_client("pii", settings) as client:
            await client.probe([("authorization", "Bearer caller")])
    [request] = peer.received
    assert request.all("authorization") == ["Bearer caller"]
    assert [request.all(name) for name in ("traceparent", "detector-id", "x-model-name")] == [[], [], []]


async def test_a_probe_goes_to_the_health_service_where_there_is_one() -> None:
    async with AsyncExitStack() as stack:
        peer, other = [await stack.enter_async_context(open_peer()) for _ in range(2)]
        settings = DetectorSettings(
            "text_contents", "c", 0.5, service=peer.service(), health_service=other.service(path_prefix="h")
        )
        client = await stack.enter_async_context(open_detector_client("pii", settings))
        assert (await client.probe(())).status == "HEALTHY"
    assert (peer.received, [request.path for request in other.received]) == ([], ["/h/health"])


async def test_a_probe_never_raises() -> None:
    for script in (let_time_pass, break_off, send_raw(b"garbage\r\n\r\n")):
        async with open_peer(script) as peer, open_detector_client("pii", peer.detector()) as client:
            health = await client.probe(())
            assert (health.status, health.code) == ("UNKNOWN", 500)
            assert health.reason
    async with open_closed_port() as service, open_http(service, "detector", "pii") as http:
        health = await http.probe(())
    assert (health.status, health.code) == ("UNKNOWN", 500)
    assert "cannot connect" in (health.reason or "")


async def test_a_detector_that_runs_here_has_no_client() -> None:
    with pytest.raises(RuntimeError, match="`pii` is not remote"):
        async with open_detector_client("pii", DetectorSettings("text_contents", "c", 0.5, embedded="pii")):
            pass
