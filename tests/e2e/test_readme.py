# SPDX-License-Identifier: Apache-2.0
"""What the pages show is what happens: their commands run against a real server and print what the pages say."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = shlex.quote(str(Path(sys.executable).parent))
PAGES = ("README.md", "docs/api.md", "docs/plugins.md")
TIMEOUT_S = 30.0


class Step(NamedTuple):
    """A command of a page and what it prints."""

    command: str
    output: str


def read_blocks(page: str, kinds: tuple[str, ...]) -> Iterator[str]:
    """The fenced blocks of these kinds, in order."""
    for kind, body in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if kind in kinds:
            yield body


def read_steps(page: str) -> list[Step]:
    """`$ ` begins a command, the lines that continue it belong to it, the rest is its output."""
    steps: list[Step] = []
    for block in read_blocks(page, ("console",)):
        for found in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command = cut_command(found)
            steps.append(Step(command, found[len(command) :].strip("\n")))
    return steps


def cut_command(text: str) -> str:
    """The lines up to the first that ends neither inside a quotation nor with a backslash or a bar."""
    lines = text.split("\n")
    for count in range(1, len(lines) + 1):
        command = "\n".join(lines[:count])
        if not command.endswith(("\\", "|")) and command.count("'") % 2 == 0:
            return command
    raise AssertionError(f"a command without an end: {text}")


def write_files(page: str, folder: Path) -> None:
    """Blocks of code whose first line is a comment with a file name become that file."""
    for block in read_blocks(page, ("python", "yaml")):
        name = re.match(r"# ([\w-]+\.(?:py|yaml))\n", block)
        if name:
            (folder / name[1]).write_text(block, encoding="utf-8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def clean_environment() -> dict[str, str]:
    ours = ("LOCKGATE_", "AGGREGATOR_", "OTEL_", "TLS_")
    names = ("ORCHESTRATOR_CONFIG", "HTTP_PORT", "HEALTH_HTTP_PORT", "LOG_FORMAT", "RUST_LOG", "QUIET")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours) and key not in names}


@contextmanager
def running_server(command: str, ports: Mapping[str, str], folder: Path) -> Iterator[None]:
    """The server of a page's `lockgate serve`, on free ports."""
    words = shlex.split(command.replace(".venv/bin/", f"{BIN}/"))
    words = ["env", *words, "--http-port", ports["8033"], "--health-http-port", ports["8034"], "--log-format", "json"]
    process = subprocess.Popen(words, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        listening = 0
        for line in process.stdout:
            listening += json.loads(line)["event"] == "listening"
            if listening == 2:
                break
        assert listening == 2, "the server did not start"
        yield
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def run(command: str, ports: Mapping[str, str], folder: Path) -> str:
    for shown, real in ports.items():
        command = command.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{real}")
    command = command.replace(".venv/bin/", f"{BIN}/")
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=clean_environment(), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    return (done.stdout + done.stderr).decode().replace("\r\n", "\n").rstrip("\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tours use curl")
@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    write_files(page, tmp_path)
    steps = [step for step in read_steps(page) if not step.command.startswith("make ")]
    assert len(steps) >= 3
    ports = {"8033": str(free_port()), "8034": str(free_port())}
    with ExitStack() as servers:
        for step in steps:
            if "lockgate serve" in step.command:
                servers.close()
                servers.enter_context(running_server(step.command, ports, tmp_path))
            else:
                assert run(step.command, ports, tmp_path) == step.output, step.command


def test_the_readme_names_the_commands_that_the_makefile_has() -> None:
    named = set(re.findall(r"`make (\w+)`", (ROOT / "README.md").read_text(encoding="utf-8")))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "install", "bench", "soak", "lint"} <= named <= targets
