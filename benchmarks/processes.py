# SPDX-License-Identifier: Apache-2.0
"""Servers and clients in processes of their own: started, watched from outside, stopped by id."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

HOST = "127.0.0.1"
_ROOT = Path(__file__).resolve().parents[1]
_START_S = 60.0
_STOP_S = 10.0
_CLIENT_S = 300.0
_SCHEDULED = 2  # CPUCLOCK_SCHED: time on a processor, user and system together, of all threads


class Server(NamedTuple):
    """A server that listens."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU time since its start, from the process's CPU-time clock: utime + stime, in nanoseconds not ticks."""
        return time.clock_gettime((~self.pid << 3) | _SCHEDULED)

    def resident_kb(self) -> float:
        """Memory that is in RAM."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return float(status.split("VmRSS:")[1].split()[0])


class Load(NamedTuple):
    """What one round of requests took."""

    cpu_s: float
    wall_s: float


class Timed(NamedTuple):
    """What the client of one request noted: its correlation id, the time to the first event, and to the end."""

    id: str
    first_s: float
    whole_s: float


@contextmanager
def open_lockgate(config: str, folder: Path) -> Iterator[Server]:
    """`lockgate serve` with these settings, without a log."""
    path = folder / "config.yaml"
    path.write_text(config, encoding="utf-8")
    port, health_port = free_port(), free_port()
    ports = ["--http-port", str(port), "--health-http-port", str(health_port)]
    command = ["lockgate", "serve", "-q", "--host", HOST, "--config-path", str(path), *ports]
    with running(_python(*command), port) as server:
        yield server


@contextmanager
def open_floor(answers: Mapping[str, bytes], folder: Path) -> Iterator[Server]:
    """The bare handlers, which give these answers by path."""
    path = folder / "answers.json"
    path.write_text(json.dumps({name: body.decode() for name, body in answers.items()}), encoding="utf-8")
    port = free_port()
    with running(_python("benchmarks.floor", str(port), str(path)), port) as server:
        yield server


@contextmanager
def open_upstream() -> Iterator[Server]:
    """The scripted model and detector."""
    port = free_port()
    with running(_python("benchmarks.upstream", str(port)), port) as server:
        yield server


@contextmanager
def open_relay(upstream: Server) -> Iterator[Server]:
    """The least that can stand before the scripted model."""
    port = free_port()
    with running(_python("benchmarks.relay", str(port), str(upstream.port)), port) as server:
        yield server


def load(server: Server, job: Mapping[str, Any]) -> Load:
    """Runs a client process through its requests."""
    before = server.cpu_s()
    answer = _run_client(server, job)
    return Load(server.cpu_s() - before, answer["wall_s"])


def time_requests(server: Server, job: Mapping[str, Any]) -> list[Timed]:
    """What each request of a client took."""
    return [Timed(*one) for one in _run_client(server, {**job, "kind": "timed"})["times"]]


def _run_client(server: Server, job: Mapping[str, Any]) -> dict[str, Any]:
    with _client(server, job) as (_, output):
        answer: dict[str, Any] | None = json.loads(output.readline() or "null")
    if answer is None:
        raise RuntimeError("the client failed")
    return answer


@contextmanager
def holding(server: Server, job: Mapping[str, Any]) -> Iterator[None]:
    """A client that holds its streams open while the context lasts."""
    with _client(server, job) as (_, output):
        if not output.readline():
            raise RuntimeError("the client failed")
        yield


@contextmanager
def _client(server: Server, job: Mapping[str, Any]) -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-m", "benchmarks.client"]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"port": server.port, **job}) + "\n")
            process.stdin.flush()
            yield process.stdin, process.stdout
        finally:
            _stop(process)


@contextmanager
def running(command: Sequence[str], port: int, **options: Any) -> Iterator[Server]:
    """A server that this command starts, once it listens on the port."""
    quiet: dict[str, Any] = {"cwd": _ROOT, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet | options) as process:
        try:
            _wait_for(port, process)
            yield Server(process.pid, port)
        finally:
            _stop(process)


def _python(*module: str) -> list[str]:
    return [sys.executable, "-m", *module]


def _stop(process: "subprocess.Popen[Any]") -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _wait_for(port: int, process: "subprocess.Popen[Any]") -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server did not start")


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
