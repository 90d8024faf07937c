# SPDX-License-Identifier: Apache-2.0
"""One suite per interface, run over every implementation."""

from collections.abc import Mapping
from typing import Any

import pytest

from lockgate.gate.values import Document, Frame, Message
from lockgate.interfaces import Chunker, DataSource, Detector, Model
from lockgate.plugins import find_factory
from lockgate.testing import (
    FixedChunker,
    ScriptedDataSource,
    ScriptedDetector,
    ScriptedModel,
    check_chunker,
    check_detector,
    find_word,
)


@pytest.mark.parametrize("name", ["sentence", "paragraph", "word", "whole_doc_chunker"])
async def test_an_embedded_chunker_keeps_its_contract(name: str) -> None:
    async with find_factory("lockgate.chunkers", name)({}) as chunker:
        await check_chunker(chunker)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("pii", {}),
        ("pii", {"entities": ["EmailAddress"]}),
        ("secrets", {}),
        ("regex", {"patterns": ["[0-9]+"]}),
        ("keywords", {"keywords": ["mail", "句"]}),
        ("format", {"format": "json"}),
        ("citations", {"sources": ["al/notes"]}),
    ],
)
async def test_an_embedded_detector_keeps_its_contract(name: str, params: Mapping[str, Any]) -> None:
    async with find_factory("lockgate.detectors", name)({}) as detector:
        await check_detector(detector, params)


async def test_the_public_fakes_keep_the_contracts_too() -> None:
    chunker: Chunker = FixedChunker(4)
    detector: Detector = ScriptedDetector(find_word("o"))
    await check_chunker(chunker)
    await check_detector(detector, {})


async def test_a_model_says_its_frames_and_stops_when_closed() -> None:
    fake = ScriptedModel(["a", "b", "c"])
    model: Model = fake
    frames = model.generate([Message("user", "hi")], {})
    assert await anext(frames) == Frame(0, "a")
    await frames.aclose()
    assert fake.was_stopped


async def test_a_source_gives_the_best_documents_first() -> None:
    source: DataSource = ScriptedDataSource([Document("b", "", 0.1), Document("a", "", 0.9)])
    assert [one.title for one in await source.search("?", 1)] == ["a"]


async def test_a_broken_chunker_is_caught_by_the_contract() -> None:
    class Forgetful(FixedChunker):
        async def cut(self, text: str) -> Any:
            return (await super().cut(text))[:-1]

    with pytest.raises(Exception, match="is in no chunk"):
        await check_chunker(Forgetful(5))
