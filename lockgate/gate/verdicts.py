# SPDX-License-Identifier: Apache-2.0
"""What policy says about findings: annotate, mask, stop or block a text; flag, mask or drop a document.

Where text is replaced (stop, block) the fallback takes the place of everything that has not left yet; they
differ only in the release that brings the finding: `stop` lets the part before the first finding leave, `block`
nothing. So of an answer that is judged whole, `stop` shows the clean beginning and `block` only the fallback.

In shadow nothing is changed and nothing told: only what would have been done is known.

A finding arrives once, with the first released text that overlaps it or earlier; what it covers beyond that text is
remembered.

A mask is a block for each character, the kind of what was found, or a made-up name that stays the same for the same
value, wherever releases are cut. Masks that overlap are one, named by the one that begins first.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from lockgate.gate.values import Detection

MASK_CHARACTER = "█"
_MAX_LABEL_CHARS = 40
_NAMELESS = "MASKED"
_MAX_NAMES = 10_000
_MAX_VALUE_CHARS = 4096
_WORDS = (
    "heron", "maple", "otter", "cedar", "finch", "birch", "lynx", "willow", "raven", "aspen", "badger", "juniper",
    "kestrel", "alder", "marten", "hazel", "plover", "rowan", "swift", "linden", "wren", "poplar", "ibis", "spruce",
    "stork", "laurel", "tern", "myrtle", "crane", "acacia", "egret", "cypress", "robin", "larch", "bittern", "elder",
)  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_WORD = re.compile(r"[^A-Z0-9]+")
_MIN_QUOTE_CHARS = 3  # of a found text that its kind must not repeat: a letter or two are in many names


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


REPLACING = frozenset({Action.MASK})  # what is found is replaced, and the rest of the text goes on
TEXT_WORDS = {action.name.lower(): action for action in Action}
DOCUMENT_WORDS = {action.name.lower(): action for action in DocumentAction}
_FREE_WORDS = frozenset({"reason", "reasons", "best"})  # metadata in a detector's own words
TEXT_ACTIONS = {DocumentAction.FLAG: Action.ANNOTATE, DocumentAction.DROP: Action.BLOCK} | {
    DOCUMENT_WORDS[word]: action for word, action in TEXT_WORDS.items() if action in REPLACING
}  # what is done with the text of a document


class MaskWith(StrEnum):
    """What is written in place of a masked text."""

    BLOCK = "block"
    LABEL = "label"
    PSEUDONYM = "pseudonym"


class Mask(NamedTuple):
    """Characters that must not be seen, and what is written for them. Of one that goes on the rest may be nothing."""

    start: int
    end: int
    text: str


def label(found: Detection) -> str:
    """The kind of what was found, as `EMAIL`; never the found text, even if a detector names it so."""
    kind = found.detection[: _MAX_LABEL_CHARS * 2]
    words = _NO_WORD.sub("_", _CAMEL.sub("_", kind).upper()).strip("_").removesuffix("_ADDRESS")
    words = words[:_MAX_LABEL_CHARS].strip("_") or _NAMELESS
    value, name = _squeeze(found.text), _squeeze(found.detection)
    is_quoted = value and (value in name or value in _squeeze(words))
    return _NAMELESS if is_quoted or (len(name) >= _MIN_QUOTE_CHARS and name in value) else words


def _squeeze(text: str) -> str:
    return "".join([one for one in text.casefold() if one.isalnum()]) or text


@dataclass(slots=True, eq=False)
class Pseudonyms:
    """The made-up names of one request: the same value has the same name, and a name is never renamed."""

    _names: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)  # what each name stands for: for the caller alone, never kept

    def name(self, found: Detection) -> str:
        """The name for what was found; its kind alone, where there are too many names or the value has no end."""
        value = found.text
        known = self._names.get(value)
        if known is not None:
            return known
        if value in self.values:  # a name of ours came back, as from a model that was given it
            return value
        kind = label(found)
        if len(self._names) >= _MAX_NAMES or not 0 < len(value) <= _MAX_VALUE_CHARS:
            return f"[{kind}]"
        name = self._names[value] = self._invent(kind, value)
        self.values[name] = value
        return name

    def _invent(self, kind: str, value: str) -> str:
        """A new name, in which nothing of the value is known again."""
        hidden = _squeeze(value)
        place = len(self._names)
        while True:
            turn, at = divmod(place, len(_WORDS))
            word = _WORDS[at] + (str(turn + 1) if turn else "")
            name = _dress(kind, word)
            if name not in self.values and name not in self._names and hidden not in word and word not in hidden:
                return name
            place += 1


def _dress(kind: str, word: str) -> str:
    if "EMAIL" in kind or "E_MAIL" in kind:
        return f"{word}@masked.invalid"
    return f"{kind.lower().replace('_', '-')}-{word}"


@dataclass(slots=True, eq=False)
class Masker:
    """The masks of one text whose releases come in order.

    A finding comes once, with the first release that it overlaps or earlier; what it covers beyond is remembered.
    """

    _with: MaskWith = MaskWith.BLOCK
    _names: Pseudonyms = field(default_factory=Pseudonyms)
    ahead: list[Detection] = field(default_factory=list)  # what covers text that has not come
    _upto: int = 0  # where the mask that was begun last ends, as far as is known

    def mask(self, start: int, length: int, found: Sequence[Detection]) -> list[Mask]:
        """The masks of the release that starts there, cut to it; in order, and none overlaps another."""
        end = start + length
        spans = [*self.ahead, *found]
        if len(spans) > 1:
            spans.sort(key=lambda one: (one.start, -one.end))
        masks: list[Mask] = []
        for one in spans:
            low, high = max(one.start, start), min(one.end, end)
            if low < high:
                self._add(masks, one, low, high)
        self.ahead = [one for one in spans if one.end > max(end, one.start)]
        return masks

    def _add(self, masks: list[Mask], one: Detection, low: int, high: int) -> None:
        if low >= self._upto:
            if self._with is MaskWith.BLOCK:
                text = MASK_CHARACTER * (high - low)
            else:
                text = f"[{label(one)}]" if self._with is MaskWith.LABEL else self._names.name(one)
            masks.append(Mask(low, high, text))
        elif not masks or masks[-1].end < low:  # what was begun before goes on
            masks.append(Mask(low, high, self._go_on(high - low)))
        elif masks[-1].end < high:
            last = masks[-1]
            masks[-1] = Mask(last.start, high, last.text + self._go_on(high - last.end))
        self._upto = max(self._upto, one.end)

    def _go_on(self, length: int) -> str:
        return MASK_CHARACTER * length if self._with is MaskWith.BLOCK else ""


def clip_mask(mask: Mask, start: int, end: int) -> Mask:
    """The part of a mask that lies there; what it says is said where it begins, blocks everywhere."""
    low, high = max(mask.start, start), min(mask.end, end)
    if not mask.text.strip(MASK_CHARACTER):
        return Mask(low, high, MASK_CHARACTER * (high - low))
    return Mask(low, high, mask.text if low == mask.start else "")


def mask_part(start: int, text: str, masks: Sequence[Mask]) -> str:
    """A part of a text, which starts there, with the masks of the whole."""
    end = start + len(text)
    own = [clip_mask(one, start, end) for one in masks if one.start < end and one.end > start]
    return apply_masks(start, text, own)


def apply_masks(start: int, text: str, masks: Sequence[Mask]) -> str:
    """The text, which starts there, with the masks in place of what they cover."""
    if not masks:
        return text
    parts: list[str] = []
    position = start
    for mask in masks:
        parts += text[position - start : mask.start - start], mask.text
        position = mask.end
    parts.append(text[position - start :])
    return "".join(parts)


class Measures(NamedTuple):
    """What becomes of findings in one part of a request: one action for all detectors, and others for some.

    `own` are the detectors of the policy, if it is one. Others that a request names only annotate what has left in
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
        self._masker = Masker(measures.mask_with, names or Pseudonyms())
        self._is_blocked = False
        self.called_for = Action.ANNOTATE

    def judge(self, start: int, text: str, detections: Sequence[Detection] = ()) -> Verdict:
        """The verdict on the text that starts at `start`; spans count from the first character of the whole."""
        if not (detections or self._is_blocked or self._masker.ahead):  # as nearly always
            return Verdict(text, (), False, len(text))
        if detections:
            self.called_for = max(self.called_for, self._measures.strictest([one.detector_id for one in detections]))
        if self._measures.is_shadow:
            return Verdict(text, (), kept=len(text))
        if self._tells_all:
            return Verdict(text, tuple(detections), kept=len(text))
        if self._is_blocked:
            return Verdict("", self._tell(detections, start, "", ()), is_blocked=True)
        return self._apply(start, text, detections)

    def _apply(self, start: int, text: str, detections: Sequence[Detection]) -> Verdict:
        masks = self._masker.mask(start, len(text), self._select(detections, min(REPLACING), max(REPLACING)))
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
    if len(found.text) >= _MIN_QUOTE_CHARS:  # what a detector calls its finding may repeat it
        word = found.text.casefold()
        kinds = [_hide_word(found.detection, word), _hide_word(found.detection_type, word)]
        found = found._replace(detection=kinds[0], detection_type=kinds[1])
    return found._replace(text=MASK_CHARACTER * len(found.text), evidence=(), metadata=metadata)


def _hide_word(value: Any, word: str) -> Any:
    """The value without the strings that have the word in them: a rule may be named by the keyword that it found."""
    if isinstance(value, str):
        return MASK_CHARACTER * len(value) if word in value.casefold() else value
    if isinstance(value, Mapping):
        names = {key: _hide_word(key, word) if len(word) >= _MIN_QUOTE_CHARS else key for key in value}
        return {names[key]: _hide_word(item, word) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_word(item, word) for item in value]
    return value
