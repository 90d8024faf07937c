# SPDX-License-Identifier: Apache-2.0
"""What a sentence of an answer claims, as far as that can be seen without understanding it.

Decides what is a claim at all, and cuts it into assertions that are checked one by one. Not claims about the world:
questions, lead-ins that end with a colon, pleasantries, and texts with fewer than two words of meaning and no figure.
Marks of citations and list items are no part of a claim. Refuses to know documents.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from lockgate.detectors.groundedness.calendar_words import is_calendar, read_calendar
from lockgate.detectors.groundedness.content_words import find_words, fold, fold_word, is_small, stem, tell_language
from lockgate.detectors.groundedness.contrary_words import join_phrases, read_denials
from lockgate.detectors.groundedness.numerals import Amount, find_amounts

FIGURE: Final = 2.0
"""What a number, a day or a month weighs beside a word."""

MAX_ASSERTIONS: Final = 8
_MIN_WEIGHT = 2.0
_CUT_WORDS = 3
_MAX_CAPITALS = 0.6
_SPOKEN = ("en", "es", "de")  # whose number words are known

_MARK = re.compile(r"\[([^\[\]\r\n]{1,512}+)\]")
_CITATION = re.compile(r"\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*|[^\s/]+/\S.*|(?:cite|source|doc)\b.*", re.IGNORECASE)
_LIST_MARK = re.compile(r"\A\s*(?:[-*•‣–]|\(?\d{1,3}[.)]|#{1,6})\s+")
_QUESTION = re.compile(r"[?？]['\"”»)]*\s*\Z")
_CODE = re.compile(r"(?<!\w)[^\W\d_]{1,20}-?\d[\w-]{0,30}")
_CUT = re.compile(
    r"\s*[;:]\s+|,\s+|\s+[–—]\s+|\s+(?:and|but|while|whereas|y|e|pero|mientras|und|aber|sondern|während)\s+",
    re.IGNORECASE,
)
_CONTRAST = re.compile(r"[;.]\s+|,?\s+(?:but|however|pero|sin embargo|aber|jedoch|allerdings)\s+", re.IGNORECASE)
_TOKEN = re.compile(r"[^\W\d_][\w'’-]*")
_OPENING = re.compile(r"[.:!\"“„«]\s*\Z")
_TITLES = frozenset(("mr", "mrs", "ms", "dr", "prof", "herr", "herrn", "frau", "don", "dona", "sr", "sra", "senor"))
_LACK = re.compile(
    r"""\b(?:
    (?:documents?|sources?|context|texts?|passages?|articles?|materials?|information|excerpts?)\s
        (?:provided\s|given\s|above\s)?(?:do|does|did)(?:\snot|n['’]t)\s
        (?:say|mention|contain|state|specify|provide|include|indicate|cover|tell|give|explain|describe|answer|address)
    |(?:do|does|did)(?:\snot|n['’]t)\s(?:mention|specify|state\swhether|say\s(?:whether|if|how|when|why|who|what))
    |(?:there\sis\s|i\shave\s|contains?\s|gives?\s)?no\s(?:information|details?|mention|data|indication|evidence)\b
    |(?:could\snot|couldn['’]t|cannot|can['’]t|did\snot|didn['’]t|unable\sto)\s(?:find|determine|answer|tell)
    |(?:is|are|was|were)\s(?:not|nowhere)\s(?:mentioned|specified|stated|given|said|provided|covered|described)
    |nothing\s(?:is\ssaid|about|on|in\sthe)|(?:i|we)\s(?:do\snot|don['’]t)\sknow|not\sclear\s(?:from|whether|if)
    |no\s(?:se\s)?(?:menciona|indica|especifica|dice|contiene|incluye|consta|aparece|informa|detalla|explica|aclara
        |recoge)n?\b
    |no\s(?:hay|contienen?|ofrecen?|tengo|dispongo\sde)\s(?:ninguna\s)?(?:información|datos|detalles|indicación)
    |no\s(?:encuentro|encontré|he\sencontrado|pude\sencontrar|se\ssabe|sé)\b|nada\s(?:sobre|acerca)
    |nada\sen\s(?:el|la|los|las)
    |gehe?n?t?\s.{0,40}?nicht\shervor|nicht\shervorgeht|ergibt\ssich\s.{0,30}?nicht
    |keine(?:rlei)?\s(?:angaben?|informationen?|auskunft|hinweise?|aussagen?|einzelheiten)
    |nicht\s(?:erwähnt|genannt|angegeben|beschrieben|aufgeführt|enthalten|beantwortet|gesagt|hervor|ersichtlich)
    |(?:dokumente?n?|quellen?|texte?n?|unterlagen|abschnitte?)\s
        (?:sagen|sagt|nennen|nennt|enthalten|enthält|erwähnen|erwähnt)\s.{0,40}?(?:nichts?|keine?n?)
    |nichts\s(?:gefunden|darüber|über|dazu|zu)|nichts\sin\s(?:den|dem|der)|(?:steht|stehen)\s.{0,40}?nichts?
    |(?:ich\sweiß|wir\swissen)\s(?:es\s)?nicht|ist\snicht\s(?:bekannt|klar)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_POLITE = (
    "thing|no|problem|a|lot|for|your|question|asking|you|there|again|everyone|very|much|por|tu|su|pregunta|todos|de|nada"
    "|gern|gerne|sehr|schön|für|deine|ihre|die|frage|dir|ihnen|weiter|zusammen"
)
_PLEASANTRY = re.compile(
    r"""\W*(?:
    (?:sure|certainly|of\scourse|absolutely|great\squestion|thanks?(?:\syou)?|you['’]re\swelcome|hello|hi)POLITE
    |i\shope\s(?:this|that)\shelpsPOLITE|(?:please\s)?(?:let\sme\sknow|feel\sfree)\b[^.!\d]{0,80}
    |(?:claro|por\ssupuesto|gracias|de\snada|hola)POLITE
    |espero\sque\s(?:esto\s)?(?:te|le|os|les)?\s?(?:sirva|ayude)
    |(?:gerne|natürlich|danke|bitte|hallo)POLITE|ich\shoffe\W+das\shilftPOLITE
    )\W*""".replace("POLITE", rf"(?:[\s,]+(?:{_POLITE})){{0,4}}"),
    re.IGNORECASE | re.VERBOSE,
)


class Traits:
    """What can be seen of a text without understanding it; what a document says is read generously."""

    __slots__ = ("amounts", "calendar", "codes", "denials", "language", "months", "plain", "stems", "text", "words")

    def __init__(self, text: str, language: str, *, is_generous: bool) -> None:
        is_sure = language in _SPOKEN and not is_generous  # `once` is eleven in Spanish
        self.text = text
        self.language = language
        self.amounts, months = find_amounts(text, (language,) if is_sure else _SPOKEN)
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
    """A part of a claim that is checked on its own. `is_lack`: it says that the documents lack something."""

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
    """The assertions of one sentence; none if it claims nothing. The language is that of the documents."""
    plain = _LIST_MARK.sub("", _MARK.sub(_drop_citation, text)).strip()
    if not plain or _QUESTION.search(plain) or _PLEASANTRY.fullmatch(plain):
        return []
    language = tell_language(find_words(plain), language)
    if _LACK.search(plain):
        parts = _CONTRAST.split(plain, MAX_ASSERTIONS - 1)
        found = [Assertion(part, language, is_lack=bool(_LACK.search(part))) for part in parts]
    else:
        found = [Assertion(part, language) for part in _cut(plain, language)]
    if plain.endswith(":") and not any(one.figures for one in found):
        return []
    return [one for one in found if one.weight >= _MIN_WEIGHT or one.is_lack]


def _drop_citation(mark: re.Match[str]) -> str:
    return "" if _CITATION.fullmatch(mark[1]) else mark[0]


def _without(text: str, amounts: Iterable[Amount]) -> str:
    """The text without its figures; a unit goes with its number."""
    parts: list[str] = []
    at = 0
    for one in amounts:
        if one.is_firm and one.start >= at:
            parts.append(text[at : one.start])
            at = one.end
    return " ".join([*parts, text[at:]])


def _cut(text: str, language: str) -> Iterator[str]:
    """The parts of a sentence, each with enough words to be found by."""
    cuts = [(match.start(), match.end()) for match in _CUT.finditer(text)]
    begins, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    telling = [_count_telling(text[begin:end], language) for begin, end in zip(begins, ends, strict=True)]
    start, count, given = 0, 0, 0
    for at, (end, words) in enumerate(zip(ends, telling, strict=True)):
        count += words
        is_enough = count >= _CUT_WORDS and sum(telling[at + 1 :]) >= _CUT_WORDS
        if is_enough and given < MAX_ASSERTIONS - 1:
            yield text[start:end]
            start, count, given = begins[at + 1], 0, given + 1
    yield text[start:]


def _count_telling(text: str, language: str) -> int:
    """About how much an assertion of this text would weigh; a figure counts twice."""
    words = [word for word in find_words(text) if not is_small(word, language)]
    return len(words) + sum(word[0].isdigit() or is_calendar(word) for word in words)


def _find_names(text: str, language: str) -> Iterator[str]:
    """Words that are written like names; in German, where all nouns are, only after another such or a title."""
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
