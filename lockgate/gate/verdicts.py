# SPDX-License-Identifier: Apache-2.0
"""Applies a policy's actions to findings: annotate, mask, stop or block a text; flag, mask or drop a document.

`stop` and `block` replace all text that has not left yet by the fallback. They differ only in the release that brings
the finding: `stop` releases the whole sentences before the first finding, `block` nothing. So of an answer that is
judged whole, `stop` shows the clean beginning and `block` only the fallback. If text has left, the fallback begins a
new line.

In shadow mode no text is changed and no finding reported; only the action that would apply is recorded.

A finding arrives once, with the first released text that overlaps it or earlier. The masker keeps it until the text
that it covers has come.

A mask is a block character for each character, the kind of the finding, or a made-up name that is the same for the
same value, at any cut of the releases. Overlapping masks become one, with the text of the one that begins first.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from hashlib import blake2b, sha256
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
_MADE_UP = re.compile(f"(?:{'|'.join(_WORDS)})[1-9][0-9]{{3}}")  # the word of a pseudonym of any request with a key
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_WORD = re.compile(r"[^A-Z0-9]+")
_MIN_QUOTE_CHARS = 3  # the kind of a finding must not repeat so much of its text; one or two letters are in many names


class Action(IntEnum):
    """The action on text with a finding, from mild to strict."""

    ANNOTATE = 0
    MASK = 1
    STOP = 2
    BLOCK = 3


class DocumentAction(IntEnum):
    """The action on a retrieved document with a finding, from mild to strict."""

    FLAG = 0
    MASK = 1
    DROP = 2


REPLACING = frozenset({Action.MASK})  # replaces the found text and keeps the rest
TEXT_WORDS = {action.name.lower(): action for action in Action}
DOCUMENT_WORDS = {action.name.lower(): action for action in DocumentAction}
_FREE_WORDS = frozenset({"reason", "reasons", "best"})  # metadata keys with free text of a detector
TEXT_ACTIONS = {DocumentAction.FLAG: Action.ANNOTATE, DocumentAction.DROP: Action.BLOCK} | {
    DOCUMENT_WORDS[word]: action for word, action in TEXT_WORDS.items() if action in REPLACING
}  # the action on the text of a document


class MaskWith(StrEnum):
    """The kind of text that replaces masked text."""

    BLOCK = "block"
    LABEL = "label"
    PSEUDONYM = "pseudonym"


class Mask(NamedTuple):
    """A span to hide and its replacement text; the text is empty in a part that continues an earlier mask."""

    start: int
    end: int
    text: str


def label(found: Detection) -> str:
    """Returns the kind of the finding, such as `EMAIL`; never the found text, even if a detector uses it as kind."""
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
    """The pseudonyms of one request: one per value; a pseudonym that is found as a value stays unchanged.

    With a key a pseudonym depends on the key and the value, so that later requests with the key give the value the same
    one. Without a key they are given in the order of first use.
    """

    key: bytes = b""
    _names: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)  # the value of each name; only for the caller, never stored

    def name(self, found: Detection) -> str:
        """Returns the pseudonym of the found value; its label if the value is empty, too long or one too many."""
        value = found.text
        known = self._names.get(value)
        if known is not None:
            return known
        kind = label(found)
        if value in self.values or (self.key and _is_made_up(kind, value)):  # the model repeated it, or a former turn
            return value
        if len(self._names) >= _MAX_NAMES or not 0 < len(value) <= _MAX_VALUE_CHARS:
            return f"[{kind}]"
        name = self._names[value] = self._invent(kind, value)
        self.values[name] = value
        return name

    def make_number(self, name: str) -> str:
        """Returns a made-up number for a pseudonym, for places where only a number may stand; empty for other texts."""
        value = self.values.get(name)
        if value is None:
            return ""
        digits = min(max(sum(map(str.isdigit, value)), 6), 15)
        seed = int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest())
        number = str(10 ** (digits - 1) + seed % (9 * 10 ** (digits - 1)))
        while number in self._names or self.values.get(number, value) != value:
            number = str(int(number) + 1)
        self.values[number] = value
        return number

    def _invent(self, kind: str, value: str) -> str:
        """Returns a new name that does not contain the value and is not contained in it."""
        hidden = _squeeze(value)
        place = 0 if self.key else len(self._names)
        while True:
            word = self._find_word(value, place)
            name = _format_name(kind, word)
            if name not in self.values and name not in self._names and hidden not in word and word not in hidden:
                return name
            place += 1

    def _find_word(self, value: str, place: int) -> str:
        """Returns the word of a pseudonym at this place in the order of those that a value may have."""
        if not self.key:
            turn, at = divmod(place, len(_WORDS))
            return _WORDS[at] + (str(turn + 1) if turn else "")
        body = f"{place}\0{value}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(blake2b(body, key=self.key, digest_size=8).digest())
        return f"{_WORDS[number % len(_WORDS)]}{1000 + number // len(_WORDS) % 9000}"


def _format_name(kind: str, word: str) -> str:
    if "EMAIL" in kind or "E_MAIL" in kind:
        return f"{word}@masked.invalid"
    return f"{kind.lower().replace('_', '-')}-{word}"


def _is_made_up(kind: str, value: str) -> bool:
    """Whether a value of this kind is a pseudonym: no other text has this form, so none can hide in it."""
    found = _MADE_UP.search(value)
    return found is not None and value == _format_name(kind, found[0])


@dataclass(slots=True, eq=False)
class Masker:
    """Makes the masks of one text, whose releases come in order.

    A finding comes once, with the first release that it overlaps or earlier; the masker keeps its rest for later ones.
    """

    _with: MaskWith = MaskWith.BLOCK
    _names: Pseudonyms = field(default_factory=Pseudonyms)
    ahead: list[Detection] = field(default_factory=list)  # findings that cover text of later releases
    _upto: int = 0  # the end of the current mask, as known so far

    def mask(self, start: int, length: int, found: Sequence[Detection]) -> list[Mask]:
        """Returns the masks of a release, cut to its span, in order and without overlaps."""
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
        elif not masks or masks[-1].end < low:  # the mask of an earlier release continues
            masks.append(Mask(low, high, self._go_on(high - low)))
        elif masks[-1].end < high:
            last = masks[-1]
            masks[-1] = Mask(last.start, high, last.text + self._go_on(high - last.end))
        self._upto = max(self._upto, one.end)

    def _go_on(self, length: int) -> str:
        return MASK_CHARACTER * length if self._with is MaskWith.BLOCK else ""


def clip_mask(mask: Mask, start: int, end: int) -> Mask:
    """Returns the part of a mask in that span. Block characters fill every part; other text is in the first only."""
    low, high = max(mask.start, start), min(mask.end, end)
    if not mask.text.strip(MASK_CHARACTER):
        return Mask(low, high, MASK_CHARACTER * (high - low))
    return Mask(low, high, mask.text if low == mask.start else "")


def mask_part(start: int, text: str, masks: Sequence[Mask]) -> str:
    """Returns a part of a text, which begins at `start`, with the masks of the whole text applied."""
    end = start + len(text)
    own = [clip_mask(one, start, end) for one in masks if one.start < end and one.end > start]
    return apply_masks(start, text, own)


def apply_masks(start: int, text: str, masks: Sequence[Mask]) -> str:
    """Returns the text, which begins at `start`, with the masks applied."""
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
    """The actions for one part of a request: a default for all detectors, and others for some.

    `own`: the policy's detectors; None without a policy. Other detectors, named by the request, only annotate text that
    left unmasked: otherwise a caller could find out a masked text letter by letter with patterns.
    """

    action: Action = Action.ANNOTATE
    actions: Mapping[str, Action] = MappingProxyType({})
    mask_with: MaskWith = MaskWith.BLOCK
    fallback: str = ""
    is_shadow: bool = False
    own: frozenset[str] | None = None

    def of(self, detector_id: str) -> Action:
        """Returns the action for findings of this detector."""
        return self.actions.get(detector_id, self.action) if self.trusts(detector_id) else Action.ANNOTATE

    def trusts(self, detector_id: str) -> bool:
        """Returns whether findings of this detector are reported even if their text is hidden."""
        return self.own is None or detector_id in self.own

    def strictest(self, detector_ids: Iterable[str]) -> Action:
        """Returns the strictest action for findings of these detectors."""
        return max([self.of(name) for name in detector_ids], default=Action.ANNOTATE)

    def changes_text(self, detector_ids: Iterable[str]) -> bool:
        """Returns whether a finding of one of these detectors would change the text."""
        return not self.is_shadow and self.strictest(detector_ids) is not Action.ANNOTATE


class Verdict(NamedTuple):
    """The text that may leave and the findings to report. `is_blocked`: no more of the original text follows.

    The text is the first `kept` characters of the judged text with masks applied, then `ending`: the fallback, on a new
    line if text has left, or nothing.
    """

    text: str
    detections: tuple[Detection, ...] = ()
    is_blocked: bool = False
    kept: int = 0
    masks: tuple[Mask, ...] = ()
    ending: str = ""

    @property
    def body(self) -> str:
        """The text without its ending."""
        return self.text.removesuffix(self.ending)


FindSentence = Callable[[str, int], int]  # from a text and a position: where the sentence that holds it begins


def begin_text(text: str, at: int) -> int:
    """The FindSentence of a text whose sentences are not known: the whole text is one."""
    return 0


def put_fallback(fallback: str, *, has_left: bool) -> str:
    """Returns the fallback as it follows a text; `has_left`: some of that text has left."""
    return f"\n{fallback}" if has_left and fallback else fallback


def keep(detections: Iterable[Detection], threshold: float) -> tuple[Detection, ...]:
    """Returns the findings whose score reaches the threshold."""
    return tuple(found for found in detections if found.score >= threshold)


class Judge:
    """Applies measures to the releases of one text, in order.

    If an action can change text, a finding is reported with its text only if exactly this text left unmasked, because
    it may contain another finding's secret. `strictest_action` is the strictest action of all findings so far.
    """

    __slots__ = ("_find_sentence", "_is_blocked", "_masker", "_measures", "_only_annotates", "strictest_action")

    def __init__(
        self, measures: Measures, names: Pseudonyms | None = None, find_sentence: FindSentence = begin_text
    ) -> None:
        self._measures = measures
        self._find_sentence = find_sentence
        strictest = max([measures.action, *measures.actions.values()])
        self._only_annotates = strictest is Action.ANNOTATE
        self._masker = Masker(measures.mask_with, names or Pseudonyms())
        self._is_blocked = False
        self.strictest_action = Action.ANNOTATE

    def judge(self, start: int, text: str, detections: Sequence[Detection] = ()) -> Verdict:
        """Returns the verdict on the text that begins at `start`; all spans are positions in the whole text."""
        if not (detections or self._is_blocked or self._masker.ahead):  # the common case
            return Verdict(text, (), False, len(text))
        if detections:
            self.strictest_action = max(
                self.strictest_action, self._measures.strictest([one.detector_id for one in detections])
            )
        if self._measures.is_shadow:
            return Verdict(text, (), kept=len(text))
        if self._only_annotates:
            return Verdict(text, tuple(detections), kept=len(text))
        if self._is_blocked:
            return Verdict("", self._report(detections, start, "", ()), is_blocked=True)
        return self._apply(start, text, detections)

    def _apply(self, start: int, text: str, detections: Sequence[Detection]) -> Verdict:
        masks = self._masker.mask(start, len(text), self._select(detections, min(REPLACING), max(REPLACING)))
        ending = self._select(detections, Action.STOP, Action.BLOCK)
        kept, fallback = text, ""
        if ending:
            self._is_blocked = True
            kept = text[: self._find_end(start, text, ending)]
            masks = _cut(masks, start + len(kept))
            fallback = put_fallback(self._measures.fallback, has_left=bool(start or kept))
        reported = self._report(detections, start, kept, masks)
        left = apply_masks(start, kept, masks)
        return Verdict(left + fallback, reported, bool(ending), len(kept), tuple(masks), fallback)

    def _report(
        self, detections: Sequence[Detection], start: int, left: str, masks: Sequence[Mask]
    ) -> tuple[Detection, ...]:
        """Returns the findings to report; hides the text of each unless it left unmasked in this release."""
        reported = []
        for one in detections:
            if _has_left(one, start, left, masks):
                reported.append(one)
            elif self._measures.trusts(one.detector_id):
                reported.append(hide(one))
        return tuple(reported)

    def _select(self, detections: Sequence[Detection], mildest: Action, strictest: Action) -> list[Detection]:
        """Returns the findings with an action from `mildest` to `strictest`."""
        action_of = self._measures.of
        return [one for one in detections if mildest <= action_of(one.detector_id) <= strictest]

    def _find_end(self, start: int, text: str, ending: Sequence[Detection]) -> int:
        """Returns how many characters of the last release still leave: its whole sentences before the first finding."""
        if self._select(ending, Action.BLOCK, Action.BLOCK):
            return 0
        first = min(min([found.start for found in ending]) - start, len(text) - 1)
        end = self._find_sentence(text, first) if first > 0 else 0
        return end or (min(len(text) - len(text.lstrip()), first) if start and first > 0 else 0)


def judge_whole(
    text: str,
    detections: Sequence[Detection],
    measures: Measures,
    names: Pseudonyms | None = None,
    find_sentence: FindSentence = begin_text,
) -> Verdict:
    """Returns the verdict on a complete text."""
    return Judge(measures, names, find_sentence).judge(0, text, detections)


def _cut(masks: Sequence[Mask], end: int) -> list[Mask]:
    """Returns the masks of a text that is cut at `end`; a mask that crosses the cut keeps its text."""
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
    """Returns the finding without its text; keeps span, kind, score and metadata that does not repeat the text.

    Free-text reasons are removed, as they may quote a part of it.
    """
    metadata = found.metadata
    if metadata:
        metadata = {key: value for key, value in metadata.items() if key not in _FREE_WORDS}
        metadata = _hide_word(metadata, found.text.casefold()) if found.text else metadata
    if len(found.text) >= _MIN_QUOTE_CHARS:  # the kind that a detector gives may repeat the text
        word = found.text.casefold()
        kinds = [_hide_word(found.detection, word), _hide_word(found.detection_type, word)]
        found = found._replace(detection=kinds[0], detection_type=kinds[1])
    return found._replace(text=MASK_CHARACTER * len(found.text), evidence=(), metadata=metadata)


def _hide_word(value: Any, word: str) -> Any:
    """Returns the value with strings that contain the word blacked out: a rule may be named after its keyword."""
    if isinstance(value, str):
        return MASK_CHARACTER * len(value) if word in value.casefold() else value
    if isinstance(value, Mapping):
        names = {key: _hide_word(key, word) if len(word) >= _MIN_QUOTE_CHARS else key for key in value}
        return {names[key]: _hide_word(item, word) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide_word(item, word) for item in value]
    return value
