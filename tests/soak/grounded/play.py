# SPDX-License-Identifier: Apache-2.0
"""Plays rounds of grounded answers against one server and gathers what the judge says, and what is left behind."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.server.http_client import call
from tests.soak.crowd import IDLE_S, MAX_GROWTH
from tests.soak.grounded.faulty import Played
from tests.soak.grounded.laws import judge
from tests.soak.grounded.peers import Call, SpaceBooks, SpacePeer
from tests.soak.grounded.plans import MANNERS, ChatPlan, Manners, Places, draw_wave
from tests.soak.streams.client import Door, Heard, listen_to
from tests.soak.streams.faulty import WHOLE
from tests.soak.streams.house import WatchedServer, wait_for_start, watched
from tests.soak.streams.peers import HOST, listen
from tests.soak.streams.play import STRICT, Patience, Report
from tests.waits import until

_DOOR = Door("/api/v1/chat/stream", "x-correlation-id")
_LOOK_S = 0.15  # how long a client that has left is watched, for calls that would only begin then
_STAGGER_S = 0.03
_WARM_UP = 8
_CONFIG = """
detectors:
  mail: {{type: text_contents, embedded: pii, chunker_id: sentence, options: {{entities: [EmailAddress]}}}}
  words: {{type: text_contents, embedded: keywords, chunker_id: sentence, options: {{keywords: [puddle]}}}}
server: {{host: 127.0.0.1}}
aggregator:
  retrieval_timeout_s: {game.retrieval_s}
  generation_timeout_s: {game.generation_s}
  model_streaming: true
"""


@dataclass(frozen=True)
class Game:
    """How many requests, how many of them at once, how often, and the seed from which they are drawn.

    Every round has the same requests, or their memory could not be compared. Models are slow, as they are, so that
    many streams are open and few begin. The limits are the server's for a source and for the model. No further round
    begins when `seconds` are nearly over.
    """

    requests: int
    seed: int
    at_once: int = 200
    rounds: int = 3
    retrieval_s: float = 3.0
    generation_s: float = 10.0
    idle_s: float = IDLE_S
    variant: str = WHOLE
    manners: Manners = MANNERS
    patience: Patience = STRICT
    seconds: float = 1800.0
    say: Callable[[str], None] = lambda _words: None


@dataclass
class GroundedReport(Report):
    """What a game has shown, with the requests of its first round as they were played.

    `starved`: the share of its processor time for which the server had to wait. What others do on the machine makes
    it slow to notice who has left.
    """

    played: list[Played] = field(default_factory=list)
    most_open: int = 0
    starved: float = 0.0


async def play(game: Game, directory: Path) -> GroundedReport:
    """Start the endpoints and the server, play, stop."""
    report = GroundedReport()
    async with open_spaces() as (books, places):
        with watched(directory, _CONFIG.format(game=game), game.variant) as server:
            await wait_for_start(server)
            warming = Table(books, server.api_port, GroundedReport(), game.patience)
            brisk = game.manners._replace(model=0.0, leave=0.0, source_s=0.1, model_s=0.1)
            await warming.play(draw_wave(_WARM_UP, game.seed + 1, places, brisk), _WARM_UP)
            before = await _settle(books, server, game.patience)
            started = time.monotonic()
            plans = draw_wave(game.requests, game.seed, places, game.manners)
            await _play_rounds(game, plans, Table(books, server.api_port, report, game.patience), server)
            report.seconds = time.monotonic() - started
            await _look_at_rest(books, server, before, report, game.patience)
            await _look_at_life(server, report)
            await _stop(books, server, report, game.patience)
    return report


@asynccontextmanager
async def open_spaces() -> AsyncIterator[tuple[SpaceBooks, Places]]:
    """All endpoints at one address, and an address at which nobody listens."""
    books = SpaceBooks()
    server, port = await listen(lambda: SpacePeer(books))
    try:
        with _dead_port() as dead_port:
            yield books, Places(f"http://{HOST}:{port}", f"http://{HOST}:{dead_port}")
    finally:
        server.close()
        for peer in list(books.open):
            peer.transport.abort()


@contextmanager
def _dead_port() -> Iterator[int]:
    """Taken, so that nobody else gets it, but nobody listens."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield taken.getsockname()[1]


class Table:
    """Where requests are played against one server."""

    def __init__(self, books: SpaceBooks, port: int, report: GroundedReport, patience: Patience) -> None:
        self._books = books
        self._port = port
        self._patience = patience
        self._open = 0
        self.report = report

    async def play(self, plans: list[ChatPlan], at_once: int) -> list[Played]:
        """So many at once until all are played; the first of them do not come in the same instant."""
        waiting = iter(plans)
        played: list[Played] = []

        async def take(after_s: float) -> None:
            await asyncio.sleep(after_s)
            played.extend([await self._play_one(plan) for plan in waiting])  # each takes the next that nobody has

        async with asyncio.TaskGroup() as group:
            for number in range(at_once):
                group.create_task(take(number * _STAGGER_S))
        return played

    async def _play_one(self, plan: ChatPlan) -> Played:
        calls = self._books.expect(plan)
        report = self.report
        self._open += 1
        report.most_open = max(report.most_open, self._open)
        heard = await listen_to(plan, self._port, _DOOR)
        self._open -= 1
        await self._wait_for_calls(heard, calls)
        report.streams += 1
        report.events += len(heard.events)
        report.ends[heard.events[-1].name if heard.end == "complete" and heard.events else heard.end] += 1
        report.violations += judge(plan, heard, calls, self._patience.closes_s)
        asyncio.get_running_loop().call_later(self._patience.grace_s, self._books.dismiss, plan)
        return Played(plan, heard, calls)

    async def _wait_for_calls(self, heard: Heard, calls: list[Call]) -> None:
        has_left = heard.end == "left"
        soonest_at, latest_at = heard.ended_at + _LOOK_S * has_left, heard.ended_at + self._patience.closes_s
        while (now := time.monotonic()) < latest_at:
            if now >= soonest_at and all(call.ended_at for call in calls):
                break
            await asyncio.sleep(0.01)
        if has_left:
            ends = [call.ended_at or latest_at for call in calls]
            self.report.closing_s += [end_at - heard.ended_at for end_at in ends if end_at > heard.ended_at]


async def _play_rounds(game: Game, plans: list[ChatPlan], table: Table, server: WatchedServer) -> None:
    report = table.report
    started = time.monotonic()
    before = _read_shares(server)
    for number in range(1, game.rounds + 1):
        taken_s = time.monotonic() - started
        if taken_s + 2 * taken_s / number > game.seconds:
            game.say(f"no time is left after {number - 1} of {game.rounds} rounds")
            break
        played = await table.play(plans, game.at_once)
        report.played = report.played or played
        await asyncio.sleep(game.idle_s)
        report.memory_kb.append(server.memory_kb())
        memory = f"{report.memory_kb[-1] / 1000:.1f} MB resident afterwards"
        game.say(f"round {number}: {report.streams} streams, {len(report.violations)} violations, {memory}")
    used, waited = (now - then for now, then in zip(_read_shares(server), before, strict=True))
    report.starved = waited / used
    first, last = report.memory_kb[0], report.memory_kb[-1]
    report.claim(last <= first * MAX_GROWTH, "memory", f"resident memory grew from {first} to {last} kB")


def _read_shares(server: WatchedServer) -> tuple[int, int]:
    """How long its main thread was on a processor, and how long it waited for one."""
    used, waited, _ = Path(f"/proc/{server.process.pid}/schedstat").read_text().split()
    return int(used), int(waited)


class _Rest(NamedTuple):
    """What a server at rest holds: tasks, files beyond its idle connections to the endpoints, and open calls."""

    tasks: int
    files: int
    busy: int


async def _settle(books: SpaceBooks, server: WatchedServer, patience: Patience, wanted: _Rest | None = None) -> _Rest:
    end = time.monotonic() + patience.settle_s
    while True:
        tasks = await asyncio.to_thread(server.count_tasks)
        rest = _Rest(tasks, server.open_files() - len(books.open), books.busy())
        is_back = wanted is None or (rest.tasks <= wanted.tasks and rest.files <= wanted.files)
        if (is_back and not rest.busy) or time.monotonic() > end:
            return rest
        await asyncio.sleep(0.2)


async def _look_at_rest(
    books: SpaceBooks, server: WatchedServer, before: _Rest, report: GroundedReport, patience: Patience
) -> None:
    rest = await _settle(books, server, patience, before)
    report.claim(
        rest.tasks <= before.tasks, "tasks", f"{rest.tasks - before.tasks} tasks hang, of: {server.name_tasks()}"
    )
    report.claim(rest.files <= before.files, "connections", f"{rest.files - before.files} files are left open")
    report.claim(not rest.busy, "connections", f"{rest.busy} calls to endpoints are left open")
    for complaint, count in Counter(books.complaints).items():
        report.claim(False, "endpoints", f"{complaint} ({count} times)")


async def _look_at_life(server: WatchedServer, report: GroundedReport) -> None:
    """It still answers."""
    health = await call(server.api_port, "/health", method="GET")
    report.claim(health.status == 200, "life", f"/health answered {health.status}")


async def _stop(books: SpaceBooks, server: WatchedServer, report: GroundedReport, patience: Patience) -> None:
    started = time.monotonic()
    status = await asyncio.to_thread(server.stop)
    took_s = time.monotonic() - started
    report.claim(status == 0 and took_s < patience.stop_s, "stop", f"status {status} after {took_s:.1f} s")
    await until(lambda: not books.open, "the end of the server's connections")
    errors = [line for line in server.log() if line["level"] == "error"]
    report.claim(not errors, "log", f"{len(errors)} errors, the first: {errors[:1]}")
    words = server.error_path.read_text()
    report.claim(not words, "log", f"on standard error: {words[:500]}")
