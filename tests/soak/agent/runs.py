# SPDX-License-Identifier: Apache-2.0
"""The long runs of the agent: what is run, what is printed, what counts as passed."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.postgres import Server as Database
from tests.postgres import start_server
from tests.soak.agent.broken import VARIANTS as BROKEN
from tests.soak.agent.faulty import VARIANTS as SPOILED
from tests.soak.agent.faulty import find_unnoticed
from tests.soak.agent.forge import Forge, Store, open_forge
from tests.soak.agent.play import Crowd, Game, Manners, TalkReport, play_crowd, play_kills
from tests.soak.agent.talk import Evidence
from tests.soak.streams.runs import Counts, run_within, say, show, tell

_CROWD_S, _BROKEN_S = 60.0, 30.0  # what is not run in less
_MANY_AGAIN = Manners(leave=0.0, again=0.5)


class Effort(NamedTuple):
    """How much is run, of each store."""

    kills: int = 60
    turns_per_kill: int = 5
    sessions: int = 200
    rounds: int = 3
    broken_kills: int = 12
    seconds: float = 1800.0


QUICK = Effort(kills=10, sessions=40, rounds=2, broken_kills=6)
Play = Callable[[Store, Forge], Awaitable[TalkReport]]


def soak_agent(effort: Effort, seed: int) -> list[Counts]:
    """All runs; how much passed and failed in each."""
    counts: list[Counts] = []
    evidence = Evidence()
    with _open_database() as databases:
        for dsn in ("", next(databases)):
            counted, report = _play_kills(effort, seed, dsn)
            counts.append(counted)
            evidence = report.evidence
        counts.append(_spoil(evidence))
        counts += [_play_crowd(effort, seed, dsn) for dsn in ("", next(databases))]
    return [*counts, *(_play_broken(name, effort, seed) for name in BROKEN)]


def _play_kills(effort: Effort, seed: int, dsn: str) -> tuple[Counts, TalkReport]:
    name = Store(Path(), dsn).name
    say(f"{effort.kills} servers killed while they talk, sessions in {name}")
    game = Game(seed, effort.kills, effort.turns_per_kill, seconds=effort.seconds, say=tell)
    report = _run(lambda store, forge: play_kills(game, store, forge), effort.seconds, dsn)
    moments = ", ".join(f"{count} {moment}" for moment, count in report.moments.most_common())
    tell(f"{report.kills} kills ({moments}) in {report.seconds:.0f} s")
    _show_turns(report)
    tell(f"{report.untold} turns were stored by a server that was killed before it could say so")
    return (report.passed(), show(report)), report


def _play_crowd(effort: Effort, seed: int, dsn: str) -> Counts:
    name = Store(Path(), dsn).name
    say(f"{effort.sessions} sessions at once, each asks two servers at once, sessions in {name}")
    if effort.seconds < _CROWD_S:
        tell(f"left out: it may take {_CROWD_S:.0f} s")
        return 0, 0
    crowd = Crowd(seed, effort.sessions, effort.rounds)
    report = _run(lambda store, forge: play_crowd(crowd, store, forge), effort.seconds, dsn)
    tell(f"{report.seconds:.0f} s")
    _show_turns(report)
    return report.passed(), show(report)


def _show_turns(report: TalkReport) -> None:
    ends = ", ".join(f"{count} {end}" for end, count in report.ends.most_common())
    tell(f"{report.streams} turns, {report.acknowledged} acknowledged, {report.stored} stored; requests: {ends}")


def _spoil(evidence: Evidence) -> Counts:
    say(f"the same talks, spoiled in {len(SPOILED)} ways")
    unnoticed = find_unnoticed(evidence) if evidence.attempts else dict.fromkeys(SPOILED, "there was no run")
    for name, words in unnoticed.items():
        tell(f"FAULT not noticed: {name} ({words})")
    if not unnoticed:
        tell(f"noticed: {', '.join(SPOILED)}")
    return len(SPOILED) - len(unnoticed), len(unnoticed)


def _play_broken(name: str, effort: Effort, seed: int) -> Counts:
    say(f"an agent with one fault: {name}")
    if effort.seconds < _BROKEN_S:
        tell(f"left out: it may take {_BROKEN_S:.0f} s")
        return 0, 0
    variant = BROKEN[name]
    game = Game(seed, effort.broken_kills, sessions=2, manners=_MANY_AGAIN, variant=name)
    crowd = Crowd(seed, 12, rounds=2, manners=_MANY_AGAIN, variant=name, spread_s=0.1)

    def play(store: Store, forge: Forge) -> Awaitable[TalkReport]:
        return play_kills(game, store, forge) if variant.needs_kills else play_crowd(crowd, store, forge)

    laws = _run(play, effort.seconds, "").laws()
    reported = ", ".join(f"{law} {count}" for law, count in laws.most_common()) or "nothing"
    is_caught = bool(variant.laws & set(laws))
    tell(f"reported: {reported}" if is_caught else f"FAULT not noticed; reported: {reported}")
    return int(is_caught), int(not is_caught)


def _run(play: Play, seconds: float, dsn: str) -> TalkReport:
    async def start(directory: Path) -> TalkReport:
        report = TalkReport()
        try:
            async with open_forge() as forge:
                report = await play(Store(directory, dsn), forge)
        except* AssertionError as failed:
            report.claim(False, "start", repr(failed.exceptions[0]))
        return report

    return run_within(start, seconds, TalkReport)


@contextmanager
def _open_database() -> Iterator[Iterator[str]]:
    """Addresses of empty databases, as many as one wants."""
    server = start_server()
    try:
        yield _make_databases(server)
    finally:
        server.cleanup()


def _make_databases(server: Database) -> Iterator[str]:
    while True:
        name = f"soak_{time.monotonic_ns()}"
        server.psql(f"CREATE DATABASE {name}")
        yield server.get_uri(database=name)
