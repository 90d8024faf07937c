# SPDX-License-Identifier: Apache-2.0
"""The keys of a policy in the config file, each with its default and help text."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lockgate.config import kinds
from lockgate.config.kinds import option
from lockgate.gate.verdicts import TEXT_WORDS

LANES = ("content", "reasoning", "tool_arguments")  # the texts of a model's answer, each with a separate gate


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyKeys:
    """One policy as it is in the file; `lockgate.config.policies` makes a PolicySettings from it."""

    mode: str = option(
        kinds.choice("enforce", "shadow"),
        "shadow: detectors read and report everything, and nothing is changed",
        "enforce",
    )
    input: Mapping[str, Any] = option(kinds.MAP, "detectors of the user's text, by id", dict, "{}")
    documents: Mapping[str, Any] = option(kinds.MAP, "detectors of retrieved documents, by id", dict, "{}")
    output: Mapping[str, Any] = option(kinds.MAP, "detectors of the model's answer, by id", dict, "{}")
    grounding: Mapping[str, Any] = option(kinds.MAP, "detectors that compare answer and documents, by id", dict, "{}")
    on_finding: str | Mapping[str, Any] = option(
        kinds.word_or_map(*TEXT_WORDS),
        "what happens to text with a finding; a map has a word for each of `input`, `documents`, `output`, `grounding`",
        "annotate",
    )
    mask_with: str = option(
        kinds.choice("block", "label", "pseudonym"),
        "what replaces masked text: `█` for each character, its kind as in `[EMAIL]`, or a made-up name",
        "block",
    )
    lanes: tuple[str, ...] = option(
        kinds.words_of(*LANES), "parts of the model's answer that detectors read; the others leave unread", LANES,
        "[content, reasoning, tool_arguments]",
    )  # fmt: skip
    fallback: str = option(kinds.TEXT, "text that replaces withheld text", "This answer was withheld.")
    on_detector_failure: str = option(
        kinds.choice("fail", "pass"), "pass: when a detector fails, text leaves unread, with a warning", "fail"
    )
    speculative: bool = option(
        kinds.BOOLEAN, "the model starts while detectors read `input`; nothing leaves before they end", False
    )
    grounding_without_documents: str = option(
        kinds.choice("pass", "refuse"),
        "what happens to a completion without documents for `grounding`: it passes with a warning, or is refused",
        "pass",
    )
    sources: str = option(
        kinds.choice("mask", "clear"),
        "what detectors of `output` find in the `sources` of an answer is masked, or not looked for",
        "mask",
    )
    unreadable: str | Mapping[str, Any] | None = option(
        kinds.word_or_map("refuse", "pass"),
        "what happens to a request with something that detectors cannot read; a map has a word for some of `image`, "
        "`audio`, `file`, `encrypted`, `reference`, `numbers`",
        None,
        "refuse where the policy masks, stops or blocks, else pass; `encrypted`: pass",
    )
    tool_results: str = option(
        kinds.choice("replace", "block"),
        "what `block` does to a finding in the result of a tool: replace the result by the fallback, or block the "
        "request",
        "replace",
    )
