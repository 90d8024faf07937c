# SPDX-License-Identifier: Apache-2.0
"""The servers of parts that several tests share, started when first asked for; and patience with what must succeed."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from lockgate.backends import grpc, http, postgres, upstreams
from lockgate.index.hybrid_search import DoubleSearch
from tests.contracts.parts_process import PartsProcess, serving_parts
from tests.waits import HANG_S

CONFIGURED = """
detectors:
  words: {embedded: keywords, chunker_id: far, options: {keywords: [tea, 茶]}}
  chat: {type: text_chat, embedded: keywords, options: {keywords: [tea]}}
  answer: {type: text_generation, embedded: keywords, options: {keywords: [tea]}}
  claim: {type: text_context_doc, embedded: keywords, options: {keywords: [tea]}}
  away: {type: text_contents, chunker_id: sentence, default_threshold: 0.5, service: {hostname: nowhere.example}}
chunkers:
  far: {type: sentence, service: {hostname: nowhere.example}}
  whole: {embedded: whole_doc_chunker}
  short: {embedded: sentence, options: {max_chars: 16}}
callers: {app: {key_env: APP_KEY}}
"""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit of the clients' own ends what a test wants to succeed."""
    monkeypatch.setattr(http, "PROBE_TIMEOUT_S", HANG_S)
    monkeypatch.setattr(grpc, "_PROBE_TIMEOUT_S", HANG_S)
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", HANG_S)
    monkeypatch.setattr(upstreams, "KEEP_ALIVE_S", HANG_S)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The halves of double searches that have come to their end."""
    legs: list[str] = []
    search_half = DoubleSearch._try

    async def note(double: DoubleSearch, leg: str, search: Callable[[], Awaitable[Any]]) -> Any:
        result = await search_half(double, leg, search)
        legs.append(leg)
        return result

    monkeypatch.setattr(DoubleSearch, "_try", note)
    return legs


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartsProcess]:
    """The embedded default."""
    with serving_parts(tmp_path_factory.mktemp("parts")) as process:
        yield process


@pytest.fixture(scope="session")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartsProcess]:
    """Parts of a config file, with small limits."""
    directory = tmp_path_factory.mktemp("configured")
    (directory / "config.yaml").write_text(CONFIGURED, encoding="utf-8")
    limits = {
        "APP_KEY": "k" * 20,
        "LOCKGATE_LIMITS__BODY_BYTES": "1000",
        "LOCKGATE_LIMITS__MAX_HELD_CHARS": "500",
        "LOCKGATE_LIMITS__MAX_STREAMS": "1",
    }
    with serving_parts(directory, ["--config-path", "config.yaml"], **limits) as process:
        yield process
