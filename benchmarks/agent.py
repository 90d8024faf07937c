# SPDX-License-Identifier: Apache-2.0
"""The agent over gRPC beside a client that makes the same upstream calls itself: added time, lag of tokens, CPU.

Model, embedder and index stand in one scripted process and take a known time for each call. The direct client makes
the same calls one after the other, so that what it measures is the sum of the upstream's waits as one has to wait.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.agent_client import CONVERSATION
from benchmarks.measuring import Effort, Row, micros
from benchmarks.processes import HOST, Server, free_port, open_lockgate, running
from lockgate.sessions.sqlite import open_sqlite_sessions
from lockgate.sessions.turns import SessionKey, StoreLimits, Turn

ADDED_TARGET_MS, LAG_TARGET_MS, NARROW_LAG_MS = 5.0, 10.0, 5.0
PACE_MS = 20
_STREAMS = 50
_LAG_ROUNDS = 2
_HISTORY_TURNS = 10  # that go into a prompt
_MILLI = 1e3
_CLIENT_S = 300.0
_CONFIG = """
models: {{main: {{ollama: {{url: "http://{host}:{upstream}", model: main}}}}}}
sources: {{docs: {{elasticsearch: {{url: "http://{host}:{upstream}", index: bench}}}}}}
embeddings: {{ollama: {{url: "http://{host}:{upstream}", model: embedder}}}}
agents: {{default: {{main: main, sources: [docs]}}}}
sessions: {{sqlite: "{folder}/sessions.db"}}
classifier: {{model_path: "{folder}/none"}}
server: {{grpc_port: {grpc}}}
"""
_ROUTES = {"documentation": "", "conversation": CONVERSATION}  # and the label that a client declares


class House(NamedTuple):
    """The agent's process, its gRPC port, and the port of what stands behind it."""

    server: Server
    port: int
    upstream: int

    def ask(self, **job: Any) -> Any:
        """Run a client process through its job."""
        command = [sys.executable, "-m", "benchmarks.agent_client"]
        sent = json.dumps({"port": self.port, "upstream": self.upstream, **job}) + "\n"
        ended = subprocess.run(command, input=sent, stdout=subprocess.PIPE, text=True, timeout=_CLIENT_S, check=True)
        return json.loads(ended.stdout)


def measure_agent(effort: Effort) -> list[Row]:
    """Turns one after the other on both kinds of route, many streams at once, then the store alone."""
    with tempfile.TemporaryDirectory() as name, open_house(Path(name)) as house:
        rows = [row for route, label in _ROUTES.items() for row in _measure_turns(house, route, label, effort)]
        return [*rows, *_measure_lags(house, effort), *asyncio.run(_measure_store(Path(name), effort))]


@contextmanager
def open_house(folder: Path) -> Iterator[House]:
    """The agent and everything behind it."""
    upstream, port = free_port(), free_port()
    config = _CONFIG.format(host=HOST, upstream=upstream, folder=folder, grpc=port)
    command = [sys.executable, "-m", "benchmarks.agent_upstream", str(upstream)]
    with running(command, upstream), open_lockgate(config, folder) as server:
        yield House(server, port, upstream)


def _measure_turns(house: House, route: str, label: str, effort: Effort) -> list[Row]:
    """The best medians of the rounds; both ways take turns."""
    found = house.ask(kind="turns", count=effort.rounds * effort.agent_turns, label=label)
    rounds = {way: _cut(times, effort.agent_turns) for way, times in found.items()}
    direct_ms, direct_whole_ms = (_best_ms(rounds["direct"], place) for place in (0, 1))
    first_ms, whole_ms = (_best_ms(rounds["agent"], place) for place in (0, 1))
    beyond_ms = min(_median_ms([one[0] - one[2] for one in part]) for part in rounds["agent"])
    return [
        Row(f"{route}: first token, direct calls", direct_ms, "ms"),
        Row(f"{route}: first token, added by the agent", first_ms - direct_ms, "ms", ADDED_TARGET_MS),
        Row(f"{route}: first token, beyond the waits by the upstream's clock", beyond_ms, "ms"),
        Row(f"{route}: whole call, direct calls", direct_whole_ms, "ms"),
        Row(f"{route}: whole call, added by the agent", whole_ms - direct_whole_ms, "ms"),
    ]


def _measure_lags(house: House, effort: Effort) -> list[Row]:
    """The best of each way, which take turns."""
    streams, tokens = min(_STREAMS, effort.agent_tokens), effort.agent_tokens
    p50: dict[bool, float] = {}
    p99: dict[bool, float] = {}
    cpu_s = float("inf")
    for _ in range(min(effort.rounds, _LAG_ROUNDS)):
        for is_direct in (True, False):
            before = house.server.cpu_s()
            lags = house.ask(kind="lags", count=streams, tokens=tokens, pace_ms=PACE_MS, is_direct=is_direct)
            if not is_direct:
                cpu_s = min(cpu_s, house.server.cpu_s() - before)
            p50[is_direct] = min(p50.get(is_direct, float("inf")), statistics.median(lags))
            p99[is_direct] = min(p99.get(is_direct, float("inf")), _find_p99(lags))
    added_ms = p99[False] - p99[True]
    title = f"{streams} streams, a token every {PACE_MS} ms"
    return [
        Row(f"{title}: lag of a token, direct, p99", p99[True], "ms"),
        Row(f"{title}: added by the agent, p50", p50[False] - p50[True], "ms"),
        Row(f"{title}: added by the agent, p99", added_ms, "ms", LAG_TARGET_MS),
        Row(f"{title}: that is within {NARROW_LAG_MS:.0f} ms (1: yes)", float(added_ms <= NARROW_LAG_MS), ""),
        Row(f"{title}: CPU per token", micros(cpu_s, streams * tokens), "us"),
    ]


async def _measure_store(folder: Path, effort: Effort) -> list[Row]:
    """One session after the other, each with as many turns as a prompt has."""
    turn = Turn("Can I still change the date of my stay?", "Yes, until a week before. " * 20, "RETRIEVAL")
    loads: list[float] = []
    appends: list[float] = []
    async with open_sqlite_sessions(folder / "alone.db", StoreLimits()) as store:
        for number in range(effort.rounds * effort.agent_turns):
            key = SessionKey("anonymous", "default", f"s{number}")
            async with store.hold(key):
                for _ in range(_HISTORY_TURNS):
                    started = time.perf_counter()
                    await store.append(key, turn)
                    appends.append(time.perf_counter() - started)
                started = time.perf_counter()
                await store.load(key, _HISTORY_TURNS)
                loads.append(time.perf_counter() - started)
    return [
        Row("sessions in SQLite: append one turn, p50", _median_ms(appends), "ms"),
        Row(f"sessions in SQLite: load the last {_HISTORY_TURNS} turns, p50", _median_ms(loads), "ms"),
    ]


def _cut(times: Sequence[Sequence[float]], size: int) -> list[Sequence[Sequence[float]]]:
    return [times[start : start + size] for start in range(0, len(times), size)]


def _best_ms(rounds: Sequence[Sequence[Sequence[float]]], place: int) -> float:
    return min(_median_ms([one[place] for one in part]) for part in rounds)


def _median_ms(seconds: Sequence[float]) -> float:
    return float(statistics.median(seconds)) * _MILLI


def _find_p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]
