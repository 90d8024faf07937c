# SPDX-License-Identifier: Apache-2.0
"""Readiness: whether everything that agents need has been reached once. What fails later does not undo it.

Decides when to ask again. Knows what is asked by name only.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lockgate.interfaces import Probe
from lockgate.pipelines.together import run_group

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_PROBE_S = 5.0
_WELL = "HEALTHY"


class Readiness:
    """One process's view of what it needs."""

    def __init__(self, needed: Mapping[str, Probe]) -> None:
        self._missing = dict(needed)

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    @property
    def missing(self) -> tuple[str, ...]:
        """What has not been reached yet."""
        return tuple(self._missing)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Asks, again and again, what has not answered yet."""
        async with run_group() as group:
            group.create_task(self._ask())
            yield

    async def _ask(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._missing:
            names = list(self._missing)
            answers = await asyncio.gather(*[_is_well(self._missing[name]) for name in names])
            for name, is_well in zip(names, answers, strict=True):
                if is_well:
                    del self._missing[name]
            if self._missing:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def _is_well(probe: Probe) -> bool:
    """Whether it answers in time; a plugin's may raise anything, and hangs nobody else."""
    try:
        async with asyncio.timeout(_PROBE_S):
            return (await probe.probe(())).status == _WELL
    except Exception:  # noqa: BLE001 - it is asked again
        return False
