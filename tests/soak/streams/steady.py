# SPDX-License-Identifier: Apache-2.0
"""Very many guarded streams at once, at a steady pace: how late sentences are released, what a stream weighs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server.processes import ROOT, ServerProcess, clean_environment
from tests.soak.streams.plans import STREAM_HEADER
from tests.soak.streams.steady_text import TOKEN_S, count_mails, sentence_tokens

MAX_GAP_S = 1.0
MAX_KB = 100.0
_PATIENCE_S = 30.0
_ENVIRONMENT = clean_environment(PYTHONWARNINGS="ignore")  # sockets that are open at the end are none of our business
_SCHEDULED = 2  # CPUCLOCK_SCHED: processor time of all threads
_CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}}}
detectors: {{pii: {{embedded: pii, chunker_id: sentence}}}}
passthrough_headers: [{header}]
server: {{host: 127.0.0.1}}
"""


@dataclass(frozen=True)
class Load:
    """How many streams, started at which rate, and how long all of them are open at once."""

    streams: int = 1000
    per_second: float = 20.0
    together_s: float = 20.0

    @property
    def tokens(self) -> int:
        """What a stream has to say to be open for so long."""
        return round((self.streams / self.per_second + self.together_s) / TOKEN_S)

    @property
    def seconds(self) -> float:
        """How long it takes in all."""
        return 2 * self.streams / self.per_second + self.together_s


@dataclass
class Findings:
    """What the run has shown."""

    gaps_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stream_kb: float = 0.0
    cpu_share: float = 0.0


def run_steady(load: Load, directory: Path, say: Callable[[str], None]) -> Findings:
    """Start model, server and clients, each in a process of its own; watch."""
    findings = Findings()
    sent, heard = directory / "sent.json", directory / "heard.json"
    with _running("steady_model", load.tokens, sent) as model:
        config = directory / "steady.yaml"
        config.write_text(_CONFIG.format(port=int(_read_line(model)), header=STREAM_HEADER))
        server = ServerProcess(directory, ["--config-path", str(config)])
        try:
            server.wait_for_start()
            _watch(load, server, heard, findings, say)
        finally:
            status = server.stop()
    words = server.error_path.read_text()
    if status or words:
        findings.faults.append(f"the server stopped with {status}: {words[:500]}")
    _compare(load, json.loads(sent.read_text()), json.loads(heard.read_text()), findings)
    return findings


def _watch(load: Load, server: ServerProcess, heard: Path, findings: Findings, say: Callable[[str], None]) -> None:
    with _clients(server, 10, 100.0, 25, heard) as warming:
        warming.wait(_PATIENCE_S)
    resting_kb = server.memory_kb()
    with _clients(server, load.streams, load.per_second, load.tokens, heard) as clients:
        assert _read_line(clients) == "all are open"
        started, cpu_s = time.monotonic(), _cpu_s(server)
        most_kb = 0
        while time.monotonic() < started + load.together_s - 1.0:
            time.sleep(1.0)
            most_kb = max(most_kb, server.memory_kb())
        findings.cpu_share = (_cpu_s(server) - cpu_s) / (time.monotonic() - started)
        findings.stream_kb = (most_kb - resting_kb) / load.streams
        say(f"{load.streams} streams were open, {most_kb / 1000:.0f} MB resident; waiting for their ends")
        clients.wait(load.tokens * TOKEN_S + 2 * _PATIENCE_S)


def _compare(load: Load, sent: dict[str, list[float]], heard: dict[str, Any], findings: Findings) -> None:
    sentences = len(sentence_tokens(load.tokens))
    for name, (times, found, fault) in heard.items():
        spoken = sent.get(name, [])[-sentences:]  # the first ones were for warming up
        if fault or not len(spoken) == len(times) == sentences:
            findings.faults.append(f"{name}: {fault or 'sentences are missing'}")
        elif found != count_mails(load.tokens):
            findings.faults.append(f"{name}: {found} findings")
        findings.gaps_s += [came - went for came, went in zip(times, spoken, strict=False)]
    if len(heard) != load.streams:
        findings.faults.append(f"{len(heard)} of {load.streams} streams were played")


def _clients(
    server: ServerProcess, streams: int, per_second: float, count: int, path: Path
) -> AbstractContextManager["subprocess.Popen[str]"]:
    return _running("steady_clients", server.api_port, streams, per_second, count, path)


@contextmanager
def _running(module: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A process of ours; its input is closed and it is waited for, or it is ended."""
    command = [sys.executable, "-m", f"tests.soak.streams.{module}", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, env=_ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_PATIENCE_S)
        finally:
            if process.poll() is None:
                process.kill()


def _read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _cpu_s(server: ServerProcess) -> float:
    return time.clock_gettime((~server.process.pid << 3) | _SCHEDULED)
