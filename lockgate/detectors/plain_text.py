# SPDX-License-Identifier: Apache-2.0
"""Matches rules with plain text: lower-case ASCII without accents, look-alikes and invisible characters."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lockgate.data_files import Table, fill_parts, fill_pattern
from lockgate.detectors.letters import Letters
from lockgate.detectors.scans import PatternTable

_UNSEEN = frozenset({"Mn", "Cf", "Cc", "Cs"})
_LOOKALIKES = str.maketrans("авекмнорстухіјѕԁαβεικνορτυχ", "abekmhopctyxijsdabeiknoptux")
_SPELLED = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ı": "i"} | dict.fromkeys("‘’‛´`ʼ", "'")


def _spell(letter: str) -> str:
    if letter in "\t\n\r\f\v":
        return " "
    parts = [part for part in unicodedata.normalize("NFKD", letter) if unicodedata.category(part) not in _UNSEEN]
    plain = "".join(_SPELLED.get(part, part) for part in "".join(parts).lower()).translate(_LOOKALIKES)
    return "".join(" " if part.isspace() else part if part.isascii() else "?" for part in plain)


class TextNormaliser:
    """Turns text into its plain form; caches the form of each letter."""

    def __init__(self) -> None:
        self._letters = Letters(_spell)

    def fold(self, text: str) -> bytes:
        """Returns the plain form; letters of other scripts become question marks."""
        return text.translate(self._letters).encode("ascii")


class Rule(Table, frozen=True):
    """A pattern for plain text, or alternatives that begin at a word, with its label and score."""

    name: str
    label: str
    score: float
    pattern: str = ""
    alternatives: tuple[str, ...] = ()


class RuleFile(Table, frozen=True):
    """A file of rules, and the parts that their patterns share."""

    parts: dict[str, str]
    rules: tuple[Rule, ...]

    def build(self) -> tuple[Rule, ...]:
        """Returns the rules with complete patterns, in the order of the file."""
        parts = fill_parts(self.parts.items())
        return tuple(_build_rule(entry, parts) for entry in self.rules)


def _build_rule(entry: Rule, parts: Mapping[str, str]) -> Rule:
    alternatives = [rf"\b(?:{fill_pattern(one, parts)})" for one in entry.alternatives]
    pattern = fill_pattern(entry.pattern, parts) or "|".join(alternatives)
    return msgspec.structs.replace(entry, pattern=pattern)


class RuleTable:
    """Finds which rules match a text, in one pass."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._table = PatternTable(rule.pattern for rule in self._rules)
        self._plain = TextNormaliser()

    def meet(self, text: str) -> Sequence[Rule]:
        """Returns the rules that match the text, the highest score first."""
        met = [self._rules[number] for number in self._table.occurring(self._plain.fold(text))]
        return sorted(met, key=lambda rule: (-rule.score, rule.name))
