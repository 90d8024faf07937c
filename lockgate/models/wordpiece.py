# SPDX-License-Identifier: Apache-2.0
"""Splits text into the word pieces of an uncased BERT vocabulary; words such as [SEP] in a text are plain text."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from lockgate.detectors.letters import Letters

MAX_WORD_CHARS = 100  # longer words are unknown, as in the tokenizer that the models were trained with

_CONTROLS = frozenset({"Cc", "Cf", "Co", "Cs"})

# The blocks that BERT calls Chinese; kana and hangul are written with spaces or cut by the vocabulary.
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def _spell(letter: str) -> str:
    if letter in "\t\n\r":
        return " "
    if letter == "\ufffd" or unicodedata.category(letter) in _CONTROLS:
        return ""
    if letter.isspace():
        return " "
    parts = [one for one in unicodedata.normalize("NFD", letter) if unicodedata.category(one) != "Mn"]
    lower = "".join(f" {one} " if _is_punctuation(one) else one.lower() for one in parts)
    return f" {lower} " if _CJK.match(letter) else lower


def _is_punctuation(letter: str) -> bool:
    """Unicode's punctuation and all of ASCII that is neither letter, number nor space: `$` and `^` too."""
    return ("!" <= letter <= "~" and not letter.isalnum()) or unicodedata.category(letter).startswith("P")


class WordPieces:
    """A tokenizer with its vocabulary."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._letters = Letters(_spell)
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        try:
            self._unknown, self._start, self._end = (self._ids[mark] for mark in ("[UNK]", "[CLS]", "[SEP]"))
        except KeyError as error:
            raise ValueError(f"the vocabulary has no piece {error.args[0]}") from error
        self._longest = max(len(piece) for piece in self._ids)

    @property
    def ids(self) -> Mapping[str, int]:
        """The id of each piece."""
        return MappingProxyType(self._ids)

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """Returns the ids of a text between those of [CLS] and [SEP], at most `max_tokens`."""
        found = [self._start]
        for word in text.translate(self._letters).split():
            found.extend(self._cut(word))
            if len(found) >= max_tokens - 1:
                break
        return [*found[: max_tokens - 1], self._end]

    def list_pieces(self, text: str) -> list[int]:
        """Returns all ids of a text, without [CLS] and [SEP]."""
        return [piece for word in text.translate(self._letters).split() for piece in self._cut(word)]

    def _cut(self, word: str) -> list[int]:
        whole = self._ids.get(word)
        if whole is not None:
            return [whole]
        pieces = list(self._pieces(word)) if len(word) <= MAX_WORD_CHARS else [-1]
        return [self._unknown] if pieces[-1] < 0 else pieces

    def _pieces(self, word: str) -> Iterator[int]:
        """Yields the longest pieces from left to right; -1 where no piece fits, and then no more."""
        start, prefix = 0, ""
        while start < len(word):
            ends = range(min(len(word), start + self._longest), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._ids), 0)
            if not end:
                yield -1
                return
            yield self._ids[prefix + word[start:end]]
            start, prefix = end, "##"


def load_vocabulary(path: Path) -> WordPieces:
    """Reads a vocabulary file with one piece per line; raises OSError or ValueError."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        return WordPieces([line.rstrip("\n") for line in lines])
