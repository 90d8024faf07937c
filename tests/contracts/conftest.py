# SPDX-License-Identifier: Apache-2.0
"""The servers of parts that several tests share, started when first asked for."""

from collections.abc import Iterator

import pytest

from tests.contracts.parts_process import PartsProcess, serving_parts

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
        "LOCKGATE_LIMITS__REQUEST_TIMEOUT_S": "1",
    }
    with serving_parts(directory, ["--config-path", "config.yaml"], **limits) as process:
        yield process
