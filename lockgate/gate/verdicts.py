# SPDX-License-Identifier: Apache-2.0
"""What policy says about findings: annotate, mask, stop or block a text; flag, mask or drop a document.

Where text is replaced (stop, block) the fallback takes the place of everything that has not left yet; they
differ only in the release that brings the finding: `stop` lets the part before the first finding leave, `block`
nothing. So of an answer that is judged whole, `stop` shows the clean beginning and `block` only the fallback.

In shadow nothing is changed and nothing told: only what would have been done is known.

A finding arrives once, with the first released text that overlaps it or earlier; what it covers beyond that text is
remembered.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.gate.masks import MASK_CHARACTER, Mask, Masker, MaskWith, Pseudonyms, apply_masks
from lockgate.gate.values import Detection


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


_MIN_QUOTE_CHARS = 3
_FREE_WORDS = frozenset({"reason", "reasons", "best"})  # metadata in a detector's own words
_AS_TEXT = {
    DocumentAction.FLAG: Action.ANNOTATE,
    DocumentAction.MASK: Action.MASK,
    DocumentAction.DROP: Action.BLOCK,
}


class Measures(NamedTuple):
    """What becomes of findings in one part of a request: one action for all detectors, and others for some.

    `own` are the detectors of the policy, if it is one. Whatever else a request names only annotates what has left in
    the clear: a caller's own pattern could ask a masked text letter by letter.
    """

    action: Action = Action.ANNOTATE
    actions: Mapping[str, Action] = MappingProxyType({})
    mask_with: MaskWith = MaskWith.BLOCK
    fallback: str = ""
    is_shadow: bool = False
    own: frozenset[str] | None = None

    def of(self, detector_id: str) -> Action:
        """What a finding of this detector calls for."""
        return self.actions.get(detector_id, self.action) if self.trusts(detector_id) else Action.ANNOTATE

    def trusts(self, detector_id: str) -> bool:
        """Whether a finding of this detector may be told though its text is hidden."""
        return self.own is None or detector_id in self.own

    def strictest(self, detector_ids: Iterable[str]) -> Action:
        """The strictest that findings of these detectors could call for."""
        return max([self.of(name) for name in detector_ids], default=Action.ANNOTATE)

    def changes_text(self, detector_ids: Iterable[str]) -> bool:
        """Whether a finding of one of these detectors would change the text."""
        return not self.is_shadow and self.strictest(detector_ids) is not Action.ANNOTATE


def as_text_action(action: DocumentAction) -> Action:
    """What is done with the text of a document."""
    return _AS_TEXT[action]


class Verdict(NamedTuple):
    """The text that may leave, and the findings as they may be told. `is_blocked`: nothing of the text follows.

    The text is that of the first `kept` characters of what was judged, the masks in place, and where it is blocked the
    fallback behind it.
    """

    text: str
    detections: tuple[Detection, ...] = ()
    is_blocked: bool = False
    kept: int = 0
    masks: tuple[Mask, ...] = ()


def keep(detections: Iterable[Detection], threshold: float) -> tuple[Detection, ...]:
    """The findings whose score reaches the threshold."""
    return tuple(found for found in detections if found.score >= threshold)


class Judge:
    """Applies measures to the releases of one text, in order.

    Where any of them changes text, a finding tells what it found only if just that has left in the clear: the text of
    one may hold the secret of another. `called_for` is the strictest action that any finding called for.
    """

    __slots__ = ("_is_blocked", "_masker", "_measures", "_tells_all", "called_for")

    def __init__(self, measures: Measures, names: Pseudonyms | None = None) -> None:
        self._measures = measures
        strictest = max([measures.action, *measures.actions.values()])
        self._tells_all = strictest is Action.ANNOTATE
        self._masker = Masker(measures.mask_with, names)
        self._is_blocked = False
        self.called_for = Action.ANNOTATE

    def judge(self, start: int, text: str, detections: Sequence[Detection] = ()) -> Verdict:
        """The verdict on the text that starts at `start`; spans count from the first character of the whole."""
        if not (detections or self._is_blocked or self._masker.ahead):  # as nearly always
            return Verdict(text, (), False, len(text))
        if detections:
            self._note(detections)
        if self._measures.is_shadow:
            return Verdict(text, (), kept=len(text))
        if self._tells_all:
            return Verdict(text, tuple(detections), kept=len(text))
        if self._is_blocked:
            return Verdict("", self._tell(detections, start, "", ()), is_blocked=True)
        return self._apply(start, text, detections)

    def _note(self, detections: Sequence[Detection]) -> None:
        self.called_for = max(self.called_for, self._measures.strictest([one.detector_id for one in detections]))

    def _apply(self, start: int, text: str, detections: Sequence[Detection]) -> Verdict:
        masks = self._masker.mask(start, len(text), self._select(detections, Action.MASK, Action.MASK))
        ending = self._select(detections, Action.STOP, Action.BLOCK)
        kept = text
        if ending:
            self._is_blocked = True
            kept = text[: self._find_end(start, ending)]
            masks = _cut(masks, start + len(kept))
        told = self._tell(detections, start, kept, masks)
        left = apply_masks(start, kept, masks)
        if ending:
            left += self._measures.fallback
        return Verdict(left, told, bool(ending), len(kept), tuple(masks))

    def _tell(
        self, detections: Sequence[Detection], start: int, left: str, masks: Sequence[Mask]
    ) -> tuple[Detection, ...]:
        """The findings; what one found is hidden unless it has left, in the text that starts at `start`."""
        told = []
        for one in detections:
            if _has_left(one, start, left, masks):
                told.append(one)
            elif self._measures.trusts(one.detector_id):
                told.append(hide(one))
        return tuple(told)

    def _select(self, detections: Sequence[Detection], mildest: Action, strictest: Action) -> list[Detection]:
        """The findings whose action lies between these."""
        action_of = self._measures.of
        return [one for one in detections if mildest <= action_of(one.detector_id) <= strictest]

    def _find_end(self, start: int, ending: Sequence[Detection]) -> int:
        """How much still leaves of the text with which it ends."""
        if self._select(ending, Action.BLOCK, Action.BLOCK):
            return 0
        return max(min([found.start for found in ending]) - start, 0)


def judge_whole(
    text: str, detections: Sequence[Detection], measures: Measures, names: Pseudonyms | None = None
) -> Verdict:
    """The verdict on a text that is complete and of which nothing has left."""
    return Judge(measures, names).judge(0, text, detections)


def _cut(masks: Sequence[Mask], end: int) -> list[Mask]:
    """The masks of text that ends there. One that would go beyond it is written all the same: it tells nothing."""
    return [mask if mask.end <= end else _shorten(mask, end) for mask in masks if mask.start < end]


def _shorten(mask: Mask, end: int) -> Mask:
    is_blocks = len(mask.text) == mask.end - mask.start and not mask.text.strip(MASK_CHARACTER)
    return Mask(mask.start, end, mask.text[: end - mask.start] if is_blocks else mask.text)


def _has_left(found: Detection, start: int, left: str, masks: Sequence[Mask]) -> bool:
    place = found.start - start
    if place < 0 or not found.text or left[place : found.end - start] != found.text:
        return False
    return not any(mask.start < found.end and found.start < mask.end for mask in masks)


def hide(found: Detection) -> Detection:
    """The finding without what was found: span, kind and score stay, so does metadata that does not repeat the text.

    Reasons in a detector's own words may quote a part of it, so they go.
    """
    metadata = found.metadata
    if metadata:
        metadata = {key: value for key, value in metadata.items() if key not in _FREE_WORDS}
        metadata = _hide_word(metadata, found.text.casefold()) if found.text else metadata
    if _may_quote(found.text):  # what a detector calls its finding may repeat it
        word = found.text.casefold()
        kinds = [_hide_word(found.detection, word), _hide_word(found.detection_type, word)]
        found = found._replace(detection=kinds[0], detection_type=kinds[1])
    return found._replace(text=MASK_CHARACTER * len(found.text), evidence=(), metadata=metadata)


def _may_quote(word: str) -> bool:
    """Whether a name that has this in it quotes it; a letter or two are in many names."""
    return len(word) >= _MIN_QUOTE_CHARS


def _hide_word(value: Any, word: str) -> Any:
    """The value without the strings that have the word in them: a rule may be named by the keyword that it found."""
    if isinstance(value, str):
        return MASK_CHARACTER * len(value) if word in value.casefold() else value
    if isinstance(value, Mapping):
        names = {key: _hide_word(key, word) if _may_quote(word) else key for key in value}
        return {names[key]: _hide_word(item, word) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_word(item, word) for item in value]
    return value
