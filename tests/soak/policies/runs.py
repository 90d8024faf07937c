# SPDX-License-Identifier: Apache-2.0
"""The long runs of streams under policies: what is run, what is printed, what counts as passed."""

from typing import NamedTuple

from tests.soak.policies import spoiled
from tests.soak.policies.faulty import VARIANTS
from tests.soak.policies.play import Game, PolicyReport, list_uncut, play, play_stops
from tests.soak.policies.serving import Place
from tests.soak.policies.settings import MASKING, SHADOWS
from tests.soak.policies.stopping import BOUND_S
from tests.soak.streams.leaving import p99
from tests.soak.streams.runs import Counts, run_within, say, show, tell

_LEAST_S = 20.0  # what is not run in less
_STOPS_AT_ONCE = 4


class Effort(NamedTuple):
    """How much is run."""

    streams: int = 1000
    shadows: int = 100
    stops: int = 200
    broken: int = 30
    seconds: float = 1800.0


QUICK = Effort(streams=60, shadows=15, stops=30, broken=25)


def soak_policies(effort: Effort, seed: int) -> list[Counts]:
    """All runs; how much passed and failed in each."""
    if effort.seconds < _LEAST_S:
        say(f"streams under policies are left out: each of these runs may take {_LEAST_S:.0f} s")
        return [(0, 0)]
    counts, report = _play_masks(effort, seed)
    return [
        counts,
        _spoil(report),
        _play_shadows(effort, seed),
        _play_stops(effort, seed),
        *(_play_broken(name, effort, seed) for name in VARIANTS),
    ]


def _play_masks(effort: Effort, seed: int) -> tuple[Counts, PolicyReport]:
    say(f"{effort.streams} random streams under policies that mask")
    game = Game(effort.streams, seed, names=MASKING, seconds=effort.seconds, say=tell)
    report = run_within(lambda directory: play(game, directory), effort.seconds, PolicyReport)
    tell(f"{report.streams} streams, {report.events} events in {report.seconds:.0f} s; {report.hidden} matches hidden")
    left = len(list_uncut(report.cut, seed))
    tell(f"matches were cut at {len(report.cut)} places of {len(report.cut) + left}")
    tell(f"detectors were called {report.asked} times, {report.shared} times with several texts")
    return (report.passed(), show(report)), report


def _spoil(report: PolicyReport) -> Counts:
    say(f"the same answers, spoiled in {len(spoiled.VARIANTS)} ways")
    unnoticed = spoiled.find_unnoticed(report.played)
    for name, words in unnoticed.items():
        tell(f"FAULT not noticed: {name} ({words})")
    if not unnoticed:
        tell(f"noticed: {', '.join(spoiled.VARIANTS)}")
    return len(spoiled.VARIANTS) - len(unnoticed), len(unnoticed)


def _play_shadows(effort: Effort, seed: int) -> Counts:
    say(f"{effort.shadows} random streams in shadow")
    game = Game(effort.shadows, seed, names=SHADOWS, seconds=effort.seconds, say=tell)
    report = run_within(lambda directory: play(game, directory), effort.seconds, PolicyReport)
    tell(f"{report.streams} streams, {report.events} events in {report.seconds:.0f} s arrived as they were said")
    return report.passed(), show(report)


def _play_stops(effort: Effort, seed: int) -> Counts:
    say(f"{effort.stops} streams that a policy ends")
    game = Game(effort.stops, seed, _STOPS_AT_ONCE, seconds=effort.seconds, say=tell)
    report = run_within(lambda directory: play_stops(game, directory), effort.seconds, PolicyReport)
    found = report.closing_s or [float("inf")]
    figures = f"p99 {p99(found) * 1000:.0f} ms, worst {max(found) * 1000:.0f} ms"
    tell(f"the model was left within: {figures} of {len(report.closing_s)} (p99 may be {BOUND_S * 1000:.0f} ms)")
    tell(f"for each second of work the server waited {report.starved:.2f} s for a processor")
    is_late = p99(found) > BOUND_S
    if is_late:
        tell("FAULT the p99 is above that")
    return report.passed() + (not is_late), show(report) + is_late


def _play_broken(name: str, effort: Effort, seed: int) -> Counts:
    say(f"a server under policies with one fault: {name}")
    variant = VARIANTS[name]
    names = SHADOWS if variant.kind == "shadow" else MASKING
    count = _STOPS_AT_ONCE if variant.kind == "stop" else effort.broken  # each of them waits in vain
    game = Game(count, seed, 20, names, Place(is_apart=False, variant=name), seconds=effort.seconds)
    start = play_stops if variant.kind == "stop" else play
    laws = run_within(lambda directory: start(game, directory), effort.seconds, PolicyReport).laws()
    reported = ", ".join(f"{law} {count}" for law, count in laws.most_common()) or "nothing"
    is_caught = bool(variant.laws & set(laws))
    tell(f"reported: {reported}" if is_caught else f"FAULT not noticed; reported: {reported}")
    return int(is_caught), int(not is_caught)
