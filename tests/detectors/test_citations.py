# SPDX-License-Identifier: Apache-2.0
"""The detector of citations that name no known source."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.chunkers.machines import open_sentence_chunker
from lockgate.detectors.citations import CitationReading, CitationsDetector, open_citations_detector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.batcher import DetectionBatcher, DetectorSpec
from lockgate.gate.values import Chunk, Detection, Excerpt
from lockgate.testing import check_detector


async def _opened(options: dict[str, Any]) -> CitationsDetector:
    async with open_citations_detector(options) as detector:
        return detector


def _reading(options: dict[str, Any] | None = None, **params: Any) -> CitationReading:
    return asyncio.run(_opened(options or {})).accept(params, ())


def invented(text: str, reading: CitationReading) -> list[str]:
    (hits,) = asyncio.run(reading.read([Excerpt(text)]))
    return [hit.text for hit in hits]


def test_a_finding_is_the_item_and_says_what_it_is() -> None:
    (hits,) = asyncio.run(_reading(sources=["al/notes"]).read([Excerpt("Tea [al/notes, bo/b].")]))
    metadata = {"rule": "unknown_source"}
    assert hits == [Detection(15, 19, "bo/b", "invented_citation", "citation", 1.0, metadata=metadata)]


def test_sources_of_options_request_and_documents_all_count() -> None:
    reading = _reading({"sources": ["al/a"]}, sources=["al/b"])
    text = "[al/a] [al/b] [al/c] [faq, al/d]"
    assert invented(text, reading) == ["al/c", "faq", "al/d"]
    assert invented(text, reading.with_sources(["al/c", "faq"])) == ["al/d"]
    assert invented(text, reading.with_sources(["al/c"]).with_sources(["al/d"])) == ["faq"]
    assert invented(text, reading) == ["al/c", "faq", "al/d"]  # the first one has learnt nothing


def test_without_known_sources_every_mark_that_looks_like_one_is_reported() -> None:
    assert invented("Tea [al/a] and [faq] and [1/2].", _reading()) == ["al/a", "1/2"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See [al/guide](https://example.org/guide).", []),
        ("See [al/guide](/guide), ![al/picture](<al/picture.png>) and [al/x](#al-x).", []),
        ("See [al/guide, al/more](guide.html).", []),
        ("See [al/guide](mailto:al@example.org) and [al/notes].", ["al/notes"]),
        ("See [al/guide](page 4), [al/guide](4) and [al/guide] (https://example.org).", ["al/guide"] * 3),
        ("See [al/guide]https://example.org and [al/guide]()", ["al/guide"] * 2),
    ],
)
def test_the_text_of_a_link_is_no_citation(text: str, found: list[str]) -> None:
    assert invented(text, _reading(sources=["bo/b"])) == found


def test_a_source_counts_as_the_prompt_writes_it() -> None:
    assert invented("[R&amp;D/x] [R&D/x] [up down/x]", _reading(sources=["R&D/x", "up\ndown/x"])) == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"x": 1}, "unknown parameter `x`, expected `sources`"),
        ({"sources": "a/b"}, "`sources` must be a list, not `a/b`"),
        ({"sources": [1]}, "`sources[0]` must be a string that is not empty, not 1"),
        ({"sources": ["a/b", ""]}, "`sources[1]` must be a string that is not empty, not ``"),
        ({"sources": ["a/b"] * 65}, "`sources` has 65 entries, at most 64 are allowed"),
        ({"sources": ["a" * 513]}, "`sources[0]` has 513 characters, at most 512 are allowed"),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _reading(**params)
    assert caught.value.message == message


def test_options_may_hold_more_and_a_fault_in_them_stops_the_start() -> None:
    many = [f"al/{number}" for number in range(1_000)]
    assert invented("[al/999, al/1000]", _reading({"sources": many})) == ["al/1000"]
    with pytest.raises(ConfigError, match="options: sources: `sources` has 1001 entries, at most 1000 are allowed"):
        _reading({"sources": [*many, "al/x"]})


def test_more_findings_than_anybody_can_use_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 10000 findings"):
        invented("[a/b]" * 10_001, _reading())


async def test_it_keeps_the_contract_of_detectors() -> None:
    async with open_citations_detector({}) as detector:
        await check_detector(detector, {"sources": ["al/notes"]})


async def test_excerpts_are_told_apart() -> None:
    async with open_citations_detector({}) as detector:
        found = await detector.accept({}, ()).read(
            [Excerpt("[a/"), Excerpt("b]"), Excerpt("[c/d]"), Excerpt("e]", "[")]
        )
    assert [[hit.text for hit in hits] for hits in found] == [[], [], ["c/d"], []]


async def test_a_mark_across_a_forced_cut_is_found_once_wherever_the_cut_falls() -> None:
    mark = "[" + "x" * 200 + "/" + "y" * 200 + ",no/b]"
    async with open_sentence_chunker({"max_chars": 500}) as chunker, open_citations_detector({}) as detector:
        for shift in range(0, 500, 7):
            text = "z" * shift + mark + "z" * 700
            chunks = list(await chunker.cut(text))
            assert chunks[0].is_forced
            found = await _read_all(detector, chunks, len(text))
            assert [hit.text for hit in found] == ["x" * 200 + "/" + "y" * 200, "no/b"]


_MARKS = st.sampled_from(
    ["z" * 40, "z", "al/a", "[z]", "[al/a]", "[no/b]", "[al/a,no/b,no/c]", "[" + "no/b," * 100 + "no/c]"]
)


@given(st.lists(_MARKS, max_size=30).map("".join), st.sets(st.integers(1, 1_200), max_size=12))
def test_however_a_text_is_cut_by_force_the_findings_are_those_of_the_whole(text: str, cuts: set[int]) -> None:
    borders = sorted({0, len(text), *[cut for cut in cuts if cut < len(text)]})
    chunks = [Chunk(start, end, text[start:end], end < len(text)) for start, end in pairwise(borders)]
    detector = asyncio.run(_opened({"sources": ["al/a"]}))
    (whole,) = asyncio.run(detector.accept({}, ()).read([Excerpt(text)]))
    placed = [hit._replace(detector_id="citations") for hit in whole]
    assert asyncio.run(_read_all(detector, chunks, len(text))) == placed


async def _read_all(detector: CitationsDetector, chunks: list[Chunk], length: int) -> list[Detection]:
    """What the batcher tells when every chunk is a request of its own, as in a stream."""
    batcher = DetectionBatcher([DetectorSpec("citations", "cut", 0.5, detector.lookbehind_chars)], max_open=1)
    reading = detector.accept({}, ())
    found: list[Detection] = []
    asks = batcher.add("cut", chunks)
    asks += batcher.end("cut", length)[0]
    while asks:
        ask = asks.pop(0)
        more, progress = batcher.answer(ask, await reading.read(ask.excerpts))
        asks += more
        found += [one for step in progress for one in step.detections]
    return found
