# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.errors import BrokeProtocol
from lockgate.gate.batcher import ChunkAligner, ChunkerInput
from lockgate.gate.values import Chunk, Frame


def _aligner(text: str, *, is_whole: bool = False, size: int = 3) -> ChunkAligner:
    chunker_input = ChunkerInput()
    for start in range(0, len(text), size):
        chunker_input.append(Frame(start, text[start : start + size]))
    return ChunkAligner("c", chunker_input, is_whole=is_whole)


@given(st.text(alphabet="a b中😀\n", min_size=1, max_size=30), st.sets(st.integers(1, 29)), st.integers(1, 5))
def test_chunks_that_join_to_the_text_are_placed_whatever_the_frames(text: str, cuts: set[int], size: int) -> None:
    aligner = _aligner(text, size=size)
    borders = sorted({0, len(text)} | {cut for cut in cuts if cut < len(text)})
    for start, end in zip(borders, borders[1:], strict=False):
        chunk = Chunk(start, end, text[start:end])
        assert aligner.place(chunk)
    assert aligner.finish() == len(text)


@given(st.text(alphabet="a b", min_size=2, max_size=20), st.data())
def test_a_gap_is_fine_exactly_when_it_is_white_space(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    aligner = _aligner(text)
    gaps = (text[:start] + text[end:]).strip()
    try:
        aligner.place(Chunk(start, end, text[start:end]))
        aligner.finish()
    except BrokeProtocol:
        assert gaps
    else:
        assert not gaps


@given(st.text(alphabet="ab", min_size=1, max_size=10), st.text(alphabet="ab", min_size=1, max_size=10))
def test_text_that_was_not_sent_is_the_chunkers_fault(text: str, said: str) -> None:
    aligner = _aligner(text)
    chunk = Chunk(0, len(said), said)
    if text.startswith(said):
        assert aligner.place(chunk)
    else:
        with pytest.raises(BrokeProtocol, match="chunker `c`"):
            aligner.place(chunk)


def test_an_overlap_in_a_stream_is_the_chunkers_fault() -> None:
    aligner = _aligner("abcdef")
    aligner.place(Chunk(0, 4, "abcd"))
    with pytest.raises(BrokeProtocol, match="overlaps"):
        aligner.place(Chunk(3, 6, "def"))


def test_an_empty_chunk_is_passed_over() -> None:
    aligner = _aligner("abc")
    assert not aligner.place(Chunk(0, 0, ""))
    assert aligner.place(Chunk(0, 3, "abc"))


def test_an_empty_text_needs_no_chunk() -> None:
    for chunks in ([], [Chunk(0, 0, "")]):
        _aligner("", is_whole=True).place_all(chunks)
    assert not _aligner("").place(Chunk(0, 0, ""))


def test_of_a_whole_text_chunks_may_overlap_and_come_in_any_order() -> None:
    aligner = _aligner("abcdef", is_whole=True)
    aligner.place_all([Chunk(start, end, "abcdef"[start:end]) for start, end in ((3, 6), (0, 4), (1, 2))])
    assert aligner.finish() == 6


@given(st.text(alphabet="a b\n", max_size=12), st.data())
def test_every_solid_character_of_a_whole_text_lies_in_a_chunk_or_the_chunker_has_failed(
    text: str, data: st.DataObject
) -> None:
    places = st.integers(0, len(text))
    spans = [sorted(span) for span in data.draw(st.lists(st.tuples(places, places), max_size=6))]
    covered = {at for start, end in spans for at in range(start, end)}
    unread = [at for at, char in enumerate(text) if not char.isspace() and at not in covered]
    aligner = _aligner(text, is_whole=True)
    chunks = [Chunk(start, end, text[start:end]) for start, end in spans]
    if unread:
        with pytest.raises(BrokeProtocol, match="chunker `c`: text at"):
            aligner.place_all(chunks)
    else:
        aligner.place_all(chunks)


@given(st.text(alphabet="ab", min_size=1, max_size=8), st.text(alphabet="ab", min_size=1, max_size=8), st.data())
def test_a_chunk_of_a_whole_text_is_what_stands_at_its_place(text: str, said: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(-1, len(text)))
    chunks = [Chunk(0, len(text), text), Chunk(start, start + len(said), said)]
    aligner = _aligner(text, is_whole=True)
    if start >= 0 and text.startswith(said, start):
        aligner.place_all(chunks)
    else:
        with pytest.raises(BrokeProtocol, match="chunker `c`"):
            aligner.place_all(chunks)


@pytest.mark.parametrize("chunk", [Chunk(-1, 1, "a"), Chunk(2, 1, ""), Chunk(0, 7, "abcdefg")])
def test_an_impossible_span_is_the_chunkers_fault(chunk: Chunk) -> None:
    with pytest.raises(BrokeProtocol, match="outside"):
        _aligner("abcdef").place(chunk)


def test_frames_that_everybody_has_placed_are_forgotten_and_the_rest_is_still_there() -> None:
    chunker_input = ChunkerInput()
    aligners = [ChunkAligner(name, chunker_input) for name in "ab"]
    for number in range(10):
        chunker_input.append(Frame(number, "xy"))
    assert [frame.number for frame in aligners[0].feed()] == list(range(10))
    for aligner in aligners:
        aligner.place(Chunk(0, 7, "xyxyxyx"))
    chunker_input.forget(min(aligner.reached for aligner in aligners))
    assert [frame.number for frame in chunker_input.frames] == list(range(3, 10))
    for aligner in aligners:
        aligner.place(Chunk(7, 20, "yxyxyxyxyxyxy"))
        assert aligner.finish() == 20
