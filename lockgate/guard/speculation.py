# SPDX-License-Identifier: Apache-2.0
"""Speculation: work that goes on while a check is under way, and ends at once when the check says no.

The check runs in a task beside the caller, who takes items through `next`. Nothing is thrown at the caller from
outside: a check that fails or says no is seen by the next call here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from lockgate.task_groups import run_group

T = TypeVar("T")


class Speculation:
    """One check and what may go on beside it; without a check everything has passed."""

    def __init__(self, check: Callable[[], Awaitable[bool]] | None) -> None:
        self._check = check
        self._passed: bool | None = True if check is None else None
        self._error: Exception | None = None
        self._is_known = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The check runs until the block ends."""
        if self._check is None:
            yield
            return
        async with run_group() as group:
            group.create_task(self._run(self._check))
            yield

    async def next(self, items: AsyncIterator[T]) -> T | None:
        """The next item; None at the end, or where the check says no while the item is awaited.

        Raises what the check raises.
        """
        if self._passed:
            return await anext(items, None)
        if self._is_known.is_set():
            self._raise_error()
            return None
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(items, None)
        except TimeoutError:
            if self._passed is not False:  # then it is another one's
                raise
            self._raise_error()
            return None
        finally:
            self._waiting = None

    async def has_passed(self) -> bool:
        """Wait for the check; whether it has passed. Raises what the check raises."""
        if self._passed is None:
            await self._is_known.wait()
        self._raise_error()
        return bool(self._passed)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _run(self, check: Callable[[], Awaitable[bool]]) -> None:
        try:
            self._passed = await check()
        except Exception as error:  # noqa: BLE001 - raised again to the caller
            self._passed, self._error = False, error
        self._is_known.set()
        if not self._passed and self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())
