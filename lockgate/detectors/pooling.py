# SPDX-License-Identifier: Apache-2.0
"""A model that runs here, shared by all streams: one thread, one run for many chunks.

A call that finds the model idle starts at once; calls that come while it runs share the next run, fair between streams
(lockgate.gate.sharing). A run that fails is repeated for each caller alone.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from lockgate.errors import LockgateError, Unavailable
from lockgate.gate.sharing import Call, FairQueue, Share

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[list[Item]], Sequence[Result]]
_NICENESS = 5  # more, and the loop waits for a lock that a thread holds which nobody lets run


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
        self._callers: dict[Call[Item, Result], asyncio.Future[LockgateError | None]] = {}
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
            self._queue.leave(call)
            del self._callers[call]
        if error is not None:
            raise error
        return call.results

    async def work(self) -> None:
        """Run after run, until it is cancelled; then nobody is asked any more."""
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

    async def _share(self, batch: list[Share[Item, Result]]) -> None:
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
            if self._queue.give(share, results[start : start + len(share.items)]):
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
        except Exception as error:  # whatever a model's library raises
            raise Unavailable(self._name, f"{self._name} failed") from error
        if count != len(items):
            raise Unavailable(self._name, f"{self._name} failed: {len(items)} texts, {count} results")
        return results

    def _end(self, call: Call[Item, Result], error: LockgateError | None = None) -> None:
        if error is not None:
            self._queue.leave(call)
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
    """A model for all streams; `run` is called in a thread with at most `max_items`, and gives one result for each.

    At most `max_waiting` items wait; beyond that calls are refused. A run is put off by at most `max_wait_s`, and only
    while more calls keep coming in.
    """
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
