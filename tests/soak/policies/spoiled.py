# SPDX-License-Identifier: Apache-2.0
"""Ways to spoil what the judge is given, and the law that must report each.

A stream that was right is spoiled after it was played, so that the judge must find what it is there for in real
answers.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.soak.policies.digests import Events, list_texts
from tests.soak.policies.expected import BLOCK, list_masks
from tests.soak.policies.laws import Played, is_said_in_the_clear, judge
from tests.soak.policies.plans import Plan
from tests.soak.streams.client import Event, Heard

Spoil = Callable[[Plan, Events, Events], bool]


def _find_mask(plan: Plan, events: Events) -> tuple[Any, str, str] | None:
    """The first text of the answer that has a mask that can be told, the mask, and what it hides."""
    for lane in plan.lanes:
        masks = list_masks(lane, plan.policy)
        label = BLOCK * 3 if plan.policy.mask == "block" else f"[{masks[0].label}]" if masks else ""
        for event in events if masks and plan.policy.mask != "pseudonym" else ():
            for text in list_texts(event):
                if text.lane == f"{lane.choice}/{lane.field}" and label in text.words:
                    return text, label, masks[0].value
    return None


def show_a_beginning(plan: Plan, events: Events, _other: Events) -> bool:
    """Three characters of a match are shown."""
    found = _find_mask(plan, events)
    if found is not None:
        text, label, value = found
        text.holder[text.key] = text.words.replace(label, json.dumps(value[:3], ensure_ascii=False)[1:-1], 1)
    return found is not None


def tell_a_match(plan: Plan, events: Events, _other: Events) -> bool:
    """What is hidden stands somewhere else."""
    values = [mask.value for lane in plan.lanes for mask in list_masks(lane, plan.policy) if len(mask.value) > 7]
    values = [value for value in values if not is_said_in_the_clear(value, plan)]
    if values:
        events[0]["note"] = f"it was {values[0]}"
    return bool(values)


def lose_text(plan: Plan, events: Events, _other: Events) -> bool:
    """A piece of text does not arrive. Of a made-up name nobody could tell: there only the digest knows."""
    if plan.policy.mask == "pseudonym":
        return False
    texts = [text for event in events for text in list_texts(event) if not text.lane.endswith("name")]
    if texts:
        texts[0].holder[texts[0].key] = texts[0].words[1:]
    return bool(texts)


def break_json(_plan: Plan, events: Events, _other: Events) -> bool:
    """The arguments of a call are no JSON any more."""
    texts = [text for event in events for text in list_texts(event) if text.lane.endswith("arguments")]
    if texts:
        texts[-1].holder[texts[-1].key] = texts[-1].words + '"'
    return bool(texts)


def rename_a_call(plan: Plan, events: Events, _other: Events) -> bool:
    """A call has another id."""
    for event in events:
        for choice in event["choices"]:
            for call in (choice.get("delta") or {}).get("tool_calls") or ():
                if "id" in call:
                    call["id"] += "x"
                    return True
    return False


def show_a_finding(_plan: Plan, events: Events, _other: Events) -> bool:
    """A finding stands elsewhere than it was found."""
    results = _list_results(events)
    if results:
        results[0]["start"] += 1
    return bool(results)


def double_a_finding(_plan: Plan, events: Events, _other: Events) -> bool:
    """A finding is told twice."""
    for event in events:
        for entry in event.get("detections", {}).get("output", ()):
            if entry["results"]:
                entry["results"].append(copy.deepcopy(entry["results"][0]))
                return True
    return False


def end_twice(_plan: Plan, events: Events, _other: Events) -> bool:
    """A choice ends before its text does."""
    for event in events:
        if event["choices"] and any(list_texts(event)):
            event["choices"][0]["finish_reason"] = "stop"
            return True
    return False


def lose_the_receipt(_plan: Plan, events: Events, _other: Events) -> bool:
    """There is no receipt."""
    events[-1].pop("receipt")
    return True


def give_another_receipt(plan: Plan, events: Events, other: Events) -> bool:
    """The receipt is that of another answer."""
    events[-1]["receipt"] = other[-1]["receipt"]
    return True


def boast(_plan: Plan, events: Events, _other: Events) -> bool:
    """The receipt says that more was read than there was."""
    events[-1]["receipt"]["detectors"][0]["read"]["answer"] += 1
    return True


def mix_names(_plan: Plan, events: Events, _other: Events) -> bool:
    """A made-up name stands for another value."""
    names = events[-1].get("pseudonyms")
    if names:
        first = next(iter(names))
        names[first] += "x"
    return bool(names)


VARIANTS: Mapping[str, tuple[Spoil, frozenset[str]]] = {
    "three characters shown": (show_a_beginning, frozenset({"leak"})),
    "match told elsewhere": (tell_a_match, frozenset({"leak"})),
    "text lost": (lose_text, frozenset({"text", "mask"})),
    "broken JSON": (break_json, frozenset({"text"})),
    "call renamed": (rename_a_call, frozenset({"calls"})),
    "finding elsewhere": (show_a_finding, frozenset({"findings"})),
    "finding doubled": (double_a_finding, frozenset({"findings"})),
    "early end": (end_twice, frozenset({"finish"})),
    "no receipt": (lose_the_receipt, frozenset({"receipt"})),
    "another receipt": (give_another_receipt, frozenset({"digest"})),
    "receipt that boasts": (boast, frozenset({"figures"})),
    "names mixed": (mix_names, frozenset({"mask", "names"})),
}


def find_unnoticed(played: Sequence[Played], most: int = 15) -> dict[str, str]:
    """By variant, a stream in which the judge did not notice it; in each way that many answers are spoiled."""
    right = [one for one in played if not one.plan.fails and not judge(one)]
    unnoticed: dict[str, str] = {}
    for name, (spoil, laws) in VARIANTS.items():
        tried = 0
        for number, (plan, heard, prompt) in enumerate(right):
            events, other = _read(heard), _read(right[number - 1].heard)
            if number == 0 or tried == most or not spoil(plan, events, other):
                continue
            tried += 1
            told = [Event("", json.dumps(event), 0.0) for event in events]
            spoiled = replace(heard, events=[*told, heard.events[-1]])
            if not laws & {violation.law for violation in judge(Played(plan, spoiled, prompt))}:
                unnoticed[name] = plan.id
        if not tried:
            unnoticed[name] = "there was nothing to try it on"
    return unnoticed


def _read(heard: Heard) -> Events:
    return [json.loads(event.text) for event in heard.events[:-1]]


def _list_results(events: Events) -> list[dict[str, Any]]:
    entries = [entry for event in events for entry in event.get("detections", {}).get("output", ())]
    return [one for entry in entries for one in entry["results"]]
