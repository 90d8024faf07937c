# SPDX-License-Identifier: Apache-2.0
"""Helpers of stores: a queue per key, work that is finished despite cancellation, pruning, and health."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from lockgate.errors import UpstreamError
from lockgate.gate.values import Health

PRUNE_EVERY_S = 60.0

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


class _CountedLock(asyncio.Lock):
    """A lock that counts the tasks that hold it or wait for it. asyncio.Lock serves waiting tasks in their order."""

    users = 0


class Queues(Generic[Key]):
    """A queue per key, first come, first served. Keys that no task holds or waits for use no memory."""

    def __init__(self) -> None:
        self._locks: dict[Key, _CountedLock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def hold(self, key: Key) -> AsyncIterator[None]:
        """Holds the key, after all tasks that asked before."""
        lock = self._locks.setdefault(key, _CountedLock())
        lock.users += 1
        try:
            async with lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]


async def read_health(reading: Awaitable[object]) -> Health:
    """Returns the health of a store, from a read that runs now; raises errors that are no UpstreamError."""
    try:
        await reading
    except UpstreamError as error:
        return Health("UNHEALTHY", error.status, error.message)
    return Health("HEALTHY")


async def finish_despite_cancel(work: Awaitable[T]) -> T:
    """The result of the work. A cancelled caller waits for it first, so the work must end by itself."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # marks it as seen
        raise


@contextlib.asynccontextmanager
async def pruning(forget_old: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Calls `forget_old` once a minute; after a failure the next call tries again.

    UpstreamError is ignored; any other error goes to the loop's exception handler.
    """
    task = asyncio.create_task(_prune(forget_old))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _prune(forget_old: Callable[[], Awaitable[None]]) -> None:
    while True:
        [failure] = await asyncio.gather(forget_old(), return_exceptions=True)
        if failure is not None and not isinstance(failure, UpstreamError):
            context = {"message": "old sessions could not be pruned", "exception": failure}
            asyncio.get_running_loop().call_exception_handler(context)
        await asyncio.sleep(PRUNE_EVERY_S)
