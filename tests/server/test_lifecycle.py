# SPDX-License-Identifier: Apache-2.0
"""Start, ports, signals and logs of a real process (G-1, G-5, G-8, D-16, D-21, D-25)."""

import asyncio
import dataclasses
import signal
import socket
from pathlib import Path

import pytest

from lockgate.config.load import load_settings
from lockgate.config.settings import Listener, Settings
from lockgate.errors import CannotListen
from lockgate.server.run import bind_all
from tests.server.http_client import CONTENT, call, connect, detect, stream
from tests.server.processes import ServerProcess, running
from tests.waits import HANG_S, linger, until

PATIENT = {"LOCKGATE_SERVER__SHUTDOWN_TIMEOUT_S": "600"}


def take_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("variable", ["HTTP_PORT", "HEALTH_HTTP_PORT"])
def test_a_port_that_was_asked_for_and_is_taken_ends_the_start(tmp_path: Path, variable: str) -> None:
    """G-5, D-16: text on standard error, a status other than 0."""
    with take_port() as taken:
        port = taken.getsockname()[1]
        server = ServerProcess(tmp_path, variables={variable: str(port)})
        assert server.process.wait(HANG_S) == 3
    assert server.error_path.read_text() == (
        f"lockgate: failed to run server: io error: Address already in use (os error 98) on 127.0.0.1:{port}; "
        f"--{variable.lower().replace('_', '-')} or {variable} chooses another\n"
    )
    assert server.events("listening") == []


def settings_with_ports(*, api: Listener, health: Listener) -> Settings:
    settings = load_settings(config_path=None, flags={}, environ={})
    return dataclasses.replace(settings, listeners=settings.listeners._replace(api=api, health=health))


def test_a_default_port_that_is_taken_ends_the_start_unless_another_was_asked_for() -> None:
    """D-16."""
    with take_port() as taken:
        default = Listener("health", "127.0.0.1", taken.getsockname()[1], is_explicit=False)
        not_asked = Listener("api", "127.0.0.1", 0, is_explicit=False)
        with pytest.raises(CannotListen, match="Address already in use"):
            bind_all(settings_with_ports(api=not_asked, health=default))
        asked = not_asked._replace(is_explicit=True)
        bound = bind_all(settings_with_ports(api=asked, health=default))
        assert [one.listener.name for one in bound] == ["api"]
        for one in bound:
            one.socket.close()
        taken_and_asked = default._replace(is_explicit=True)
        with pytest.raises(CannotListen):
            bind_all(settings_with_ports(api=not_asked, health=taken_and_asked))


def test_the_health_port_is_bound_first_and_without_a_config_file_only_loopback(server: ServerProcess) -> None:
    """G-1, D-16, D-21."""
    assert [event["port"] for event in server.events("listening")] == ["health", "api"]
    assert all(event["address"].startswith("http://127.0.0.1:") for event in server.events("listening"))
    assert [event["settings"] for event in server.events("started")] == ["embedded default"]
    assert server.events("warning") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_request_in_flight_finish(tmp_path: Path, number: signal.Signals) -> None:
    """G-8: no new connections, idle ones closed, status 0."""
    server = ServerProcess(tmp_path, variables=PATIENT)
    server.wait_for_start()
    try:
        async with connect(server.api_port) as idle, connect(server.api_port) as client:
            await client.start_stream()
            await client.send_line(detectors={"pii": {}}, content="One a@b.example here. Two")
            await client.read_head()
            assert await client.read_chunk()
            server.process.send_signal(number)
            assert await idle.is_closed()
            with pytest.raises(ConnectionError):
                await call(server.api_port, CONTENT)
            await client.send_line(content=" and three.")
            await client.send_chunk(b"")
            assert await client.read_chunk() == b'{"detections":[],"processed_index":36,"start_index":22}\n'
            assert await client.read_chunk() == b""
            assert await client.is_closed()
        assert await asyncio.to_thread(server.process.wait, HANG_S) == 0
    finally:
        server.stop()
    assert server.error_path.read_text() == ""
    assert [event["event"] for event in server.log()][-2:] == ["request", "stopped"]


async def test_a_second_interrupt_does_not_wait_for_requests(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, variables=PATIENT)
    server.wait_for_start()
    try:
        async with connect(server.api_port) as client:
            await client.start_stream()
            await client.read_head()
            server.process.send_signal(signal.SIGINT)
            await until(lambda: server.events("stopping"), "the wait for the request")
            await linger()
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(server.process.wait, HANG_S) == 0
    finally:
        server.stop()


async def test_the_log_has_one_object_per_line_and_nothing_that_a_caller_said(tmp_path: Path) -> None:
    """D-25: no request text, no header value, no query, whatever went wrong."""
    secret = "tellnobody"
    with running(tmp_path) as server:
        headers = {"content-type": f"application/{secret}", "authorization": f"Bearer {secret}"}
        await call(server.api_port, CONTENT, secret.encode(), headers=headers)
        await call(server.api_port, f"{CONTENT}?key={secret}", secret.encode())
        await detect(server.api_port, {"content": f"{secret}@b.example", "detectors": {"pii": {}}})
        await detect(server.api_port, {"content": "x", "detectors": {secret: {}}})
        await detect(server.api_port, {"content": "x", "detectors": {"regex": {"patterns": [secret + "("]}}})
        await stream(server.api_port, {"detectors": {"pii": {}}, "content": secret}, secret.encode())
        async with connect(server.api_port) as client:
            await client.send(f"{secret}\r\n\r\n".encode())
            await client.read_answer()
        await until(lambda: len(server.events("request")) == 6)
        log = server.log()
    assert secret not in server.log_path.read_text()
    assert all({"event", "service", "level", "logger", "timestamp"} <= line.keys() for line in log)
    assert [line["status"] for line in log if line["event"] == "request"] == [415, 400, 200, 404, 422, 200]


async def test_quiet_means_no_log_at_all(tmp_path: Path) -> None:
    """G-2."""
    with take_port() as chosen:
        port = chosen.getsockname()[1]
    server = ServerProcess(tmp_path, ["--quiet", "--http-port", str(port)])
    try:
        await until(lambda: is_open(port) or server.process.poll() is not None, "the start")
        assert (await detect(port, {"content": "x", "detectors": {"pii": {}}})).status == 200
    finally:
        assert server.stop() == 0
    assert (server.log_path.read_bytes(), server.error_path.read_bytes()) == (b"", b"")
