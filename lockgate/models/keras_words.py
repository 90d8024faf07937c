# SPDX-License-Identifier: Apache-2.0
"""From the pickle of a Keras tokenizer to a plain list of words, once, at set-up.

This module decides which words are kept and in which order: the number of a word is the number of its line. A pickle
can name code to be run; here nothing can be named but two kinds of dictionary, whole numbers, and the tokenizer itself,
in whose place stands an empty shell. It refuses to know what the words are for.
"""

import pickle
from collections import OrderedDict, defaultdict
from typing import IO, Any


class _Shell:
    """Stands in for the tokenizer: it has its values and nothing else."""

    word_index: object = None
    num_words: object = None


_ALLOWED: dict[tuple[str, str], type] = {
    ("keras.src.legacy.preprocessing.text", "Tokenizer"): _Shell,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("builtins", "int"): int,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise ValueError(f"the tokenizer names {module}.{name}, which has no place in a list of words") from None


def take_words(source: IO[bytes]) -> bytes:
    """The words that have a number below the tokenizer's limit, one per line, the first with number 1.

    Raises ValueError if the file is anything else than such a tokenizer.
    """
    words, limit = _read(source)
    kept = list(words)[: limit - 1]
    if [words[word] for word in kept] != list(range(1, len(kept) + 1)):
        raise ValueError("the words of the tokenizer are not numbered from 1")
    if any("\n" in word for word in kept):
        raise ValueError("a word of the tokenizer goes over a line's end")
    return "".join(f"{word}\n" for word in kept).encode()


def _read(source: IO[bytes]) -> tuple[dict[str, int], int]:
    try:
        shell = _Reader(source).load()
    except ValueError:
        raise
    except Exception as error:  # a torn pickle raises nearly anything
        raise ValueError(f"the tokenizer cannot be read: {error}") from error
    match shell:
        case _Shell(word_index=dict(words), num_words=int(limit)) if all(isinstance(word, str) for word in words):
            return words, limit
    raise ValueError("the file holds no tokenizer")
