# SPDX-License-Identifier: Apache-2.0
"""Several processes on one port: they share the work, are replaced when they die, and end together."""

import asyncio
import logging
import math
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from lockgate.config.load import load_settings
from lockgate.errors import ConfigFaults, LockgateError
from lockgate.server.workers import Workers, pack, unpack
from tests.config.config_cases import SECRETS, WHOLE, Loader
from tests.server.certificates import Authority
from tests.server.http_client import call, connect, detect
from tests.server.processes import ROOT, ServerProcess, running
from tests.server.test_shutdown import PATIENT, finish_stream, open_stream, start, wait_for_end
from tests.server.test_tls import connect as connect_tls
from tests.server.test_tls import trust
from tests.server.worker_parts import count_openings
from tests.waits import HANG_S, linger, until, wait_until

ASK = {"content": "Mail a@b.example", "detectors": {"pii": {}}}
ASKED: Counter[int] = Counter()  # requests by port
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two workers."""
    with running(tmp_path_factory.mktemp("pair"), ["--workers", "2"]) as server:
        yield server


def workers_of(server: ServerProcess) -> dict[int, int]:
    """The newest process of each worker, by number."""
    return {event["worker"]: event["pid"] for event in server.events("worker_started")}


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_refused(port: int) -> bool:
    """Whether nobody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return True
    return False


def find_metrics(directory: Path) -> list[Path]:
    """Where workers share their metrics."""
    return list(directory.glob("lockgate-metrics-*"))


def wait_for_workers(server: ServerProcess, count: int = 2) -> dict[int, int]:
    wait_until(lambda: len(workers_of(server)) == count, "the start of all workers")
    return workers_of(server)


async def ask_many(port: int, count: int = 20) -> None:
    ASKED[port] += count
    answers = await asyncio.gather(*(detect(port, ASK) for _ in range(count)))
    assert {answer.status for answer in answers} == {200}


async def count_requests(server: ServerProcess) -> int:
    """What the health port tells of all workers."""
    text = (await call(server.health_port, "/metrics", method="GET")).body.decode()
    counts = re.findall(r'^lockgate_requests_total\{.*detection/content".*\} (\S+)$', text, re.MULTILINE)
    return sum(int(float(count)) for count in counts)


async def check_count(server: ServerProcess) -> None:
    """Every request is counted, just after it is answered."""
    async with asyncio.timeout(HANG_S):
        while (counted := await count_requests(server)) < ASKED[server.api_port]:
            pass
    assert counted == ASKED[server.api_port]


async def test_all_workers_serve_and_each_line_of_their_log_names_its_worker(pair: ServerProcess) -> None:
    wait_for_workers(pair)
    async with asyncio.timeout(HANG_S):
        while {event["worker"] for event in pair.events("request")} != {1, 2}:
            await ask_many(pair.api_port)
    assert len(pair.events("started")) == 1
    assert [event["port"] for event in pair.events("listening")] == ["health", "api"]
    assert all("worker" not in line for line in pair.events("started") + pair.events("listening"))


async def test_the_health_port_speaks_for_all_workers(pair: ServerProcess) -> None:
    await ask_many(pair.api_port, 40)
    await check_count(pair)
    assert (await call(pair.health_port, "/health", method="GET")).status == 200
    assert "pii" in (await call(pair.health_port, "/info", method="GET")).json()["services"]


async def test_a_worker_that_dies_is_replaced_and_the_service_goes_on(pair: ServerProcess) -> None:
    first = wait_for_workers(pair)
    await check_count(pair)
    os.kill(first[1], signal.SIGKILL)
    wait_until(lambda: not is_alive(first[1]), "the death")
    await ask_many(pair.api_port)
    wait_until(lambda: workers_of(pair)[1] != first[1], "the replacement")
    assert [(event["worker"], event["pid"], event["status"]) for event in pair.events("worker_died")] == [
        (1, first[1], "SIGKILL")
    ]
    assert workers_of(pair)[2] == first[2]
    os.kill(first[2], signal.SIGSTOP)  # now only the new one can answer
    try:
        await ask_many(pair.api_port, 2)
    finally:
        os.kill(first[2], signal.SIGCONT)
    await check_count(pair)


async def test_ctrl_c_is_one_stop_for_all_and_requests_finish(tmp_path: Path) -> None:
    """A terminal sends SIGINT to every process of the group. Under TLS, whose files each worker reads for itself."""
    authority = Authority(tmp_path, "ours")
    own = authority.issue("server")
    tls = ["--tls-cert-path", str(own.cert), "--tls-key-path", str(own.key)]
    server = start(tmp_path, "--workers", "2", *tls, TMPDIR=str(tmp_path), **PATIENT)
    workers = wait_for_workers(server)
    assert len(find_metrics(tmp_path)) == 1
    try:
        async with connect_tls(server.api_port, trust(authority)) as client:
            await open_stream(client)
            for pid in (server.process.pid, *workers.values()):
                os.kill(pid, signal.SIGINT)
            await until(lambda: is_refused(server.api_port), "the closing of the port")
            assert (await call(server.health_port, "/health", method="GET")).status == 200
            await finish_stream(client)
        assert await wait_for_end(server) == 0
    finally:
        server.stop()
    assert not any(is_alive(pid) for pid in workers.values())
    assert (server.error_path.read_text(), server.events("worker_died")) == ("", [])
    assert find_metrics(tmp_path) == []


async def test_a_second_interrupt_cuts_the_requests_of_all_workers(tmp_path: Path) -> None:
    server = start(tmp_path, "--workers", "2", **PATIENT)
    workers = wait_for_workers(server)
    try:
        async with connect(server.api_port) as client:
            await open_stream(client)
            server.process.send_signal(signal.SIGINT)
            await until(lambda: server.events("stopping"), "the stop")
            await linger()
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert await client.is_closed()
            assert await wait_for_end(server) == 0
    finally:
        server.stop()
    assert not any(is_alive(pid) for pid in workers.values())
    assert [line["reason"] for line in server.events("warning")] == ["requests under way were cut: 1"]
    assert server.error_path.read_text() == ""


async def test_when_the_parent_is_killed_the_workers_end_and_free_the_port(tmp_path: Path) -> None:
    server = start(tmp_path, "--workers", "2", TMPDIR=str(tmp_path), **PATIENT)
    workers = wait_for_workers(server)
    async with connect(server.api_port) as client:
        await open_stream(client)
        server.process.kill()
        server.process.wait()
        await finish_stream(client)
    wait_until(lambda: not any(is_alive(pid) for pid in workers.values()), "the end of the workers")
    assert is_refused(server.api_port)
    assert find_metrics(tmp_path) == []


@contextmanager
def rare_workers(directory: Path, times: int) -> Iterator[Workers]:
    """One worker as the parent sees it, with a detector that can be opened only so many times."""
    config = directory / "config.yaml"
    config.write_text(
        "detectors: {rare: {embedded: 'tests.server.worker_parts:open_rare_detector', "
        f"options: {{register: {directory / 'register'}, times: {times}}}}}}}\nserver: {{host: 127.0.0.1}}\n"
    )
    settings = load_settings(config_path=config, flags={}, environ={})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield Workers(settings, [listening])


async def test_a_worker_that_cannot_start_ends_the_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "worker 1 ended before it could serve: exit status 1"
    with rare_workers(tmp_path, 0) as workers, pytest.raises(LockgateError, match=f"^{words}$"):
        await workers.start()
    assert "detectors.rare.options.times: has been opened too often" in capfd.readouterr().out


async def test_a_worker_that_dies_again_and_again_is_replaced_ever_more_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.server.workers._STEADY_S", math.inf)
    caplog.set_level(logging.INFO, "lockgate")

    def list_events(name: str) -> list[dict[str, Any]]:
        return [vars(record) for record in caplog.records if record.getMessage() == name]

    with rare_workers(tmp_path, 1) as workers:
        await workers.start()
        serving = asyncio.create_task(workers.serve())
        await until(lambda: list_events("worker_started"), "the start")
        os.kill(list_events("worker_started")[0]["pid"], signal.SIGKILL)
        await until(lambda: len(list_events("worker_died")) == 3 or serving.done(), "the third death")
        workers.stop()
        await serving
    assert [event["next_in_s"] for event in list_events("worker_died")] == [0.1, 0.2, 0.4]
    assert [event["status"] for event in list_events("worker_died")] == ["SIGKILL", "exit status 1", "exit status 1"]
    assert count_openings(tmp_path / "register") == 3


def test_one_worker_is_this_process_and_no_child(server: ServerProcess) -> None:
    assert Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text() == ""
    assert all("worker" not in line for line in server.log())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_settings_reach_a_worker_as_they_are(path: Path) -> None:
    environ = {"LLM_TOKEN": "hunter2", "WEB_KEY": "hunter3", "HOME": "/home/someone"}
    settings = load_settings(config_path=path, flags={"server.workers": "2"}, environ=environ)
    again = unpack(BytesIO(pack(settings)))
    assert again == settings
    assert type(again.detectors) is type(settings.detectors)


def test_settings_of_agents_reach_a_worker_as_they_are(tmp_path: Path) -> None:
    settings = Loader(tmp_path).load(WHOLE, SECRETS)
    again = unpack(BytesIO(pack(settings)))
    assert again == settings
    assert type(again.agents) is type(settings.agents)
    assert again.sessions.postgres is not None
    assert again.sessions.postgres.dsn is not None
    assert again.sessions.postgres.dsn.reveal() == SECRETS["DSN"]


@pytest.mark.parametrize("words", ["0", "-1", "x", "513"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(ConfigFaults, match=r"server\.workers: must be"):
        load_settings(config_path=None, flags={"server.workers": words}, environ={})
