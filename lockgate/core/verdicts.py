# SPDX-License-Identifier: Apache-2.0
"""What policy says about findings: pass, warn, mask or block.

Decides which findings count and what becomes of the text that they cover. A finding arrives once, with the first
released text that overlaps it, so a mask that reaches beyond that text is carried into the next. Does not decide
when text leaves: that is the gate's.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from lockgate.core.values import Detection, Span

MASK_CHARACTER = "█"


class Action(IntEnum):
    """What to do with text that has a finding, from mild to strict."""

    PASS = 0
    WARN = 1
    MASK = 2
    BLOCK = 3


class Policy(NamedTuple):
    """A finding counts if its score reaches the threshold."""

    action: Action
    threshold: float = 0.0


class Verdict(NamedTuple):
    """The text that may leave, and the findings that count."""

    action: Action
    text: str
    detections: tuple[Detection, ...]


def keep(detections: Iterable[Detection], threshold: float) -> tuple[Detection, ...]:
    """The findings whose score reaches the threshold."""
    return tuple(found for found in detections if found.score >= threshold)


class Judge:
    """Applies one policy to the releases of one text, in order."""

    __slots__ = ("_is_blocked", "_masked_upto", "_policy")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._masked_upto = 0
        self._is_blocked = False

    def judge(self, start: int, text: str, detections: Sequence[Detection]) -> Verdict:
        """The verdict on the text that starts at `start`; spans count from the first character of the whole."""
        action, threshold = self._policy
        found = keep(detections, threshold)
        if action is Action.BLOCK and (found or self._is_blocked):
            self._is_blocked = True
            return Verdict(Action.BLOCK, "", found)
        if action is Action.MASK:
            masked = self._mask(start, text, found)
            return Verdict(Action.MASK if masked != text else Action.PASS, masked, found)
        return Verdict(action if found else Action.PASS, text, found)

    def _mask(self, start: int, text: str, found: Sequence[Detection]) -> str:
        spans = [Span(start, self._masked_upto), *(Span(one.start, one.end) for one in found)]
        parts, position, end = [], start, start + len(text)
        for span in sorted(spans):
            low, high = max(span.start, position), min(span.end, end)
            if low < high:
                parts.append(text[position - start : low - start])
                parts.append(MASK_CHARACTER * (high - low))
                position = high
        self._masked_upto = max(span.end for span in spans)
        parts.append(text[position - start :])
        return "".join(parts)
