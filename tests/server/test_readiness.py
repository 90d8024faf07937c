# SPDX-License-Identifier: Apache-2.0
"""Readiness is off until everything has been reached once, and hides nobody's error."""

import asyncio
from collections.abc import Sequence

import pytest

from lockgate.errors import LockgateError
from lockgate.gate.values import Health
from lockgate.server.health import Readiness
from tests.waits import until


class ScriptedProbe:
    """Answers what its list says, the last of it for ever."""

    def __init__(self, *answers: Health | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def probe(self, headers: Sequence[tuple[str, str]]) -> Health:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


WELL, ILL = Health("HEALTHY"), Health("UNHEALTHY", 503)


async def test_it_is_ready_when_each_has_been_reached_once() -> None:
    late, bad = ScriptedProbe(ILL, WELL, ILL), ScriptedProbe(RuntimeError("a plugin"), WELL)
    readiness = Readiness({"models.main": late, "sessions": bad, "sources.docs": ScriptedProbe(WELL)})
    assert readiness.missing == ("models.main", "sessions", "sources.docs")
    async with readiness.watch():
        await until(lambda: readiness.is_ready, "readiness")
    assert late.asked == 2
    assert not readiness.missing


async def test_an_error_beside_it_stays_what_it_is() -> None:
    with pytest.raises(LockgateError, match="as it was"):
        async with Readiness({"x": ScriptedProbe(ILL)}).watch():
            await asyncio.sleep(0)
            raise LockgateError("as it was")


async def test_without_needs_it_is_ready_at_once() -> None:
    assert Readiness({}).is_ready
