# SPDX-License-Identifier: Apache-2.0
"""Words as they are compared: without case, accents and endings; which carry meaning; which language they are of.

Decides by spelling alone, for English, Spanish, German and a little French. Refuses to know what words mean: which of
them contradict each other stands in `contrary_words`.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from lockgate.index.search_words import MAX_WORD_CHARS, STOP_WORDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGES: Final = ("en", "de", "es", "fr")  # in the order of the stop words
DENIALS: Final = _words("""
    not no never none neither nor nobody nothing cannot without t lacks lack except
    nunca jamás sin ningún ninguno ninguna ningunos ningunas tampoco nadie nada ni excepto salvo
    nicht kein keine keinen keinem keiner keines nie niemals ohne weder nichts niemand niemandem außer ausgenommen
    ne pas jamais aucun aucune sans
""")
_MODALS = _words("""
    can could may might must shall should would will
    puede pueden podrá podrán podía poder debe deben deberá deberán hay haber
    darf dürfen kann können könnte muss müssen soll sollen sollte wird werden wurde wurden
""")
_STOP_WORDS: Final[Mapping[str, frozenset[str]]] = dict(zip(LANGUAGES, STOP_WORDS, strict=True))
_SMALL: Final = {language: words | DENIALS | _MODALS for language, words in _STOP_WORDS.items()}
_WORD = re.compile(r"[^\W_]+")
_ENDING = re.compile(r"(?:ungen|mente|ings?|ern|ung|ies|ied|ion|ed|en|er|em|es|et|st|os|as|ly|or|[eosanyt])\Z")
_MIN_STEM_CHARS, _MIN_KIN_CHARS = 4, 5
_MIN_FOREIGN = 2  # one small word alone may be a word of another language


@lru_cache(8192)
def fold_word(word: str) -> str:
    """The word without case and accents: `Häuser` and `hauser` are one."""
    return fold(word)


def fold(text: str) -> str:
    """The text without case and accents."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFD", text.casefold())
    return "".join([char for char in plain if not unicodedata.combining(char)])


def find_words(text: str) -> list[str]:
    """The words as they stand; of `can't` and `l'eau` both halves."""
    return [word[:MAX_WORD_CHARS] for word in _WORD.findall(text)]


@lru_cache(8192)
def stem(word: str) -> str:
    """What relatives of a word share, roughly: `closes`, `closed` and `closing` are one."""
    plain = fold(word)
    if plain.startswith("ge") and plain.endswith(("t", "en")) and len(plain) > 7:  # `geputzt`, `putzt`
        plain = plain[2:]
    for _ in range(2):
        short = _ENDING.sub("", plain)
        if len(short) < _MIN_STEM_CHARS:
            break
        plain = short
    return plain


def find_stem(known: str, others: Collection[str]) -> str:
    """The stem among others that belongs with this one: the same, or one begins with the other; empty for none."""
    if known in others:
        return known
    if len(known) < _MIN_KIN_CHARS:
        return ""
    kin = (other for other in others if len(other) >= _MIN_KIN_CHARS)
    return next((other for other in kin if other.startswith(known) or known.startswith(other)), "")


def has_compound(known: str, others: Collection[str]) -> bool:
    """Whether a compound among others has this word in it, or the other way round: `Kündigungsfrist` and `Frist`."""
    return any(
        (len(known) >= _MIN_KIN_CHARS and known in other) or (len(other) >= _MIN_KIN_CHARS and other in known)
        for other in others
    )


def tell_language(words: Collection[str], default: str = "en") -> str:
    """The language whose small words are most of all among these; `default` unless one is plain."""
    known = {word.casefold() for word in words}
    counts = {language: len(known & small) for language, small in _STOP_WORDS.items()}
    best = max(counts, key=lambda language: counts[language])  # the first of several
    return best if counts[best] >= _MIN_FOREIGN else default


def is_small(word: str, language: str) -> bool:
    """Whether a word carries no meaning of its own."""
    return len(word) < 2 or word.casefold() in _SMALL[language]
