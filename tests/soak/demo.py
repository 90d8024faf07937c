# SPDX-License-Identifier: Apache-2.0
"""The demo again and again, with its real model: every sample shows its case each time, in whatever order they come.

Also measured: how long the model works on after a stop, the memory of the whole, and the time to the first sentence.
"""

import http.client
import json
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.e2e.test_demo import CASES, SOURCES, STORY, Running, list_tree, make_data_dir, read_resident_bytes, start

MAX_RESIDENT_BYTES = 1_000_000_000
MAX_FIRST_S = 3.0
MAX_BUSY_S = 0.2
_TICK_S = 0.01
_WATCH_S = 0.6
_LONG = "Tell me everything about the library: rooms, rules, hours, fees and history."


class Effort(NamedTuple):
    """How much is done."""

    rounds: int = 10
    leaves: int = 20
    seconds: float = 600.0


QUICK = Effort(rounds=1, leaves=2)


def soak_demo(effort: Effort, seed: int) -> list[tuple[int, int]]:
    """What passed and what failed."""
    print(f"the demo: {effort.rounds} rounds of {len(STORY)} samples, {effort.leaves} clients that leave", flush=True)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder, start(data_dir=make_data_dir(Path(folder) / "state")) as library:
        until = time.monotonic() + effort.seconds
        asked = _ask_all(library, effort.rounds, random.Random(seed), faults, until)
        left = _leave(library, effort.leaves, random.Random(seed + 1), faults, until)
        resident = sum(map(read_resident_bytes, list_tree(library.process.pid)))
        print(f"  resident memory of the whole: {resident / 1e6:.0f} MB", flush=True)
        if resident >= MAX_RESIDENT_BYTES:
            faults.append(f"resident memory {resident}")
    for fault in faults[:20]:
        print(f"  FAILED: {fault}", flush=True)
    return [(max(0, asked + left + 1 - len(faults)), len(faults))]


def _ask_all(library: Running, rounds: int, choice: random.Random, faults: list[str], until: float) -> int:
    firsts: list[float] = []
    texts: dict[str, set[str]] = {}
    count = 0
    for _ in range(rounds):
        titles = list(STORY)
        choice.shuffle(titles)
        for title in titles:
            if time.monotonic() > until:
                print(f"  the time is over after {count} questions", flush=True)
                return count
            sample = STORY[title]
            heard = [time.monotonic()]
            answer = library.ask(sample["question"], sample["policy"], partial(_note_time, heard))
            count += 1
            texts.setdefault(title, set()).add(answer.text)
            firsts += [at - heard[0] for at in heard[1:2]]
            _note(faults, title, partial(CASES[title], answer))
    faults += [f"{title}: {len(found)} different answers" for title, found in texts.items() if len(found) > 1]
    print(f"  {count} questions; first sentence: median {sorted(firsts)[len(firsts) // 2]:.2f} s, "
          f"longest {max(firsts):.2f} s", flush=True)  # fmt: skip
    faults += [f"first sentence after {one:.2f} s" for one in firsts if one > MAX_FIRST_S]
    return count


def _note_time(times: list[float], _piece: str) -> None:
    times.append(time.monotonic())


def _note(faults: list[str], title: str, check: Callable[[], None]) -> None:
    try:
        check()
    except AssertionError as error:
        faults.append(f"{title}: {str(error).splitlines()[0] if str(error) else 'another case'}")


def _leave(library: Running, count: int, choice: random.Random, faults: list[str], until: float) -> int:
    """Clients go at any moment, while the prompt is read and while words come; how long the model works on."""
    busy: list[float] = []
    for _ in range(count):
        if time.monotonic() > until:
            break
        _ask_and_leave(library, choice.uniform(0.05, 1.5))
        busy.append(_watch_model(library))
    if busy:
        print(f"  the model works on for at most {max(busy) * 1000:.0f} ms after {len(busy)} clients left", flush=True)
    faults += [f"the model worked on for {one * 1000:.0f} ms" for one in busy if one > MAX_BUSY_S]
    return len(busy)


def _ask_and_leave(library: Running, after_s: float) -> None:
    sources = [{"url": "lockgate:", "slug": name} for name in SOURCES]
    body = {"prompt": _LONG, "model": {"url": "lockgate:", "slug": "main"}, "data_sources": sources,
            "detectors": {"policy": "library"}, "similarity_threshold": 0.2}  # fmt: skip
    connection = http.client.HTTPConnection(library.address.removeprefix("http://"), timeout=30)
    connection.request("POST", "/api/v1/chat/stream", json.dumps(body), {"content-type": "application/json"})
    connection.getresponse()
    time.sleep(after_s)
    connection.close()


def _watch_model(library: Running) -> float:
    """Seconds from now until the model's process stands still; one that was ended stands still too."""
    began, last_moved = time.monotonic(), 0.0
    pid = list_tree(library.process.pid)[-1]
    ticks = _read_ticks(pid)
    while (now := time.monotonic() - began) < _WATCH_S:
        time.sleep(_TICK_S / 2)
        found = _read_ticks(pid)
        if found is None:
            return last_moved
        if ticks is not None and found > ticks + 1:  # one tick may be a wake-up
            ticks, last_moved = found, now
    return last_moved


def _read_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    return int(stat[11]) + int(stat[12])
