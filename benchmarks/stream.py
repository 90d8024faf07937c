# SPDX-License-Identifier: Apache-2.0
"""detection/stream-content with detectors on words, sentences and paragraphs, beside a bare streaming handler."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.floor import STREAM_PATH
from benchmarks.measuring import Effort, Row, micros, read_text
from benchmarks.processes import Load, Server, holding, load, open_floor, open_lockgate
from lockgate.api.endpoints import STREAM_CONTENT_PATH

_CONFIG = """
detectors:
  words: {embedded: keywords, chunker_id: word, options: {keywords: [bluebird]}}
  sentences: {embedded: pii, chunker_id: sentence}
  paragraphs: {embedded: secrets, chunker_id: paragraph}
"""
_DETECTORS: dict[str, Any] = {"words": {}, "sentences": {}, "paragraphs": {}}
_NDJSON = "application/x-ndjson"
_CONNECTIONS = 4
_NAMES = ("floor", "served")


def measure_stream(effort: Effort) -> list[Row]:
    """CPU per request and KB, requests per second, memory per open stream."""
    text = "\n".join([read_text("plain"), read_text("findings")] * 2)
    lines = build_lines(text)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_lockgate(_CONFIG, Path(folder)) as server,
        open_floor({}, Path(folder)) as floor,
    ):
        servers = {"floor": (floor, STREAM_PATH), "served": (server, STREAM_CONTENT_PATH)}
        best = _load_in_turn(servers, lines, effort)
        held = {name: _measure_held(*servers[name], lines, effort.open_streams) for name in _NAMES}
    size = len(text) / 1024
    return [
        Row("text per request, one word a line", size, "KB"),
        Row("lines per request", len(lines), ""),
        *(row for name in _NAMES for row in _rows(name, best[name], effort.stream_requests, size)),
        Row("detection/stream-content to the floor", best["served"].cpu_s / best["floor"].cpu_s, "x"),
        *(Row(f"{_title(name)}, memory per open stream", held[name], "KB") for name in _NAMES),
    ]


def build_lines(text: str) -> list[str]:
    """The request: one word a line, as a model would send it; the first line names the detectors."""
    words = re.findall(r"\S+\s*", text)
    first = json.dumps({"detectors": _DETECTORS, "content": words[0]})
    return [first, *(json.dumps({"content": word}) for word in words[1:])]


def _load_in_turn(servers: dict[str, tuple[Server, str]], lines: list[str], effort: Effort) -> dict[str, Load]:
    best: dict[str, Load] = {}
    for _ in range(effort.rounds):
        for name, (server, path) in servers.items():
            taken = load(server, _job("streams", path, lines, _CONNECTIONS) | {"requests": effort.stream_requests})
            best[name] = min(best.get(name, taken), taken)
    return best


def _measure_held(server: Server, path: str, lines: list[str], streams: int) -> float:
    before = server.resident_kb()
    with holding(server, _job("hold", path, lines[:1], streams)):
        return (server.resident_kb() - before) / streams


def _job(kind: str, path: str, lines: list[str], connections: int) -> dict[str, Any]:
    return {"kind": kind, "path": path, "type": _NDJSON, "lines": lines, "connections": connections}


def _title(name: str) -> str:
    return "floor" if name == "floor" else "detection/stream-content"


def _rows(name: str, taken: Load, requests: int, size_kb: float) -> list[Row]:
    title = _title(name)
    return [
        Row(f"{title}, CPU per request", micros(taken.cpu_s, requests) / 1000, "ms"),
        Row(f"{title}, CPU per KB", micros(taken.cpu_s, requests) / size_kb, "us"),
        Row(f"{title}, requests per second", requests / taken.wall_s, "1/s"),
    ]
