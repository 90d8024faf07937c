# SPDX-License-Identifier: Apache-2.0
"""The long run of grounded answers: what is run, what is printed, what counts as passed."""

from typing import NamedTuple

from tests.soak.grounded.faulty import VARIANTS, Played, find_unnoticed
from tests.soak.grounded.plans import Manners
from tests.soak.grounded.play import Game, GroundedReport, play
from tests.soak.streams.leaving import BOUND_S, p99
from tests.soak.streams.runs import Counts, run_within, say, show, tell

_BROKEN_SERVER = "model left running"  # of the ways to break the server, the one that concerns these streams too
_MANY_LEAVE = Manners(leave=0.6)


class Effort(NamedTuple):
    """How much is run."""

    requests: int = 600
    rounds: int = 3
    at_once: int = 200
    seconds: float = 1800.0


QUICK = Effort(requests=150, rounds=2, at_once=100)


def soak_grounded(effort: Effort, seed: int) -> list[Counts]:
    """All runs; how much passed and failed in each."""
    counts, played = _play_honest(effort, seed)
    return [counts, _spoil(played), _play_broken(effort, seed)]


def _play_honest(effort: Effort, seed: int) -> tuple[Counts, list[Played]]:
    say(f"{effort.at_once} grounded answers at once, {effort.requests} in each of {effort.rounds} rounds")
    game = Game(effort.requests, seed, effort.at_once, effort.rounds, seconds=effort.seconds, say=tell)
    report = run_within(lambda directory: play(game, directory), effort.seconds, GroundedReport)
    ends = ", ".join(f"{count} {end}" for end, count in report.ends.most_common())
    tell(f"{report.streams} streams, {report.events} events in {report.seconds:.0f} s: {ends}")
    tell(f"{report.most_open} were open at once; for each second of work the server waited {report.starved:.2f} s")
    is_late = _look_at_leaving(report.closing_s)
    return (report.passed() + (not is_late), show(report) + is_late), report.played


def _look_at_leaving(closing_s: list[float]) -> bool:
    """Whether calls went on for too long after their client had left."""
    found = closing_s or [float("inf")]
    figures = f"p99 {p99(found) * 1000:.0f} ms, worst {max(found) * 1000:.0f} ms"
    tell(f"{len(closing_s)} calls of clients that left ended within: {figures} (p99 may be {BOUND_S * 1000:.0f} ms)")
    is_late = p99(found) > BOUND_S
    if is_late:
        tell("FAULT the p99 is above that")
    return is_late


def _spoil(played: list[Played]) -> Counts:
    say(f"the same answers, spoiled in {len(VARIANTS)} ways")
    unnoticed = find_unnoticed(played)
    for name, stream in unnoticed.items():
        tell(f"FAULT not noticed: {name} ({stream})")
    if not unnoticed:
        tell(f"noticed: {', '.join(VARIANTS)}")
    return len(VARIANTS) - len(unnoticed), len(unnoticed)


def _play_broken(effort: Effort, seed: int) -> Counts:
    say(f"grounded answers of a server with one fault: {_BROKEN_SERVER}")
    game = Game(60, seed, 30, rounds=1, idle_s=0.0, variant=_BROKEN_SERVER, manners=_MANY_LEAVE)
    laws = run_within(lambda directory: play(game, directory), effort.seconds, GroundedReport).laws()
    reported = ", ".join(f"{law} {count}" for law, count in laws.most_common()) or "nothing"
    is_caught = "open" in laws
    tell(f"reported: {reported}" if is_caught else f"FAULT not noticed; reported: {reported}")
    return int(is_caught), int(not is_caught)
