# SPDX-License-Identifier: Apache-2.0
"""Folds text: removes characters that cannot be seen, replaces those that look like others, and keeps all places.

A text with such characters has up to two views. The first is composed: NFKC, without invisible characters and without
accents that belong to no letter. The second also lacks accents that are characters by themselves, has Latin letters for
look-alikes, and shows tag characters as the ASCII that they hide. The reasons: docs/decisions/0081-folded-text.md.
"""

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lockgate.data_files import Table, read_table
from lockgate.gate.values import Span

MAX_LONGER = 6
"""A character becomes at most so many."""
_REMEMBERED, _SHORT_CLUSTER = 4096, 4
MIN_FOREIGN_LETTERS = 3
"""A word of look-alikes alone is replaced from this length on."""


class FoldingFile(Table, frozen=True):
    """The content of `text_fold.toml`."""

    invisible: str
    accents: str
    kept: str
    signs: dict[str, str]
    same: dict[str, str]
    alike: dict[str, str]
    digits: dict[str, str]


_FILE = read_table(Path(__file__).with_name("text_fold.toml"), FoldingFile)

# --- Classes of characters ------------------------------------------------------------------------------------


def _read_codes(ranges: str) -> Iterator[int]:
    for one in ranges.split():
        first, _, last = one.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def _invert(table: Mapping[str, str]) -> dict[int, str]:
    return {ord(char): plain for plain, chars in table.items() for char in chars}


_INVISIBLE = frozenset(_read_codes(_FILE.invisible))
_ACCENTS = frozenset(_read_codes(_FILE.accents))
_SIGNS = _invert(_FILE.signs)
_SAME = _invert(_FILE.same)
_ALIKE = _SAME | _invert(_FILE.alike)
_DIGITS = _invert(_FILE.digits)
_TAGS = {code: chr(code - 0xE0000) if 0xE0020 <= code < 0xE007F else "" for code in _INVISIBLE}

# Vowels and finals of Hangul, and the sound marks of narrow kana, which NFKC joins with the letter before them.
_JOINING = frozenset({*range(0x1161, 0x1200), 0xFF9E, 0xFF9F})
# The blocks that have marks, digits, or characters that NFKC replaces. Characters beyond U+FFFF are all looked at.
_BLOCKS = (range(0x80, 0x3400), range(0xA600, 0xAC00), range(0xF900, 0x10000))
_BEYOND = "\U00010000-\U0010ffff"
_MARK_BLOCKS_BEYOND = (range(0x101FD, 0x11FFF), range(0x16AF0, 0x17000), range(0x1BC9D, 0x1EC00))


def fold_char(char: str) -> str:
    """Returns what replaces one character that is visible."""
    if char.isascii() or char in _FILE.kept:
        return char
    sign = _SIGNS.get(ord(char))
    if sign is not None:
        return sign
    digit = unicodedata.digit(char, None)  # also those in circles
    if digit is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", char)
    # Some become a space and an accent, others a whole sentence.
    return char if len(plain) > MAX_LONGER or (len(plain) > 1 and plain[0] == " ") else plain


def _is_replaced(code: int) -> bool:
    return code not in _ACCENTS and code not in _INVISIBLE and fold_char(chr(code)) != chr(code)


def _write_class(codes: Iterable[int]) -> str:
    """Returns the inside of a class of a regular expression; no code is of an ASCII character."""
    runs = groupby(enumerate(sorted(codes)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(run) for _, run in runs)]
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ends)


def _is_script_mark(code: int) -> bool:
    return unicodedata.category(chr(code))[0] == "M" and code not in _ACCENTS and code not in _INVISIBLE


_I = _write_class(_INVISIBLE)
_A = _write_class(_ACCENTS | _JOINING)
_S = _write_class(code for block in _BLOCKS for code in block if _is_script_mark(code))
_MARKS_BEYOND = _write_class(code for block in _MARK_BLOCKS_BEYOND for code in block if _is_script_mark(code))
_C = _write_class(code for block in _BLOCKS for code in block if _is_replaced(code))

_ODD = re.compile(f"[{_I}{_A}{_C}{_BEYOND}]+")
_ODD_OR_MARK = re.compile(f"[{_I}{_A}{_C}{_S}{_BEYOND}]+")
_MARK = re.compile(f"[{_S}]")
_MARKED_LATIN = re.compile(f"[!-~\u00c0-\u024f{_C}][{_I}]*+[{_S}]")
_BEGINS_WITH_MARK = re.compile(f"[{_I}]*+[{_A}{_S}{_MARKS_BEYOND}]")
# A character with its marks, a row of invisible characters, or one character.
_CLUSTER = re.compile(f"(?s)[^{_I}{_A}{_S}{_MARKS_BEYOND}]?(?:[{_I}]*+[{_A}{_S}{_MARKS_BEYOND}])++|[{_I}]++|.")
_HAS_TWO_READINGS = re.compile(f"[{_A}\U000e0000-\U000e007f]")
_LAST_LATIN = "\u024f"

# --- Views ----------------------------------------------------------------------------------------------------


class Places:
    """Where the pieces of a view stand in the text, as far as they do not stand at the same place."""

    __slots__ = ("_begins", "_ends", "_text_begins", "_text_ends")

    def __init__(self) -> None:
        self._begins = array("q")
        self._ends = array("q")
        self._text_begins = array("q")
        self._text_ends = array("q")

    def add(self, begin: int, end: int, text_begin: int, text_end: int) -> None:
        """Adds the next replaced piece, which may be empty in the view."""
        self._begins.append(begin)
        self._ends.append(end)
        self._text_begins.append(text_begin)
        self._text_ends.append(text_end)

    def locate(self, start: int, end: int) -> Span:
        """Returns the span in the text; of a replaced piece all characters, of removed ones those between."""
        first, last = self._find(start)
        if end <= start:
            return Span(first, first)
        return Span(first, last if end == start + 1 else self._find(end - 1)[1])

    def _find(self, at: int) -> tuple[int, int]:
        """Returns the span of one character."""
        number = bisect_right(self._begins, at) - 1
        if number < 0:
            return at, at + 1
        if at < self._ends[number]:
            return self._text_begins[number], self._text_ends[number]
        place = self._text_ends[number] + at - self._ends[number]
        return place, place + 1


class FoldedText(NamedTuple):
    """One view of a text."""

    text: str
    places: Places


def _without_accents(visible: str) -> Iterator[str]:
    is_latin = False
    for char in visible:
        if unicodedata.category(char)[0] != "M":
            is_latin = char <= _LAST_LATIN
        elif is_latin or ord(char) in _ACCENTS:
            continue
        yield char


def _list_visible(cluster: str) -> str:
    return "".join([fold_char(char) for char in cluster if ord(char) not in _INVISIBLE])


def _compose(cluster: str) -> str:
    return "".join(_without_accents(unicodedata.normalize("NFC", _list_visible(cluster))))


def _strip(cluster: str) -> str:
    plain = unicodedata.normalize("NFC", "".join(_without_accents(_list_visible(cluster))))
    return plain or "".join([_TAGS.get(ord(char), "") for char in cluster])


def _remember_short(spell: Callable[[str], str]) -> Callable[[str], str]:
    remembered = lru_cache(_REMEMBERED)(spell)
    return lambda cluster: (remembered if len(cluster) <= _SHORT_CLUSTER else spell)(cluster)


_COMPOSE, _STRIP = _remember_short(_compose), _remember_short(_strip)
_NO_PLACES = Places()


def _has_marked_latin(text: str) -> bool:
    return _MARK.search(text) is not None and _MARKED_LATIN.search(text) is not None


def _list_clusters(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of the pieces that may be replaced."""
    odd = _ODD_OR_MARK if _has_marked_latin(text) else _ODD
    for run in odd.finditer(text):
        start, end = run.span()
        if start > 0 and _BEGINS_WITH_MARK.match(text, start, end):
            start -= 1  # the letter below the mark
        for cluster in _CLUSTER.finditer(text, start, end):
            yield cluster.span()


def _respell(text: str, spell: Callable[[str], str]) -> FoldedText:
    """Replaces the odd pieces of a text."""
    places = Places()
    parts: list[str] = []
    at = begin = 0
    for start, stop in _list_clusters(text):
        old = text[start:stop]
        new = spell(old)
        if new == old:
            continue
        begin += start - at
        parts += text[at:start], new
        if not len(new) == 1 == len(old):
            places.add(begin, begin + len(new), start, stop)
        begin += len(new)
        at = stop
    parts.append(text[at:])
    return FoldedText("".join(parts), places)


# --- Look-alikes ----------------------------------------------------------------------------------------------

_ALL_ALIKE, _ALL_SAME, _ALL_DIGITS = _write_class(_ALIKE), _write_class(_SAME), _write_class(_DIGITS)
_LATIN = "0-9A-Za-z\u00c0-\u024f"
_LATIN_OR_DIGIT = re.compile(f"[{_LATIN}]")
_DIGIT = re.compile("[0-9]")
_NUMBER = re.compile(rf"(?<!\w)[0-9{_ALL_DIGITS}]+(?:[ ./-][0-9{_ALL_DIGITS}]+)*(?!\w)")
_WORD = re.compile(r"\w+")
_NOTEWORTHY = re.compile(f"[{_I}{_A}{_C}{_S}{_ALL_ALIKE}{_ALL_DIGITS}{_BEYOND}]")
# A digit's look-alike in a number, one beside a Latin letter, a digit or an underscore, and a word of look-alikes.
_FOREIGN_WORD = re.compile(
    rf"(?<=[0-9][ ./-])[{_ALL_DIGITS}]"
    rf"|[{_ALL_ALIKE}{_ALL_DIGITS}](?:[{_LATIN}_]|(?<=[{_LATIN}_].))"
    rf"|(?<!\w)[{_ALL_SAME}]{{{MIN_FOREIGN_LETTERS}}}[{_ALL_SAME}]*+(?!\w)"
)


def _write_digits(match: re.Match[str]) -> str:
    return match[0].translate(_DIGITS) if _DIGIT.search(match[0]) else match[0]


def _latinise(match: re.Match[str]) -> str:
    word = match[0]
    if word.isascii():
        return word
    if _LATIN_OR_DIGIT.search(word):
        return word.translate(_ALIKE)
    plain = word.translate(_SAME)
    return plain if len(plain) >= MIN_FOREIGN_LETTERS and plain.isascii() else word


def _replace_lookalikes(text: str) -> str:
    return _WORD.sub(_latinise, _NUMBER.sub(_write_digits, text)) if _FOREIGN_WORD.search(text) else text


def fold(text: str) -> tuple[FoldedText, ...]:
    """Returns the views of a text: none if it has no odd characters, else one or two; the first may be equal to it."""
    if text.isascii() or not _NOTEWORTHY.search(text):
        return ()
    is_odd = _ODD.search(text) is not None or _has_marked_latin(text)
    composed = _respell(text, _COMPOSE) if is_odd else FoldedText(text, _NO_PLACES)
    bare = _respell(text, _STRIP) if is_odd and _HAS_TWO_READINGS.search(text) else composed
    bare = FoldedText(_replace_lookalikes(bare.text), bare.places)
    if bare.text != composed.text:
        return composed, bare
    return (composed,) if composed.text != text else ()
