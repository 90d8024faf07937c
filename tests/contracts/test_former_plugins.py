# SPDX-License-Identifier: Apache-2.0
"""Parts written for 0.6, with the methods that its pages ask for and nothing else, still work."""

import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lockgate import interfaces
from lockgate.api.endpoints import ABOUT_PATH
from lockgate.config.load import load_settings
from lockgate.gateway import Gateway, open_gateway
from lockgate.guard.detectors import DetectorAsReviewer
from lockgate.server.ports import build_api_app
from lockgate.sessions.turns import SessionKey
from tests.server.gateways import ask
from tests.server.http_client import call
from tests.server.served_app import served

PLUGIN = r'''
import asyncio
import re
from collections import defaultdict
from contextlib import asynccontextmanager

from lockgate.core.values import Chunk, Detection, Document, Frame
from lockgate.errors import InvalidRequest
from lockgate.interfaces import House, in_house


class Detector:
    lookbehind_chars = 0

    def accept(self, params, headers):
        for name in params:
            raise InvalidRequest(f"unknown parameter `{name}`")
        return self

    async def read(self, excerpts):
        return [[self._report(found) for found in re.finditer(r"[A-Z]{4,}", one.text)] for one in excerpts]

    def _report(self, found):
        return Detection(found.start(), found.end(), found[0], "Shouting", "style", 0.9)


class Chunker:
    """Cuts after each full stop."""

    async def cut(self, text):
        return [Chunk(one.start(), one.end(), one[0]) for one in re.finditer(r"[^.]+\.?|\.", text)]

    async def stream(self, frames):
        text = "".join([frame.text async for frame in frames])
        for chunk in await self.cut(text):
            yield chunk


class Model:
    async def generate(self, messages, params):
        yield Frame(0, f"Tea: {'kettle boils.' in str(messages)}. ")
        yield Frame(1, "STOP it.")


class Source:
    async def search(self, question, limit):
        return [Document("Tea", "The kettle boils.", 0.9)][:limit]


class Store:
    def __init__(self):
        self.locks = defaultdict(asyncio.Lock)
        self.turns = defaultdict(list)

    @asynccontextmanager
    async def hold(self, key):
        async with self.locks[key]:
            yield

    async def load(self, key, limit, request_id=""):
        from lockgate.sessions.turns import Past

        return Past(tuple(self.turns[key][-limit:]), None)

    async def append(self, key, turn):
        self.turns[key].append(turn)

    async def abort(self, key, turn):
        pass


STORE = Store()
HOUSES = []


def factory_of(part):
    @asynccontextmanager
    async def open_part(options):
        yield part

    return open_part


@in_house
@asynccontextmanager
async def open_detector(options, house: House):
    HOUSES.append(house)
    yield Detector()


@in_house
class OpenReviewer:
    """A factory may be a class."""

    def __init__(self, options, house):
        HOUSES.append(house)

    async def __aenter__(self):
        return Detector()

    async def __aexit__(self, *error):
        pass


open_chunker, open_model, open_source = factory_of(Chunker()), factory_of(Model()), factory_of(Source())
open_store = factory_of(STORE)
'''
CONFIG = """
chunkers: {stops: {embedded: "former_plugin:open_chunker"}}
detectors:
  shouting: {embedded: "former_plugin:open_detector", chunker_id: stops}
  reviewer: {embedded: "former_plugin:OpenReviewer", type: text_chat}
policies: {quiet: {output: {shouting: {}}, on_finding: {output: mask}}}
sources: {notes: {embedded: "former_plugin:open_source", expose: true}}
models: {parrot: {embedded: "former_plugin:open_model", expose: true}}
agents: {default: {main: parrot, sources: [notes], policy: quiet}}
sessions: {embedded: "former_plugin:open_store"}
server: {playground: true}
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the plugin; its imports warn."""
    (tmp_path / "former_plugin.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("former_plugin", "lockgate.core.values"):
        sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match="is now with_context") as warned:
        module = importlib.import_module("former_plugin")
    told = " ".join(str(one.message) for one in warned)
    assert "interfaces.House is now PartContext" in told
    return module


@pytest.fixture
async def opened(plugin: Any, tmp_path: Path) -> AsyncIterator[tuple[Gateway, int]]:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    settings = load_settings(config_path=path, flags={}, environ={"LOCKGATE_DATA_DIR": str(tmp_path)})
    async with open_gateway(settings) as gateway, served(build_api_app(gateway)) as port:
        yield gateway, port


async def test_an_agent_of_former_parts_searches_answers_is_guarded_and_remembers(
    plugin: Any, opened: tuple[Gateway, int]
) -> None:
    gateway, port = opened
    messages = [{"role": "user", "content": "When does the kettle boil?"}]
    body = {"model": "brunix", "stream": False, "session_id": "ana-1", "messages": messages}
    answer = await ask(port, "/api/chat", body)
    assert answer.status == 200, answer
    text = answer.json()["message"]["content"]
    assert text == "Tea: True. ████ it."
    [turn] = plugin.STORE.turns[SessionKey("anonymous", "default", "ana-1")]
    assert turn.answer == text
    assert set(gateway.probes) == {"stops", "sentence", "shouting", "reviewer"}


async def test_former_detectors_read_contents_and_stand_in_for_reviewers(
    plugin: Any, opened: tuple[Gateway, int], tmp_path: Path
) -> None:
    gateway, port = opened
    answer = await ask(port, "/api/v2/text/detection/content", {"content": "Go. STOP.", "detectors": {"shouting": {}}})
    assert [(one["start"], one["text"]) for one in answer.json()["detections"]] == [(4, "STOP")]
    assert isinstance(gateway.guards["reviewer"].detector, DetectorAsReviewer)
    assert [house.data_dir for house in plugin.HOUSES[-2:]] == [tmp_path, tmp_path]


async def test_a_former_model_is_named_by_the_settings(opened: tuple[Gateway, int]) -> None:
    page = (await call(opened[1], ABOUT_PATH, method="GET")).json()
    assert page["models"] == [{"id": "parrot", "kind": "embedded", "name": "former_plugin:open_model", "note": ""}]


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match=r"'lockgate\.interfaces' has no attribute 'Palace'"):
        _ = interfaces.Palace  # type: ignore[attr-defined]
