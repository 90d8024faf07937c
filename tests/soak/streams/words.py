# SPDX-License-Identifier: Apache-2.0
"""Texts of which everything is known in advance: what each detector finds in them, and where any piece of them stands.

Every word occurs once in the texts of a stream and none is part of another, so a piece of text that anybody was given
has one place. What a detector finds is a pattern that no chunker of its own cuts in two, so the findings follow from
the text alone. Knows nothing of servers.
"""

import random
import re
from typing import NamedTuple

KEYWORDS = ("puddle", "pumice", "puppet", "purple", "pudding", "pulley", "pueblo", "puffin")
THRESHOLD = 0.5
_FIRST, _MIDDLE, _LAST = "bcdfgh", "aeioulmnrstk", "xyzwq"
_FOREIGN = ("é", "ü", "ß", "ñ", "e\u0301", "ж", "ω")
_TAILS = ("", "", "", "", "", "", "😀", "👩‍👩‍👧", "🇫🇷")
_STOPS = (". ", ". ", ". ", "! ", "? ", ".\n\n")
_WORD_END = r"[^\s.,;!?]+"


class Eye(NamedTuple):
    """What a detector of the configuration sees: a pattern, in the chunks of a chunker, here or over the network."""

    chunker: str
    pattern: re.Pattern[str]
    is_remote: bool
    holds: bool = True

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where."""
        return [found.span() for found in self.pattern.finditer(text)]


WHOLE = "whole_doc_chunker"
EYES = {
    "words": Eye("word", re.compile(r"\b(?:" + "|".join(KEYWORDS) + r")\b"), False),
    "tags": Eye("sentence", re.compile(r"\bpa[a-z]+\b"), False),
    "mail": Eye("sentence", re.compile(r"[a-z]+@example\.org"), False),
    "ends": Eye(WHOLE, re.compile(r"\bpa[a-z]+\b"), False, holds=False),
    "far_words": Eye("word", re.compile(r"\bpi[a-z]+\b"), True),
    "far_sentences": Eye("sentence", re.compile(r"\bpe[a-z]+ " + _WORD_END), True),
    "far_clauses": Eye("clauses", re.compile(r"\bp[eo][a-z]+ " + _WORD_END), True),
    "far_spans": Eye("spans", re.compile(r"\bp[aiu][a-z]+\b"), True),
    "far_texts": Eye(WHOLE, re.compile(r"\bp[io][a-z]+\b"), True, holds=False),
}
REMOTE_CHUNKERS = ("clauses", "spans")
POISON = re.compile(r"\bpz(?P<service>[dls])(?P<way>[uiarn])[a-z]+\b")  # where a service is to fail, and how


class Vocabulary:
    """The words of one stream, none twice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()
        self._keywords = list(KEYWORDS)
        self._signs = iter(rng.sample(range(0x4E00, 0x9FA0), 400))

    def plain(self) -> str:
        """A word that no detector looks for."""
        middle = "".join(self._rng.choices(_MIDDLE, k=self._rng.randint(1, 5)))
        if self._rng.random() < 0.15:
            middle += self._rng.choice(_FOREIGN)
        return self._fresh(self._rng.choice(_FIRST) + middle) + self._rng.choice(_TAILS)

    def marked(self) -> str:
        """A word that some detector looks for."""
        if self._rng.random() < 0.15 and self._keywords:
            return self._keywords.pop(self._rng.randrange(len(self._keywords)))
        if self._rng.random() < 0.15:
            return self._fresh(self._rng.choice(_FIRST) + self._letters()) + "@example.org"
        return self._fresh("p" + self._rng.choice("aeio") + self._letters())

    def poison(self, kind: str) -> str:
        """A word at which a service fails."""
        return self._fresh("pz" + kind + self._letters())

    def signs(self) -> str:
        """Some words of a script without spaces."""
        return "".join(chr(next(self._signs)) for _ in range(self._rng.randint(3, 9)))

    def _letters(self) -> str:
        return "".join(self._rng.choices(_MIDDLE, k=self._rng.randint(2, 5)))

    def _fresh(self, stem: str) -> str:
        word = stem + self._rng.choice(_LAST)
        while word.lower() in self._used:
            word = word[:-1] + self._rng.choice(_MIDDLE) + self._rng.choice(_LAST)
        self._used.add(word.lower())
        return word


def draw_text(rng: random.Random, words: Vocabulary, sentences: int, poison: str = "") -> str:
    """Some sentences; one of them has the poison, if there is any."""
    parts = ["\n\n"] if rng.random() < 0.05 else []
    poisoned = rng.randrange(sentences) if poison else -1
    for number in range(sentences):
        if number != poisoned and rng.random() < 0.08:
            parts.append(words.signs() + "。")
        else:
            parts.append(_draw_sentence(rng, words, poison if number == poisoned else ""))
    return "".join(parts).rstrip() if rng.random() < 0.5 else "".join(parts)


def _draw_sentence(rng: random.Random, words: Vocabulary, poison: str) -> str:
    first = words.plain()
    parts = [first[0].upper() + first[1:]]
    for _ in range(rng.randint(2, 9)):
        if rng.random() < 0.3:  # always between plain words, or a phrase would have no second one
            parts += [" ", words.marked()]
        parts += [" ", words.plain()]
        if rng.random() < 0.12:
            parts.append(rng.choice((",", ";")))
    if poison:
        parts += [" ", words.poison(poison), " ", words.plain()]
    elif parts[-1] in (",", ";"):
        parts.pop()
    return "".join(parts) + rng.choice(_STOPS)


def cut_anywhere(rng: random.Random, text: str) -> list[str]:
    """The text in pieces, as a model sends it: mostly small, now and then all at once."""
    largest = rng.choice((4, 10, 10, 20, 60, 1 + len(text)))
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, largest)
        pieces.append(text[at : at + size])
        at += size
    return pieces
