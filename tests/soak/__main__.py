# SPDX-License-Identifier: Apache-2.0
"""The long runs: `python -m tests.soak`. Prints its seed, figures and faults, and one closing line."""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.server.processes import ROOT, clean_environment
from tests.soak import coverage, demo, reloads
from tests.soak.agent import runs as agent
from tests.soak.crowd import Crowd, run_crowd
from tests.soak.grounded import runs as grounded
from tests.soak.policies import runs as policies
from tests.soak.streams.runs import QUICK, Effort, soak_streams

_SHOWN_FAULTS = 20


def main() -> int:
    """Run all; the exit status says whether anything failed."""
    options = _parse()
    print(f"seed {options.seed} (repeat with --seed {options.seed})", flush=True)
    results = [_soak_server(options), _soak_laws(options), *soak_streams(_effort(options), options.seed)]
    results += grounded.soak_grounded(_grounded_effort(options), options.seed)
    results += agent.soak_agent(_agent_effort(options), options.seed)
    results += policies.soak_policies(_policy_effort(options), options.seed)
    results += coverage.soak_coverage(_coverage_effort(options), options.seed)
    results += reloads.soak_reloads(_reload_effort(options))
    results += demo.soak_demo(_demo_effort(options), options.seed)
    passed, failed = (sum(counts) for counts in zip(*results, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Long runs against a real server and the laws."
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="repeats a run")
    parser.add_argument("--seconds", type=float, default=1800.0, help="time limit of each run")
    parser.add_argument("--clients", type=int, default=500, help="clients at once")
    parser.add_argument("--rounds", type=int, default=3, help="how often they come")
    parser.add_argument("--streams", type=int, default=2000, help="random guarded streams")
    parser.add_argument("--grounded", type=int, default=600, help="random grounded answers in each of three rounds")
    parser.add_argument("--kills", type=int, default=60, help="agent servers killed, per store of sessions")
    parser.add_argument("--masked", type=int, default=1000, help="random streams under policies that mask")
    parser.add_argument("--quick", action="store_true", help="a short slice: 40 clients, 2 rounds, few examples")
    options = parser.parse_args()
    if options.quick:
        options.clients, options.rounds = min(options.clients, 40), min(options.rounds, 2)
    return options


def _effort(options: argparse.Namespace) -> Effort:
    if options.quick:
        return QUICK._replace(streams=min(options.streams, QUICK.streams), seconds=options.seconds)
    return Effort(streams=options.streams, seconds=options.seconds)


def _grounded_effort(options: argparse.Namespace) -> grounded.Effort:
    effort = grounded.QUICK if options.quick else grounded.Effort()
    return effort._replace(requests=min(options.grounded, effort.requests), seconds=options.seconds)


def _agent_effort(options: argparse.Namespace) -> agent.Effort:
    effort = agent.QUICK if options.quick else agent.Effort()
    kills = min(options.kills, effort.kills) if options.quick else options.kills
    return effort._replace(kills=kills, seconds=options.seconds)


def _policy_effort(options: argparse.Namespace) -> policies.Effort:
    effort = policies.QUICK if options.quick else policies.Effort()
    streams = min(options.masked, effort.streams) if options.quick else options.masked
    return effort._replace(streams=streams, seconds=options.seconds)


def _coverage_effort(options: argparse.Namespace) -> coverage.Effort:
    effort = coverage.QUICK if options.quick else coverage.Effort()
    return effort._replace(seconds=options.seconds)


def _reload_effort(options: argparse.Namespace) -> reloads.Effort:
    effort = reloads.QUICK if options.quick else reloads.Effort()
    return effort._replace(seconds=options.seconds)


def _demo_effort(options: argparse.Namespace) -> demo.Effort:
    effort = demo.QUICK if options.quick else demo.Effort()
    return effort._replace(seconds=options.seconds)


def _soak_server(options: argparse.Namespace) -> tuple[int, int]:
    print(
        f"{options.clients} stream-content clients at once, {options.rounds} rounds, at most {options.seconds:.0f} s",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="lockgate-soak-") as directory:
        crowd = Crowd(options.clients, options.rounds, options.seed)
        outcome = asyncio.run(run_crowd(crowd, Path(directory), options.seconds))
    for number, (seconds, memory) in enumerate(zip(outcome.round_s, outcome.memory_kb, strict=False), 1):
        print(f"  round {number}: {seconds:.1f} s, {memory / 1000:.1f} MB resident afterwards")
    for fault in outcome.faults[:_SHOWN_FAULTS]:
        print(f"  FAULT {fault}")
    return outcome.passed, len(outcome.faults)


def _soak_laws(options: argparse.Namespace) -> tuple[int, int]:
    profile = "default" if options.quick else "thorough"
    print(f"the laws of the core, profile {profile}", flush=True)
    command = [sys.executable, "-m", "pytest", "tests/gate", "-v", "--no-header", "-p", "no:cacheprovider"]
    command += [f"--hypothesis-profile={profile}", f"--hypothesis-seed={options.seed}"]
    with tempfile.TemporaryFile() as output:
        is_complete, status = _run_limited(command, output.fileno(), options.seconds)
        output.seek(0)
        words = output.read().decode(errors="replace")
    passed, failed = (len(re.findall(rf" {verdict} +\[", words)) for verdict in ("PASSED", "(?:FAILED|ERROR)"))
    if not is_complete:
        print(f"  the time limit of {options.seconds:.0f} s came first: {passed + failed} laws were tried")
    if failed or (is_complete and status) or not passed:
        print(words[-4000:])
    return passed, failed or int(not passed or (is_complete and status != 0))


def _run_limited(command: list[str], output: int, seconds: float) -> tuple[bool, int]:
    """Whether the command came to its end, and its exit status."""
    process = subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        return True, process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return False, process.wait()


if __name__ == "__main__":
    sys.exit(main())
