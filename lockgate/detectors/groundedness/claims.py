# SPDX-License-Identifier: Apache-2.0
"""Splits a sentence of an answer into assertions, and reads days, months and periods."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.data_files import Table, fill_pattern, join_lines, read_table, split_words
from lockgate.detectors.groundedness.numerals import WORDS, Amount, find_amounts
from lockgate.detectors.groundedness.words import (
    compile_pattern,
    find_words,
    fold,
    fold_word,
    guess_language,
    is_small,
    join_phrases,
    read_denials,
    stem,
)


class CalendarTable(Table, frozen=True):
    """Names and patterns of days, months and periods."""

    weekdays: tuple[str, ...]
    short_days: tuple[str, ...]
    day_range: str
    barred_days: str
    day_groups: tuple[tuple[str, int, int], ...]
    months: tuple[str, ...]
    short_months: tuple[str, ...]
    capital_months: str
    plain_may: str
    hint: str
    periods: tuple[str, ...]


class ClaimFile(Table, frozen=True):
    """The words and patterns of `claims.toml`."""

    titles: str
    cut: str
    contrast: str
    lack: str
    polite: str
    pleasantry: str
    calendar: CalendarTable


_FILE = read_table(Path(__file__).with_name("claims.toml"), ClaimFile)

FIGURE: Final = 2.0
"""The weight of a number, a day or a month; a word weighs 1."""

MAX_ASSERTIONS: Final = 8
_MIN_WEIGHT = 2.0
_CUT_WORDS = 3
_MAX_CAPITALS = 0.6
_LANGUAGES = tuple(WORDS)  # those with known number words

_MARK = re.compile(r"\[([^\[\]\r\n]{1,512}+)\]")
_CITATION = re.compile(r"\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*|[^\s/]+/\S.*|(?:cite|source|doc)\b.*", re.IGNORECASE)
_LIST_MARK = re.compile(r"\A\s*(?:[-*•‣–]|\(?\d{1,3}[.)]|#{1,6})\s+")
_QUESTION = re.compile(r"[?？]['\"”»)]*\s*\Z")
_CODE = re.compile(r"(?<!\w)[^\W\d_]{1,20}-?\d[\w-]{0,30}")
_TOKEN = re.compile(r"[^\W\d_][\w'’-]*")
_OPENING = re.compile(r"[.:!\"“„«]\s*\Z")
_CUT = compile_pattern(_FILE.cut)
_CONTRAST = compile_pattern(_FILE.contrast)
_LACK = compile_pattern(_FILE.lack)
_PLEASANTRY = compile_pattern(fill_pattern(_FILE.pleasantry, {"polite": join_lines(_FILE.polite)}))
_TITLES = split_words(_FILE.titles)

# --- Calendar -------------------------------------------------------------------------------------------------


def _number(rows: Iterable[str]) -> dict[str, int]:
    """Maps each word of the rows to its place in its row."""
    return {fold(form): place for row in rows for place, forms in enumerate(row.split()) for form in forms.split("|")}


_CALENDAR = _FILE.calendar
WEEKDAYS: Final = _number(_CALENDAR.weekdays)
_SHORT_DAYS = _number(_CALENDAR.short_days)
_ALL_DAYS = _SHORT_DAYS | WEEKDAYS
_DAY_NAMES = {"days": "|".join(sorted(_ALL_DAYS, key=len, reverse=True))}
_DAY_RANGE = re.compile(fill_pattern(_CALENDAR.day_range, _DAY_NAMES))
_BARRED_DAYS = re.compile(fill_pattern(_CALENDAR.barred_days, _DAY_NAMES))
_DAY_GROUPS: Final = tuple(
    (re.compile(pattern), range(first, last + 1)) for pattern, first, last in _CALENDAR.day_groups
)
MONTHS: Final = _number(_CALENDAR.months)
_SHORT_MONTHS = _number(_CALENDAR.short_months)
_CAPITAL_MONTHS = split_words(_CALENDAR.capital_months)
_PLAIN_MAY = re.compile(join_lines(_CALENDAR.plain_may))
_PERIODS = tuple(re.compile(rf"\b(?:{join_lines(words)})\b") for words in _CALENDAR.periods)
_HINT = re.compile(_CALENDAR.hint)


class Calendar(NamedTuple):
    """The days (0 to 6) that a text names and excludes, months (1 to 12), and periods from day (0) to year (4)."""

    days: frozenset[int]
    barred: frozenset[int]
    months: frozenset[int]
    periods: frozenset[int]


def read_calendar(text: str, *, is_generous: bool) -> Calendar:
    """Finds days, months and periods; `is_generous` also counts short names and ranges."""
    folded = fold(text)
    words = find_words(text)
    days = frozenset(WEEKDAYS[one] for one in map(fold_word, words) if one in WEEKDAYS)
    barred: frozenset[int] = frozenset()
    if not _ALL_DAYS.keys().isdisjoint(map(fold_word, words)):
        parts = _BARRED_DAYS.findall(folded)
        barred = frozenset(_ALL_DAYS[word] for part in parts for word in find_words(part) if word in _ALL_DAYS)
        days |= _find_more_days(folded, words) if is_generous else frozenset()
    periods: frozenset[int] = frozenset()
    if _HINT.search(folded):
        periods = frozenset(place for place, pattern in enumerate(_PERIODS) if pattern.search(folded))
        groups = [group for pattern, group in _DAY_GROUPS if is_generous and pattern.search(folded)]
        days = days.union(*groups)
    months = _find_months(text, words, is_generous=is_generous)
    return Calendar(days - barred if is_generous else days, barred, months, periods)


def is_calendar(word: str) -> bool:
    """Returns whether a word is the name of a day or a month."""
    folded = fold_word(word)
    return folded in WEEKDAYS or (folded in MONTHS and (word[:1].isupper() or folded not in _CAPITAL_MONTHS))


def _find_more_days(folded: str, words: list[str]) -> set[int]:
    found = {_SHORT_DAYS[one] for word in words if word[:1].isupper() and (one := fold_word(word)) in _SHORT_DAYS}
    for match in _DAY_RANGE.finditer(folded):
        first, last = _ALL_DAYS[match[1]], _ALL_DAYS[match[2]]
        found |= {day % 7 for day in range(first, (last if last >= first else last + 7) + 1)}
    return found


def _find_months(text: str, words: list[str], *, is_generous: bool) -> frozenset[int]:
    found = set()
    for word in words:
        folded = fold_word(word)
        month = MONTHS.get(folded, 0) if is_calendar(word) else 0
        if folded == "may" and not is_generous and not _PLAIN_MAY.search(text):
            month = 0
        if not month and is_generous and len(word) <= len("sept"):
            month = _SHORT_MONTHS.get(folded, 0)
        found.add(month)
    return frozenset(found - {0})


# --- Claims ---------------------------------------------------------------------------------------------------


class Traits:
    """The numbers, dates, codes, denials and words of a text; documents are read with `is_generous`."""

    __slots__ = ("amounts", "calendar", "codes", "denials", "language", "months", "plain", "stems", "text", "words")

    def __init__(self, text: str, language: str, *, is_generous: bool) -> None:
        is_sure = language in _LANGUAGES and not is_generous  # `once` is eleven in Spanish
        self.text = text
        self.language = language
        self.amounts, months = find_amounts(text, (language,) if is_sure else _LANGUAGES)
        self.calendar = read_calendar(text, is_generous=is_generous)
        self.months = self.calendar.months | months
        self.codes = frozenset(fold(code).replace("-", "") for code in _CODE.findall(text))
        self.plain = join_phrases(_without(text, self.amounts))
        self.denials = read_denials(self.plain, language)
        words = find_words(self.plain)
        self.words = frozenset(map(fold_word, words))
        kept = [word for word in words if not (is_small(word, language) or is_calendar(word) or word.isdigit())]
        self.stems = tuple(dict.fromkeys(map(stem, kept)))


class Assertion:
    """A part of a claim that is checked separately. `is_lack`: it says that the documents lack something."""

    __slots__ = ("figures", "is_lack", "names", "text", "traits", "weight")

    def __init__(self, text: str, language: str, *, is_lack: bool = False) -> None:
        self.text = text
        self.is_lack = is_lack
        self.traits = Traits(_LACK.sub(" ", text) if is_lack else text, language, is_generous=False)
        self.names = () if is_lack else tuple(_find_names(self.traits.plain, language))
        self.figures = tuple(one for one in self.traits.amounts if one.is_firm)
        named = len(self.traits.calendar.days) + len(self.traits.months)
        self.weight = len(self.traits.stems) + FIGURE * (len(self.figures) + named)


def read_claim(text: str, language: str) -> list[Assertion]:
    """Returns the assertions of one sentence; none if it claims nothing. `language` is that of the documents."""
    uncited = _MARK.sub(lambda mark: "" if _CITATION.fullmatch(mark[1]) else mark[0], text)
    plain = _LIST_MARK.sub("", uncited).strip()
    if not plain or _QUESTION.search(plain) or _PLEASANTRY.fullmatch(plain):
        return []
    language = guess_language(find_words(plain), language)
    if _LACK.search(plain):
        parts = _CONTRAST.split(plain, MAX_ASSERTIONS - 1)
        found = [Assertion(part, language, is_lack=bool(_LACK.search(part))) for part in parts]
    else:
        found = [Assertion(part, language) for part in _cut(plain, language)]
    if plain.endswith(":") and not any(one.figures for one in found):
        return []
    return [one for one in found if one.weight >= _MIN_WEIGHT or one.is_lack]


def _without(text: str, amounts: Iterable[Amount]) -> str:
    """Returns the text without its figures and their units."""
    parts: list[str] = []
    at = 0
    for one in amounts:
        if one.is_firm and one.start >= at:
            parts.append(text[at : one.start])
            at = one.end
    return " ".join([*parts, text[at:]])


def _cut(text: str, language: str) -> Iterator[str]:
    """Yields the parts of a sentence, each with enough words to be compared."""
    cuts = [(match.start(), match.end()) for match in _CUT.finditer(text)]
    begins, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    weights = [_estimate_weight(text[begin:end], language) for begin, end in zip(begins, ends, strict=True)]
    start, weight, count = 0, 0, 0
    for at, (end, added) in enumerate(zip(ends, weights, strict=True)):
        weight += added
        is_enough = weight >= _CUT_WORDS and sum(weights[at + 1 :]) >= _CUT_WORDS
        if is_enough and count < MAX_ASSERTIONS - 1:
            yield text[start:end]
            start, weight, count = begins[at + 1], 0, count + 1
    yield text[start:]


def _estimate_weight(text: str, language: str) -> int:
    words = [word for word in find_words(text) if not is_small(word, language)]
    return len(words) + sum(word[0].isdigit() or is_calendar(word) for word in words)


def _find_names(text: str, language: str) -> Iterator[str]:
    """Yields capitalised words as names; in German only after another such word or a title."""
    tokens = list(_TOKEN.finditer(text))
    capital = [token[0][0].isupper() for token in tokens]
    is_german = language == "de"
    if not is_german and len(tokens) > 3 and sum(capital) > _MAX_CAPITALS * len(tokens):
        return  # a heading
    for at in range(1, len(tokens)):
        name, start = tokens[at][0], tokens[at].start()
        is_titled = fold_word(tokens[at - 1][0]) in _TITLES
        is_second = capital[at - 1] and at > 1
        begins = _OPENING.search(text, max(0, start - 4), start) is not None and not is_titled
        is_name = capital[at] and len(name) > 2 and not begins and (not is_german or is_titled or is_second)
        is_word = is_small(name, language) or is_calendar(name) or any(char.isdigit() for char in name)
        if is_name and not is_word:
            yield name
