# SPDX-License-Identifier: Apache-2.0
"""Compares a claim with documents by words, figures and similarity of meaning.

An assertion is supported by one sentence of the documents that has its words, has a similar meaning, and does not
contradict it in a way that these rules can see: another weekday or month, a denial, an opposite, `all` instead of
`some`. Each number and name must occur in some document; the sum and the difference of two amounts in one sentence
count as occurring. The claim that the documents lack something is supported unless one sentence has all of its content
words, at least three. An assertion in another language than the documents is judged by its figures alone.

Long work is done in steps of at most a few milliseconds.
"""

import re
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from lockgate.data_files import fill_pattern, read_table
from lockgate.detectors.groundedness.claims import FIGURE, Assertion, Traits
from lockgate.detectors.groundedness.numerals import UNITS, Amount, AmountSet, list_sums
from lockgate.detectors.groundedness.words import (
    ACCEPTING,
    REJECTING,
    find_all_word,
    find_every_noun,
    find_opposite,
    find_some_words,
    find_stem,
    find_words,
    fold_word,
    guess_language,
    has_compound,
    stem,
)

MAX_CANDIDATES: Final = 16
"""The number of sentences that one assertion is compared with: those that share most with it."""

THRESHOLD: Final = 0.75
"""From this value an assertion counts as unsupported and scores 0.5. Chosen on the labelled set."""

_COVERED, _NEAR = 0.5, 0.5  # the shares of words and of meaning in the support of an assertion
_FAR_COSINE, _NEAR_COSINE = 0.2, 0.75  # cosines that count as no and as full similarity
_ELSEWHERE = 0.6  # the worth of a word that is in the document but not in the sentence
_COMPOUND = 0.7
_CERTAIN = 0.9  # how unsupported an assertion is if its number or name occurs nowhere
_CONTRADICTED = 0.8
_SLACK = 0.1  # a sentence without conflicts is preferred if it supports at most this much less
_ROUNDING = 1e-9  # equal sums of floats differ by less
_MIN_OVERLAP = 0.5  # of two clauses whose denials are compared
_CLAUSE_FIGURE, _CLAUSE_DAY = 3.0, 2.0  # their weights when a clause is matched to an assertion
_LACK_WORDS, _LACK_SCORE = 3, 0.6
_MIN_NOUN_CHARS = 4
_HEAD_CHARS = 5
_LANGUAGE_SENTENCES = 8  # of each document: enough to guess its language

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
"""Work that may pause at every `yield`, and its result."""


def run_through(steps: Steps[T]) -> T:
    """Runs all steps without a pause and returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Reason(NamedTuple):
    """Why an assertion is not supported: a general message, and a detail if it is known."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Judgement(NamedTuple):
    """How surely an assertion is not supported (0 to 1), why, and the most similar sentence."""

    score: float
    reasons: tuple[Reason, ...] = ()
    nearest: str = ""


class Clauses(NamedTuple):
    """The clauses of a sentence, and the words that it excepts from a denial: `not allowed, except guide dogs`."""

    each: tuple[Traits, ...]
    excepted: frozenset[str] = frozenset()


class Sentence:
    """A sentence of a document."""

    def __init__(self, text: str, language: str, document: int) -> None:
        self.document = document
        self.traits = Traits(text, language, is_generous=True)
        periods = [_PERIOD_LENGTHS[period] for period in self.traits.calendar.periods]
        implied = [Amount(0, 0, (count,), UNITS[unit]) for count, unit in periods]  # `quarterly` means three months
        self.amounts = [*self.traits.amounts, *list_sums(self.traits.amounts), *implied]
        self.amount_set = AmountSet(self.amounts)
        self.known = frozenset(self.traits.stems)
        self._clauses: Clauses | None = None

    @property
    def clauses(self) -> Clauses:
        """Its clauses, or the sentence itself if it has only one."""
        return run_through(self.read_clauses())

    def read_clauses(self) -> Steps[Clauses]:
        """Reads its clauses at the first use: few sentences need them."""
        if self._clauses is None:
            parts = [part for part in _CLAUSE.split(self.traits.text) if part and part.strip()]
            self._clauses = Clauses((self.traits,)) if len(parts) < 2 else (yield from self._read_parts(parts))
        return self._clauses

    def _read_parts(self, parts: Sequence[str]) -> Steps[Clauses]:
        found: list[Traits] = []
        seen: set[str] = set()
        excepted: set[str] = set()
        for part in parts:
            is_exception = bool(found) and found[-1].denials.is_odd and _EXCEPT.match(part) is not None
            plain = _EXCEPT.sub("", part) if is_exception else part
            found.append(Traits(plain, self.traits.language, is_generous=True))
            excepted.update(set(found[-1].stems) - seen if is_exception else ())
            seen.update(found[-1].stems)
            yield
        return Clauses(tuple(found), frozenset(excepted))


class _Match(NamedTuple):
    """An assertion compared with a sentence; `missing` are its words that the sentence's document lacks."""

    place: int
    support: float
    conflicts: tuple[Reason, ...]
    missing: tuple[str, ...]


class SourceFacts:
    """The facts in documents: their sentences, words, amounts, days, months and codes."""

    def __init__(self, documents: int) -> None:
        self.language = ""
        self.sentences: list[Sentence] = []
        self._amount_set = AmountSet(())
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
        """Reads documents, each a list of its sentences."""
        grounds = cls(len(documents))
        words: set[str] = set()
        for sentences in documents:
            words.update(word for text in sentences[:_LANGUAGE_SENTENCES] for word in find_words(text[:400]))
            yield
        grounds.language = guess_language(words)
        initials: list[str] = []
        for at, sentences in enumerate(documents):
            for text in sentences:
                sentence = Sentence(text, grounds.language, at)
                yield
                grounds._add(sentence)
                initials.append("".join([word[0] for word in find_words(text)]))
                yield
        grounds._initials = " ".join(initials).upper()
        return grounds

    def _add(self, one: Sentence) -> None:
        traits = one.traits
        self._amount_set.add(one.amounts)
        self._words.update(traits.words)
        self._days.update(traits.calendar.days, traits.calendar.barred)
        self._months.update(traits.months)
        self._codes.update(traits.codes)
        self._stems[one.document].update(one.known)
        for known in one.known:
            self._places.setdefault(known, []).append(len(self.sentences))
            self._heads.add(known[:_HEAD_CHARS])
        self.sentences.append(one)

    def find_candidates(self, one: Assertion) -> Steps[list[int]]:
        """Returns the places of the sentences that share most with an assertion."""
        shared: Counter[int] = Counter()
        for known in one.traits.stems:
            shared.update(self._places.get(known, ()))
            yield
        for place, sentence in enumerate(self.sentences):
            shared[place] += _count_figures(one, sentence)
            yield
        return sorted(shared, key=lambda place: (-shared[place], place))[:MAX_CANDIDATES]

    def weigh(self, one: Assertion, nearness: Mapping[int, float]) -> Steps[Judgement]:
        """Judges an assertion against the documents; `nearness` has its cosine to each candidate."""
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
                return Judgement(_LACK_SCORE, (Reason(NOT_LACKING),), sentence.traits.text)
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
        """Finds figures and names of an assertion that occur in no document."""
        found: list[Reason] = []
        for figure in one.figures:
            if not self._amount_set.has(figure):
                kind = OTHER_UNIT if self._amount_set.has_value(figure) else NO_NUMBER
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
        if name.isupper() and name in self._initials:  # `WHO`, if the document writes it in full
            return True
        halves = [half for half in find_words(name) if len(half) > 1]
        return all(fold_word(half) in self._words or stem(half)[:_HEAD_CHARS] in self._heads for half in halves)


def _choose(matches: Sequence[_Match]) -> _Match:
    """Chooses the sentence that supports most, or one without conflicts that is nearly as good."""
    best = max(matches, key=lambda match: match.support)
    agreeing = [match for match in matches if not match.conflicts and match.support > best.support - _SLACK - _ROUNDING]
    return max(agreeing, key=lambda match: match.support, default=best)


def _describe(best: _Match) -> Reason:
    if best.missing:
        return Reason(NOWHERE, f"nothing there about {', '.join(best.missing[:5])}")
    return Reason(NOWHERE)


def _scale(unsupported: float) -> float:
    """Scales a value so that the threshold becomes 0.5."""
    bounded = min(max(unsupported, 0.0), 1.0)
    if bounded < THRESHOLD:
        return round(0.5 * bounded / THRESHOLD, 4)
    return round(0.5 + 0.5 * (bounded - THRESHOLD) / (1 - THRESHOLD), 4)


def _worth(known: str, others: Collection[str]) -> float:
    return 1.0 if find_stem(known, others) else _COMPOUND if has_compound(known, others) else 0.0


def _count_figures(one: Assertion, sentence: Sentence) -> int:
    days = one.traits.calendar.days & sentence.traits.calendar.days
    months = one.traits.months & sentence.traits.months
    return len(days) + len(months) + sum(sentence.amount_set.has(figure) for figure in one.figures)


# --- Contradictions -------------------------------------------------------------------------------------------


def _find_conflicts(one: Assertion, sentence: Sentence) -> Steps[list[Reason]]:
    """Finds how a sentence contradicts an assertion, if both are about the same thing."""
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
    days, named = mine.calendar.days, sentence.traits.calendar
    if not days or not (named.days or named.barred):
        return False
    return not days <= named.days or _is_of_other_clause(mine, sentence)


def _is_of_other_clause(mine: Traits, sentence: Sentence) -> bool:
    """Returns whether the words are in a clause with another day, and the day in an unrelated one."""
    clauses = sentence.clauses.each
    named = [clause for clause in clauses if clause.calendar.days & mine.calendar.days]
    if not named or any(not clause.stems or _share(mine, clause) > 0 for clause in named):
        return False
    return any(clause.calendar.days and _share(mine, clause) >= _MIN_OVERLAP for clause in clauses)


def _share(mine: Traits, clause: Traits) -> float:
    return sum(_worth(one, clause.stems) for one in mine.stems) / len(mine.stems) if mine.stems else 0.0


def _find_generalised(mine: Traits, theirs: Traits) -> Iterator[Reason]:
    """Finds `all` where the sentence says `some`, or says `all` of something else."""
    every = find_all_word(mine.plain)
    if not every or find_all_word(theirs.plain) or find_some_words(mine.text):
        return
    some, noun = find_some_words(theirs.text), find_every_noun(mine.plain)
    is_other = len(noun) >= _MIN_NOUN_CHARS and not _worth(stem(noun), theirs.stems)
    if some or is_other:
        yield Reason(TOO_GENERAL, f"{every} instead of {some}" if some else every)


def _find_contradiction(mine: Traits, sentence: Sentence) -> Steps[list[Reason]]:
    """Finds contradictions in the clauses most like the assertion; all must disagree."""
    clauses = sentence.clauses
    if clauses.excepted.intersection(mine.stems):
        return []  # an exception need not follow the rule
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
    found = [reason for reason in reasons if reason is not None]
    return found[:1] if len(found) == len(reasons) else []


def _find_denying_clause(mine: Traits, sentence: Sentence) -> Traits | None:
    """Finds the denying clause that alone has a word of the assertion: `Linux needs it, Windows does not`."""
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
    """Returns how a clause contradicts the assertion; a denial of the opposite agrees."""
    opposite = find_opposite(mine.words, clause.words) or find_opposite(mine.words, sentence.traits.words)
    is_rejected = bool(REJECTING & sentence.traits.words) and not (ACCEPTING | REJECTING) & mine.words
    is_denied = (mine.denials.times + clause.denials.times + is_rejected) % 2 == 1
    if is_denied == (opposite is not None) or (is_denied and not is_rejected and not _deny_the_same(mine, clause)):
        return None
    if opposite:
        return Reason(OPPOSITE, f"{opposite[0]} instead of {opposite[1]}")
    return Reason(DENIED)


def _deny_the_same(mine: Traits, clause: Traits) -> bool:
    ours, theirs = mine.denials.denied, clause.denials.denied
    return any(_worth(one, clause.stems) for one in ours - theirs) or any(
        _worth(one, mine.stems) for one in theirs - ours
    )


def _overlap(mine: Traits, clause: Traits) -> float:
    """Returns the share of an assertion that a clause is about; opposites count as the same word."""
    opposite = find_opposite(mine.words, clause.words)
    known = [one for one in mine.stems if opposite is None or stem(opposite[0]) != one]
    figures = [one for one in mine.amounts if one.is_firm]
    amounts = AmountSet(clause.amounts)
    weight = len(known) + _CLAUSE_FIGURE * len(figures) + _CLAUSE_DAY * (len(mine.calendar.days) + len(mine.months))
    found = sum(_worth(one, clause.stems) for one in known) + _CLAUSE_FIGURE * sum(amounts.has(one) for one in figures)
    found += _CLAUSE_DAY * (len(mine.calendar.days & clause.calendar.days) + len(mine.months & clause.months))
    return found / weight if weight else 0.0
