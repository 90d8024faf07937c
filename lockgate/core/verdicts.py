# SPDX-License-Identifier: Apache-2.0
"""What policy says about findings: annotate, mask, stop or block a text; flag, mask or drop a document.

Decides what of a text may still be read once something was found in it, and what a finding may tell when its text is
hidden. Where text is replaced (stop, block) the fallback takes the place of everything that has not left yet; they
differ only in the release that brings the finding: `stop` lets the part before the first finding leave, `block`
nothing. So of an answer that is judged whole, `stop` shows the clean beginning and `block` only the fallback.

A finding arrives once, with the first released text that overlaps it or earlier; what it covers beyond that text is
remembered. Does not decide when text leaves: that is the gate's. Does not know what stands behind a verdict: whoever
asks closes the model and says that the answer was filtered.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from lockgate.core.values import Detection

MASK_CHARACTER = "█"


class Action(IntEnum):
    """What to do with text that has a finding, from mild to strict."""

    ANNOTATE = 0
    MASK = 1
    STOP = 2
    BLOCK = 3


class DocumentAction(IntEnum):
    """What to do with a retrieved document that has a finding, from mild to strict."""

    FLAG = 0
    MASK = 1
    DROP = 2


class Verdict(NamedTuple):
    """The text that may leave, and the findings as they may be told. `is_blocked`: nothing of the text follows."""

    text: str
    detections: tuple[Detection, ...] = ()
    is_blocked: bool = False


_AS_TEXT = {
    DocumentAction.FLAG: Action.ANNOTATE,
    DocumentAction.MASK: Action.MASK,
    DocumentAction.DROP: Action.BLOCK,
}


def keep(detections: Iterable[Detection], threshold: float) -> tuple[Detection, ...]:
    """The findings whose score reaches the threshold."""
    return tuple(found for found in detections if found.score >= threshold)


class Judge:
    """Applies actions to the releases of one text, in order: one action for all detectors, or one for each.

    Where any of them changes text, a finding tells what it found only if just that has left in the clear: the text of
    one may hold the secret of another.
    """

    __slots__ = ("_action", "_actions", "_ahead", "_fallback", "_is_blocked", "_strictest")

    def __init__(self, action: Action, fallback: str = "", actions: Mapping[str, Action] | None = None) -> None:
        self._action = action
        self._actions = actions or {}
        self._strictest = max(action, *self._actions.values()) if self._actions else action
        self._fallback = fallback
        self._is_blocked = False
        self._ahead: list[tuple[int, int]] = []  # what findings cover beyond the last release

    def judge(self, start: int, text: str, detections: Sequence[Detection] = ()) -> Verdict:
        """The verdict on the text that starts at `start`; spans count from the first character of the whole."""
        if self._strictest is Action.ANNOTATE or not (detections or self._ahead or self._is_blocked):
            return Verdict(text, tuple(detections))
        if self._is_blocked:
            return Verdict("", _tell(detections, start, ""), is_blocked=True)
        text = self._mask(start, text, self._select(detections, Action.MASK, Action.MASK))
        ending = self._select(detections, Action.STOP, Action.BLOCK)
        if not ending:
            return Verdict(text, _tell(detections, start, text))
        text = self._cut(start, text, ending)
        return Verdict(text + self._fallback, _tell(detections, start, text), is_blocked=True)

    def _select(self, detections: Sequence[Detection], mildest: Action, strictest: Action) -> list[Detection]:
        """The findings whose action lies between these."""
        if not self._actions:
            return list(detections) if mildest <= self._action <= strictest else []
        action_of = self._actions.get
        return [one for one in detections if mildest <= action_of(one.detector_id, self._action) <= strictest]

    def _mask(self, start: int, text: str, detections: Sequence[Detection]) -> str:
        spans = sorted([*self._ahead, *[(found.start, found.end) for found in detections]])
        parts: list[str] = []
        position, end = start, start + len(text)
        for first, last in spans:
            low, high = max(first, position), min(last, end)
            if low < high:
                parts += text[position - start : low - start], MASK_CHARACTER * (high - low)
                position = high
        self._ahead = [span for span in spans if span[1] > end]
        return "".join([*parts, text[position - start :]]) if parts else text

    def _cut(self, start: int, text: str, ending: Sequence[Detection]) -> str:
        """What still leaves of the text with which it ends."""
        self._is_blocked = True
        if self._select(ending, Action.BLOCK, Action.BLOCK):
            return ""
        first = min([found.start for found in ending])
        return text[: max(first - start, 0)]


def judge_whole(text: str, detections: Sequence[Detection], action: Action, fallback: str = "") -> Verdict:
    """The verdict on a text that is complete and of which nothing has left."""
    return Judge(action, fallback).judge(0, text, detections)


def judge_document(text: str, detections: Sequence[Detection], action: DocumentAction) -> Verdict:
    """The verdict on a retrieved document; one that is dropped has no text and `is_blocked`."""
    return judge_whole(text, detections, _AS_TEXT[action])


def _tell(detections: Sequence[Detection], start: int, left: str) -> tuple[Detection, ...]:
    """The findings; what one found is hidden unless it has left, in the text that starts at `start`."""
    return tuple([one if _has_left(one, start, left) else hide(one) for one in detections])


def _has_left(found: Detection, start: int, left: str) -> bool:
    place = found.start - start
    return place >= 0 and bool(found.text) and left[place : found.end - start] == found.text


def hide(found: Detection) -> Detection:
    """The finding without what was found: span, kind and score stay, so does metadata that does not repeat the text."""
    metadata = _hide_word(found.metadata, found.text.casefold()) if found.metadata and found.text else found.metadata
    return found._replace(text=MASK_CHARACTER * len(found.text), evidence=(), metadata=metadata)


def _hide_word(value: Any, word: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value without the strings that have the word in them: a rule may be named by the keyword that it found."""
    if isinstance(value, str):
        return MASK_CHARACTER * len(value) if word in value.casefold() else value
    if isinstance(value, Mapping):
        return {key: _hide_word(item, word) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_word(item, word) for item in value]
    return value
