# SPDX-License-Identifier: Apache-2.0
"""Plays many random streams under policies against one server and gathers what the judge says."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.policies.client import listen_to
from tests.soak.policies.expected import list_masks
from tests.soak.policies.lanes import JSON, PLAIN
from tests.soak.policies.laws import Played, judge
from tests.soak.policies.peers import PolicyBooks
from tests.soak.policies.plans import Plan, count_needed, draw_plan, list_due
from tests.soak.policies.script import write_script
from tests.soak.policies.serving import APART, Place, ServedReport, open_server
from tests.soak.policies.settings import MASKING
from tests.soak.policies.stopping import LONGEST_S, Stopped, draw_stop, judge_stopped, play_stop

_STREAM_S = 0.3
_SAY_EVERY_S = 5.0
_MARGIN_S = 8.0  # for what is under way when the time is nearly over, and for the end
_MOST_KEPT = 60
_STOP_PACE = 0.1  # what a detector takes is not the server's time
Cut = tuple[str, str, int]


@dataclass(frozen=True)
class Game:
    """How many streams, how many of them at once, under which policies, and the seed from which they are drawn.

    No further stream begins when `seconds` are nearly over.
    """

    streams: int
    seed: int
    at_once: int = 40
    names: Sequence[str] = MASKING
    place: Place = APART
    longest_s: float = LONGEST_S
    seconds: float = 1800.0
    say: Callable[[str], None] = lambda _words: None


@dataclass
class PolicyReport(ServedReport):
    """What a game has shown, with some streams as they were played.

    `cut`: the places at which hidden marks were cut. `shared`: of the calls to detectors, how many had several texts.
    """

    played: list[Played] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)
    cut: set[Cut] = field(default_factory=set)
    hidden: int = 0
    asked: int = 0
    shared: int = 0


async def play(game: Game, directory: Path) -> PolicyReport:
    """Start the services and the server, play, stop."""
    report = PolicyReport()

    async def play_one(number: int, books: PolicyBooks, port: int) -> None:
        await _play_one(draw_plan(number, game.seed, game.names), books, port, report)

    await _play_all(game, directory, report, play_one)
    if game.names is MASKING and report.streams >= count_needed(game.seed):
        uncut = list_uncut(report.cut, game.seed)
        report.claim(not uncut, "cuts", f"{len(uncut)} places were never cut: {uncut[:5]}")
    return report


async def play_stops(game: Game, directory: Path) -> PolicyReport:
    """The same with streams that are to be ended; they are judged when all is over, for the clock is read meanwhile."""
    report = PolicyReport()

    async def play_one(number: int, books: PolicyBooks, port: int) -> None:
        books.pace = _STOP_PACE
        report.stopped.append(await play_stop(draw_stop(number, game.seed), books, port, game.longest_s))
        report.streams += 1

    await _play_all(game, directory, report, play_one)
    for one in report.stopped:
        report.violations += judge_stopped(one, game.longest_s)
        report.ends[one.heard.end] += 1
        report.events += len(one.heard.events)
    report.closing_s = [one.closing_s for one in report.stopped if one.closing_s is not None]
    return report


async def _play_all(
    game: Game, directory: Path, report: PolicyReport, play_one: Callable[[int, PolicyBooks, int], Awaitable[None]]
) -> None:
    async with open_server(game.place, directory, report, game.seed) as (books, port):
        started = time.monotonic()
        numbers = iter(range(game.streams))

        async def take() -> None:
            for number in numbers:
                if time.monotonic() - started > game.seconds - _MARGIN_S:
                    return
                await play_one(number, books, port)

        saying = asyncio.create_task(_say(game, report))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(game.at_once):
                    group.create_task(take())
        finally:
            saying.cancel()
        report.seconds = time.monotonic() - started
        report.asked, report.shared = books.asked, books.shared
    if report.streams < game.streams:
        game.say(f"no time is left after {report.streams} of {game.streams} streams")


async def _play_one(plan: Plan, books: PolicyBooks, port: int, report: PolicyReport) -> None:
    record = books.expect(plan, write_script(plan, _STREAM_S), is_broken=plan.is_broken)
    heard = await listen_to(plan, port)
    books.dismiss(plan)
    report.claim(record.requests == 1, "services", f"{plan.id}: the model was asked {record.requests} times")
    played = Played(plan, heard, record.prompt)
    violations = judge(played)
    report.streams += 1
    report.events += len(heard.events)
    report.ends["failed" if plan.fails else heard.end] += 1
    report.violations += violations
    if not violations:
        report.cut |= list_cuts(plan)
        report.hidden += sum(len(list_masks(lane, plan.policy)) for lane in plan.lanes)
    if len(report.played) < _MOST_KEPT:
        report.played.append(played)


def list_cuts(plan: Plan) -> set[Cut]:
    """Where marks were cut under a policy that reads everything."""
    is_all = plan.policy.name.startswith("all-")
    return {one for lane in plan.lanes for one in lane.list_cut_places()} if is_all else set()


def list_uncut(cut: Iterable[Cut], seed: int) -> list[Cut]:
    """The places of marks at which none was cut."""
    due = {(slot.mark.name, form, slot.place) for form in (PLAIN, JSON) for slot in list_due(seed, form)}
    return sorted(due - set(cut))


async def _say(game: Game, report: PolicyReport) -> None:
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        game.say(f"{report.streams} of {game.streams} streams, {len(report.violations)} violations")
