# SPDX-License-Identifier: Apache-2.0
"""The end of a real process: requests under way finish, within a deadline (G-8)."""

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from lockgate.config.load import load_settings
from lockgate.server.ports import Ports, stop_timeout_s
from tests.server.certificates import Authority
from tests.server.http_client import Client, build_line, call, connect
from tests.server.processes import ServerProcess
from tests.server.slow_parts import read_diary
from tests.server.test_tls import connect as connect_tls
from tests.server.test_tls import trust
from tests.waits import HANG_S, is_pending, linger, until

QUICK = {"LOCKGATE_SERVER__SHUTDOWN_TIMEOUT_S": "0.6"}
PATIENT = {"LOCKGATE_SERVER__SHUTDOWN_TIMEOUT_S": "600"}


def start(directory: Path, *arguments: str, **variables: str) -> ServerProcess:
    server = ServerProcess(directory, arguments, variables)
    server.wait_for_start()
    return server


def write_slow_config(directory: Path) -> list[str]:
    """Settings with a detector that never answers."""
    config = directory / "config.yaml"
    config.write_text(
        "detectors: {slow: {embedded: 'tests.server.slow_parts:open_slow_detector', "
        f"options: {{diary: {directory / 'diary'}}}}}}}\nserver: {{host: 127.0.0.1}}\n"
    )
    return ["--config-path", str(config)]


async def wait_for_end(server: ServerProcess) -> int:
    return await asyncio.to_thread(server.process.wait, HANG_S)


async def open_slow_request(client: Client, directory: Path) -> None:
    """A request that its detector has begun to read."""
    await client.start_stream()
    await client.send_chunk(build_line(detectors={"slow": {}}, content="One. Two"))
    await client.read_head()
    await until(lambda: read_diary(directory / "diary") == ["began"], "the detector's call")


async def open_stream(client: Client) -> None:
    """A request that is under way."""
    await client.start_stream()
    await client.send_line(detectors={"pii": {}}, content="One a@b.example here. Two")
    await client.read_head()
    assert await client.read_chunk()


async def finish_stream(client: Client) -> None:
    await client.send_line(content=" and three.")
    await client.send_chunk(b"")
    assert await client.read_chunk() == b'{"detections":[],"processed_index":36,"start_index":22}\n'
    assert await client.read_chunk() == b""


async def test_a_stop_waits_for_the_request_under_way_and_for_nobody_else(tmp_path: Path) -> None:
    """Under TLS; the health port answers until the API port is done.

    One client is idle and reads, one is idle and does not, one has connected and never begun to speak TLS.
    """
    authority = Authority(tmp_path, "ours")
    own = authority.issue("server")
    server = start(tmp_path, "--tls-cert-path", str(own.cert), "--tls-key-path", str(own.key), **PATIENT)
    context = trust(authority)
    silent, deaf = (socket.create_connection(("127.0.0.1", server.api_port)) for _ in range(2))
    try:
        with silent, context.wrap_socket(deaf, server_hostname="127.0.0.1"):
            async with connect_tls(server.api_port, context) as idle, connect_tls(server.api_port, context) as client:
                await open_stream(client)
                server.process.send_signal(signal.SIGTERM)
                assert await idle.is_closed()
                with pytest.raises(ConnectionError):
                    await call(server.api_port, "/health", method="GET")
                assert (await call(server.health_port, "/health", method="GET")).status == 200
                await finish_stream(client)
                assert await client.is_closed()
            assert await wait_for_end(server) == 0
    finally:
        server.stop()
    assert [line["event"] for line in server.log()][-2:] == ["request", "stopped"]
    assert server.error_path.read_text() == ""


async def test_after_the_deadline_requests_are_cut_and_cleaned_up(tmp_path: Path) -> None:
    server = start(tmp_path, *write_slow_config(tmp_path), **QUICK)
    try:
        async with connect(server.api_port) as client:
            await open_slow_request(client, tmp_path)
            server.process.send_signal(signal.SIGTERM)
            assert await client.is_closed()
            assert await wait_for_end(server) == 0
    finally:
        server.stop()
    assert read_diary(tmp_path / "diary") == ["began", "cancelled"]
    assert [line["timeout_s"] for line in server.events("stopping")] == [0.6]
    assert [line["reason"] for line in server.events("warning")] == ["requests under way were cut: 1"]
    assert (server.error_path.read_text(), [line for line in server.log() if line["level"] == "error"]) == ("", [])


async def test_a_client_that_does_not_read_its_answer_does_not_keep_us_beyond_the_deadline(tmp_path: Path) -> None:
    server = start(tmp_path, **QUICK)
    line = build_line(detectors={"pii": {}}, content="Ask one@b.example. " * 900)

    async def send() -> None:
        with suppress(ConnectionError):
            for _ in range(100):  # the answer has more than the system's buffers take
                await client.send_chunk(line)
            await client.send_chunk(b"")

    try:
        async with connect(server.api_port, limit=1024, receive_bytes=4096) as client, asyncio.TaskGroup() as group:
            await client.start_stream()
            sending = group.create_task(send())
            await client.read_head()
            server.process.send_signal(signal.SIGTERM)
            assert await wait_for_end(server) == 0
            sending.cancel()
    finally:
        server.stop()
    assert [line["timeout_s"] for line in server.events("stopping")] == [0.6]
    assert [line["reason"] for line in server.events("warning")] == ["requests under way were cut: 1"]


async def test_a_second_interrupt_cuts_requests_at_once(tmp_path: Path) -> None:
    server = start(tmp_path, *write_slow_config(tmp_path), **PATIENT)
    try:
        async with connect(server.api_port) as client:
            await open_slow_request(client, tmp_path)
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGTERM)  # says the same again
            await until(lambda: server.events("stopping"), "the stop")
            await linger()
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert await client.is_closed()
            assert await wait_for_end(server) == 0
    finally:
        server.stop()
    assert read_diary(tmp_path / "diary") == ["began", "cancelled"]
    assert server.error_path.read_text() == ""


async def test_ports_that_had_to_stay_closed_do_not_end_the_service() -> None:
    """D-16."""
    ports = Ports([], 600.0)
    await ports.start()
    serving = asyncio.create_task(ports.serve())
    assert await is_pending(serving)
    ports.stop()
    await serving


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 30.0),
        ({"TLS_CERT_PATH": "c", "TLS_KEY_PATH": "k"}, 10.0),
        ({"LOCKGATE_COMPAT": "fms"}, None),
        ({"LOCKGATE_COMPAT": "fms", "TLS_CERT_PATH": "c", "TLS_KEY_PATH": "k"}, 10.0),
        ({"LOCKGATE_COMPAT": "fms", "LOCKGATE_SERVER__SHUTDOWN_TIMEOUT_S": "3"}, 3.0),
    ],
)
def test_the_deadline_depends_on_tls_unless_it_is_set(environ: dict[str, str], expected: float | None) -> None:
    """G-8: with `compat: fms` as the existing orchestrator does."""
    assert stop_timeout_s(load_settings(config_path=None, flags={}, environ=environ)) == expected
