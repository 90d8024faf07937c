# SPDX-License-Identifier: Apache-2.0
"""What is opened for agents: who is asked how it is, and what is wrong with it."""

from pathlib import Path

import pytest

from lockgate.config.load import load_settings
from lockgate.config.settings import Settings
from lockgate.errors import ConfigFaults
from lockgate.gateway import open_gateway

NOWHERE = "http://127.0.0.1:9"
PARTS = f"""
models: {{main: {{ollama: {{url: "{NOWHERE}", model: main}}}}}}
sources: {{docs: {{elasticsearch: {{url: "{NOWHERE}", index: docs}}, expose: true}}}}
embeddings: {{ollama: {{url: "{NOWHERE}", model: vectors}}}}
"""
AGENT = "agents: {default: {main: main, sources: [docs]}}\n"


def load(folder: Path, text: str) -> Settings:
    config = folder / "config.yaml"
    config.write_text(text, encoding="utf-8")
    return load_settings(config_path=config, flags={}, environ={"LOCKGATE_DATA_DIR": str(folder)})


async def test_an_embedder_that_runs_elsewhere_is_asked_how_it_is_and_needed(tmp_path: Path) -> None:
    async with open_gateway(load(tmp_path, PARTS + AGENT)) as gateway:
        names = {"models.main", "sources.docs", "embeddings", "sessions"}
        assert set(gateway.opened.probes) == set(gateway.opened.needed) == names
        health = (await gateway.probe())["embeddings"]
    assert health.status != "HEALTHY"


async def test_without_agents_nothing_is_needed(tmp_path: Path) -> None:
    async with open_gateway(load(tmp_path, PARTS)) as gateway:
        assert "embeddings" in gateway.probes
        assert not gateway.opened.needed


async def test_what_is_wrong_with_an_index_is_told_beside_the_faults_of_parts(tmp_path: Path) -> None:
    sources = """
sources:
  gone: {embedded: "nowhere:at_all", expose: true}
  index: {embedded: index, options: {colour: red}, expose: true}
"""
    settings = load(tmp_path, sources)
    with pytest.raises(ConfigFaults) as told:
        async with open_gateway(settings):
            pass
    assert [fault.key for fault in told.value.faults] == ["sources.gone.embedded", "sources.index.options.colour"]
