# SPDX-License-Identifier: Apache-2.0
"""The long runs of guarded streams: what is run, what is printed, what counts as passed."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import uvloop

from tests.soak.streams.faulty import VARIANTS
from tests.soak.streams.leaving import BOUND_S, measure_leaving, p99
from tests.soak.streams.play import Game, Report, play
from tests.soak.streams.steady import MAX_GAP_S, MAX_KB, Load, run_steady

_SHOWN = 10


class Effort(NamedTuple):
    """How much is run."""

    streams: int = 2000
    faulty: int = 150
    leaving: int = 200
    load: Load = Load()
    seconds: float = 1800.0


QUICK = Effort(streams=100, faulty=60, leaving=40, load=Load(100, 20.0, 8.0))
Counts = tuple[int, int]
R = TypeVar("R", bound=Report)


def soak_streams(effort: Effort, seed: int) -> list[Counts]:
    """All runs; how much passed and failed in each."""
    return [
        _play_honest(effort, seed),
        *(_play_faulty(name, effort, seed) for name in VARIANTS),
        _leave(effort, seed),
        _run_load(effort),
    ]


def _play_honest(effort: Effort, seed: int) -> Counts:
    say(f"{effort.streams} random guarded streams")
    game = Game(effort.streams, seed, say=tell)
    report = run_within(lambda directory: play(game, directory), effort.seconds, Report)
    ends = ", ".join(f"{count} {end}" for end, count in report.ends.most_common())
    tell(f"{report.streams} streams, {report.events} events in {report.seconds:.0f} s: {ends}")
    tell(f"resident memory: {' MB, then '.join(f'{size / 1000:.0f}' for size in report.memory_kb)} MB")
    return report.passed(), show(report)


def _play_faulty(name: str, effort: Effort, seed: int) -> Counts:
    say(f"a server with one fault: {name}")
    game = Game(effort.faulty, seed, at_once=30, variant=name, odds=VARIANTS[name].odds)
    laws = run_within(lambda directory: play(game, directory), effort.seconds, Report).laws()
    is_caught = bool(VARIANTS[name].laws & set(laws))
    reported = ", ".join(f"{law} {count}" for law, count in laws.most_common())
    tell(f"reported: {reported or 'nothing'}" if is_caught else f"FAULT not noticed; reported: {reported or 'nothing'}")
    return int(is_caught), int(not is_caught)


def _leave(effort: Effort, seed: int) -> Counts:
    say(f"{effort.leaving} clients that leave in the middle")
    report = run_within(
        lambda directory: measure_leaving(effort.leaving, seed, directory, tell), effort.seconds, Report
    )
    closing_s = report.closing_s or [float("inf")]
    figures = f"p99 {p99(closing_s) * 1000:.0f} ms, worst {max(closing_s) * 1000:.0f} ms"
    tell(f"the model's connection was closed within: {figures} (p99 may be {BOUND_S * 1000:.0f} ms)")
    is_late = p99(closing_s) > BOUND_S
    return report.passed() + (not is_late), show(report) + is_late


def _run_load(effort: Effort) -> Counts:
    load = effort.load
    say(f"{load.streams} streams at once, 10 tokens/s each, {load.per_second:.0f} started per second")
    if effort.seconds < load.seconds:
        tell(f"left out: it takes {load.seconds:.0f} s")
        return 0, 0
    with tempfile.TemporaryDirectory(prefix="lockgate-soak-") as directory:
        found = run_steady(load, Path(directory), tell)
    gap_s = p99(found.gaps_s) if found.gaps_s else float("inf")
    tell(f"from a sentence's last token to its release: p99 {gap_s:.2f} s, worst {max(found.gaps_s, default=0):.2f} s")
    tell(f"memory per stream: {found.stream_kb:.1f} KB; the server used {found.cpu_share:.0%} of a core")
    faults = list(found.faults)
    faults += [f"the p99 is above {MAX_GAP_S} s"] if gap_s > MAX_GAP_S else []
    faults += [f"a stream may weigh {MAX_KB:.0f} KB"] if found.stream_kb > MAX_KB else []
    for fault in faults[:_SHOWN]:
        tell(f"FAULT {fault}")
    return load.streams + 2 - len(faults), len(faults)


def run_within(start: Callable[[Path], Coroutine[Any, Any, R]], seconds: float, late: Callable[[], R]) -> R:
    """What a run has shown; if it takes too long, the report that says so."""

    async def limited(directory: Path) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await start(directory)
        except TimeoutError:
            report = late()
            report.claim(False, "time", f"the limit of {seconds:.0f} s passed")
            return report

    with (
        tempfile.TemporaryDirectory(prefix="lockgate-soak-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(limited(Path(directory)))


def show(report: Report) -> int:
    """How many violations there were."""
    for violation in report.violations[:_SHOWN]:
        tell(f"FAULT {violation}")
    return len(report.violations)


def say(words: str) -> None:
    """The headline of a run."""
    print(words, flush=True)


def tell(words: str) -> None:
    """What it shows."""
    print(f"  {words}", flush=True)
