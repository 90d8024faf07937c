# SPDX-License-Identifier: Apache-2.0
"""Policies: which detectors read which part of a request, and what becomes of text in which they find something.

Decides whether a policy can do what it says: its detectors exist and can read what their section gives them, and
text is not changed by detectors that read it only when it has left. What an action does to a text is decided in
`lockgate.core.verdicts`. Does not know the parameters of a detector, `threshold` excepted.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lockgate.config import kinds
from lockgate.config.draft import UNREAD, Draft, read_fields, read_value
from lockgate.config.options import empty_map
from lockgate.config.schema import Path
from lockgate.config.settings import DetectorSettings, Grounding, PolicyKeys
from lockgate.core.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_CONTEXT_DOC, TEXT_GENERATION, WHOLE_TEXT_CHUNKER
from lockgate.core.verdicts import Action, DocumentAction

Params = Mapping[str, Mapping[str, Any]]
Detectors = Mapping[str, DetectorSettings | None]

# What each section gives to read, hence which detectors can read it.
SECTION_TYPES = {
    "input": (TEXT_CONTENTS,),
    "documents": (TEXT_CONTENTS,),
    "output": (TEXT_CONTENTS, TEXT_CHAT, TEXT_GENERATION),
    "grounding": (TEXT_CONTEXT_DOC,),
}
TEXT_WORDS = {action.name.lower(): action for action in Action}
DOCUMENT_WORDS = {action.name.lower(): action for action in DocumentAction}
_DOCUMENTS_BY_TEXT = {"annotate": "flag", "mask": "mask", "stop": "drop", "block": "drop"}
_SECTION_WORDS = {section: tuple(DOCUMENT_WORDS if section == "documents" else TEXT_WORDS) for section in SECTION_TYPES}


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySettings:
    """One policy, resolved: the parameters of the detectors of each section, and one action per section.

    `on_input` is never STOP: of a question nothing goes back to the client, so there it is BLOCK. Where `on_output`
    is not ANNOTATE every output detector is of type text_contents, and must hold text, whole-document ones too. Where
    `on_grounding` is not ANNOTATE those that compare answer and documents hold text.
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

    def actions(self) -> dict[str, str]:
        """The word for each section that has detectors."""
        return {section: self.action(section) for section in SECTION_TYPES if getattr(self, section)}

    def action(self, section: str) -> str:
        """The word for a section."""
        action: Action | DocumentAction = getattr(self, f"on_{section}")
        return action.name.lower()

    def as_keys(self) -> dict[str, Any]:
        """The policy as a config file says it."""
        keys = {section: getattr(self, section) for section in SECTION_TYPES} | {"on_finding": self.actions()}
        failure = "pass" if self.passes_failures else "fail"
        given = {key: value for key, value in keys.items() if value}
        return given | {"fallback": self.fallback, "on_detector_failure": failure}


def read_policies(draft: Draft, detectors: Detectors, grounding: Grounding) -> Mapping[str, PolicySettings]:
    """The policies of the draft. A detector that is None is configured and faulty, which has been noted.

    `grounding`: whether detectors that compare answer and documents hold text.
    """
    raw = draft.take_map(draft.tree.get("policies"), ("policies",))
    policies = {name: _read_policy(draft, name, value, detectors) for name, value in raw.items()}
    if grounding == "trail":
        for policy in policies.values():
            _check_grounding(draft, policy)
    return MappingProxyType(policies)


def _read_policy(draft: Draft, name: str, value: object, detectors: Detectors) -> PolicySettings:
    path = ("policies", name)
    if not name:
        draft.blame(path, "a policy needs a name")
    keys = PolicyKeys(**read_fields(draft, PolicyKeys, draft.take_map(value, path), path))
    sections = {section: _read_section(draft, keys, (*path, section), detectors) for section in SECTION_TYPES}
    words = _read_words(draft, keys, (*path, "on_finding"))
    policy = PolicySettings(
        name,
        **sections,
        on_input=Action.BLOCK if words["input"] == "stop" else TEXT_WORDS[words["input"]],
        on_documents=DOCUMENT_WORDS[words["documents"]],
        on_output=TEXT_WORDS[words["output"]],
        on_grounding=TEXT_WORDS[words["grounding"]],
        fallback=keys.fallback,
        passes_failures=keys.on_detector_failure == "pass",
    )
    _check_output(draft, policy, detectors)
    _warn(draft, policy)
    return policy


def _read_section(draft: Draft, keys: PolicyKeys, path: Path, detectors: Detectors) -> Params:
    """The parameters by detector; a faulty detector stays in, so that nothing that follows takes it for absent."""
    section = path[-1]
    raw: Mapping[str, Any] = getattr(keys, section)
    for detector_id in raw:
        detector = detectors.get(detector_id)
        if detector_id not in detectors:
            message = f"detector `{detector_id}` not found{kinds.suggest(detector_id, list(detectors))}"
            draft.blame((*path, detector_id), message)
        elif detector is not None and detector.type not in SECTION_TYPES[section]:
            allowed = " or ".join(SECTION_TYPES[section])
            message = f"detector `{detector_id}` is of type {detector.type}; `{section}` needs {allowed}"
            draft.blame((*path, detector_id), message)
    return MappingProxyType({key: _read_params(draft, value, (*path, key)) for key, value in raw.items()})


def _read_params(draft: Draft, value: object, path: Path) -> Mapping[str, Any]:
    params = draft.take_map(value, path)
    if "threshold" in params:
        read_value(draft, kinds.NUMBER, params["threshold"], (*path, "threshold"))
    return MappingProxyType(params)


def _read_words(draft: Draft, keys: PolicyKeys, path: Path) -> dict[str, str]:
    """What to do with a finding, per section, in words that are valid there."""
    said = keys.on_finding
    words = {section: "flag" if section == "documents" else "annotate" for section in SECTION_TYPES}
    if not isinstance(said, str):
        return words | _read_map(draft, keys, said, path)
    if said in DOCUMENT_WORDS and said not in TEXT_WORDS:
        if keys.input or keys.output or keys.grounding or not keys.documents:
            draft.blame(path, f"`{said}` is for documents only: write `{{documents: {said}}}`")
        return words | {"documents": said}
    word = read_value(draft, kinds.choice(*TEXT_WORDS), said, path)
    return words if word is UNREAD else dict.fromkeys(words, word) | {"documents": _DOCUMENTS_BY_TEXT[word]}


def _read_map(draft: Draft, keys: PolicyKeys, said: Mapping[str, Any], path: Path) -> dict[str, str]:
    words = {}
    for section, value in said.items():
        if section not in _SECTION_WORDS:
            draft.blame((*path, section), f"no such section; on_finding has {', '.join(_SECTION_WORDS)}")
            continue
        word = read_value(draft, kinds.choice(*_SECTION_WORDS[section]), value, (*path, section))
        if word is not UNREAD:
            words[section] = word
        if not getattr(keys, section):
            draft.warn(f"{'.'.join((*path, section))} has no effect: the policy has no detectors of `{section}`")
    return words


def _check_output(draft: Draft, policy: PolicySettings, detectors: Detectors) -> None:
    """Text can be changed only before it leaves."""
    if policy.on_output is Action.ANNOTATE:
        return
    word = policy.on_output.name.lower()
    for detector_id in policy.output:
        path = ("policies", policy.name, "output", detector_id)
        detector = detectors.get(detector_id)
        if detector is None or detector.type not in SECTION_TYPES["output"]:
            continue
        if detector.type != TEXT_CONTENTS:
            too_late = f"a detector of type {detector.type} reads the answer only when all of it is said"
            draft.blame(path, f"{too_late}, too late to {word} it: use annotate, or a detector of type text_contents")
        elif detector.chunker_id == WHOLE_TEXT_CHUNKER:
            draft.warn(f"{'.'.join(path)} reads the whole answer: with {word}, all of a stream waits for its end")


def _check_grounding(draft: Draft, policy: PolicySettings) -> None:
    """What reports at the end of the answer cannot change it."""
    if policy.grounding and policy.on_grounding is not Action.ANNOTATE:
        too_late = "with `grounding: trail` its findings come when the answer has left, too late to"
        word = policy.action("grounding")
        path = ("policies", policy.name, "on_finding")
        draft.blame((*path, "grounding"), f"{too_late} {word} it: use annotate, or `grounding: hold`")


def _warn(draft: Draft, policy: PolicySettings) -> None:
    path = f"policies.{policy.name}"
    if not any(getattr(policy, section) for section in SECTION_TYPES):
        draft.warn(f"{path} has no detectors: it guards nothing")
    if policy.passes_failures:
        draft.warn(f"{path}.on_detector_failure is pass: text that a failed detector has not read leaves")
