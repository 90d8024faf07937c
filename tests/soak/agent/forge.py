# SPDX-License-Identifier: Apache-2.0
"""Servers of the agent: started fast, killed without a warning, started again on the same store."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from tests.server.processes import ROOT, clean_environment
from tests.soak.agent.broken import WHOLE
from tests.soak.agent.talk import CALLERS
from tests.waits import HANG_S, until

_CONFIG = """
models:
  big: {{ollama: {{url: "http://127.0.0.1:{port}", model: big}}}}
  small: {{ollama: {{url: "http://127.0.0.1:{port}", model: small}}}}
embeddings: {{ollama: {{url: "http://127.0.0.1:{port}", model: vectors}}}}
sources:
  docs: {{elasticsearch: {{url: "http://127.0.0.1:{port}", index: docs}}}}
agents:
  default: {{main: big, conversational: small, sources: [docs], history_tokens: 10000000}}
callers: {{{callers}}}
sessions: {{{store}, max_messages: 100000}}
server: {{host: 127.0.0.1, grpc_port: 0}}
"""


@dataclass(frozen=True)
class Store:
    """Where sessions are kept: at an address of PostgreSQL, or in a file of the directory."""

    directory: Path
    dsn: str = ""

    @property
    def name(self) -> str:
        """Which kind it is."""
        return "PostgreSQL" if self.dsn else "SQLite"

    @property
    def address(self) -> str:
        """Where to read."""
        return self.dsn or str(self.directory / "sessions.db")


class Server:
    """A server at work. `number` tells it from every other, also from those that were in its place before."""

    def __init__(self, number: int, pid: int, log_path: Path) -> None:
        self.number = number
        self.pid = pid
        self.killed_at = 0.0
        self.api_port = 0
        self.channel: grpc.aio.Channel | None = None
        self._log_path = log_path

    async def hang_up(self) -> None:
        """Nobody calls it any more: the library would end the tasks of those who still do."""
        if self.channel is not None:
            await self.channel.close()

    def kill(self) -> None:
        """End it and everything that it started, at once; its number stays its own until it is reaped."""
        self.killed_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def log(self) -> list[dict[str, Any]]:
        """The complete lines of its log."""
        return [json.loads(line) for line in self._log_path.read_bytes().split(b"\n")[:-1]]

    def words(self) -> str:
        """What it said to standard error."""
        return self._log_path.with_suffix(".err").read_text()

    async def wait_for_start(self) -> None:
        """Until it listens."""
        await until(lambda: self._is_over() or {"api", "agent"} <= self._find_ports().keys(), "a server's start")
        ports = self._find_ports()
        assert {"api", "agent"} <= ports.keys(), f"server {self.number} does not start: {self.words()}"
        self.api_port = ports["api"]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports['agent']}")

    def _find_ports(self) -> dict[str, int]:
        if not self._log_path.exists():
            return {}
        listening = [line for line in self.log() if line["event"] == "listening"]
        return {line["port"]: int(line["address"].rpartition(":")[2]) for line in listening}

    def _is_over(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


class Forge:
    """Starts and buries servers, all of them on one store. Made by `open_forge`."""

    def __init__(self, launcher: asyncio.subprocess.Process) -> None:
        self._launcher = launcher
        self._asking = asyncio.Lock()
        self._numbers = itertools.count()

    async def start(self, site: "Site", *, is_cold: bool = False) -> Server:
        """A server that listens."""
        number = next(self._numbers)
        log_path = site.store.directory / f"server-{number}.log"
        order = {
            "config": str(site.write_config()),
            "directory": str(site.store.directory),
            "log": str(log_path),
            "errors": str(log_path.with_suffix(".err")),
            "variables": site.variables(),
            "variant": site.variant,
            "is_cold": is_cold,
        }
        server = Server(number, await self._ask(order), log_path)
        await server.wait_for_start()
        return server

    async def bury(self, server: Server) -> int:
        """What a server that was killed or told to stop says at its end: its exit status."""
        return await self._ask({"reap": server.pid})

    async def stop(self, server: Server) -> int:
        """Ask a server to stop; whoever does not in time is killed."""
        os.kill(server.pid, signal.SIGTERM)
        timer = asyncio.get_running_loop().call_later(HANG_S, server.kill)
        try:
            return await self.bury(server)
        finally:
            timer.cancel()

    async def _ask(self, order: Mapping[str, Any]) -> int:
        launcher = self._launcher
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        async with self._asking:
            launcher.stdin.write(json.dumps(order).encode() + b"\n")
            return int(await launcher.stdout.readline())


@dataclass(frozen=True)
class Site:
    """What a server is told: its store, the port of everybody behind it, and what is broken in it."""

    store: Store
    port: int
    variant: str = WHOLE

    def write_config(self) -> Path:
        """The file of settings."""
        path = self.store.directory / "agent.yaml"
        callers = ", ".join(f"{name}: {{key_env: KEY_{name.upper()}}}" for name in CALLERS)
        store = "postgres: {dsn_env: SOAK_DSN}" if self.store.dsn else "sqlite: sessions.db"
        path.write_text(_CONFIG.format(port=self.port, callers=callers, store=store))
        return path

    def variables(self) -> dict[str, str]:
        """The environment beside it."""
        directory = str(self.store.directory)
        keys = {f"KEY_{name.upper()}": key for name, key in CALLERS.items()}
        return keys | {
            "HTTP_PORT": "0",
            "HEALTH_HTTP_PORT": "0",
            "LOCKGATE_DATA_DIR": directory,
            "CLASSIFIER_MODEL_PATH": f"{directory}/none",
            "SOAK_DSN": self.store.dsn,
        }


@contextlib.asynccontextmanager
async def open_forge() -> AsyncIterator[Forge]:
    """A forge; at the end nothing that it started is left."""
    launcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.soak.agent.launch"),
        cwd=ROOT,
        env=clean_environment(OPENBLAS_NUM_THREADS="1"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Forge(launcher)
    finally:
        assert launcher.stdin is not None
        launcher.stdin.close()
        await launcher.wait()
