# SPDX-License-Identifier: Apache-2.0
"""The laws of coverage: of any value every string is read, unreadable or technical, once; and bugs that break them."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate import coverage
from lockgate.gate.coverage import (
    DEEP,
    MAX_DEPTH,
    FieldRule,
    FieldText,
    Path,
    Survey,
    TextKind,
    describe,
    drop_fields,
    put_texts,
    spread,
    survey,
    technical,
)
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()
CONTENT, JSON, NAME = TextKind.CONTENT, TextKind.JSON, TextKind.NAME
TEXT = FieldRule(CONTENT, json_roles=frozenset({"tool"}))
PARTS = FieldRule(CONTENT, {"text": TEXT, "image": FieldRule(unreadable="image")}, json_roles=TEXT.json_roles)
MESSAGE = FieldRule(
    keys={
        "role": technical("user", "tool"),
        "content": PARTS,
        "call": FieldRule(JSON),
        "seal": FieldRule(unreadable="encrypted"),
    },
    has_role=True,
)
TABLE = FieldRule(
    keys={
        "messages": MESSAGE,
        "documents": spread(CONTENT),
        "prompt": FieldRule(CONTENT, numbers=True),
        "mode": technical("a", "b"),
    }
)
KEYS = ["role", "content", "text", "image", "call", "seal", "messages", "documents", "prompt", "mode", "other", ""]
STRINGS = st.sampled_from(["user", "tool", "a", "x y", '{"a": 1}', "{", "s" * 40]) | st.text(max_size=5)
SCALARS = STRINGS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)
BODIES = st.fixed_dictionaries({}, optional={key: VALUES for key in KEYS if key}) | VALUES


def list_strings(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, bool]]:
    """Every string of a value at its place, and whether it is a key."""
    if isinstance(value, str):
        yield path, value, False
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from list_strings(one, (*path, at))
    elif isinstance(value, dict):
        for key, one in value.items():
            yield (*path, key), key, True
            yield from list_strings(one, (*path, key))


def find_rule(path: Path) -> FieldRule:
    """The rule at a place, by the words of FieldRule."""
    rule = TABLE
    for step in path:
        rule = (rule.items or rule) if isinstance(step, int) else rule.keys.get(step) or rule.others or FieldRule()
    return rule


def is_technical(path: Path, text: str, is_key: bool) -> bool:
    return text in find_rule(path[:-1]).keys if is_key else text in find_rule(path).values


@given(BODIES)
def test_every_string_is_read_once_or_unreadable_or_technical(value: Any) -> None:
    found = survey(value, TABLE)
    hidden = [one.path for one in found.unreadable]
    assert len(set(hidden)) == len(hidden)
    expected = Counter(
        (path, text)
        for path, text, is_key in list_strings(value)
        if text and not is_technical(path, text, is_key)
        if not any(path[: len(one)] == one and not (is_key and path == one) for one in hidden)
    )
    assert Counter((one.path, one.text) for one in found.texts) == expected


@given(BODIES)
def test_only_what_the_table_names_is_unreadable(value: Any) -> None:
    for path, kind in survey(value, TABLE).unreadable:
        rule = find_rule(path)
        assert kind == rule.unreadable or (kind == "numbers" and rule.numbers)


@given(BODIES)
def test_unchanged_texts_give_the_value_back(value: Any) -> None:
    texts = {one.path: one.text for one in survey(value, TABLE).texts if one.kind is not NAME}
    assert put_texts(value, texts) == value


@given(BODIES)
def test_changed_texts_stand_in_their_places_and_nothing_else_changes(value: Any) -> None:
    before = json.dumps(value)
    texts = [one for one in survey(value, TABLE).texts if one.kind is not NAME]
    changed = put_texts(value, {one.path: f"<{one.text}>" for one in texts})
    assert json.dumps(value) == before
    shown = [one for one in survey(changed, TABLE).texts if one.kind is not NAME]
    assert [(one.path, one.text) for one in shown] == [(one.path, f"<{one.text}>") for one in texts]
    assert put_texts(changed, {one.path: one.text for one in texts}) == value


@given(BODIES)
def test_of_a_dropped_field_nothing_is_left(value: Any) -> None:
    paths = [one.path for one in survey(value, TABLE).texts if one.path]
    left = drop_fields(value, paths)
    assert [one for one in survey(left, TABLE).texts if one.path] == []


@given(BODIES)
def test_texts_come_in_the_order_of_the_message(value: Any) -> None:
    prompts = [one.path[1] for one in survey(value, TABLE).texts if one.path[:1] == ("messages",) and len(one.path) > 1]
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        assert prompts == sorted(prompts)


def test_a_text_has_the_role_of_its_message() -> None:
    body = {"messages": [{"role": "tool", "content": "one", "new": "two"}, {"content": "three"}], "other": "four"}
    found = {one.text: one.role for one in survey(body, TABLE).texts}
    assert found == {"one": "tool", "new": "tool", "two": "tool", "three": "", "other": "", "four": ""}


@pytest.mark.parametrize(
    ("role", "text", "kind"),
    [
        ("tool", ' {"a": "b"}', JSON),
        ("tool", '["b"]', JSON),
        ("tool", '{"a": ', CONTENT),
        ("tool", "[" * 100_000, CONTENT),
        ("user", '{"a": "b"}', CONTENT),
    ],
)
def test_json_in_the_result_of_a_tool_is_read_as_json(role: str, text: str, kind: TextKind) -> None:
    for content in (text, [{"text": text}]):
        texts = survey({"messages": [{"role": role, "content": content}]}, TABLE).texts
        assert [(one.text, one.kind) for one in texts] == [(text, kind)]


def test_a_value_beyond_the_depth_is_unreadable() -> None:
    value: Any = "deep"
    for _ in range(100_000):
        value = [value]
    found = survey(value, TABLE)
    assert found == Survey([], [coverage.Unreadable((0,) * MAX_DEPTH, DEEP)])


def test_encrypted_content_must_look_encrypted() -> None:
    sealed, plain = "gAAAAB" * 10, "a plain text that stands where encrypted content may stand"
    found = survey({"messages": [{"seal": sealed}, {"seal": plain}]}, TABLE)
    assert [one.path for one in found.unreadable] == [("messages", 0, "seal")]
    assert found.texts == [FieldText(("messages", 1, "seal"), plain, NAME)]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("messages", 0, "content", 1, "text"), "messages[0].content[1].text"),
        (("messages", 0, "secret name"), "messages[0].*"),
        (("secret name", "text"), "*.*"),
        ((0, "x"), "[0].*"),
    ],
)
def test_a_path_in_words_quotes_no_unknown_key(path: Path, words: str) -> None:
    assert describe(path, TABLE) == words


def test_a_path_in_words_may_have_no_positions() -> None:
    assert describe(("messages", 3, "content", 1, "text"), has_positions=False) == "messages[].content[].text"


# Bugs that the laws catch.


@BUGS.caught_by(test_every_string_is_read_once_or_unreadable_or_technical)
def an_unknown_key_is_not_read(patch: pytest.MonkeyPatch) -> None:
    honest = coverage.survey

    def skip(value: Any, table: FieldRule) -> Survey:
        found = honest(value, table)
        return found._replace(texts=[one for one in found.texts if one.path[-1:] != (one.text,)])

    patch.setitem(globals(), "survey", skip)


@BUGS.caught_by(test_only_what_the_table_names_is_unreadable)
def values_of_unknown_keys_are_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage, "UNKNOWN", FieldRule(unreadable="file"))


@BUGS.caught_by(test_every_string_is_read_once_or_unreadable_or_technical)
def any_value_of_a_known_field_is_technical(patch: pytest.MonkeyPatch) -> None:
    class All(frozenset[str]):
        def __contains__(self, _: object) -> bool:
            return True

    patch.setattr(coverage.FieldRule, "values", All(), raising=False)
    patch.setattr(coverage, "_add_text", lambda *_: None)


@BUGS.caught_by(test_every_string_is_read_once_or_unreadable_or_technical, test_unchanged_texts_give_the_value_back)
def the_last_item_of_a_list_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    honest = coverage.survey
    patch.setitem(globals(), "survey", lambda value, table: honest(value[:-1] if type(value) is list else value, table))
    patch.setattr(coverage, "_put", lambda value, *_: None)


@BUGS.caught_by(test_only_what_the_table_names_is_unreadable)
def every_list_counts_as_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coverage, "_find_unreadable", lambda value, *_: "numbers" if isinstance(value, list) else "")


@BUGS.caught_by(
    test_changed_texts_stand_in_their_places_and_nothing_else_changes, test_unchanged_texts_give_the_value_back
)
def only_the_first_change_is_made(patch: pytest.MonkeyPatch) -> None:
    honest = coverage._put

    def put(value: Any, changes: Any, depth: int) -> Any:
        return honest(value, [(changes[0][0], "")], depth)

    patch.setattr(coverage, "_put", put)


@BUGS.caught_by(test_of_a_dropped_field_nothing_is_left)
def a_key_is_dropped_only_at_the_top(patch: pytest.MonkeyPatch) -> None:
    honest = coverage._drop

    def drop(value: Any, path: Path, depth: int) -> Any:
        return honest(value, path, depth) if len(path) == 1 else value

    patch.setattr(coverage, "_drop", drop)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
