# SPDX-License-Identifier: Apache-2.0
"""Spanish and German in English words, one by one, for classifiers that have learned from English.

This module decides in which language a text is read and what its words become. A gloss is no translation: the order of
words stays, unknown words stay, and the tables (`glosses/`) are a few hundred lines. It is enough for a classifier that
looks at which words stand near each other, and far better than the foreign words themselves, which such a classifier
cuts into pieces or takes for English ones. It refuses to know what a classifier looks for.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lockgate.detectors.language import LanguageModel, load_language_model, read_prose
from lockgate.detectors.plain_text import PlainText

ENGLISH = "en"
LANGUAGES = ("es", "de")
MIN_COVER = 0.5
"""So large a share of a text's words must be in a table that the language model did not choose."""
MIN_STEM = 3

_FOLDER = Path(__file__).parent / "gloss_words"
# Not in names of machines and files: nothing that touches a mark which occurs there.
_WORD = re.compile(r"(?<![\w./@:#-])[a-z]+(?:-[a-z]+)*(?![\w/@]|[.:][\w/])")
_UMLAUT_AS_TWO = re.compile(r"([aou])e")
_SMALL_ENGLISH = (
    "the to of and you is that it for this not be are have your if was with my they she her them will would what about "
    "who how there been should could does did had we our because than then which these those i'm i'll you're don't "
    "it's can't a i shut up all off out never at on by do"
)
# Words of two languages: they say nothing about which it is.
_HOMOGRAPHS = (
    "die hat war was will so man also not in an am is no he me has son sin come once pan pie red real final a do to "
    "hand gift rat mal tag bad boot fast hell kind links mist brief hut bin den dem des fat men are van sale use "
    "active original general actual social animal"
)


class Told(NamedTuple):
    """A text as a classifier of English reads it. `is_english`: it is, or has been put into English words."""

    text: str
    is_english: bool
    is_gloss: bool = False


class Gloss:
    """The table of one language."""

    def __init__(self, lines: str) -> None:
        self._words: dict[str, str] = {}
        self._stems: dict[str, str] = {}
        self._homographs = frozenset(_HOMOGRAPHS.split())
        phrases: dict[str, str] = {}
        for line in lines.splitlines():
            if line and not line.startswith("#"):
                english, _, forms = line.partition(" = ")
                for form in forms.split(", "):
                    kept = self._stems if form.endswith("*") else phrases if " " in form else self._words
                    kept.setdefault(form.removesuffix("*"), english)
        self._phrases: Mapping[str, str] = phrases
        longest_first = sorted(phrases, key=len, reverse=True)
        self._phrase = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")

    def find(self, word: str) -> str | None:
        """The English of a word; nothing if it is not known."""
        found = self._find(word)
        return found if found is not None or "e" not in word else self._find(_UMLAUT_AS_TWO.sub(r"\1", word))

    def _find(self, word: str) -> str | None:
        if word in self._words:
            return self._words[word]
        ends = range(len(word), MIN_STEM - 1, -1)
        return next((self._stems[word[:end]] for end in ends if word[:end] in self._stems), None)

    def render(self, plain: str) -> str:
        """A plain text with English words in place of those that are known."""
        # What a phrase became is set apart by a capital, so that it is not taken for a word of the language.
        marked = self._phrase.sub(lambda match: self._phrases[match[0]].upper(), plain)
        return _WORD.sub(lambda match: self.find(match[0]) or match[0], marked).lower()

    def cover(self, words: list[str]) -> float:
        """The share of words that are known."""
        telling = [word for word in words if word not in self._homographs]
        return sum(self.find(word) not in (None, word) for word in telling) / max(1, len(telling))


class Interpreter:
    """Tells classifiers of English what a text says."""

    def __init__(self, languages: LanguageModel, glosses: Mapping[str, Gloss]) -> None:
        self._languages = languages
        self._glosses = glosses
        self._small_english = frozenset(_SMALL_ENGLISH.split())
        self._plain = PlainText()

    def tell(self, text: str) -> Told:
        """The text itself if it is English, its gloss if there is a table, else the text as it is."""
        plain = self._plain.fold(text).decode()
        language = self._guess(text, plain)
        if language in self._glosses:
            return Told(self._glosses[language].render(plain), is_english=True, is_gloss=True)
        return Told(text, language == ENGLISH)

    def _guess(self, text: str, plain: str) -> str:
        prose = read_prose(text)
        language = self._languages.guess(prose)[0] if prose else ""
        if language == ENGLISH or language in self._glosses:
            return language
        words = _WORD.findall(plain)
        covers = {name: gloss.cover(words) for name, gloss in self._glosses.items()}
        best = max(covers, key=covers.__getitem__)
        english = sum(word in self._small_english for word in words) / max(1, len(words))
        if covers[best] >= MIN_COVER and covers[best] > english:
            return best
        return language or ENGLISH


def load_interpreter() -> Interpreter:
    """Reads the tables and the language model; raises ConfigError if the latter is not here."""
    glosses = {name: Gloss((_FOLDER / f"{name}.txt").read_text(encoding="utf-8")) for name in LANGUAGES}
    return Interpreter(load_language_model(), glosses)
