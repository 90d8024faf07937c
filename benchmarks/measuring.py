# SPDX-License-Identifier: Apache-2.0
"""CPU time, and what is printed and written of it. Wall time is of no use where cores are shared."""

import gc
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TEXTS = Path(__file__).parent / "texts"
RESULTS = Path(__file__).parent / "results"
_MICRO = 1e6


class Row(NamedTuple):
    """One line of the table. With a target, the value must not exceed it, or must reach it if `is_minimum`."""

    name: str
    value: float
    unit: str
    target: float | None = None
    is_minimum: bool = False

    @property
    def verdict(self) -> str:
        """PASS or FAIL where there is a target."""
        if self.target is None:
            return ""
        is_met = self.value >= self.target if self.is_minimum else self.value <= self.target
        return "PASS" if is_met else "FAIL"


class Effort(NamedTuple):
    """How much is measured."""

    rounds: int
    frames: int
    content_requests: int
    stream_requests: int
    open_streams: int
    chat_requests: int
    chat_streams: int
    pace_ms: int
    grounded_requests: int
    questions: int
    indexed_passages: int
    agent_turns: int
    agent_tokens: int


FULL = Effort(
    rounds=5,
    frames=10_000,
    content_requests=1_000,
    stream_requests=40,
    open_streams=200,
    chat_requests=100,
    chat_streams=64,
    pace_ms=10,
    grounded_requests=200,
    questions=1_000,
    indexed_passages=10_000,
    agent_turns=6,
    agent_tokens=75,
)
QUICK = Effort(
    rounds=1,
    frames=500,
    content_requests=20,
    stream_requests=2,
    open_streams=5,
    chat_requests=4,
    chat_streams=2,
    pace_ms=1,
    grounded_requests=8,
    questions=16,
    indexed_passages=200,
    agent_turns=2,
    agent_tokens=5,
)


def read_text(name: str) -> str:
    """One of the texts of about 1 KB."""
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def read_answer() -> list[str]:
    """The model's answer in its 200 tokens; the file has one JSON string a line, since tokens may be line ends."""
    return [json.loads(line) for line in read_text("answer").splitlines()]


def best_cpu_s(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least CPU time of each work. All take turns, so that a slow moment of the machine meets all alike."""
    leave_out_of_collections()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            started = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - started)
    return best


def leave_out_of_collections() -> None:
    """What was prepared for a measurement must not be searched for garbage on its account."""
    gc.collect()
    gc.freeze()


def micros(seconds: float, count: int) -> float:
    """Microseconds for one of `count`."""
    return seconds / count * _MICRO


def render(section: str, rows: Sequence[Row]) -> str:
    """The rows as a table."""
    lines = [f"\n{section}"]
    for row in rows:
        target = "" if row.target is None else f"{'>=' if row.is_minimum else '<='} {row.target:,.1f}"
        lines.append(f"  {row.name:<64}{row.value:>12,.2f} {row.unit:<6}{target:>12}  {row.verdict}".rstrip())
    return "\n".join(lines)


def write_json(folder: Path, section: str, rows: Sequence[Row], effort: Effort) -> None:
    """The rows, with what is needed to compare them."""
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "section": section,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "effort": effort._asdict(),
        "rows": [row._asdict() | {"verdict": row.verdict} for row in rows],
    }
    (folder / f"{section}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
