# SPDX-License-Identifier: Apache-2.0
"""Several calls at once, so many at a time; the first that fails ends the others and is what is told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lockgate.errors import LockgateError

T = TypeVar("T")


async def run_together(calls: Sequence[Callable[[], Awaitable[T]]], max_open: int) -> list[T]:
    """What the calls return, in their order."""
    if len(calls) == 1:
        return [await calls[0]()]
    permits = asyncio.Semaphore(max_open)

    async def run(call: Callable[[], Awaitable[T]]) -> T:
        async with permits:
            return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in calls]
    except ExceptionGroup as failures:
        raise _first_of(failures) from failures
    return [task.result() for task in tasks]


def _first_of(failures: ExceptionGroup[Exception]) -> Exception:
    """The first error that is ours, else the first of any."""
    first: Exception = failures.subgroup(LockgateError) or failures
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first
