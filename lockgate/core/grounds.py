# SPDX-License-Identifier: Apache-2.0
"""Whether documents say what a claim says, by its words, its figures and its nearness in meaning.

Decides how surely a claim is *not* supported, and why. A claim is cut into assertions, and each needs one sentence of
the documents that has its words, means nearly the same, and contradicts it in nothing that can be seen without
understanding: another weekday or month, a denial, an opposite, `all` where the sentence says `some`. Each number and
each name must occur in some document. The claim is as weak as its weakest assertion.

Not judged, since they claim nothing about the world: questions, lead-ins that end with a colon, pleasantries, and texts
with fewer than two words of meaning and no figure. An assertion that the documents lack something is supported, unless
one sentence has all of its words of meaning and at least three.

Refuses to know grammar and the world: who does what to whom, what follows from what, and other languages than English,
Spanish and German beyond their mere words. How near two texts are in meaning is told by whoever asks.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lockgate.core.ground_words import (
    ACCEPTING,
    MONTHS,
    REJECTING,
    WEEKDAYS,
    are_kin,
    contains_stem,
    
    find_barred_days,
    find_months,
    find_opposite,
    find_periods,
    find_weekdays,
    find_words,
    fold,
    is_small,
    join_phrases,
    read_denials,
    speaks_of_all,
    speaks_of_some,
    stem,
    tell_language,
)
from lockgate.core.numeral_words import UNITS
from lockgate.core.numerals import Amount, Ledger, find_amounts, reckon

MAX_CANDIDATES: Final = 16
"""So many sentences are looked at closely for one assertion: those that share most words with it."""

THRESHOLD: Final = 0.75
"""How unsupported an assertion must be to count as that; such a one scores 0.5."""

_COVERED, _NEAR = 0.5, 0.5  # the shares of words and of meaning in the support of an assertion
_FAR_COSINE, _NEAR_COSINE = 0.2, 0.75  # from where to where nearness counts
_ELSEWHERE = 0.6  # what a word is worth that stands in the document but not in the sentence
_COMPOUND = 0.7
_FIGURE = 2.0  # what a figure weighs, beside a word
_CONTRADICTED = 0.8
_SLACK = 0.15  # how much worse a sentence may be that contradicts nothing
_CERTAIN = 0.9  # how unsupported an assertion is whose figure occurs nowhere
_MIN_OVERLAP = 0.5  # of two clauses whose denials are compared
_MIN_WORDS = 2
_SPLIT_WORDS = 3
_LACK_WORDS, _LACK_SCORE = 3, 0.6
_MAX_NAMES = 0.6

_CITATION = re.compile(r"\[(?:\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*|[^\[\]\s]+/[^\[\]]+|(?:cite|source|doc)[^\[\]]*)\]", re.IGNORECASE)
_LIST_MARK = re.compile(r"\A\s*(?:[-*•‣–]|\(?\d{1,3}[.)]|#{1,6})\s+")
_QUESTION = re.compile(r"[?？]['\"”»)]*\s*\Z")
_CODE = re.compile(r"(?<!\w)[^\W\d_]{1,20}-?\d[\w-]{0,30}")
_CUT = re.compile(
    r"\s*[;:]\s+|,\s+|\s+[–—]\s+|\s+(?:and|but|while|whereas|y|e|pero|mientras|und|aber|sondern|während)\s+", re.IGNORECASE
)
_CLAUSE = re.compile(
    r"\s*[,;:]\s+|\s*[()–—]\s*|\s+(?:and|y|e|und|but|however|unless|although|though|while|whereas|if|because|pero"
    r"|sino|aunque|mientras|si|porque|aber|sondern|doch|jedoch|während|wenn|weil|obwohl)\s+(?!\d)"
    r"|,?\s+(?=(?:except|excepto|salvo|außer|ausgenommen)\s)",
    re.IGNORECASE,
)
_EXCEPT = re.compile(r"\A\W*(?:except|excepto|salvo|außer|ausgenommen)\b", re.IGNORECASE)
_EVERY_NOUN = re.compile(
    r"\b(?:all|every|each|todos los|todas las|cada|alle|allen|jede[rsn]?)\s(?:(?:of\s)?(?:the|its|our|die)\s)?([^\W\d_]+)", re.IGNORECASE
)
_CONTRAST = re.compile(r"[;.]\s+|,?\s+(?:but|however|pero|sin embargo|aber|jedoch|allerdings)\s+", re.IGNORECASE)
_LACK = re.compile(
    r"""\b(?:
    (?:documents?|sources?|context|texts?|passages?|articles?|materials?|information|excerpts?)\s(?:provided\s|given\s|above\s)?
        (?:do\snot|does\snot|don['’]t|doesn['’]t|did\snot)\s
        (?:say|mention|contain|state|specify|provide|include|indicate|cover|tell|give|explain|describe|answer|address)\w*
    |(?:do|does|did)(?:\snot|n['’]t)\s(?:mention|specify|state\swhether|say\s(?:whether|if|how|when|why|who|what))
    |(?:there\sis\s|i\shave\s|contains?\s|gives?\s)?no\s(?:information|details?|mention|data|indication|evidence)\b
    |(?:could\snot|couldn['’]t|cannot|can['’]t|did\snot|didn['’]t|unable\sto)\s(?:find|determine|answer|tell)
    |(?:is|are|was|were)\s(?:not|nowhere)\s(?:mentioned|specified|stated|given|said|provided|covered|described)
    |nothing\s(?:is\ssaid|about|on|in\sthe)|nada\sen\s(?:el|la|los|las)|nichts\sin\s(?:den|dem|der)|(?:i|we)\s(?:do\snot|don['’]t)\sknow|not\sclear\s(?:from|whether|if)
    |no\s(?:se\s)?(?:menciona|indica|especifica|dice|dicen|contiene|contienen|incluye|consta|aparece|informa|detalla|mencionan
        |indican|especifican|explica|explican|aclara|aclaran|recoge|recogen)n?
    |no\s(?:hay|contiene|contienen|ofrece|ofrecen|tengo|dispongo\sde)\s(?:ninguna\s)?(?:información|datos|detalles|indicación)
    |no\s(?:encuentro|encontré|he\sencontrado|pude\sencontrar|se\ssabe|sé)\b|nada\s(?:sobre|acerca)
    |(?:geht|gehen)\s.{0,40}?nicht\shervor|nicht\shervorgeht|ergibt\ssich\s.{0,30}?nicht
    |keine(?:rlei)?\s(?:angaben?|informationen?|auskunft|hinweise?|aussagen?|einzelheiten)
    |nicht\s(?:erwähnt|genannt|angegeben|beschrieben|aufgeführt|enthalten|beantwortet|gesagt|hervor|ersichtlich)
    |(?:dokumente?n?|quellen?|texte?n?|unterlagen|abschnitte?)\s(?:sagen|sagt|nennen|nennt|enthalten|enthält|erwähnen|erwähnt)\s
        .{0,40}?(?:nichts?|keine?n?)|nichts\s(?:gefunden|darüber|über|dazu|zu)|(?:steht|stehen)\s.{0,40}?nichts?
    |(?:ich\sweiß|wir\swissen)\s(?:es\s)?nicht|ist\snicht\s(?:bekannt|klar)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_PLEASANTRY = re.compile(
    r"""\W*(?:
    (?:sure|certainly|of\scourse|absolutely|great\squestion|thanks?(?:\syou)?|you['’]re\swelcome|hello|hi)(?:\s\w+){0,3}
    |i\shope\s(?:this|that)\shelps(?:\s\w+){0,2}|(?:please\s)?(?:let\sme\sknow|feel\sfree)\b[^.!\d]{0,80}
    |(?:claro|por\ssupuesto|gracias|de\snada|hola)(?:\s\w+){0,3}|espero\sque\s(?:esto\s)?(?:te|le|os|les)?\s?(?:sirva|ayude)
    |(?:gerne|natürlich|danke|bitte|hallo)(?:\s\w+){0,3}|ich\shoffe\W+das\shilft(?:\s\w+){0,3}
    )\W*""",
    re.IGNORECASE | re.VERBOSE,
)


class Reason(NamedTuple):
    """Why an assertion is not supported: a kind in general words, and what exactly."""

    kind: str
    detail: str


class Judgement(NamedTuple):
    """How surely a claim is not supported, from 0 to 1, why, and the sentence that comes nearest to it."""

    score: float
    reasons: tuple[Reason, ...] = ()
    nearest: str = ""


class Traits:
    """What can be seen of a text without understanding it."""

    __slots__ = ("amounts", "barred", "codes", "days", "denials", "denied", "language", "months", "periods", "plain", "stems", "text", "words")

    def __init__(self, text: str, language: str, *, is_generous: bool) -> None:
        languages = (language,) if language in ("en", "es", "de") and not is_generous else ("en", "es", "de")
        self.text = text
        self.language = language
        self.amounts, months = find_amounts(text, languages)
        self.days = find_weekdays(text, is_generous=is_generous)
        self.months = find_months(text, is_generous=is_generous) | months
        self.periods = find_periods(text)
        self.barred = find_barred_days(text) if self.days or is_generous else frozenset()
        self.codes = frozenset(fold(code).replace("-", "") for code in _CODE.findall(text))
        self.plain = join_phrases(_without(text, self.amounts))
        self.denials, self.denied = read_denials(self.plain, language)
        words = find_words(self.plain)
        self.words = frozenset(map(fold, words))
        kept = [word for word in words if not is_small(word, language) and not _is_calendar(word)]
        self.stems = tuple(dict.fromkeys(stem(word) for word in kept if not word.isdigit()))


def _without(text: str, amounts: Iterable[Amount]) -> str:
    """The text without its figures; a unit goes with its number."""
    parts, at = [], 0
    for one in amounts:
        if one.is_firm and one.start >= at:
            parts.append(text[at : one.start])
            at = one.end
    return " ".join([*parts, text[at:]])


def _is_calendar(word: str) -> bool:
    folded = fold(word)
    return folded in WEEKDAYS or (folded in MONTHS and (word[:1].isupper() or folded != "may"))


class Assertion:
    """A part of a claim that is checked on its own."""

    __slots__ = ("is_lack", "names", "text", "traits")

    def __init__(self, text: str, language: str, *, is_lack: bool = False) -> None:
        self.text = text
        self.is_lack = is_lack
        self.traits = Traits(_LACK.sub(" ", text) if is_lack else text, language, is_generous=False)
        self.names = () if is_lack else tuple(_find_names(self.traits.plain, language))

    @property
    def weight(self) -> float:
        """How much there is to be covered."""
        return len(self.traits.stems) + _FIGURE * (len(self.figures) + len(self.traits.days) + len(self.traits.months))

    @property
    def figures(self) -> list[Amount]:
        """The amounts that must occur."""
        return [one for one in self.traits.amounts if one.is_firm]


def read_claim(text: str, language: str) -> list[Assertion]:
    """The assertions of one sentence; none if it claims nothing."""
    plain = _LIST_MARK.sub("", _CITATION.sub("", text)).strip()
    if not plain or _QUESTION.search(plain) or _PLEASANTRY.fullmatch(plain):
        return []
    language = tell_language(find_words(plain), language)
    if _LACK.search(plain):
        parts = [part for part in _CONTRAST.split(plain) if part.strip()]
        found = [Assertion(part, language, is_lack=bool(_LACK.search(part))) for part in parts]
    else:
        found = [Assertion(part, language) for part in _cut(plain, language)]
    if plain.endswith(":") and not any(one.figures for one in found):
        return []
    return [one for one in found if one.weight >= _MIN_WORDS]


def _cut(text: str, language: str) -> Iterator[str]:
    """The parts of a sentence, each with enough words to be found by."""
    start, end = 0, 0
    for match in [*_CUT.finditer(text), None]:
        end = match.start() if match else len(text)
        rest = text[match.end() :] if match else ""
        if _counts(text[start:end], language) and (not match or _counts(rest, language)):
            yield text[start:end]
            start = match.end() if match else end
    if text[start:end].strip():
        yield text[start:end]


def _counts(text: str, language: str) -> bool:
    return Assertion(text, language).weight >= _SPLIT_WORDS


_TITLES = frozenset("mr mrs ms dr prof herr frau herrn don doña señor señora sr sra".split())


def _find_names(text: str, language: str) -> Iterator[str]:
    """Words that are written like names; in German, where all nouns are, only after another such or a title."""
    tokens = list(re.finditer(r"[^\W\d_][\w'’-]*", text))
    capital = [token[0][:1].isupper() for token in tokens]
    if language != "de" and sum(capital) > _MAX_NAMES * len(tokens) and len(tokens) > 3:
        return
    for at, token in enumerate(tokens):
        if at == 0 or not capital[at] or len(token[0]) < 3 or any(char.isdigit() for char in token[0]):
            continue
        before = tokens[at - 1]
        if re.search(r"[.:!\"“„«]\s*\Z", text[: token.start()]) and fold(before[0]) not in _TITLES:
            continue
        if language == "de" and not (fold(before[0]) in _TITLES or (capital[at - 1] and at > 1)):
            continue
        if not is_small(token[0], language) and not _is_calendar(token[0]):
            yield token[0]


def _list_periods(periods: Iterable[int]) -> list[Amount]:
    """`Quarterly` has three months in it."""
    return [Amount(0, 0, (count,), UNITS[unit]) for count, unit in (_PERIOD_LENGTHS[period] for period in periods)]


_PERIOD_LENGTHS = ((1.0, "day"), (1.0, "week"), (1.0, "month"), (3.0, "month"), (1.0, "year"))


class Sentence:
    """A sentence of a document."""

    __slots__ = ("_clauses", "amounts", "document", "known", "ledger", "traits")

    def __init__(self, text: str, language: str, document: int) -> None:
        self.document = document
        self.traits = Traits(text, language, is_generous=True)
        self.amounts = [*self.traits.amounts, *reckon(self.traits.amounts), *_list_periods(self.traits.periods)]
        self.ledger = Ledger(self.amounts)
        self.known = frozenset(self.traits.stems)
        self._clauses: list[Traits] | None = None

    @property
    def clauses(self) -> list[Traits]:
        """Its clauses, the whole first."""
        if self._clauses is None:
            parts = [part for part in _CLAUSE.split(self.traits.text) if part and part.strip()]
            self._clauses = [self.traits]
            for part in parts if len(parts) > 1 else ():
                # `not allowed, except guide dogs`: what is taken out of a denial is not denied
                is_denied = self._clauses[-1] is not self.traits and self._clauses[-1].denials % 2 == 1
                plain = _EXCEPT.sub("", part) if is_denied else part
                self._clauses.append(Traits(plain, self.traits.language, is_generous=True))
        return self._clauses


class Grounds:
    """What documents say: their sentences, and everything that occurs in them."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        words = [word for sentences in documents for text in sentences[:8] for word in find_words(text[:400])]
        self.language = tell_language(words)
        self.sentences = [
            Sentence(text, self.language, number) for number, texts in enumerate(documents) for text in texts
        ]
        self._ledger = Ledger(one for sentence in self.sentences for one in sentence.amounts)
        self._codes = frozenset(code for one in self.sentences for code in one.traits.codes)
        self._places: dict[str, list[int]] = {}
        self._stems: list[set[str]] = [set() for _ in documents]
        for place, one in enumerate(self.sentences):
            self._stems[one.document].update(one.known)
            for known in one.known:
                self._places.setdefault(known, []).append(place)
        self._days = frozenset(day for one in self.sentences for day in one.traits.days | one.traits.barred)
        self._months = frozenset(month for one in self.sentences for month in one.traits.months)
        self._heads = {known[:5] for known in self._places}
        self._words = frozenset(word for one in self.sentences for word in one.traits.words)
        self._initials = " ".join(
            "".join(word[0] for word in find_words(one.traits.text)) for one in self.sentences
        ).upper()

    def find_candidates(self, one: Assertion) -> list[int]:
        """The places of the sentences that are worth a close look, the most promising first."""
        shared: Counter[int] = Counter()
        for known in one.traits.stems:
            shared.update(self._places.get(known, ()))
        for place, sentence in enumerate(self.sentences):
            shared[place] += sum(sentence.ledger.has(figure) for figure in one.figures)
            shared[place] += len(one.traits.days & sentence.traits.days) + len(one.traits.months & sentence.traits.months)
        return sorted(shared, key=lambda place: (-shared[place], place))[:MAX_CANDIDATES]

    def judge(self, one: Assertion, nearness: Mapping[int, float]) -> Judgement:
        """How surely the documents do not support an assertion; `nearness` has its cosine to each candidate."""
        if not self.sentences:
            return Judgement(1.0, (Reason("there are no documents", "nothing to compare with"),))
        if one.is_lack:
            return self._judge_lack(one, nearness)
        matches = [self._match(one, place, cosine) for place, cosine in nearness.items()]
        best = max(matches, key=lambda match: match.support)
        at_peace = [match for match in matches if not match.conflicts and match.support >= best.support - _SLACK]
        if at_peace:
            best = max(at_peace, key=lambda match: match.support)
        unsupported = 1.0 - best.support
        if one.traits.language != self.language:  # neither words nor nearness tell much from here on
            unsupported = min(unsupported, THRESHOLD / 2)
        reasons = [*self._find_absent(one), *best.conflicts]
        if any(reason.kind in _CERTAIN_KINDS for reason in reasons):
            unsupported = max(unsupported, _CERTAIN)
        elif reasons:
            unsupported = max(unsupported, _CONTRADICTED)
        if not reasons:
            reasons = [_describe(one, best)]
        return Judgement(_scale(unsupported), tuple(reasons), self.sentences[best.place].traits.text)

    def _judge_lack(self, one: Assertion, nearness: Mapping[int, float]) -> Judgement:
        stems = one.traits.stems
        for place in nearness:
            sentence = self.sentences[place]
            if len(stems) >= _LACK_WORDS and all(_worth(known, sentence.known) >= 1.0 for known in stems):
                reason = Reason("a document speaks of what is said to be lacking", sentence.traits.text)
                return Judgement(_LACK_SCORE, (reason,), sentence.traits.text)
        return Judgement(0.0)

    def _match(self, one: Assertion, place: int, cosine: float) -> "_Match":
        sentence = self.sentences[place]
        covered, missing = self._cover(one, sentence)
        near = min(max((cosine - _FAR_COSINE) / (_NEAR_COSINE - _FAR_COSINE), 0.0), 1.0)
        conflicts = tuple(_find_conflicts(one, sentence))
        support = _COVERED * covered + _NEAR * near
        return _Match(place, support, covered, cosine, conflicts, tuple(missing))

    def _cover(self, one: Assertion, sentence: Sentence) -> tuple[float, list[str]]:
        """How much of an assertion is in a sentence, and what is not even in its document."""
        elsewhere = self._stems[sentence.document]
        score, missing = 0.0, []
        for known in one.traits.stems:
            worth = max(_worth(known, sentence.known), _ELSEWHERE * (known in elsewhere))
            score += worth
            if not worth:
                missing.append(known)
        score += _FIGURE * sum(sentence.ledger.has(figure) for figure in one.figures)
        score += _FIGURE * len(one.traits.days & sentence.traits.days)
        score += _FIGURE * len(one.traits.months & sentence.traits.months)
        return score / one.weight, missing

    def _find_absent(self, one: Assertion) -> Iterator[Reason]:
        """Figures and names that occur nowhere."""
        text = one.traits.text
        for figure in one.figures:
            written = text[figure.start : figure.end].strip()
            if self._ledger.has(figure):
                continue
            if self._ledger.has_value(figure):
                yield Reason(OTHER_UNIT, f"{written} stands in no document, the number only with another unit")
            else:
                yield Reason(NO_NUMBER, f"{written} occurs in no document")
        for code in sorted(one.traits.codes - self._codes):
            if code not in self._words:
                yield Reason(NO_NUMBER, f"{code} occurs in no document")
        if one.traits.days - self._days:
            yield Reason(OTHER_DAY, "this weekday occurs in no document")
        if one.traits.months - self._months:
            yield Reason(OTHER_MONTH, "this month occurs in no document")
        for name in one.names if one.traits.language == self.language else ():
            if not self._knows_name(name):
                yield Reason(NO_NAME, f"{name} occurs in no document")

    def _knows_name(self, name: str) -> bool:
        if name.isupper() and name in self._initials:
            return True
        halves = [half for half in re.split(r"['’-]", name) if len(half) > 1]
        return all(fold(half) in self._words or stem(half)[:5] in self._heads for half in halves)


OTHER_UNIT: Final = "a number has another unit"
NO_NUMBER: Final = "a number occurs in no document"
NO_NAME: Final = "a name occurs in no document"
OTHER_DAY: Final = "the weekday is another one"
OTHER_MONTH: Final = "the month is another one"
OTHER_PERIOD: Final = "it is not as often"
DENIED: Final = "one denies what the other says"
OPPOSITE: Final = "one says the opposite of the other"
TOO_GENERAL: Final = "it says more than the document does"
TOO_FAR: Final = "no sentence says this"
_CERTAIN_KINDS = frozenset((OTHER_UNIT, NO_NUMBER, NO_NAME))


class _Match(NamedTuple):
    place: int
    support: float
    covered: float
    cosine: float
    conflicts: tuple[Reason, ...]
    missing: tuple[str, ...]


def _describe(one: Assertion, best: _Match) -> Reason:
    if best.missing:
        return Reason(TOO_FAR, f"nothing about: {', '.join(best.missing[:5])}")
    return Reason(TOO_FAR, f"the nearest has {best.covered:.0%} of its words")


def _scale(unsupported: float) -> float:
    """The threshold at 0.5, both sides stretched."""
    bounded = min(max(unsupported, 0.0), 1.0)
    if bounded < THRESHOLD:
        return round(0.5 * bounded / THRESHOLD, 4)
    return round(0.5 + 0.5 * (bounded - THRESHOLD) / (1 - THRESHOLD), 4)


def _worth(known: str, others: frozenset[str]) -> float:
    """How well a word is found among others."""
    if known in others:
        return 1.0
    if any(are_kin(known, other) for other in others):
        return 1.0
    return _COMPOUND if any(contains_stem(other, known) or contains_stem(known, other) for other in others) else 0.0


def _find_conflicts(one: Assertion, sentence: Sentence) -> Iterator[Reason]:
    mine, theirs = one.traits, sentence.traits
    is_barred = mine.denials % 2 == 1 and mine.days and mine.days <= theirs.barred
    if mine.days and (theirs.days or theirs.barred) and not mine.days <= theirs.days and not is_barred:
        yield Reason(OTHER_DAY, theirs.text)
    elif mine.days and _is_of_other_clause(mine, sentence):
        yield Reason(OTHER_DAY, theirs.text)
    if mine.months and theirs.months and not mine.months <= theirs.months:
        yield Reason(OTHER_MONTH, theirs.text)
    if mine.periods and theirs.periods and not mine.periods & theirs.periods:
        yield Reason(OTHER_PERIOD, theirs.text)
    if not is_barred:
        yield from _find_contradiction(mine, sentence)
    yield from _find_generalised(mine, theirs)


def _is_of_other_clause(mine: Traits, sentence: Sentence) -> bool:
    """Whether the day stands in one clause, which says something else, and the words in one with another day."""
    clauses = sentence.clauses[1:]
    named = [clause for clause in clauses if clause.days & mine.days]
    if not named or any(not clause.stems or _share(mine, clause) > 0 for clause in named):
        return False
    return any(clause.days and _share(mine, clause) >= _MIN_OVERLAP for clause in clauses)


def _share(mine: Traits, clause: Traits) -> float:
    others = frozenset(clause.stems)
    return sum(_worth(one, others) for one in mine.stems) / len(mine.stems) if mine.stems else 0.0


def _find_generalised(mine: Traits, theirs: Traits) -> Iterator[Reason]:
    """`All` where the sentence says `some`, or speaks of somebody else."""
    every = speaks_of_all(mine.plain)
    if not every or speaks_of_all(theirs.plain) or speaks_of_some(mine.text, mine.words):
        return
    some = speaks_of_some(theirs.text, theirs.words)
    whose = _EVERY_NOUN.search(mine.plain)
    is_other = whose and len(whose[1]) > 3 and not _worth(stem(whose[1]), frozenset(theirs.stems))
    if some or is_other:
        yield Reason(TOO_GENERAL, f"{every}, the document says {some or 'it of others'}")


def _find_contradiction(mine: Traits, sentence: Sentence) -> Iterator[Reason]:
    """Denials and opposites, in the clause that is most like the assertion; all such clauses must disagree."""
    rated = [(_overlap(mine, clause), clause) for clause in sentence.clauses[1:] or sentence.clauses]
    best = max(overlap for overlap, _ in rated)
    denying = _find_denied_clause(mine, sentence)
    if denying and find_opposite(mine.words, denying.words) is None:
        if mine.denials % 2 == 0:
            yield Reason(DENIED, denying.text)
        return
    if best < _MIN_OVERLAP:
        return
    reasons = []
    for overlap, clause in rated:
        if overlap < best - 1e-9:
            continue
        opposite = find_opposite(mine.words, clause.words) or find_opposite(mine.words, sentence.traits.words)
        is_rejected = bool(REJECTING & clause.words) and not (ACCEPTING | REJECTING) & mine.words
        is_denied = (mine.denials + clause.denials + is_rejected) % 2 == 1
        if is_denied == (opposite is not None) or (is_denied and not is_rejected and not _deny_the_same(mine, clause)):
            return
        reasons.append(
            Reason(OPPOSITE, f"{opposite[0]}, the document says {opposite[1]}") if opposite else Reason(DENIED, clause.text)
        )
    yield reasons[0]


def _find_denied_clause(mine: Traits, sentence: Sentence) -> Traits | None:
    """A clause that denies something and alone has a word of the assertion: `Linux needs a restart, Windows does not`."""
    clauses = sentence.clauses[1:]
    if len({clause.denials % 2 for clause in clauses}) < 2:
        return None
    for clause in clauses:
        others = {one for other in clauses if other is not clause for one in other.stems}
        is_shared = clause.denials % 2 and clause.denied.intersection(mine.stems)
        if is_shared and any(one in mine.stems and one not in others for one in clause.stems):
            return clause
    return None


def _deny_the_same(mine: Traits, clause: Traits) -> bool:
    """Whether what one denies is spoken of by the other."""
    return any(_worth(one, frozenset(clause.stems)) for one in mine.denied - clause.denied) or any(
        _worth(one, frozenset(mine.stems)) for one in clause.denied - mine.denied
    )


def _overlap(mine: Traits, clause: Traits) -> float:
    opposite = find_opposite(mine.words, clause.words)
    known = [one for one in mine.stems if opposite is None or stem(opposite[0]) != one]
    others = frozenset(clause.stems)
    ledger = Ledger(clause.amounts)
    figures = [one for one in mine.amounts if one.is_firm]
    weight = len(known) + 3 * len(figures) + 2 * len(mine.days) + 2 * len(mine.months)
    score = sum(_worth(one, others) for one in known) + 3 * sum(ledger.has(one) for one in figures)
    score += 2 * len(mine.days & clause.days) + 2 * len(mine.months & clause.months)
    return score / weight if weight else 0.0
