# SPDX-License-Identifier: Apache-2.0
"""Time that passes when a test says so, and counts that have come to rest."""

import asyncio
from collections.abc import Callable

from tests.waits import linger


def skip_time(seconds: float = 3600.0) -> None:
    """Sets the clock of the running loop forward: whatever waits for a time before that is due at once."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def settle(count: Callable[[], int]) -> int:
    """A count that grows, once it does not any more."""
    before = -1
    while before != (now := count()):
        before = now
        await linger()
    return now
