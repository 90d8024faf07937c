# SPDX-License-Identifier: Apache-2.0
"""Requests of moderations, and the categories under which findings are told."""

import json
from typing import Any

import openai.types as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.api.openai.moderations import (
    CATEGORIES,
    MAX_INPUTS,
    TOXICITY_LABELS,
    Moderated,
    build_result,
    encode_moderation,
    name_categories,
    read_moderation,
)
from lockgate.errors import InvalidRequest, UnreadableBody
from lockgate.gate.values import Detection


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def find(detection: str, detection_type: str, score: float = 0.9, detector: str = "d") -> Detection:
    return Detection(0, 1, "x", detection, detection_type, score, detector)


# Requests.


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("one", (("one",),)),
        ("", (("",),)),
        (["one", "two"], (("one",), ("two",))),
        ([part("one"), part("two")], (("one", "two"),)),
        (["x"] * MAX_INPUTS, (("x",),) * MAX_INPUTS),
    ],
)
def test_strings_are_inputs_of_their_own_and_parts_make_up_one(given: Any, inputs: Any) -> None:
    assert read_moderation(body(input=given)) == Moderated(inputs)
    assert read_moderation(body(input=given, model=None, policy=None)) == Moderated(inputs)
    assert read_moderation(body(input=given, model="m", policy="p")) == Moderated(inputs, "m", "p")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "missing field `input` at line 1 column 2"),
        ({"input": []}, "`input` must not be empty"),
        ({"input": ["x"] * 257}, "`input` has 257 entries, at most 256 are allowed"),
        ({"input": ["x", part("y")]}, "`input` must hold strings or parts, not both"),
        (
            {"input": [part("x"), {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]},
            "input[1]: a part of type `image_url` cannot be checked, only text can",
        ),
        ({"input": [{"type": "text"}]}, "input[0]: a part of type `text` needs a `text`"),
        ({"input": "x", "polcy": "strict"}, "unknown field `polcy`, expected one of `input`, `model`, `policy`"),
        ({"input": "x", "detectors": {}}, "unknown field `detectors`, expected one of `input`, `model`, `policy`"),
        ({"input": 3}, "data did not match any variant of untagged enum ModerationInput"),
        ({"input": [3]}, "data did not match any variant of untagged enum ModerationInput"),
        ({"input": None}, "data did not match any variant of untagged enum ModerationInput"),
        ({"input": "x", "model": 3}, "invalid type: integer `3`, expected a string"),
    ],
)
def test_what_is_wrong_with_a_request_is_400(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_moderation(body(**fields))
    assert words in caught.value.message
    assert caught.value.status == 400


def test_what_is_not_json_is_400() -> None:
    with pytest.raises(UnreadableBody) as caught:
        read_moderation(b'{"input": "x"')
    assert caught.value.status == 400


# Categories.


@pytest.mark.parametrize(
    ("detection", "detection_type", "names"),
    [
        ("toxic", "toxicity", ["harassment"]),
        ("severe_toxic", "toxicity", ["harassment"]),
        ("Insult", "toxicity", ["harassment"]),
        ("obscene", "toxicity", ["harassment"]),
        ("threat", "toxicity", ["harassment/threatening", "violence"]),
        ("identity_hate", "Toxic", ["hate"]),
        ("Threat", "malware", ["malware/threat"]),  # another kind of threat
        ("EmailAddress", "pii", ["pii/email_address"]),
        ("IPAddress", "pii", ["pii/ip_address"]),
        ("IBAN", "pii", ["pii/iban"]),
        ("has_HAP", "hap", ["hap/has_hap"]),
        ("Prompt Injection!", "prompt-injection", ["prompt_injection/prompt_injection"]),
        ("Judged", "llm_judge", ["llm_judge/judged"]),
        ("Self-harm", "llm_judge", ["self-harm"]),  # a name of OpenAI's
        ("sexual/minors", "llm_judge", ["sexual/minors"]),
        ("SelfHarmIntent", "whatever", ["self-harm/intent"]),
        ("graphic", "violence", ["violence/graphic"]),
        ("Straße", "wörter", ["wörter/straße"]),
        ("", "", ["other"]),
        ("X", "", ["x"]),
        ("", "pii", ["pii"]),
    ],
)
def test_a_finding_is_told_under_openais_name_or_its_own(detection: str, detection_type: str, names: list[str]) -> None:
    assert list(name_categories(detection_type, detection)) == names


def test_a_result_has_all_of_openais_categories() -> None:
    result = build_result([], {})
    assert not result.flagged
    assert result.categories == dict.fromkeys(CATEGORIES, False)
    assert result.category_scores == dict.fromkeys(CATEGORIES, 0.0)
    assert result.category_applied_input_types == {name: [] for name in CATEGORIES}


def test_what_was_looked_for_and_not_found_applies_to_text() -> None:
    result = build_result([], {}, ["hate", "llm_judge/judged"])
    assert not result.flagged
    assert result.category_applied_input_types["hate"] == ["text"]
    assert result.category_applied_input_types["violence"] == []
    assert (result.categories["llm_judge/judged"], result.category_scores["llm_judge/judged"]) == (False, 0.0)
    looked_for = {name for label in TOXICITY_LABELS for name in name_categories("toxicity", label)}
    assert looked_for == {"harassment", "harassment/threatening", "violence", "hate"}


def test_the_highest_score_of_a_category_counts_and_only_its_detectors_threshold_flags() -> None:
    found = [
        find("EmailAddress", "pii", 0.6, "a"),
        find("EmailAddress", "pii", 0.8, "b"),
        find("threat", "toxicity", 0.3, "a"),
    ]
    result = build_result(found, {"a": 0.5, "b": 0.9})
    assert result.flagged
    assert (result.categories["pii/email_address"], result.category_scores["pii/email_address"]) == (True, 0.8)
    assert (result.categories["violence"], result.category_scores["violence"]) == (False, 0.3)
    assert result.category_applied_input_types["violence"] == ["text"]
    assert not build_result(found, {"a": 0.7, "b": 0.9}).flagged


@given(
    st.lists(
        st.builds(
            find,
            st.sampled_from(["toxic", "threat", "EmailAddress", "sexual", "X"]) | st.text(max_size=8),
            st.sampled_from(["toxicity", "pii", "llm_judge"]) | st.text(max_size=8),
            st.floats(0, 1),
        ),
        max_size=6,
    ),
    st.floats(0, 1),
)
def test_no_finding_is_lost(found: list[Detection], threshold: float) -> None:
    result = build_result(found, {"d": threshold})
    assert result.flagged == any(one.score >= threshold for one in found) == any(result.categories.values())
    keys = result.categories.keys()
    assert keys == result.category_scores.keys() == result.category_applied_input_types.keys()
    assert keys >= set(CATEGORIES)
    for one in found:
        names = name_categories(one.detection_type, one.detection)
        assert names
        assert all(result.category_scores[name] >= one.score for name in names)
        assert all(result.categories[name] for name in names if one.score >= threshold)


# Answers.


def test_an_answer_is_what_the_official_client_expects() -> None:
    results = [
        build_result([find("EmailAddress", "pii"), find("threat", "toxicity")], {"d": 0.5}),
        build_result([], {}),
    ]
    raw = json.loads(encode_moderation("m", "strict", results))
    answer = official.ModerationCreateResponse.model_validate(raw, strict=True)
    assert answer.id.startswith("modr-")
    assert (answer.model, raw["policy"], "warnings" in raw) == ("m", "strict", False)
    first, second = answer.results
    assert (first.flagged, first.categories.harassment_threatening, first.category_scores.violence) == (True, True, 0.9)
    assert (first.categories.model_extra or {})["pii/email_address"] is True
    assert not second.flagged
    names = {field.alias or name for name, field in official.moderation.Categories.model_fields.items()}
    assert names == set(CATEGORIES)


def test_warnings_are_told_where_there_are_any() -> None:
    warnings = [{"type": "DETECTOR_FAILED", "message": "words"}]
    assert json.loads(encode_moderation("m", "p", [], warnings))["warnings"] == warnings
