# SPDX-License-Identifier: Apache-2.0
"""Readiness is off until everything has been reached once and while sessions fail, and hides no error."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from lockgate.errors import LockgateError
from lockgate.gate.values import Health
from lockgate.server import health
from lockgate.server.health import Readiness
from tests.waits import HANG_S, forever, until


class ScriptedProbe:
    """Answers what its list says, the last of it for ever."""

    def __init__(self, *answers: Health | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0
        self.is_silent = False

    def go_on_with(self, answer: Health | Exception) -> None:
        self._answers = [answer]

    async def probe(self, headers: Sequence[tuple[str, str]]) -> Health:
        self.asked += 1
        if self.is_silent:
            await forever()
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


async def test_sessions_that_fail_later_undo_it_until_they_work_again_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lockgate")
    monkeypatch.setattr(health, "_WATCH_PAUSE_S", 0.0)
    sessions, model = ScriptedProbe(WELL), ScriptedProbe(WELL, ILL)
    readiness = Readiness({"models.main": model, "sessions": sessions})
    async with readiness.watch():
        await until(lambda: sessions.asked > 1, "the watch")
        assert readiness.is_ready
        for failure in (ILL, RuntimeError("a plugin")):
            sessions.go_on_with(failure)
            await until(lambda: not readiness.is_ready, "the failure")
            assert readiness.checks == {"sessions": "failing"}
            sessions.go_on_with(WELL)
            await until(lambda: readiness.is_ready, "the recovery")
    assert model.asked == 1
    assert [vars(one)["part"] for one in caplog.records] == ["sessions", "sessions"]


async def test_sessions_that_do_not_answer_count_as_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_WATCH_PAUSE_S", 0.0)
    sessions = ScriptedProbe(WELL)
    readiness = Readiness({"sessions": sessions})
    async with readiness.watch():
        await until(lambda: readiness.is_ready, "readiness")
        monkeypatch.setattr(health, "_LATE_S", 0.0)
        sessions.is_silent = True
        await until(lambda: not readiness.is_ready, "the silence")
        sessions.is_silent = False
        monkeypatch.setattr(health, "_LATE_S", HANG_S)
        await until(lambda: readiness.is_ready, "the recovery")
