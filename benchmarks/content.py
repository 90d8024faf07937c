# SPDX-License-Identifier: Apache-2.0
"""detection/content with `sentence` and `pii`: CPU per request beside what its parts cost on their own."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.floor import PARTS, open_scan
from benchmarks.measuring import Effort, Row, best_cpu_s, micros, read_text
from benchmarks.processes import HOST, Load, Server, load, open_floor, open_lockgate
from lockgate.api.endpoints import CONTENT_PATH
from lockgate.chunkers.machines import SENTENCE_MAX_CHARS, cut
from lockgate.chunkers.sentences import SentenceMachine, StopJudge, load_stop_judge
from lockgate.detectors.scans import Scan

TARGET = 2.0
_TEXTS = ("plain", "findings")
_CONFIG = "detectors:\n  pii: {embedded: pii, chunker_id: sentence}\n"
_JSON = "application/json"
_CONNECTIONS = 8
_CALLS = 200  # of a bare function in one round


def measure_content(effort: Effort) -> list[Row]:
    """Both texts: the floor, the bare functions, the endpoint."""
    bodies = {name: json.dumps({"content": read_text(name), "detectors": {"pii": {}}}) for name in _TEXTS}
    with tempfile.TemporaryDirectory() as folder, open_lockgate(_CONFIG, Path(folder)) as server:
        answers = {f"/{name}": _ask(server, body) for name, body in bodies.items()}
        with open_floor(answers, Path(folder)) as floor:
            best, bare = _measure_in_turn(server, floor, bodies, effort)
    return [row for name in _TEXTS for row in _rows(name, best, bare, effort.content_requests)]


def _ask(server: Server, body: str) -> bytes:
    connection = HTTPConnection(HOST, server.port, timeout=30)
    connection.request("POST", CONTENT_PATH, body, {"content-type": _JSON})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(answer.decode())
    return answer


def _measure_in_turn(
    server: Server, floor: Server, bodies: Mapping[str, str], effort: Effort
) -> tuple[dict[str, Load], dict[str, float]]:
    """The best of each, all taking turns, so that a slow moment of the machine meets all alike."""
    best: dict[str, Load] = {}
    bare: dict[str, float] = {}
    works = _build_bare()
    for _ in range(effort.rounds):
        for name, body in bodies.items():
            for key, one, path in (
                (f"floor {name}", floor, f"/{name}"),
                (f"parts {name}", floor, f"{PARTS}/{name}"),
                (f"served {name}", server, CONTENT_PATH),
            ):
                taken = load(one, _job(path, body, effort.content_requests))
                best[key] = min(best.get(key, taken), taken)
        for name, taken_s in best_cpu_s(works, 1).items():
            bare[name] = min(bare.get(name, taken_s), taken_s / _CALLS)
    return best, bare


def _job(path: str, body: str, requests: int) -> dict[str, Any]:
    return {
        "kind": "requests",
        "path": path,
        "type": _JSON,
        "body": body,
        "requests": requests,
        "connections": _CONNECTIONS,
    }


def _build_bare() -> dict[str, Callable[[], None]]:
    """The chunker machine and the detector's function, which reads the text in one piece or chunk by chunk."""
    judge = load_stop_judge()
    scan = asyncio.run(open_scan())
    works: dict[str, Callable[[], None]] = {}
    for name in _TEXTS:
        text = read_text(name)
        chunks = cut(SentenceMachine(SENTENCE_MAX_CHARS, judge), text)
        works[f"chunker {name}"] = partial(_cut_often, text, judge)
        works[f"detector {name}"] = partial(_scan_often, scan, [text])
        works[f"by chunk {name}"] = partial(_scan_often, scan, [chunk.text for chunk in chunks])
    return works


def _cut_often(text: str, judge: StopJudge) -> None:
    for _ in range(_CALLS):
        cut(SentenceMachine(SENTENCE_MAX_CHARS, judge), text)


def _scan_often(scan: Scan, texts: Sequence[str]) -> None:
    for _ in range(_CALLS):
        for text in texts:
            scan(text)


def _rows(name: str, best: Mapping[str, Load], bare: Mapping[str, float], requests: int) -> list[Row]:
    floor, parts, served = (best[f"{key} {name}"] for key in ("floor", "parts", "served"))
    chunker, detector = bare[f"chunker {name}"], bare[f"detector {name}"]
    in_loops = floor.cpu_s / requests + chunker + detector
    return [
        Row(f"{name}: floor, CPU per request", micros(floor.cpu_s, requests), "us"),
        Row(f"{name}: floor with bare chunker and detector", micros(parts.cpu_s, requests), "us"),
        Row(f"{name}: detection/content, CPU per request", micros(served.cpu_s, requests), "us"),
        Row(f"{name}: to floor + bare chunker + bare detector", served.cpu_s / parts.cpu_s, "x", TARGET),
        Row(f"{name}: bare chunker, in a loop of its own", micros(chunker, 1), "us"),
        Row(f"{name}: bare detector, in a loop of its own", micros(detector, 1), "us"),
        Row(f"{name}: the same, sentence by sentence", micros(bare[f"by chunk {name}"], 1), "us"),
        Row(f"{name}: for comparison, to the floor and those loops", served.cpu_s / requests / in_loops, "x"),
        Row(f"{name}: floor, requests per second", requests / floor.wall_s, "1/s"),
        Row(f"{name}: detection/content, requests per second", requests / served.wall_s, "1/s"),
    ]
