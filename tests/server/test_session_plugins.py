# SPDX-License-Identifier: Apache-2.0
"""A session store of an installed package: it is named in the settings, opened, used by an agent, and closed."""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockgate.cli.main import build_parser
from lockgate.config.load import load_settings
from lockgate.config.report import render_check
from lockgate.config.settings import Settings
from lockgate.errors import ConfigError, ConfigFaults, Unavailable
from lockgate.gateway import open_gateway
from lockgate.plugins import find_factory, locate
from lockgate.server.ports import build_api_app
from lockgate.sessions.turns import AbortedTurn, Past, SessionKey, StoreLimits, Turn
from lockgate.testing import MemorySessionStore, ScriptedModel
from tests.server.gateways import ask
from tests.server.served_app import served

SETTINGS = """
models: {{main: {{embedded: "tests.server.test_session_plugins:open_model"}}}}
agents: {{default: {{main: main, sources: []}}}}
sessions: {{embedded: {name}, options: {options}, max_messages: 6, retention_days: 9}}
"""
QUESTION = "Thanks. Who opens the gates?"
KEY = SessionKey("anonymous", "default", "ana-1")
OPENED: list[tuple[Mapping[str, Any], "BareStore"]] = []


class BareStore:
    """A SessionStore that is no SessionArchive and no Probe."""

    def __init__(self, limits: StoreLimits) -> None:
        self.inner = MemorySessionStore(limits)
        self.times_closed = 0

    def hold(self, key: SessionKey) -> AbstractAsyncContextManager[None]:
        return self.inner.hold(key)

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        return await self.inner.load(key, limit, request_id)

    async def append(self, key: SessionKey, turn: Turn) -> None:
        assert not self.times_closed
        await self.inner.append(key, turn)

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        await self.inner.abort(key, turn)


@asynccontextmanager
async def open_bare_store(options: Mapping[str, Any]) -> AsyncIterator[BareStore]:
    if "shelf" not in options:
        raise ConfigError("is required", source="options", key="shelf")
    if options["shelf"] == "away":
        raise Unavailable("shelf", "it is being moved")
    store = BareStore(StoreLimits.read(options))
    OPENED.append((options, store))
    yield store
    store.times_closed += 1


@asynccontextmanager
async def open_memory_store(options: Mapping[str, Any]) -> AsyncIterator[MemorySessionStore]:
    yield MemorySessionStore(StoreLimits.read(options))


@asynccontextmanager
async def open_model(options: Mapping[str, Any]) -> AsyncIterator[ScriptedModel]:
    yield ScriptedModel(["Gates ", "open."])


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is installed that registers two session stores."""
    info = tmp_path / "packages" / "shelves-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n")
    stores = [f"{name} = {__name__}:open_{name}_store" for name in ("bare", "memory")]
    (info / "entry_points.txt").write_text("\n".join(["[lockgate.sessions]", *stores, ""]))
    monkeypatch.syspath_prepend(info.parent)
    OPENED.clear()


def load(tmp_path: Path, name: str = "bare", options: str = "{shelf: top}") -> Settings:
    path = tmp_path / "config.yaml"
    path.write_text(SETTINGS.format(name=name, options=options))
    return load_settings(config_path=path, flags={}, environ={"LOCKGATE_DATA_DIR": str(tmp_path)})


async def say(port: int, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    body = {"model": "brunix", "stream": False, "session_id": KEY.id, "messages": messages}
    answer = await ask(port, "/api/chat", body)
    assert answer.status == 200, answer
    return str(answer.json()["message"]["content"])


async def test_a_turn_goes_into_the_store_of_a_plugin(tmp_path: Path) -> None:
    async with open_gateway(load(tmp_path)) as gateway, served(build_api_app(gateway)) as port:
        [(options, store)] = OPENED
        assert options == {"shelf": "top", "max_messages": 6, "retention_days": 9}
        assert await say(port, QUESTION) == "Gates open."
        past = await store.load(KEY, 10)
        assert [(turn.question, turn.answer) for turn in past.turns] == [(QUESTION, "Gates open.")]
        assert "sessions" not in gateway.probes
        assert store.times_closed == 0
    assert store.times_closed == 1
    assert not (tmp_path / "sessions.db").exists()


async def test_a_store_is_named_by_module_and_attribute_too(tmp_path: Path) -> None:
    name = f'"{__name__}:open_bare_store"'
    async with open_gateway(load(tmp_path, name)) as gateway, served(build_api_app(gateway)) as port:
        await say(port, QUESTION)
        [(_, store)] = OPENED
        assert len((await store.load(KEY, 10)).turns) == 1


@pytest.mark.parametrize(
    ("name", "options", "key", "words"),
    [
        ("gone", "{}", "sessions.embedded", "no session store `gone`; known: bare, memory, postgres, sqlite"),
        ("bare", "{}", "sessions.options.shelf", "is required"),
        ("bare", "{max_messages: 3}", "sessions.options.max_messages", "write it as `sessions.max_messages`"),
        ('"json:loads"', "{}", "sessions.embedded", "`json:loads` cannot be opened: TypeError"),
    ],
)
async def test_a_store_that_cannot_be_opened_is_a_fault_of_the_settings(
    tmp_path: Path, name: str, options: str, key: str, words: str
) -> None:
    with pytest.raises((ConfigError, ConfigFaults)) as raised:
        async with open_gateway(load(tmp_path, name, options)):
            pass
    fault = raised.value.faults[0] if isinstance(raised.value, ConfigFaults) else raised.value
    assert (fault.key, fault.source) == (key, str(tmp_path / "config.yaml"))
    assert fault.message.startswith(words)


async def test_a_store_that_is_unavailable_says_so_itself(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="it is being moved"):
        async with open_gateway(load(tmp_path, options="{shelf: away}")):
            pass


def test_check_says_where_the_store_comes_from(tmp_path: Path) -> None:
    report = render_check(load(tmp_path), locate)
    assert "sessions    bare, kept 9 days, 6 messages each" in report
    assert f"{__name__}:open_bare_store" in report


def run_list(settings: Settings) -> int:
    options = build_parser().parse_args(["sessions", "list"], argparse.Namespace(load=lambda _: settings))
    return int(options.run(options))


def test_operators_list_the_sessions_of_a_store_that_is_an_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_list(load(tmp_path, "memory", "{}")) == 0
    assert capsys.readouterr().err == "no sessions\n"


def test_operators_hear_that_a_store_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`bare` cannot list, show or delete sessions"):
        run_list(load(tmp_path))


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_our_own_stores_come_by_the_same_way(name: str) -> None:
    assert callable(find_factory("lockgate.sessions", name))
