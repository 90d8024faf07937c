# SPDX-License-Identifier: Apache-2.0
"""Names what was done to an answer, from its last event. The page's `actions.js` has the same words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockgate.cli.text import count_of

Event = Mapping[str, Any]
_HIDDEN = re.compile("█+")
_WORD = re.compile(r"\w+")
_QUOTED_WORDS = 5  # in a row: fewer may be in a document and in an answer by chance
_SHADOW = {"stopped": "would have stopped", "blocked": "would have blocked", "failed": "would have failed"}


def name_actions(done: Event, answer: str = "") -> list[str]:
    """What the receipt and the findings prove, such as "document dropped"; `answer` is the released text."""
    receipt = done.get("receipt") or {}
    actions = _name_shadow(receipt) if receipt.get("mode") == "shadow" else _name_enforced(done, receipt, answer)
    return [*actions, *name_gaps(receipt)]


def name_gaps(receipt: Event) -> list[str]:
    """What was not covered and what was left out, by field."""
    fields = list(receipt.get("unread") or ())
    behind = [one["detector_id"] for one in receipt.get("detectors", ()) if not one["covered"]]
    return [
        f"{words}: {', '.join(names)}"
        for words, names in (
            ("not covered", fields),
            ("not covered by", behind),
            ("left out", list(receipt.get("dropped") or ())),
        )
        if names
    ]


def _name_enforced(done: Event, receipt: Event, answer: str) -> list[str]:
    found = done.get("detections") or {}
    outcome = receipt.get("outcome") or "released"
    masked = [] if outcome != "masked" else _name_masked(found)
    documents = found.get("documents", ())
    documents = found.get("documents", ())
    end = _name_end(done, outcome)
    actions = [*end, *masked, *_name_documents(documents)]
    explained = {"released": actions, "masked": [one for one in actions if one.endswith((" masked", " dropped"))]}
    plain = [] if explained.get(outcome, end) else [outcome]
    return [*plain, *actions, *_name_injection(done, documents, answer)]


def _name_end(done: Event, outcome: str) -> list[str]:
    match done.get("outcome"):
        case "prompt_blocked":
            return ["prompt blocked"]
        case "answer_blocked":
            return ["stopped" if outcome == "stopped" else "answer blocked"]
    return []


def _name_documents(documents: Iterable[Event]) -> list[str]:
    outcomes = [one.get("outcome") for one in documents]
    counts = {word: outcomes.count(word) for word in ("dropped", "masked", "flagged")}
    named = {word: "document" if count == 1 else count_of(count, "document") for word, count in counts.items() if count}
    return [f"{name} {word}" for word, name in named.items()]


def _name_masked(found: Mapping[str, Sequence[Event]]) -> list[str]:
    """The texts with a finding whose value is hidden: it did not leave."""
    places = {"prompt": ("input",), "answer": ("output", "grounding")}
    masked = [
        f"{place} masked"
        for place, sections in places.items()
        if any(_is_hidden(one) for section in sections for one in found.get(section, ()))
    ]
    return masked + ["shown source masked"] * any(one.get("outcome") == "masked" for one in found.get("sources", ()))


def _is_hidden(found: Event) -> bool:
    return bool(_HIDDEN.fullmatch(found.get("text") or ""))


def _name_injection(done: Event, documents: Iterable[Event], answer: str) -> list[str]:
    """Whether a document with an injection was left as it was, and whether the answer repeats a sentence of it."""
    injected = [one for one in documents if one.get("outcome") == "flagged" and _is_injected(one)]
    if not injected or done.get("outcome") != "answered":
        return []
    texts = [_find_text(done, one) for one in injected]
    is_obeyed = any(_repeats(answer, text) for text in texts)
    return [f"injection {'obeyed' if is_obeyed else 'not removed'}: no guard was on"]


def _is_injected(document: Event) -> bool:
    found = [*document.get("results", ()), *document.get("title_results", ())]
    return any(one.get("detection_type") == "prompt_injection" for one in found)


def _find_text(done: Event, document: Event) -> str:
    shown = (done.get("sources") or {}).get(document.get("title")) or {}
    return str(shown.get("content", "")) if shown.get("slug") == document.get("path") else ""


def _repeats(answer: str, text: str) -> bool:
    """Whether some words of the text are in the answer in the same order, without others between them."""
    said = f" {' '.join(_WORD.findall(answer.lower()))} "
    words = _WORD.findall(text.lower())
    runs = (words[start : start + _QUOTED_WORDS] for start in range(len(words) - _QUOTED_WORDS + 1))
    return any(f" {' '.join(run)} " in said for run in runs)


def _name_shadow(receipt: Event) -> list[str]:
    outcome = receipt.get("outcome")
    if outcome == "masked":
        return [f"shadow: would have {_guess_change(receipt)}"]
    return [f"shadow: {_SHADOW.get(str(outcome), 'would have changed nothing')}"]


def _guess_change(receipt: Event) -> str:
    """What the detectors with findings read: in shadow the findings are not reported."""
    parts = [set(one["read"]) for one in receipt.get("detectors", ()) if one["findings"]]
    if not any("documents" in one for one in parts):
        return "masked"
    return f"masked{'' if all(one == {'documents'} for one in parts) else ','} or dropped a document"
