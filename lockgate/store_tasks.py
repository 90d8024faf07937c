# SPDX-License-Identifier: Apache-2.0
"""What stores share: a queue per key, work that is finished despite cancellation, pruning, and health."""

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
    """A lock that knows how many hold it or wait for it. The library's own serves those who wait in their order."""

    users = 0


class Queues(Generic[Key]):
    """A queue per key, first come, first served. Keys that no task holds or waits for take no room."""

    def __init__(self) -> None:
        self._locks: dict[Key, _CountedLock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def alone(self, key: Key) -> AsyncIterator[None]:
        """Hold the key, after all tasks that came before."""
        lock = self._locks.setdefault(key, _CountedLock())
        lock.users += 1
        try:
            async with lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]


async def look(reading: Awaitable[object]) -> Health:
    """The health of a store, by reading from it now; other errors than the store's are raised."""
    try:
        await reading
    except UpstreamError as error:
        return Health("UNHEALTHY", error.status, error.message)
    return Health("HEALTHY")


async def finish_despite_cancel(work: Awaitable[T]) -> T:
    """The result of the work. A caller that is cancelled waits for its end first; it must end by itself."""
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
    """Call `forget_old` once a minute; where that fails, the next call does it.

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
            told = {"message": "what is too old could not be pruned", "exception": failure}
            asyncio.get_running_loop().call_exception_handler(told)
        await asyncio.sleep(PRUNE_EVERY_S)
