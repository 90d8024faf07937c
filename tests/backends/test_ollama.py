# SPDX-License-Identifier: Apache-2.0
"""Ollama's lines: any cut gives the same pieces; what is text, what is the end, what is a failure."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.backends.http_model import ModelAnswer
from lockgate.backends.ollama_format import (
    OllamaChatReader,
    encode_chat,
    encode_texts,
    read_answer,
    read_refusal,
    read_vectors,
)
from lockgate.gate.values import Message

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
LAST = {"message": {"role": "assistant", "content": ""}, "done": True, "prompt_eval_count": 5, "eval_count": 7}
TEXTS = st.text(max_size=8)


def say(text: str | None, **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "created_at": "2026",
        "message": {"role": "assistant", "content": text},
        "done": False,
        **more,
    }


def lines(*values: Any, end: str = "\n") -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + end for value in values).encode()


def read(*packets: bytes, max_line_bytes: int = 10_000) -> tuple[list[str], OllamaChatReader]:
    """The pieces of a whole stream; no packet is read behind its end, as the client does it."""
    reader = OllamaChatReader(max_line_bytes)
    pieces: list[str] = []
    for packet in packets:
        pieces += reader.feed(packet)
        if reader.is_done or reader.failure is not None:
            return pieces, reader
    return pieces + reader.finish(), reader


def state_of(reader: OllamaChatReader) -> tuple[Any, ...]:
    return (reader.failure, reader.has_events, reader.is_done, reader.has_end, reader.usage)


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(whole) + 1) for place in cuts})
    return [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]


@given(
    st.lists(TEXTS, max_size=6),
    st.sampled_from([b"", lines(LAST), lines({"error": "bad ü"}), b"garbage\n", b"x" * 400, lines(LAST) + b"x" * 400]),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.lists(st.integers(0, 5000), max_size=12),
)
def test_any_cut_gives_the_same_pieces(texts: list[str], tail: bytes, end: str, cuts: list[int]) -> None:
    whole = lines(*[say(text) for text in texts], end=end) + tail + lines(say("behind"))
    pieces, reader = read(*cut(whole, cuts), max_line_bytes=300)
    at_once, other = read(whole, max_line_bytes=300)
    assert (pieces, state_of(reader)) == (at_once, state_of(other))
    assert pieces == [text for text in texts if text] + ([] if tail else ["behind"])


def test_a_stream_cut_at_every_byte_is_whole() -> None:
    whole = lines(say("ü😀"), say("\u2028x\x85"), LAST)
    pieces, reader = read(*[bytes([byte]) for byte in whole])
    assert pieces == ["ü😀", "\u2028x\x85"]
    assert (reader.has_end, reader.usage) == (True, USAGE)


def test_pieces_of_one_packet_come_at_once_and_nothing_counts_behind_the_end() -> None:
    reader = OllamaChatReader()
    assert reader.feed(lines(say("a"), say(""), say(None), say("b"), LAST, say("no"))) == ["a", "b"]
    assert reader.feed(lines(say("no"))) == reader.finish() == []
    assert (reader.failure, reader.has_end) == (None, True)


def test_the_last_line_may_have_text_and_needs_no_line_feed() -> None:
    pieces, reader = read(lines({**LAST, "message": {"content": "end"}}).rstrip())
    assert (pieces, reader.has_end, reader.usage) == (["end"], True, USAGE)


def test_the_reasoning_of_a_model_is_kept_apart_from_its_answer() -> None:
    thought = {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False}
    both = {"message": {"content": "a", "thinking": "hm", "tool_calls": [{}]}, "done": False}
    pieces, reader = read(lines(thought, both, LAST))
    assert (pieces, reader.thoughts) == (["a"], ["hm", "hm"])
    assert read_answer(lines({**LAST, **both, "done": True})) == ModelAnswer("a", USAGE)


@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        (lines({"error": "out of memory"}), "out of memory"),
        (lines({"error": {"message": "out", "code": 1}}), "out"),
        (lines({"error": ""}), ""),
        (lines({"error": 5}), ""),
        (b"garbage\n", ""),
        (b'{"message": {"content": "\xff"}}\n', ""),
        (lines([]), ""),
        (lines({"message": "text"}), ""),
        (lines({"done": "yes"}), ""),
        (b"[" * 9000 + b"\n", ""),
        (b"x" * 10_001, ""),
        (b'{"message": {"con', ""),
    ],
)
def test_a_failure_comes_behind_the_pieces_before_it(bad: bytes, failure: str) -> None:
    for packets in ((lines(say("a")) + bad,), (lines(say("a")), bad)):
        pieces, reader = read(*packets)
        assert (pieces, reader.failure, reader.has_end) == (["a"], failure, False)


def test_a_stream_without_its_last_line_has_no_end() -> None:
    pieces, reader = read(lines(say("a")))
    assert (pieces, reader.failure, reader.has_events, reader.has_end) == (["a"], None, True, False)
    assert not read(b"\n \r\n")[1].has_events


def test_counters_that_are_missing_are_none_and_odd_ones_are_zero() -> None:
    assert read(lines({"done": True}))[1].usage is None
    half = read(lines({"done": True, "eval_count": 3}))[1].usage
    assert half == {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}
    odd = read(b'{"done": true, "eval_count": -3, "prompt_eval_count": 2}\n')[1].usage
    assert odd == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 0}


def test_a_chat_is_asked_in_the_words_of_the_api() -> None:
    messages = (Message("system", "s"), Message("user", "q"))
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    whole = json.loads(encode_chat("m:1b", messages, {"max_tokens": 10, "temperature": 0.0}))
    options = {"num_predict": 10, "temperature": 0.0}
    assert whole == {"model": "m:1b", "messages": said, "stream": False, "options": options}
    bare = json.loads(encode_chat("m:1b", messages, {"stream": True, "max_tokens": None}))
    assert bare == {"model": "m:1b", "messages": said, "stream": True}
    with pytest.raises(ValueError, match="surrogates"):
        encode_chat("m", (Message("user", "\ud83d"),), {})


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", lines(say("a")), lines({"done": True}), lines({"error": "x"})])
def test_a_whole_answer_that_is_not_complete_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_answer(body)


def test_a_refusal_is_told_by_its_error() -> None:
    assert read_refusal(b'{"error": "model \'m\' not found"}') == "model 'm' not found"
    assert read_refusal(b"<html>") == read_refusal(b"{}") == ""


def test_vectors_have_length_one_and_keep_their_direction() -> None:
    [first, second] = read_vectors(lines({"model": "m", "embeddings": [[3, 4.0], [0.0, -1e-3]]}), 2)
    assert first == pytest.approx([0.6, 0.8])
    assert second == pytest.approx([0.0, -1.0])
    assert json.loads(encode_texts("m", ["a", "b"])) == {"model": "m", "input": ["a", "b"]}


@pytest.mark.parametrize(
    "vectors",
    [[], [[1.0]], [[1.0], [1.0], [1.0]], [[1.0], [1.0, 0.0]], [[0.0], [1.0]], [[], []], [["x"], [1.0]], None,
     [[math.inf], [1.0]], [[math.nan], [1.0]], [[None], [1.0]]],
)  # fmt: skip
def test_anything_but_one_vector_for_each_text_is_refused(vectors: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_vectors(lines({"embeddings": vectors}), 2)


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_vectors(b'{"embeddings": [[1e999]]}', 1)
