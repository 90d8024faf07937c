# SPDX-License-Identifier: Apache-2.0
"""Words as the toxicity classifier numbers them, and whether it can read a text at all.

This module decides what a word is, which odd spellings stand for a known word, and when a text is English enough. The
classifier knows 19,999 words of English comments. Of other languages it sees only words that happen to look English,
and German `die` then reads as a curse: such texts are not for it. It refuses to know what the words mean.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lockgate.embedded.letters import make_plain

UNKNOWN = 0
MIN_KNOWN = 0.75
"""So large a share of known words makes a text readable; or half of them, where small English words are among them."""
MIN_KNOWN_AMONG_ENGLISH, MIN_ENGLISH = 0.5, 0.2

# Letters, digits and apostrophes inside a word: nearly what the tokenizer had with which the model was trained.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_LONG_RUN = re.compile(r"(.)\1{2,}")
_APOSTROPHES = str.maketrans(dict.fromkeys("‘’‛´`ʼ", "'"))
_DIGITS_AS_LETTERS = str.maketrans("013457", "oieast")
_MARKS_AS_LETTERS = str.maketrans("@$!", "asi")
_MARKS = re.compile("[@$!]")
_MASKED = re.compile(r"[^\W_]+[@$!][^\W_]+")

_ENGLISH = (
    "the to of and you is that it for this not be are have your if was with my they he she his her them him will would "
    "what about who when how there their been should could does did has had we our because than then which these those "
    "i'm i'll i've you're you'll don't it's can't he's that's"
)
# Small words of other languages that are none in English; those of both, such as `die` and `hat`, are not among them.
_FOREIGN = (
    "der das und ist ich nicht ein eine einen einem einer du den dem mit auf für zu sie wir ihr sich von im bei aus "
    "nach wie wer wenn aber oder auch noch nur dass daß wird sind haben hast habe kein keine mein dein sein wo da ja "
    "nein mich dich mir dir uns euch alle alles zum zur vom am el la los las que de del en un una unos unas por para "
    "con es se te me mi tu su y o no lo le les al yo más muy pero como eres soy está son ser hay qué si sin sobre "
    "todo nada ya des et est une pour dans avec sur pas qui vous nous il di che non per sono della het een van niet "
    "dat op voor zijn não uma os as dos em com"
)
_BOTH = frozenset({"no", "me", "as", "dos", "non", "am", "des", "is"})


class KnownWords:
    """The numbers of the words that the classifier knows."""

    def __init__(self, words: Iterable[str]) -> None:
        self._ids = {word: number for number, word in enumerate(words, 1)}
        self._english = self._numbers(_ENGLISH)
        self._foreign = self._numbers(_FOREIGN)

    def __len__(self) -> int:
        return len(self._ids)

    def tokenize(self, text: str) -> list[int]:
        """A number per word; 0 for one that is not known."""
        if not text.isascii():
            text = make_plain(text.translate(_APOSTROPHES)).translate(_APOSTROPHES)
            text = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
        if _MARKS.search(text):
            text = _MASKED.sub(lambda match: self._unmask(match[0]), text)
        return [self._find(match[0]) for match in _WORD.finditer(text.lower())]

    def is_readable(self, tokens: Sequence[int]) -> bool:
        """Whether so much of a text is known, and is English, that the classifier's answer means something."""
        known = sum(1 for token in tokens if token != UNKNOWN and token not in self._foreign)
        if not known:
            return False
        if known >= MIN_KNOWN * len(tokens):
            return True
        english = sum(1 for token in tokens if token in self._english)
        return known >= MIN_KNOWN_AMONG_ENGLISH * len(tokens) and english >= MIN_ENGLISH * len(tokens)

    def _numbers(self, words: str) -> frozenset[int]:
        return frozenset(self._ids[word] for word in words.split() if word in self._ids and word not in _BOTH)

    def _unmask(self, word: str) -> str:
        plain = word.lower().translate(_MARKS_AS_LETTERS)
        return plain if plain in self._ids else word

    def _find(self, word: str) -> int:
        number = self._ids.get(word)
        if number is not None:
            return number
        return next((self._ids[one] for one in _respell(word) if one in self._ids), UNKNOWN)


def _respell(word: str) -> Iterator[str]:
    """What an unknown word may stand for: `stuuupid`, `1diot`, `somebody's`."""
    if _LONG_RUN.search(word):
        yield _LONG_RUN.sub(r"\1\1", word)
        yield _LONG_RUN.sub(r"\1", word)
    if not word.isalpha() and not word.isdigit():
        yield word.translate(_DIGITS_AS_LETTERS)
        yield word.partition("'")[0]


def load_words(path: Path) -> KnownWords:
    """The words of a file, one per line; raises OSError or ValueError."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        return KnownWords([line.rstrip("\n") for line in lines])
