# SPDX-License-Identifier: Apache-2.0
"""Runs several calls at once; the first failure cancels the other calls and is raised."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from lockgate.errors import LockgateError

T = TypeVar("T")


async def run_together(calls: Sequence[Callable[[], Awaitable[T]]], max_open: int) -> list[T]:
    """Results of the calls, in order; at most `max_open` run at once."""
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


@dataclass(slots=True)
class TaskGroup:
    """Tasks that belong to one block of code."""

    group: asyncio.TaskGroup
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def create_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task in the group."""
        self.tasks.append(self.group.create_task(work))


@asynccontextmanager
async def run_group() -> AsyncIterator[TaskGroup]:
    """Yields a group whose tasks are cancelled at the end of the block. Raises the first error, not a group."""
    left: GeneratorExit | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            group = TaskGroup(tasks)
            try:
                yield group
            except GeneratorExit as error:  # a generator around the block is closed: no failure
                left = error
            for task in group.tasks:
                task.cancel()
    except ExceptionGroup as failures:
        raise_first(failures)
    if left is not None:
        raise left


def raise_first(failures: ExceptionGroup[Exception]) -> NoReturn:
    """Raises one of the errors, a LockgateError if there is one; keeps its own context instead of the group."""
    first: Exception = failures.subgroup(LockgateError) or failures  # LockgateError before others
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    context = first.__context__
    try:
        raise first
    finally:
        first.__context__ = context


class HeldContext(Generic[T]):
    """A context that one task enters and exits, so that other tasks may open and close it in any order."""

    def __init__(self, opening: AbstractAsyncContextManager[T]) -> None:
        self._opening = opening
        self._opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()
        self._error: Exception | None = None  # of the exit

    async def open(self, group: asyncio.TaskGroup) -> T:
        """Enters the context in a task of the group; returns its value or raises its error."""
        group.create_task(self._hold())
        try:
            return await self._opened
        except BaseException:  # cancelled, perhaps after the context was entered
            self._closing.set()
            raise

    async def close(self) -> None:
        """Exits the context; raises the error of the exit."""
        self._closing.set()
        await self._closed.wait()
        if self._error is not None:
            raise self._error

    async def _hold(self) -> None:
        try:
            async with self._opening as value:
                if not self._opened.cancelled():
                    self._opened.set_result(value)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - raised by `open` or `close`
            if self._opened.done():
                self._error = error
            else:
                self._opened.set_exception(error)
        finally:
            self._closed.set()
