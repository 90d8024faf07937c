# SPDX-License-Identifier: Apache-2.0
"""The clock of the running loop, in the hands of a test."""

import asyncio
from typing import Never

from tests.waits import forever


class LoopClock:
    """Goes as ever until it leaps: whatever waits for a time before that is due then. To be made before what waits."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + self._ahead_s  # type: ignore[method-assign]

    def leap(self, seconds: float = 3600.0) -> None:
        self._ahead_s += seconds

    async def run_out(self) -> Never:
        """A peer that takes longer than anybody waits."""
        self.leap()
        await forever()
