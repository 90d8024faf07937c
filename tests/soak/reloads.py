# SPDX-License-Identifier: Apache-2.0
"""Reloads while many streams are open: none is cut, old gateways are closed, memory stays flat."""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from lockgate.server.control import ask_process
from tests.server.http_client import Client, connect
from tests.server.processes import ServerProcess
from tests.server.test_shutdown import finish_stream, open_stream
from tests.soak.crowd import MAX_GROWTH, Outcome

_CONFIG = """
detectors:
  pii: {{embedded: pii, chunker_id: sentence}}
  words: {{embedded: keywords, options: {{keywords: [word{number}]}}}}
server: {{host: 127.0.0.1}}
"""
_ANSWER_S = 60.0
_SETTLE_S = 10.0
_IDLE_S = 4.0  # an idle server gives memory back every other second


class Effort(NamedTuple):
    """How much is tried."""

    streams: int = 500
    reloads: int = 20
    rounds: int = 4
    seconds: float = 1800.0
    idle_s: float = _IDLE_S


QUICK = Effort(streams=40, reloads=4, rounds=2)


def soak_reloads(effort: Effort) -> list[tuple[int, int]]:
    """Runs it and prints figures; how much passed, and how much failed."""
    print(f"{effort.reloads} reloads with {effort.streams} streams open, {effort.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="lockgate-soak-") as directory:
        outcome = asyncio.run(run_reloads(effort, Path(directory)))
    print(f"  resident after each round, MB: {', '.join(f'{one / 1000:.1f}' for one in outcome.memory_kb)}")
    for fault in outcome.faults[:20]:
        print(f"  FAULT {fault}")
    return [(outcome.passed, len(outcome.faults))]


async def run_reloads(effort: Effort, directory: Path) -> Outcome:
    """One server, reloaded again and again; never longer than `seconds`."""
    outcome = Outcome()
    config = directory / "soak.yaml"
    config.write_text(_CONFIG.format(number=0))
    server = ServerProcess(directory, ["--config-path", str(config)])
    try:
        await asyncio.to_thread(server.wait_for_start)
        async with asyncio.timeout(effort.seconds):
            files = server.open_files()
            for number in range(effort.rounds):
                await _run_round(effort, number, config, server, outcome)
                outcome.claim(await _has_settled(server, files), f"round {number + 1}: files are left open")
                await asyncio.sleep(effort.idle_s)
                outcome.memory_kb.append(server.memory_kb())
    except TimeoutError:
        outcome.claim(False, f"the time limit of {effort.seconds:.0f} s passed")
    finally:
        status = await asyncio.to_thread(server.stop)
    outcome.claim(status == 0, f"the server stopped with status {status}")
    if len(outcome.memory_kb) > 1:
        settled, last = outcome.memory_kb[1 if effort.rounds > 2 else 0], outcome.memory_kb[-1]
        outcome.claim(last <= settled * MAX_GROWTH, f"resident memory grew from {settled} to {last} kB")
    return outcome


async def _run_round(effort: Effort, number: int, config: Path, server: ServerProcess, outcome: Outcome) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(server.api_port)) for _ in range(effort.streams)]
        for client in clients:
            await open_stream(client)
        for reload in range(effort.reloads):
            _change(config, number * effort.reloads + reload + 1)
            answer = await asyncio.to_thread(ask_process, server.process.pid, _ANSWER_S)
            outcome.claim(not answer["faults"], f"a reload failed: {answer['faults'][:2]}")
        for client in clients:
            outcome.claim(await _can_finish(client), f"round {number + 1}: a stream was cut")


def _change(config: Path, number: int) -> None:
    config.write_text(_CONFIG.format(number=number))


async def _can_finish(client: Client) -> bool:
    try:
        await finish_stream(client)
    except (AssertionError, OSError, asyncio.IncompleteReadError, ValueError):
        return False
    return True


async def _has_settled(server: ServerProcess, files: int) -> bool:
    end = time.monotonic() + _SETTLE_S
    while server.open_files() > files and time.monotonic() < end:  # noqa: ASYNC110 - another process's files
        await asyncio.sleep(0.02)
    return server.open_files() <= files
