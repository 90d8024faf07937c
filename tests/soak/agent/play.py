# SPDX-License-Identifier: Apache-2.0
"""Plays talks: with servers that are killed at any moment, and with many sessions on two servers at once."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.soak.agent.broken import WHOLE
from tests.soak.agent.clients import DOORS, ask
from tests.soak.agent.forge import Forge, Server, Site, Store
from tests.soak.agent.laws import judge
from tests.soak.agent.peers import COMMIT, PHASE_1, TOKENS, TalkBooks, TalkPeer
from tests.soak.agent.reading import read_store, wait_for_turn
from tests.soak.agent.talk import ACKNOWLEDGED, CALLERS, Asked, Attempt, Evidence, Where, draw_question
from tests.soak.streams.peers import listen
from tests.soak.streams.play import Report
from tests.waits import HANG_S

ANY_TIME = "any time"
STORED = "stored"
MOMENTS = (ANY_TIME, PHASE_1, TOKENS, COMMIT, STORED)
_DELAYS_S = {ANY_TIME: 0.4, PHASE_1: 0.03, TOKENS: 0.03, COMMIT: 0.03, STORED: 0.0}
_PLACES = 2  # servers at once
_MOMENT_S = 2.0
_CLOSING_S = 20.0  # for what is left when the last server was killed
_TRIES = 8
_BOTH = 0.4
_SAY_EVERY_S = 10.0


@dataclass(frozen=True)
class Manners:
    """How likely a client leaves, asks once more what was answered, and how long it stays if it leaves."""

    leave: float = 0.08
    again: float = 0.1
    stay_s: float = 0.3


@dataclass(frozen=True)
class Game:
    """How often servers are killed and after how many turns each time, who talks, and the seed of it all.

    `sessions` is the number of session ids, of which every caller has one of its own. One start of `cold` is the
    command itself.
    """

    seed: int
    kills: int = 60
    turns_per_kill: int = 5
    clients: int = 10
    sessions: int = 4
    manners: Manners = Manners()
    variant: str = WHOLE
    cold: int = 10
    seconds: float = 1800.0
    say: Callable[[str], None] = lambda _words: None


@dataclass
class TalkReport(Report):
    """What a game has shown. `untold`: turns that were stored by a server that was killed before it could say so."""

    kills: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    stored: int = 0
    untold: int = 0
    evidence: Evidence = field(default_factory=Evidence)


class Talks:
    """Questions that are asked and what comes of them."""

    def __init__(self, books: TalkBooks, manners: Manners) -> None:
        self.evidence = Evidence(calls=books.calls)
        self.books = books
        self.acknowledged = 0
        self.playing: dict[int, Server] = {}
        self._manners = manners
        self._numbers = itertools.count(1)

    def draw(self, where: Where, rng: random.Random) -> Asked:
        """A new question."""
        asked = draw_question(next(self._numbers), where, rng)
        self.evidence.asked[asked.number] = asked
        return asked

    async def ask(self, server: Server, asked: Asked, rng: random.Random, *, may_leave: bool = True) -> Attempt:
        """Ask a server, in whatever way."""
        manners = self._manners
        leave_s = rng.uniform(0.0, manners.stay_s) if may_leave and rng.random() < manners.leave else None
        self.playing[asked.number] = server
        attempt = await ask(server, asked, rng.choice(DOORS), leave_s)
        self.evidence.attempts.append(attempt)
        if server.killed_at:
            self.evidence.killed_at[server.number] = server.killed_at
        self.acknowledged += attempt.end == ACKNOWLEDGED
        return attempt

    def asks_again(self, asked: Asked, attempt: Attempt, rng: random.Random) -> bool:
        """Whether the client asks once more: it may only where its question has an id."""
        if not asked.request_id:
            return False
        return rng.random() < self._manners.again if attempt.end == ACKNOWLEDGED else True


class Places:
    """Where servers are. Whoever finds none waits for one."""

    def __init__(self, forge: Forge, site: Site, cold: int) -> None:
        self._forge = forge
        self._site = site
        self._cold = cold
        self.address = site.store.address
        self._changed = asyncio.Condition()
        self.servers: list[Server] = []
        self._dead: list[Server] = []
        self._started = 0

    async def open(self) -> None:
        """One more server."""
        is_cold = bool(self._cold) and self._started % self._cold == 0
        self._started += 1
        server = await self._forge.start(self._site, is_cold=is_cold)
        async with self._changed:
            self.servers.append(server)
            self._changed.notify_all()

    async def pick(self, rng: random.Random) -> Server:
        """One of the servers."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.servers)
            return rng.choice(self.servers)

    async def kill(self, victims: Sequence[Server]) -> None:
        """End some at once and put others in their places."""
        for victim in victims:
            victim.kill()
            self.servers.remove(victim)
            self._dead.append(victim)
        for victim in victims:
            await self._forge.bury(victim)
        async with asyncio.TaskGroup() as group:
            for _ in victims:
                group.create_task(self.open())

    async def close(self, report: TalkReport) -> None:
        """Ask all to stop, which they must do well."""
        for server in (*self._dead, *self.servers):
            await server.hang_up()
        for server in self.servers:
            status = await self._forge.stop(server)
            report.claim(status == 0, "stop", f"server {server.number} ended with status {status}")
            errors = [line for line in server.log() if line["level"] == "error"]
            report.claim(not errors, "log", f"{len(errors)} errors, the first: {errors[:1]}")
            report.claim(not server.words(), "log", f"on standard error: {server.words()[:500]}")


async def play_kills(game: Game, store: Store, forge: Forge) -> TalkReport:
    """Clients talk, servers die; at the end every session is asked once more."""
    report, rng = TalkReport(), random.Random(game.seed)
    wheres = [(caller, f"s{number}") for number in range(game.sessions) for caller in CALLERS]
    async with open_peers(game.seed) as (books, port):
        talks = Talks(books, game.manners)
        places = Places(forge, Site(store, port, game.variant), game.cold)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(_PLACES):
                group.create_task(places.open())
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(game.clients):
                chance = random.Random(f"{game.seed} client {number}")
                group.create_task(_talk(talks, places, wheres, chance, is_over))
            await _kill(game, talks, places, report, rng)
            is_over.set()
        async with asyncio.TaskGroup() as group:
            for where in wheres:
                server = await places.pick(rng)
                group.create_task(talks.ask(server, talks.draw(where, rng), rng, may_leave=False))
        report.seconds = time.monotonic() - started
        await _conclude(talks, places, store, report)
    return report


async def _talk(
    talks: Talks, places: Places, wheres: Sequence[Where], rng: random.Random, is_over: asyncio.Event
) -> None:
    """One client: one question after the other, each in any session, again and again where it may."""
    while not is_over.is_set():
        asked = talks.draw(rng.choice(wheres), rng)
        for _ in range(_TRIES):
            attempt = await talks.ask(await places.pick(rng), asked, rng)
            if not talks.asks_again(asked, attempt, rng):
                break


async def _kill(game: Game, talks: Talks, places: Places, report: TalkReport, rng: random.Random) -> None:
    until = time.monotonic() + max(game.seconds - _CLOSING_S, game.seconds / 3)
    said_at = time.monotonic()
    while report.kills < game.kills:
        if not await _wait_for_turns(game.turns_per_kill, talks, report) or time.monotonic() > until:
            game.say(f"it ends after {report.kills} of {game.kills} kills")
            break
        moment = rng.choice(MOMENTS)
        victims = await _choose(moment, talks, places, rng)
        await places.kill(victims)
        report.kills += len(victims)
        report.moments[moment] += len(victims)
        if time.monotonic() - said_at > _SAY_EVERY_S:
            said_at = time.monotonic()
            game.say(f"{report.kills} of {game.kills} kills, {talks.acknowledged} answers")


async def _wait_for_turns(count: int, talks: Talks, report: TalkReport) -> bool:
    """Whether so many more turns come to their end."""
    wanted = talks.acknowledged + count
    end = time.monotonic() + HANG_S
    while talks.acknowledged < wanted and time.monotonic() < end:  # noqa: ASYNC110 - of other tasks
        await asyncio.sleep(0.005)
    is_well = talks.acknowledged >= wanted
    report.claim(is_well, "served", f"no {count} turns came to their end in {HANG_S:.0f} s")
    return is_well


async def _choose(moment: str, talks: Talks, places: Places, rng: random.Random) -> list[Server]:
    """Wait for the moment; who is to die then: whoever is at it, or chance decides."""
    is_both, delay_s = rng.random() < _BOTH, rng.uniform(0.0, _DELAYS_S[moment])
    number = 0
    if moment != ANY_TIME:
        waiting = wait_for_turn(places.address) if moment == STORED else talks.books.wait_for(moment)
        with suppress(TimeoutError):
            number = await asyncio.wait_for(waiting, _MOMENT_S)
    if delay_s:
        await asyncio.sleep(delay_s)
    if is_both:
        return list(places.servers)
    server = talks.playing.get(number)
    return [server] if server in places.servers else [rng.choice(places.servers)]


@dataclass(frozen=True)
class Crowd:
    """How many sessions at once, how often each asks, and the seed of it all."""

    seed: int
    sessions: int = 200
    rounds: int = 3
    manners: Manners = Manners(leave=0.04, again=0.1, stay_s=1.0)
    variant: str = WHOLE
    cold: int = 1
    spread_s: float = 1.0


async def play_crowd(crowd: Crowd, store: Store, forge: Forge) -> TalkReport:
    """Each session asks two servers at once, again and again."""
    report, rng = TalkReport(), random.Random(crowd.seed)
    callers = list(CALLERS)
    wheres = [(callers[number % len(callers)], f"s{number // len(callers)}") for number in range(crowd.sessions)]
    async with open_peers(crowd.seed) as (books, port):
        talks = Talks(books, crowd.manners)
        places = Places(forge, Site(store, port, crowd.variant), crowd.cold)
        async with asyncio.TaskGroup() as group:
            for _ in range(_PLACES):
                group.create_task(places.open())
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for where in wheres:
                chance = random.Random(f"{crowd.seed} {where}")
                after_s = rng.uniform(0.0, crowd.spread_s)
                group.create_task(_ask_both(talks, places.servers, where, chance, (crowd.rounds, after_s)))
        report.seconds = time.monotonic() - started
        await _conclude(talks, places, store, report)
    return report


async def _ask_both(
    talks: Talks, servers: Sequence[Server], where: Where, rng: random.Random, pace: tuple[int, float]
) -> None:
    """Both servers at once get a question, now and then the same one."""
    rounds, after_s = pace
    await asyncio.sleep(after_s)
    for _ in range(rounds):
        first, second = talks.draw(where, rng), talks.draw(where, rng)
        if first.request_id and rng.random() < 0.2:
            second = first
        tries = [talks.ask(server, one, rng) for server, one in zip(servers, (first, second), strict=True)]
        for attempt in await asyncio.gather(*tries):
            asked = talks.evidence.asked[attempt.number]
            if talks.asks_again(asked, attempt, rng):
                await talks.ask(rng.choice(servers), asked, rng, may_leave=False)


async def _conclude(talks: Talks, places: Places, store: Store, report: TalkReport) -> None:
    """Stop everybody, read the store, judge."""
    await places.close(report)
    evidence = report.evidence = talks.evidence
    evidence.stored, evidence.rows = await read_store(store.address)
    report.streams = len({one.number for one in evidence.attempts})
    report.acknowledged = evidence.count_acknowledged()
    report.ends.update(one.end for one in evidence.attempts)
    report.stored = sum(not one.aborted for turns in evidence.stored.values() for one in turns)
    report.untold = evidence.count_untold()
    report.violations += judge(evidence)
    for complaint, count in Counter(talks.books.complaints).items():
        report.claim(False, "peers", f"{complaint} ({count} times)")


@asynccontextmanager
async def open_peers(seed: int) -> AsyncIterator[tuple[TalkBooks, int]]:
    """Everybody behind the servers, at one port."""
    books = TalkBooks(seed)
    server, port = await listen(lambda: TalkPeer(books))
    try:
        yield books, port
    finally:
        server.close()
        for peer in list(books.open):
            peer.transport.abort()
