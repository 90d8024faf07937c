# SPDX-License-Identifier: Apache-2.0
"""The law of coverage at length: marked strings at all places and at random ones, and conversations with tools."""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tests.coverage_law.conversations import Conversation
from tests.coverage_law.planting import plant_at_random, plant_everywhere
from tests.coverage_law.replies import list_cases
from tests.coverage_law.requests import REQUEST_SURFACES, RequestSurface
from tests.coverage_law.test_answers import break_answers
from tests.coverage_law.test_requests import break_requests
from tests.coverage_law.world import POLICIES, World, open_world

_SHOWN = 20
Counts = tuple[int, int]


class Effort(NamedTuple):
    """How much is tried, and for how long at most."""

    random_cases: int = 10_000  # of each surface
    conversations: int = 1000
    seconds: float = 1800.0


QUICK = Effort(random_cases=100, conversations=100)


def soak_coverage(effort: Effort, seed: int) -> list[Counts]:
    """All parts; how much passed and failed in each."""
    parts: list[tuple[str, Callable[[World, Effort, int], Awaitable[Counts]]]] = [
        ("marked strings in requests", _soak_requests),
        ("marked strings in answers", _soak_answers),
        (f"{effort.conversations} conversations with tools, masked", _soak_conversations),
    ]
    counts = []
    for title, run in parts:
        print(title, flush=True)
        counts.append(asyncio.run(_run(run, effort, seed)))
    return counts


async def _run(run: Callable[[World, Effort, int], Awaitable[Counts]], effort: Effort, seed: int) -> Counts:
    with tempfile.TemporaryDirectory(prefix="lockgate-soak-") as directory:
        async with open_world(Path(directory)) as world:
            return await run(world, effort, seed)


async def _soak_requests(world: World, effort: Effort, seed: int) -> Counts:
    passed, faults, until = 0, list[str](), time.monotonic() + effort.seconds
    for surface in REQUEST_SURFACES:
        draw, tried = random.Random(f"{seed} {surface.name}"), 0
        cases = list(plant_everywhere(surface.body))
        while cases and time.monotonic() < until:
            for policy in POLICIES:
                faults += [
                    f"{surface.name} {policy} {one}" for one in await break_requests(world, surface, policy, cases)
                ]
            tried += len(cases)
            left = min(100, effort.random_cases - tried)
            cases = [plant_at_random(surface.body, draw) for _ in range(max(left, 0))]
        passed += 2 * tried
        _tell_cut(surface, bool(cases), tried)
    return passed - len(faults), _show(faults)


async def _soak_answers(world: World, effort: Effort, seed: int) -> Counts:
    passed, faults, until = 0, list[str](), time.monotonic() + effort.seconds
    for surface in REQUEST_SURFACES:
        cases = list(list_cases(surface))
        random.Random(f"{seed} {surface.name}").shuffle(cases)
        tried = 0
        while tried < len(cases) and time.monotonic() < until:
            some = cases[tried : tried + 100]
            for policy in POLICIES:
                faults += [
                    f"{surface.name} {policy} {one}" for one in await break_answers(world, surface, policy, some)
                ]
            tried += len(some)
        passed += 2 * tried
        _tell_cut(surface, tried < len(cases), tried)
    return passed - len(faults), _show(faults)


async def _soak_conversations(world: World, effort: Effort, seed: int) -> Counts:
    passed, faults, until = 0, list[str](), time.monotonic() + effort.seconds
    for number in range(effort.conversations):
        if time.monotonic() >= until:
            print(f"  the time limit came after {number} conversations", flush=True)
            break
        found = await Conversation(world, seed * 1_000_000 + number).play()
        passed += not found
        faults += [f"conversation {number}: {one}" for one in found]
    return passed, _show(faults)


def _tell_cut(surface: RequestSurface, is_cut: bool, tried: int) -> None:
    if is_cut:
        print(f"  {surface.name}: the time limit came after {tried} places", flush=True)


def _show(faults: list[str]) -> int:
    for fault in faults[:_SHOWN]:
        print(f"  FAULT {fault[:500]}", flush=True)
    return len(faults)
