# SPDX-License-Identifier: Apache-2.0
"""What the demo is made of: the papers of the library, the questions about them, and the settings that serve them."""

import asyncio
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockgate.cli import demo
from lockgate.cli.demo import (
    DOCUMENTS,
    MAX_SOURCES,
    SAMPLES,
    DemoSource,
    check_weights,
    find_folders,
    list_unused_variables,
    load_demo_settings,
    prepare_demo,
)
from lockgate.cli.main import build_parser
from lockgate.config.settings import Settings
from lockgate.errors import ConfigError
from lockgate.gate.values import Detection
from lockgate.gateway import open_gateway
from lockgate.guard.detectors import Rules, choose
from lockgate.guard.stream import detect_contents
from lockgate.server.acceptors import is_loopback
from tests.weights import require_weights

FILES = sorted(DOCUMENTS.glob("*/*.md"))
STORY = yaml.safe_load(SAMPLES.read_text(encoding="utf-8"))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with weights and nothing else."""
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "weights").symlink_to(require_weights("smollm2").parent)
    return folder


def load(*arguments: str, data_dir: Path | None = None) -> Settings:
    words = ["demo", *arguments, *(["--data-dir", str(data_dir)] if data_dir else [])]
    return load_demo_settings(build_parser().parse_args(words))


def test_there_are_enough_papers_each_short_enough_for_a_small_model() -> None:
    assert 30 <= len(FILES) <= 60
    for file in FILES:
        title, body = file.read_text(encoding="utf-8").split("\n\n", 1)
        assert title.startswith("# ")
        assert 40 <= len(body.split()) <= 90, file
    titles = [file.read_text(encoding="utf-8").splitlines()[0] for file in FILES]
    assert len(set(titles)) == len(titles)


def test_every_folder_is_a_source_that_requests_may_name() -> None:
    settings = load()
    assert find_folders(DOCUMENTS).keys() == settings.sources.keys()
    assert all(one.expose for one in settings.sources.values())
    assert len(settings.sources) <= settings.aggregator.max_data_sources == MAX_SOURCES


def test_nobody_outside_of_this_machine_can_reach_it() -> None:
    settings = load()
    listeners = [one for one in settings.listeners if one is not None]
    assert [one.name for one in listeners] == ["api", "health"]
    assert all(is_loopback(one.host) for one in listeners)
    assert settings.server.playground
    assert settings.server.trace
    assert settings.server.samples == SAMPLES


def test_every_sample_names_what_there_is() -> None:
    settings = load()
    for sample in STORY["samples"]:
        assert sample.keys() - {"sources"} == {"title", "question", "policy", "shows"}
        assert sample["policy"] in settings.policies
        assert set(sample.get("sources", ())) <= settings.sources.keys()
    titles = [sample["title"] for sample in STORY["samples"]]
    assert len(set(titles)) == len(titles)


async def read_all(texts: dict[str, str], names: tuple[str, ...]) -> dict[str, list[Detection]]:
    settings = replace(load(data_dir=require_weights("smollm2").parent.parent), models={}, sources={})
    async with open_gateway(settings) as gateway:
        guards = choose(gateway.guards, {name: {} for name in names}, Rules()).contents
        found = {name: await detect_contents(text, guards) for name, text in texts.items()}
    return {name: list(one) for name, one in found.items() if one}


async def test_every_guard_has_something_to_find_and_only_where_it_was_put() -> None:
    texts = {file.stem: file.read_text(encoding="utf-8") for file in FILES}
    found = await read_all(texts, ("pii", "toxicity", "prompt_injection", "secrets", "codewords"))
    kinds = {name: {(one.detector_id, one.detection) for one in several} for name, several in found.items()}
    assert kinds == {
        "suggestion-box": {("prompt_injection", "PromptInjection")},
        "contact-list": {("pii", "EmailAddress"), ("pii", "PhoneNumber"), ("pii", "IBAN")},
        "treasure-hunt": {("codewords", "Keyword")},
    }
    assert all(one.score > 0.9 for one in found["suggestion-box"])


async def test_of_the_questions_only_the_insult_is_found() -> None:
    texts = {sample["title"]: sample["question"] for sample in STORY["samples"]}
    found = await read_all(texts, ("pii", "toxicity", "prompt_injection", "language", "secrets"))
    assert [(name, one.detector_id) for name, several in found.items() for one in several] == [
        ("An insult", "toxicity")
    ]


def test_variables_of_another_server_do_not_speak_into_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CONFIG", "/nowhere.yaml")
    monkeypatch.setenv("LOCKGATE_SERVER__HOST", "0.0.0.0")
    monkeypatch.setenv("LOCKGATE_NO_SUCH_SETTING", "1")
    monkeypatch.setenv("AGGREGATOR_PORT", "8001")
    monkeypatch.setenv("OTLP_EXPORT", "traces")
    monkeypatch.setenv("HTTP_PORT", "0")
    settings = load("--health-http-port", "0")
    assert settings.server.host == "127.0.0.1"
    assert (settings.server.http_port, settings.server.health_port) == (0, 0)
    assert settings.listeners.aggregator is None
    assert settings.otlp.export == ()
    names = {
        "ORCHESTRATOR_CONFIG",
        "LOCKGATE_SERVER__HOST",
        "LOCKGATE_NO_SUCH_SETTING",
        "AGGREGATOR_PORT",
        "OTLP_EXPORT",
    }
    assert names <= set(list_unused_variables())
    assert "HTTP_PORT" not in list_unused_variables()


def test_index_files_follow_the_documents(data_dir: Path, tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    for name in ("hours", "fees"):
        shutil.copytree(DOCUMENTS / name, papers / name)
    settings = load("--documents", str(papers), data_dir=data_dir)
    count = len(list(papers.glob("*/*.md")))
    assert prepare_demo(settings, papers) == DemoSource(count, count)
    assert prepare_demo(settings, papers) == DemoSource(count, 0)
    (papers / "hours" / "summer.md").unlink()
    (papers / "fees" / "printing.md").write_text("# Printing\n\nA printed page costs 7 pence.\n")
    (papers / "fees" / "parking.md").write_text("# Parking\n\nParking is free.\n")
    assert prepare_demo(settings, papers) == DemoSource(count, 3)
    texts = asyncio.run(_find(settings, "fees", "What does a printed page cost?"))
    assert any("7 pence" in text for text in texts)
    assert not any("10 pence" in text for text in texts)


async def _find(settings: Settings, source: str, question: str) -> list[str]:
    async with open_gateway(replace(settings, models={}, detectors={}, policies={})) as gateway:
        return [one.text for one in await gateway.opened.sources[source].source.search(question, 3)]


def test_documents_of_ones_own_have_index_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    own, library = load("--documents", str(tmp_path)), load()
    assert list(own.sources) == ["notes"]
    assert own.server.samples is None
    files = {one.options["file"] for settings in (own, library) for one in settings.sources.values()}
    assert len(files) == 1 + len(library.sources)
    assert all(file.startswith("demo/") for file in files)
    assert list(load("--documents", str(tmp_path / "notes")).sources) == ["notes"]


def test_folders_that_cannot_be_sources_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        find_folders(tmp_path / "none")
    (tmp_path / "a b").mkdir()
    with pytest.raises(ConfigError, match="letters, digits"):
        find_folders(tmp_path)
    (tmp_path / "a b").rmdir()
    for number in range(MAX_SOURCES + 1):
        (tmp_path / f"s{number}").mkdir()
    with pytest.raises(ConfigError, match="has 11 folders"):
        find_folders(tmp_path)


def test_without_weights_it_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no weights of minilm, .*smollm2: run `lockgate setup`"):
        prepare_demo(load(data_dir=tmp_path))
    with pytest.raises(ConfigError) as caught:
        check_weights(load("--model", "http://127.0.0.1:1/v1", "--model-name", "x", data_dir=tmp_path))
    assert "smollm2" not in str(caught.value)


_LISTED = {"data": [{"id": "first"}, {"id": "second"}]}


class _ModelServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(_LISTED if self.headers["authorization"] == "Bearer pass" else {}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model_url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _ModelServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def test_a_server_is_asked_for_the_name_of_its_model(model_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "pass")
    model = load("--model", model_url + "/", "--model-token-env", "MY_TOKEN").models["main"]
    assert model.openai is not None
    assert (model.openai.url, model.openai.model, model.expose) == (model_url, "first", True)
    assert model.openai.api_token_value is not None
    assert model.openai.api_token_value.reveal() == "pass"
    with pytest.raises(ConfigError, match=r"does not list its models .* name one with --model-name"):
        load("--model", model_url)
    named = load("--model", model_url, "--model-name", "mine").models["main"].openai
    assert named is not None
    assert named.model == "mine"


def test_a_file_of_ones_own_is_the_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    with pytest.raises(ConfigError, match="is no file; give the address of a server"):
        load("--model", str(file))
    file.write_bytes(b"GGUF")
    model = load("--model", str(file)).models["main"]
    assert (model.embedded, dict(model.options)) == ("llamacpp", {"path": str(file)})


@pytest.mark.parametrize("arguments", [["--model-name", "x"], ["--model-token-env", "X"]])
def test_a_name_without_a_server_is_refused(arguments: list[str]) -> None:
    options = build_parser().parse_args(["demo", *arguments])
    with pytest.raises(ConfigError, match="name the server too, with --model"):
        demo.run_demo(options)


def test_the_welcome_tells_where_and_what_to_try() -> None:
    words = demo.build_welcome(load(), DemoSource(49, 0), "http://127.0.0.1:8033")
    assert "  In the browser   http://127.0.0.1:8033/\n" in words
    assert ' ask --url http://127.0.0.1:8033 "How long may I keep a book?"\n' in words
    body = json.loads(words.split("-d '\n")[1].split("'\n")[0])
    assert body["detectors"] == {"policy": "library"}
    assert words.endswith("Ctrl-C stops it.\n")
