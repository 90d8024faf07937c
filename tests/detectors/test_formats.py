# SPDX-License-Identifier: Apache-2.0
"""JSON, XML and YAML: where a text stops being valid, and that bombs do not go off."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors import formats
from lockgate.detectors.formats import open_format_detector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from tests.waits import bounded_work


async def _scan(text: str, params: dict[str, Any], options: dict[str, Any]) -> list[Detection]:
    async with open_format_detector(options) as detector:
        assert detector.lookbehind_chars == 0
        (hits,) = await detector.accept(params, ()).read([Excerpt(text)])
        return list(hits)


def scan(name: str, text: str) -> list[Detection]:
    return asyncio.run(_scan(text, {"format": name}, {}))


VALID = [
    ("json", '{"a": [1, 2.5e3, null, true, "é\\u00e9"]}'),
    ("json", " 1 "),
    ("json", "1" * 5_000),
    ("json", '"NaN"'),
    ("json", "[" * 200 + "]" * 200),
    ("json", '"' + "[" * 5_000 + '"'),
    ("xml", "<a b='c'>é<d/>&amp;&#233;</a>"),
    ("xml", '<?xml version="1.0" encoding="latin-1"?><é/>'),
    ("xml", "<a>" * 3_000 + "</a>" * 3_000),
    ("yaml", "a: 1\nb: [x, y]\nc: &n {d: e}\nf: *n\n"),
    ("yaml", "--- 1\n--- 2\n"),
    ("yaml", "just a scalar"),
    ("yaml", '{"json": ["is", "yaml"]}'),
]


@pytest.mark.parametrize(("name", "text"), VALID)
def test_a_valid_text_gives_no_finding(name: str, text: str) -> None:
    assert scan(name, text) == []


INVALID = [
    ("json", "", 0, 0, 1, 1, "empty text"),
    ("json", " \n", 0, 1, 1, 1, "empty text"),
    ("json", '{"é": [1,\n2,, 3]}', 12, 13, 2, 3, "Expecting value"),
    ("json", "[1, 2", 4, 5, 1, 5, "Expecting ',' delimiter"),
    ("json", '["NaN", NaN]', 8, 9, 1, 9, "NaN is not a JSON value"),
    ("json", "[-Infinity]", 1, 2, 1, 2, "-Infinity is not a JSON value"),
    ("json", "😀", 0, 1, 1, 1, "Expecting value"),
    ("json", "[1] x", 4, 5, 1, 5, "Extra data"),
    ("json", '"\ud800"', 1, 2, 1, 2, "a lone surrogate is no character"),
    ("xml", "", 0, 0, 1, 1, "empty text"),
    ("xml", "<é>ü\n<b>😀</c></é>", 11, 12, 2, 7, "mismatched tag"),
    ("xml", "<a>", 2, 3, 1, 3, "no element found"),
    ("xml", "<a>&nbsp;</a>", 3, 4, 1, 4, "undefined entity"),
    ("xml", "<!DOCTYPE a><a/>", 0, 1, 1, 1, "document type declarations are not allowed"),
    ("yaml", "", 0, 0, 1, 1, "empty text"),
    ("yaml", "é: b\nü: *nope", 8, 9, 2, 4, "undefined alias nope"),
    ("yaml", "a: \x01", 3, 4, 1, 4, "control characters are not allowed"),
    ("yaml", "é: [a\n ü: b", 8, 9, 2, 3, "while parsing a flow sequence, did not find expected ',' or ']'"),
]


@pytest.mark.parametrize(("name", "text", "start", "end", "line", "column", "reason"), INVALID)
def test_a_fault_is_reported_at_its_place(
    name: str, text: str, start: int, end: int, line: int, column: int, reason: str
) -> None:
    (hit,) = scan(name, text)
    assert (hit.start, hit.end, hit.text) == (start, end, text[start:end])
    assert (hit.detection, hit.detection_type, hit.score) == (f"Invalid{name.capitalize()}", "format", 1.0)
    assert hit.metadata == {"rule": name, "reason": reason, "line": line, "column": column}


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    + "]><l>&a11;</l>"
)
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 40))
TOO_DEEP = [
    ("json", "[", 1_000_000),
    ("json", '{"a":', 1_000_000),
    ("json", "[", 201),
    ("yaml", "[", 1_000_000),
    ("yaml", "{", 1_000_000),
    ("yaml", "- ", 1_000_000),
]


def test_a_billion_laughs_are_refused_and_cheap() -> None:
    with bounded_work():
        (hit,) = scan("xml", LAUGHS)
    assert hit.metadata is not None
    assert hit.metadata["reason"] == "document type declarations are not allowed"
    assert hit.text == "<"


def test_a_bomb_of_aliases_is_only_names() -> None:
    with bounded_work():
        assert scan("yaml", ALIASES) == []


@pytest.mark.parametrize(("name", "opening", "levels"), TOO_DEEP)
def test_deep_nesting_is_a_finding_and_cheap(name: str, opening: str, levels: int) -> None:
    with bounded_work():
        (hit,) = scan(name, opening * levels + "]" * 201)
    assert hit.metadata is not None
    assert hit.metadata["reason"] == "nested deeper than 200 levels"


def test_a_string_that_never_ends_is_read_once() -> None:
    with bounded_work():
        assert len(scan("json", '"' + '[\\"' * 1_000_000 + "\\")) == 1


def test_a_reader_out_of_stack_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_DEPTH", 10**9)
    assert [hit.detection for hit in scan("json", "[" * 200_000)] == ["InvalidJson"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(_VALUES, st.booleans())
def test_whatever_json_writes_is_valid_json(value: object, ensure_ascii: bool) -> None:
    assert scan("json", json.dumps(value, ensure_ascii=ensure_ascii)) == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"x": 1}, "unknown parameter `x`, expected `format`"),
        ({"format": "toml"}, "`format` must be one of `json`, `xml`, `yaml`, not `toml`"),
        ({"format": 5}, "`format` must be one of `json`, `xml`, `yaml`, not 5"),
    ],
)
def test_a_wrong_parameter_is_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(_scan("", params, {}))
    assert caught.value.message == message
    with pytest.raises(ConfigError) as at_start:
        asyncio.run(_scan("", {}, params))
    assert at_start.value.message == message


def test_the_format_is_required_from_the_request_or_the_options() -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(_scan("", {}, {}))
    assert caught.value.message == "`format` is required, expected one of `json`, `xml`, `yaml`"
    assert asyncio.run(_scan("[1]", {}, {"format": "json"})) == []
