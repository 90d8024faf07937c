# SPDX-License-Identifier: Apache-2.0
"""What the pages show is what happens: their commands run against a real server and print what the pages say."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.waits import wait_until
from tests.weights import require_weights

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if "```console\n" in path.read_text(encoding="utf-8")
]
SHOWN_PORTS = ("8000", "8033", "8034", "8035", "8036", "11434", "50051")  # pages are tried with others, which are free
PARTS_PORTS = ("8080", "8085")  # the same, on pages that serve parts
PROTO = "lockgate/protos/assistance.proto"
DATA = ".lockgate"  # the data directory of a page
DEMO = "make demo"
SERVE, SERVE_PARTS = "lockgate serve", "lockgate parts serve"
LEFT_OUT = "…"


class Step(NamedTuple):
    """A command of a page and what it prints."""

    command: str
    output: str


class Demo(NamedTuple):
    """A demo that runs."""

    ports: dict[str, str]
    folder: Path


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
    """Blocks of code whose first line is a comment with a file name become that file; events, a saved answer."""
    for block in read_blocks(page, ("python", "yaml")):
        name = re.match(r"# ([\w-]+\.(?:py|yaml))\n", block)
        if name:
            (folder / name[1]).write_text(block, encoding="utf-8")
    for block in read_blocks(page, ("text",)):
        if block.startswith("data: "):
            (folder / "answer.sse").write_text(block, encoding="utf-8")


def choose_ports(text: str = "") -> dict[str, str]:
    """A free port for each that a page may name; all are kept until all are chosen."""
    names = SHOWN_PORTS + (PARTS_PORTS if SERVE_PARTS in text else ())
    with ExitStack() as probes:
        found = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {shown: str(probe.getsockname()[1]) for shown, probe in zip(names, found, strict=True)}


def replace_ports(text: str, ports: dict[str, str]) -> str:
    return re.sub(rf"\b(?:{'|'.join(ports)})\b", lambda found: ports[found[0]], text)


def install(folder: Path) -> None:
    """The command, where pages have it."""
    (folder / ".venv").symlink_to(sys.prefix)


def build_clone(page: str, ports: dict[str, str], folder: Path) -> None:
    """What a reader has: the installed command, the weights, the examples, and the files that the page shows."""
    install(folder)
    (folder / DATA).mkdir()
    (folder / DATA / "weights").symlink_to(require_weights().parent)
    shutil.copytree(ROOT / "examples", folder / "examples")
    if PROTO in page:
        (folder / PROTO).parent.mkdir(parents=True)
        shutil.copy(ROOT / PROTO, folder / PROTO)
    for path in (folder / "examples").rglob("*.yaml"):
        path.write_text(replace_ports(path.read_text(encoding="utf-8"), ports), encoding="utf-8")
    write_files(page, folder)


def clean_environment() -> dict[str, str]:
    ours = ("LOCKGATE_", "AGGREGATOR_", "OTEL_", "TLS_", "OLLAMA_", "ELASTICSEARCH_", "CLASSIFIER_")
    names = ("ORCHESTRATOR_CONFIG", "HTTP_PORT", "HEALTH_HTTP_PORT", "LOG_FORMAT", "RUST_LOG", "QUIET")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours) and key not in names}
    return kept | {"PACE_S": "0.01", "LOCKGATE_DATA_DIR": DATA}  # the first: of the examples' models


@contextmanager
def running_server(command: str, ports: dict[str, str], folder: Path) -> Iterator[None]:
    """The server of a page's `lockgate serve` or `lockgate parts serve`."""
    flags = {"--http-port": "8033", "--health-http-port": "8034", "--grpc-port": "50051"}
    if SERVE_PARTS in command:
        flags = {"--detectors-port": "8080", "--chunkers-port": "8085"}
    words = ["env", *shlex.split(command), *(word for flag, port in flags.items() for word in (flag, ports[port]))]
    environ = clean_environment() | {"LOG_FORMAT": "json"}
    process = subprocess.Popen(words, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)
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
        process.communicate()
    assert process.returncode == 0


@contextmanager
def running_demo(ports: dict[str, str], folder: Path) -> Iterator[None]:
    """What `make demo` starts once everything is set up, stopped as a reader would: with Ctrl-C."""
    words = [".venv/bin/lockgate", "demo", "--http-port", ports["8033"], "--health-http-port", ports["8034"]]
    process = subprocess.Popen(words, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any("Ctrl-C stops it" in line for line in process.stdout), "the demo did not start"
        yield
    finally:
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate()
    assert (process.returncode, told.strip()) == (0, "Stopped.")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Demo]]:
    """One demo for all pages that start one: the first of them does."""
    started: list[Demo] = []
    with ExitStack() as running:

        def start() -> Demo:
            if not started:
                found = Demo(choose_ports(), tmp_path_factory.mktemp("demo"))
                build_clone("", found.ports, found.folder)
                running.enter_context(running_demo(found.ports, found.folder))
                started.append(found)
            return started[0]

        yield start


def starts_service(step: Step) -> bool:
    return SERVE in step.command or SERVE_PARTS in step.command or step.command.endswith("&")


@contextmanager
def running_behind(command: str, ports: dict[str, str], folder: Path) -> Iterator[None]:
    """What a page starts with `&`: a service on one of the ports, ended with the page."""
    words = ["env", *shlex.split(command.removesuffix("&"))]
    port = next(int(word) for word in words if word in ports.values())
    process = subprocess.Popen(words, cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or is_open(port), f"that `{command}` listens")
        assert process.poll() is None, f"{command} ended with {process.returncode}"
        yield
    finally:
        process.terminate()
        process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(command: str, folder: Path) -> str:
    """What a command prints, on both streams, in the order in which a terminal would show it."""
    words, both = ["sh", "-c", command], subprocess.STDOUT
    done = subprocess.run(words, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=both, check=False)
    return done.stdout.decode().replace("\r\n", "\n").rstrip("\n")


def is_shown(printed: str, shown: str) -> bool:
    """Whether a page shows what was printed; where it says so, with something left out."""
    pattern = ".*?".join(re.escape(part) for part in shown.split(LEFT_OUT))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tours use curl")
@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_prints_what_the_page_shows(
    name: str, tmp_path: Path, demo: Callable[[], Demo]
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    running = demo() if f"$ {DEMO}\n" in text else None
    ports = choose_ports(text)
    page = replace_ports(text, ports)
    build_clone(page, ports, tmp_path)
    steps = read_steps(page)
    if running:  # its commands come first, those of a server that the page starts itself follow
        (tmp_path / DATA / "demo").symlink_to(running.folder / DATA / "demo")  # `lockgate ask` finds the papers read
        own = next((at for at, step in enumerate(steps) if starts_service(step)), len(steps))
        steps = read_steps(replace_ports(text, running.ports))[:own] + steps[own:]
    steps = [step for step in steps if not step.command.startswith("make ")]
    assert len(steps) >= 2
    with ExitStack() as services, ExitStack() as servers:
        for step in steps:
            if SERVE in step.command or SERVE_PARTS in step.command:
                servers.close()
                servers.enter_context(running_server(step.command, ports, tmp_path))
            elif step.command.endswith("&"):
                services.enter_context(running_behind(step.command, ports, tmp_path))
            else:
                printed = run(step.command, tmp_path)
                assert printed == step.output or is_shown(printed, step.output), step.command


@pytest.mark.parametrize(
    ("printed", "shown", "fits"),
    [("a b c", "a … c", True), ("a b c", "a …", True), ("a b c", "b …", False), ("a\nb\nc", "a\n…\nc", True)],
)
def test_an_ellipsis_stands_for_what_a_page_leaves_out(printed: str, shown: str, fits: bool) -> None:
    assert is_shown(printed, shown) is fits


def test_the_readme_names_the_commands_that_the_makefile_has() -> None:
    named = set(re.findall(r"`make (\w+)`", (ROOT / "README.md").read_text(encoding="utf-8")))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
