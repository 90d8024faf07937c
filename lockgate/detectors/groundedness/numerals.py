# SPDX-License-Identifier: Apache-2.0
"""Finds numbers, quantities and times of day in digits and in words; a notation with two readings keeps both."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.data_files import Table, join_lines, read_table, split_words


class Unit(NamedTuple):
    """A unit: the kind of quantity, and its size in the kind's smallest unit."""

    kind: str
    factor: float = 1.0


class NumeralFile(Table, frozen=True):
    """The words and patterns of `numerals.toml`."""

    joiners: str
    ones: str
    currencies: str
    loose: tuple[tuple[str, float, float], ...]
    half_hours: str
    clock: str
    units: tuple[tuple[str, float, str], ...]
    scales: dict[int, str]
    words: dict[str, tuple[tuple[float, float, str], ...]]


def _count_words(rows: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """Maps each word of the rows to its number."""
    return {
        form: first + place * step
        for first, step, words in rows
        for place, forms in enumerate(words.split())
        for form in forms.split("|")
    }


_FILE = read_table(Path(__file__).with_name("numerals.toml"), NumeralFile)
WORDS: Final = {language: _count_words(rows) for language, rows in _FILE.words.items()}
SCALES: Final = {word: float(factor) for factor, words in _FILE.scales.items() for word in words.split()}
UNITS: Final = {word: Unit(kind, factor) for kind, factor, words in _FILE.units for word in words.split()}
JOINERS, ONES, CURRENCIES = map(split_words, (_FILE.joiners, _FILE.ones, _FILE.currencies))
CENT: Final = UNITS["cent"].kind
HALF_HOURS: Final = re.compile(_FILE.half_hours, re.IGNORECASE)
CLOCK: Final = re.compile(join_lines(_FILE.clock))
LOOSE: Final = tuple(
    (re.compile(rf"\b(?:{words})\s(?:de\s|of\s)?[$€£¥]?\s?\Z"), (low, high)) for words, low, high in _FILE.loose
)

MAX_DIGITS: Final = 15  # a longer row of digits is an identifier, compared unchanged
_MAX_DAY, _MAX_MONTH = 31, 12
_MAX_SUMMED = 8
_DAY_MINUTES, _NOON = 1440, 12

_SPACES = "\u00a0\u202f\u2009 "
_DATE = re.compile(
    r"(?<![\w./-])(?:(?P<year>\d{4})-(?P<mon>\d{2})-(?P<day>\d{2})"
    r"|(?P<a>\d{1,2})(?P<sep>[./-])(?P<b>\d{1,2})(?P=sep)(?P<y>\d{4}|\d{2}))(?![\w/-]|\.\d)"
)
_HALF_DAY = r"(?:(?P<half>[ap])\.?\s?m\b\.?|(?P<clock>uhr\b|o['’]clock\b|h\b))"
_TIME = re.compile(
    rf"(?<![\w.,:])(?P<hour>2[0-4]|[01]?\d)(?!\d)(?:(?:[:h]|(?P<point>\.))(?P<minute>[0-5]\d)(?!\d|:\d))?\s?{_HALF_DAY}?",
    re.IGNORECASE,
)
_DIGITS = re.compile(
    rf"(?<!\w)(?<![^\W\d_]-)(?P<sign>[-−](?=\d))?"
    rf"(?P<number>\d{{1,3}}(?P<gap>[.,'’{_SPACES}])\d{{3}}(?:(?P=gap)\d{{3}})*(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*)"
)
_WORD = re.compile(r"[^\W\d_]+")
_AFTER = re.compile(rf"[{_SPACES}-]?(%|°\s?[CF]?|[$€£¥]|[^\W\d_]+)\.?")
_UNIT = re.compile(rf"[{_SPACES}-]?(?:de )?(%|por ciento\b|°\s?[CF]?\b|[$€£¥]|[^\W\d_]+)", re.IGNORECASE)
_BEFORE = re.compile(rf"([$€£¥]|\b(?:EUR|USD|GBP|CHF))[{_SPACES}]?\Z", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_MAX_WORD_CHARS = 48  # of a number in one word
_NOTHING = "\x00"
_GAP = re.compile(rf"[{_SPACES}-]")


class Amount(NamedTuple):
    """A number in a text: all its readings, its unit if it has one, the minutes of the day if it is a time.

    `loose` has the factors by which the true number may differ after `about` or `more than`. One that is not `is_firm`
    may be an article or a part of another notation; one that `is_clock` may be an hour: `at 9`.
    """

    start: int
    end: int
    values: tuple[float, ...]
    unit: Unit | None = None
    minutes: tuple[int, ...] = ()
    loose: tuple[float, float] = (1.0, 1.0)
    is_firm: bool = True
    is_clock: bool = False


class AmountSet:
    """All amounts of a text, to check whether they include those of another text."""

    __slots__ = ("_bare", "_hours", "_minutes", "_quantities", "_values")

    def __init__(self, amounts: Iterable[Amount]) -> None:
        self._values: set[float] = set()
        self._bare: set[float] = set()
        self._quantities: dict[str, set[float]] = {}
        self._minutes: set[int] = set()
        self._hours: set[float] = set()
        self.add(amounts)

    def add(self, amounts: Iterable[Amount]) -> None:
        """Adds the amounts of more text."""
        for one in amounts:
            if one.minutes:
                self._minutes.update(one.minutes)
                self._hours.update(one.values)
                continue
            self._values.update(one.values)
            if one.unit is None:
                self._bare.update(one.values)
                continue
            for kind, size in _list_quantities(one.unit, one.values):
                self._quantities.setdefault(kind, set()).add(size)

    def has(self, one: Amount) -> bool:
        """Returns whether the amount is among these, by any reading of both."""
        if one.minutes:
            return not self._minutes.isdisjoint(one.minutes) or any(value in self._bare for value in one.values)
        if one.unit is None:
            several = (self._values, self._hours) if one.is_clock else (self._values,)
            return any(_is_near(one, known, value) for known in several for value in one.values)
        sizes = [_round(value * one.unit.factor) for value in one.values]
        here = self._quantities.get(one.unit.kind, set())
        return any(_is_near(one, here, size) for size in sizes) or any(
            _is_near(one, self._bare, value) for value in one.values
        )

    def has_value(self, one: Amount) -> bool:
        """Returns whether the number is among these, with any unit."""
        return any(value in self._values or value in self._hours for value in one.values)


def _list_quantities(unit: Unit, values: Iterable[float]) -> Iterator[tuple[str, float]]:
    """Yields an amount in its kind's smallest unit; a price also in cents, and cents in every currency."""
    for value in values:
        yield unit.kind, _round(value * unit.factor)
        if unit.kind in CURRENCIES:
            yield CENT, _round(value * 100)
        elif unit.kind == CENT:
            yield from [(currency, _round(value / 100)) for currency in CURRENCIES]


def _is_near(one: Amount, known: set[float], value: float) -> bool:
    low, high = one.loose
    if low == high:
        return value in known
    return value in known or any(value * low <= other <= value * high for other in known)


def list_sums(amounts: Iterable[Amount]) -> list[Amount]:
    """Returns the sums and differences of two amounts, which answers often state."""
    plain = [one for one in amounts if one.is_firm and len(one.values) == 1 and not one.minutes][:_MAX_SUMMED]
    found = []
    for at, one in enumerate(plain):
        for other in plain[at + 1 :]:
            if one.unit == other.unit:
                both = (_round(abs(one.values[0] - other.values[0])), _round(one.values[0] + other.values[0]))
                found.append(Amount(one.start, other.end, both, one.unit))
    return found


def find_amounts(text: str, languages: tuple[str, ...] = tuple(WORDS)) -> tuple[list[Amount], set[int]]:
    """Returns all amounts in order, and the months of numeric dates."""
    amounts, months, rest = _find_written(text) if _DIGIT.search(text) else ([], set(), text)
    amounts += _find_words(rest, languages)
    amounts = [_read_before(text, one) if one.is_firm else one for one in amounts]
    return sorted(amounts, key=lambda one: one.start), months


def _find_written(text: str) -> tuple[list[Amount], set[int], str]:
    amounts: list[Amount] = []
    months: set[int] = set()
    for match in _DATE.finditer(text):
        if found := _read_date(match):
            amounts += found[0]
            months |= found[1]
    rest = _blank(text, amounts)
    for find in (_find_times, _find_digits):
        found_here = list(find(rest))
        amounts += found_here
        rest = _blank(rest, found_here)
    return amounts, months, rest


def _blank(text: str, amounts: Iterable[Amount]) -> str:
    """Returns the text with a placeholder for each character of an amount."""
    parts: list[str] = []
    at = 0
    for one in amounts:
        if one.start >= at:
            parts += text[at : one.start], _NOTHING * (one.end - one.start)
            at = one.end
    return "".join([*parts, text[at:]])


def _read_date(match: re.Match[str]) -> tuple[list[Amount], set[int]] | None:
    """Returns day and year as numbers, and the month. In `3/4` either may be the month: then the day is not firm."""
    start, end = match.span()
    if match["year"]:
        year, month, day = int(match["year"]), int(match["mon"]), int(match["day"])
        pairs = [(day, month)]
    else:
        year, first, second = int(match["y"]), int(match["a"]), int(match["b"])
        pairs = [(first, second)] if match["sep"] == "." else [(first, second), (second, first)]
    pairs = [(day, month) for day, month in pairs if 1 <= day <= _MAX_DAY and 1 <= month <= _MAX_MONTH]
    if not pairs:
        return None
    is_plain = len(pairs) == 1 or pairs[0] == pairs[1]
    days = tuple(float(day) for day, _ in pairs)
    years = (float(year),) if year > 99 else (float(year), float(year + 1900), float(year + 2000))
    found = [Amount(start, end, days, is_firm=is_plain), Amount(start, end, years)]
    return found, {month for _, month in pairs}


def _find_times(text: str) -> Iterator[Amount]:
    for match in _TIME.finditer(text):
        has_mark = bool(match["half"] or match["clock"])
        if not has_mark and (match["minute"] is None or match["point"]):
            continue
        if match["clock"] in ("h", "H") and match["minute"] is None:
            continue  # hours, not a time of day
        hour, minute = int(match["hour"]), int(match["minute"] or 0)
        hours = _read_hours(hour, match["half"], is_plain=bool(match["clock"]))
        minutes = tuple((one * 60 + minute) % _DAY_MINUTES for one in hours)
        values = () if minute else (float(hour),)
        yield Amount(match.start(), match.end(), values, minutes=minutes)


def _read_hours(hour: int, half: str | None, *, is_plain: bool) -> tuple[int, ...]:
    if half:
        return (hour % _NOON + (_NOON if half in "pP" else 0),)
    return (hour,) if is_plain or hour > _NOON or hour == 0 else (hour, hour % _NOON + _NOON)


def _find_digits(text: str) -> Iterator[Amount]:
    for match in _DIGITS.finditer(text):
        start, end = match.span()
        values = _read_digits(match["number"], match["gap"])
        if match["sign"]:
            values = tuple(-value for value in values)
        factor, end = _read_scale(text, end)
        unit, end = _read_unit(text, start, end)
        yield Amount(start, end, tuple(_round(value * factor) for value in values), unit)
        if match["gap"] and match["gap"] in _SPACES:  # `room 12 300 people`
            for part in _GAP.split(match["number"]):
                yield Amount(start, match.end(), _read_digits(part, None), is_firm=False)


def _read_digits(number: str, gap: str | None) -> tuple[float, ...]:
    if len(number) > MAX_DIGITS:
        return (float(int(re.sub(r"\D", "", number)[: 2 * MAX_DIGITS])),)
    if gap and gap not in ".,":
        whole = re.sub(rf"[{re.escape(gap)}]", "", number)
        return (float(whole.replace(",", ".")),)
    marks = re.findall(r"[.,]", number)
    if not marks:
        return (float(number),)
    if len(set(marks)) == 2 or (len(marks) == 1 and not gap):
        head, tail = re.split(r"[.,](?=\d+\Z)", number)
        return (float(f"{re.sub('[.,]', '', head)}.{tail}"),)
    joined = float(re.sub("[.,]", "", number))
    return (joined,) if len(marks) > 1 else (joined, float(number.replace(",", ".")))


def _read_scale(text: str, end: int) -> tuple[float, int]:
    match = _AFTER.match(text, end)
    scale = SCALES.get(match[1].casefold()) if match else None
    if match is None or scale is None:
        return 1.0, end
    return scale, match.end()


def _read_unit(text: str, start: int, end: int) -> tuple[Unit | None, int]:
    """Returns the unit after a number or the currency before it, and their end."""
    match = _UNIT.match(text, end)
    unit = UNITS.get(match[1].casefold().replace(" ", "")) if match else None
    if match and unit:
        return unit, match.end()
    currency = _BEFORE.search(text, max(0, start - 5), start)
    return (UNITS[currency[1].casefold()], end) if currency else (None, end)


def _find_words(text: str, languages: tuple[str, ...]) -> Iterator[Amount]:
    words = [(match.start(), match.end(), match[0].casefold()) for match in _WORD.finditer(text)]
    at = 0
    while at < len(words):
        if _value_of(words[at][2], languages) is None:
            at += 1
            continue
        count = _count_run(text, words, at, languages)
        yield _read_run(text, words[at : at + count], languages)
        at += count
    for match in HALF_HOURS.finditer(text):
        yield Amount(match.start(), match.end(), (30.0,), UNITS["minute"], is_firm=False)


@lru_cache(4096)
def _value_of(word: str, languages: tuple[str, ...]) -> float | None:
    for language in languages:
        if word in WORDS[language]:
            return WORDS[language][word]
    return read_german(word) if "de" in languages else None


def read_german(word: str) -> float | None:
    """Reads a German number in one word, `fünfundzwanzig` or `dreitausend`; None for another word."""
    known = WORDS["de"]
    if len(word) > _MAX_WORD_CHARS:
        return None
    for scale, factor in (("tausend", 1e3), ("hundert", 1e2)):
        head, found, tail = word.partition(scale)
        if found:
            many = known.get(head) if head else 1.0
            rest = read_german(tail) if tail and tail not in known else known.get(tail, 0.0)
            return None if many is None or rest is None else many * factor + rest
    unit, found, tens = word.partition("und")
    if found and unit in known and known.get(tens, 0.0) >= 20 and known[unit] < 10:
        return known[unit] + known[tens]
    return None


def _count_run(text: str, words: list[tuple[int, int, str]], at: int, languages: tuple[str, ...]) -> int:
    """Counts the words from here on that write one number."""
    count, last = 0, None
    while at + count < len(words):
        start, _, word = words[at + count]
        if count and text[words[at + count - 1][1] : start].strip(" -\u00a0"):
            break
        value = _value_of(word, languages)
        if value is None:
            is_joined = word in JOINERS and last is not None and last >= 20 and at + count + 1 < len(words)
            following = _value_of(words[at + count + 1][2], languages) if is_joined else None
            if following is None or following >= 100:
                break
        elif last is not None and not _continues(last, value):
            break
        last = value if value is not None else last
        count += 1
    return count


def _continues(last: float, value: float) -> bool:
    """Returns whether a number word continues with another: `twenty five`, `two hundred`, `thousand six`."""
    return (value >= 100 and value > last) or (20 <= last < 100 and value < 10) or (last >= 100 and value < last)


def _read_run(text: str, run: list[tuple[int, int, str]], languages: tuple[str, ...]) -> Amount:
    total, current = 0.0, 0.0
    for _, _, word in run:
        value = _value_of(word, languages) or 0.0  # words such as `and` have none
        if value >= 1000 and value in SCALES.values():
            total, current = total + (current or 1.0) * value, 0.0
        elif value == 100:
            current = (current or 1.0) * value
        else:
            current += value
    start, end = run[0][0], run[-1][1]
    unit, unit_end = _read_unit(text, start, end)
    is_article = len(run) == 1 and run[0][2] in ONES
    return Amount(start, unit_end, (_round(total + current),), unit, is_firm=not is_article)


def _read_before(text: str, one: Amount) -> Amount:
    """Returns the amount with the meaning of words before it: `about`, `more than`, `at`."""
    before = text[max(0, one.start - 24) : one.start].casefold()
    loose = next((factors for pattern, factors in LOOSE if pattern.search(before)), one.loose)
    return one._replace(loose=loose, is_clock=CLOCK.search(before) is not None)


def _round(value: float) -> float:
    return round(value, 6)
