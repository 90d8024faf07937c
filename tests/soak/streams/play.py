# SPDX-License-Identifier: Apache-2.0
"""Plays many random streams against one server and gathers what the judge says of each, and what is left behind."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.soak.streams.client import Heard, listen_to
from tests.soak.streams.faulty import WHOLE
from tests.soak.streams.house import House, WatchedServer, open_house, wait_for_start, watched
from tests.soak.streams.laws import MODEL_CLOSES_S, Violation, judge
from tests.soak.streams.peers import Record
from tests.soak.streams.plans import ODDS, Odds, Plan, draw_plan
from tests.waits import HANG_S, until

THE_RUN = "the run"
_WARM_UP = 8
_SAY_EVERY_S = 5.0


class Patience(NamedTuple):
    """How long a server may take: to leave whoever speaks to nobody, to ask nothing more for a stream that is over, to
    come to rest, and to stop. The long runs measure that; in their slices only a hang lasts too long."""

    closes_s: float = MODEL_CLOSES_S
    grace_s: float = 1.0
    settle_s: float = 5.0
    stop_s: float = 5.0


STRICT = Patience()
UNHURRIED = Patience(HANG_S, HANG_S, HANG_S, HANG_S)


@dataclass(frozen=True)
class Game:
    """How many streams, how many of them at once, and the seed from which they are drawn."""

    streams: int
    seed: int
    at_once: int = 40
    variant: str = WHOLE
    odds: Odds = ODDS
    patience: Patience = STRICT
    say: Callable[[str], None] = lambda _words: None


@dataclass
class Report:
    """What a game has shown."""

    streams: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    events: int = 0
    violations: list[Violation] = field(default_factory=list)
    seconds: float = 0.0
    closing_s: list[float] = field(default_factory=list)
    memory_kb: list[int] = field(default_factory=list)

    def claim(self, holds: bool, law: str, words: str) -> None:
        """Something that must be so of the whole."""
        if not holds:
            self.violations.append(Violation(law, THE_RUN, words))

    def passed(self) -> int:
        """The streams of which no law was broken."""
        return self.streams - len({violation.stream for violation in self.violations} - {THE_RUN})

    def laws(self) -> Counter[str]:
        """How often each law was broken."""
        return Counter(violation.law for violation in self.violations)


async def play(game: Game, directory: Path) -> Report:
    """Start the services and the server, play, stop."""
    report = Report()
    async with open_house() as house:
        with watched(directory, house.config(), game.variant) as server:
            await wait_for_start(server)
            await Table(house, server.api_port, Report(), game.patience).play(
                [draw_plan(-n, game.seed) for n in range(1, _WARM_UP)], _WARM_UP
            )
            before = await _settle(house, server, game.patience)
            report.memory_kb.append(server.memory_kb())
            table = Table(house, server.api_port, report, game.patience)
            saying = asyncio.create_task(_say(game, report))
            started = time.monotonic()
            try:
                await table.play(
                    [draw_plan(number, game.seed, game.odds) for number in range(game.streams)], game.at_once
                )
            finally:
                saying.cancel()
            report.seconds = time.monotonic() - started
            await _look_at_rest(house, server, before, report, game.patience)
            report.memory_kb.append(server.memory_kb())
            await _stop(house, server, report, game.patience)
    return report


class Table:
    """Where streams are played against one server."""

    def __init__(self, house: House, port: int, report: Report, patience: Patience = STRICT) -> None:
        self._house = house
        self._port = port
        self._report = report
        self._patience = patience

    async def play(self, plans: list[Plan], at_once: int) -> None:
        waiting = iter(plans)

        async def take() -> None:
            for plan in waiting:
                await self._play_one(plan)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(take())

    async def _play_one(self, plan: Plan) -> None:
        record = self._house.books.admit(plan)
        heard = await listen_to(plan, self._port)
        if heard.end == "left":
            await self._wait_for_model(heard, record)
        report = self._report
        report.streams += 1
        report.events += len(heard.events)
        report.ends["fault" if plan.fault is not None else heard.end] += 1
        report.violations += judge(plan, heard, record, self._patience.closes_s)
        asyncio.get_running_loop().call_later(self._patience.grace_s, self._house.books.forget, plan)

    async def _wait_for_model(self, heard: Heard, record: Record) -> None:
        while not (record.model_closed_at or record.model_done_at):
            limit_s = self._patience.closes_s if record.model_requests else MODEL_CLOSES_S  # it may never be asked
            if time.monotonic() > heard.ended_at + limit_s:
                break
            await asyncio.sleep(0.005)
        if record.model_closed_at > heard.ended_at and not record.model_done_at:
            self._report.closing_s.append(record.model_closed_at - heard.ended_at)


@dataclass(frozen=True)
class _Rest:
    """What a server at rest holds: files beyond those that its idle connections to the services need, and tasks."""

    files: int
    tasks: int
    busy: int
    chunkers: int


async def _measure(house: House, server: WatchedServer) -> _Rest:
    tasks = await asyncio.to_thread(server.count_tasks)
    files = server.open_files() - len(house.books.open)
    return _Rest(files, tasks, house.books.busy(), house.chunkers.open)


async def _settle(house: House, server: WatchedServer, patience: Patience, wanted: _Rest | None = None) -> _Rest:
    end = time.monotonic() + patience.settle_s
    rest = await _measure(house, server)
    while time.monotonic() < end and (rest.busy or rest.chunkers or (wanted and not _is_back(rest, wanted))):
        await asyncio.sleep(0.2)
        rest = await _measure(house, server)
    return rest


def _is_back(rest: _Rest, wanted: _Rest) -> bool:
    return rest.files <= wanted.files and rest.tasks <= wanted.tasks


async def _look_at_rest(house: House, server: WatchedServer, before: _Rest, report: Report, patience: Patience) -> None:
    rest = await _settle(house, server, patience, before)
    report.claim(
        rest.tasks <= before.tasks, "tasks", f"{rest.tasks - before.tasks} tasks hang, of: {server.name_tasks()}"
    )
    report.claim(rest.files <= before.files, "connections", f"{rest.files - before.files} files are left open")
    report.claim(not rest.busy, "connections", f"{rest.busy} calls to services are left open")
    report.claim(not rest.chunkers, "connections", f"{rest.chunkers} chunker streams are left open")
    for complaint, count in Counter(house.books.complaints).items():
        report.claim(False, "services", f"{complaint} ({count} times)")


async def _stop(house: House, server: WatchedServer, report: Report, patience: Patience) -> None:
    started = time.monotonic()
    status = await asyncio.to_thread(server.stop)
    took = time.monotonic() - started
    report.claim(status == 0 and took < patience.stop_s, "stop", f"status {status} after {took:.1f} s")
    await until(lambda: not house.books.open, "the end of the server's connections")
    errors = [line for line in server.log() if line["level"] == "error"]
    report.claim(not errors, "log", f"{len(errors)} errors, the first: {errors[:1]}")
    words = server.error_path.read_text()
    report.claim(not words, "log", f"on standard error: {words[:500]}")


async def _say(game: Game, report: Report) -> None:
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        game.say(f"{report.streams} of {game.streams} streams, {len(report.violations)} violations")
