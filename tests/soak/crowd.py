# SPDX-License-Identifier: Apache-2.0
"""A crowd of stream-content clients of mixed speed against one real server, in rounds; what is left after each."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.server.http_client import CONTENT, STREAM, build_head, build_line, call, connect, detect
from tests.server.processes import ServerProcess
from tests.soak.texts import CONFIG, DETECTORS, Checker, LawBroken, Sample, cut_text, draw_text

MAX_GROWTH = 1.05
SETTLE_S = 5.0
STOP_S = 5.0
IDLE_S = 4.0  # an idle server gives memory back every other second
_SAMPLES = 24
_LEAVING = 0.05


class Pace(Enum):
    """How a client behaves."""

    FAST = "fast"
    SLOW_READER = "slow reader"
    SLOW_WRITER = "slow writer"


_PACES = (Pace.FAST, Pace.FAST, Pace.SLOW_READER, Pace.SLOW_WRITER)


@dataclass
class Outcome:
    """What the run has shown."""

    passed: int = 0
    faults: list[str] = field(default_factory=list)
    memory_kb: list[int] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)

    def claim(self, holds: bool, fault: str) -> None:
        """One thing that must be so."""
        if holds:
            self.passed += 1
        else:
            self.faults.append(fault)


@dataclass(frozen=True)
class Crowd:
    """How many clients at once, how often, and the seed from which everything is drawn.

    Every round has the same load, or their memory could not be compared; a client comes several times in a round.
    """

    clients: int
    rounds: int
    seed: int
    visits: int = 6
    phrases: int = 48
    settle_s: float = SETTLE_S
    stop_s: float = STOP_S
    idle_s: float = IDLE_S


async def run_crowd(crowd: Crowd, directory: Path, seconds: float) -> Outcome:
    """Start a server, send the crowd in rounds, stop the server; never longer than `seconds`."""
    outcome = Outcome()
    config = directory / "soak.yaml"
    config.write_text(CONFIG)
    server = ServerProcess(directory, ["--config-path", str(config)])
    try:
        server.wait_for_start()
        async with asyncio.timeout(seconds):
            await _run_rounds(crowd, server, outcome)
    except TimeoutError:
        outcome.claim(False, f"the time limit of {seconds:.0f} s passed")
    finally:
        started = time.monotonic()
        status = await asyncio.to_thread(server.stop)
        took = time.monotonic() - started
    outcome.claim(status == 0 and took < crowd.stop_s, f"the server stopped with status {status} after {took:.1f} s")
    errors = [line["event"] for line in server.log() if line["level"] in ("error", "warning")]
    outcome.claim(not errors and not server.error_path.read_bytes(), f"the server complained: {errors[:3]}")
    return outcome


async def _run_rounds(crowd: Crowd, server: ServerProcess, outcome: Outcome) -> None:
    rng = random.Random(crowd.seed)
    samples = [await _draw_sample(rng, server, crowd.phrases) for _ in range(_SAMPLES)]
    files = server.open_files()
    seeds = [rng.getrandbits(64) for _ in range(crowd.clients)]
    for number in range(crowd.rounds):
        started = time.monotonic()
        clients = (_come(random.Random(seed), server.api_port, samples, crowd.visits) for seed in seeds)
        for fault in [fault for faults in await asyncio.gather(*clients) for fault in faults]:
            outcome.claim(fault is None, f"round {number + 1}: {fault}")
        outcome.round_s.append(time.monotonic() - started)
        left = await _count_left(server, files, crowd.settle_s)
        outcome.claim(left == 0, f"round {number + 1}: {left} connections are left")
        await asyncio.sleep(crowd.idle_s)
        outcome.memory_kb.append(server.memory_kb())
    settled = outcome.memory_kb[1 if crowd.rounds > 2 else 0]  # where there are enough, the first round fills pools
    last = outcome.memory_kb[-1]
    outcome.claim(last <= settled * MAX_GROWTH, f"resident memory grew from {settled} to {last} kB")
    info = await call(server.health_port, "/info", method="GET")
    outcome.claim(info.status == 200, f"/info answered {info.status}")


async def _draw_sample(rng: random.Random, server: ServerProcess, phrases: int) -> Sample:
    text = draw_text(rng, rng.randint(phrases // 4, phrases))
    answer = await detect(server.api_port, {"content": text, "detectors": DETECTORS})
    assert answer.status == 200, f"{CONTENT} answered {answer.status}: {answer.body[:200]!r}"
    return Sample(text, cut_text(rng, text), Counter(json.dumps(found) for found in answer.json()["detections"]))


async def _count_left(server: ServerProcess, files: int, settle_s: float) -> int:
    """The file descriptors that the server holds beyond those it had, after some time to settle."""
    end = time.monotonic() + settle_s
    while server.open_files() > files and time.monotonic() < end:  # noqa: ASYNC110 - another process's files
        await asyncio.sleep(0.02)
    return max(0, server.open_files() - files)


async def _come(rng: random.Random, port: int, samples: list[Sample], visits: int) -> list[str | None]:
    """One client with all its visits, one after the other."""
    return [await _visit(rng, port, samples) for _ in range(visits)]


async def _visit(rng: random.Random, port: int, samples: list[Sample]) -> str | None:
    """One stream; what went wrong, if anything."""
    sample = rng.choice(samples)
    pace = rng.choice(_PACES)
    lines_to_read = rng.randint(0, 10) if rng.random() < _LEAVING else None
    try:
        await _stream(rng, port, sample, pace, lines_to_read)
    except (LawBroken, OSError, asyncio.IncompleteReadError, ValueError, AssertionError) as fault:
        return f"{type(fault).__name__}: {fault}"
    return None


async def _stream(rng: random.Random, port: int, sample: Sample, pace: Pace, lines_to_read: int | None) -> None:
    async with connect(port) as client:
        head = {"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}
        await client.send(build_head("POST", STREAM, head))

        async def write() -> None:
            for number, piece in enumerate(sample.pieces):
                line = build_line(content=piece) if number else build_line(detectors=DETECTORS, content=piece)
                await client.send_chunk(line)
                if pace is Pace.SLOW_WRITER:
                    await asyncio.sleep(rng.uniform(0, 0.04))
            await client.send_chunk(b"")

        async def read() -> bool:
            checker, rest, lines = Checker(sample), b"", 0
            assert (await client.read_head()).status == 200
            while chunk := await client.read_chunk():
                *complete, rest = (rest + chunk).split(b"\n")
                for raw in complete:
                    checker.take(raw)
                    lines += 1
                    if lines_to_read is not None and lines >= lines_to_read:
                        return True
                if pace is Pace.SLOW_READER:
                    await asyncio.sleep(rng.uniform(0, 0.04))
            checker.finish()
            return False

        writing = asyncio.create_task(write())
        try:
            if not await read():
                await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
