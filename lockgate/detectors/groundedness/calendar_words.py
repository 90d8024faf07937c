# SPDX-License-Identifier: Apache-2.0
"""Weekdays, months and how often something happens, in English, Spanish and German.

Decides which days a text means: `Monday to Friday` means five, `daily except Mondays` six. What a claim names is read
strictly, what a document names generously: short names, ranges and groups count there. Refuses to know dates.
"""

import re
from typing import Final, NamedTuple

from lockgate.detectors.groundedness.content_words import find_words, fold, fold_word


def _number(*rows: str) -> dict[str, int]:
    """Each word of the rows with its place in its row; several forms of one are parted by a stroke."""
    return {fold(form): place for row in rows for place, forms in enumerate(row.split()) for form in forms.split("|")}


WEEKDAYS: Final = _number(
    "monday|mondays tuesday|tuesdays wednesday|wednesdays thursday|thursdays friday|fridays saturday|saturdays "
    "sunday|sundays",
    "lunes martes miércoles jueves viernes sábado|sábados domingo|domingos",
    "montag|montags|montage|montagen dienstag|dienstags|dienstage|dienstagen mittwoch|mittwochs "
    "donnerstag|donnerstags|donnerstage|donnerstagen freitag|freitags|freitage|freitagen "
    "samstag|samstags|samstage|samstagen|sonnabend|sonnabends sonntag|sonntags|sonntage|sonntagen",
)
_SHORT_DAYS = _number("mon tue|tues wed thu|thur|thurs fri sat sun", "mo di mi do fr sa so")
_ALL_DAYS = _SHORT_DAYS | WEEKDAYS
_DAY_NAMES = "|".join(sorted(_ALL_DAYS, key=len, reverse=True))
_DAY_RANGE = re.compile(
    rf"\b({_DAY_NAMES})\.?(?:\s+(?:to|through|thru|until|till|and|bis|a|al|hasta)\s+(?:(?:the|el|einschliesslich)\s+)?"
    rf"|\s?[-–—]\s?)({_DAY_NAMES})\b"
)
_DAY_GROUPS: Final = (
    (re.compile(r"\b(?:weekdays?|work(?:ing )?days?|dias? laborables?|entre semana|werktag(?:s|e|en)?)\b"), range(6)),
    (re.compile(r"\b(?:weekends?|fin(?:es)? de semana|wochenend(?:e|en|s))\b"), range(5, 7)),
    (re.compile(r"\b(?:daily|every day|each day|a diario|todos los dias|taglich|jeden tag)\b"), range(7)),
)
_BARRED_DAYS = re.compile(
    r"\b(?:except|but not|excepto|salvo|menos|ausser|ausgenommen)\s+(?:(?:on|for|los|el|an|am|the)\s+)?"
    rf"((?:{_DAY_NAMES})(?:\s?(?:,|and|or|y|o|und|oder)\s+(?:los\s+)?(?:{_DAY_NAMES}))*)\b"
)
MONTHS: Final = _number(
    "- january february march april may june july august september october november december",
    "- enero febrero marzo abril mayo junio julio agosto septiembre|setiembre octubre noviembre diciembre",
    "- januar|jänner februar|feber märz april mai juni juli august september oktober november dezember",
)
_SHORT_MONTHS = _number("- jan|ene feb mar apr|abr - jun jul aug|ago sep|sept oct|okt nov dec|dic|dez")
_CAPITAL_MONTHS = frozenset(("may", "march", "mai"))  # other words in small letters
_PLAIN_MAY = re.compile(
    r"(?:\b(?:in|of|by|since|until|from|to|late|early|mid|and|through|next|last)\s|\d\.?\s)May\b|\bMay\s\d"
)
_PERIODS = tuple(
    re.compile(rf"\b(?:{words})\b")
    for words in (
        r"daily|(?:per|a|each|every) day|diari[oa]s?|(?:al|por|cada) dia|taglich\w*|(?:pro|am|jeden) tag",
        r"weekly|(?:per|a|each|every) week|semanal(?:es)?|(?:a la|por|cada) semana|wochentlich\w*|(?:pro|jede) woche",
        r"monthly|(?:per|a|each|every) month|mensual(?:es)?|(?:al|por|cada) mes|monatlich\w*|(?:pro|im|jeden) monat",
        r"quarterly|(?:per|a|each|every) quarter|trimestral(?:es)?|(?:al|por|cada) trimestre|vierteljahrlich\w*"
        r"|(?:pro|im) quartal",
        r"annual(?:ly)?|yearly|(?:per|a|each|every) year|anual(?:es)?|(?:al|por|cada) ano|jahrlich\w*|(?:pro|im) jahr",
    )
)


_HINT = re.compile(r"da[iy]|dia|tag|wee|woch|wochen|seman|mon|men|mes\b|quart|trim|viert|jahr|year|anu|nnu|ano|laborab")
"""Where this does not occur, no group of days and no period does."""


class Calendar(NamedTuple):
    """What a text says about time: days 0 to 6, days that it takes out, months 1 to 12, and how often.

    The periods are day, week, month, quarter and year, 0 to 4.
    """

    days: frozenset[int]
    barred: frozenset[int]
    months: frozenset[int]
    periods: frozenset[int]


def read_calendar(text: str, *, is_generous: bool) -> Calendar:
    """The days, months and periods of a text."""
    folded = fold(text)
    words = find_words(text)
    days = frozenset(WEEKDAYS[one] for one in map(fold_word, words) if one in WEEKDAYS)
    barred: frozenset[int] = frozenset()
    if not _ALL_DAYS.keys().isdisjoint(map(fold_word, words)):
        barred = _find_barred(folded)
        days |= _find_more_days(folded, words) if is_generous else frozenset()
    periods: frozenset[int] = frozenset()
    if _HINT.search(folded):
        periods = frozenset(place for place, pattern in enumerate(_PERIODS) if pattern.search(folded))
        days |= _find_day_groups(folded) if is_generous else frozenset()
    months = _find_months(text, words, is_generous=is_generous)
    return Calendar(days - barred if is_generous else days, barred, months, periods)


def is_calendar(word: str) -> bool:
    """Whether a word is the name of a day or a month."""
    folded = fold_word(word)
    return folded in WEEKDAYS or (folded in MONTHS and (word[:1].isupper() or folded not in _CAPITAL_MONTHS))


def _find_barred(folded: str) -> frozenset[int]:
    parts = _BARRED_DAYS.findall(folded)
    return frozenset(_ALL_DAYS[word] for part in parts for word in find_words(part) if word in _ALL_DAYS)


def _find_more_days(folded: str, words: list[str]) -> set[int]:
    found = {_SHORT_DAYS[one] for word in words if word[:1].isupper() and (one := fold_word(word)) in _SHORT_DAYS}
    for match in _DAY_RANGE.finditer(folded):
        first, last = _ALL_DAYS[match[1]], _ALL_DAYS[match[2]]
        found |= {day % 7 for day in range(first, (last if last >= first else last + 7) + 1)}
    return found


def _find_day_groups(folded: str) -> set[int]:
    return {day for pattern, group in _DAY_GROUPS if pattern.search(folded) for day in group}


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
