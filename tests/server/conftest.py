# SPDX-License-Identifier: Apache-2.0
"""The servers that many tests share: one per way of being configured, started when first asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import ServerProcess, running

MIXED = """
detectors:
  words: {embedded: keywords, chunker_id: word, options: {keywords: [tea, 茶]}}
  pii: {embedded: pii, chunker_id: sentence}
  paragraphs: {embedded: keywords, chunker_id: paragraph, options: {keywords: [tea, paragraph]}}
  whole: {embedded: keywords, chunker_id: whole_doc_chunker, options: {keywords: [end]}}
  regex: {embedded: regex}
  chat: {type: text_chat, embedded: keywords, options: {keywords: [tea]}}
  slow: {embedded: "tests.server.slow_parts:open_slow_detector"}
  broken: {embedded: "tests.server.slow_parts:open_broken_detector"}
server: {host: 127.0.0.1}
"""


@pytest.fixture(scope="session")
def mixed_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "mixed.yaml"
    path.write_text(MIXED)
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The embedded default."""
    with running(tmp_path_factory.mktemp("default")) as process:
        yield process


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, mixed_config: Path) -> Iterator[ServerProcess]:
    """Detectors on different chunkers, of different types, slow and broken ones."""
    with running(tmp_path_factory.mktemp("mixed"), ["--config-path", str(mixed_config)]) as process:
        yield process


@pytest.fixture(scope="session")
def trailing(tmp_path_factory: pytest.TempPathFactory, mixed_config: Path) -> Iterator[ServerProcess]:
    """Whole-document detectors trail."""
    arguments = ["--config-path", str(mixed_config)]
    with running(tmp_path_factory.mktemp("trailing"), arguments, LOCKGATE_WHOLE_DOCUMENT="trail") as process:
        yield process


@pytest.fixture(scope="session")
def fms(tmp_path_factory: pytest.TempPathFactory, mixed_config: Path) -> Iterator[ServerProcess]:
    """As the existing orchestrator."""
    arguments = ["--config-path", str(mixed_config)]
    with running(tmp_path_factory.mktemp("fms"), arguments, LOCKGATE_COMPAT="fms") as process:
        yield process


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory, mixed_config: Path) -> Iterator[ServerProcess]:
    """Small limits."""
    limits = {
        "LOCKGATE_LIMITS__BODY_BYTES": "1000",
        "LOCKGATE_LIMITS__LINE_BYTES": "1000",
        "LOCKGATE_LIMITS__MAX_HELD_CHARS": "500",
        "LOCKGATE_LIMITS__MAX_STREAMS": "1",
        "LOCKGATE_SERVER__DOCS": "true",
    }
    arguments = ["--config-path", str(mixed_config)]
    with running(tmp_path_factory.mktemp("narrow"), arguments, **limits) as process:
        yield process


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory, mixed_config: Path) -> Iterator[ServerProcess]:
    """A request has half a second."""
    arguments = ["--config-path", str(mixed_config)]
    with running(tmp_path_factory.mktemp("hasty"), arguments, LOCKGATE_LIMITS__REQUEST_TIMEOUT_S="0.5") as process:
        yield process
