# SPDX-License-Identifier: Apache-2.0
"""Clients that leave in the middle of a stream: how soon the model's connection is closed."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.soak.streams.faulty import WHOLE
from tests.soak.streams.house import open_house, wait_for_start, watched
from tests.soak.streams.plans import Leave, Odds, Plan, draw_plan
from tests.soak.streams.play import Report, Table

BOUND_S = 0.1
_AT_ONCE = 10
_MOST_ROUNDS = 20  # a client may come too late to leave in the middle, so more are sent than are needed


async def measure_leaving(streams: int, seed: int, directory: Path, say: Callable[[str], None]) -> Report:
    """At least so many streams whose client leaves while the model speaks; `closing_s` has what is asked for."""
    report = Report()
    async with open_house() as house:
        with watched(directory, house.config(), WHOLE) as server:
            await wait_for_start(server)
            await Table(house, server.api_port, Report()).play(_draw(seed, 0, 10), 4)
            table = Table(house, server.api_port, report)
            for number in range(1, _MOST_ROUNDS):
                if len(report.closing_s) >= streams:
                    break
                await table.play(_draw(seed, number * streams, streams), _AT_ONCE)
                say(f"{len(report.closing_s)} of {streams} clients have left in the middle")
    left = len(report.closing_s)
    report.claim(left >= streams, "leaving", f"only {left} left in the middle")
    return report


def _draw(seed: int, first: int, count: int) -> list[Plan]:
    rng = random.Random(seed + first)
    return [
        replace(
            draw_plan(number, seed + 1, Odds(fault=0.0)),
            leave=Leave(rng.choice((1, 2, 3, 99)), rng.uniform(0.05, 0.6), rng.random() < 0.5),
        )
        for number in range(first, first + count)
    ]


def p99(values: list[float]) -> float:
    """The smallest value that 99 of 100 do not exceed."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]
