# SPDX-License-Identifier: Apache-2.0
"""Joining a required policy and another one: the merge releases no more than either of them."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import inf
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lockgate.config import policy_merge
from lockgate.config.policies import SECTION_TYPES, PolicySettings
from lockgate.config.policy_keys import LANES
from lockgate.config.policy_merge import find_conflicts, merge, merge_all
from lockgate.gate.coverage import KINDS
from lockgate.gate.values import TEXT_CONTENTS, Detection
from lockgate.gate.verdicts import Action, DocumentAction, MaskWith, judge_whole, keep
from lockgate.guard.detectors import ActiveGuard, Guard
from lockgate.guard.policy import Policy

DEFAULTS = {"a": 0.5, "b": 0.7, "c": 0.2}
NO_READING: Any = None  # nothing is read here
GUARDS = {name: Guard(name, TEXT_CONTENTS, cast("Any", None), "sentence", None, 0.5) for name in DEFAULTS}
TEXT = "One. Two two. Three three three."


def build(name: str, output: Mapping[str, Any], **more: Any) -> PolicySettings:
    return PolicySettings(name, output=MappingProxyType(output), **more)


thresholds = st.one_of(st.just({}), st.builds(lambda number: {"threshold": number}, st.sampled_from([0.1, 0.5, 0.9])))
detectors = st.dictionaries(st.sampled_from(sorted(DEFAULTS)), thresholds, max_size=3)
actions = st.sampled_from(Action)
roles = st.sampled_from(["user", "tool", "system"])
by_role = st.dictionaries(roles, st.sampled_from([0.1, 0.5, 0.9]))
limits = st.dictionaries(
    st.sampled_from(sorted(SECTION_TYPES)), st.dictionaries(st.sampled_from(sorted(DEFAULTS)), st.integers(1, 9))
)


@st.composite
def policies(draw: st.DrawFn, name: str) -> PolicySettings:
    sections: dict[str, Any] = {section: MappingProxyType(draw(detectors)) for section in SECTION_TYPES}
    kinds = {section: st.sampled_from(DocumentAction) if section == "documents" else actions for section in sections}
    own = {
        section: {one: draw(kinds[section]) for one in of if draw(st.booleans())} for section, of in sections.items()
    }
    failures = {section: {one: draw(st.booleans()) for one in of} for section, of in sections.items()}
    return PolicySettings(
        name,
        **sections,
        **{f"on_{section}": draw(kind) for section, kind in kinds.items()},
        fallback=f"[{name}]",
        passes_failures=draw(st.booleans()),
        own_actions=MappingProxyType({section: MappingProxyType(of) for section, of in own.items() if of}),
        own_limits=MappingProxyType(draw(limits)),
        own_failures=MappingProxyType(failures) if draw(st.booleans()) else MappingProxyType({}),
        unreadable=MappingProxyType(draw(st.dictionaries(st.sampled_from(KINDS), st.sampled_from(["refuse", "pass"])))),
        own_roles=MappingProxyType(
            {one: draw(st.frozensets(roles)) for one in sections["input"] if draw(st.booleans())}
        ),
        role_thresholds=MappingProxyType({one: draw(by_role) for one in sections["input"] if draw(st.booleans())}),
        is_shadow=draw(st.booleans()),
        masks_sources=draw(st.booleans()),
        refuses_ungrounded=draw(st.booleans()),
        mask_with=draw(st.sampled_from(MaskWith)),
        lanes=tuple(lane for lane in LANES if draw(st.booleans())),
        is_speculative=draw(st.booleans()),
    )


spans = st.tuples(st.integers(0, len(TEXT) - 1), st.integers(1, 9), st.sampled_from(sorted(DEFAULTS)),
                  st.sampled_from([0.2, 0.6, 0.95]))  # fmt: skip


def find(policy: PolicySettings, section: str, all_spans: list[tuple[int, int, str, float]]) -> list[Detection]:
    """What the detectors of a section report of all that is to be found."""
    found: list[Detection] = []
    for name, params in getattr(policy, section).items():
        own = [
            Detection(start, min(start + size, len(TEXT)), TEXT[start : start + size], "kind", "type", score, name)
            for start, size, by, score in all_spans
            if by == name
        ]
        found += keep(own, params.get("threshold", DEFAULTS[name]))
    return sorted(found, key=lambda one: one.start)


def list_released(policy: PolicySettings, section: str, all_spans: list[tuple[int, int, str, float]]) -> set[int]:
    """The places of the text that leave as they were."""
    verdict = judge_whole(TEXT, find(policy, section, all_spans), policy.measures(section))
    masked = {place for mask in verdict.masks for place in range(mask.start, mask.end)}
    return set(range(verdict.kept)) - masked


def refuses(policy: PolicySettings, kind: str) -> bool:
    """Whether a request with a value of this kind is refused."""
    parts: dict[str, Any] = {f"for_{one}": policy.measures(one) for one in ("input", "documents", "output")}
    for section in ("input", "documents", "output"):
        names = getattr(policy, section)
        parts[section] = tuple([ActiveGuard(GUARDS[name], NO_READING, 0.5, holds=True) for name in names])
    resolved = Policy(name=policy.name, is_shadow=policy.is_shadow, unreadable=policy.unreadable, **parts)
    return resolved.refuses_unreadable(kind)


def find_threshold(policy: PolicySettings, name: str, role: str) -> float:
    """The lowest score that a detector reports in a message of this role; infinite if it does not read the role."""
    if role not in policy.own_roles.get(name, [role]):
        return inf
    general = policy.input[name].get("threshold", DEFAULTS[name])
    return policy.role_thresholds.get(name, {}).get(role, general)


def check_law(first: PolicySettings, second: PolicySettings, all_spans: list[tuple[int, int, str, float]]) -> None:
    merged = merge(first, second, DEFAULTS)
    for one in (first, second):
        for section in SECTION_TYPES:
            assert list_released(merged, section, all_spans) <= list_released(one, section, all_spans)
            for name in getattr(one, section):
                assert name in getattr(merged, section)
                assert one.passes(section, name) or not merged.passes(section, name)
                assert (merged.max_hold_s(section, name) or 99) >= (one.max_hold_s(section, name) or 99)
        assert {*one.lanes} <= {*merged.lanes}
        assert one.is_shadow or not merged.is_shadow
        assert merged.masks_sources or not one.masks_sources
        for kind in KINDS:
            assert refuses(merged, kind) or not refuses(one, kind)
        for name in one.input:
            for role in ("user", "tool", "system", "assistant"):
                assert find_threshold(merged, name, role) <= find_threshold(one, name, role)
        assert merged.refuses_ungrounded or not one.refuses_ungrounded
        assert one.is_speculative or not (merged.is_speculative and one.input)


@given(policies("first"), policies("second"), st.lists(spans, max_size=6))
def test_a_merge_releases_no_more_than_either_policy(
    first: PolicySettings, second: PolicySettings, all_spans: list[tuple[int, int, str, float]]
) -> None:
    check_law(first, second, all_spans)
    check_law(second, first, all_spans)


@given(policies("first"), policies("second"), policies("third"), st.lists(spans, max_size=6))
def test_a_further_policy_releases_no_more(
    first: PolicySettings, second: PolicySettings, third: PolicySettings, all_spans: list[tuple[int, int, str, float]]
) -> None:
    two, three = (merge_all(some, DEFAULTS) for some in ([first, second], [first, second, third]))
    for section in SECTION_TYPES:
        assert list_released(three, section, all_spans) <= list_released(two, section, all_spans)


def take_mildest(both: Any, find_one: Any, join: Any) -> Any:
    return collect(both, find_one, min if join is max else join)


collect = policy_merge._collect
WRONG: dict[str, Callable[..., Any]] = {
    "_join_unreadable": lambda both: both[1].unreadable,
    "_join_roles": lambda both: both[0].own_roles,
    "_join_role_thresholds": lambda both, defaults: both[0].role_thresholds,
    "_collect": take_mildest,
    "_choose_lower": lambda first, second, default: {**first, **second},
    "_join_params": lambda section, required, other, defaults: getattr(other, section) or getattr(required, section),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_law_finds_a_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_merge, name, WRONG[name])
    look = settings(phases=[Phase.generate], max_examples=1000, database=None)  # shrinking takes long
    with pytest.raises(AssertionError):
        look(given(policies("first"), policies("second"), st.lists(spans, max_size=6))(check_law))()


def test_every_part_of_a_policy_has_a_rule() -> None:
    """A new field of policies must be joined, too: then it is added here."""
    joined = {
        "name",
        "fallback",
        "passes_failures",
        "own_actions",
        "own_failures",
        "own_limits",
        "is_shadow",
        "mask_with",
        "masks_sources",
        "refuses_ungrounded",
        "lanes",
        "is_speculative",
        "unreadable",
        "replaces_tool_results",
        "own_roles",
        "role_thresholds",
        *SECTION_TYPES,
        *[f"on_{section}" for section in SECTION_TYPES],
    }
    assert {field.name for field in fields(PolicySettings)} == joined


def test_a_policy_joined_with_itself_or_with_none_is_itself() -> None:
    policy = build("p", {"a": {}})
    assert merge(policy, policy, DEFAULTS) is policy
    assert merge(policy, PolicySettings(""), DEFAULTS) is policy
    both = merge(policy, build("q", {}), DEFAULTS)
    assert merge(both, policy, DEFAULTS) is both
    assert both.name == "p+q"


@pytest.mark.parametrize(
    ("first", "second", "threshold"),
    [
        ({}, {}, None),
        ({"threshold": 0.9}, {}, 0.5),
        ({}, {"threshold": 0.9}, 0.5),
        ({"threshold": 0.3}, {}, 0.3),
        ({"threshold": 0.9}, {"threshold": 0.6}, 0.6),
    ],
)
def test_the_lower_threshold_counts_and_the_detectors_own_where_one_has_none(
    first: dict[str, float], second: dict[str, float], threshold: float | None
) -> None:
    merged = merge(build("p", {"a": first}), build("q", {"a": second}), DEFAULTS)
    assert merged.output["a"].get("threshold") == threshold


def test_the_required_policy_gives_a_detector_its_parameters() -> None:
    required, other = build("p", {"a": {"keywords": ["x"]}}), build("q", {"a": {"keywords": []}, "b": {"k": 1}})
    assert merge(required, other, DEFAULTS).output == {"a": {"keywords": ["x"]}, "b": {"k": 1}}
    assert find_conflicts(required, other) == ["a"]
    assert find_conflicts(required, build("q", {"a": {"keywords": ["x"], "threshold": 0.1}})) == []


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (MaskWith.LABEL, MaskWith.BLOCK, MaskWith.LABEL),
        (MaskWith.PSEUDONYM, MaskWith.BLOCK, MaskWith.BLOCK),
        (MaskWith.BLOCK, MaskWith.PSEUDONYM, MaskWith.BLOCK),
        (MaskWith.PSEUDONYM, MaskWith.PSEUDONYM, MaskWith.PSEUDONYM),
    ],
)
def test_masks_are_those_of_the_required_policy_but_names_only_if_both_give_names(
    first: MaskWith, second: MaskWith, kind: MaskWith
) -> None:
    required, other = (build(name, {"a": {}}, on_output=Action.MASK, mask_with=one)
                       for name, one in (("p", first), ("q", second)))  # fmt: skip
    assert merge(required, other, DEFAULTS).mask_with is kind


def test_values_that_cannot_be_read_pass_where_neither_policy_would_refuse_them() -> None:
    required = build("p", {"a": {}}, on_output=Action.MASK, unreadable={"image": "pass", "encrypted": "refuse"})
    assert merge(required, build("q", {"b": {}}), DEFAULTS).unreadable == required.unreadable
    strict = build("q", {"b": {}}, on_output=Action.MASK)
    assert merge(required, strict, DEFAULTS).unreadable == {"image": "refuse", "encrypted": "refuse"}


def test_a_required_policy_that_masks_nothing_leaves_the_kind_of_mask_and_the_fallback_to_the_other() -> None:
    required = build("p", {"a": {}}, fallback="[p]")
    other = build("q", {"b": {}}, on_output=Action.MASK, mask_with=MaskWith.PSEUDONYM, fallback="[q]")
    merged = merge(required, other, DEFAULTS)
    assert (merged.mask_with, merged.fallback) == (MaskWith.PSEUDONYM, "[q]")
    assert merge(replace(required, on_output=Action.STOP), other, DEFAULTS).fallback == "[p]"
