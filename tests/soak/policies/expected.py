# SPDX-License-Identifier: Apache-2.0
"""What may leave of a lane under a policy, written from the plan: which findings, which masks, which text.

Shares no code with the server. Offsets count the code points that detectors read.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.soak.policies.lanes import ATOM, STRUCTURE, Lane, Run
from tests.soak.policies.settings import Policy

BLOCK = "█"
_NAME = r"[A-Za-z0-9@.\-]{3,60}"  # what a made-up name may look like
_LEAST_LEAK = 3


class Told(NamedTuple):
    """A finding of one detector in a lane; one without a label hides nothing."""

    start: int
    end: int
    detector: str
    label: str


class Mask(NamedTuple):
    """Characters that must not be seen, what the mask calls them, and the value that it stands for."""

    start: int
    end: int
    label: str
    value: str


class Part(NamedTuple):
    """What leaves next: a text, or without one some made-up name. `value`: what it hides, if anything."""

    text: str | None
    value: str = ""


def is_read(lane: Lane, policy: Policy) -> bool:
    """Whether the policy reads the lane. Of a text that is no chat the only one is always read, and so is a prompt."""
    if lane.field in ("text", "prompt"):
        return True
    if lane.field.startswith(("tool_calls/", "function_call/")):
        return "tool_arguments" in policy.lanes
    return ("reasoning" if lane.field == "reasoning_content" else "content") in policy.lanes


def list_findings(lane: Lane, policy: Policy) -> list[Told]:
    """What the detectors of the policy find in the lane."""
    if not is_read(lane, policy):
        return []
    eyes, hides = policy.eyes, policy.action == "mask"
    return [
        Told(find.start, find.end, name, find.label if hides else "")
        for find in lane.finds
        for name in eyes.get(find.eye, ())
    ]


def list_masks(lane: Lane, policy: Policy) -> list[Mask]:
    """The masks of a lane: findings that overlap are one, which is called after the first of them."""
    plain = lane.plain
    masks: list[Mask] = []
    hiding = [one for one in list_findings(lane, policy) if one.label]
    for one in sorted(hiding, key=lambda one: (one.start, -one.end)):
        if masks and one.start < masks[-1].end:
            masks[-1] = masks[-1]._replace(end=max(masks[-1].end, one.end))
        else:
            masks.append(Mask(one.start, one.end, one.label, plain[one.start : one.end]))
    return masks


def build_parts(lane: Lane, policy: Policy) -> list[Part]:
    """What arrives of a lane, from its first to its last character."""
    if policy.is_shadow or not is_read(lane, policy):
        return [Part(lane.raw)]
    writing = _Writing(policy.mask, list_masks(lane, policy), lane.plain)
    at = 0
    for run in lane.runs:
        writing.take(run, at)
        at += len(run.plain)
    return _join(writing.parts)


class _Writing:
    """Writes runs with the masks in place."""

    def __init__(self, mask_with: str, masks: Sequence[Mask], plain: str) -> None:
        self.parts: list[Part] = []
        self._with = mask_with
        self._masks = list(masks)
        self._plain = plain

    def take(self, run: Run, start: int) -> None:
        end = start + len(run.plain)
        while self._masks and self._masks[0].end <= start:
            self._masks.pop(0)
        touching = [mask for mask in self._masks if mask.start < end]
        if not touching or run.kind == STRUCTURE:
            self.parts.append(Part(run.raw))
        elif run.kind == ATOM:  # a number becomes a string
            self.parts.append(Part('"'))
            self._hide(touching[0], start, end)
            self.parts.append(Part('"'))
        else:
            self._take_text(run, start, touching)

    def _take_text(self, run: Run, start: int, touching: Iterable[Mask]) -> None:
        at, end = start, start + len(run.plain)
        for mask in touching:
            low, high = max(mask.start, start), min(mask.end, end)
            self.parts.append(Part(run.raw[at - start : low - start]))
            self._hide(mask, low, high)
            at = high
        if at < end:
            self.parts.append(Part(run.raw[at - start :]))

    def _hide(self, mask: Mask, low: int, high: int) -> None:
        hidden = self._plain[mask.start : mask.end]
        if self._with == "block":
            self.parts.append(Part(BLOCK * (high - low), hidden[low - mask.start :]))
        elif low == mask.start:
            self.parts.append(Part(f"[{mask.label}]" if self._with == "label" else None, mask.value))


def _join(parts: Iterable[Part]) -> list[Part]:
    """Texts that stand side by side are one, and so are the blocks of one mask."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else Part(None)
        if part.text and last.text and bool(last.value) == bool(part.value) and _may_join(part):
            joined[-1] = Part(last.text + part.text, last.value)
        elif part.text != "":
            joined.append(part)
    return joined


def _may_join(part: Part) -> bool:
    return not part.value or (part.text or "").startswith(BLOCK)


def compare(parts: Sequence[Part], text: str, names: Mapping[str, str] | None) -> tuple[str, str] | dict[str, str]:
    """The made-up names that stand in the text, by value; or the law that it breaks and how.

    `names` are the names that the answer told, by value; None if it was not asked.
    """
    values = list(dict.fromkeys(part.value for part in parts if part.text is None))
    if not values or names is not None:
        told = names or {}
        if all(value in told for value in values) and text == "".join(_fill(part, told) for part in parts):
            return {value: told[value] for value in values}
        return _describe(parts, text, told)
    found = re.compile("".join(_as_patterns(parts, None)), re.DOTALL).fullmatch(text)
    return _describe(parts, text, None) if found is None else dict(zip(values, found.groups(), strict=True))


def _fill(part: Part, names: Mapping[str, str]) -> str:
    return names[part.value] if part.text is None else part.text


def _as_patterns(parts: Sequence[Part], names: Mapping[str, str] | None) -> list[str]:
    """A pattern for each part; the same value has the same name."""
    groups: dict[str, int] = {}
    patterns = []
    for part in parts:
        if part.text is not None:
            patterns.append(re.escape(part.text))
        elif names is not None:
            patterns.append(re.escape(names[part.value]) if part.value in names else r"(?!)")
        elif part.value in groups:
            patterns.append(rf"(?:\{groups[part.value]})")
        else:
            groups[part.value] = len(groups) + 1
            patterns.append(f"({_NAME})")
    return patterns


def _describe(parts: Sequence[Part], text: str, names: Mapping[str, str] | None) -> tuple[str, str]:
    """Which law is broken where the text first differs."""
    patterns = _as_patterns(parts, names)
    good = 0  # how many parts fit
    while good < len(parts) and re.compile("".join(patterns[: good + 1]), re.DOTALL).match(text):
        good += 1
    if good == len(parts):
        return "text", f"more than was said: {text[-80:]!r}"
    before = re.compile("".join(patterns[:good]), re.DOTALL).match(text)
    at = before.end() if before else 0
    part, last = parts[good], parts[good - 1] if good else Part("")
    rest = text[at:]
    secrets = [one.value for one in (part, last) if one.value]
    if any(_begins_with(rest, value) for value in secrets):
        return "leak", f"a part of {secrets} at {at}: {rest[:60]!r}"
    if part.value:
        return "mask", f"for {part.value!r} stands {rest[:60]!r} at {at}"
    wanted = part.text or ""
    same = next((place for place, (a, b) in enumerate(zip(wanted, rest, strict=False)) if a != b), len(rest))
    if any(_begins_with(rest[same:], value) for value in secrets):
        return "leak", f"a part of {secrets} at {at + same}: {rest[same:][:60]!r}"
    return "text", f"at {at + same} stands {rest[same : same + 60]!r}, not {wanted[same : same + 60]!r}"


def _begins_with(text: str, value: str) -> bool:
    """Whether a text begins with a piece of a value, as it is or as JSON writes it."""
    begun = text[:_LEAST_LEAK]
    return len(begun) == _LEAST_LEAK and (begun in value or begun in json.dumps(value))
