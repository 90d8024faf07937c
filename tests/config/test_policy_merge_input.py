# SPDX-License-Identifier: Apache-2.0
"""How a required policy and another one are joined in what they say of the texts of a request."""

from collections.abc import Mapping
from typing import Any

import pytest

from lockgate.config.policies import PolicySettings
from lockgate.config.policy_merge import merge
from lockgate.gate.verdicts import Action

USER, TOOL = frozenset({"user"}), frozenset({"tool"})
DEFAULTS = {"pii": 0.5}


def join(first: Mapping[str, Any], second: Mapping[str, Any]) -> PolicySettings:
    return merge(PolicySettings("first", **first), PolicySettings("second", **second), DEFAULTS)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {}, {}),
        ({"image": "pass"}, {}, {"image": "pass"}),
        ({}, {"image": "pass"}, {"image": "pass"}),
        ({"image": "pass"}, {"image": "pass"}, {"image": "pass"}),
        ({"image": "pass"}, {"image": "refuse"}, {"image": "refuse"}),
        ({"image": "refuse"}, {"audio": "pass"}, {"image": "refuse", "audio": "pass"}),
    ],
)
def test_what_cannot_be_read_is_refused_if_one_says_so_and_passes_by_default_where_no_text_is_changed(
    first: dict[str, str], second: dict[str, str], words: dict[str, str]
) -> None:
    assert join({"unreadable": first}, {"unreadable": second}).unreadable == words


def test_a_policy_that_changes_text_refuses_by_default_what_the_other_lets_pass() -> None:
    masking = {"output": {"pii": {}}, "on_output": Action.MASK}
    assert join({"unreadable": {"image": "pass"}}, masking).unreadable == {"image": "refuse"}
    assert join(masking, {"unreadable": {"image": "pass", "encrypted": "pass"}}).unreadable == {
        "image": "refuse",
        "encrypted": "pass",
    }


@pytest.mark.parametrize(("first", "second", "both"), [(True, True, True), (True, False, False), (False, True, False)])
def test_results_of_tools_are_replaced_only_if_both_say_so(*, first: bool, second: bool, both: bool) -> None:
    joined = join({"replaces_tool_results": first}, {"replaces_tool_results": second})
    assert joined.replaces_tool_results is both


@pytest.mark.parametrize(
    ("first", "second", "roles"),
    [
        ({"pii": USER}, {"pii": TOOL}, {"pii": USER | TOOL}),
        ({"pii": USER}, {}, {}),
        ({}, {"pii": TOOL}, {}),
    ],
)
def test_a_detector_reads_the_roles_of_either(
    first: dict[str, frozenset[str]], second: dict[str, frozenset[str]], roles: dict[str, frozenset[str]]
) -> None:
    named: dict[str, Any] = {"input": {"pii": {}}}
    assert join({**named, "own_roles": first}, {**named, "own_roles": second}).own_roles == roles


def test_a_detector_that_one_policy_names_keeps_its_roles() -> None:
    assert join({"input": {"pii": {}}, "own_roles": {"pii": USER}}, {}).own_roles == {"pii": USER}


@pytest.mark.parametrize(
    ("first", "second", "thresholds"),
    [
        ({"user": 0.9}, {"user": 0.7, "tool": 0.8}, {"user": 0.7, "tool": 0.5}),
        ({"user": 0.4}, {}, {"user": 0.4}),
        ({"user": 0.9}, {}, {"user": 0.5}),
    ],
)
def test_the_lower_threshold_of_a_role_counts(
    first: dict[str, float], second: dict[str, float], thresholds: dict[str, float]
) -> None:
    named: dict[str, Any] = {"input": {"pii": {}}}
    given = [{**named, "role_thresholds": {"pii": one} if one else {}} for one in (first, second)]
    assert join(*given).role_thresholds == {"pii": thresholds}
