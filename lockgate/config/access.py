# SPDX-License-Identifier: Apache-2.0
"""Lists the policies that are always in force, and checks the settings that say who decides."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

from lockgate.config import kinds
from lockgate.config.caller_settings import CallerSettings
from lockgate.config.draft import Draft, check_named
from lockgate.config.grants import AGENT_PREFIX, SYNONYMS
from lockgate.config.policies import PolicySettings
from lockgate.config.policy_merge import NAME_JOINER, find_conflicts
from lockgate.config.schema import Path
from lockgate.config.settings import Settings

_SECTIONS = ("callers", "models", "openai", "required_policies")  # that name required policies


class Requirement(NamedTuple):
    """A setting that keeps a policy in force, and what it counts for in words."""

    key: Path
    place: str
    policy: Any  # a string, once it is checked


def list_requirements(settings: Settings) -> list[Requirement]:
    """Return every required policy of the settings."""
    return _list_requirements({name: getattr(settings, name) for name in _SECTIONS})


def _list_requirements(found: Mapping[str, Any]) -> list[Requirement]:
    listed = []
    for section, noun in (("callers", "caller"), ("models", "model")):
        for name, one in found[section].items():
            if one is not None and one.required_policy is not None:
                listed.append(Requirement((section, name, "required_policy"), f"{noun} {name}", one.required_policy))
    openai, by_path = found.get("openai"), found.get("required_policies", {})
    for name, policy in openai.required_policies.items() if openai is not None else ():
        listed.append(Requirement(("openai", "required_policies", name), f"openai {name}", policy))
    return listed + [Requirement(("required_policies", path), f"path {path}", by_path[path]) for path in by_path]


def check_access(draft: Draft, found: Mapping[str, Any]) -> None:
    """Add a fault for each name that does not exist and each pair of required policies that cannot both be kept."""
    for caller in found["callers"].values():
        if caller is not None:
            _check_caller(draft, caller, found)
    if not (required := _list_requirements(found)):
        return
    for one in required:
        if not isinstance(one.policy, str):
            draft.add_fault(one.key, f"must be a string, not {kinds.describe(one.policy)}")
        else:
            check_named(draft, one.key, "policies", one.policy, found["policies"])
    for name in found["policies"]:
        if NAME_JOINER in name:
            draft.add_fault(("policies", name), f"with required policies no name may have `{NAME_JOINER}`: rename it")
    known = {one.policy: one for one in required if isinstance(one.policy, str) and one.policy in found["policies"]}
    _check_parameters(draft, known, found["policies"])


def _check_caller(draft: Draft, caller: CallerSettings, found: Mapping[str, Any]) -> None:
    for policy in caller.policies or ():
        check_named(draft, ("callers", caller.name, "policies"), "policies", policy, found["policies"])
    known = {*found["models"], *[AGENT_PREFIX + name for name in found["agents"]], *SYNONYMS}
    others = found.get("openai") or found.get("generation")  # their models have names that are not in the settings
    for model in [one for one in caller.models or () if one not in known and not others and "://" not in one]:
        draft.warn(f"callers.{caller.name}.models: there is no model or agent `{model}`")


def _check_parameters(
    draft: Draft, required: Mapping[str, Requirement], policies: Mapping[str, PolicySettings]
) -> None:
    """Add a fault where two required policies give a detector other parameters, a warning where other policies do."""
    for first, second in combinations(required, 2):
        for detector in dict.fromkeys(find_conflicts(policies[first], policies[second])):
            message = f"`{first}` is required too and gives `{detector}` other parameters: write the same in both"
            draft.add_fault(required[second].key, message)
    for name in required:
        for other in [one for one in policies if one not in required]:
            for detector in dict.fromkeys(find_conflicts(policies[name], policies[other])):
                reason = f"`{name}`, which is required, gives it others"
                draft.warn(f"policies.{other}: parameters of `{detector}` have no effect where {reason}")
