# SPDX-License-Identifier: Apache-2.0
"""Compares words by spelling, and finds those that contradict: denials, opposites, `all` and `some`."""

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.data_files import Table, join_lines, read_table, split_words
from lockgate.index.search_words import MAX_WORD_CHARS, STOP_WORDS


class WordFile(Table, frozen=True):
    """The word lists and patterns of `words.toml`."""

    denials: str
    modals: str
    ending: str
    no_denial: str
    contraction: str
    doubles: tuple[tuple[str, str], ...]
    phrases: tuple[tuple[str, str], ...]
    negating: str
    all: str
    some: str
    part: str
    every_period: str
    every_noun: str
    opposites: tuple[tuple[str, str], ...]


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern of a file, which may have several lines; case is ignored."""
    return re.compile(join_lines(pattern), re.IGNORECASE)


_FILE = read_table(Path(__file__).with_name("words.toml"), WordFile)
DENIALS: Final = split_words(_FILE.denials)
_SMALL: Final = {language: words | DENIALS | split_words(_FILE.modals) for language, words in STOP_WORDS.items()}
_WORD = re.compile(r"[^\W_]+")
_ENDING = re.compile(_FILE.ending)
_MIN_STEM_CHARS, _MIN_KIN_CHARS = 4, 5
_MIN_FOREIGN = 2  # one small word alone may be a word of another language


@lru_cache(8192)
def fold_word(word: str) -> str:
    """Removes case and accents, cached: `Häuser` and `hauser` are the same."""
    return fold(word)


def fold(text: str) -> str:
    """Returns the text without case and accents."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFD", text.casefold())
    return "".join([char for char in plain if not unicodedata.combining(char)])


def find_words(text: str) -> list[str]:
    """Returns the words unchanged; of `can't` and `l'eau` both halves."""
    return [word[:MAX_WORD_CHARS] for word in _WORD.findall(text)]


@lru_cache(8192)
def stem(word: str) -> str:
    """Returns the rough stem of a word: `closes`, `closed` and `closing` have the same."""
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
    """Finds the same stem among others, or one of which either begins with the other; else ""."""
    if known in others:
        return known
    if len(known) < _MIN_KIN_CHARS:
        return ""
    kin = (other for other in others if len(other) >= _MIN_KIN_CHARS)
    return next((other for other in kin if other.startswith(known) or known.startswith(other)), "")


def has_compound(known: str, others: Collection[str]) -> bool:
    """Returns whether this word is in one of the others or the reverse: `Kündigungsfrist` and `Frist`."""
    return any(
        (len(known) >= _MIN_KIN_CHARS and known in other) or (len(other) >= _MIN_KIN_CHARS and other in known)
        for other in others
    )


def guess_language(words: Collection[str], default: str = "en") -> str:
    """Returns the language with the most small words among these; `default` if there are too few."""
    known = {word.casefold() for word in words}
    counts = {language: len(known & small) for language, small in STOP_WORDS.items()}
    best = max(counts, key=lambda language: counts[language])  # the first of several
    return best if counts[best] >= _MIN_FOREIGN else default


def is_small(word: str, language: str) -> bool:
    """Returns whether a word has no meaning by itself."""
    return len(word) < 2 or word.casefold() in _SMALL[language]


# --- Denials --------------------------------------------------------------------------------------------------

_NO_DENIAL = compile_pattern(_FILE.no_denial)
_CONTRACTION = compile_pattern(_FILE.contraction)
_DOUBLES: Final = tuple((one, other) for one, others in _FILE.doubles for other in others.split())
_PHRASES: Final = tuple((compile_pattern(pattern), word) for pattern, word in _FILE.phrases)


class Denials(NamedTuple):
    """The number of denials in a text, and the stems of the words that it denies."""

    times: int
    denied: frozenset[str]

    @property
    def is_odd(self) -> bool:
        """Whether the text as a whole is a denial."""
        return self.times % 2 == 1


def join_phrases(text: str) -> str:
    """Replaces each phrase with special meaning by one word."""
    for pattern, word in _PHRASES:
        text = pattern.sub(word, text)
    return text


def read_denials(text: str, language: str) -> Denials:
    """Finds the denials of a text; each denies the next content word, or else the one before."""
    plain = _CONTRACTION.sub(" not ", _NO_DENIAL.sub(" ", text))
    words = [word.casefold() for word in find_words(plain)]
    places = [at for at, word in enumerate(words) if word in DENIALS]
    if not places:
        return Denials(0, frozenset())
    is_double = any(words.count(one) > (one == other) and other in words for one, other in _DOUBLES)
    content = [at for at, word in enumerate(words) if not is_small(word, language) and not word.isdigit()]
    denied = set()
    for place in places:
        after = next((at for at in content if at > place), None)
        nearest = after if after is not None else max([at for at in content if at < place], default=None)
        if nearest is not None:
            denied.add(stem(words[nearest]))
    return Denials(len(places) - is_double, frozenset(denied))


# --- Opposites ------------------------------------------------------------------------------------------------


def _fold_all(words: str) -> frozenset[str]:
    return frozenset(map(fold, words.split()))


_NEGATING = _FILE.negating.split()
_MIN_PREFIXED_CHARS = 4
OPPOSITES: Final = tuple((_fold_all(one), _fold_all(other)) for one, other in _FILE.opposites)
_CONTRASTED = frozenset(word for pair in OPPOSITES for side in pair for word in side)
ACCEPTING, REJECTING = next(pair for pair in OPPOSITES if "rejected" in pair[1])


def find_opposite(words: frozenset[str], others: frozenset[str]) -> tuple[str, str] | None:
    """Finds a word of the first with its opposite in the second, if neither has both; all are folded."""
    mine, theirs = words & _CONTRASTED, others & _CONTRASTED
    if mine and theirs:
        for pair in OPPOSITES:
            for left, right in (pair, pair[::-1]):
                if mine & left and theirs & right and not mine & right and not theirs & left:
                    return min(mine & left), min(theirs & right)
    turned = _find_prefixed(others, words)
    return _find_prefixed(words, others) or (turned and turned[::-1])


def _find_prefixed(words: Collection[str], others: Collection[str]) -> tuple[str, str] | None:
    """Finds a word in the first and its negated form in the second: `available` and `unavailable`."""
    for word in words:
        if len(word) >= _MIN_PREFIXED_CHARS and word not in others:
            for prefix in _NEGATING:
                if prefix + word in others:
                    return word, prefix + word
    return None


# --- All and some ---------------------------------------------------------------------------------------------

_ALL_WORDS = _fold_all(_FILE.all)
_SOME_WORDS = _fold_all(_FILE.some)
_PART = re.compile(_FILE.part)
_EVERY_PERIOD = compile_pattern(_FILE.every_period)
_EVERY_NOUN = compile_pattern(_FILE.every_noun)


def find_all_word(text: str) -> str:
    """Returns the text's word for `all`, or ""; `every day` is a period and does not count."""
    words = map(fold_word, find_words(_EVERY_PERIOD.sub(" ", text)))
    return min(_ALL_WORDS.intersection(words), default="")


def find_every_noun(text: str) -> str:
    """Returns the noun that a text says `all` of, or ""."""
    match = _EVERY_NOUN.search(_EVERY_PERIOD.sub(" ", text))
    return match[1] if match else ""


def find_some_words(text: str) -> str:
    """Returns the text's words for `some` or for a condition, or ""; `14 of 22` counts too."""
    part = _PART.search(text)
    return min(_SOME_WORDS.intersection(map(fold_word, find_words(text))), default=part[0] if part else "")
