# SPDX-License-Identifier: Apache-2.0
"""Requests that are odd or broken as HTTP: routes, methods, pipelines, heads and trailers without end."""

import asyncio

import pytest

from lockgate.server.connection import LINGER_S
from tests.server.http_client import (
    CONTENT,
    JSON_TYPE,
    NDJSON_TYPE,
    STREAM,
    Client,
    build_head,
    build_line,
    build_request,
    call,
    connect,
)
from tests.server.processes import ServerProcess
from tests.waits import linger

BODY = b'{"content":"x","detectors":{"pii":{}}}'
NOTHING = b'{"detections":[]}'
BAD_REQUEST = b'{"code":400,"details":"Invalid HTTP request received."}'


async def answers_still(server: ServerProcess) -> bool:
    return (await call(server.api_port, CONTENT, BODY)).body == NOTHING


@pytest.mark.parametrize(
    "path", ["/", "/api/v2/text/detection/content/", "/docs", "/info", "/api/v2/chat/completions-detection"]
)
async def test_an_unknown_route_is_a_404_without_a_body_under_fms(fms: ServerProcess, path: str) -> None:
    """G-26; /docs is off unless asked for (D-17), /info is on the health port (G-1)."""
    for method in ("GET", "POST"):
        answer = await call(fms.api_port, path, method=method)
        assert (answer.status, answer.body, answer.headers["content-length"]) == (404, b"", "0")
        assert "content-type" not in answer.headers


NOTHING_HERE = "nothing is served on this path"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", NOTHING_HERE),
        ("/nowhere", NOTHING_HERE),
        ("/info", NOTHING_HERE),
        (CONTENT + "/", f"; nearby: {CONTENT}, "),
        ("/api/v2/nothing", f"; nearby: /api/v2/text/generation-detection, {CONTENT}"),
        ("/v1/responses", "; nearby: /v1/chat/completions, /v1/completions, /v1/moderations, /v1/models"),
        ("/v1/chat/completion", "; nearby: /v1/chat/completions, /v1/completions"),
        ("/api/chats", "; nearby: /api/chat, "),
        ("/v1/" + "x" * 20_000, "; nearby: /v1/chat/completions"),
    ],
)
async def test_an_unknown_route_is_a_404_that_names_what_is_nearby(
    server: ServerProcess, path: str, words: str
) -> None:
    """The format is that of the paths beside it; the path itself is not repeated."""
    for method in ("GET", "POST"):
        answer = await call(server.api_port, path, method=method)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
        body = answer.json()
        text = body["error"] if path == "/api/chats" else body["details"]
        assert text.startswith(NOTHING_HERE)
        assert words in text
        if path.startswith("/v1/"):
            assert body["error"]["message"] == text
    assert (await call(server.health_port, "/nowhere", method="GET")).json()["details"] == NOTHING_HERE


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CONTENT, "POST"), ("DELETE", STREAM, "POST"), ("HEAD", CONTENT, "POST"), ("POST", "/health", "GET,HEAD"),
     ("GET", "/v1/completions", "POST"), ("GET", "/api/chat", "POST")],
)  # fmt: skip
async def test_a_wrong_method_is_a_405_that_names_the_right_one(
    server: ServerProcess, method: str, path: str, allowed: str
) -> None:
    answer = await call(server.api_port, path, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        body = answer.json()
        assert (body["error"] if path == "/api/chat" else body["details"]) == (
            f"this path takes {allowed.replace(',', ', ')}"
        )


async def test_a_wrong_method_is_a_405_without_a_body_under_fms(fms: ServerProcess) -> None:
    """G-26."""
    answer = await call(fms.api_port, CONTENT, method="GET")
    assert (answer.status, answer.headers["allow"], answer.body) == (405, "POST", b"")


async def test_head_is_get_without_the_body(server: ServerProcess) -> None:
    got = await call(server.api_port, "/health", method="GET")
    async with connect(server.api_port) as client:
        for _ in range(2):  # the connection stays usable
            await client.send(build_request("HEAD", "/health"))
            head = await client.read_answer("HEAD")
            assert (head.status, head.headers["content-length"]) == (200, str(len(got.body)))


async def test_a_query_and_an_escaped_path_lead_to_the_same_route(server: ServerProcess) -> None:
    for path in (CONTENT + "?x=%ff", CONTENT.replace("content", "%63ontent")):
        assert (await call(server.api_port, path, BODY)).body == NOTHING


async def test_a_connection_serves_many_requests_also_after_an_error(server: ServerProcess) -> None:
    async with connect(server.api_port) as client:
        for body, status in ((BODY, 200), (b"{", 400), (BODY, 200)):
            await client.send(build_request("POST", CONTENT, body))
            assert (await client.read_answer()).status == status
        await client.send(build_request("POST", STREAM, build_line(detectors={"no": {}}, content="x"), NDJSON_TYPE))
        assert (await client.read_answer()).status == 200
        await client.send(build_request("POST", CONTENT, BODY))
        assert (await client.read_answer()).body == NOTHING


async def test_pipelined_requests_are_answered_in_their_order(server: ServerProcess) -> None:
    texts = ["a@b.example", "x", "see a@b.example"]
    requests = [build_request("POST", CONTENT, b'{"content":"%b","detectors":{"pii":{}}}' % t.encode()) for t in texts]
    async with connect(server.api_port) as client:
        await client.send(b"".join(requests) + build_request("GET", "/nowhere"))
        found = [(await client.read_answer()).json()["detections"] for _ in texts]
        assert [[one["start"] for one in of_text] for of_text in found] == [[0], [], [4]]
        assert (await client.read_answer()).status == 404


async def test_a_pipelined_request_may_send_its_body_slowly(server: ServerProcess) -> None:
    """The time for a body that nobody wants is not for one that is still wanted."""
    async with connect(server.api_port) as client:
        head = build_head("POST", CONTENT, {**JSON_TYPE, "content-length": str(len(BODY))})
        await client.send(build_request("POST", CONTENT, BODY) + head + BODY[:5])
        assert (await client.read_answer()).body == NOTHING
        await linger(LINGER_S + 0.3)
        await client.send(BODY[5:])
        assert (await client.read_answer()).body == NOTHING


async def test_http_1_0_is_answered_and_closed(server: ServerProcess) -> None:
    async with connect(server.api_port) as client:
        await client.send(build_request("POST", CONTENT, BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.read_answer()
        assert (answer.body, answer.headers["connection"]) == (NOTHING, "close")
        assert await client.is_closed()


async def test_a_client_that_waits_for_leave_to_send_gets_it(server: ServerProcess) -> None:
    async with connect(server.api_port) as client:
        await client.send(
            build_head("POST", CONTENT, {**JSON_TYPE, "content-length": str(len(BODY)), "expect": "100-continue"})
        )
        assert (await client.read_head()).status == 100
        await client.send(BODY)
        assert (await client.read_answer()).body == NOTHING


async def test_an_upgrade_is_not_taken_and_the_request_is_answered(server: ServerProcess) -> None:
    for kind in ("h2c", "websocket"):
        headers = {"connection": "upgrade", "upgrade": kind}
        assert (await call(server.api_port, "/health", method="GET", headers=headers)).status == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbad header: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: \x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 200,  # a TLS greeting
    ],
)
async def test_what_is_not_http_is_a_400_and_the_end(server: ServerProcess, raw: bytes) -> None:
    async with connect(server.api_port) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (400, BAD_REQUEST)
        assert answer.headers == {
            "content-type": "application/json", "content-length": str(len(BAD_REQUEST)), "connection": "close",
        }  # fmt: skip
        assert await client.is_closed()
    assert await answers_still(server)


async def test_broken_framing_in_the_middle_of_an_answer_only_ends_it(server: ServerProcess) -> None:
    """No second status line falls into a body that has begun."""
    async with connect(server.api_port) as client:
        await client.start_stream()
        await client.send_line(detectors={"pii": {}}, content="One. Two")
        await client.read_head()
        assert await client.read_chunk()
        await client.send(b"not a chunk size\r\n")
        assert await client.is_closed()


async def flood(client: Client, data: bytes, limit: int) -> tuple[int, bytes]:
    """Sends until the server refuses; how much it took, and what it said."""
    sent = 0
    try:
        while sent < limit and not client.reader.at_eof():
            await client.send(data)
            sent += len(data)
            await asyncio.sleep(0)
        return sent, await client.reader.read()
    except ConnectionError:
        return sent, b""


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET /health HTTP/1.1\r\nx: ",
        b"GET /health HTTP/1.1\r\n",
        build_head("POST", CONTENT, {**JSON_TYPE, "transfer-encoding": "chunked"}) + b"1\r\n{\r\n1;",
        build_head("POST", CONTENT, {**JSON_TYPE, "transfer-encoding": "chunked"}) + b"1\r\n{\r\n0\r\nx: ",
        build_head("POST", STREAM, {**NDJSON_TYPE, "transfer-encoding": "chunked"}) + b"1\r\n{\r\n0\r\n",
    ],
    ids=["request line", "header", "headers", "chunk extension", "trailer", "trailers"],
)
async def test_a_head_or_trailer_that_never_ends_is_cut_off(server: ServerProcess, start: bytes) -> None:
    """431 where no answer has begun; closed in any case, and nothing is kept."""
    before = server.memory_kb()
    piece = b"a: b\r\n" * 1000 if start.endswith(b"\r\n") else b"a" * 6000
    async with connect(server.api_port) as client:
        await client.send(start)
        sent, said = await flood(client, piece, 60_000_000)
    assert sent < 20_000_000  # what lies in the sockets' buffers counts as sent
    assert said.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 200 ")) or said == b""
    if said.startswith(b"HTTP/1.1 431"):
        assert said.endswith(b'\r\n\r\n{"code":431,"details":"request head is too large"}')
    assert server.memory_kb() - before < 10_000
    assert await answers_still(server)


async def test_a_request_that_is_sent_byte_by_byte_is_answered(server: ServerProcess) -> None:
    async with connect(server.api_port) as client:
        for byte in build_request("POST", CONTENT, BODY):
            await client.send(bytes([byte]))
        assert (await client.read_answer()).body == NOTHING


async def test_clients_that_dawdle_with_their_head_do_not_keep_others_waiting(server: ServerProcess) -> None:
    whole = build_request("POST", CONTENT, BODY)
    async with connect(server.api_port) as idle, connect(server.api_port) as slow:
        await slow.send(whole[:12])
        assert await answers_still(server)
        await idle.send(whole)
        assert (await idle.read_answer()).body == NOTHING
        await slow.send(whole[12:])  # it was still waited for
        assert (await slow.read_answer()).body == NOTHING


async def test_a_wish_for_another_protocol_does_not_cost_the_body(server: ServerProcess) -> None:
    """Clients that would rather speak HTTP/2 send this with their first request."""
    wish = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    answer = await call(server.api_port, CONTENT, BODY, headers={**JSON_TYPE, **wish})
    assert (answer.status, answer.body) == (200, NOTHING)


@pytest.mark.parametrize("head", [{"x-long": "y" * 70_000}, {f"x-{number}": "y" * 20 for number in range(4_000)}])
async def test_a_complete_head_that_is_too_large_is_refused_too(server: ServerProcess, head: dict[str, str]) -> None:
    answer = await call(server.api_port, "/health", method="GET", headers=head)
    assert (answer.status, answer.body) == (431, b'{"code":431,"details":"request head is too large"}')
    assert await answers_still(server)


async def test_a_stream_tells_a_client_that_asks_to_go_on(server: ServerProcess) -> None:
    async with connect(server.api_port) as client:
        await client.start_stream({**NDJSON_TYPE, "Expect": "100-continue"})
        assert (await client.read_head()).status == 100
        await client.send_chunk(build_line(detectors={"pii": {}}, content="Hello. "))
        await client.send(b"0\r\n\r\n")
        answer = await client.read_answer()
    assert (answer.status, len(answer.lines())) == (200, 1)


# Heads: RFC 9112.

HOST_REQUIRED = "one valid `Host` header is required"
ONCE = "`Authorization` and `X-Lockgate-Key` may be sent once only"
TOO_LARGE = "request head is too large"
HEAD = b"GET /health HTTP/1.1\r\nhost: a\r\n"


@pytest.mark.parametrize(
    ("raw", "status", "details"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 400, HOST_REQUIRED),
        (HEAD + b"host: a\r\n\r\n", 400, HOST_REQUIRED),
        (b"GET /health HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400, HOST_REQUIRED),
        (b"GET /health HTTP/1.1\r\nhost: a b\r\n\r\n", 400, HOST_REQUIRED),
        (b"GET /health HTTP/1.1\r\nhost: a/b\r\n\r\n", 400, HOST_REQUIRED),
        (b"GET /health HTTP/1.1\r\nhost: a@b\r\n\r\n", 400, HOST_REQUIRED),
        (HEAD + b"X-Lockgate-Key: k\r\nx-lockgate-key: k\r\n\r\n", 400, ONCE),
        (HEAD + b"authorization: k\r\nAuthorization: l\r\n\r\n", 400, ONCE),
        (b"GET /health HTTP/1.0\r\nauthorization: k\r\nAuthorization: l\r\n\r\n", 400, ONCE),
        (b"GET /health\r\n\r\n", 505, "HTTP/1.1 or HTTP/1.0 is required"),
        (b"GET /health HTTP/0.9\r\nhost: a\r\n\r\n", 505, "HTTP/1.1 or HTTP/1.0 is required"),
        (HEAD + b"x: y\r\n" * 100 + b"\r\n", 431, "request head has more than 100 fields"),
        (HEAD + b"x: " + b"y" * 33_000 + b"\r\n\r\n", 431, TOO_LARGE),
        (HEAD + b"x:\r\n" * 24_000 + b"\r\n", 431, TOO_LARGE),
        (HEAD + b"x:" + b" " * 120_000 + b"y\r\n\r\n", 431, TOO_LARGE),
        (b"GET /" + b"x" * 33_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 431, TOO_LARGE),
    ],
)
async def test_a_head_that_breaks_a_rule_is_refused_and_the_connection_closed(
    server: ServerProcess, raw: bytes, status: int, details: str
) -> None:
    async with connect(server.api_port) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.json()) == (status, {"code": status, "details": details})
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()
    assert await answers_still(server)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost:\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: [::1]:8033\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a_b.example:80\r\ncookie: a\r\ncookie: b\r\n\r\n",
        b"GET http://a.example/health HTTP/1.1\r\nhost: a.example\r\n\r\n",
        HEAD + b"x: y\r\n" * 99 + b"\r\n",
        HEAD + b"x: " + b"y" * 32_000 + b"\r\n\r\n",
    ],
    ids=len,
)
async def test_an_unusual_head_that_breaks_no_rule_is_answered(server: ServerProcess, head: bytes) -> None:
    async with connect(server.api_port) as client:
        await client.send(head)
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize("trailers", [b"x: " + b"y" * 70_000 + b"\r\n", b"x: y\r\n" * 101], ids=len)
async def test_trailers_that_are_too_large_or_too_many_are_refused(server: ServerProcess, trailers: bytes) -> None:
    head = build_head("POST", CONTENT, {**JSON_TYPE, "transfer-encoding": "chunked"})
    async with connect(server.api_port) as client:
        await client.send(head + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY) + trailers + b"\r\n")
        answer = await client.read_answer()
        assert (answer.status, answer.json()["details"]) in ((431, "trailers are too large"), (431, TOO_LARGE))
        assert await client.is_closed()
    async with connect(server.api_port) as client:
        await client.send(head + b"%x\r\n%b\r\n0\r\nx: y\r\n\r\n" % (len(BODY), BODY))
        assert (await client.read_answer()).body == NOTHING
