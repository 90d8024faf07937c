# SPDX-License-Identifier: Apache-2.0
"""Joins a required policy and another one: everything that either of them does is done, and the stricter action counts.

A merge releases no more than the required policy, nor than the other one, with one exception: a detector that both
name has the required policy's parameters. Its threshold is the lower one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import Any

from lockgate.config.policies import SECTION_TYPES, Params, PolicySettings
from lockgate.config.policy_keys import LANES
from lockgate.gate.coverage import KINDS
from lockgate.gate.verdicts import REPLACING, Action, DocumentAction, MaskWith

NAME_JOINER = "+"  # the name of a merge is the names of its policies
_THRESHOLD = "threshold"
Thresholds = Mapping[str, float]  # the default of each detector


def merge_all(policies: Iterable[PolicySettings], thresholds: Thresholds) -> PolicySettings:
    """Return the merge of policies, of which each is required of those that follow."""
    return reduce(lambda merged, one: merge(merged, one, thresholds), policies)


def merge(required: PolicySettings, other: PolicySettings, thresholds: Thresholds) -> PolicySettings:
    """Return one policy with the detectors of both. `other` can only add to what the required policy does."""
    if not other.name or other.name in _list_parts(required):
        return required
    both = (required, other)
    sections: dict[str, Any] = {section: _join_params(section, *both, thresholds) for section in SECTION_TYPES}
    actions: dict[str, Any] = {f"on_{one}": max(getattr(of, f"on_{one}") for of in both) for one in SECTION_TYPES}
    return replace(
        required,
        name=f"{required.name}{NAME_JOINER}{other.name}",
        **sections,
        **actions,
        fallback=required.fallback if _ends_texts(required) else other.fallback,
        passes_failures=required.passes_failures and other.passes_failures,
        own_actions=_collect(both, _find_action, max),
        own_failures=_collect(both, PolicySettings.passes, all),
        own_limits=_collect(both, _find_limit, _choose_longest),
        is_shadow=required.is_shadow and other.is_shadow,
        masks_sources=required.masks_sources or other.masks_sources,
        refuses_ungrounded=required.refuses_ungrounded or other.refuses_ungrounded,
        mask_with=_choose_mask(required, other),
        lanes=tuple([lane for lane in LANES if lane in (*required.lanes, *other.lanes)]),
        is_speculative=all(one.is_speculative for one in both if one.input) and bool(sections["input"]),
        unreadable=_join_unreadable(both),
        replaces_tool_results=required.replaces_tool_results and other.replaces_tool_results,
        own_roles=_join_roles(both),
        role_thresholds=_join_role_thresholds(both, thresholds),
    )


def _list_parts(policy: PolicySettings) -> list[str]:
    return policy.name.split(NAME_JOINER)


def find_conflicts(one: PolicySettings, other: PolicySettings) -> list[str]:
    """Return the detectors to which two policies give different parameters in one section, besides the threshold."""
    found = []
    for section in SECTION_TYPES:
        first, second = getattr(one, section), getattr(other, section)
        shared = [name for name in first if name in second]
        found += [name for name in shared if _without_threshold(first[name]) != _without_threshold(second[name])]
    return found


def _without_threshold(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key != _THRESHOLD}


def _join_params(section: str, required: PolicySettings, other: PolicySettings, thresholds: Thresholds) -> Params:
    first, second = getattr(required, section), getattr(other, section)
    joined = {**second, **first}
    for name in first.keys() & second.keys():
        lower = _choose_lower(first[name], second[name], thresholds.get(name))
        joined[name] = MappingProxyType({**first[name], **lower})
    return MappingProxyType({name: joined[name] for name in [*first, *joined]})


def _choose_lower(first: Mapping[str, Any], second: Mapping[str, Any], default: float | None) -> dict[str, Any]:
    """Return the lower threshold of two, as a parameter; nothing if neither is set."""
    given = [one[_THRESHOLD] for one in (first, second) if _THRESHOLD in one]
    if not given:
        return {}
    return {_THRESHOLD: min(given if len(given) == 2 or default is None else [*given, default])}


def _join_unreadable(both: tuple[PolicySettings, ...]) -> Mapping[str, str]:
    """Return the stricter word for each kind of values that cannot be read; a policy without a word has its default."""
    words = {
        kind: {_find_word(one, kind) for one in both} for kind in KINDS if any(kind in one.unreadable for one in both)
    }
    return MappingProxyType({kind: "refuse" if "refuse" in said else "pass" for kind, said in words.items()})


def _find_word(policy: PolicySettings, kind: str) -> str:
    changes_text = kind != "encrypted" and any(action is not Action.ANNOTATE for action in _list_actions(policy))
    return policy.unreadable.get(kind, "refuse" if changes_text else "pass")


def _join_roles(both: tuple[PolicySettings, ...]) -> Mapping[str, frozenset[str]]:
    """Return the roles that each detector of the input reads: those of all policies that name it."""
    joined = {}
    for name in {name for one in both for name in one.input}:
        roles = [one.own_roles.get(name) for one in both if name in one.input]
        if None not in roles:
            joined[name] = frozenset().union(*[one for one in roles if one is not None])
    return MappingProxyType(joined)


def _join_role_thresholds(both: tuple[PolicySettings, ...], defaults: Thresholds) -> Mapping[str, Mapping[str, float]]:
    """Return the lower threshold for each role for which a policy has one."""
    joined = {}
    for name in {name for one in both for name in one.role_thresholds}:
        naming = [one for one in both if name in one.input]
        roles = {role for one in naming for role in one.role_thresholds.get(name, {})}
        joined[name] = MappingProxyType(
            {role: min([_find_threshold(one, name, role, defaults) for one in naming]) for role in sorted(roles)}
        )
    return MappingProxyType(joined)


def _find_threshold(policy: PolicySettings, name: str, role: str, defaults: Thresholds) -> float:
    general: float = policy.input[name].get(_THRESHOLD, defaults.get(name, 0))
    return policy.role_thresholds.get(name, {}).get(role, general)


def _collect(
    both: tuple[PolicySettings, ...], find: Callable[[PolicySettings, str, str], Any], join: Callable[[list[Any]], Any]
) -> Mapping[str, Mapping[str, Any]]:
    """Return by section and detector what the policies that name the detector say, joined; without None."""
    found: dict[str, dict[str, list[Any]]] = {}
    for policy in both:
        for section in SECTION_TYPES:
            for name in getattr(policy, section):
                found.setdefault(section, {}).setdefault(name, []).append(find(policy, section, name))
    return MappingProxyType(
        {
            section: MappingProxyType({name: one for name, said in of.items() if (one := join(said)) is not None})
            for section, of in found.items()
        }
    )


def _find_action(policy: PolicySettings, section: str, detector_id: str) -> Action | DocumentAction:
    action: Action | DocumentAction = getattr(policy, f"on_{section}")
    return policy.own_actions.get(section, {}).get(detector_id, action)


def _find_limit(policy: PolicySettings, section: str, detector_id: str) -> int | None:
    return policy.own_limits.get(section, {}).get(detector_id)


def _choose_longest(limits: list[int | None]) -> int | None:
    """Return the longest time that a detector may take: past it text may leave unread. None is no limit."""
    given = [one for one in limits if one is not None]
    return max(given) if len(given) == len(limits) else None


def _list_actions(policy: PolicySettings) -> list[Action]:
    return [policy.measures(section).of(name) for section in SECTION_TYPES for name in getattr(policy, section)]


def _ends_texts(policy: PolicySettings) -> bool:
    return any(action >= Action.STOP for action in _list_actions(policy))


def _choose_mask(required: PolicySettings, other: PolicySettings) -> MaskWith:
    """Return the required policy's kind of mask if it masks; but not names, which callers may ask the meaning of."""
    masking = [one for one in (required, other) if REPLACING.intersection(_list_actions(one))] or [required]
    return next((one.mask_with for one in masking if one.mask_with is not MaskWith.PSEUDONYM), masking[0].mask_with)
