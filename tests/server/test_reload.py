# SPDX-License-Identifier: Apache-2.0
"""Reloads of a real process: requests under way go on, later ones have the new settings, a fault changes nothing."""

import asyncio
import os
import re
import signal
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from lockgate.cli.main import main
from lockgate.server.control import ask_process
from tests.server.agent_houses import SPEAK, finish, open_client, open_upstream, running_agent, say, write_config
from tests.server.certificates import Authority
from tests.server.http_client import Client, build_request, call, connect, detect
from tests.server.processes import ServerProcess, running
from tests.server.test_agent_ports import speak_when
from tests.server.test_shutdown import finish_stream, open_stream
from tests.server.test_tls import connect as connect_tls
from tests.server.test_tls import trust
from tests.server.test_workers import wait_for_workers
from tests.server.worker_parts import count_openings
from tests.waits import HANG_S, until, wait_until

PII = "detectors:\n  pii: {embedded: pii, chunker_id: sentence}\n"
WORDS = "  words: {{embedded: keywords, options: {{keywords: [{}]}}}}\n"
CONTENT = "/api/v2/text/detection/content"


class Place:
    """A config file and its server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config.yaml"
        self.pid_file = directory / "server.pid"

    def write(self, word: str, more: str = "", server: str = "") -> None:
        """Settings with a detector of one word."""
        tail = f"server: {{host: 127.0.0.1, pid_file: {self.pid_file}{server}}}\n"
        self.config.write_text(PII + WORDS.format(word) + more + tail)

    @property
    def arguments(self) -> list[str]:
        return ["--config-path", str(self.config)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Settings that find `alpha`."""
    found = Place(tmp_path)
    found.write("alpha")
    return found


def reload(place: Place, *arguments: str) -> int:
    """Runs `lockgate reload`; the exit code."""
    return reload_with(arguments or place.arguments)


def reload_with(arguments: Sequence[str]) -> int:
    """The same with other options."""
    with pytest.raises(SystemExit) as ended:
        main(["reload", *arguments])
    return int(str(ended.value.code))


async def find(port: int, word: str) -> bool:
    """Whether the detector of one word finds this one."""
    answer = await detect(port, {"content": f"say {word} now", "detectors": {"words": {}}})
    assert answer.status == 200
    return bool(answer.json()["detections"])


async def read_info(server: ServerProcess) -> dict[str, Any]:
    settings: dict[str, Any] = (await call(server.health_port, "/info", method="GET")).json()["settings"]
    return settings


async def count_reloads(server: ServerProcess, result: str) -> int:
    text = (await call(server.health_port, "/metrics", method="GET")).body.decode()
    found = re.search(rf'^lockgate_reloads_total{{.*result="{result}".*}} (\S+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


async def open_streams(stack: AsyncExitStack, port: int, count: int) -> Sequence[Client]:
    clients = [await stack.enter_async_context(connect(port)) for _ in range(count)]
    for client in clients:
        await open_stream(client)
    return clients


async def test_open_streams_end_on_the_old_settings_while_later_requests_have_the_new(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(place.directory, place.arguments) as server:
        async with AsyncExitStack() as stack:
            before = await read_info(server)
            streams = await open_streams(stack, server.api_port, 5)
            idle = await stack.enter_async_context(connect(server.api_port))
            ask = build_request("POST", CONTENT, b'{"content":"beta","detectors":{"words":{}}}')
            await idle.send(ask)
            assert (await idle.read_answer("POST")).json() == {"detections": []}
            for word in ("gamma", "delta", "beta"):
                place.write(word)
                assert reload(place) == 0
                assert await find(server.api_port, word)
                streams = [*streams, *await open_streams(stack, server.api_port, 2)]
            assert not await find(server.api_port, "alpha")
            await idle.send(ask)  # on a connection that was open before
            assert (await idle.read_answer("POST")).json()["detections"]
            for stream in streams:
                await finish_stream(stream)
        after = await read_info(server)
        assert (before["hash"] == after["hash"]) is False
        assert len(server.events("settings_reloaded")) == await count_reloads(server, "ok") == 3
        assert server.events("settings_reloaded")[-1]["hash"] == after["hash"]
    assert after["hash"][:12] in capsys.readouterr().out
    assert not place.pid_file.exists()


async def test_a_detector_goes_on_reading_for_a_request_that_began_before_its_removal(place: Place) -> None:
    with running(place.directory, place.arguments) as server:
        async with connect(server.api_port) as client:
            await open_stream(client)
            place.config.write_text(place.config.read_text().replace("  pii:", "  other:"))
            assert reload(place) == 0
            answer = await detect(server.api_port, {"content": "a@b.example", "detectors": {"pii": {}}})
            assert answer.status == 404
            await client.send_line(content=" and c@d.example.")
            await client.send_chunk(b"")
            assert b"EmailAddress" in await client.read_chunk()
        assert (await call(server.health_port, "/info", method="GET")).json()["services"].keys() >= {"other", "words"}


async def test_every_fault_is_told_and_logged_and_the_old_settings_stay(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(place.directory, place.arguments) as server:
        before = await read_info(server)
        place.write("beta", "policies: {p: {input: {nowhere: {}}}, q: {outptu: {}}}\n")
        assert reload(place) == 2
        told = capsys.readouterr().err
        assert "nowhere" in told
        assert "outptu" in told
        assert len(server.events("reload_failed")) == 2
        place.write("'', [beta]")  # only the detector itself notices
        assert reload(place) == 2
        assert "detectors.words.options" in capsys.readouterr().err
        place.config.write_text("{")
        assert reload(place, "--pid", str(server.process.pid)) == 2
        assert await read_info(server) == before
        assert await find(server.api_port, "alpha")
        assert (await count_reloads(server, "failed"), await count_reloads(server, "ok")) == (3, 0)


async def test_what_needs_a_restart_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with running(place.directory, place.arguments) as server:
        place.write("beta", "log: {level: warn}\nlimits: {max_streams: 7}\n", ", workers: 3")
        assert reload(place) == 0
        told = capsys.readouterr().err
        assert "`server.workers` has changed: it takes effect at the next start" in told
        assert "`log` has changed" in told
        assert "limits" not in told
        assert await find(server.api_port, "beta")


async def test_sighup_and_a_watched_file_reload_too(place: Place) -> None:
    place.write("alpha", "watch: true\n")
    with running(place.directory, place.arguments) as server:
        place.write("beta", "watch: true\n")
        await until(lambda: server.events("settings_reloaded"), "the reload of a changed file")
        place.write("gamma")
        await until(lambda: len(server.events("settings_reloaded")) == 2, "the next one")
        place.write("delta")  # not watched any more
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: len(server.events("settings_reloaded")) == 3, "the reload by a signal")
        assert await find(server.api_port, "delta")


async def test_a_fault_in_one_worker_keeps_the_old_settings_in_all(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    register = place.directory / "register"
    register.touch()
    place.write("alpha", "", ", workers: 2")
    with running(place.directory, place.arguments) as server:
        wait_for_workers(server)
        rare = (
            "  rare: {{embedded: 'tests.server.worker_parts:open_rare_detector', options: {{register: {}, times: {}}}}}"
        )
        place.write("beta", rare.format(register, 2) + "\n", ", workers: 2")  # the parent and one worker
        assert reload(place) == 2
        assert "has been opened too often" in capsys.readouterr().err
        assert count_openings(register) == 3
        for _ in range(10):
            assert await find(server.api_port, "alpha")
        place.write("beta", rare.format(register, 9) + "\n", ", workers: 2")
        assert reload(place) == 0
        for _ in range(10):
            assert await find(server.api_port, "beta")


async def test_workers_switch_together_and_a_later_one_has_the_new_settings(place: Place) -> None:
    place.write("alpha", "", ", workers: 2")
    with running(place.directory, place.arguments) as server:
        first = wait_for_workers(server)
        async with AsyncExitStack() as stack:
            streams = await open_streams(stack, server.api_port, 6)
            place.write("beta", "", ", workers: 2")
            assert reload(place) == 0
            for _ in range(10):
                assert await find(server.api_port, "beta")
            for stream in streams:
                await finish_stream(stream)
        os.kill(first[2], signal.SIGKILL)
        await until(lambda: len(server.events("worker_started")) == 3, "a new worker")
        for _ in range(10):
            assert await find(server.api_port, "beta")
        assert await count_reloads(server, "ok") == 1


async def test_without_a_process_the_command_fails(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert reload(place) == 3
    assert "no process id" in capsys.readouterr().err
    assert reload(place, "--pid", str(os.getpid())) == 3
    assert "no server of Lockgate" in capsys.readouterr().err


async def test_two_servers_do_not_share_a_pid_file(place: Place) -> None:
    other = place.directory / "other"
    other.mkdir()
    with running(place.directory, place.arguments) as server, running(other, place.arguments) as second:
        wait_until(lambda: second.events("warning"), "the warning")
        assert int(place.pid_file.read_text()) == server.process.pid
        assert reload(place, "--pid", str(second.process.pid)) == 0
        assert second.events("settings_reloaded")
        assert not server.events("settings_reloaded")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_turn_of_an_agent_ends_with_its_model_while_later_turns_have_the_new_one(
    tmp_path: Path, workers: str
) -> None:
    """The command finds the process by the pid file in the data directory."""
    may_go_on = asyncio.Event()
    async with open_upstream() as (upstream, peer):
        upstream.speak = speak_when(may_go_on)
        config = write_config(tmp_path, peer.port)
        arguments = ["--config-path", str(config), "--data-dir", str(tmp_path)]
        async with (
            running_agent(tmp_path, config, LOCKGATE_SERVER__WORKERS=workers) as server,
            open_client(server.grpc_port) as client,
        ):
            call = client.start("One", "kept")
            assert (await call.read()).text == "half "
            config.write_text(config.read_text().replace("model: main", "model: other"))
            assert await asyncio.to_thread(reload_with, arguments) == 0
            upstream.speak = say("new")
            async with open_client(server.grpc_port) as later:
                assert (await later.ask("Two", "another")).text == "new"
            assert upstream.asked[-1] == (SPEAK, "other")
            may_go_on.set()
            found = await finish(call)
            assert (found.code, found.text, found.is_complete) == (grpc.StatusCode.OK, "whole", True)
            assert (await client.ask("Three", "kept")).text == "new"  # on a connection that was open before
            assert "half whole" in upstream.prompt()
            config.write_text(config.read_text().partition("agents:")[0])
            assert await asyncio.to_thread(reload_with, arguments) == 0
            assert (await client.ask("Four", "kept")).code == grpc.StatusCode.NOT_FOUND
    assert not (tmp_path / "lockgate.pid").exists()


async def test_two_hundred_streams_outlive_twenty_reloads_and_every_old_gateway_is_closed(place: Place) -> None:
    """It takes seconds: twenty reloads of a real process."""
    with running(place.directory, place.arguments) as server:
        idle = server.open_files()
        async with AsyncExitStack() as stack:
            streams = await open_streams(stack, server.api_port, 200)
            for number in range(20):
                place.write(f"word{number}")
                assert not ask_process(server.process.pid, HANG_S)["faults"]
            for stream in streams:
                await finish_stream(stream)
        await until(lambda: server.open_files() <= idle, "the end of all old gateways")
        assert await count_reloads(server, "ok") == 20


async def test_a_renewed_certificate_serves_later_connections_and_a_wrong_one_is_a_fault(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(place.directory, "ours")
    own = authority.issue("server")
    options = ["--tls-cert-path", str(own.cert), "--tls-key-path", str(own.key)]
    with running(place.directory, [*place.arguments, *options]) as server:
        async with connect_tls(server.api_port, trust(authority)) as client:
            await open_stream(client)
            newer = Authority(place.directory, "newer")
            newer.issue("server")  # to the same files
            assert reload(place) == 0
            async with connect_tls(server.api_port, trust(newer)) as later:
                await later.send(build_request("POST", CONTENT, b'{"content":"alpha","detectors":{"words":{}}}'))
                assert (await later.read_answer("POST")).json()["detections"]
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", server.api_port, ssl=trust(authority))
            own.key.write_text("no key")
            place.write("beta")
            assert reload(place) == 2
            assert "server.tls.key_path" in capsys.readouterr().err
            await finish_stream(client)
