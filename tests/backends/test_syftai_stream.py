# SPDX-License-Identifier: Apache-2.0
"""Streamed answers of a SyftAI-Space: every chunk format, in any mix, cut anywhere (A-95, A-97, A-98)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.backends.spaces import SpaceReader

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
DONE = b"data: [DONE]\n\n"


def event(chunk: Any) -> bytes:
    return b"data: " + (chunk if isinstance(chunk, str) else json.dumps(chunk)).encode() + b"\n\n"


def read(*packets: bytes) -> tuple[list[str], SpaceReader]:
    reader = SpaceReader()
    pieces = [piece for packet in packets for piece in reader.feed(packet)]
    return pieces + reader.finish(), reader


@pytest.mark.parametrize(
    ("chunk", "piece"),
    [
        ({"summary": {"message": {"content": "a"}}}, "a"),
        ({"summary": {"message": "a"}}, "a"),
        ({"choices": [{"delta": {"content": "a"}}]}, "a"),
        ({"content": "a"}, "a"),
        ({"text": "a"}, "a"),
        ({"error": None, "content": "a"}, "a"),
        ({"summary": [], "choices": {}, "text": "a"}, "a"),
        ("plain words", "plain words"),
        ("  two spaces", "  two spaces"),
        ("42", "42"),
        ("{not json", "{not json"),
        ("[1,2]", "[1,2]"),
        ('{"content": "\\ud83d"}', "\ufffd"),
        ('{"content": "a", "score": NaN}', "a"),
    ],
)
def test_every_format_is_understood(chunk: Any, piece: str) -> None:
    pieces, reader = read(event(chunk))
    assert (pieces, reader.failure, reader.has_events) == ([piece], None, True)


@pytest.mark.parametrize(
    "chunk",
    [{}, {"content": ""}, {"content": None}, {"content": 5}, {"summary": []}, {"summary": {"message": None}}, "",
     {"choices": []}, {"choices": [None]}, {"choices": [{"delta": None}]}, {"choices": [{"delta": {"role": "x"}}]},
     {"type": "ping"}],
)  # fmt: skip
def test_a_chunk_without_text_is_no_piece(chunk: Any) -> None:
    pieces, reader = read(event({"content": "a"}) + event(chunk) + event({"content": "b"}))
    assert (pieces, reader.failure) == (["a", "b"], None)


def test_the_space_after_the_colon_may_be_missing_and_other_lines_are_ignored() -> None:
    sent = b'\xef\xbb\xbf: hi\nid: 1\nevent: x\ndata:{"content":"a"}\n\nretry: 5\n\ndata:b\r\n\r\ndata\n\n'
    assert read(sent)[0] == ["a", "b"]


def test_an_event_of_several_lines_is_one_text() -> None:
    assert read(b"data: one\ndata: two\n\n")[0] == ["one\ntwo"]
    assert read(b'data: {\ndata: "content": "a"\ndata: }\n\n')[0] == ["a"]


def test_chunks_whose_sender_forgets_the_empty_lines_are_told_apart() -> None:
    pieces, reader = read(b'data: {"content":"a"}\ndata: {"content":"b"}\ndata: [DONE]\ndata: {"content":"c"}\n')
    assert pieces == ["a", "b"]
    assert reader.is_done


def test_the_last_event_needs_no_end() -> None:
    assert read(event({"content": "a"}) + b'data: {"content":"b"}')[0] == ["a", "b"]


def test_nothing_counts_after_the_end() -> None:
    pieces, reader = read(event({"content": "a"}) + DONE + event({"content": "b"}) + event({"error": "x"}))
    assert (pieces, reader.is_done, reader.failure) == (["a"], True, None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("out of memory", "out of memory"),
        ({"message": "too long", "code": 5}, "too long"),
        ({"detail": "no"}, "no"),
        ({"code": 5}, '{"code":5}'),
        ({}, "{}"),
        ([1], "[1]"),
        (True, "true"),
    ],
)
def test_an_error_ends_the_answer_behind_the_pieces_before_it(error: Any, words: str) -> None:
    pieces, reader = read(event({"content": "a"}) + event({"error": error, "content": "b"}) + event("c"))
    assert (pieces, reader.failure) == (["a"], words)


def test_an_event_that_is_called_an_error_is_one() -> None:
    assert read(b'event: error\ndata: {"message": "boom"}\n\n')[1].failure == "boom"
    assert read(b"event: error\ndata: boom\n\n")[1].failure == "boom"


def test_an_event_without_end_is_a_failure_without_words() -> None:
    reader = SpaceReader()
    assert reader.feed(b"data: a\n\ndata: ") == ["a"]
    for _ in range(5):
        reader.feed(b"x" * 1024 * 1024)
    assert reader.failure == ""


def test_the_last_usage_that_is_told_counts() -> None:
    chunks = [
        {"content": "a", "usage": {"prompt_tokens": 9}},
        {"summary": {"usage": USAGE}},
        {"content": "b", "usage": 1},
    ]
    pieces, reader = read(b"".join(event(chunk) for chunk in chunks))
    assert (pieces, reader.usage) == (["a", "b"], USAGE)


CHUNKS = st.lists(
    st.one_of(
        st.text(max_size=4).filter(lambda text: not set(text) & set("\r\n\x85")),
        st.text(max_size=4).map(lambda text: {"content": text}),
        st.text(max_size=4).map(lambda text: {"text": text}),
        st.text(max_size=4).map(lambda text: {"summary": {"message": {"content": text}}}),
        st.text(max_size=4).map(lambda text: {"choices": [{"delta": {"content": text}}]}),
        st.sampled_from(["[DONE]", "null", {"error": "e"}, {"usage": USAGE}, {"summary": 1}]),
    ),
    max_size=6,
)


@given(CHUNKS, st.lists(st.integers(0, 400), max_size=6), st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_cut_of_the_bytes_gives_the_same_pieces(chunks: list[Any], cuts: list[int], line_end: str) -> None:
    sent = b"".join(event(chunk) for chunk in chunks).replace(b"\n", line_end.encode())
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    pieces, reader = read(sent)
    again, other = read(*[sent[a:b] for a, b in zip(places, places[1:], strict=False)])
    assert again == pieces
    assert all(pieces)
    assert (other.failure, other.is_done, other.usage) == (reader.failure, reader.is_done, reader.usage)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_a_fault(sent: bytes) -> None:
    pieces, _ = read(sent)
    "".join(pieces).encode()
