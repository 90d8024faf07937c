# SPDX-License-Identifier: Apache-2.0
"""TLS and client certificates on the API port of a real process (G-2, G-4, D-13)."""

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lockgate.config.settings import ServerTlsSettings
from lockgate.errors import ConfigError
from lockgate.server.acceptors import load_tls
from tests.server.certificates import Authority, Pair
from tests.server.http_client import CONTENT, NDJSON_TYPE, STREAM, Client, build_head, build_line, build_request, call
from tests.server.processes import COMMAND, ServerProcess, clean_environment, running
from tests.server.slow_parts import read_diary
from tests.server.unread import push_until_unread
from tests.waits import HANG_S, linger, until

ASK = b'{"content":"Mail a@b.example","detectors":{"pii":{}}}'
SLOW_UNARY = build_request("POST", CONTENT, b'{"content":"x","detectors":{"slow":{}}}')
SLOW_STREAM = build_head("POST", STREAM, {**NDJSON_TYPE, "content-length": "999999999"}) + build_line(
    detectors={"slow": {}}, content="Hello there. And"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ours")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diary") / "diary"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, own: Pair, diary: Path) -> Iterator[ServerProcess]:
    """A server with a certificate, and a detector that never answers."""
    directory = tmp_path_factory.mktemp("secure")
    config = directory / "config.yaml"
    config.write_text(
        "detectors: {pii: {embedded: pii}, slow: {embedded: 'tests.server.slow_parts:open_slow_detector', "
        f"options: {{diary: {diary}}}}}}}\nserver: {{host: 127.0.0.1}}\n"
    )
    arguments = ["--config-path", str(config), "--tls-cert-path", str(own.cert), "--tls-key-path", str(own.key)]
    with running(directory, arguments) as server:
        yield server
    assert "Traceback" not in server.log_path.read_text()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, own: Pair, authority: Authority) -> Iterator[ServerProcess]:
    """A server that wants to see a certificate."""
    variables = {"TLS_CERT_PATH": own.cert, "TLS_KEY_PATH": own.key, "TLS_CLIENT_CA_CERT_PATH": authority.path}
    with running(tmp_path_factory.mktemp("closed"), **{name: str(path) for name, path in variables.items()}) as server:
        yield server


def trust(authority: Authority, client: Pair | None = None) -> ssl.SSLContext:
    """A client's side of TLS."""
    context = ssl.create_default_context(cafile=authority.path)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


@asynccontextmanager
async def connect(port: int, context: ssl.SSLContext) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def ask(port: int, context: ssl.SSLContext, body: bytes = ASK) -> int:
    async with connect(port, context) as client:
        await client.send(build_request("POST", CONTENT, body))
        return (await client.read_answer()).status


async def test_the_api_port_speaks_tls_and_the_health_port_does_not(
    secure: ServerProcess, authority: Authority
) -> None:
    """G-4."""
    schemes = {event["port"]: event["address"].partition(":")[0] for event in secure.events("listening")}
    assert schemes == {"health": "http", "api": "https"}
    assert await ask(secure.api_port, trust(authority)) == 200
    assert (await call(secure.health_port, "/health", method="GET")).status == 200


async def test_only_http_1_1_is_agreed_on(secure: ServerProcess, authority: Authority) -> None:
    context = trust(authority)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with connect(secure.api_port, context) as client:
        tls = client.writer.get_extra_info("ssl_object")
        assert (tls.selected_alpn_protocol(), tls.version()) == ("http/1.1", "TLSv1.3")
    context.set_alpn_protocols(["h2"])
    async with connect(secure.api_port, context) as client:
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() is None


async def test_tls_1_2_is_the_oldest_that_is_spoken(secure: ServerProcess, authority: Authority, own: Pair) -> None:
    context = trust(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await ask(secure.api_port, context) == 200
    made = load_tls(ServerTlsSettings(own.cert, own.key))
    assert made is not None
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_long_bodies_and_streams_pass_whole(secure: ServerProcess, authority: Authority) -> None:
    text = "Mail a@b.example now. " + "and wait for the answer. " * 10
    text *= 1500
    left = len(secure.events("client_left"))
    body = json.dumps({"content": text, "detectors": {"pii": {}}}).encode()
    async with connect(secure.api_port, trust(authority)) as client:
        await client.send(build_request("POST", CONTENT, body))
        answer = await client.read_answer()
        assert (answer.status, len(answer.json()["detections"])) == (200, 1500)
        await client.start_stream()
        await client.send_line(detectors={"pii": {}}, content="One a@b.example here. Two")
        assert (await client.read_head()).status == 200
        assert json.loads(await client.read_chunk())["processed_index"] == 22
    # Its line comes when the client has gone, and must not fall among those of another test.
    await until(lambda: len(secure.events("client_left")) > left, "the event in the log")


async def test_plain_http_on_the_tls_port_is_ended_at_once_with_one_line_in_the_log(
    secure: ServerProcess, authority: Authority
) -> None:
    before = len(secure.log())
    for words in (build_request("POST", CONTENT, ASK), b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0"):
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.api_port)
        writer.write(words)
        writer.write_eof()
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        assert b"HTTP/1.1 200" not in answer
        writer.close()

    def logged() -> list[dict[str, Any]]:
        return [line for line in secure.log()[before:] if line["event"] != "request"]  # of the test before this one

    await until(lambda: len(logged()) >= 3, "the lines in the log")
    assert {(line["event"], line["level"]) for line in logged()} == {("tls_refused", "info")}
    assert [line["reason"] for line in logged()] == ["http request", "http request", "unexpected message"]
    assert await ask(secure.api_port, trust(authority)) == 200


async def test_with_a_client_ca_a_certificate_of_that_ca_is_let_in(closed: ServerProcess, authority: Authority) -> None:
    """G-4."""
    context = trust(authority, authority.issue("client"))
    assert await ask(closed.api_port, context) == 200
    async with connect(closed.api_port, context) as client:  # and once more with the session of another connection
        await client.send(build_request("POST", CONTENT, ASK))
        assert (await client.read_answer()).status == 200
    callers = ["client", "client"]
    await until(lambda: [event["caller"] for event in closed.events("request")] == callers, "the callers in the log")
    assert (await call(closed.health_port, "/health", method="GET")).status == 200


async def test_with_a_client_ca_everybody_else_is_refused(
    closed: ServerProcess, authority: Authority, tmp_path: Path
) -> None:
    """G-4: no certificate, one of another authority, one that says of itself that it is ours."""
    others = Authority(tmp_path, "others"), Authority(tmp_path, "ours")
    for client in (None, *(other.issue("client") for other in others)):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await ask(closed.api_port, trust(authority, client))
    await until(lambda: len(closed.events("tls_refused")) >= 3, "three lines in the log")  # they follow the refusal
    assert [event["reason"] for event in closed.events("tls_refused")] == [
        "peer did not return a certificate",
        "certificate verify failed",
        "certificate verify failed",
    ]


def clear(diary: Path) -> None:
    diary.unlink(missing_ok=True)


async def wait_for_step(diary: Path, step: str) -> None:
    await until(lambda: step in read_diary(diary), f"`{step}` in the diary")


@pytest.mark.parametrize(
    ("start", "rest"),
    [(SLOW_UNARY, b""), (SLOW_STREAM, b""), (SLOW_STREAM, build_line(content="word " * 1000))],
    ids=["unary", "open stream", "stream that is not read on"],
)
@pytest.mark.parametrize("way", ["says goodbye", "closes", "resets"])
async def test_a_client_that_leaves_is_noticed_at_once_under_tls_too(
    secure: ServerProcess, authority: Authority, diary: Path, start: bytes, rest: bytes, way: str
) -> None:
    """D-13: also while nothing is read from the client."""
    clear(diary)
    left = len(secure.events("client_left"))
    raw = socket.create_connection(("127.0.0.1", secure.api_port))
    client = trust(authority).wrap_socket(raw, server_hostname="127.0.0.1")
    client.sendall(start)
    await wait_for_step(diary, "began")
    if rest:
        await push_until_unread(client, rest)
    await linger()
    if way == "resets":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    if way == "says goodbye":
        say_goodbye(client)
    client.close()
    await wait_for_step(diary, "cancelled")
    await until(lambda: len(secure.events("client_left")) == left + 1, "the event in the log")


def say_goodbye(client: ssl.SSLSocket) -> None:
    """The words with which TLS ends, without waiting for an answer."""
    client.setblocking(False)
    with suppress(OSError):  # no answer yet
        client.unwrap()


@pytest.mark.parametrize("form", ["pkcs1", "pkcs8", "sec1"])
def test_keys_in_every_form_are_read(authority: Authority, form: str) -> None:
    """G-2."""
    pair = authority.issue(form, form)
    assert load_tls(ServerTlsSettings(pair.cert, pair.key)) is not None


def test_the_first_key_of_a_file_counts_whatever_stands_around_it(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("around", "sec1")
    whole = tmp_path / "whole.pem"
    whole.write_bytes(b"words\n" + pair.cert.read_bytes() + pair.key.read_bytes() + authority.path.read_bytes())
    assert load_tls(ServerTlsSettings(pair.cert, whole)) is not None


def test_without_a_certificate_there_is_no_tls() -> None:
    assert load_tls(ServerTlsSettings()) is None


def test_what_is_wrong_with_the_files_is_told_with_the_name_of_the_setting(
    authority: Authority, own: Pair, tmp_path: Path
) -> None:
    rubbish, missing = tmp_path / "rubbish.pem", tmp_path / "missing.pem"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    other, locked = authority.issue("other"), authority.issue("locked", "encrypted")
    cases = [
        (ServerTlsSettings(missing, own.key), f"cert_path: cannot read `{missing}`: No such file or directory"),
        (ServerTlsSettings(own.cert, tmp_path), f"key_path: cannot read `{tmp_path}`: Is a directory (os error 21)"),
        (ServerTlsSettings(rubbish, own.key), f"cert_path: `{rubbish}` holds no usable certificate"),
        (ServerTlsSettings(own.key, own.key), f"cert_path: `{own.key}` holds no usable certificate"),
        (ServerTlsSettings(own.cert, own.cert), f"key_path: `{own.cert}` holds no usable private key"),
        (ServerTlsSettings(own.cert, other.key), f"key_path: the key in `{other.key}` does not belong to"),
        (ServerTlsSettings(locked.cert, locked.key), f"key_path: the key in `{locked.key}` has a passphrase"),
        (ServerTlsSettings(own.cert, own.key, missing), f"client_ca_cert_path: cannot read `{missing}`"),
        (ServerTlsSettings(own.cert, own.key, own.key), "client_ca_cert_path: `"),
    ]
    for settings, words in cases:
        with pytest.raises(ConfigError) as found:
            load_tls(settings)
        assert str(found.value).startswith(f"server.tls.{words}")
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_file_that_is_missing_ends_the_start_with_one_line(tmp_path: Path, own: Pair, command: str) -> None:
    environ = clean_environment(TLS_CERT_PATH=str(tmp_path / "no.pem"), TLS_KEY_PATH=str(own.key), HTTP_PORT="0")
    command_line = [*COMMAND, command]
    ended = subprocess.run(command_line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=HANG_S)
    words = f"lockgate: server.tls.cert_path: cannot read `{tmp_path / 'no.pem'}`: No such file or directory"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"{words} (os error 2)\n")
