# SPDX-License-Identifier: Apache-2.0
"""Bodies of SyftAI-Space endpoints: what is sent, and how much of what comes is forgiven (A-34, A-36, A-41 to A-51)."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.backends.spaces import (
    encode_messages,
    encode_query,
    read_answer,
    read_documents,
)
from lockgate.gate.values import Document, Message

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def references(*documents: Any) -> bytes:
    return json.dumps({"summary": None, "references": {"documents": documents, "cost": 1}}).encode()


def found(*documents: Any) -> list[tuple[str, str, float]]:
    return [(one.title, one.text, one.score) for one in read_documents(references(*documents), "al/notes", 10_000)]


def test_a_question_has_exactly_the_agreed_keys() -> None:
    body = {"messages": "q", "limit": 5, "similarity_threshold": 0.5, "include_metadata": True}
    assert json.loads(encode_query("q", 5, 0.5, None)) == body
    assert json.loads(encode_query("q", 5, 0.5, "")) == body
    assert json.loads(encode_query("q", 5, 0.5, "tx")) == {**body, "transaction_token": "tx"}


def test_a_prompt_has_exactly_the_agreed_keys() -> None:
    messages = [Message("system", "s"), Message("user", "ü")]
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}],
        "max_tokens": 10,
        "temperature": 0.25,
        "stream": False,
        "stop_sequences": [],
    }
    params = {"max_tokens": 10, "temperature": 0.25, "unknown": 1}
    assert json.loads(encode_messages(messages, params, None)) == body
    streamed = {**body, "stream": True, "transaction_token": "tx"}
    assert json.loads(encode_messages(messages, {**params, "stream": True}, "tx")) == streamed


def test_documents_come_in_their_order_with_title_text_score_and_source() -> None:
    body = references(
        {"content": "a", "metadata": {"title": "A", "more": [1]}, "similarity_score": 0.25, "document_id": "1"},
        {"content": "b", "metadata": {"document_title": "B"}, "similarity_score": 1},
    )
    documents = read_documents(body, "al/notes", 10)
    assert documents == [Document("A", "a", 0.25, None, "al/notes"), Document("B", "b", 1.0, None, "al/notes")]


@pytest.mark.parametrize(
    ("metadata", "title"),
    [
        ({"title": "T", "document_title": "D"}, "T"),
        ({"title": "", "document_title": "D"}, "D"),
        ({"title": None, "document_title": "D"}, "D"),
        ({"title": ["x"], "document_title": "D"}, "D"),
        ({"title": True, "document_title": ""}, ""),
        ({"title": {"a": 1}}, ""),
        ({"title": 42}, "42"),
        ({"title": 0}, "0"),
        ({"title": 4.5}, "4.5"),
        ({"title": 10**30}, str(10**30)),
        ({"title": math.nan}, ""),
        ({}, ""),
        (None, ""),
        ("text", ""),
        ([1], ""),
    ],
)
def test_a_title_is_text_or_a_number_or_missing(metadata: Any, title: str) -> None:
    assert found({"content": "c", "metadata": metadata, "similarity_score": 0.5}) == [(title, "c", 0.5)]


@pytest.mark.parametrize(
    ("score", "counted"),
    [(0.5, 0.5), (-1, -1.0), (None, 0.0), ("0.9", 0.0), (True, 0.0), ([1], 0.0), ({}, 0.0), (10**400, 0.0),
     (math.nan, 0.0), (math.inf, 0.0), (-math.inf, 0.0)],
)  # fmt: skip
def test_a_score_that_is_no_number_counts_nothing(score: Any, counted: float) -> None:
    assert found({"content": "c", "similarity_score": score}) == [("", "c", counted)]


def test_a_number_out_of_range_counts_nothing() -> None:
    body = b'{"references":{"documents":[{"content":"c","similarity_score":1e999}]}}'
    assert read_documents(body, "s", 10) == [Document("", "c", 0.0, None, "s")]


@pytest.mark.parametrize("content", [None, 5, [], {}, True])
def test_a_content_that_is_no_text_is_empty(content: Any) -> None:
    assert found({"content": content}) == [("", "", 0.0)]


def test_items_that_are_no_objects_are_skipped() -> None:
    good = {"content": "c", "metadata": {"title": "T"}, "similarity_score": 0.5}
    assert found(None, 1, "x", [], good, True) == [("T", "c", 0.5)]


def test_half_a_character_is_replaced_and_spoils_nothing() -> None:
    items = '[{"content":"a\\ud83d","metadata":{"title":"\\ude00b"}},{"content":"😀"}]'
    body = '{"references":{"documents":' + items + "}}"
    assert [(one.title, one.text) for one in read_documents(body.encode(), "s", 10)] == [
        ("\ufffdb", "a\ufffd"),
        ("", "😀"),
    ]


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"references":null}', b'{"references":{}}', b'{"references":{"documents":null}}',
     b'{"references":{"documents":[]}}', b'{"summary":{"message":[1]},"references":{"cost":NaN}}'],
)  # fmt: skip
def test_no_references_are_no_documents(body: bytes) -> None:
    assert read_documents(body, "s", 10) == []


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"x"', b"5", b"garbage", b'{"references":', b"[" * 100_000, b'{"references":[]}', b"\xff",
     b'{"references":"x"}', b'{"references":{"documents":{}}}', b'{"references":{"documents":5}}', b"{} {}"],
)  # fmt: skip
def test_what_is_no_reply_is_an_error(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_documents(body, "s", 10)
    with pytest.raises((ValueError, RecursionError)):
        read_answer(body)


def test_of_more_documents_than_were_asked_for_the_rest_is_counted_and_not_decoded() -> None:
    items: list[Any] = [None, *({"content": str(number)} for number in range(20_000)), {"content": []}]
    found = read_documents(references(*items), "s", 3)
    assert ([one.text for one in found], found.left_out) == (["0", "1", "2"], 19_998)
    lenient = read_documents(references(*items, float("nan")), "s", 3)
    assert ([one.text for one in lenient], lenient.left_out) == (["0", "1", "2"], 19_999)
    assert read_documents(references(*items[:4]), "s", 3).left_out == 0


def test_a_large_reply_of_tiny_values_is_not_decoded() -> None:
    with pytest.raises(ValueError, match="too many values"):
        read_documents(b'{"x":[' + b"[]," * 400_000 + b"[]]}", "s", 10)
    assert found({"content": "word, " * 200_000})[0][1] == "word, " * 200_000


@given(st.lists(ANY_JSON, max_size=3), ANY_JSON, ANY_JSON)
def test_one_bad_item_never_fails_a_source(items: list[Any], content: Any, metadata: Any) -> None:
    odd = {"content": content, "metadata": metadata, "similarity_score": content}
    good = {"content": "c", "metadata": {"title": "T"}, "similarity_score": 0.5}
    documents = found(*items, odd, good)
    assert documents[-1] == ("T", "c", 0.5)
    assert len(documents) == sum(isinstance(item, dict) for item in items) + 2
    for title, text, score in documents:
        assert (title + text).encode() is not None
        assert math.isfinite(score)


@pytest.mark.parametrize(
    ("summary", "text"),
    [({"message": {"content": "Hi ü"}}, "Hi ü"), ({"message": {"content": ""}}, ""), ({"message": "plain"}, "plain")],
)
def test_an_answer_is_the_content_of_its_message(summary: Any, text: str) -> None:
    assert read_answer(json.dumps({"summary": summary}).encode()) == (text, None)


@pytest.mark.parametrize(
    "reply",
    [{}, {"summary": None}, {"summary": {}}, {"summary": []}, {"summary": "x"}, {"summary": {"message": None}},
     {"summary": {"message": {}}}, {"summary": {"message": {"content": None}}}, {"summary": {"message": ["x"]}},
     {"summary": {"message": {"content": 5}}}],
)  # fmt: skip
def test_an_answer_without_text_is_an_error(reply: Any) -> None:
    with pytest.raises(ValueError, match="no text"):
        read_answer(json.dumps(reply).encode())


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "more": {}}, (1, 2, 3)),
        ({"prompt_tokens": 1}, (1, 0, 0)),
        ({"prompt_tokens": "1", "completion_tokens": None, "total_tokens": 3.0}, (0, 0, 3)),
        ({"prompt_tokens": True, "completion_tokens": -1, "total_tokens": 10**40}, (0, 0, 0)),
        ({}, None),
        (None, None),
        ([1], None),
        (5, None),
    ],
)
def test_usage_is_three_counters_or_unknown(usage: Any, counted: tuple[int, ...] | None) -> None:
    told = read_answer(json.dumps({"summary": {"message": "x", "usage": usage}}).encode()).usage
    expected = counted and dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), counted, strict=True))
    assert told == expected
