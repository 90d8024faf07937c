# SPDX-License-Identifier: Apache-2.0
"""Selects the words of a question to search for, none of them an operator of a query."""

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

MAX_WORDS: Final = 32
MAX_WORD_CHARS: Final = 64
MAX_QUESTION_CHARS: Final = 8_192  # the text after these is not read

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
STOP_WORDS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(words.split())
    for language, words in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
_MIN_FOREIGN = 2  # one such word may be an English one: war, die, son


def find_search_words(text: str) -> list[str]:
    """At most 32 words to search for, each once, in order, without stop words unless all are stop words."""
    words = dict.fromkeys(_split(text))
    stop_words = _choose_language(words)
    kept = [word for word in words if word not in stop_words]
    return (kept or list(words))[:MAX_WORDS]


def _choose_language(words: Iterable[str]) -> frozenset[str]:
    """Returns the stop words of the language with the most matches; English if there are fewer than two."""
    found = frozenset(words)
    best = max(STOP_WORDS.values(), key=lambda known: len(found & known))  # the first of several
    return best if len(found & best) >= _MIN_FOREIGN else STOP_WORDS["en"]


def _split(text: str) -> list[str]:
    plain = unicodedata.normalize("NFC", text[:MAX_QUESTION_CHARS]).casefold()
    return [re.split("['’]", word)[0][:MAX_WORD_CHARS] for word in _WORD.findall(plain)]
