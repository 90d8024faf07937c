# SPDX-License-Identifier: Apache-2.0
"""Detectors with a local model that reads a text in overlapping windows, which begin and end at words.

One thread runs the model for all streams. Calls that come meanwhile share the next run, fairly between streams
(lockgate.gate.fair_queue). A run that fails is repeated for each caller alone.
"""

import asyncio
import os
import re
import sys
import threading
import unicodedata
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from lockgate.detectors.scans import at_most
from lockgate.detectors.text_fold import fold
from lockgate.errors import LockgateError, Unavailable
from lockgate.gate.fair_queue import BatchShare, FairQueue, QueuedCall
from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers
from lockgate.params import Params

# --- The shared model -----------------------------------------------------------------------------------------

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[list[Item]], Sequence[Result]]
_NICENESS = 5  # with more, the event loop may wait for a lock of a thread that gets no processor time


class ModelPool(Generic[Item, Result]):
    """Runs a model on items of many streams, a batch at a time; made by `open_pool`."""

    def __init__(self, run: Run[Item, Result], name: str, max_items: int, max_wait_s: float, max_waiting: int) -> None:
        self._run = run
        self._name = name
        self._max_items = max_items
        self._max_wait_s = max_wait_s
        # A call queues only a part of its items at once: a thousand chunks of one must not block others.
        self._window = max(1, min(max_waiting, max(max_items, max_waiting // 16)))
        self._queue: FairQueue[Item, Result] = FairQueue(max_waiting)
        self._has_calls = asyncio.Event()
        self._callers: dict[QueuedCall[Item, Result], asyncio.Future[LockgateError | None]] = {}
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, f"lockgate-{name}", _step_back)

    async def ask(self, items: Sequence[Item], stream: Hashable) -> list[Result]:
        """Returns one result per item of a stream. Raises Unavailable or the model's LockgateError."""
        results: list[Result] = []
        for start in range(0, len(items), self._window):
            results += await self._ask(items[start : start + self._window], stream)
        return results

    async def _ask(self, items: Sequence[Item], stream: Hashable) -> list[Result]:
        if self._is_closed:
            raise Unavailable(self._name, f"{self._name} is closed")
        call = self._queue.add(stream, items)
        if call is None:
            raise Unavailable(self._name, f"{self._name} is busy: too many texts wait for it")
        end = self._callers[call] = asyncio.get_running_loop().create_future()
        self._has_calls.set()
        try:
            error = await end
        finally:
            self._queue.cancel(call)
            del self._callers[call]
        if error is not None:
            raise error
        return call.results

    async def work(self) -> None:
        """Runs the model on batch after batch until cancelled; then fails the waiting calls."""
        try:
            while True:
                await self._has_calls.wait()
                await self._gather()
                await self._share(self._queue.take(self._max_items))
                if not self._queue.waiting:
                    self._has_calls.clear()
        finally:
            self._is_closed = True
            for call in self._callers:
                self._end(call, Unavailable(self._name, f"{self._name} is closed"))

    async def _gather(self) -> None:
        """Lets calls made at this moment share the run, by turns of the event loop instead of a fixed wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._max_wait_s
        before = 0
        while before < self._queue.waiting < self._max_items and loop.time() < until:
            before = self._queue.waiting
            await asyncio.sleep(0)

    async def _share(self, batch: list[BatchShare[Item, Result]]) -> None:
        items = [item for share in batch for item in share.items]
        if not items:  # all callers have gone
            return
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._run_safely, items)
        except LockgateError as error:
            if len(batch) == 1:
                self._end(batch[0].call, error)
                return
            for share in batch:
                if share.call in self._callers:  # else its caller has gone, or another share of it failed
                    await self._share([share])
            return
        start = 0
        for share in batch:
            if self._queue.add_results(share, results[start : start + len(share.items)]):
                self._end(share.call)
            start += len(share.items)

    def _run_safely(self, items: list[Item]) -> Sequence[Result]:
        try:
            results = self._run(items)
            count = len(results)
        except LockgateError:
            raise
        except Exception as error:  # a model's library may raise any error
            raise Unavailable(self._name, f"{self._name} failed") from error
        if count != len(items):
            raise Unavailable(self._name, f"{self._name} failed: {len(items)} texts, {count} results")
        return results

    def _end(self, call: QueuedCall[Item, Result], error: LockgateError | None = None) -> None:
        if error is not None:
            self._queue.cancel(call)
        end = self._callers.get(call)
        if end is not None and not end.done():
            end.set_result(error)

    async def close(self) -> None:
        """Waits for the current run; a thread cannot be stopped."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)


def _step_back() -> None:
    """Lowers this thread's priority below the event loop's. Only Linux has priorities per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


@asynccontextmanager
async def open_pool(
    run: Run[Item, Result], *, name: str, max_items: int = 32, max_wait_s: float = 0.005, max_waiting: int = 4096
) -> AsyncIterator[ModelPool[Item, Result]]:
    """Opens a pool; `run` gets at most `max_items`, in a thread, and returns a result for each."""
    pool: ModelPool[Item, Result] = ModelPool(run, name, max_items, max_wait_s, max_waiting)
    task = asyncio.create_task(pool.work())
    try:
        yield pool
    finally:
        task.cancel()
        try:
            await asyncio.wait({task})
        finally:
            await pool.close()


# --- Windows --------------------------------------------------------------------------------------------------

INLINE_CHARS = 2_000
"""Longer text is cut in a thread: this much takes about a millisecond."""
LONGER_LETTERS = 8
"""Text with letters that expand takes up to so many times as long: one may become four words."""

LOOKBEHIND_CHARS = 128
MAX_WORD_CHARS = 40
MAX_WINDOW_WORDS = 512  # any number of words without a token would fit
MAX_OVERLAP_WORDS = MAX_WINDOW_WORDS // 4
# The text between white space. Longer parts, as in addresses or scripts without spaces, are cut anywhere.
_WORD = re.compile(rf"\S{{1,{MAX_WORD_CHARS}}}")


class Window(NamedTuple):
    """A piece of a text that a model reads at once."""

    start: int
    end: int
    text: str
    tokens: tuple[int, ...]


BuildFinding: TypeAlias = Callable[[Window, Result], Detection | None]


class _Word(NamedTuple):
    """A word with its tokens, or with some of them if they exceed a window."""

    start: int
    end: int
    tokens: Sequence[int]


class TokenCutter(NamedTuple):
    """Cuts a model's texts into windows: `tokenize` turns a word into its tokens."""

    tokenize: Callable[[str], Sequence[int]]
    max_tokens: int
    overlap_tokens: int

    def cut(self, text: str) -> Iterator[Window]:
        """Yields the windows of a text, in order; none if it is all white space."""
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
        """Returns the end of the window that begins at `begin`: at least one word fits."""
        room, last = self.max_tokens, min(len(words), begin + MAX_WINDOW_WORDS)
        end = begin
        while end < last and len(words[end].tokens) <= room:
            room -= len(words[end].tokens)
            end += 1
        return end

    def _step_back(self, words: Sequence[_Word], begin: int, end: int) -> int:
        """Returns the next window's start: it overlaps this one only as far as the next word still fits."""
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
    """Reads one request's texts in windows; `build` makes a finding of a window's result."""

    def __init__(self, cutter: TokenCutter, pool: ModelPool[Window, Result], build: BuildFinding[Result]) -> None:
        self._cutter = cutter
        self._pool = pool
        self._build_finding = build

    async def read(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        """Returns the findings of each excerpt."""
        if _is_quick(excerpts):
            windows = self._cut_all(excerpts)
        else:
            windows = await asyncio.to_thread(self._cut_all, excerpts)
        results = iter(await self._pool.ask([one for several in windows for one in several], self))
        found = [
            at_most(self._build_findings(excerpt, several, results))
            for excerpt, several in zip(excerpts, windows, strict=True)
        ]
        return [hits if len(hits) < 2 else _keep_surest(hits) for hits in found]

    def _cut_all(self, excerpts: Sequence[Excerpt]) -> list[list[Window]]:
        return [  # without windows of only the text before an excerpt: they were read already
            [one for one in self._cut(excerpt.before + excerpt.text) if one.end > len(excerpt.before)]
            for excerpt in excerpts
        ]

    def _cut(self, text: str) -> Iterator[Window]:
        """Yields the windows of a text; of one with odd characters those of its folded views, at their places in it."""
        views = fold(text)
        if not views:
            yield from self._cutter.cut(text)
        for view in views:
            for one in self._cutter.cut(view.text):
                start, end = view.places.locate(one.start, one.end)
                yield one._replace(start=start, end=end)

    def _build_findings(
        self, excerpt: Excerpt, windows: Sequence[Window], results: Iterator[Result]
    ) -> Iterator[Detection]:
        shift = len(excerpt.before)
        for window in windows:
            hit = self._build_finding(window, next(results))
            if hit is not None:
                text = (excerpt.before + excerpt.text)[window.start : window.end]
                yield hit._replace(start=window.start - shift, end=window.end - shift, text=text)


def _keep_surest(hits: Iterable[Detection]) -> list[Detection]:
    """Returns one finding for each place: two views of a text may give the same."""
    surest: dict[tuple[int, int], Detection] = {}
    for hit in hits:
        known = surest.setdefault((hit.start, hit.end), hit)
        if hit.score > known.score:
            surest[hit.start, hit.end] = hit
    return sorted(surest.values(), key=lambda hit: (hit.start, hit.end))


class WindowDetector(Generic[Result]):
    """A detector of windows: `prepare` turns a request's parameters into the function that makes findings."""

    lookbehind_chars = LOOKBEHIND_CHARS

    def __init__(
        self,
        cutter: TokenCutter,
        pool: ModelPool[Window, Result],
        known: Sequence[str],
        prepare: Callable[[Params], BuildFinding[Result]],
    ) -> None:
        self._cutter = cutter
        self._pool = pool
        self._known = known
        self._prepare = prepare

    def accept(self, params: Mapping[str, Any], headers: Headers) -> WindowReading[Result]:
        return WindowReading(self._cutter, self._pool, self._prepare(Params.of_request(params, self._known)))
