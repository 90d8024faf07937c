# SPDX-License-Identifier: Apache-2.0
"""Detectors whose model runs here and reads a text in overlapping windows, which begin and end at words.

One thread serves all streams. Calls that come while the model runs share the next run, fair between streams
(lockgate.gate.fair_queue). A run that fails is repeated for each caller alone.
"""

import asyncio
import os
import re
import sys
import threading
import unicodedata
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from lockgate.detectors.scans import at_most
from lockgate.errors import LockgateError, Unavailable
from lockgate.gate.fair_queue import BatchShare, FairQueue, QueuedCall
from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers
from lockgate.params import Params

# --- The shared model -----------------------------------------------------------------------------------------

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[list[Item]], Sequence[Result]]
_NICENESS = 5  # more, and the loop waits for a lock of a thread that gets no time


class ModelPool(Generic[Item, Result]):
    """Asks a model about items of many streams, a batch at a time; made by `open_pool`."""

    def __init__(self, run: Run[Item, Result], name: str, max_items: int, max_wait_s: float, max_waiting: int) -> None:
        self._run = run
        self._name = name
        self._max_items = max_items
        self._max_wait_s = max_wait_s
        # No call has more than a part of the room at once: a thousand chunks of one must not shut others out.
        self._window = max(1, min(max_waiting, max(max_items, max_waiting // 16)))
        self._queue: FairQueue[Item, Result] = FairQueue(max_waiting)
        self._asked = asyncio.Event()
        self._callers: dict[QueuedCall[Item, Result], asyncio.Future[LockgateError | None]] = {}
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, f"lockgate-{name}", _step_back)

    async def ask(self, items: Sequence[Item], whose: Hashable) -> list[Result]:
        """One result per item; `whose` stands for the stream. Raises Unavailable, or what the model raised."""
        results: list[Result] = []
        for start in range(0, len(items), self._window):
            results += await self._ask(items[start : start + self._window], whose)
        return results

    async def _ask(self, items: Sequence[Item], whose: Hashable) -> list[Result]:
        if self._is_closed:
            raise Unavailable(self._name, f"{self._name} is closed")
        call = self._queue.add(whose, items)
        if call is None:
            raise Unavailable(self._name, f"{self._name} is busy: too many texts wait for it")
        end = self._callers[call] = asyncio.get_running_loop().create_future()
        self._asked.set()
        try:
            error = await end
        finally:
            self._queue.cancel(call)
            del self._callers[call]
        if error is not None:
            raise error
        return call.results

    async def work(self) -> None:
        """Runs the model for batch after batch until it is cancelled; then fails the calls that wait."""
        try:
            while True:
                await self._asked.wait()
                await self._gather()
                await self._share(self._queue.take(self._max_items))
                if not self._queue.waiting:
                    self._asked.clear()
        finally:
            self._is_closed = True
            for call in self._callers:
                self._end(call, Unavailable(self._name, f"{self._name} is closed"))

    async def _gather(self) -> None:
        """Lets those who ask in this very moment share the run: not a wait, but a turn of the loop for each of them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._max_wait_s
        before = 0
        while before < self._queue.waiting < self._max_items and loop.time() < until:
            before = self._queue.waiting
            await asyncio.sleep(0)

    async def _share(self, batch: list[BatchShare[Item, Result]]) -> None:
        try:
            results = await self._run_in_thread([item for share in batch for item in share.items])
        except LockgateError as error:
            if len(batch) == 1:
                self._end(batch[0].call, error)
                return
            for share in batch:
                if share.call in self._callers:  # not the ones that left meanwhile, or failed with another share
                    await self._share([share])
            return
        start = 0
        for share in batch:
            if self._queue.add_results(share, results[start : start + len(share.items)]):
                self._end(share.call)
            start += len(share.items)

    async def _run_in_thread(self, items: list[Item]) -> Sequence[Result]:
        if not items:  # all of them left
            return ()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run_safely, items)

    def _run_safely(self, items: list[Item]) -> Sequence[Result]:
        try:
            results = self._run(items)
            count = len(results)
        except LockgateError:
            raise
        except Exception as error:  # a model's library may raise anything
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
        """Waits for the run that is going on; a thread cannot be stopped."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)


def _step_back() -> None:
    """Where processors are scarce the event loop comes before this thread. Only Linux knows threads one by one."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


@asynccontextmanager
async def open_pool(
    run: Run[Item, Result], *, name: str, max_items: int = 32, max_wait_s: float = 0.005, max_waiting: int = 4096
) -> AsyncIterator[ModelPool[Item, Result]]:
    """A model for all streams: `run` gets at most `max_items`, in a thread, and returns a result for each."""
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
"""More text than this is cut in a thread: about a millisecond of work."""
LONGER_LETTERS = 8
"""So many times dearer is text with letters that stand for several: one may be four words."""

LOOKBEHIND_CHARS = 128
MAX_WORD_CHARS = 40
MAX_WINDOW_WORDS = 512  # of those without a token any number would fit
MAX_OVERLAP_WORDS = MAX_WINDOW_WORDS // 4
# What stands between white space. Longer stretches, addresses or scripts without spaces, are cut anywhere.
_WORD = re.compile(rf"\S{{1,{MAX_WORD_CHARS}}}")


class Window(NamedTuple):
    """A piece of a text that a model reads at once."""

    start: int
    end: int
    text: str
    tokens: tuple[int, ...]


Tell: TypeAlias = Callable[[Window, Result], Detection | None]


class _Word(NamedTuple):
    """A word with its tokens, or with some of them if it has more than a window takes."""

    start: int
    end: int
    tokens: Sequence[int]


class TokenCutter(NamedTuple):
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
    """One request's reading: a shared model reads windows, and `tell` makes a finding of each result."""

    def __init__(self, cutter: TokenCutter, pool: ModelPool[Window, Result], tell: Tell[Result]) -> None:
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


class WindowDetector(Generic[Result]):
    """A detector of windows: `prepare` turns a request's parameters into the function that makes findings."""

    lookbehind_chars = LOOKBEHIND_CHARS

    def __init__(
        self,
        cutter: TokenCutter,
        pool: ModelPool[Window, Result],
        known: Sequence[str],
        prepare: Callable[[Params], Tell[Result]],
    ) -> None:
        self._cutter = cutter
        self._pool = pool
        self._known = known
        self._prepare = prepare

    def accept(self, params: Mapping[str, Any], headers: Headers) -> WindowReading[Result]:
        tell = self._prepare(Params.of_request(params, self._known))
        return WindowReading(self._cutter, self._pool, tell)
