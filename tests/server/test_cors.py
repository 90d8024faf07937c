# SPDX-License-Identifier: Apache-2.0
"""Which web pages may read our answers (A-110, A-111, D-28)."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.config.settings import AggregatorSettings, CallerSettings, Listener, Secret, ServerSettings, Settings
from lockgate.errors import InvalidRequest
from lockgate.server.app import App
from lockgate.server.callers import Callers
from lockgate.server.cors import Cors, build_rule
from lockgate.server.exchange import Exchange
from lockgate.server.run import list_exposed_ports
from tests.server.gateways import gateway
from tests.server.http_client import JSON_TYPE, Answer, build_request, call, connect
from tests.server.served_app import build_app, served

CHAT, CHAT_STREAM, V1, GUARDRAILS = "/api/v1/chat", "/api/v1/chat/stream", "/api/v1/task/x", "/api/v2/text/x"
OPEN = (CHAT, CHAT_STREAM, V1, "/health", "/ready")
CLOSED = (GUARDRAILS, "/v1/chat/completions", "/docs", "/openapi.json")
PAGE, OTHER = "https://app.example.com", "https://evil.example"
ASKING = {"access-control-request-method": "POST"}
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"


async def tell(exchange: Exchange) -> None:
    """A small answer, or what the request asks for."""
    if exchange.request.header(b"x-want") == "stream":
        await exchange.reply.start_events()
        await exchange.reply.write(b"data: 1\n\n")
        await exchange.reply.end()
    elif exchange.request.header(b"x-want") == "broken stream":
        await exchange.reply.start_events()
        raise RuntimeError
    elif exchange.request.header(b"x-want") == "error":
        raise InvalidRequest("no")
    elif exchange.request.header(b"x-want") == "bug":
        raise RuntimeError
    elif exchange.request.header(b"x-want") == "body":
        await exchange.request.read_json(10)
    else:
        await exchange.reply.answer_json(b"{}")


def build(
    aggregator: tuple[str, ...] = ("*",), everywhere: tuple[str, ...] = (), callers: Callers | None = None
) -> App:
    app = build_app(dict.fromkeys((*OPEN, *CLOSED), tell), callers=callers)
    settings = Settings(
        aggregator=AggregatorSettings(cors_origins=aggregator), server=ServerSettings(cors_origins=everywhere)
    )
    app.cors = Cors(settings)
    return app


async def ask(port: int, path: str, headers: Mapping[str, str], method: str = "POST") -> Answer:
    return await call(port, path, b"{}", method=method, headers={**JSON_TYPE, **headers})


def cors_of(answer: Answer) -> dict[str, str]:
    """What an answer says to browsers, in short."""
    return {
        name.removeprefix("access-control-"): value
        for name, value in answer.headers.items()
        if name.startswith("access-control-") or name == "vary"
    }


ANYBODY = {"allow-origin": "*", "expose-headers": "X-Correlation-ID"}
THE_PAGE = {
    "allow-origin": PAGE, "allow-credentials": "true", "vary": "Origin", "expose-headers": "X-Correlation-ID",
}  # fmt: skip


async def test_any_page_may_call_the_aggregator_unless_origins_are_listed() -> None:
    async with served(build()) as port:
        for path in OPEN:
            assert cors_of(await ask(port, path, {"origin": OTHER})) == ANYBODY
        for path in CLOSED:
            assert cors_of(await ask(port, path, {"origin": OTHER})) == {}


async def test_a_listed_origin_is_named_and_may_send_credentials() -> None:
    async with served(build((PAGE,))) as port:
        for path in OPEN:
            assert cors_of(await ask(port, path, {"origin": PAGE})) == THE_PAGE
            assert cors_of(await ask(port, path, {"origin": OTHER})) == {"vary": "Origin"}
        for path in CLOSED:
            assert cors_of(await ask(port, path, {"origin": PAGE})) == {}


async def test_origins_of_the_server_count_on_every_path() -> None:
    async with served(build(("https://b.example",), (PAGE,))) as port:
        for path in (*OPEN, *CLOSED):
            assert cors_of(await ask(port, path, {"origin": PAGE})) == THE_PAGE
        assert cors_of(await ask(port, CHAT, {"origin": "https://b.example"}))["allow-origin"] == "https://b.example"
        assert cors_of(await ask(port, GUARDRAILS, {"origin": "https://b.example"})) == {"vary": "Origin"}


async def test_a_listed_origin_beside_any_other_keeps_its_name() -> None:
    async with served(build(("*",), (PAGE,))) as port:
        assert cors_of(await ask(port, CHAT, {"origin": PAGE})) == THE_PAGE
        assert cors_of(await ask(port, CHAT, {"origin": OTHER})) == {**ANYBODY, "vary": "Origin"}
        assert cors_of(await ask(port, GUARDRAILS, {"origin": OTHER})) == {"vary": "Origin"}


async def test_without_an_origin_and_without_rules_nothing_is_said() -> None:
    async with served(build()) as port:
        for headers in ({}, {"origin": ""}):
            assert cors_of(await ask(port, CHAT, headers)) == {}
    async with served(build(())) as port:
        assert cors_of(await ask(port, CHAT, {"origin": PAGE})) == {}
        assert (await ask(port, CHAT, {"origin": PAGE, **ASKING}, "OPTIONS")).status == 405
    async with served(build_app({CHAT: tell})) as port:
        assert cors_of(await ask(port, CHAT, {"origin": PAGE})) == {}


@pytest.mark.parametrize(
    ("path", "headers", "method", "status"),
    [
        (CHAT, {"x-want": "error"}, "POST", 422),
        (CHAT, {"x-want": "bug"}, "POST", 500),
        (CHAT, {"x-want": "stream"}, "POST", 200),
        (CHAT, {"x-want": "broken stream"}, "POST", 200),
        (CHAT, {"x-want": "body", "content-type": "text/plain"}, "POST", 415),
        (CHAT, {}, "PUT", 405),
        (CHAT, {}, "OPTIONS", 405),
        ("/api/v1/nothing", {}, "POST", 404),
        ("/health", {}, "HEAD", 200),
    ],
)
async def test_every_answer_carries_the_headers_of_its_path(
    path: str, headers: dict[str, str], method: str, status: int
) -> None:
    async with served(build((PAGE,))) as port:
        answer = await ask(port, path, {**headers, "origin": PAGE}, method)
        assert (answer.status, cors_of(answer)) == (status, THE_PAGE)


async def test_an_answer_to_too_much_carries_them_too() -> None:
    async with served(build()) as port:
        answer = await call(port, CHAT, b"[%s]" % (b"1" * 20), headers={**JSON_TYPE, "x-want": "body", "origin": PAGE})
        assert (answer.status, cors_of(answer)) == (413, ANYBODY)


async def test_refused_callers_can_be_read_by_pages() -> None:
    callers = Callers([CallerSettings("app", Secret("k"), "APP_KEY")])
    async with served(build((PAGE,), callers=callers)) as port:
        answer = await ask(port, CHAT, {"origin": PAGE})
        assert (answer.status, cors_of(answer)) == (401, THE_PAGE)


# The question before a call


async def test_a_browser_may_ask_before_it_calls_and_needs_no_key() -> None:
    callers = Callers([CallerSettings("app", Secret("k"), "APP_KEY")])
    async with served(build((PAGE,), callers=callers)) as port:
        wanted = {"origin": PAGE, **ASKING, "access-control-request-headers": "content-type,x-lockgate-key"}
        answer = await call(port, CHAT, method="OPTIONS", headers=wanted)
        assert (answer.status, answer.body) == (200, b"")
        assert cors_of(answer) == {
            "allow-origin": PAGE,
            "allow-credentials": "true",
            "allow-methods": METHODS,
            "allow-headers": "content-type, x-lockgate-key",
            "max-age": "600",
            "vary": "Origin",
        }


async def test_any_origin_is_told_so_without_credentials() -> None:
    async with served(build()) as port:
        for path in OPEN:
            answer = await call(port, path, method="OPTIONS", headers={"origin": OTHER, **ASKING})
            assert answer.status == 200
            assert cors_of(answer) == {"allow-origin": "*", "allow-methods": METHODS, "max-age": "600"}


async def test_an_origin_that_is_not_listed_is_refused() -> None:
    async with served(build((PAGE,))) as port:
        answer = await call(port, CHAT, method="OPTIONS", headers={"origin": OTHER, **ASKING})
        assert (answer.status, cors_of(answer)) == (400, {"vary": "Origin"})
        assert answer.json()["message"] == "this origin may not call"


async def test_half_a_question_is_a_wrong_method_and_an_unknown_path_stays_unknown() -> None:
    async with served(build()) as port:
        for path, headers, status in (
            (CHAT, ASKING, 405),
            (CHAT, {"origin": PAGE}, 405),
            ("/api/v1/nothing", {"origin": PAGE, **ASKING}, 404),
        ):
            assert (await call(port, path, method="OPTIONS", headers=headers)).status == status


async def test_other_paths_refuse_the_question_as_any_wrong_method() -> None:
    async with served(build()) as port:
        for path in CLOSED:
            answer = await call(port, path, method="OPTIONS", headers={"origin": PAGE, **ASKING})
            assert (answer.status, answer.headers["allow"], cors_of(answer)) == (405, "GET,POST,HEAD", {})


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("Content-Type", "Content-Type"),
        (" content-type ,, x-a\t,", "content-type, x-a"),
        ("*", "*"),
        ("content-type; x", None),
        ("x-a, x b", None),
        ("x-ä", None),
        ("(x)", None),
        ("x" * 3000, None),
        ("", None),
    ],
)
async def test_only_names_of_headers_are_repeated(wanted: str, allowed: str | None) -> None:
    headers = {"origin": PAGE, **ASKING, "access-control-request-headers": wanted}
    async with served(build()) as port:
        answer = await call(port, CHAT, method="OPTIONS", headers=headers)
        assert (answer.status, cors_of(answer).get("allow-headers")) == (200, allowed)


# What is sent as an origin is never repeated


@pytest.mark.parametrize(
    "origin", [PAGE + "/", PAGE.upper(), PAGE + ":443", f"{PAGE}, {PAGE}", "null", "x" * 5000, "https://ä.example", "*"]
)
async def test_an_origin_that_is_not_exactly_listed_is_not_repeated(origin: str) -> None:
    async with served(build((PAGE,))) as port:
        assert cors_of(await ask(port, CHAT, {"origin": origin})) == {"vary": "Origin"}
    async with served(build()) as port:
        assert cors_of(await ask(port, CHAT, {"origin": origin})) == ANYBODY


@given(st.binary(), st.lists(st.sampled_from(["*", "null", PAGE, "http://localhost:3000"])))
def test_an_answer_names_only_origins_of_the_settings(origin: bytes, listed: list[str]) -> None:
    rule = build_rule(listed)
    told = dict(rule.headers(origin)).get(b"access-control-allow-origin")
    assert rule.allows(origin) == (told is not None)
    assert told is None or told.decode() in listed
    has_credentials = (b"access-control-allow-credentials", b"true") in rule.headers(origin)
    assert has_credentials == (told is not None and told == origin and origin != b"*")


async def test_of_several_origins_the_first_counts() -> None:
    async with served(build((PAGE,))) as port, connect(port) as client:
        raw = build_request("GET", "/health", headers={"origin": OTHER})
        await client.send(raw.replace(b"origin: ", f"origin: {PAGE}\r\norigin: ".encode()))
        assert cors_of(await client.read_answer())["allow-origin"] == PAGE


# What a start says


def test_a_start_that_others_can_reach_says_that_any_page_may_call() -> None:
    warning = "any web page may call `/api/v1/*` while `aggregator.cors_origins` is `*`; list those that may"
    far = [Listener("health", "0.0.0.0", 1, True), Listener("api", "0.0.0.0", 2, True)]
    assert list_exposed_ports(Settings(), far)[1:] == [warning]
    near = Listener("api", "127.0.0.1", 2, True)
    assert list_exposed_ports(Settings(), [far[0], near])[1:] == []
    assert list_exposed_ports(Settings(), [near]) == []
    listed = Settings(aggregator=AggregatorSettings(cors_origins=(PAGE,)))
    assert list_exposed_ports(listed, far) == [
        "any client that reaches 0.0.0.0 may call; `server.host: 127.0.0.1` closes it"
    ]
    known = Settings(callers={"app": CallerSettings("app", Secret("k"), "APP_KEY")})
    assert list_exposed_ports(known, far) == []


# The real ports

CONFIG = "detectors: {pii: {embedded: pii}}\nserver: {cors_origins: ['https://app.example.com']}"


async def test_the_api_port_follows_the_settings_and_the_health_port_speaks_to_no_page() -> None:
    environ = {"AGGREGATOR_CORS_ORIGINS": json.dumps(["https://b.example"])}
    async with gateway(CONFIG, **environ) as port:
        for path, origin, allowed in (
            ("/health", PAGE, PAGE),
            ("/health", "https://b.example", "https://b.example"),
            ("/health", OTHER, None),
            ("/openapi.json", PAGE, PAGE),
            ("/openapi.json", "https://b.example", None),
        ):
            answer = await call(port, path, method="GET", headers={"origin": origin})
            assert (answer.status, cors_of(answer).get("allow-origin")) == (200, allowed)
        answer = await call(port, CHAT, method="OPTIONS", headers={"origin": "https://b.example", **ASKING})
        assert (answer.status, cors_of(answer)["allow-origin"]) == (200, "https://b.example")
    async with gateway(CONFIG, port_of="health", **environ) as port:
        for method in ("GET", "OPTIONS"):
            answer = await call(port, "/health", method=method, headers={"origin": PAGE, **ASKING})
            assert (answer.status, cors_of(answer)) == (200 if method == "GET" else 405, {})
