# SPDX-License-Identifier: Apache-2.0
"""Texts of a request as detectors read them: their positions, names that are read once, and bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.errors import InvalidRequest
from lockgate.gate.coverage import FieldRule, FieldText, Survey, TextKind, Unreadable
from lockgate.gate.input_texts import Input, build_input, list_runs, locate
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import Detection

CONTENT, NAME, JSON = TextKind.CONTENT, TextKind.NAME, TextKind.JSON
TABLE = FieldRule(keys={"messages": FieldRule()})
TEXTS = st.lists(st.tuples(st.text(min_size=1, max_size=5), st.sampled_from([CONTENT, NAME])), max_size=12)


def build(*texts: FieldText) -> Input:
    return build_input(Survey(list(texts), []), TABLE, lambda _: True)


@given(TEXTS)
def test_texts_lie_apart_and_each_name_is_read_once(given_: list[tuple[str, TextKind]]) -> None:
    built = build(*[FieldText(("x", at), text, kind) for at, (text, kind) in enumerate(given_)]).texts
    names = [text for text, kind in given_ if kind is NAME]
    assert [one.text for one in built if one.kind is CONTENT] == [text for text, kind in given_ if kind is CONTENT]
    assert [one.text for one in built if one.kind is NAME] == list(dict.fromkeys(names))
    ends = [0, *[one.start + len(one.text) for one in built]]
    assert all(one.start >= end for one, end in zip(built, ends, strict=False))
    assert {one.part for one in built} <= {RequestPart.PROMPT, RequestPart.FIELDS}


def test_very_many_names_are_read_together() -> None:
    names = [f"name-{number}" for number in range(5000)]
    built = build(*[FieldText(("tools", at, "x"), name, NAME) for at, name in enumerate(names)]).texts
    assert len(built) < 20
    assert "\n\n".join(one.text for one in built).split("\n\n") == names
    assert {one.path for one in built} == {("tools",)}


def test_very_many_texts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 10,000 texts"):
        build(*[FieldText(("x", at), "a", CONTENT) for at in range(10_001)])


def test_parts_of_a_message_join_and_other_texts_do_not() -> None:
    paths: list[tuple[str | int, ...]] = [
        ("messages", 0, "content", 0, "text"),
        ("messages", 0, "content", 1, "text"),
        ("messages", 1, "content", 0, "text"),
        ("documents", 0, "text"),
        ("documents", 1, "text"),
    ]
    built = build(*[FieldText(path, "ab", CONTENT) for path in paths])
    assert built.has_runs
    assert [[one.path for one in run] for run in list_runs(built.texts)] == [
        paths[:2],
        paths[2:3],
        paths[3:4],
        paths[4:],
    ]


def test_a_finding_over_two_parts_is_cut_in_two() -> None:
    texts = build(
        *[FieldText(("messages", 0, "content", at, "text"), text, CONTENT) for at, text in enumerate("ab")]
    ).texts
    located = locate(texts, [Detection(0, 2, "ab", "x", "y", 1.0)])
    assert [(one.path[3], [(own.start, own.end, own.text) for own in found]) for one, found in located] == [
        (0, [(0, 1, "a")]),
        (1, [(0, 1, "b")]),
    ]


def test_json_is_read_without_escapes() -> None:
    text = build(FieldText(("x",), '{"a": "\\u0062luebird"}', JSON)).texts[0]
    assert (text.text, text.raw) == ('{"a": "bluebird"}', '{"a": "\\u0062luebird"}')


def test_what_cannot_be_read_is_refused_or_listed() -> None:
    found = Survey([], [Unreadable(("messages", 2, "secret key"), "image")])
    with pytest.raises(InvalidRequest, match=r"^`messages\[2\]\.\*` cannot be read by detectors: leave it out$"):
        build_input(found, TABLE, lambda kind: kind == "image")
    assert build_input(found, TABLE, lambda _: False).unread == ["messages[].*"]
