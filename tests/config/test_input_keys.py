# SPDX-License-Identifier: Apache-2.0
"""The keys of a policy for the texts of a request: what is unreadable, results of tools, roles, thresholds."""

from typing import Any

import pytest

from lockgate.config.policies import PolicySettings
from tests.config.config_cases import Loader

DETECTORS = """
detectors:
  pii: {embedded: pii}
  attacks: {embedded: prompt_injection}
"""
TOOLS = frozenset({"user", "tool", "function"})


def _policy(loader: Loader, keys: str) -> PolicySettings:
    return loader.load(f"{DETECTORS}policies: {{p: {{{keys}}}}}").policies["p"]


def _faults(loader: Loader, keys: str) -> list[str]:
    faults = loader.faults(f"{DETECTORS}policies: {{p: {{{keys}}}}}")
    return [fault.removeprefix("config.yaml: policies.p.") for fault in faults]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", {}),
        (
            "unreadable: refuse",
            dict.fromkeys(("image", "audio", "file", "encrypted", "reference", "numbers"), "refuse"),
        ),
        ("unreadable: {image: pass, numbers: refuse}", {"image": "pass", "numbers": "refuse"}),
    ],
)
def test_unreadable_has_one_word_or_one_for_each_kind(loader: Loader, keys: str, words: dict[str, str]) -> None:  # D-34
    assert _policy(loader, keys).unreadable == words


@pytest.mark.parametrize(
    ("keys", "is_replaced"), [("", True), ("tool_results: replace", True), ("tool_results: block", False)]
)
def test_results_of_tools_are_replaced_unless_the_policy_blocks(
    loader: Loader, keys: str, *, is_replaced: bool
) -> None:
    assert _policy(loader, keys).replaces_tool_results is is_replaced


def test_a_detector_of_the_input_may_read_some_roles(loader: Loader) -> None:  # D-33
    policy = _policy(loader, "input: {pii: {roles: [User, tool], entities: [EmailAddress]}}")
    assert policy.own_roles == {"pii": frozenset({"user", "tool"})}
    assert policy.input == {"pii": {"entities": ["EmailAddress"]}}


def test_prompt_injection_reads_users_and_tools_unless_the_policy_names_roles(loader: Loader) -> None:  # D-33
    assert _policy(loader, "input: {attacks: {}, pii: {}}").own_roles == {"attacks": TOOLS}
    assert _policy(loader, "input: {attacks: {roles: [system]}}").own_roles == {"attacks": frozenset({"system"})}
    assert _policy(loader, "documents: {attacks: {}}").own_roles == {}


def test_a_threshold_may_differ_by_role(loader: Loader) -> None:
    policy = _policy(loader, "input: {attacks: {threshold: {user: 0.9, tool: 0.5}}, pii: {threshold: 0.7}}")
    assert policy.role_thresholds == {"attacks": {"user": 0.9, "tool": 0.5}}
    assert policy.input == {"attacks": {}, "pii": {"threshold": 0.7}}


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("unreadable: drop", "unreadable: must be one of refuse, pass, not `drop`"),
        ("unreadable: {pictures: pass}", "unreadable.pictures: no such key"),
        ("unreadable: {image: drop}", "unreadable.image: must be one of refuse, pass, not `drop`"),
        ("tool_results: drop", "tool_results: must be one of replace, block, not `drop`"),
        ("input: {pii: {roles: [king]}}", "input.pii.roles: must be one of system"),
        ("input: {pii: {roles: user}}", "input.pii.roles: must be a list of strings"),
        ("input: {pii: {threshold: {king: 1}}}", "input.pii.threshold.king: no such key"),
        ("input: {pii: {threshold: {user: high}}}", "input.pii.threshold.user: must be a number"),
    ],
)
def test_a_wrong_word_is_named_with_its_place(loader: Loader, keys: str, fault: str) -> None:
    found: list[Any] = _faults(loader, keys)
    assert len(found) == 1
    assert found[0].startswith(fault)
