# SPDX-License-Identifier: Apache-2.0
"""The axes of the surface table: the policies, the places of a finding, and the texts that hold it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Place = Literal["input", "documents", "output", "grounding", "tool_arguments", "reasoning", "one_of_two_choices"]
Section = Literal["input", "documents", "output", "grounding"]
Order = Literal["", "question first", "answer first"]

SECRET = "ana@example.org"
UNGROUNDED = "bluebird"
FALLBACK = "[withheld]"
QUESTION, ASKED = "When do the gates open?", f"Does {SECRET} open the gates?"
# A finding stands in the only sentence: how much behind it is read before a cut depends on the speed of the machine.
ANSWER, SAID, GUESSED = "They open at nine. Bye.", f"Write to {SECRET} now.", f"The key is {UNGROUNDED}."
THOUGHT = f"She is {SECRET}, I think."
ARGUMENTS = f'{{"to": "{SECRET}"}}'
FIRST_TITLE, SECOND_TITLE = "Gates", "Keys"
FIRST_DOCUMENT = "The gates open at nine."
SECOND_DOCUMENT, SECOND_SECRET = "The keys lie here.", f"Ask {SECRET} for keys."


class Choice(NamedTuple):
    """What a model says in one choice."""

    content: str = ANSWER
    reasoning: str = ""
    arguments: str = ""


class Scene(NamedTuple):
    """What the caller, the source and the model say in a cell."""

    question: str = QUESTION
    document: str = SECOND_DOCUMENT
    choices: tuple[Choice, ...] = (Choice(),)


SCENES: Mapping[Place, Scene] = {
    "input": Scene(question=ASKED),
    "documents": Scene(document=SECOND_SECRET),
    "output": Scene(choices=(Choice(SAID),)),
    "grounding": Scene(choices=(Choice(GUESSED),)),
    "tool_arguments": Scene(choices=(Choice("", arguments=ARGUMENTS),)),
    "reasoning": Scene(choices=(Choice("", reasoning=THOUGHT),)),
    "one_of_two_choices": Scene(choices=(Choice(SAID), Choice())),
}
BOTH = Scene(question=ASKED, choices=(Choice(SAID),))
SECTIONS: Mapping[Place, Section] = {
    "input": "input",
    "documents": "documents",
    "output": "output",
    "grounding": "grounding",
    "tool_arguments": "output",
    "reasoning": "output",
    "one_of_two_choices": "output",
}
DETECTORS: Mapping[Section, str] = {
    "input": "question_mail",
    "documents": "document_mail",
    "output": "answer_mail",
    "grounding": "ground",
}
DOCUMENT_PLACES: tuple[Place, ...] = ("documents", "grounding")
TEXT_PLACES: tuple[Place, ...] = ("input", "output")
CHAT_PLACES: tuple[Place, ...] = (*TEXT_PLACES, "tool_arguments", "reasoning", "one_of_two_choices")
ANSWER_PLACES: tuple[Place, ...] = (*TEXT_PLACES, *DOCUMENT_PLACES)
LANE_PLACES: tuple[Place, ...] = (*ANSWER_PLACES, "tool_arguments", "reasoning")
ALL_PLACES: tuple[Place, ...] = (*CHAT_PLACES, *DOCUMENT_PLACES)


@dataclass(frozen=True)
class Policy:
    """One policy: its keys in a config file, and the detectors that differ from the usual ones."""

    keys: Mapping[str, Any]
    places: tuple[Place, ...] = ALL_PLACES
    remote: Mapping[Section, str] = field(default_factory=dict)  # detectors over the network in these sections
    failing: str = ""  # the detector that stands at the place of the finding and fails
    order: Order = ""  # of two that work at the same time: who reads the question, and the model with its readers


_GUESSES: Mapping[str, Any] = {
    "on_finding": {"input": "block", "documents": "mask", "output": "mask", "grounding": "mask"},
    "speculative": True,
}
_MASKS: Mapping[str, Any] = {"on_finding": "mask"}
_SHADOW: Mapping[str, Any] = {"mode": "shadow"}
_PASSES: Mapping[str, Any] = {"on_detector_failure": "pass"}
POLICIES: Mapping[str, Policy] = {
    "annotate": Policy({"on_finding": "annotate"}),
    "mask": Policy(_MASKS),
    "mask_label": Policy({**_MASKS, "mask_with": "label"}),
    "mask_pseudonym": Policy({**_MASKS, "mask_with": "pseudonym"}),
    "stop": Policy({"on_finding": "stop"}),
    "block": Policy({"on_finding": "block"}),
    "drop": Policy({"on_finding": {"documents": "drop"}}, ("documents",)),
    "shadow_mask": Policy({**_MASKS, **_SHADOW}),
    "shadow_block": Policy({"on_finding": "block", **_SHADOW}),
    "speculative": Policy(_GUESSES, ALL_PLACES, {"input": "late"}, order="question first"),
    "speculative_late": Policy(_GUESSES, ALL_PLACES, {"input": "late", "output": "far"}, order="answer first"),
    "fail": Policy(_MASKS, LANE_PLACES, failing="broken"),
    "fail_4xx": Policy(_MASKS, LANE_PLACES, failing="refusing"),
    "pass": Policy({**_MASKS, **_PASSES}, LANE_PLACES, failing="broken"),
    "pass_4xx": Policy({**_MASKS, **_PASSES}, LANE_PLACES, failing="refusing"),
    "shadow_fail": Policy({**_MASKS, **_SHADOW}, LANE_PLACES, failing="broken"),
    "shadow_pass": Policy({**_MASKS, **_SHADOW, **_PASSES}, LANE_PLACES, failing="broken"),
}


class Cell(NamedTuple):
    """A policy and the place of the finding: what the table has a rule for."""

    policy: str
    place: Place

    @property
    def name(self) -> str:
        """The name of its policy in the config file. Places that need the same keys share one."""
        if self.keys.failing:
            return f"{self.policy}-{self.place}"
        return f"{self.policy}-documents" if self.place in DOCUMENT_PLACES else self.policy

    @property
    def keys(self) -> Policy:
        """The policy."""
        return POLICIES[self.policy]

    @property
    def scene(self) -> Scene:
        """What is said. Where the answer is read before the question, a question that is blocked hides a finding."""
        return BOTH if self.place == "input" and self.keys.order == "answer first" else SCENES[self.place]

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections that its policy has, in their order."""
        return ("input", "documents", "output", "grounding") if self.place in DOCUMENT_PLACES else ("input", "output")

    def find_detector(self, section: Section) -> str:
        """The detector of a section."""
        if self.keys.failing and section == SECTIONS[self.place]:
            return f"{self.keys.failing}_ground" if section == "grounding" else self.keys.failing
        return self.keys.remote.get(section, DETECTORS[section])

    def build_policy(self) -> dict[str, Any]:
        """The policy as the config file has it."""
        sections: dict[str, Any] = {section: {self.find_detector(section): {}} for section in self.sections}
        lanes = ["content", "reasoning", "tool_arguments"]
        return {**sections, "fallback": FALLBACK, "lanes": lanes, **self.keys.keys}


CELLS = tuple(Cell(name, place) for name, policy in POLICIES.items() for place in policy.places)
