# SPDX-License-Identifier: Apache-2.0
"""Readiness: whether everything that agents need has been reached once. What fails later does not undo it.

Decides when to ask again. Knows what is asked by name only.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lockgate.gate.values import Health
from lockgate.interfaces import Probe
from lockgate.task_groups import run_group
from lockgate.telemetry import Event, describe_exception, log_event

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
        told: set[str] = set()
        while self._missing:
            names = list(self._missing)
            answers = await asyncio.gather(*[_look(self._missing[name]) for name in names])
            for name, health in zip(names, answers, strict=True):
                if health.status == _WELL:
                    del self._missing[name]
                elif name not in told:
                    told.add(name)
                    _tell(name, health)
            if self._missing:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def _look(probe: Probe) -> Health:
    """How it is, if it answers in time; a plugin's may raise anything, and hangs nobody else."""
    try:
        async with asyncio.timeout(_PROBE_S):
            return await probe.probe(())
    except Exception as error:  # noqa: BLE001 - it is asked again
        return Health("UNKNOWN", 500, describe_exception(error))


def _tell(name: str, health: Health) -> None:
    why = {"reason": health.reason} if health.reason else {}
    log_event(Event.UNHEALTHY, logging.WARNING, part=name, status=health.status, code=health.code, **why)
