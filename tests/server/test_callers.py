# SPDX-License-Identifier: Apache-2.0
"""Who may call (D-24): keys, certificates, shares, and what is passed on (G-24)."""

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from lockgate.config.settings import CallerSettings, Secret
from lockgate.errors import TooManyRequests, Unauthorized
from lockgate.server.app import App, Handler
from lockgate.server.callers import Callers, RateWindow
from lockgate.server.exchange import Exchange
from tests.server.certificates import BEGIN, END
from tests.server.http_client import JSON_TYPE, Answer, build_head, build_request, call, connect
from tests.server.processes import running
from tests.server.served_app import build_app, served
from tests.waits import forever, until

GUARDRAILS, OPENAI = "/api/v2/text/detection/content", "/v1/chat/completions"
KEYS = {"app": "key-of-app", "web": "schlüssel"}


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def configured(name: str, **limits: Any) -> CallerSettings:
    return CallerSettings(name, Secret(KEYS[name]), f"{name.upper()}_KEY", **limits)


async def tell(exchange: Exchange) -> None:
    """Who calls, and what would be passed on."""
    names = json.loads(exchange.request.header(b"x-names") or "[]")
    passed = exchange.request.passthrough(tuple(names), exchange.request.header(b"x-rewrite") == "1")
    await exchange.reply.answer_json(json.dumps({"caller": exchange.request.caller, "passed": passed}).encode())


def build(*callers: CallerSettings, clock: Clock | None = None, more: Mapping[str, Handler] | None = None) -> App:
    paths = (GUARDRAILS, OPENAI, "/v1", "/api/chat", "/api/generate", "/api/tags", "/health", "/ready", "/docs")
    known = Callers(callers, clock) if clock else Callers(callers)
    return build_app({**dict.fromkeys(paths, tell), **(more or {})}, callers=known)


async def ask(port: int, path: str, headers: Mapping[str, str]) -> Answer:
    return await call(port, path, headers={**JSON_TYPE, **headers})


# The window


@given(
    limit=st.integers(1, 5),
    waits=st.lists(st.integers(0, 40), max_size=40),
)
def test_no_span_ever_holds_more_than_the_limit_and_no_grant_is_withheld_without_need(
    limit: int, waits: list[int]
) -> None:
    window, now, granted = RateWindow(limit, 60.0), 0.0, list[float]()
    for wait in waits:
        now += wait
        recent = [at for at in granted if at > now - 60.0]
        refused_s = window.take(now)
        assert (refused_s == 0) == (len(recent) < limit)
        if refused_s:
            assert refused_s == recent[0] + 60.0 - now  # not a moment more than needed
        else:
            granted.append(now)
        assert len([at for at in granted if at > now - 60.0]) <= limit


@given(limit=st.integers(1, 20), start=st.floats(0, 1e9), extra=st.floats(0.001, 100))
def test_whoever_waits_as_long_as_told_is_let_in(limit: int, start: float, extra: float) -> None:
    window = RateWindow(limit, 60.0)
    for _ in range(limit):
        assert window.take(start) == 0
    wait_s = window.take(start)
    assert 0 < wait_s <= 60.0
    assert window.take(start + wait_s + extra) == 0


# Keys


BEARER = {"authorization": "Bearer key-of-app"}
OWN = {"x-lockgate-key": "key-of-app"}


@pytest.mark.parametrize(
    ("path", "headers", "caller"),
    [
        (GUARDRAILS, OWN, "app"),
        (GUARDRAILS, {"x-lockgate-key": "  key-of-app "}, "app"),
        (GUARDRAILS, {"x-lockgate-key": "schlüssel".encode().decode("latin-1")}, "web"),
        (GUARDRAILS, OWN | {"authorization": "Bearer whatever"}, "app"),
        (OPENAI, OWN, "app"),
        (OPENAI, BEARER, "app"),
        (OPENAI, {"authorization": "bearer   key-of-app"}, "app"),
        (OPENAI, {"x-lockgate-key": "key-of-app", "authorization": "Bearer sk-none"}, "app"),
        ("/api/chat", BEARER, "app"),
        ("/api/generate", BEARER, "app"),
        ("/api/tags", BEARER, "app"),
    ],
)
async def test_a_key_names_its_caller(path: str, headers: dict[str, str], caller: str) -> None:
    async with served(build(configured("app"), configured("web"))) as port:
        answer = await ask(port, path, headers)
    assert (answer.status, answer.json()["caller"]) == (200, caller)


@pytest.mark.parametrize(
    ("path", "headers", "details"),
    [
        (GUARDRAILS, {}, "a key is required: send it as X-Lockgate-Key"),
        (GUARDRAILS, {"x-lockgate-key": ""}, "a key is required: send it as X-Lockgate-Key"),
        (GUARDRAILS, BEARER, "a key is required: send it as X-Lockgate-Key"),
        ("/v1", BEARER, "a key is required: send it as X-Lockgate-Key"),
        (GUARDRAILS, {"x-lockgate-key": "key-of-ap"}, "this key is not known"),
        (GUARDRAILS, {"x-lockgate-key": "key-of-app2"}, "this key is not known"),
        (GUARDRAILS, {"x-lockgate-key": "Bearer key-of-app"}, "this key is not known"),
        (OPENAI, {"authorization": "Basic key-of-app"}, "a key is required: send it as X-Lockgate-Key"),
        (OPENAI, {"authorization": "key-of-app"}, "a key is required: send it as X-Lockgate-Key"),
        (OPENAI, {"authorization": "Bearer app"}, "this key is not known"),
        (OPENAI, {"x-lockgate-key": "no", **BEARER}, "this key is not known"),
    ],
)
async def test_without_a_key_that_is_known_nothing_is_answered(
    path: str, headers: dict[str, str], details: str
) -> None:
    async with served(build(configured("app"))) as port:
        answer = await ask(port, path, headers)
    told = answer.json()
    assert (answer.status, told["code"], told["details"]) == (401, 401, details)
    assert ("error" in told) == path.startswith("/v1/")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/tags", "/api/version"])
async def test_clients_of_ollama_are_refused_in_its_words(path: str) -> None:
    async with served(build(configured("app"), more={"/api/version": tell})) as port:
        answer = await ask(port, path, {})
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json() == {"error": "a key is required: send it as X-Lockgate-Key"}
        assert (await ask(port, path, BEARER)).json()["caller"] == "app"


async def test_a_policy_with_the_playgrounds_name_needs_a_key_like_any_other() -> None:
    path = "/playground/v1/chat/completions"
    async with served(build(configured("app"), more={path: tell, "/playground/page.js": tell})) as port:
        assert (await ask(port, path, {})).status == 401
        assert (await ask(port, path, BEARER)).json()["caller"] == "app"
        assert (await call(port, "/playground/page.js", method="GET")).status == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/docs"])
async def test_health_and_docs_need_no_key(path: str) -> None:
    async with served(build(configured("app"))) as port:
        assert (await call(port, path, method="GET")).status == 200


async def test_without_callers_everybody_is_anonymous() -> None:
    async with served(build()) as port:
        for headers in ({}, {"x-lockgate-key": "x"}, BEARER):
            assert (await ask(port, OPENAI, headers)).json()["caller"] == "anonymous"


async def test_a_key_is_asked_for_before_the_body_is_read() -> None:
    async def read(exchange: Exchange) -> None:
        raise AssertionError("not reached")

    async with served(build(configured("app"), more={GUARDRAILS: read})) as port, connect(port) as client:
        headers = {**JSON_TYPE, "content-length": "1000000", "expect": "100-continue"}
        await client.send(build_head("POST", GUARDRAILS, headers))
        assert (await client.read_answer()).status == 401


async def test_the_log_names_the_caller_and_never_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockgate")
    async with served(build(configured("app"))) as port:
        for headers in (OWN, {"x-lockgate-key": "wrong-key"}, {}):
            await ask(port, GUARDRAILS, headers)
    told = [(record.caller, record.status) for record in caplog.records if record.getMessage() == "request"]  # type: ignore[attr-defined]
    assert told == [("app", 200), ("anonymous", 401), ("anonymous", 401)]
    assert "key-of-app" not in str([vars(record) for record in caplog.records])
    assert "wrong-key" not in str([vars(record) for record in caplog.records])


def test_callers_of_another_protocol_are_named_and_admitted_in_two_steps() -> None:
    callers = Callers([configured("app", max_streams=1), configured("web")])
    assert callers.identify(b"key-of-app") == "app"
    assert callers.identify(b"", "web") == "web"
    for key, certificate in ((b"", ""), (b"x", "nobody")):
        with pytest.raises(Unauthorized):
            callers.identify(key, certificate)
    with callers.admit_name("app") as place:
        assert place.name == "app"
        with pytest.raises(TooManyRequests):
            callers.admit_name("app")
    with callers.admit_name("app"), callers.admit_name("web"), callers.admit_name("web"):
        pass


async def test_a_server_with_callers_in_its_settings_asks_for_keys(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "detectors: {pii: {embedded: pii}}\nserver: {host: 127.0.0.1}\n"
        "callers: {app: {key_env: APP_KEY, requests_per_minute: 1}}\n"
    )
    body = b'{"content":"x","detectors":{"pii":{}}}'
    with running(tmp_path, ["--config-path", str(config)], APP_KEY="key-of-app") as server:
        for headers, status in (({}, 401), (OWN, 200), (OWN, 429)):
            answer = await call(server.api_port, GUARDRAILS, body, headers={**JSON_TYPE, **headers})
            assert answer.status == status
        for port in (server.api_port, server.health_port):
            assert (await call(port, "/health", method="GET")).status == 200
        await until(lambda: len(server.events("request")) == 3, "the log")
        assert [event["caller"] for event in server.events("request")] == ["anonymous", "app", "app"]
    assert "key-of-app" not in server.log_path.read_text()


# Shares


async def test_a_caller_has_so_many_requests_in_a_minute_and_others_do_not_notice() -> None:
    clock = Clock()
    app = build(configured("app", requests_per_minute=2), configured("web"), clock=clock)
    async with served(app) as port:
        assert [(await ask(port, GUARDRAILS, OWN)).status for _ in range(2)] == [200, 200]
        clock.now += 19.5
        for _ in range(3):  # what is refused is not counted
            refused = await ask(port, GUARDRAILS, OWN)
            assert (refused.status, refused.headers["retry-after"]) == (429, "41")
            assert refused.json()["details"] == "too many requests of this caller in one minute, try again later"
        assert (await ask(port, GUARDRAILS, {"x-lockgate-key": "schlüssel".encode().decode("latin-1")})).status == 200
        assert (await ask(port, "/health", OWN)).status == 200
        clock.now += 41
        assert (await ask(port, GUARDRAILS, OWN)).status == 200


async def test_a_caller_has_so_many_requests_open_at_once() -> None:
    go_on = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        await exchange.reply.write(b"data: a\n\n")
        await go_on.wait()
        await exchange.reply.end()

    app = build(configured("app", max_streams=1), configured("web", max_streams=1), more={"/wait": wait})
    async with served(app) as port, connect(port) as client:
        await client.send(build_request("POST", "/wait", headers=OWN))
        await client.reader.readuntil(b"data: a\n\n")
        refused = await ask(port, GUARDRAILS, OWN)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["details"] == "too many requests of this caller at once, try again later"
        assert (await ask(port, GUARDRAILS, {"x-lockgate-key": "schlüssel".encode().decode("latin-1")})).status == 200
        go_on.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        assert (await ask(port, GUARDRAILS, OWN)).status == 200


async def test_a_place_comes_back_when_the_client_leaves_or_the_request_fails() -> None:
    is_waiting = asyncio.Event()

    async def bad(exchange: Exchange) -> None:
        if exchange.request.header(b"x-wait"):
            is_waiting.set()
            await forever()
        raise ZeroDivisionError

    async with served(build(configured("app", max_streams=1), more={"/bad": bad})) as port:
        for _ in range(3):
            assert (await ask(port, "/bad", OWN)).status == 500
            async with connect(port) as client:
                await client.send(build_request("POST", "/bad", headers={**OWN, "x-wait": "1"}))
                await is_waiting.wait()
                is_waiting.clear()
                assert (await ask(port, GUARDRAILS, OWN)).status == 429
            while (answer := await ask(port, GUARDRAILS, OWN)).status == 429:  # until it is noticed that nobody waits
                pass
            assert answer.status == 200


# What is passed on


async def passed(port: int, path: str, headers: Mapping[str, str], *names: str, rewrite: bool = False) -> list[Any]:
    asked = {"x-names": json.dumps(names), "x-rewrite": "1" if rewrite else "0"}
    answer = await ask(port, path, {**headers, **asked})
    assert answer.status == 200
    return [tuple(one) for one in answer.json()["passed"]]


async def test_only_listed_headers_are_passed_on_and_all_their_values() -> None:
    """G-24."""
    async with served(build()) as port:
        headers = {"X-Tenant": "a", "x-tenant": "b", "x-other": "c", "authorization": "Bearer t", "X-Name": "é"}
        got = await passed(port, GUARDRAILS, headers, "x-tenant", "authorization", "x-name", "x-absent")
        assert got == [("x-tenant", "a"), ("x-tenant", "b"), ("authorization", "Bearer t"), ("x-name", "é")]
        assert await passed(port, GUARDRAILS, headers) == []
        assert await passed(port, OPENAI, headers, "authorization") == [("authorization", "Bearer t")]


async def test_a_forwarded_access_token_becomes_the_authorization() -> None:
    """G-24."""
    headers = {"authorization": "Bearer mine", "x-forwarded-access-token": "theirs", "x-tenant": "a"}
    names = ("authorization", "x-tenant", "x-forwarded-access-token")
    async with served(build()) as port:
        got = await passed(port, GUARDRAILS, headers, *names, rewrite=True)
        assert got == [("x-tenant", "a"), ("authorization", "Bearer theirs")]
        untouched = [("authorization", "Bearer mine"), ("x-forwarded-access-token", "theirs"), ("x-tenant", "a")]
        assert await passed(port, GUARDRAILS, headers, *names) == untouched
        got = await passed(port, GUARDRAILS, headers, "authorization", rewrite=True)
        assert got == [("authorization", "Bearer mine")]  # the token did not survive the filter


async def test_the_framing_of_our_connection_is_never_passed_on() -> None:
    names = ("connection", "content-length", "transfer-encoding", "upgrade", "content-type")
    async with served(build()) as port:
        got = await passed(port, GUARDRAILS, {"connection": "keep-alive"}, *names)
    assert got == [("content-type", "application/json")]


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        (GUARDRAILS, OWN | {"authorization": "Bearer t"}, [("authorization", "Bearer t")]),
        (GUARDRAILS, OWN | BEARER | {"x-tenant": "key-of-app"}, []),
        (OPENAI, OWN | {"authorization": "Bearer t"}, []),
        (OPENAI, BEARER, []),
        ("/api/tags", BEARER, []),
    ],
)
async def test_the_key_is_never_passed_on(path: str, headers: dict[str, str], expected: list[Any]) -> None:
    names = ("x-lockgate-key", "authorization", "x-tenant")
    async with served(build(configured("app"))) as port:
        assert await passed(port, path, headers, *names) == expected
        forwarded = await passed(
            port, path, {**headers, "x-forwarded-access-token": "u"}, *names, "x-forwarded-access-token", rewrite=True
        )
        assert forwarded == [("authorization", "Bearer u")]
    async with served(build()) as port:
        assert await passed(port, path, OWN, *names) == []


# Certificates


def issue(directory: Path, names: list[str], by: tuple[x509.Certificate, Any] | None = None) -> Path:
    """A certificate and its key in one file; without an issuer it is a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by[0].subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .sign(by[1] if by else key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = directory / ("-".join(names) + ".pem")
    path.write_bytes(certificate.public_bytes(pem) + secret)
    return path


def load(path: Path) -> tuple[x509.Certificate, Any]:
    raw = path.read_bytes()
    return x509.load_pem_x509_certificate(raw), serialization.load_pem_private_key(raw, None)


async def ask_with_certificate(port: int, directory: Path, name: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(directory / "ca.pem")
    context.load_cert_chain(directory / f"{name}.pem")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(build_request("POST", GUARDRAILS, b"{}", {**JSON_TYPE, **headers, "connection": "close"}))
        raw = await reader.read()
    finally:
        writer.transport.abort()
    return int(raw.split(b" ")[1]), json.loads(raw.partition(b"\r\n\r\n")[2])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    ca = load(issue(directory, ["ca"]))
    for names in (["server"], ["app"], ["stranger"], ["app", "web"]):
        issue(directory, names, ca)
    return directory


def server_tls(directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    context.load_verify_locations(directory / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_verified_certificate_names_the_caller_and_counts_as_its_key(certificates: Path) -> None:
    app = build(configured("app", requests_per_minute=2), configured("web"), clock=Clock())
    web = {"x-lockgate-key": "schlüssel".encode().decode("latin-1")}
    async with served(app, server_tls(certificates)) as port:
        for name, headers, status, caller in (
            ("app", {}, 200, "app"),
            ("app", web, 200, "web"),  # a key that is shown says more
            ("stranger", web, 200, "web"),
            ("app", {"x-lockgate-key": "wrong"}, 200, "app"),
            ("app", {}, 429, None),  # that caller's limits
            ("stranger", {}, 401, None),
            ("app-web", {}, 401, None),  # two names are none
        ):
            got, body = await ask_with_certificate(port, certificates, name, headers)
            assert (got, body.get("caller")) == (status, caller)


async def test_without_callers_a_certificate_still_names_who_calls(certificates: Path) -> None:
    async with served(build(), server_tls(certificates)) as port:
        for name, caller in (("stranger", "stranger"), ("app-web", "anonymous")):
            status, body = await ask_with_certificate(port, certificates, name, {})
            assert (status, body["caller"]) == (200, caller)


def test_counts_of_a_caller_go_on_under_new_limits() -> None:
    key = Secret("ada-key")
    before = Callers(
        [CallerSettings(key_env="A", name="ada", key=key, max_streams=1, requests_per_minute=2)], lambda: 0
    )
    after = Callers([CallerSettings(key_env="A", name="ada", key=key, max_streams=2, requests_per_minute=3)], lambda: 0)
    with before.admit_name("ada"):
        after.go_on(before)
        with after.admit_name("ada") as share, pytest.raises(TooManyRequests, match="at once"):
            assert share.open == 2
            after.admit_name("ada")
    assert share.open == 0
    after.admit_name("ada")
    with pytest.raises(TooManyRequests, match="in one minute"):
        after.admit_name("ada")
