# SPDX-License-Identifier: Apache-2.0
"""What is right in each cell: one table for all surfaces. A rule says what becomes of a finding at its place.

`expect` makes of a rule what a client sees. It knows two things of a surface: whether it answers from documents, and
whether its answers show them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.surfaces.answers import ANSWERED, CUT_OFF, PSEUDONYM, Finding, Parts, Seen
from tests.surfaces.cells import (
    FALLBACK,
    FIRST_DOCUMENT,
    FIRST_TITLE,
    SECOND_TITLE,
    SECRET,
    SECTIONS,
    Cell,
    Place,
    Section,
)
from tests.surfaces.surfaces import SURFACES

READ, UNREAD, NOT_ASKED = "asked with the finding", "asked", "not asked"
FAILED = "error 502"  # D-41: a detector that answers with an error has failed, whatever its status
LANES: Mapping[Place, str] = {"tool_arguments": "tool_arguments", "reasoning": "reasoning"}  # of others: content


class Rule(NamedTuple):
    """What becomes of a finding."""

    text: str  # of the answer: kept, masked, stopped, blocked, or none
    outcome: str
    receipt: str | None  # its outcome
    model: str = UNREAD


# What becomes of a finding, by section and action.
ACTIONS: Mapping[tuple[Section, str], Rule] = {
    ("input", "annotate"): Rule("kept", ANSWERED, "released", READ),  # D-47
    ("input", "mask"): Rule("kept", ANSWERED, "masked"),
    ("input", "stop"): Rule("blocked", CUT_OFF, "blocked", NOT_ASKED),
    ("input", "block"): Rule("blocked", CUT_OFF, "blocked", NOT_ASKED),
    ("documents", "annotate"): Rule("kept", ANSWERED, "released", READ),
    ("documents", "mask"): Rule("kept", ANSWERED, "masked"),
    ("documents", "stop"): Rule("kept", ANSWERED, "masked"),
    ("documents", "block"): Rule("kept", ANSWERED, "masked"),
    ("documents", "drop"): Rule("kept", ANSWERED, "masked"),
    ("output", "annotate"): Rule("kept", ANSWERED, "released"),
    ("output", "mask"): Rule("masked", ANSWERED, "masked"),
    ("output", "stop"): Rule("stopped", CUT_OFF, "stopped"),
    ("output", "block"): Rule("blocked", CUT_OFF, "blocked"),
    ("grounding", "annotate"): Rule("kept", ANSWERED, "released"),
    ("grounding", "mask"): Rule("masked", ANSWERED, "masked"),
    ("grounding", "stop"): Rule("stopped", CUT_OFF, "stopped"),
    ("grounding", "block"): Rule("blocked", CUT_OFF, "blocked"),
}
# Policies that are an action under another name.
SAME: Mapping[str, str] = {"mask_label": "mask", "mask_pseudonym": "mask"}
SHADOWS: Mapping[str, str] = {"shadow_mask": "mask", "shadow_block": "block"}
# Policies whose detector fails: the outcome of the receipt, if the answer is given.
FAILURES: Mapping[str, str | None] = {
    "fail": None,
    "fail_4xx": None,
    "pass": "released",
    "pass_4xx": "released",
    "shadow_fail": "failed",
    "shadow_pass": "released",
}
MASKS: Mapping[str, str] = {"mask_label": "[EMAIL]", "mask_pseudonym": PSEUDONYM}
SENTENCE_MASKS: Mapping[str, str] = {"mask_label": "[KEYWORD]", "mask_pseudonym": PSEUDONYM}


def find_rule(cell: Cell) -> Rule:
    """The rule of a cell."""
    section = SECTIONS[cell.place]
    kept = ACTIONS[section, "annotate"]
    if cell.policy in FAILURES:
        is_asked = section in ("output", "grounding")
        failed = Rule("none", FAILED, None, UNREAD if is_asked else NOT_ASKED)
        outcome = FAILURES[cell.policy]
        return failed if outcome is None else kept._replace(receipt=outcome)
    if cell.policy in SHADOWS:  # nothing is changed; the receipt tells what would have been done
        return kept._replace(receipt=ACTIONS[section, SHADOWS[cell.policy]].receipt)
    if cell.keys.order:  # the model is asked before the question is read
        return ACTIONS["input", "block"]._replace(model=READ) if section == "input" else ACTIONS[section, "mask"]
    return ACTIONS[section, SAME.get(cell.policy, cell.policy)]


def expect_on(surface: str, cell: Cell) -> Seen:
    """What a client of a surface sees of a cell."""
    return expect(cell, retrieves=SURFACES[surface].retrieves, shows=surface.startswith("aggregator/"))


def expect(cell: Cell, *, retrieves: bool, shows: bool) -> Seen:
    """What a client sees of a cell. `shows`: the answer has the documents, which detectors of `output` read too."""
    rule = find_rule(cell)
    text = _expect_text(cell, rule)
    ends = [rule.outcome] + [ANSWERED] * (len(cell.scene.choices) - 1)  # D-46: a block ends its own choice
    is_told = cell.policy not in SHADOWS and cell.policy not in FAILURES
    findings = [_expect_finding(cell, is_clear=cell.policy == "annotate")] if is_told else []
    if shows and _is_shown(cell) and rule.receipt is not None and cell.keys.keys.get("mode") != "shadow":
        found = _expect_finding(cell, is_clear=cell.policy == "annotate")
        findings.append(found._replace(where="sources", detector_id=cell.find_detector("output")))
    receipt: Parts = (None, None, None)
    if rule.receipt is not None:
        if shows and _is_shown(cell) and rule.receipt == "released" and cell.policy != "annotate":
            rule = rule._replace(receipt="masked")
        receipt = _expect_receipt(cell, rule, retrieves=retrieves, shows=shows)
    return Seen(text, findings, ", ".join(ends), rule.model, *receipt)


# The text.


def _expect_text(cell: Cell, rule: Rule) -> dict[str, str]:
    if rule.text == "none":
        return {}
    lane = LANES.get(cell.place, "content")
    said = _find_said(cell)
    start, end = _find_span(cell)
    mask = (SENTENCE_MASKS if cell.place == "grounding" else MASKS).get(cell.policy, "█" * (end - start))
    leaves: dict[str, dict[str, str]] = {
        "kept": {lane: said},
        "masked": {lane: said[:start] + mask + said[end:]},
        "stopped": {"content": FALLBACK},  # a finding stands in the only sentence of its text
        "blocked": {"content": FALLBACK},
    }
    others = {f"{number}/content": one.content for number, one in enumerate(cell.scene.choices) if number}
    return leaves[rule.text] | others


def _find_said(cell: Cell) -> str:
    """What the model says where the finding is, or would be."""
    choice = cell.scene.choices[0]
    return choice.reasoning or choice.arguments or choice.content


def _find_span(cell: Cell) -> tuple[int, int]:
    """The place of the finding in its text. A finding of grounding is a sentence, here the whole text."""
    scene = cell.scene
    if cell.place == "grounding":
        return 0, len(scene.choices[0].content)
    texts = {"input": scene.question, "documents": scene.document}
    start = texts.get(cell.place, _find_said(cell)).find(SECRET)
    return start, start + len(SECRET)


# The findings.


def _expect_finding(cell: Cell, *, is_clear: bool) -> Finding:
    start, end = _find_span(cell)
    section = SECTIONS[cell.place]
    where = LANES.get(cell.place, section)
    text = _find_said(cell) if cell.place == "grounding" else SECRET
    return Finding(where, cell.find_detector(section), start, end, text if is_clear else "█" * (end - start))


# The receipt.


def _is_shown(cell: Cell) -> bool:
    """Whether detectors of documents let the finding pass into the documents that an answer shows."""
    return cell.place == "documents" and (cell.policy in ("annotate", *SHADOWS) or cell.policy in FAILURES)


def _expect_receipt(cell: Cell, rule: Rule, *, retrieves: bool, shows: bool) -> Parts:
    detectors = [_expect_detector(cell, rule, section) for section in cell.sections]
    for section, one in zip(cell.sections, detectors, strict=True):
        one["findings"] += shows and section == "output" and _is_shown(cell)
    released = {
        "prompt": 0 if rule.model == NOT_ASKED else len(cell.scene.question),
        "documents": _count_documents(cell) if retrieves and rule.model != NOT_ASKED else 0,
        "answer": _count_released(cell, rule),
    }
    told = {"mode": cell.keys.keys.get("mode", "enforce"), "outcome": rule.receipt}
    return {**told, "covered": all(one["covered"] for one in detectors)}, released, detectors


def _expect_detector(cell: Cell, rule: Rule, section: Section) -> dict[str, Any]:
    """Every detector that was to read something is listed, also one to which nothing came."""
    has_failed = bool(cell.keys.failing) and section == SECTIONS[cell.place]
    part, count = _count_read(cell, rule, section)
    told: dict[str, Any] = {"detector_id": cell.find_detector(section), "read": {part: 0 if has_failed else count}}
    told |= {"findings": 0 if has_failed else _count_findings(cell, section), "covered": not has_failed}
    return {**told, "failed": True} if has_failed else told


def _count_read(cell: Cell, rule: Rule, section: Section) -> tuple[str, int]:
    if section == "input":
        return "prompt", len(cell.scene.question)
    if section == "documents":
        return "documents", _count_all_documents(cell)
    is_read = rule.model != NOT_ASKED and not _is_withdrawn(cell)
    return "answer", sum(len("".join(one)) for one in cell.scene.choices) if is_read else 0


def _is_withdrawn(cell: Cell) -> bool:
    """Whether the model is stopped before it says anything, as the question is blocked first."""
    return cell.keys.order == "question first" and cell.place == "input"


def _count_findings(cell: Cell, section: Section) -> int:
    """A finding that is read counts, also in an answer that is then withdrawn."""
    is_second = cell.keys.order == "answer first" and cell.place == "input" and section == "output"
    return int(section == SECTIONS[cell.place] or is_second)


def _count_released(cell: Cell, rule: Rule) -> int:
    """Characters of the model's text that leave; masked ones count, the fallback does not."""
    said = len(_find_said(cell))
    first = {"kept": said, "masked": said, "stopped": 0, "blocked": 0}[rule.text]
    return first + sum(len(one.content) for one in cell.scene.choices[1:])


def _count_all_documents(cell: Cell) -> int:
    """Titles and texts, with two line ends between them."""
    texts = (FIRST_TITLE, FIRST_DOCUMENT, SECOND_TITLE, cell.scene.document)
    return sum(len(one) for one in texts) + 4


def _count_documents(cell: Cell) -> int:
    """Those that reach the model: `stop`, `block` and `drop` leave out the document with the finding."""
    is_dropped = cell.place == "documents" and cell.policy in ("stop", "block", "drop")
    return len(FIRST_TITLE) + 2 + len(FIRST_DOCUMENT) if is_dropped else _count_all_documents(cell)
