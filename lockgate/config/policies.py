# SPDX-License-Identifier: Apache-2.0
"""Policies: which detectors read which part of a request, and what happens to text with findings."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.config import kinds
from lockgate.config.draft import INVALID, Draft, check_named, read_fields, read_value
from lockgate.config.kinds import empty_map
from lockgate.config.policy_keys import LANES, PolicyKeys
from lockgate.config.refs import check_segment
from lockgate.config.schema import Path
from lockgate.config.settings import DetectorSettings, Grounding
from lockgate.gate.coverage import KINDS
from lockgate.gate.messages import ROLES
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_CONTEXT_DOC, TEXT_GENERATION, WHOLE_TEXT_CHUNKER
from lockgate.gate.verdicts import (
    DOCUMENT_WORDS,
    REPLACING,
    TEXT_ACTIONS,
    TEXT_WORDS,
    Action,
    DocumentAction,
    MaskWith,
    Measures,
)

Params = Mapping[str, Mapping[str, Any]]
Detectors = Mapping[str, DetectorSettings | None]

# The types of detectors that can read each section.
SECTION_TYPES = {
    "input": (TEXT_CONTENTS,),
    "documents": (TEXT_CONTENTS,),
    "output": (TEXT_CONTENTS, TEXT_CHAT, TEXT_GENERATION),
    "grounding": (TEXT_CONTEXT_DOC,),
}
_DOCUMENTS_BY_TEXT = {word: word if word in DOCUMENT_WORDS else "drop" for word in TEXT_WORDS} | {"annotate": "flag"}
_SECTION_WORDS = {section: tuple(DOCUMENT_WORDS if section == "documents" else TEXT_WORDS) for section in SECTION_TYPES}
_ON_FINDING, _ON_FAILURE, _MAX_HOLD = "on_finding", "on_detector_failure", "max_hold_ms"
_FAILURE_WORDS = ("fail", "pass")
_UNREADABLE_WORDS = ("refuse", "pass")
_READ_ROLES = {"prompt_injection": frozenset({"user", "tool", "function"})}  # by embedded detector; others read all


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySettings:
    """One policy, checked. `on_*` apply to all detectors of a section, `own_*` to single ones.

    No action on `input` is STOP: a question is blocked instead. Detectors that change `output` have type text_contents.
    """

    name: str
    input: Params = dataclasses.field(default_factory=empty_map)
    documents: Params = dataclasses.field(default_factory=empty_map)
    output: Params = dataclasses.field(default_factory=empty_map)
    grounding: Params = dataclasses.field(default_factory=empty_map)
    on_input: Action = Action.ANNOTATE
    on_documents: DocumentAction = DocumentAction.FLAG
    on_output: Action = Action.ANNOTATE
    on_grounding: Action = Action.ANNOTATE
    fallback: str = PolicyKeys().fallback
    passes_failures: bool = False
    own_actions: Mapping[str, Mapping[str, Action | DocumentAction]] = dataclasses.field(default_factory=empty_map)
    own_failures: Mapping[str, Mapping[str, bool]] = dataclasses.field(default_factory=empty_map)
    own_limits: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=empty_map)  # max_hold_ms
    is_shadow: bool = False
    mask_with: MaskWith = MaskWith.BLOCK
    lanes: tuple[str, ...] = PolicyKeys().lanes
    is_speculative: bool = False
    masks_sources: bool = True
    refuses_ungrounded: bool = False
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=empty_map)  # by kind, as far as given
    replaces_tool_results: bool = True
    own_roles: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=empty_map)  # of detectors of the input
    role_thresholds: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=empty_map)

    def measures(self, section: str) -> Measures:
        """Return what happens to text with findings in a section; actions of documents become those of texts."""
        own = self.own_actions.get(section, {})
        actions = {name: _to_text_action(action) for name, action in own.items()}
        action = _to_text_action(getattr(self, f"on_{section}"))
        own_detectors = frozenset(getattr(self, section)) if self.name else None
        return Measures(action, MappingProxyType(actions), self.mask_with, self.fallback, self.is_shadow, own_detectors)

    def passes(self, section: str, detector_id: str) -> bool:
        """Return whether text may leave when this detector fails."""
        return self.own_failures.get(section, {}).get(detector_id, self.passes_failures)

    def max_hold_s(self, section: str, detector_id: str) -> float | None:
        """Return how long this detector may hold a text; None without a limit."""
        limit = self.own_limits.get(section, {}).get(detector_id)
        return None if limit is None else limit / 1000

    def actions(self) -> dict[str, str]:
        """Return the action of each section that has detectors, as the settings write it."""
        return {section: self.action(section) for section in SECTION_TYPES if getattr(self, section)}

    def action(self, section: str, detector_id: str | None = None) -> str:
        """Return the action of a section, or of one of its detectors, as the settings write it."""
        action: Action | DocumentAction = getattr(self, f"on_{section}")
        if detector_id is not None:
            action = self.own_actions.get(section, {}).get(detector_id, action)
        return action.name.lower()

    def as_keys(self) -> dict[str, Any]:
        """Return the policy as a config file has it."""
        keys = {section: self._as_section(section) for section in SECTION_TYPES} | {_ON_FINDING: self.actions()}
        given: dict[str, Any] = {"mode": "shadow" if self.is_shadow else "enforce"}
        given |= {key: value for key, value in keys.items() if value}
        return given | {
            "mask_with": self.mask_with.value,
            "lanes": list(self.lanes),
            "fallback": self.fallback,
            _ON_FAILURE: _FAILURE_WORDS[self.passes_failures],
            "speculative": self.is_speculative,
            "sources": "mask" if self.masks_sources else "clear",
            "grounding_without_documents": "refuse" if self.refuses_ungrounded else "pass",
            **({"unreadable": dict(self.unreadable)} if self.unreadable else {}),
            "tool_results": "replace" if self.replaces_tool_results else "block",
        }

    def _as_section(self, section: str) -> dict[str, Any]:
        own, failures = self.own_actions.get(section, {}), self.own_failures.get(section, {})
        limits = self.own_limits.get(section, {})
        return {
            name: {
                **params,
                **({_ON_FINDING: self.action(section, name)} if name in own else {}),
                **({_ON_FAILURE: _FAILURE_WORDS[failures[name]]} if name in failures else {}),
                **({_MAX_HOLD: limits[name]} if name in limits else {}),
                **(self._as_roles(name) if section == "input" else {}),
            }
            for name, params in getattr(self, section).items()
        }

    def _as_roles(self, name: str) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if name in self.own_roles:
            keys["roles"] = [role for role in ROLES if role in self.own_roles[name]]
        if name in self.role_thresholds:
            keys["threshold"] = dict(self.role_thresholds[name])
        return keys


def _to_text_action(action: Action | DocumentAction) -> Action:
    return TEXT_ACTIONS[action] if isinstance(action, DocumentAction) else action


def read_policies(draft: Draft, detectors: Detectors, grounding: Grounding) -> Mapping[str, PolicySettings]:
    """Return the policies of the draft. `grounding`: whether detectors that compare with documents hold the answer."""
    raw = draft.read_map(draft.tree.get("policies"), ("policies",))
    policies = {name: _read_policy(draft, name, value, detectors) for name, value in raw.items()}
    if grounding == "trail":
        for policy in policies.values():
            _check_grounding(draft, policy)
    return MappingProxyType(policies)


def check_judges(draft: Draft, found: Mapping[str, Any]) -> None:
    """Add a fault for each model of an `llm_judge` detector that does not exist."""
    for name, one in found["detectors"].items():
        model = one.options.get("model") if one is not None and one.embedded == "llm_judge" else None
        if isinstance(model, str):  # the detector rejects other types itself
            check_named(draft, ("detectors", name, "options", "model"), "models", model, found["models"])


def check_default_policies(draft: Draft, found: Mapping[str, Any]) -> None:
    """Add a fault for each default policy that does not exist, and warn of those that have no effect."""
    if (moderation := found.get("moderation")) is not None and moderation.policy is not None:
        check_named(draft, ("moderation", "policy"), "policies", moderation.policy, found["policies"])
    models = {name: one for name, one in found["models"].items() if one is not None and one.policy is not None}
    named: dict[Path, Any] = {("models", name, "policy"): one.policy for name, one in models.items()}
    if found.get("openai") is not None:
        named |= {("openai", "policies", name): policy for name, policy in found["openai"].policies.items()}
    for path, policy in named.items():
        if not isinstance(policy, str):
            draft.add_fault(path, f"must be a string, not {kinds.describe(policy)}")
        elif policy not in found["policies"]:
            check_named(draft, path, "policies", policy, found["policies"])
        elif path[0] == "openai" and not (found["policies"][policy].input or found["policies"][policy].output):
            reason = f"`{policy}` has no detectors of `input` or `output`"
            draft.warn(f"{'.'.join(path)} guards nothing: {reason}, and completions have no documents")
        elif found["policies"][policy].grounding:
            outcome = "is refused" if found["policies"][policy].refuses_ungrounded else "passes uncompared"
            reason = f"`{policy}` compares answers with documents, and a completion must bring them in `documents`"
            draft.warn(f"{'.'.join(path)}: {reason}; one without {outcome}")


def _read_policy(draft: Draft, name: str, value: object, detectors: Detectors) -> PolicySettings:
    path = ("policies", name)
    if not name:
        draft.add_fault(path, "a policy needs a name: the key must not be empty")
    elif check_segment(name) is not None or "@" in name:
        draft.warn(f"policies.{name} cannot be named in a path or after a model: rename it without @ / ? # %")
    keys = PolicyKeys(**read_fields(draft, PolicyKeys, draft.read_map(value, path), path))
    entries = {section: _read_section(draft, keys, (*path, section), detectors) for section in SECTION_TYPES}
    words = _read_actions(draft, keys, (*path, _ON_FINDING))
    policy = PolicySettings(
        name,
        **{
            section: MappingProxyType({id_: one.params for id_, one in found.items()})
            for section, found in entries.items()
        },
        on_input=_as_action("input", words["input"]),  # type: ignore[arg-type]
        on_documents=DOCUMENT_WORDS[words["documents"]],
        on_output=TEXT_WORDS[words["output"]],
        on_grounding=TEXT_WORDS[words["grounding"]],
        fallback=keys.fallback,
        passes_failures=keys.on_detector_failure == "pass",
        own_actions=_collect(entries, lambda section, one: _as_action(section, one.on_finding)),
        own_failures=_collect(entries, lambda _, one: None if one.on_failure is None else one.on_failure == "pass"),
        own_limits=_collect(entries, lambda _, one: one.max_hold_ms),
        is_shadow=keys.mode == "shadow",
        mask_with=MaskWith(keys.mask_with),
        lanes=tuple(lane for lane in LANES if lane in keys.lanes),
        is_speculative=keys.speculative,
        masks_sources=keys.sources == "mask",
        refuses_ungrounded=keys.grounding_without_documents == "refuse",
        unreadable=_read_unreadable(draft, keys.unreadable, (*path, "unreadable")),
        replaces_tool_results=keys.tool_results == "replace",
        own_roles=_collect(entries, lambda section, one: one.roles if section == "input" else None).get("input", {}),
        role_thresholds=_collect(entries, lambda _, one: one.thresholds).get("input", {}),
    )
    _check_output(draft, policy, detectors)
    _add_warnings(draft, policy)
    return policy


class _DetectorEntry(NamedTuple):
    """A detector in a section: its parameters, and the settings that apply to it alone."""

    params: Mapping[str, Any]
    on_finding: str | None = None
    on_failure: str | None = None
    max_hold_ms: int | None = None
    roles: frozenset[str] | None = None
    thresholds: Mapping[str, float] | None = None


def _as_action(section: str, word: str | None) -> Action | DocumentAction | None:
    if word is None:
        return None
    if section == "documents":
        return DOCUMENT_WORDS[word]
    return Action.BLOCK if section == "input" and word == "stop" else TEXT_WORDS[word]


def _collect(
    entries: Mapping[str, Mapping[str, _DetectorEntry]], take: Callable[[str, _DetectorEntry], Any]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the values that apply to single detectors, by section; `take` gets the value of one, or None."""
    found = {
        section: MappingProxyType(
            {name: value for name, one in of.items() if (value := take(section, one)) is not None}
        )
        for section, of in entries.items()
    }
    return MappingProxyType({section: own for section, own in found.items() if own})


def _read_section(draft: Draft, keys: PolicyKeys, path: Path, detectors: Detectors) -> Mapping[str, _DetectorEntry]:
    """Return the entries by detector. A faulty detector is kept, so that later checks do not report it as missing."""
    section = path[-1]
    raw: Mapping[str, Any] = getattr(keys, section)
    for detector_id in raw:
        detector = detectors.get(detector_id)
        if detector_id not in detectors:
            hint = kinds.suggest(detector_id, list(detectors)) or "; add it to `detectors`, or name another"
            draft.add_fault((*path, detector_id), f"detector `{detector_id}` not found{hint}")
        elif detector is not None and detector.type not in SECTION_TYPES[section]:
            allowed = " or ".join(SECTION_TYPES[section])
            message = f"detector `{detector_id}` is of type {detector.type}; `{section}` needs {allowed}"
            draft.add_fault((*path, detector_id), message)
    entries = {key: _read_entry(draft, value, (*path, key)) for key, value in raw.items()}
    if section != "input":
        return entries
    return {key: _choose_roles(one, detectors.get(key)) for key, one in entries.items()}


def _choose_roles(entry: _DetectorEntry, detector: DetectorSettings | None) -> _DetectorEntry:
    """Return the entry with the roles that its detector reads if the policy names none."""
    known = _READ_ROLES.get(detector.embedded or "") if detector is not None else None
    return entry if entry.roles is not None or known is None else entry._replace(roles=known)


def _read_entry(draft: Draft, value: object, path: Path) -> _DetectorEntry:
    params = dict(draft.read_map(value, path))
    roles, thresholds = _read_roles(draft, params, path) if path[-2] == "input" else (None, None)
    if "threshold" in params:
        threshold = read_value(draft, kinds.NUMBER, params["threshold"], (*path, "threshold"))
        if threshold is not INVALID and threshold > 1:
            draft.warn(f"{'.'.join((*path, 'threshold'))} is above 1, so nothing is reported: scores are at most 1")
    words = {_ON_FINDING: _SECTION_WORDS[path[-2]], _ON_FAILURE: _FAILURE_WORDS}
    known = {key: kinds.choice(*allowed) for key, allowed in words.items()} | {_MAX_HOLD: kinds.POSITIVE}
    own = {key: read_value(draft, kind, params.pop(key), (*path, key)) for key, kind in known.items() if key in params}
    valid = {key: word for key, word in own.items() if word is not INVALID}
    entry = _DetectorEntry(MappingProxyType(params), *[valid.get(key) for key in known])
    return entry._replace(roles=roles, thresholds=thresholds)


def _read_roles(
    draft: Draft, params: dict[str, Any], path: Path
) -> tuple[frozenset[str] | None, Mapping[str, float] | None]:
    """Take `roles`, and `threshold` if it is a map by role, from the parameters of a detector of the input."""
    roles = thresholds = None
    if "roles" in params:
        read = read_value(draft, kinds.words_of(*ROLES), params.pop("roles"), (*path, "roles"))
        roles = None if read is INVALID else frozenset(read)
    if isinstance(params.get("threshold"), Mapping):
        found = {}
        for role, value in params.pop("threshold").items():
            place = (*path, "threshold", role)
            if role not in ROLES:
                draft.add_fault(place, kinds.describe_unknown_key(str(role), list(ROLES)))
            elif (number := read_value(draft, kinds.NUMBER, value, place)) is not INVALID:
                found[role] = number
        thresholds = MappingProxyType(found)
    return roles, thresholds


def _read_unreadable(draft: Draft, given: str | Mapping[str, Any] | None, path: Path) -> Mapping[str, str]:
    """Return the word of each kind of unreadable values that is given one."""
    if given is None:
        return empty_map()
    if isinstance(given, str):
        word = read_value(draft, kinds.choice(*_UNREADABLE_WORDS), given, path)
        return {} if word is INVALID else dict.fromkeys(KINDS, word)
    words = {}
    for kind, value in given.items():
        if kind not in KINDS:
            draft.add_fault((*path, kind), kinds.describe_unknown_key(str(kind), list(KINDS)))
        elif (word := read_value(draft, kinds.choice(*_UNREADABLE_WORDS), value, (*path, kind))) is not INVALID:
            words[kind] = word
    return words


def _read_actions(draft: Draft, keys: PolicyKeys, path: Path) -> dict[str, str]:
    """Return the action of each section, as a word that is valid there."""
    given = keys.on_finding
    words = {section: "flag" if section == "documents" else "annotate" for section in SECTION_TYPES}
    if not isinstance(given, str):
        return words | _read_section_actions(draft, keys, given, path)
    if given in DOCUMENT_WORDS and given not in TEXT_WORDS:
        if keys.input or keys.output or keys.grounding or not keys.documents:
            draft.add_fault(path, f"`{given}` is for documents only: write `{{documents: {given}}}`")
        return words | {"documents": given}
    word = read_value(draft, kinds.choice(*TEXT_WORDS), given, path)
    return words if word is INVALID else dict.fromkeys(words, word) | {"documents": _DOCUMENTS_BY_TEXT[word]}


def _read_section_actions(draft: Draft, keys: PolicyKeys, given: Mapping[str, Any], path: Path) -> dict[str, str]:
    words = {}
    for section, value in given.items():
        if section not in _SECTION_WORDS:
            draft.add_fault((*path, section), f"no such section; on_finding has {', '.join(_SECTION_WORDS)}")
            continue
        word = read_value(draft, kinds.choice(*_SECTION_WORDS[section]), value, (*path, section))
        if word is not INVALID:
            words[section] = word
        if not getattr(keys, section):
            draft.warn(f"{'.'.join((*path, section))} has no effect: the policy has no detectors of `{section}`")
    return words


def _check_output(draft: Draft, policy: PolicySettings, detectors: Detectors) -> None:
    """Add a fault for each detector that reports too late to change the answer."""
    measures = policy.measures("output")
    for detector_id in policy.output:
        path = ("policies", policy.name, "output", detector_id)
        detector = detectors.get(detector_id)
        action = measures.of(detector_id)
        if action is Action.ANNOTATE or detector is None or detector.type not in SECTION_TYPES["output"]:
            continue
        word = action.name.lower()
        if detector.type != TEXT_CONTENTS:
            reason = f"a detector of type {detector.type} reads the answer only when it is complete"
            draft.add_fault(path, f"{reason}, too late to {word} it: use annotate, or a detector of type text_contents")
        elif detector.chunker_id == WHOLE_TEXT_CHUNKER and not policy.is_shadow:
            draft.warn(f"{'.'.join(path)} reads the whole answer: with {word}, all of a stream waits for its end")


def _check_grounding(draft: Draft, policy: PolicySettings) -> None:
    """Add a fault for each action of `grounding` that comes too late, at the end of the answer."""
    measures, own = policy.measures("grounding"), policy.own_actions.get("grounding", {})
    places: dict[Path, Action] = {}
    for name in policy.grounding:
        places[("grounding", name, _ON_FINDING) if name in own else (_ON_FINDING, "grounding")] = measures.of(name)
    too_late = "with `grounding: trail` its findings come when the answer has left, too late to"
    for place, action in places.items():
        if action is not Action.ANNOTATE:
            message = f"{too_late} {action.name.lower()} it: use annotate, or `grounding: hold`"
            draft.add_fault(("policies", policy.name, *place), message)


def _add_warnings(draft: Draft, policy: PolicySettings) -> None:
    path = f"policies.{policy.name}"
    if not any(getattr(policy, section) for section in SECTION_TYPES):
        draft.warn(f"{path} has no detectors: it guards nothing")
    if policy.is_shadow:
        draft.warn(f"{path}.mode is shadow: findings are reported and change nothing")
    if policy.passes_failures:
        draft.warn(f"{path}.on_detector_failure is pass: when a detector fails, text leaves unread")
    for section, failures in policy.own_failures.items():
        for detector_id in [name for name, passes in failures.items() if passes and not policy.passes_failures]:
            place = f"{path}.{section}.{detector_id}.on_detector_failure"
            draft.warn(f"{place} is pass: when the detector fails, text leaves unread")
    if not policy.lanes and (policy.output or policy.grounding):
        draft.warn(f"{path}.lanes is empty: no detector reads the model's answer")
    if policy.is_speculative and not policy.input:
        draft.warn(f"{path}.speculative has no effect: the policy has no detectors of `input`")
    if not policy.masks_sources:
        lack = "has no effect: the policy has no detectors of `output`"
        draft.warn(f"{path}.sources {'is clear: documents leave in `sources` unread' if policy.output else lack}")
    masking = [name for name in policy.input if policy.measures("input").of(name) in REPLACING]
    if policy.is_speculative and masking and not policy.is_shadow:
        reason = f"`{masking[0]}` masks the input, and the model must not see it unmasked"
        draft.warn(f"{path}.speculative has no effect: {reason}")
