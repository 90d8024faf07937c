# SPDX-License-Identifier: Apache-2.0
"""Masks: what is written in place of text that must not be seen, wherever releases are cut.

It is a block for each character, the kind of what was found, or a made-up name that stays the same for the same value.
Masks that overlap are one, named by the one that begins first.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from lockgate.gate.values import Detection

MASK_CHARACTER = "█"
_MAX_LABEL_CHARS = 40
_MIN_QUOTE_CHARS = 3  # of a found text that its kind must not repeat
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
    """The kind of what was found, as `EMAIL`; never the found text itself, whatever a detector calls it."""
    kind = found.detection[: _MAX_LABEL_CHARS * 2]
    words = _NO_WORD.sub("_", _CAMEL.sub("_", kind).upper()).strip("_").removesuffix("_ADDRESS")
    words = words[:_MAX_LABEL_CHARS].strip("_") or _NAMELESS
    value, name = _squeeze(found.text), _squeeze(found.detection)
    is_quoted = value and (value in name or value in _squeeze(words))
    return _NAMELESS if is_quoted or (len(name) >= _MIN_QUOTE_CHARS and name in value) else words


def _squeeze(text: str) -> str:
    return "".join([one for one in text.casefold() if one.isalnum()]) or text


class Pseudonyms:
    """The made-up names of one request: the same value has the same name, and a name is never renamed."""

    __slots__ = ("_names", "values")

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.values: dict[str, str] = {}  # what each name stands for: for the caller alone, if it asks; never kept

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


class Masker:
    """The masks of one text whose releases come in order.

    A finding comes once, with the first release that it overlaps or earlier; what it covers beyond is remembered.
    """

    __slots__ = ("_names", "_upto", "_with", "ahead")

    def __init__(self, mask_with: MaskWith = MaskWith.BLOCK, names: Pseudonyms | None = None) -> None:
        self._with = mask_with
        self._names = names if names is not None else Pseudonyms()
        self.ahead: list[Detection] = []  # what covers text that has not come
        self._upto = 0  # where the mask that was begun last ends, as far as is known

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
            masks.append(Mask(low, high, self._write(one, high - low)))
        elif not masks or masks[-1].end < low:  # what was begun before goes on
            masks.append(Mask(low, high, self._go_on(high - low)))
        elif masks[-1].end < high:
            last = masks[-1]
            masks[-1] = Mask(last.start, high, last.text + self._go_on(high - last.end))
        self._upto = max(self._upto, one.end)

    def _write(self, one: Detection, length: int) -> str:
        if self._with is MaskWith.BLOCK:
            return MASK_CHARACTER * length
        return f"[{label(one)}]" if self._with is MaskWith.LABEL else self._names.name(one)

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
