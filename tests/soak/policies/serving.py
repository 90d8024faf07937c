# SPDX-License-Identifier: Apache-2.0
"""The server of a run: in a process of its own, or in this one, where it may be broken. What it leaves is judged."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.server.gateways import gateway
from tests.soak.policies.faulty import WHOLE, planted
from tests.soak.policies.marks import draw_catalogue
from tests.soak.policies.peers import PolicyBooks, open_services
from tests.soak.policies.settings import write_config
from tests.soak.streams.house import WatchedServer, wait_for_start, watched
from tests.soak.streams.play import STRICT, Patience, Report

_LEAST_CHARS = 8  # of a mark that is looked for in the log


@dataclass
class ServedReport(Report):
    """What a run has shown. `starved`: for each second of its work, how long the server waited for a processor."""

    starved: float = 0.0


class Place(NamedTuple):
    """Where the server runs: in a process of its own, or here, whole or with one thing broken; how long it may take."""

    is_apart: bool = True
    variant: str = WHOLE
    patience: Patience = STRICT


APART = Place()


@asynccontextmanager
async def open_server(
    place: Place, directory: Path, report: ServedReport, seed: int
) -> AsyncIterator[tuple[PolicyBooks, int]]:
    """Services and a server before them: the books, and the server's port."""
    async with open_services() as (books, ports), AsyncExitStack() as stack:
        config = write_config(ports)
        if place.is_apart:
            port = await stack.enter_async_context(_open_apart(config, directory, report, seed, place.patience))
        else:
            logging.disable(logging.CRITICAL)  # what it would log is no part of what is printed here
            stack.callback(logging.disable, logging.NOTSET)
            stack.enter_context(planted(place.variant))
            port = await stack.enter_async_context(gateway(config))
        yield books, port
        for complaint, count in Counter(books.complaints).items():
            report.claim(False, "services", f"{complaint} ({count} times)")


@asynccontextmanager
async def _open_apart(
    config: str, directory: Path, report: ServedReport, seed: int, patience: Patience
) -> AsyncIterator[int]:
    """At the end it must be at rest, stop at once, and have told nothing that was hidden."""
    with watched(directory, config, WHOLE) as server:
        await wait_for_start(server)
        before = await asyncio.to_thread(server.count_tasks)
        used, waited = _read_shares(server)
        yield server.api_port
        more_used, more_waited = _read_shares(server)
        report.starved = (more_waited - waited) / (more_used - used)
        await _look_at_rest(server, before, report, patience)
        await _stop(server, report, patience)
        log = server.log_path.read_text()
        marks = [mark.text for mark in draw_catalogue(seed) if len(mark.text) >= _LEAST_CHARS]
        told = [text for text in marks if text in log]
        report.claim(not told, "log", f"what was hidden stands in the log: {told[:3]}")


def _read_shares(server: WatchedServer) -> tuple[int, int]:
    """How long its main thread was on a processor, and how long it waited for one."""
    used, waited, _ = Path(f"/proc/{server.process.pid}/schedstat").read_text().split()
    return int(used), int(waited)


async def _look_at_rest(server: WatchedServer, before: int, report: ServedReport, patience: Patience) -> None:
    end = time.monotonic() + patience.settle_s
    while (tasks := await asyncio.to_thread(server.count_tasks)) > before and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    report.claim(tasks <= before, "tasks", f"{tasks - before} tasks hang, of: {server.name_tasks()}")
    report.memory_kb.append(server.memory_kb())


async def _stop(server: WatchedServer, report: ServedReport, patience: Patience) -> None:
    started = time.monotonic()
    status = await asyncio.to_thread(server.stop)
    took = time.monotonic() - started
    report.claim(status == 0 and took < patience.stop_s, "stop", f"status {status} after {took:.1f} s")
    errors = [line for line in server.log() if line["level"] == "error"]
    report.claim(not errors, "log", f"{len(errors)} errors, the first: {errors[:1]}")
    words = server.error_path.read_text()
    report.claim(not words, "log", f"on standard error: {words[:500]}")
