# SPDX-License-Identifier: Apache-2.0
"""YAML as the existing orchestrator reads it, with bounds."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.config.yaml_text import BadYaml, Duplicate, parse_yaml
from tests.waits import bounded_work


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("~", None),
        ("true", True),
        ("on", "on"),
        ("no", "no"),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1e3", 1000.0),
        ("-.inf", float("-inf")),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'7'", "7"),
        ("{1: a, null: b}", {"1": "a", "null": "b"}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}", {"a": {"b": 1}, "c": {"b": 2}}),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: Any) -> None:
    assert parse_yaml(text) == (value, [])


def test_duplicate_keys_are_found_with_their_lines() -> None:
    value, duplicates = parse_yaml("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert value == {"a": {"b": 3, "c": 2}}
    assert duplicates == [Duplicate(("a", "b"), 2, 4)]


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: *nowhere",
        "!!python/object:os.system {}",
        "!!set {a}",
        "!!timestamp x",
        "!!int x",
        "!own a",
        "? [a]\n: b",
        "a\n---\nb",
        '"\\UFFFFFFFF"',
        "a: \x00",
        "<<: 5",
        "&a [*a]",
        "1" * 5000,
    ],
)
def test_what_we_do_not_take_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(BadYaml):
        parse_yaml(text)


def test_depth_is_bounded() -> None:
    with pytest.raises(BadYaml, match="nested deeper than 64 levels at line 1 column"):
        parse_yaml("[" * 100_000)


@pytest.mark.parametrize(
    "line",
    ["{i}: &a{i} [{uses}]".replace("{uses}", "*a{j}, " * 9), "{i}: &a{i} {{<<: [*a{j}, *a{j}, *a{j}], k{i}: 1}}"],
)
def test_a_bomb_of_aliases_is_cheap(line: str) -> None:
    lines = ["0: &a0 {k: 1}"] + [line.format(i=i, j=i - 1) for i in range(1, 40)]
    with bounded_work(), pytest.raises(BadYaml, match="more than 200000 values, aliases counted"):
        parse_yaml("\n".join(lines))


@given(st.text())
def test_any_text_gives_a_value_or_that_error(text: str) -> None:
    with contextlib.suppress(BadYaml):
        parse_yaml(text)
