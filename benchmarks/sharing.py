# SPDX-License-Identifier: Apache-2.0
"""What many streams share: requests to a remote detector, and the models that run here.

Guarded streams before a detector that looks at one call at a time: how many a second, if the chunks of streams share
requests and if each goes alone. Then the longest pause of the event loop while models that run here read what streams
say.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chat import CHAT_DETECTION_PATH
from benchmarks.grounded import STREAM_PATH, ask, build_body, open_spaces
from benchmarks.loop_watch import read_pauses
from benchmarks.measuring import Effort, Row
from benchmarks.processes import (
    HOST,
    Server,
    free_port,
    load,
    open_lockgate,
    open_upstream,
    running,
    time_requests,
)
from benchmarks.slow_detector import CALLS_PATH
from benchmarks.spaces import MODEL
from benchmarks.upstream import BURST
from lockgate.models.weights import find_weights


class ModelDetector(NamedTuple):
    """A detector with a model: what opens it, which weights it needs, the sections of a request in which it reads."""

    factory: str
    weights: tuple[str, ...]
    sections: tuple[str, ...]
    type: str = "text_contents"


_TEXTS = ("input", "output")
MODEL_DETECTORS = {
    "prompt_injection": ModelDetector(
        "lockgate.detectors.injection.detector:open_injection_detector", ("prompt_injection",), _TEXTS
    ),
    "toxicity": ModelDetector("lockgate.detectors.toxicity.detector:open_toxicity_detector", ("toxicity",), _TEXTS),
    "language": ModelDetector("lockgate.detectors.language:open_language_detector", (), _TEXTS),
    "groundedness": ModelDetector(
        "lockgate.detectors.groundedness.detector:open_groundedness_detector",
        ("minilm",),
        ("grounding",),
        "text_context_doc",
    ),
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"language": {"allow": ["en"]}}
SPEED_TARGET, PAUSE_TARGET_MS = 3.0, 50.0
_ROUNDS = 2  # at most: without sharing, one takes ten seconds
_ROOT = Path(__file__).resolve().parents[1]
_MILLI = 1e3
_STAGGER_S = 0.03
_MESSAGES = [{"role": "user", "content": "Can I still change the date of my stay, and whom would I have to tell?"}]
_TOGETHER, _ALONE = "together", "alone"


def measure_sharing(effort: Effort) -> list[Row]:
    """Streams per second before a busy detector, then pauses of the loop."""
    return [*_measure_remote(effort), *_measure_models(effort)]


class _Pace(NamedTuple):
    """How fast streams were served, and by how many calls of the detector with how many texts."""

    per_second: float
    calls: int
    texts: int


def _measure_remote(effort: Effort) -> list[Row]:
    streams = effort.open_streams
    with (
        tempfile.TemporaryDirectory() as folder,
        open_upstream() as model,
        _open_slow_detector() as detector,
        open_lockgate(_build_remote_config(model, detector), Path(folder)) as server,
    ):
        best: dict[str, _Pace] = {}
        for _ in range(min(effort.rounds, _ROUNDS)):
            for name in (_TOGETHER, _ALONE):
                pace = _serve(server, detector, name, streams)
                best[name] = max(best.get(name, pace), pace)
    together, alone = best[_TOGETHER], best[_ALONE]
    title = f"{streams} streams, remote detector of 5 ms a call"
    return [
        Row(f"{title}, chunks alone", alone.per_second, "1/s"),
        Row(f"{title}, together", together.per_second, "1/s"),
        Row("together to alone", together.per_second / alone.per_second, "x", SPEED_TARGET, is_minimum=True),
        Row("chunks per stream", alone.texts / streams, ""),
        Row("chunks per call, together", together.texts / together.calls, ""),
    ]


@contextmanager
def _open_slow_detector() -> Iterator[Server]:
    port = free_port()
    with running([sys.executable, "-m", "benchmarks.slow_detector", str(port)], port) as server:
        yield server


def _build_remote_config(model: Server, detector: Server) -> str:
    def service(server: Server) -> dict[str, Any]:
        return {"service": {"hostname": HOST, "port": server.port}}

    shape = {"type": "text_contents", "chunker_id": "sentence", "default_threshold": 0.5, **service(detector)}
    detectors = {_TOGETHER: shape, _ALONE: {**shape, "batch_contents": 1}}
    return json.dumps({"openai": service(model), "detectors": detectors})


def _serve(server: Server, detector: Server, name: str, streams: int) -> _Pace:
    body = {"model": BURST, "stream": True, "messages": _MESSAGES, "detectors": {"output": {name: {}}}}
    taken = load(server, _job(CHAT_DETECTION_PATH, json.dumps(body), streams, streams))
    calls, texts = json.loads(ask(detector, CALLS_PATH))
    return _Pace(streams / taken.wall_s, calls, texts)


def _job(path: str, body: str, requests: int, connections: int) -> dict[str, Any]:
    job = {"kind": "requests", "path": path, "type": "application/json", "body": body}
    return job | {"requests": requests, "connections": connections}


def _measure_models(effort: Effort) -> list[Row]:
    """The least of some rounds, for on a busy machine the loop also pauses when others run."""
    present = {name: one for name, one in MODEL_DETECTORS.items() if find_spec(one.factory.partition(":")[0])}
    data_dir = Path(os.environ.get("LOCKGATE_DATA_DIR", _ROOT / ".lockgate"))
    if not all(find_weights(data_dir, name) for one in present.values() for name in one.weights):
        return [Row("weights are missing: run `lockgate setup`", 0, "", 1, is_minimum=True)]
    streams = max(1, effort.open_streams // 4)
    with tempfile.TemporaryDirectory() as folder, open_spaces() as spaces:
        noted = Path(folder) / "pauses"
        with open_lockgate(_build_models_config(present, noted, data_dir), Path(folder)) as server:
            pace_ms = 2 * effort.pace_ms
            bodies = {"without": _build_body(spaces, {}, pace_ms), "with": _build_body(spaces, present, pace_ms)}
            found: dict[str, list[_Longest]] = {name: [] for name in bodies}
            for _ in range(1 + min(effort.rounds, _ROUNDS)):  # the first is to warm up
                for name, body in bodies.items():
                    found[name].append(_find_longest(server, body, streams, noted))
    best = {name: min(longest[1:]) for name, longest in found.items()}
    title = f"{streams} streams, longest pause of the loop"
    return [
        Row(f"{title}, no detectors", best["without"].wall_ms, "ms"),
        Row(f"{title}, with models", best["with"].wall_ms, "ms", PAUSE_TARGET_MS),
        Row(f"{title}, with models, on a processor", best["with"].own_ms, "ms"),
        Row(f"models: {', '.join(present)}", len(present), ""),
    ]


class _Longest(NamedTuple):
    """The longest pause as the clock saw it, and the longest without what was spent waiting for a processor."""

    wall_ms: float
    own_ms: float


def _build_models_config(present: Mapping[str, ModelDetector], noted: Path, data_dir: Path) -> str:
    detectors: dict[str, Any] = {
        name: {
            "type": one.type,
            "embedded": one.factory,
            "chunker_id": "sentence",
            "default_threshold": 0.5,
            "options": OPTIONS.get(name, {}),
        }
        for name, one in present.items()
    }
    detectors["watch"] = {"embedded": "benchmarks.loop_watch:open_watch", "options": {"file": str(noted)}}
    return json.dumps({"detectors": detectors, "aggregator": {"model_streaming": True}, "data_dir": str(data_dir)})


def _build_body(spaces: Server, present: Mapping[str, ModelDetector], pace_ms: int) -> str:
    chosen: dict[str, dict[str, Any]] = {}
    for name, one in present.items():
        for section in one.sections:
            chosen.setdefault(section, {})[name] = {}
    body = json.loads(build_body(spaces, 0, chosen))
    body["data_sources"] = body["data_sources"][:1]
    body["model"]["slug"] = f"{MODEL}-0-{pace_ms}"
    return json.dumps(body)


def _find_longest(server: Server, body: str, streams: int, noted: Path) -> _Longest:
    """While so many streams are open, which began one after the other."""
    since = time.monotonic()
    job = _job(STREAM_PATH, body, streams, streams) | {"mark": "event: done", "stagger_s": _STAGGER_S}
    time_requests(server, job)
    pauses = read_pauses(noted, since)
    wall_s = max([pause.late_s for pause in pauses], default=0.0)
    own_s = max([pause.late_s - pause.idle_s for pause in pauses], default=0.0)
    return _Longest(wall_s * _MILLI, own_s * _MILLI)
