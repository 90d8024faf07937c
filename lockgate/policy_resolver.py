# SPDX-License-Identifier: Apache-2.0
"""PolicyResolver: builds the Policy of a request from the settings and the request's own detectors, on every surface.

A resolved policy serves all requests until the settings change. For each request it is bound to the readings that
have a state or forward headers.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from lockgate.config.policies import SECTION_TYPES, PolicySettings
from lockgate.config.policy_merge import NAME_JOINER, merge_all
from lockgate.config.settings import Settings
from lockgate.errors import InvalidRequest
from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC
from lockgate.guard.detectors import ActiveGuard, ChosenDetectors, Guard, Rules, apply_failure_policy, choose, prepare
from lockgate.guard.input_cache import InputCache
from lockgate.guard.policy import NO_POLICY, Policy
from lockgate.interfaces import Headers

Requested = Mapping[str, Mapping[str, Mapping[str, Any]]]  # a request's own detectors, by section

_MAX_POLICIES = 256
_MAX_OWN_BYTES = 1024  # of a request's own detectors and fallback
_SIMPLE = (int, float, type(None))  # types of parameters that are small; texts and lists may be large patterns
_NOTHING: Requested = MappingProxyType({})
ONLY_CONTENT = ("content",)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """The texts that detectors read at one kind of endpoint.

    `rules` has the rules of each section that is read. `blame` opens a context around the choice of a section.
    """

    rules: Mapping[str, Rules]
    lanes: tuple[str, ...] | None = ONLY_CONTENT  # None: those that the policy names
    refuses_input: bool = False  # a finding of a request's own detector in the input ends the request
    trusts_chunks: bool = False
    blame: Callable[[str], AbstractContextManager[Any]] = nullcontext


_CONTENTS = Rules((TEXT_CONTENTS,))
_CLAIMS = Rules((TEXT_CONTEXT_DOC,))
_AGENT = Surface({"input": _CONTENTS, "documents": _CONTENTS, "output": _CONTENTS, "grounding": _CLAIMS})


class PolicyResolver:
    """The detectors of a process, and a cache of the 256 policies that were used last."""

    def __init__(self, settings: Settings, guards: Mapping[str, Guard]) -> None:
        self.guards = guards
        self.settings = settings
        self._kept: dict[Hashable, Policy] = {}  # in the order of their last use
        self._joined: dict[str, PolicySettings] = {}  # merges with required policies, by name
        self._cache = InputCache()

    def find(self, name: str) -> PolicySettings:
        """Returns the policy of that name, from the settings or from `join`; raises InvalidRequest."""
        policy = self.settings.policies.get(name) or self._joined.get(name)
        if policy is None:
            raise InvalidRequest(f"policy `{name}` not found")
        return policy

    def join(self, required: Sequence[str], chosen: str | None) -> PolicySettings:
        """Returns one policy in which the required ones are in force, and the one that a request chooses besides."""
        policies = self.settings.policies
        if chosen is not None and chosen not in policies:
            raise InvalidRequest(f"policy `{chosen}` not found")
        names = dict.fromkeys(required if chosen is None else (*required, chosen))
        name = NAME_JOINER.join(names)
        found = policies.get(name) or self._joined.get(name)
        if found is None:
            thresholds = {name: one.default_threshold for name, one in self.settings.detectors.items()}
            found = self._joined[name] = merge_all([policies[one] for one in names], thresholds)
        return found

    async def resolve(
        self,
        surface: Surface,
        policy: PolicySettings,
        requested: Requested = _NOTHING,
        headers: Headers = (),
        *,
        is_metered: bool = True,
    ) -> Policy:
        """Returns the policy of a request; raises RequestError for an unknown or unsuitable detector."""
        own = _encode(requested) if any(requested.values()) else b""
        variant: Hashable = policy.name
        if not policy.name:
            variant = (policy.on_input, policy.on_documents, policy.on_output, policy.on_grounding, policy.fallback)
        build = partial(self._build, surface, policy, requested, is_metered=is_metered)
        if (own or not policy.name) and not _is_small(own, policy.fallback, requested):
            return await prepare(_list_params(policy, requested), partial(build, headers))
        key = (surface, variant, own, is_metered)
        found = self._kept.pop(key, None)
        if found is None:
            found = await prepare(_list_params(policy, requested), build)
            self._make_room()
        self._kept[key] = found
        own_params = [one.params for part in found.unshared for one in getattr(found, part)]
        if not own_params:
            return found.bind(headers)
        return await prepare(own_params, partial(found.bind, headers))

    def resolve_for_agent(self, policy: PolicySettings | None) -> Callable[[], Policy]:
        """Returns a function that makes the policy of each turn; agents take no detectors or headers from requests."""
        if policy is None:
            return partial(NO_POLICY.bind, ())
        key = (_AGENT, policy.name)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._build(_AGENT, policy, _NOTHING)
            self._make_room()
        self._kept[key] = found
        return partial(found.bind, ())

    def _make_room(self) -> None:
        if len(self._kept) >= _MAX_POLICIES:
            del self._kept[next(iter(self._kept))]

    def _build(
        self,
        surface: Surface,
        policy: PolicySettings,
        requested: Requested,
        headers: Headers = (),
        *,
        is_metered: bool = True,
    ) -> Policy:
        """Builds the policy: the detectors of each section, with the policy's parameters if both name one."""
        settings, selected = self.settings, dict.fromkeys(SECTION_TYPES, ChosenDetectors())
        for section, rules in surface.rules.items():
            named = {**requested.get(section, {}), **getattr(policy, section)}
            if section == "output" and policy.measures(section).changes_text(named):
                rules = replace(rules, whole_text_holds=True)
            with surface.blame(section):
                chosen = choose(self.guards, named, rules, headers)
            passes, max_hold_s = partial(policy.passes, section), partial(policy.max_hold_s, section)
            selected[section] = apply_failure_policy(chosen, passes, max_hold_s)
        inputs = tuple([_with_roles(one, policy) for one in selected["input"].contents])
        for_output, for_grounding = policy.measures("output"), policy.measures("grounding")
        comparing = {one.guard.id: for_grounding.of(one.guard.id) for one in selected["grounding"].reviews}
        own_input = requested.get("input", {}) if surface.refuses_input else {}
        return Policy(
            input=inputs,
            documents=selected["documents"].contents,
            output=selected["output"].contents,
            grounding=selected["grounding"].reviews,
            reviews=selected["output"].reviews,
            for_input=policy.measures("input"),
            for_documents=policy.measures("documents"),
            for_output=for_output._replace(
                actions={**for_output.actions, **comparing},
                own=None if for_output.own is None else for_output.own | frozenset(policy.grounding),
            ),
            name=policy.name,
            is_shadow=policy.is_shadow,
            is_speculative=policy.is_speculative,
            masks_sources=policy.masks_sources,
            grounding_holds=settings.grounding == "hold",
            max_open=settings.detector_concurrent_requests,
            max_cuts=settings.chunker_concurrent_requests,
            max_chars=settings.limits.max_held_chars,
            trusts_chunks=surface.trusts_chunks,
            lanes=surface.lanes or (policy.lanes if policy.name else ONLY_CONTENT),
            refusing=frozenset(own_input) - policy.input.keys(),
            unused=() if "grounding" in surface.rules else tuple(policy.grounding),
            refuses_ungrounded=policy.refuses_ungrounded,
            is_metered=is_metered,
            unreadable=policy.unreadable,
            names_key=bytes.fromhex(settings.names_key.reveal()),
            replaces_tool_results=policy.replaces_tool_results and bool(policy.name),
            cached_reads=self._cache.open() if policy.name and inputs else None,
        )


def _with_roles(one: ActiveGuard, policy: PolicySettings) -> ActiveGuard:
    """Returns a detector of the input with the roles that it reads, and its thresholds by role."""
    name = one.guard.id
    if name not in policy.own_roles and name not in policy.role_thresholds:
        return one
    return replace(one, roles=policy.own_roles.get(name), thresholds=policy.role_thresholds.get(name, {}))


def _is_small(own: bytes, fallback: str, requested: Requested) -> bool:
    """Whether a request's own detectors are small enough for the cache."""
    if len(own) + len(fallback) > _MAX_OWN_BYTES:
        return False
    named = [params for section in requested.values() for params in section.values()]
    return all(isinstance(value, _SIMPLE) for params in named for value in params.values())


def _list_params(policy: PolicySettings, requested: Requested) -> list[Mapping[str, Any]]:
    """The parameters of all detectors that a request and its policy name."""
    sections = [*requested.values(), policy.input, policy.documents, policy.output, policy.grounding]
    return [params for section in sections for params in section.values()]
