# SPDX-License-Identifier: Apache-2.0
"""Which sentences of the documents found a very small model gets to see.

It can hold a few lines apart, not twenty: so the choice is made here, by the words that a sentence shares with the
question, by what kind of thing is asked for, and by the document's own score. Decides that, and that documents which
share next to nothing with the question are not shown at all. Refuses to know where they come from, and what the model
makes of them. Words are English ones where their form matters; in other languages words alone count.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lockgate.gate.prompt import flatten_name, make_sendable
from lockgate.gate.values import Document
from lockgate.index.search_words import find_search_words

MAX_DOCUMENTS: Final = 3
MAX_DOCUMENT_CHARS: Final = 4_000
MAX_LINES: Final = 3
MAX_LINE_WORDS: Final = 48
MAX_LINE_CHARS: Final = 320
MIN_SHARE: Final = 0.3  # of what the question says; below, the score must tell that a document belongs here
SURE_SCORE: Final = 0.5
MARGIN: Final = 0.5  # a line that is worse than the best one by more than this is not shown

_TITLE_WORTH, _SCORE_WORTH, _PLACE_WORTH, _KIND_WORTH = 0.5, 10.0, 0.2, 1.0
_SENTENCES = re.compile(r"[\r\n]+|(?<=[.!?])\s+(?=[^a-z\s])")
_BRACKETS = str.maketrans("[]", "()")
_ENDINGS = (("ings", "ing", "ies", "ied", "es", "ed", "s"), ("e", "y"))

FIGURES: Final = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|once|twice|half)\b",
    re.IGNORECASE,
)
_MONEY = r"[€£$]|\b(?:pence|pennies|pounds?|euros?|cents?|dollars?|free|nothing|costs?|pays?)\b"
_TIMES = (
    r"\b(?:\w+day|january|february|march|april|june|july|august|september|october|november|december|morning|noon|"
    r"afternoon|evening|night|weeks?|months?|years?|o'clock|[12]\d{3})s?\b"
)
_KINDS: Final = tuple(
    (re.compile(asked, re.IGNORECASE), re.compile(told, re.IGNORECASE))
    for asked, told in (
        (r"how much|\bcosts?\b|\bprice\b|\bfees?\b", _MONEY),
        (r"how (?:many|long|old|often)", FIGURES.pattern),
        (r"^when\b|what time|what year|\bhours\b", _TIMES),
        (r"\bhours\b|\bopen|\bclose", r"\b(?:opens?|closes?|closed)\b"),
        (r"\bnamed?\b|\bcalled\b", r"\b(?:named?|called|names)\b"),
    )
)
_WHO = re.compile(r"^who\b", re.IGNORECASE)
_PERSON = re.compile(r"[A-Z][\w'’-]+ [A-Z][\w'’-]+")


class Line(NamedTuple):
    """A sentence without its full stop, and the path of the source that it is from."""

    path: str
    text: str


class _Candidate(NamedTuple):
    document: Document
    place: int
    text: str
    words: frozenset[str]


def choose_lines(question: str, documents: Sequence[Document]) -> list[Line]:
    """The sentences that are most likely to hold the answer, the best first; none if nothing fits."""
    known = [one for one in documents[:MAX_DOCUMENTS] if one.text]
    candidates = [one for document in known for one in _cut(document)]
    asked = _stems(question)
    if not candidates or not asked:
        return []
    weights = _weigh(asked, candidates)
    best = max(one.score for one in known)
    if best < SURE_SCORE and _share(weights, known) < MIN_SHARE:
        return []
    worths = [(_worth(one, question, weights) + (one.document.score - best) * _SCORE_WORTH, one) for one in candidates]
    worths.sort(key=lambda pair: -pair[0])
    return [
        Line(flatten_name(one.document.source).strip(), one.text)
        for worth, one in worths[:MAX_LINES]
        if worth >= worths[0][0] - MARGIN
    ]


def flatten(text: str) -> str:
    """The text on one line, with nothing in it that looks like the mark of a source."""
    return " ".join(make_sendable(text).translate(_BRACKETS).split())


def _cut(document: Document) -> Iterator[_Candidate]:
    sentences = _SENTENCES.split(document.text[:MAX_DOCUMENT_CHARS])
    for place, sentence in enumerate(sentences):
        words = flatten(sentence).rstrip(".!?:; ").split()[:MAX_LINE_WORDS]
        while sum(map(len, words)) + len(words) > MAX_LINE_CHARS:
            words.pop()
        if words:
            text = " ".join(words)
            yield _Candidate(document, place, text, _stems(text))


def _weigh(asked: frozenset[str], candidates: Sequence[_Candidate]) -> dict[str, float]:
    """What each word of the question is worth: the more, the fewer sentences have it."""
    counts = {word: sum(word in one.words for one in candidates) for word in asked}
    return {word: math.log(1 + len(candidates) / max(count, 0.5)) for word, count in counts.items()}


def _share(weights: Mapping[str, float], documents: Sequence[Document]) -> float:
    """How much of the question the document says that says most of it."""
    whole = sum(weights.values())
    texts = [_stems(f"{one.title} {one.text[:MAX_DOCUMENT_CHARS]}", is_question=False) for one in documents]
    return max(sum(weight for word, weight in weights.items() if word in text) for text in texts) / whole


def _worth(one: _Candidate, question: str, weights: Mapping[str, float]) -> float:
    title = _stems(one.document.title)
    worth = -_PLACE_WORTH * one.place
    for word, weight in weights.items():
        worth += weight if word in one.words else weight * _TITLE_WORTH if word in title else 0.0
    if _WHO.search(question) and _PERSON.search(one.text):
        worth += _KIND_WORTH
    return worth + _KIND_WORTH * sum(bool(asked.search(question) and told.search(one.text)) for asked, told in _KINDS)


def _stems(text: str, *, is_question: bool = True) -> frozenset[str]:
    words = find_search_words(text) if is_question else re.findall(r"[^\W_]+", text.casefold())
    return frozenset(map(_stem, words))


def _stem(word: str) -> str:
    """The word without its ending: `fees` and `fee`, `closes` and `closing` are the same."""
    for endings in _ENDINGS:
        ending = next((one for one in endings if word.endswith(one) and len(word) - len(one) >= 3), "")
        word = word.removesuffix(ending)
    return word
