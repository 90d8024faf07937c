# SPDX-License-Identifier: Apache-2.0
"""A real `lockgate serve` as a subprocess: on free ports, watched through /proc and its log, ended by its id."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waits import HANG_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "lockgate")


def clean_environment(**variables: str) -> dict[str, str]:
    """Our environment without any setting of Lockgate, plus the given ones; the repository can be imported, and a
    warning about our own code is an error."""
    ours = ("LOCKGATE_", "AGGREGATOR_", "OTEL_", "OTLP_", "TLS_", "HTTP_PORT", "HEALTH_HTTP_PORT", "LOG_", "RUST_LOG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{ROOT / 'tests' / 'children'}{os.pathsep}{ROOT}"
    return kept | {"PYTHONPATH": path, "PYTHONWARNINGS": "error", **variables}


class ServerProcess:
    """One server. Its log goes to a file, so that nobody has to read it for the server to go on."""

    def __init__(
        self, directory: Path, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self.log_path = directory / "server.log"
        self.error_path = directory / "server.err"
        environ = clean_environment(**{"HTTP_PORT": "0", "HEALTH_HTTP_PORT": "0", **(variables or {})})
        with self.log_path.open("wb") as log, self.error_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *arguments], cwd=directory, env=environ, stdout=log, stderr=errors
            )
        self.api_port = self.health_port = 0

    def wait_for_start(self) -> None:
        """Until both ports listen."""
        wait_until(lambda: self._is_listening() or self.process.poll() is not None, what="the start")
        assert self.process.poll() is None, self.error_path.read_text() + self.log_path.read_text()
        ports = {event["port"]: event["address"] for event in self.events("listening")}
        self.api_port, self.health_port = (int(ports[name].rpartition(":")[2]) for name in ("api", "health"))

    def log(self) -> list[dict[str, Any]]:
        """Every complete line of the log; each must be a JSON object."""
        lines = [json.loads(line) for line in self.log_path.read_bytes().split(b"\n")[:-1]]
        assert all(isinstance(line, dict) for line in lines)
        return lines

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's events of that name."""
        return [line for line in self.log() if line["event"] == name]

    def open_files(self) -> int:
        """How many file descriptors the process holds."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory_kb(self, field: str = "VmRSS") -> int:
        """Resident memory; `VmHWM` is its peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(HANG_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def _is_listening(self) -> bool:
        return len(self.events("listening")) >= 2  # these two first, others after them


@contextmanager
def running(directory: Path, arguments: Sequence[str] = (), **variables: str) -> Iterator[ServerProcess]:
    """A server that listens; at the end it must stop with status 0 and have logged no error but those of parts."""
    server = ServerProcess(directory, arguments, variables)
    try:
        server.wait_for_start()
        yield server
    finally:
        status = server.stop()
    assert (status, server.error_path.read_text()) == (0, "")
    assert [
        line for line in server.log() if line["level"] == "error" and line["event"] not in ("failed", "reload_failed")
    ] == []
