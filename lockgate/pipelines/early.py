# SPDX-License-Identifier: Apache-2.0
"""An answer that was begun before it was known whether it may be given: nothing of it is heard before that is known.

Decides nothing about what is checked; whoever asks for the answer has to end it where the check has failed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from lockgate.pipelines.together import run_group

T = TypeVar("T")


async def take_first(items: AsyncIterator[T], check: Callable[[], Awaitable[bool]]) -> tuple[bool, T | None]:
    """Whether the check has passed, and the first of the items, if there is any; both go on at once.

    If it does not pass, whatever the items wait for is cancelled at once.
    """
    has_passed: bool | None = None
    is_known = asyncio.Event()
    first: T | None = None

    async def look(waiting: asyncio.Timeout) -> None:
        nonlocal has_passed
        has_passed = await check()
        is_known.set()
        if not has_passed:
            waiting.reschedule(asyncio.get_running_loop().time())

    async with run_group() as group:
        try:
            async with asyncio.timeout(None) as waiting:
                group.create_task(look(waiting))
                first = await anext(items, None)
                await is_known.wait()
        except TimeoutError:
            if has_passed is not False:  # then it is not ours
                raise
    return bool(has_passed), first
