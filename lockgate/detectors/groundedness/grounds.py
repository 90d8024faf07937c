# SPDX-License-Identifier: Apache-2.0
"""Compares a claim with documents, by its words, its figures and its nearness in meaning.

An assertion is supported by one sentence of the documents that has its words, means nearly the same, and contradicts it
in nothing that can be seen without understanding: another weekday or month, a denial, an opposite, `all` where the
sentence says `some`. Each number and each name must occur in some document; the sum and the difference of two amounts
in one sentence count as said. That the documents lack something is supported, unless one sentence has all of its words
of meaning, and at least three. An assertion in another language than the documents is judged by its figures alone.

Long work is done in steps of a few milliseconds at most.
"""

import re
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from lockgate.data_files import fill_pattern, read_table
from lockgate.detectors.groundedness.claims import FIGURE, Assertion, Traits
from lockgate.detectors.groundedness.numerals import UNITS, Amount, AmountSet, reckon
from lockgate.detectors.groundedness.words import (
    ACCEPTING,
    REJECTING,
    find_every_noun,
    find_opposite,
    find_stem,
    find_words,
    fold_word,
    has_compound,
    speaks_of_all,
    speaks_of_some,
    stem,
    tell_language,
)

MAX_CANDIDATES: Final = 16
"""So many sentences are looked at closely for one assertion: those that share most with it."""

THRESHOLD: Final = 0.75
"""How unsupported an assertion must be to count as that; such a one scores 0.5. Chosen on the labelled set."""

_COVERED, _NEAR = 0.5, 0.5  # the shares of words and of meaning in the support of an assertion
_FAR_COSINE, _NEAR_COSINE = 0.2, 0.75  # from where to where nearness counts
_ELSEWHERE = 0.6  # what a word is worth that stands in the document but not in the sentence
_COMPOUND = 0.7
_CERTAIN = 0.9  # how unsupported an assertion is whose number or name occurs nowhere
_CONTRADICTED = 0.8
_SLACK = 0.1  # how much less support a sentence may give that contradicts nothing
_ROUNDING = 1e-9  # sums of floats that should be equal differ by less
_MIN_OVERLAP = 0.5  # of two clauses whose denials are compared
_CLAUSE_FIGURE, _CLAUSE_DAY = 3.0, 2.0  # what they weigh when the clause is sought that an assertion speaks of
_LACK_WORDS, _LACK_SCORE = 3, 0.6
_MIN_NOUN_CHARS = 4
_HEAD_CHARS = 5
_LANGUAGE_SENTENCES = 8  # of each document: enough to tell in which language it is

OTHER_UNIT: Final = "a number has another unit in the documents"
NO_NUMBER: Final = "a number occurs in no document"
NO_NAME: Final = "a name occurs in no document"
OTHER_DAY: Final = "the documents name another weekday"
OTHER_MONTH: Final = "the documents name another month"
OTHER_PERIOD: Final = "the documents say it happens more or less often"
DENIED: Final = "one denies what the other says"
OPPOSITE: Final = "one says the opposite of the other"
TOO_GENERAL: Final = "it says more than the documents do"
NOT_LACKING: Final = "the documents speak of what they are said to lack"
NOWHERE: Final = "no sentence of the documents says this"
NO_DOCUMENTS: Final = "there are no documents"
_CERTAIN_KINDS = frozenset((OTHER_UNIT, NO_NUMBER, NO_NAME))

_FILE = read_table(Path(__file__).with_name("grounds.toml"), dict[str, str])
_CLAUSE = re.compile(fill_pattern(_FILE["clause"], _FILE), re.IGNORECASE)
_EXCEPT = re.compile(rf"\A\W*(?:{_FILE['except']})\b", re.IGNORECASE)
_PERIOD_LENGTHS: Final = ((1.0, "day"), (1.0, "week"), (1.0, "month"), (3.0, "month"), (1.0, "year"))

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work that may rest at every `yield`, and its result."""


def run_through(steps: Steps[T]) -> T:
    """The result of all steps, without a rest."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Reason(NamedTuple):
    """Why an assertion is not supported: a kind in general words, and what exactly where that is known."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Judgement(NamedTuple):
    """How surely an assertion is not supported, from 0 to 1, why, and the sentence that comes nearest to it."""

    score: float
    reasons: tuple[Reason, ...] = ()
    nearest: str = ""


class Clauses(NamedTuple):
    """The clauses of a sentence, and the words that it takes out of a denial: `not allowed, except guide dogs`."""

    each: tuple[Traits, ...]
    excepted: frozenset[str] = frozenset()


class Sentence:
    """A sentence of a document."""

    def __init__(self, text: str, language: str, document: int) -> None:
        self.document = document
        self.traits = Traits(text, language, is_generous=True)
        periods = [_PERIOD_LENGTHS[period] for period in self.traits.calendar.periods]
        said = [Amount(0, 0, (count,), UNITS[unit]) for count, unit in periods]  # `quarterly` has three months in it
        self.amounts = [*self.traits.amounts, *reckon(self.traits.amounts), *said]
        self.ledger = AmountSet(self.amounts)
        self.known = frozenset(self.traits.stems)
        self._clauses: Clauses | None = None

    @property
    def clauses(self) -> Clauses:
        """Its clauses; itself, if it has but one."""
        return run_through(self.read_clauses())

    def read_clauses(self) -> Steps[Clauses]:
        """Its clauses, read when first asked for: few sentences are."""
        if self._clauses is None:
            parts = [part for part in _CLAUSE.split(self.traits.text) if part and part.strip()]
            self._clauses = Clauses((self.traits,)) if len(parts) < 2 else (yield from self._read_parts(parts))
        return self._clauses

    def _read_parts(self, parts: Sequence[str]) -> Steps[Clauses]:
        found: list[Traits] = []
        said: set[str] = set()
        excepted: set[str] = set()
        for part in parts:
            is_taken_out = bool(found) and found[-1].denials.is_odd and _EXCEPT.match(part) is not None
            plain = _EXCEPT.sub("", part) if is_taken_out else part
            found.append(Traits(plain, self.traits.language, is_generous=True))
            excepted.update(set(found[-1].stems) - said if is_taken_out else ())
            said.update(found[-1].stems)
            yield
        return Clauses(tuple(found), frozenset(excepted))


class _Match(NamedTuple):
    """An assertion beside a sentence; `missing` are the words that are not even in the sentence's document."""

    place: int
    support: float
    conflicts: tuple[Reason, ...]
    missing: tuple[str, ...]


class SourceFacts:
    """What documents say: their sentences, and everything that occurs in them."""

    def __init__(self, documents: int) -> None:
        self.language = ""
        self.sentences: list[Sentence] = []
        self._ledger = AmountSet(())
        self._words: set[str] = set()
        self._days: set[int] = set()
        self._months: set[int] = set()
        self._codes: set[str] = set()
        self._initials = ""
        self._places: dict[str, list[int]] = {}
        self._heads: set[str] = set()
        self._stems: list[set[str]] = [set() for _ in range(documents)]

    @classmethod
    def read(cls, documents: Sequence[Sequence[str]]) -> "Steps[SourceFacts]":
        """What documents say, each a list of its sentences."""
        grounds = cls(len(documents))
        words: set[str] = set()
        for sentences in documents:
            words.update(word for text in sentences[:_LANGUAGE_SENTENCES] for word in find_words(text[:400]))
            yield
        grounds.language = tell_language(words)
        initials: list[str] = []
        for at, sentences in enumerate(documents):
            for text in sentences:
                sentence = Sentence(text, grounds.language, at)
                yield
                grounds._enter(sentence)
                initials.append("".join([word[0] for word in find_words(text)]))
                yield
        grounds._initials = " ".join(initials).upper()
        return grounds

    def _enter(self, one: Sentence) -> None:
        traits = one.traits
        self._ledger.enter(one.amounts)
        self._words.update(traits.words)
        self._days.update(traits.calendar.days, traits.calendar.barred)
        self._months.update(traits.months)
        self._codes.update(traits.codes)
        self._stems[one.document].update(one.known)
        for known in one.known:
            self._places.setdefault(known, []).append(len(self.sentences))
            self._heads.add(known[:_HEAD_CHARS])
        self.sentences.append(one)

    def seek_candidates(self, one: Assertion) -> Steps[list[int]]:
        """The places of the sentences that are worth a close look, the most promising first."""
        shared: Counter[int] = Counter()
        for known in one.traits.stems:
            shared.update(self._places.get(known, ()))
            yield
        for place, sentence in enumerate(self.sentences):
            shared[place] += _count_figures(one, sentence)
            yield
        return sorted(shared, key=lambda place: (-shared[place], place))[:MAX_CANDIDATES]

    def weigh(self, one: Assertion, nearness: Mapping[int, float]) -> Steps[Judgement]:
        """How surely the documents do not support an assertion; `nearness` has its cosine to each candidate."""
        if one.is_lack:
            return (yield from self._weigh_lack(one, nearness))
        if not nearness:
            return Judgement(1.0, (Reason(NO_DOCUMENTS),))
        matches = []
        for place, cosine in nearness.items():
            matches.append((yield from self._match(one, place, cosine)))
        best = _choose(matches)
        absent = yield from self._find_absent(one)
        reasons = [*absent, *best.conflicts]
        unsupported = 1.0 - best.support
        if one.traits.language != self.language:
            unsupported = min(unsupported, THRESHOLD / 2)
        if reasons:
            is_certain = any(reason.kind in _CERTAIN_KINDS for reason in reasons)
            unsupported = max(unsupported, _CERTAIN if is_certain else _CONTRADICTED)
        else:
            reasons = [_describe(best)]
        return Judgement(_scale(unsupported), tuple(reasons), self.sentences[best.place].traits.text)

    def _weigh_lack(self, one: Assertion, nearness: Iterable[int]) -> Steps[Judgement]:
        stems = one.traits.stems
        for place in nearness:
            sentence = self.sentences[place]
            if len(stems) >= _LACK_WORDS and all(find_stem(known, sentence.known) for known in stems):
                reason = Reason(NOT_LACKING)
                return Judgement(_LACK_SCORE, (reason,), sentence.traits.text)
            yield
        return Judgement(0.0)

    def _match(self, one: Assertion, place: int, cosine: float) -> Steps[_Match]:
        sentence = self.sentences[place]
        elsewhere = self._stems[sentence.document]
        worths: dict[str, float] = {}
        for known in one.traits.stems:
            worths[known] = max(_worth(known, sentence.known), _ELSEWHERE * (known in elsewhere))
            yield
        covered = (sum(worths.values()) + FIGURE * _count_figures(one, sentence)) / max(one.weight, 1.0)
        near = min(max((cosine - _FAR_COSINE) / (_NEAR_COSINE - _FAR_COSINE), 0.0), 1.0)
        missing = tuple(known for known, worth in worths.items() if not worth)
        conflicts = yield from _find_conflicts(one, sentence)
        return _Match(place, _COVERED * covered + _NEAR * near, tuple(conflicts), missing)

    def _find_absent(self, one: Assertion) -> Steps[list[Reason]]:
        """Figures and names that occur nowhere."""
        found: list[Reason] = []
        for figure in one.figures:
            if not self._ledger.has(figure):
                kind = OTHER_UNIT if self._ledger.has_value(figure) else NO_NUMBER
                found.append(Reason(kind, one.traits.text[figure.start : figure.end].strip()))
            yield
        unknown = [code for code in sorted(one.traits.codes) if code not in self._codes and code not in self._words]
        found += [Reason(NO_NUMBER, code) for code in unknown]
        if one.traits.calendar.days - self._days:
            found.append(Reason(OTHER_DAY))
        if one.traits.months - self._months:
            found.append(Reason(OTHER_MONTH))
        for name in one.names if one.traits.language == self.language else ():
            if not self._knows_name(name):
                found.append(Reason(NO_NAME, name))
            yield
        return found

    def _knows_name(self, name: str) -> bool:
        if name.isupper() and name in self._initials:  # `WHO`, where the document writes it out
            return True
        halves = [half for half in find_words(name) if len(half) > 1]
        return all(fold_word(half) in self._words or stem(half)[:_HEAD_CHARS] in self._heads for half in halves)


def _choose(matches: Sequence[_Match]) -> _Match:
    """The sentence that supports most; one that contradicts nothing is preferred if it is nearly as good."""
    best = max(matches, key=lambda match: match.support)
    at_peace = [match for match in matches if not match.conflicts and match.support > best.support - _SLACK - _ROUNDING]
    return max(at_peace, key=lambda match: match.support, default=best)


def _describe(best: _Match) -> Reason:
    if best.missing:
        return Reason(NOWHERE, f"nothing there about {', '.join(best.missing[:5])}")
    return Reason(NOWHERE)


def _scale(unsupported: float) -> float:
    """The threshold at 0.5, both sides stretched."""
    bounded = min(max(unsupported, 0.0), 1.0)
    if bounded < THRESHOLD:
        return round(0.5 * bounded / THRESHOLD, 4)
    return round(0.5 + 0.5 * (bounded - THRESHOLD) / (1 - THRESHOLD), 4)


def _worth(known: str, others: Collection[str]) -> float:
    """How well a word is found among others."""
    return 1.0 if find_stem(known, others) else _COMPOUND if has_compound(known, others) else 0.0


def _count_figures(one: Assertion, sentence: Sentence) -> int:
    """How many numbers, days and months of an assertion a sentence has."""
    named = len(one.traits.calendar.days & sentence.traits.calendar.days) + len(
        one.traits.months & sentence.traits.months
    )
    return named + sum(sentence.ledger.has(figure) for figure in one.figures)


# --- What contradicts -----------------------------------------------------------------------------------------


def _find_conflicts(one: Assertion, sentence: Sentence) -> Steps[list[Reason]]:
    """In what a sentence contradicts an assertion, if they speak of the same thing."""
    mine, theirs = one.traits, sentence.traits
    days, other = mine.calendar, theirs.calendar
    found: list[Reason] = []
    yield from sentence.read_clauses()  # slow the first time
    # `daily except Mondays` and `not on Mondays` agree
    is_barred = mine.denials.is_odd and bool(days.days) and days.days <= other.barred
    if _has_other_day(mine, sentence) and not is_barred:
        found.append(Reason(OTHER_DAY))
    yield
    if mine.months and theirs.months and not mine.months <= theirs.months:
        found.append(Reason(OTHER_MONTH))
    if days.periods and other.periods and not days.periods & other.periods:
        found.append(Reason(OTHER_PERIOD))
    if not is_barred:
        found += yield from _find_contradiction(mine, sentence)
    return [*found, *_find_generalised(mine, theirs)]


def _has_other_day(mine: Traits, sentence: Sentence) -> bool:
    asked, named = mine.calendar.days, sentence.traits.calendar
    if not asked or not (named.days or named.barred):
        return False
    return not asked <= named.days or _is_of_other_clause(mine, sentence)


def _is_of_other_clause(mine: Traits, sentence: Sentence) -> bool:
    """Whether the day stands in one clause, which says something else, and the words in one with another day."""
    clauses = sentence.clauses.each
    named = [clause for clause in clauses if clause.calendar.days & mine.calendar.days]
    if not named or any(not clause.stems or _share(mine, clause) > 0 for clause in named):
        return False
    return any(clause.calendar.days and _share(mine, clause) >= _MIN_OVERLAP for clause in clauses)


def _share(mine: Traits, clause: Traits) -> float:
    return sum(_worth(one, clause.stems) for one in mine.stems) / len(mine.stems) if mine.stems else 0.0


def _find_generalised(mine: Traits, theirs: Traits) -> Iterator[Reason]:
    """`All` where the sentence says `some`, or says it of others."""
    every = speaks_of_all(mine.plain)
    if not every or speaks_of_all(theirs.plain) or speaks_of_some(mine.text):
        return
    some, noun = speaks_of_some(theirs.text), find_every_noun(mine.plain)
    is_other = len(noun) >= _MIN_NOUN_CHARS and not _worth(stem(noun), theirs.stems)
    if some or is_other:
        yield Reason(TOO_GENERAL, f"{every} instead of {some}" if some else every)


def _find_contradiction(mine: Traits, sentence: Sentence) -> Steps[list[Reason]]:
    """Denials and opposites, in the clause that is most like the assertion; all such clauses must disagree."""
    clauses = sentence.clauses
    if clauses.excepted.intersection(mine.stems):
        return []  # what holds for the others need not hold for these
    denying = _find_denying_clause(mine, sentence)
    yield
    if denying is not None and (mine.denials.is_odd or not mine.denials.times):
        return [] if mine.denials.is_odd else [Reason(DENIED)]
    rated: list[tuple[float, Traits]] = []
    for clause in clauses.each:
        rated.append((_overlap(mine, clause), clause))
        yield
    best = max(overlap for overlap, _ in rated)
    if best < _MIN_OVERLAP:
        return []
    reasons = []
    for overlap, clause in rated:
        if overlap == best:
            reasons.append(_contradict(mine, clause, sentence))
            yield
    told = [reason for reason in reasons if reason is not None]
    return told[:1] if len(told) == len(reasons) else []


def _find_denying_clause(mine: Traits, sentence: Sentence) -> Traits | None:
    """The clause that denies something and alone has a word of the assertion: `Linux needs it, Windows does not`."""
    clauses = sentence.clauses.each
    if len({clause.denials.is_odd for clause in clauses}) < 2:
        return None
    for clause in clauses:
        if not clause.denials.is_odd or not clause.denials.denied.intersection(mine.stems):
            continue
        others = {one for other in clauses if other is not clause for one in other.stems}
        is_alone = any(one in mine.stems and one not in others for one in clause.stems)
        if is_alone and find_opposite(mine.words, clause.words) is None:
            return clause
    return None


def _contradict(mine: Traits, clause: Traits, sentence: Sentence) -> Reason | None:
    """A denial and an opposite together agree again."""
    opposite = find_opposite(mine.words, clause.words) or find_opposite(mine.words, sentence.traits.words)
    is_rejected = bool(REJECTING & sentence.traits.words) and not (ACCEPTING | REJECTING) & mine.words
    is_denied = (mine.denials.times + clause.denials.times + is_rejected) % 2 == 1
    if is_denied == (opposite is not None) or (is_denied and not is_rejected and not _deny_the_same(mine, clause)):
        return None
    if opposite:
        return Reason(OPPOSITE, f"{opposite[0]} instead of {opposite[1]}")
    return Reason(DENIED)


def _deny_the_same(mine: Traits, clause: Traits) -> bool:
    """Whether what one denies is spoken of by the other."""
    ours, theirs = mine.denials.denied, clause.denials.denied
    return any(_worth(one, clause.stems) for one in ours - theirs) or any(
        _worth(one, mine.stems) for one in theirs - ours
    )


def _overlap(mine: Traits, clause: Traits) -> float:
    """How much of an assertion a clause speaks of; a word and its opposite speak of the same."""
    opposite = find_opposite(mine.words, clause.words)
    known = [one for one in mine.stems if opposite is None or stem(opposite[0]) != one]
    figures = [one for one in mine.amounts if one.is_firm]
    ledger = AmountSet(clause.amounts)
    weight = len(known) + _CLAUSE_FIGURE * len(figures) + _CLAUSE_DAY * (len(mine.calendar.days) + len(mine.months))
    found = sum(_worth(one, clause.stems) for one in known) + _CLAUSE_FIGURE * sum(ledger.has(one) for one in figures)
    found += _CLAUSE_DAY * (len(mine.calendar.days & clause.calendar.days) + len(mine.months & clause.months))
    return found / weight if weight else 0.0
