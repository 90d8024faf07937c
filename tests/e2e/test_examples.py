# SPDX-License-Identifier: Apache-2.0
"""The examples work: a deployment, whose papers agree with each other, and the library that answers questions."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from lockgate.cli.main import build_parser
from lockgate.config.load import load_settings
from tests.server.processes import clean_environment
from tests.waits import wait_until

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "examples" / "compose"
KEY = "sk-web"


def load(name: str) -> Any:
    return yaml.safe_load((COMPOSE / name).read_text(encoding="utf-8"))


def settings_of(name: str) -> Any:
    return load_settings(config_path=COMPOSE / name, flags={}, environ={"WEB_KEY": KEY})


def test_every_service_that_the_gateway_calls_is_in_the_compose_file() -> None:
    gateway, services = settings_of("gateway.yaml"), load("compose.yaml")["services"]
    called = [part.service for part in (*gateway.detectors.values(), *gateway.chunkers.values()) if part.service]
    assert {one.hostname for one in called} == {"parts"}
    assert {one.hostname for one in [*called, gateway.openai.service]} <= set(services)
    assert {one.port for one in called} == {8080, 8085}  # where `lockgate parts serve` listens
    assert str(gateway.openai.service.port) in services["model"]["command"]


def test_the_parts_offer_what_the_gateway_asks_for() -> None:
    gateway, parts = settings_of("gateway.yaml"), settings_of("parts.yaml")
    remote = {name: part.type for name, part in gateway.detectors.items() if part.service}
    assert remote == {name: part.type for name, part in parts.detectors.items()}
    asked = {name for name, part in gateway.chunkers.items() if part.service}
    assert asked <= {name for name, part in parts.chunkers.items() if part.embedded}


def test_the_commands_of_the_compose_file_are_ours() -> None:
    services = load("compose.yaml")["services"]
    for name in ("gateway", "parts"):
        program, *arguments = services[name]["command"]
        assert program == "lockgate"
        options = build_parser().parse_args(arguments)
        assert f"./{options.config_path.name}:{options.config_path}:ro" in services[name]["volumes"]
    grace_s = float(services["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings_of("gateway.yaml").server.shutdown_timeout_s
    copied = re.findall(r"^COPY (.+) \S+$", (COMPOSE / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [word for line in copied for word in line.split() if not (ROOT / word).exists()] == []


def choose_ports(count: int) -> list[int]:
    with ExitStack() as probes:
        return [probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@contextmanager
def deployment(folder: Path) -> Iterator[int]:
    """The script without containers, on free ports; the API port."""
    names = ("MODEL_PORT", "DETECTORS_PORT", "CHUNKERS_PORT", "HTTP_PORT", "HEALTH_HTTP_PORT")
    ports = dict(zip(names, choose_ports(len(names)), strict=True))
    environ = clean_environment(WEB_KEY=KEY, TMPDIR=str(folder), BIN=str(Path(sys.executable).parent))
    environ |= {name: str(port) for name, port in ports.items()}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", str(COMPOSE / "without_containers.sh")], cwd=ROOT, env=environ, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: process.poll() is not None or all(map(_is_open, ports.values())), "that all listen")
        assert process.poll() is None, (folder / "log").read_text()
        yield ports["HTTP_PORT"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert not any(_is_open(port) for port in ports.values())


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def post(port: int, text: str, **headers: str) -> str:
    messages = [{"role": "user", "content": text}]
    body = {"model": "echo", "stream": True, "messages": messages, "detectors": {"policy": "support"}}
    request = Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **headers},
    )
    with urlopen(request) as answer:
        whole: str = answer.read().decode()
        return whole


@pytest.mark.skipif(os.name != "posix", reason="a script for sh")
def test_the_deployment_works_without_containers(tmp_path: Path) -> None:
    with deployment(tmp_path) as port:
        whole = post(port, "The key is bluebird. Fine.", Authorization=f"Bearer {KEY}")
        assert "".join(re.findall(r'"content":"(.*?)"', whole)) == "The key is ████████. Fine."
        assert whole.endswith("data: [DONE]\n\n")
        assert "I cannot help with that." in post(port, "Mail ana@example.org", Authorization=f"Bearer {KEY}")
        with pytest.raises(HTTPError, match="401") as refused:
            post(port, "Hello", Authorization="Bearer none")
        refused.value.close()


@pytest.fixture
def space() -> Iterator[str]:
    """The library, listening; its address."""
    (port,) = choose_ports(1)
    command = [sys.executable, str(ROOT / "examples" / "echo_space.py"), str(port)]
    process = subprocess.Popen(command, env=clean_environment(PACE_S="0"), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or _is_open(port), "that the library listens")
        assert process.poll() is None
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def query(space: str, slug: str, body: dict[str, Any], **headers: str) -> str:
    address = f"{space}/api/v1/endpoints/{slug}/query"
    request = Request(address, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    with urlopen(request) as answer:
        whole: str = answer.read().decode()
        return whole


def search(space: str, slug: str, question: str, limit: int = 5, threshold: float = 0.5) -> list[tuple[str, float]]:
    body = {"messages": question, "limit": limit, "similarity_threshold": threshold, "include_metadata": True}
    found = json.loads(query(space, slug, body))["references"]["documents"]
    return [(one["metadata"]["title"], one["similarity_score"]) for one in found]


def test_sources_of_the_library_keep_to_limit_and_threshold(space: str) -> None:
    question = "Is there a fine for a book that I lost?"
    assert search(space, "rules", question) == [("Found in a book", 1.0), ("Lending", 0.67), ("Lost books", 0.67)]
    assert search(space, "rules", question, limit=1) == [("Found in a book", 1.0)]
    assert search(space, "rules", question, threshold=0.9) == [("Found in a book", 1.0)]
    assert search(space, "hours", question, threshold=0.0) == []


def test_the_model_of_the_library_says_the_same_whole_and_streamed(space: str) -> None:
    documents = "<documents>\n<source>ana/a&amp;b</source>\n<content>\nOne &lt; two. Three.\n</content>\n</documents>\n"
    messages = [{"role": "user", "content": f"{documents}\n<source>x/y</source>\n<content>\nNo.\n</content>"}]
    whole = json.loads(query(space, "echo", {"messages": messages, "stream": False}))["summary"]
    assert whole["message"]["content"] == "One < two [ana/a&b]."
    events = re.findall(r"^data: (.*)$", query(space, "echo", {"messages": messages, "stream": True}), re.MULTILINE)
    *pieces, usage, end = events
    assert "".join([json.loads(piece)["content"] for piece in pieces]) == "One < two [ana/a&b]."
    assert len(pieces) == json.loads(usage)["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 4
    assert end == "[DONE]"
    dream = json.loads(query(space, "dreamer", {"messages": messages}))["summary"]["message"]["content"]
    assert dream.startswith("One < two [ana/a&b]. ")
    assert "[absent/nights]" in dream


@pytest.mark.parametrize(("slug", "status"), [("attic", 404), ("shift", 403), ("echo", 404)])
def test_the_library_refuses_what_it_does_not_have(space: str, slug: str, status: int) -> None:
    body = {"messages": "Who opens?", "limit": 5, "similarity_threshold": 0.5}
    with pytest.raises(HTTPError, match=str(status)) as refused:
        query(space, slug, body)
    assert json.loads(refused.value.read())["detail"]
    refused.value.close()
