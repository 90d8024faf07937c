# SPDX-License-Identifier: Apache-2.0
"""Laws of shapes: the fast and the slow reading agree on every body, and the slow one stays fast."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.api.json_faults import find_fault
from lockgate.api.shapes import CHEAP_BYTES, Shape
from lockgate.errors import InvalidRequest, UnreadableBody
from tests.api.sample_shapes import ANYTHING, CONTENT, SHAPES, fitting, free, refusal
from tests.waits import bounded_work

MAX_BODY = 2 * 2**20


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * MAX_BODY, id="only brackets"),
        pytest.param(free(b"[" * MAX_BODY), id="brackets in a free place"),
        pytest.param(b'{"content":"' + b"x" * MAX_BODY, id="one long string"),
        pytest.param(b'{"content":"' + b"\\n" * (MAX_BODY // 2) + b'\\q"}', id="one string of escapes"),
        pytest.param(free(b"{" + b'"k":1,' * 300_000 + b"}"), id="many keys"),
        pytest.param(b'{"detectors":{' + b",".join([b'"k":{}'] * 290_000) + b"}}", id="many detectors"),
        pytest.param(free(b"[" + b"1," * 900_000 + b"]"), id="many numbers"),
        pytest.param(free(b"[" + b"[1]," * 500_000 + b"]"), id="many lists"),
        pytest.param(b"\n" * MAX_BODY, id="only blanks"),
        pytest.param(free(b"1" * MAX_BODY), id="one long number"),
    ],
)
def test_the_largest_bodies_are_explained_in_linear_time(body: bytes) -> None:
    with bounded_work():
        assert isinstance(refusal(CONTENT, body), InvalidRequest | UnreadableBody)
    assert len(body) > CHEAP_BYTES


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.sampled_from(["docs", "url", "text", "x", 'a "content": b', "ü\n"]) | st.text(max_size=5)
keys = st.sampled_from(
    [
        "content",
        "detectors",
        "messages",
        "role",
        "name",
        "type",
        "text",
        "context",
        "context_type",
        "raw",
        "model_id",
        "inputs",
        "guardrail_config",
        "text_gen_parameters",
        "input",
        "models",
        "small",
        "signs",
        "extra",
    ]
)


def dumped(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members) + "}"


anything = st.recursive(
    (scalars | texts).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(keys, inner), max_size=4).map(dumped)
    ),
    max_leaves=12,
)
maps = st.lists(st.tuples(keys, anything), max_size=2).map(dumped)
detectors = st.lists(st.tuples(keys, maps), max_size=2).map(dumped)
strings = texts.map(json.dumps)
parts = st.lists(st.tuples(st.sampled_from(["type", "text", "x"]), strings), max_size=3).map(dumped)
contents = strings | st.lists(parts, max_size=2).map(lambda items: f"[{','.join(items)}]") | anything
message = st.lists(
    st.tuples(st.just("role"), strings) | st.tuples(st.just("content"), contents) | st.tuples(keys, anything),
    max_size=3,
).map(dumped)
members = (
    st.tuples(keys, anything)
    | st.tuples(st.sampled_from(["content", "context_type", "model_id", "inputs"]), strings)
    | st.tuples(st.sampled_from(["detectors"]), detectors)
    | st.tuples(st.just("messages"), st.lists(message, max_size=3).map(lambda items: f"[{','.join(items)}]"))
    | st.tuples(st.just("context"), st.lists(strings, max_size=3).map(lambda items: f"[{','.join(items)}]"))
)
documents = (st.lists(members, max_size=5).map(dumped) | anything).map(str.encode)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    body = draw(documents)
    at = draw(st.integers(0, len(body)))
    removed = draw(st.integers(0, 3))
    added = draw(st.sampled_from([b"", b",", b'"', b"\\", b"}", b"]", b"[", b"0", b"\xff", b"\x00", b"\\ud800", b" "]))
    return body[:at] + added + body[at + removed :]


@given(shape=st.sampled_from(SHAPES), body=documents | damaged() | st.binary(max_size=20))
def test_a_body_is_taken_exactly_when_no_fault_can_be_explained(shape: Shape[Any], body: bytes) -> None:
    assert fitting(shape, body) == (find_fault(body, shape._place) is None)


@given(body=documents | damaged())
def test_whatever_is_taken_is_json_that_another_parser_reads(body: bytes) -> None:
    if fitting(ANYTHING, body):
        assert isinstance(json.loads(body), dict)


@given(shape=st.sampled_from(SHAPES), body=documents | damaged())
def test_white_space_between_the_parts_never_changes_the_answer(shape: Shape[Any], body: bytes) -> None:
    assert fitting(shape, b"\n\t " + body + b"\r\n ") == fitting(shape, body)


@given(shape=st.sampled_from(SHAPES), body=documents | damaged())
def test_a_line_is_refused_exactly_when_a_body_is(shape: Shape[Any], body: bytes) -> None:
    if fitting(shape, body):
        assert shape.decode_line(body) is not None
    else:
        with pytest.raises(InvalidRequest, match=" at line "):
            shape.decode_line(body)
