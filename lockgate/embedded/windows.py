# SPDX-License-Identifier: Apache-2.0
"""Texts as small models read them: in windows of so many tokens, one after the other, each a little into the next.

This module decides where a window begins and ends: at words, never more tokens than the model takes, and what the end
of one has seen the next sees again, so that a sentence is whole in one of them. A text that fits is one window without
its outer white space. It refuses to know what a token is, and what a model finds.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from lockgate.core.values import Detection, Excerpt
from lockgate.embedded.pooling import ModelPool
from lockgate.embedded.scanning import at_most

INLINE_CHARS = 4_000
"""More text than this is cut in a thread: about a millisecond of work."""

LOOKBEHIND_CHARS = 128
MAX_WORD_CHARS = 40
# What stands between white space. Longer stretches, addresses or scripts without spaces, are cut anywhere.
_WORD = re.compile(rf"\S{{1,{MAX_WORD_CHARS}}}")

Result = TypeVar("Result")


class Window(NamedTuple):
    """A piece of a text that a model reads at once."""

    start: int
    end: int
    text: str
    tokens: tuple[int, ...]


class Cutter(NamedTuple):
    """How a model's texts are cut: `tokenize` turns a word into its tokens, fewer than `max_tokens`."""

    tokenize: Callable[[str], Sequence[int]]
    max_tokens: int
    overlap_tokens: int

    def cut(self, text: str) -> Iterator[Window]:
        """The windows of a text, in order; none if it is all white space."""
        words = [(match.start(), match.end(), self.tokenize(match[0])) for match in _WORD.finditer(text)]
        begin = 0
        while begin < len(words):
            end, count = begin, 0
            while end < len(words) and count + len(words[end][2]) <= self.max_tokens:
                count += len(words[end][2])
                end += 1
            start, stop = words[begin][0], words[end - 1][1]
            tokens = tuple(token for word in words[begin:end] for token in word[2])
            yield Window(start, stop, text[start:stop], tokens)
            if end == len(words):
                return
            begin = self._step_back(words, begin, end)

    def _step_back(self, words: Sequence[tuple[int, int, Sequence[int]]], begin: int, end: int) -> int:
        count = 0
        while end - 1 > begin and count + len(words[end - 1][2]) <= self.overlap_tokens:
            end -= 1
            count += len(words[end][2])
        return end


class WindowReading(Generic[Result]):
    """One request's reading: excerpts become windows, a shared model reads them, `tell` makes findings of its results.

    Of a finding only what is told counts, its place is that of its window.
    """

    def __init__(
        self,
        cutter: Cutter,
        pool: ModelPool[Window, Result],
        tell: Callable[[Window, Result], Detection | None],
    ) -> None:
        self._cutter = cutter
        self._pool = pool
        self._tell = tell

    async def read(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        """The findings of each excerpt."""
        if sum(len(excerpt.before) + len(excerpt.text) for excerpt in excerpts) > INLINE_CHARS:
            windows = await asyncio.to_thread(self._cut_all, excerpts)
        else:
            windows = self._cut_all(excerpts)
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
