# SPDX-License-Identifier: Apache-2.0
"""Cuts texts into windows of as many tokens as a model takes, each overlapping the one before.

Windows begin and end at words, so that a sentence is whole in one of them. A text that fits is one window without its
outer white space. Every token is in a window, and the work grows with the text only.
"""

import asyncio
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from lockgate.detectors.pooling import ModelPool
from lockgate.detectors.scanning import at_most
from lockgate.gate.values import Detection, Excerpt

INLINE_CHARS = 2_000
"""More text than this is cut in a thread: about a millisecond of work."""
LONGER_LETTERS = 8
"""So many times dearer is text with letters that stand for several: one may be four words."""

LOOKBEHIND_CHARS = 128
MAX_WORD_CHARS = 40
MAX_WINDOW_WORDS = 512  # of those without a token any number would fit
MAX_OVERLAP_WORDS = MAX_WINDOW_WORDS // 4
# What stands between white space. Longer stretches, addresses or scripts without spaces, are cut anywhere.
_WORD = re.compile(rf"\S{{1,{MAX_WORD_CHARS}}}")

Result = TypeVar("Result")


class Window(NamedTuple):
    """A piece of a text that a model reads at once."""

    start: int
    end: int
    text: str
    tokens: tuple[int, ...]


class _Word(NamedTuple):
    """A word with its tokens, or with some of them if it has more than a window takes."""

    start: int
    end: int
    tokens: Sequence[int]


class Cutter(NamedTuple):
    """How a model's texts are cut: `tokenize` turns a word into its tokens, however many."""

    tokenize: Callable[[str], Sequence[int]]
    max_tokens: int
    overlap_tokens: int

    def cut(self, text: str) -> Iterator[Window]:
        """The windows of a text, in order; none if it is all white space."""
        words = list(self._list_words(text))
        begin = 0
        while begin < len(words):
            end = self._fill(words, begin)
            start, stop = words[begin].start, words[end - 1].end
            tokens = tuple(token for word in words[begin:end] for token in word.tokens)
            yield Window(start, stop, text[start:stop], tokens)
            if end == len(words):
                return
            begin = self._step_back(words, begin, end)

    def _list_words(self, text: str) -> Iterator[_Word]:
        for match in _WORD.finditer(text):
            tokens = self.tokenize(match[0])
            for at in range(0, len(tokens) or 1, self.max_tokens):
                yield _Word(match.start(), match.end(), tokens[at : at + self.max_tokens])

    def _fill(self, words: Sequence[_Word], begin: int) -> int:
        """Where a window ends that begins there: behind one word at least, for each fits alone."""
        room, last = self.max_tokens, min(len(words), begin + MAX_WINDOW_WORDS)
        end = begin
        while end < last and len(words[end].tokens) <= room:
            room -= len(words[end].tokens)
            end += 1
        return end

    def _step_back(self, words: Sequence[_Word], begin: int, end: int) -> int:
        """Where the window after begins: so far back only that the next word finds room in it."""
        room = min(self.overlap_tokens, self.max_tokens - len(words[end].tokens))
        first = max(begin + 1, end - MAX_OVERLAP_WORDS)
        while end > first and len(words[end - 1].tokens) <= room:
            end -= 1
            room -= len(words[end].tokens)
        return end


def _is_quick(excerpts: Sequence[Excerpt]) -> bool:
    chars = sum(len(excerpt.before) + len(excerpt.text) for excerpt in excerpts)
    if chars > INLINE_CHARS or chars * LONGER_LETTERS <= INLINE_CHARS:
        return chars <= INLINE_CHARS
    texts = [text for excerpt in excerpts for text in excerpt]
    return all(text.isascii() or unicodedata.is_normalized("NFKC", text) for text in texts)


class WindowReading(Generic[Result]):
    """One request's reading: excerpts become windows, a shared model reads them, `tell` makes findings of its results.

    Of a finding only what is told counts, its place is that of its window.
    """

    def __init__(
        self, cutter: Cutter, pool: ModelPool[Window, Result], tell: Callable[[Window, Result], Detection | None]
    ) -> None:
        self._cutter = cutter
        self._pool = pool
        self._tell = tell

    async def read(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        """The findings of each excerpt."""
        if _is_quick(excerpts):
            windows = self._cut_all(excerpts)
        else:
            windows = await asyncio.to_thread(self._cut_all, excerpts)
        results = iter(await self._pool.ask([one for several in windows for one in several], self))
        return [
            at_most(self._tell_all(excerpt, several, results))
            for excerpt, several in zip(excerpts, windows, strict=True)
        ]

    def _cut_all(self, excerpts: Sequence[Excerpt]) -> list[list[Window]]:
        return [list(self._cut(excerpt)) for excerpt in excerpts]

    def _cut(self, excerpt: Excerpt) -> Iterator[Window]:
        """Without windows of what only stands before: those were read with the chunk before."""
        ours = len(excerpt.before)
        return (one for one in self._cutter.cut(excerpt.before + excerpt.text) if one.end > ours)

    def _tell_all(self, excerpt: Excerpt, windows: Sequence[Window], results: Iterator[Result]) -> Iterator[Detection]:
        shift = len(excerpt.before)
        for window in windows:
            hit = self._tell(window, next(results))
            if hit is not None:
                yield hit._replace(start=window.start - shift, end=window.end - shift, text=window.text)
