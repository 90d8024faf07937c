# SPDX-License-Identifier: Apache-2.0
"""Patterns and keywords of the operator and the caller."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors.patterns import fold, open_keywords_detector, open_regex_detector
from lockgate.errors import ConfigError, InvalidRequest
from lockgate.gate.values import Detection, Excerpt


async def _scan(factory: Any, text: str, params: dict[str, Any], options: dict[str, Any]) -> list[Detection]:
    async with factory(options) as detector:
        (hits,) = await detector.accept(params, ()).read([Excerpt(text)])
        return list(hits)


def by_regex(text: str, options: dict[str, Any] | None = None, **params: Any) -> list[Detection]:
    return asyncio.run(_scan(open_regex_detector, text, params, options or {}))


def by_keywords(text: str, options: dict[str, Any] | None = None, **params: Any) -> list[Detection]:
    return asyncio.run(_scan(open_keywords_detector, text, params, options or {}))


def texts(hits: list[Detection]) -> list[str]:
    return [hit.text for hit in hits]


def refusal(**params: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        by_regex("", **params)
    return caught.value.message


# --- Patterns -------------------------------------------------------------------------------------------------


def test_every_match_of_every_pattern_is_reported_in_order() -> None:
    hits = by_regex("ab 12 ab", patterns=[r"\d+", {"name": "Letters", "pattern": "[a-z]+", "score": 0.5}, "b 1"])
    assert [(hit.start, hit.text, hit.detection, hit.score) for hit in hits] == [
        (0, "ab", "Letters", 0.5),
        (1, "b 1", "Regex", 1.0),
        (3, "12", "Regex", 1.0),
        (6, "ab", "Letters", 0.5),
    ]
    assert [hit.metadata for hit in hits[:2]] == [{"rule": "Letters"}, {"rule": "b 1"}]
    assert {hit.detection_type for hit in hits} == {"regex"}


def test_configured_and_requested_patterns_both_count() -> None:
    assert texts(by_regex("a b", {"patterns": ["a"]}, patterns=["b"])) == ["a", "b"]
    assert texts(by_regex("a A", {"patterns": ["a"], "ignore_case": True})) == ["a", "A"]
    assert texts(by_regex("a A", {"patterns": ["a"], "ignore_case": True}, ignore_case=False)) == ["a"]


def test_case_is_ignored_on_request_also_beyond_ascii() -> None:
    assert texts(by_regex("ÉTÉ été", patterns=["été"])) == ["été"]
    assert texts(by_regex("ÉTÉ été", patterns=["été"], ignore_case=True)) == ["ÉTÉ", "été"]


def test_an_empty_match_is_no_finding() -> None:
    assert by_regex("aé😀", patterns=["x*", r"\b", "^", "$"]) == []
    assert texts(by_regex("éxé", patterns=["x*"])) == ["x"]


def test_word_boundaries_see_what_stands_before_the_search() -> None:
    assert texts(by_regex("foofoo foo", patterns=[r"\bfoo\b"])) == ["foo"]
    assert texts(by_regex("aaa", patterns=["^a"])) == ["a"]


@given(st.text(alphabet=st.sampled_from("abéß漢😀\U0010ffff\ud800 \n"), max_size=60))
def test_spans_count_code_points(text: str) -> None:
    hits = by_regex(text, patterns=["[ab]+", "[^ab]", "漢."])
    assert all(text[hit.start : hit.end] == hit.text for hit in hits)
    singles = [hit for hit in hits if hit.metadata == {"rule": "[^ab]"}]
    assert [hit.start for hit in singles] == [at for at, char in enumerate(text) if char not in "ab"]


def test_many_matches_stay_exact_after_the_search_turns_to_windows() -> None:
    text = "é1 " * 5_000 + "x" * 50_000 + "2"
    hits = by_regex(text, patterns=[r"\d"])
    assert len(hits) == 5_001
    assert [hits[-1].start, hits[300].start] == [len(text) - 1, 300 * 3 + 1]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(a", "position 0: missing ): (a"),
        (r"[(]\((", "position 5: missing ): [(]\\(("),
        ("ab)", "position 2: unexpected ): ab)"),
        ("é[a", "position 1: missing ]: [a"),
        (r"[*][*]a**", "position 7: bad repetition operator: **"),
        ("é[z-a]", "position 2: invalid character class range: z-a"),
        ("x{2000}", "position 1: invalid repetition size: {2000}"),
        ("((a{100}){100}){100}", "position 9: invalid repetition size: {100}"),
        ("ab\\", "position 2: trailing \\"),
        (r"(a)\1", r"position 3: back references are not supported: \1"),
        ("(?P<a>x)(?P=a)", "position 8: back references are not supported: (?P="),
        ("ab(?=c)", "position 2: look-around is not supported: (?="),
        ("a(?!c)", "position 1: look-around is not supported: (?!"),
        ("(?<=b)a", "position 0: look-around is not supported: (?<="),
        ("(?<!b)a", "position 0: look-around is not supported: (?<!"),
        ("a\ud800", "position 1: a lone surrogate is no character"),
        (r"(?:\pL{1,50}){1,20}", "position 0: it needs more memory than is allowed"),
    ],
)
def test_a_bad_pattern_is_answered_with_its_number_and_the_place_of_the_fault(pattern: str, message: str) -> None:
    assert refusal(patterns=["fine", pattern]) == f"bad pattern 2 at {message}"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "`patterns` is required"),
        ({"patterns": []}, "`patterns` is required"),
        ({"x": 1}, "unknown parameter `x`, expected `patterns` or `ignore_case`"),
        ({"patterns": "a"}, "`patterns` must be a list, not `a`"),
        ({"patterns": [1]}, "`patterns[0]` must be a string that is not empty, not 1"),
        ({"patterns": [""]}, "`patterns[0]` must be a string that is not empty, not ``"),
        ({"patterns": ["a"] * 65}, "`patterns` has 65 entries, at most 64 are allowed"),
        ({"patterns": ["a" * 1_001]}, "`patterns[0]` has 1001 characters, at most 1000 are allowed"),
        ({"patterns": [{"re": "a"}]}, "`patterns[0]` has `re`, expected one of `name`, `pattern`, `score`"),
        ({"patterns": [{"name": "a"}]}, "`patterns[0].pattern` must be a string that is not empty, not null"),
        (
            {"patterns": [{"pattern": "a", "score": 2}]},
            "`patterns[0].score` must be a number from 0 to 1, not 2",
        ),
        ({"patterns": ["a"], "ignore_case": "yes"}, "`ignore_case` must be true or false, not `yes`"),
    ],
)
def test_a_wrong_parameter_of_regex_is_named(params: dict[str, Any], message: str) -> None:
    assert refusal(**params) == message


def test_a_bad_pattern_in_the_options_stops_the_start() -> None:
    with pytest.raises(ConfigError) as caught:
        by_regex("", {"patterns": ["(?=a)"]}, patterns=["a"])
    expected = "options: patterns: bad pattern 1 at position 0: look-around is not supported: (?="
    assert str(caught.value) == expected


# --- Keywords -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "text", "found"),
    [
        ("cat", "Cat, cats and a CAT", ["Cat", "CAT"]),
        ("año", "Años, año y AÑO", ["año", "AÑO"]),
        ("über", "überall Über", ["Über"]),
        ("straße", "STRAẞE Straße Straßenbahn", ["STRAẞE", "Straße"]),
        ("ΟΔΟΣ", "οδος οδός", ["οδος"]),
        ("москва", "МОСКВА москвич", ["МОСКВА"]),
        ("istanbul", "İstanbul ISTANBUL", ["İstanbul", "ISTANBUL"]),
        ("new york", "New York, new yorker", ["New York"]),
        ("c++", "C++ and c+++", ["C++", "c++"]),
        (".net", "use .NET or asp.net", [".NET", ".net"]),
        ("東京", "私は東京都に住む", ["東京"]),
        ("python", "我用Python写", ["Python"]),
        ("แมว", "มีแมวดำ", ["แมว"]),
        ("हिन्दी", "हिन्दी भाषा", ["हिन्दी"]),
        ("हिन", "हिन्दी भाषा", []),
        ("cafe", "cafe\u0301 cafe café", ["cafe\u0301", "cafe"]),
        ("foo", "foo_bar foo-bar", ["foo"]),
        ("aa", "aaaa aa", ["aa"]),
        ("😀", "a😀b", ["😀"]),
    ],
)
def test_a_keyword_is_found_as_a_whole_word_in_any_case(keyword: str, text: str, found: list[str]) -> None:
    padding = [f"padding{number}" for number in range(100)]
    assert texts(by_keywords(text, keywords=[keyword])) == found
    assert texts(by_keywords(text, {"keywords": [*padding, keyword]})) == found


def test_case_and_parts_of_words_count_on_request() -> None:
    assert texts(by_keywords("Cat cats", keywords=["cat"], ignore_case=False)) == []
    assert texts(by_keywords("Cat cats concat", keywords=["cat"], whole_words=False)) == ["Cat", "cat", "cat"]


def test_keywords_that_overlap_are_all_reported() -> None:
    hits = by_keywords("in New York", {"keywords": ["new york"]}, keywords=["York", "york"])
    assert [(hit.start, hit.text, hit.metadata) for hit in hits] == [
        (3, "New York", {"rule": "new york"}),
        (7, "York", {"rule": "York"}),
        (7, "York", {"rule": "york"}),
    ]
    assert {(hit.detection, hit.detection_type, hit.score) for hit in hits} == {("Keyword", "keyword", 1.0)}


@given(st.text())
def test_folding_keeps_every_place(text: str) -> None:
    assert len(fold(text)) == len(text)


def test_ten_thousand_keywords_may_be_configured() -> None:
    many = {"keywords": [f"word{number}" for number in range(10_000)]}
    assert texts(by_keywords("here is Word7777, and sword7777", many)) == ["Word7777"]
    with pytest.raises(ConfigError, match="`keywords` has 10001 entries, at most 10000 are allowed"):
        by_keywords("", {"keywords": ["a"] * 10_001})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "`keywords` is required"),
        ({"x": 1}, "unknown parameter `x`, expected one of `keywords`, `ignore_case`, `whole_words`"),
        ({"keywords": ["a"] * 65}, "`keywords` has 65 entries, at most 64 are allowed"),
        ({"keywords": ["a" * 1_001]}, "`keywords[0]` has 1001 characters, at most 1000 are allowed"),
        ({"keywords": [None]}, "`keywords[0]` must be a string that is not empty, not null"),
        ({"keywords": ["a"], "whole_words": 1}, "`whole_words` must be true or false, not 1"),
    ],
)
def test_a_wrong_parameter_of_keywords_is_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        by_keywords("", **params)
    assert caught.value.message == message


def test_a_long_list_finds_the_same_places_as_a_short_one_when_words_do_not_count() -> None:
    padding = [f"{chr(97 + number % 26)}{number}" for number in range(200)]
    text = "Concat the 東京 x cats"
    for keyword in ("cat", "x", "東京", "s"):
        short = by_keywords(text, keywords=[keyword], whole_words=False)
        assert short == by_keywords(text, {"keywords": [*padding, keyword], "whole_words": False}) != []


def test_more_findings_than_anybody_can_use_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 10000 findings"):
        by_regex("x" * 200, patterns=["x"] * 64)
    with pytest.raises(InvalidRequest, match="more than 10000 findings"):
        by_keywords("x" * 12_000, keywords=["x"], whole_words=False)


def test_patterns_that_are_too_complex_together_are_refused() -> None:
    patterns = [f"(x|y|w){{1,900}}[a-z]{{1,900}}{number}" for number in range(64)]
    assert refusal(patterns=patterns).startswith("too complex from pattern ")


def test_keywords_of_operator_and_caller_are_both_found_and_each_place_once() -> None:
    hits = by_keywords("red green Red", {"keywords": ["red"]}, keywords=["green", "red"])
    assert texts(hits) == ["red", "green", "Red"]
