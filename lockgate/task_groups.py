# SPDX-License-Identifier: Apache-2.0
"""Several calls at once; the first that fails ends the others and is what is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

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
        raise_first(failures)
    return [task.result() for task in tasks]


class Group:
    """Tasks that belong to one block of code."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: list[asyncio.Task[None]] = []

    def create_task(self, work: Coroutine[Any, Any, None]) -> None:
        """One more task."""
        self._tasks.append(self._group.create_task(work))

    def cancel(self) -> None:
        """End those that are still under way."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def run_group() -> AsyncIterator[Group]:
    """Tasks that end with the block: what is still under way then is cancelled. The first error is raised as it is."""
    left: GeneratorExit | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            group = Group(tasks)
            try:
                yield group
            except GeneratorExit as error:  # a generator around the block is closed: no failure
                left = error
            group.cancel()
    except ExceptionGroup as failures:
        raise_first(failures)
    if left is not None:
        raise left


def raise_first(failures: ExceptionGroup[Exception]) -> NoReturn:
    """Raise one of them as it was; what led to it stays known, and the group does not take its place."""
    first = _first_of(failures)
    context = first.__context__
    try:
        raise first
    finally:
        first.__context__ = context


def _first_of(failures: ExceptionGroup[Exception]) -> Exception:
    """The first error that is ours, else the first of any."""
    first: Exception = failures.subgroup(LockgateError) or failures
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first
