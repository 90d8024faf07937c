# SPDX-License-Identifier: Apache-2.0
"""The name by which client and log know a request (A-17, A-18, A-44), and headers of one stream alone (A-80)."""

import json
import logging
import uuid

import pytest

from lockgate.errors import Rejected
from lockgate.server.app import App
from lockgate.server.exchange import Exchange
from lockgate.telemetry import LogEvent, log_event, logger
from lockgate.telemetry.log import JsonLines
from tests.server.gateways import gateway
from tests.server.http_client import JSON_TYPE, Answer, call, connect
from tests.server.served_app import build_app, served

CHAT, CHAT_STREAM, GUARDRAILS = "/api/v1/chat", "/api/v1/chat/stream", "/api/v2/text/x"
NAMED = (CHAT, CHAT_STREAM, "/health", "/ready", "/docs", "/openapi.json")
UNNAMED = (GUARDRAILS, "/v1/chat/completions", "/api/v1/task/x")
UNBUFFERED = [(b"x-accel-buffering", b"no"), (b"connection", b"keep-alive")]


async def tell(exchange: Exchange) -> None:
    """The name of the request; with a line in the log."""
    log_event(LogEvent.WARNING, reason="under way")
    if exchange.request.header(b"x-want") == "failure":
        raise Rejected("m", "no", status=422)
    await exchange.reply.answer_json(json.dumps({"id": exchange.request.correlation_id}).encode())


async def stream(exchange: Exchange) -> None:
    """A stream with headers of its own."""
    await exchange.reply.start_events(
        UNBUFFERED, encode_error=lambda words: b"event: error\ndata: <%s>\n\n" % words.encode()
    )
    await exchange.reply.write(b"data: %s\n\n" % exchange.request.correlation_id.encode())
    if exchange.request.header(b"x-want") == "failure":
        raise Rejected("m", "no", status=422)
    await exchange.reply.end()


def build() -> App:
    app = build_app({**dict.fromkeys((*NAMED, *UNNAMED), tell), CHAT_STREAM: stream})
    app.is_correlated = True
    return app


async def ask(port: int, path: str, name: str | None = None, method: str = "POST", **more: str) -> Answer:
    given = {} if name is None else {"x-correlation-id": name}
    return await call(port, path, method=method, headers={**JSON_TYPE, **given, **more})


def is_fresh(name: str) -> bool:
    return uuid.UUID(name).version == 4 and str(uuid.UUID(name)) == name


@pytest.mark.parametrize("name", ["r-1", "x" * 128, "!~", '"quoted"', "a,b;c=d"])
async def test_the_clients_name_is_taken_and_told(name: str) -> None:
    async with served(build()) as port:
        for path in NAMED:
            answer = await ask(port, path, name)
            assert answer.headers["x-correlation-id"] == name
            assert name in (answer.body.decode() if path == CHAT_STREAM else answer.json()["id"])


@pytest.mark.parametrize("name", [None, "", "x" * 129, "a b", "a\tb", "ä", "x" * 5000])
async def test_a_name_that_is_missing_or_unfit_is_replaced(name: str | None) -> None:
    async with served(build()) as port:
        first, second = [(await ask(port, CHAT, name)).headers["x-correlation-id"] for _ in range(2)]
        assert is_fresh(first)
        assert is_fresh(second)
        assert first != second


async def test_spaces_around_a_name_do_not_count() -> None:
    async with served(build()) as port:
        assert (await ask(port, CHAT, "  r-1\t ")).headers["x-correlation-id"] == "r-1"


async def test_the_guardrails_routes_stay_as_they_are() -> None:
    async with served(build()) as port:
        for path in UNNAMED:
            answer = await ask(port, path, "r-1")
            assert "x-correlation-id" not in answer.headers
            assert answer.json() == {"id": ""}


async def test_unknown_paths_and_wrong_methods_tell_it_too() -> None:
    async with served(build()) as port:
        for path, method, status in (("/nothing", "POST", 404), (GUARDRAILS, "PUT", 405), (CHAT, "DELETE", 405)):
            answer = await ask(port, path, "r-1", method)
            assert (answer.status, answer.headers["x-correlation-id"]) == (status, "r-1")


async def test_other_ports_know_no_such_name() -> None:
    async with served(build_app({CHAT: tell})) as port:
        for path in (CHAT, "/nothing"):
            assert "x-correlation-id" not in (await ask(port, path, "r-1")).headers


async def test_errors_tell_it_and_have_the_words_of_their_path() -> None:
    async with served(build()) as port:
        answer = await ask(port, CHAT, "r-1", **{"x-want": "failure"})
        assert (answer.status, answer.headers["x-correlation-id"]) == (502, "r-1")
        assert answer.json() == {"error": "bad_gateway", "message": "`m` failed: no", "details": {}}
        assert (await ask(port, GUARDRAILS, **{"x-want": "failure"})).json() == {
            "code": 502,
            "details": "`m` failed: no",
        }


async def test_every_line_of_a_request_carries_it(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[dict[str, object]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    keep = Keep()
    keep.setFormatter(JsonLines())
    caplog.set_level(logging.INFO, "lockgate")
    logger.addHandler(keep)
    try:
        async with served(build()) as port:
            await ask(port, CHAT, "r-1", **{"x-want": "failure"})
            await ask(port, CHAT_STREAM, "r-2")
            await ask(port, "/nothing", "r-3")
            await ask(port, GUARDRAILS, "r-4")
    finally:
        logger.removeHandler(keep)
    assert [(line["event"], line.get("correlation_id")) for line in lines] == [
        ("warning", "r-1"),
        ("upstream_failed", "r-1"),
        ("request", "r-1"),
        ("request", "r-2"),
        ("request", "r-3"),
        ("warning", None),
        ("request", None),
    ]


# The headers of one endpoint's stream


async def test_a_stream_may_have_headers_and_errors_of_its_own() -> None:
    async with served(build()) as port:
        answer = await ask(port, CHAT_STREAM, "r-1", **{"x-want": "failure"})
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["connection"] == "keep-alive"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-correlation-id"] == "r-1"
        assert answer.body == b"data: r-1\n\nevent: error\ndata: <`m` failed: no>\n\n"


@pytest.mark.parametrize("word", ["close", "Close", "close, te"])
async def test_a_connection_that_ends_is_not_said_to_stay(word: str) -> None:
    async with served(build()) as port:
        answer = await ask(port, CHAT_STREAM, connection=word)
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-accel-buffering"] == "no"


async def test_a_client_of_old_is_not_told_that_the_connection_stays() -> None:
    async with served(build()) as port, connect(port) as client:
        await client.send(f"POST {CHAT_STREAM} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n".encode())
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        assert b"keep-alive" not in head
        assert body.startswith(b"data: ")


# The real port


async def test_the_api_port_names_requests() -> None:
    async with gateway("detectors: {pii: {embedded: pii}}\nserver: {docs: true}") as port:
        for path in ("/health", "/ready", "/docs", "/openapi.json", "/nothing"):
            assert (await ask(port, path, "r-1", "GET")).headers["x-correlation-id"] == "r-1"
        assert is_fresh((await ask(port, "/health", None, "GET")).headers["x-correlation-id"])
        assert "x-correlation-id" not in (await ask(port, "/api/v2/text/detection/content", "r-1")).headers
    async with gateway("detectors: {pii: {embedded: pii}}", port_of="health") as port:
        assert "x-correlation-id" not in (await ask(port, "/health", "r-1", "GET")).headers
