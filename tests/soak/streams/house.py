# SPDX-License-Identifier: Apache-2.0
"""All services of a run in this process, and the server that uses them in its own."""

import asyncio
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.server.processes import ServerProcess, clean_environment
from tests.soak.streams.chunkers import ChunkerPeers, serve_chunkers
from tests.soak.streams.peers import Books, DetectorPeer, HttpPeer, ModelPeer, listen
from tests.soak.streams.plans import STREAM_HEADER
from tests.soak.streams.words import EYES, KEYWORDS, REMOTE_CHUNKERS, THRESHOLD
from tests.waits import wait_until

EMBEDDED = {
    "words": f"embedded: keywords, options: {{keywords: [{', '.join(KEYWORDS)}]}}",
    "tags": r"embedded: regex, options: {patterns: ['\bpa[a-z]+\b']}",
    "mail": "embedded: pii, options: {entities: [EmailAddress]}",
    "ends": r"embedded: regex, options: {patterns: ['\bpa[a-z]+\b']}",
}


@dataclass
class House:
    """The services that run here. `ports` by detector, and `model` and `chunkers`."""

    books: Books = field(default_factory=Books)
    ports: dict[str, int] = field(default_factory=dict)
    chunkers: ChunkerPeers = field(init=False)

    def __post_init__(self) -> None:
        self.chunkers = ChunkerPeers(self.books.complaints)

    def config(self) -> str:
        """The server's settings."""
        lines = [f"openai: {{service: {self._service('model')}}}", "chunkers:"]
        lines += [f"  {name}: {{type: sentence, service: {self._service('chunkers')}}}" for name in REMOTE_CHUNKERS]
        lines.append("detectors:")
        for name, eye in EYES.items():
            part = f"service: {self._service(name)}" if eye.is_remote else EMBEDDED[name]
            more = f"chunker_id: {eye.chunker}, default_threshold: {THRESHOLD}"
            lines.append(f"  {name}: {{type: text_contents, {part}, {more}}}")
        lines += [f"passthrough_headers: [{STREAM_HEADER}]", "server: {host: 127.0.0.1}"]
        return "\n".join(lines) + "\n"

    def _service(self, name: str) -> str:
        return f"{{hostname: 127.0.0.1, port: {self.ports[name]}}}"


@asynccontextmanager
async def open_house() -> AsyncIterator[House]:
    """Every service, listening; at the end they are closed."""
    house = House()
    makers: dict[str, Callable[[], HttpPeer]] = {"model": lambda: ModelPeer(house.books)}
    for name in (name for name, eye in EYES.items() if eye.is_remote):
        makers[name] = lambda name=name: DetectorPeer(house.books, name)  # type: ignore[misc]
    servers = []
    chunkers, house.ports["chunkers"] = await serve_chunkers(house.chunkers)
    try:
        for name, make in makers.items():
            server, house.ports[name] = await listen(make)
            servers.append(server)
        yield house
    finally:
        for server in servers:
            server.close()
        for peer in list(house.books.open):
            peer.transport.abort()
        await chunkers.stop(0.1)


class WatchedServer(ServerProcess):
    """The real server, whole or with one thing broken, that tells how many tasks it has."""

    def __init__(self, directory: Path, config: str, variant: str) -> None:
        self.log_path = directory / "server.log"
        self.error_path = directory / "server.err"
        self._tasks_path = directory / "tasks"
        config_path = directory / "streams.yaml"
        config_path.write_text(config)
        environ = clean_environment(HTTP_PORT="0", HEALTH_HTTP_PORT="0", SOAK_TASKS=str(self._tasks_path))
        command = [sys.executable, "-m", "tests.soak.streams.launch", variant, "serve"]
        with self.log_path.open("wb") as log, self.error_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, "--config-path", str(config_path)], cwd=directory, env=environ, stdout=log, stderr=errors
            )
        self.api_port = self.health_port = 0

    def count_tasks(self) -> int:
        """Its unfinished tasks; blocks for a moment."""
        self._tasks_path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_until(self._tasks_path.exists, "the server's word on what it is doing")
        return len(self._tasks_path.read_text().splitlines())

    def name_tasks(self) -> str:
        """The coroutines of the tasks that were counted last."""
        counts = Counter(re.findall(r"coro=<(\S+)", self._tasks_path.read_text()))
        return ", ".join(f"{count} {name}" for name, count in counts.items())


@contextmanager
def watched(directory: Path, config: str, variant: str) -> Iterator[WatchedServer]:
    """A server that listens; it is stopped at the latest at the end."""
    server = WatchedServer(directory, config, variant)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


async def wait_for_start(server: WatchedServer) -> None:
    """Until it listens; the services must go on meanwhile."""
    await asyncio.to_thread(server.wait_for_start)
