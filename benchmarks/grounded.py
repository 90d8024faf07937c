# SPDX-License-Identifier: Apache-2.0
"""The grounded answers beside a floor that makes the same six calls: CPU per request, and the time that we add.

Five sources with five documents of 2 KB each, and a model. CPU time is measured with sources and model that take no
time, latency with such that take 50 ms.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.chat import load_in_turn
from benchmarks.measuring import Effort, Row, micros, read_answer
from benchmarks.processes import HOST, Server, Timed, free_port, open_lockgate, running, time_requests
from benchmarks.spaces import DOCUMENTS, MODEL, SOURCE, SOURCES
from lockgate.gate.sse import SseParser

CHAT_PATH, STREAM_PATH = "/api/v1/chat", "/api/v1/chat/stream"
CPU_TARGET, BEYOND_TARGET_MS, FIRST_TARGET_MS = 2.5, 5.0, 5.0
GUARDED: dict[str, Any] = {"input": {"pii": {}}, "documents": {"pii": {}}, "output": {"pii": {}}}
_CONFIG = "detectors:\n  pii: {embedded: pii, chunker_id: sentence}\n"
_STREAMING = _CONFIG + "aggregator: {model_streaming: true}\n"
_PROMPT = "Can I still change the date of my stay, and whom would I have to tell?"
_DELAY_MS = 50
_CONNECTIONS = 8
_STREAMS = 32
_MILLI = 1e3
_SIZE_MARGIN = 0.01  # the digits of times differ, and how signs are escaped


def measure_grounded(effort: Effort) -> list[Row]:
    """CPU beside the floor, then times, then tokens as they come."""
    with tempfile.TemporaryDirectory() as name, open_spaces() as spaces:
        folder = Path(name)
        with open_lockgate(_CONFIG, folder) as server, _open_equal_floor(spaces, server, folder) as floor:
            rows = [
                *_measure_cpu(spaces, server, floor, effort),
                *_measure_beyond(spaces, server, floor, effort),
                *_measure_first(spaces, server, effort),
            ]
        with open_lockgate(_STREAMING, folder) as server:
            return rows + _measure_tokens(spaces, server, effort)


@contextmanager
def open_spaces() -> Iterator[Server]:
    """The scripted sources and their model."""
    port = free_port()
    with running([sys.executable, "-m", "benchmarks.spaces", str(port)], port) as server:
        yield server


@contextmanager
def open_floor(prompt: bytes, answer: bytes, folder: Path) -> Iterator[Server]:
    """The bare handler, with this request for the model and this answer."""
    path, port = folder / "constants.json", free_port()
    path.write_text(json.dumps({"prompt": json.loads(prompt), "answer": json.loads(answer)}), encoding="utf-8")
    with running([sys.executable, "-m", "benchmarks.spaces_floor", str(port), str(path)], port) as server:
        yield server


def build_body(spaces: Server, delay_ms: int, detectors: Mapping[str, Any] | None = None) -> str:
    """A request of five sources and a model that take so long."""
    url = f"http://{HOST}:{spaces.port}"
    owners = [f"owner-{number}" for number in range(SOURCES)]
    body: dict[str, Any] = {
        "prompt": _PROMPT,
        "model": {"url": url, "slug": f"{MODEL}-{delay_ms}", "owner_username": owners[0]},
        "data_sources": [
            {"url": url, "slug": f"{SOURCE}{number}-{delay_ms}", "owner_username": owner}
            for number, owner in enumerate(owners)
        ],
        "endpoint_tokens": {owner: f"token-of-{owner}" for owner in owners},
    }
    return json.dumps(body if detectors is None else {**body, "detectors": detectors})


def ask(server: Server, path: str, body: str | None = None) -> bytes:
    """One request; without a body a GET."""
    connection = HTTPConnection(HOST, server.port, timeout=30)
    connection.request("GET" if body is None else "POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path}: {answer.decode()}")
    return answer


def check(server: Server, body: str) -> bytes:
    """Nothing is measured that does not give the whole answer with all documents, whole and as a stream."""
    raw = ask(server, CHAT_PATH, body)
    answer = json.loads(raw)
    events = [(event.event, json.loads(event.data)) for event in SseParser().feed(ask(server, STREAM_PATH, body))]
    streamed = "".join([told["content"] for name, told in events if name == "token"])
    counts = [len(answer["sources"]), len(events[-1][1].get("sources", ()))]
    if not answer["response"] == streamed == "".join(read_answer()) or counts != [SOURCES * DOCUMENTS] * 2:
        raise RuntimeError(f"the answer is not whole: {counts} documents, {answer['response']!r}, {streamed!r}")
    return raw


def _job(path: str, body: str, requests: int, connections: int) -> dict[str, Any]:
    return {
        "kind": "requests",
        "path": path,
        "type": "application/json",
        "body": body,
        "requests": requests,
        "connections": connections,
        "mark": "event: done",
    }


@contextmanager
def _open_equal_floor(spaces: Server, server: Server, folder: Path) -> Iterator[Server]:
    """The floor for what Lockgate sends and answers."""
    body = build_body(spaces, 0)
    answer, prompt = check(server, body), ask(spaces, "/prompt")
    with open_floor(prompt, answer, folder) as floor:
        sizes = len(ask(floor, CHAT_PATH, body)) / len(answer), len(ask(spaces, "/prompt")) / len(prompt)
        if max(abs(size - 1.0) for size in sizes) > _SIZE_MARGIN:
            raise RuntimeError(f"the floor's messages have another size: {sizes}")
        yield floor


def _measure_cpu(spaces: Server, server: Server, floor: Server, effort: Effort) -> list[Row]:
    count, rounds = effort.grounded_requests, effort.rounds
    plain, guarded = build_body(spaces, 0), build_body(spaces, 0, GUARDED)
    check(server, guarded)
    servers = {
        "floor": (floor, _job(CHAT_PATH, plain, count, _CONNECTIONS)),
        "chat": (server, _job(CHAT_PATH, plain, count, _CONNECTIONS)),
        "stream": (server, _job(STREAM_PATH, plain, count, _CONNECTIONS)),
    }
    best = load_in_turn(servers, rounds)
    best |= load_in_turn({"guarded": (server, _job(CHAT_PATH, guarded, count, _CONNECTIONS))}, rounds // 2 or 1)
    floor_s = best["floor"].cpu_s
    return [
        Row("floor: six bare calls, CPU per request", micros(floor_s, count), "us"),
        Row("chat, CPU per request", micros(best["chat"].cpu_s, count), "us"),
        Row("chat, to the floor", best["chat"].cpu_s / floor_s, "x", CPU_TARGET),
        Row("chat/stream, CPU per request", micros(best["stream"].cpu_s, count), "us"),
        Row("chat/stream, to the floor", best["stream"].cpu_s / floor_s, "x"),
        Row("chat, guarded: pii on prompt, documents, answer, CPU", micros(best["guarded"].cpu_s, count), "us"),
        Row("chat, guarded, to the floor", best["guarded"].cpu_s / floor_s, "x"),
        Row("chat, requests per second", count / best["chat"].wall_s, "1/s"),
    ]


def _measure_beyond(spaces: Server, server: Server, floor: Server, effort: Effort) -> list[Row]:
    """What a request takes beyond its slowest source and its model: the best median of some rounds."""
    best: dict[str, float] = {}
    for _ in range(effort.rounds):
        for name, one, connections in (("floor", floor, 1), ("one", server, 1), ("eight", server, _CONNECTIONS)):
            job = _timed_job(spaces, CHAT_PATH, effort.grounded_requests // 4, connections)
            taken = time_requests(one, job)
            beyond_ms = _median(_beyond_ms(taken, json.loads(ask(spaces, "/times"))))
            best[name] = min(best.get(name, beyond_ms), beyond_ms)
    title = f"{_DELAY_MS} ms each: beyond source and model, p50"
    return [
        Row(f"{title}, floor", best["floor"], "ms"),
        Row(f"{title}, chat", best["one"], "ms", BEYOND_TARGET_MS),
        Row(f"{title}, chat, 8 at once", best["eight"], "ms"),
    ]


def _beyond_ms(taken: Sequence[Timed], times: Mapping[str, list[tuple[str, float]]]) -> list[float]:
    """Source and model are counted as they themselves saw it, from the request's last byte to the answer."""
    beyond = []
    for one in taken:
        slowest = {who: max([took for asked, took in times[one.id] if asked == who]) for who in (SOURCE, MODEL)}
        beyond.append((one.whole_s - sum(slowest.values())) * _MILLI)
    return beyond


def _measure_first(spaces: Server, server: Server, effort: Effort) -> list[Row]:
    """Of streams that follow one another without a pause, and of such that all begin at once: the best medians."""
    streams = min(_STREAMS, effort.chat_streams)
    steady = _timed_job(spaces, STREAM_PATH, 8 * streams, streams)
    together = _timed_job(spaces, STREAM_PATH, streams, streams) | {"stagger_s": 0.0}
    first_ms, last_ms, together_ms = [], [], []
    for _ in range(2 * effort.rounds):  # each takes a second; on a busy machine few of those are quiet
        taken = time_requests(server, steady)
        first_ms.append(_median([one.first_s for one in taken]) * _MILLI)
        last_ms.append(_median([one.whole_s for one in taken]) * _MILLI)
        together_ms.append(_median([one.first_s for one in time_requests(server, together)]) * _MILLI)
    ask(spaces, "/times")
    title = f"{_DELAY_MS} ms each: chat/stream, {streams} at once, p50 of the"
    return [
        Row(f"{title} first event", min(first_ms), "ms", FIRST_TARGET_MS),
        Row(f"{title} last event", min(last_ms), "ms"),
        Row(f"{_DELAY_MS} ms each: first event of {streams} in one instant, p50", min(together_ms), "ms"),
    ]


def _timed_job(spaces: Server, path: str, requests: int, connections: int) -> dict[str, Any]:
    """Connections that are not in step."""
    job = _job(path, build_body(spaces, _DELAY_MS), max(requests, connections), connections)
    return job | {"stagger_s": 2 * _DELAY_MS / _MILLI / connections}


def _measure_tokens(spaces: Server, server: Server, effort: Effort) -> list[Row]:
    """The model speaks as fast as it can be heard."""
    bodies = {"streamed": build_body(spaces, 0), "guarded": build_body(spaces, 0, {"output": {"pii": {}}})}
    for body in bodies.values():
        check(server, body)
    count = effort.grounded_requests
    servers = {name: (server, _job(STREAM_PATH, body, count, _CONNECTIONS)) for name, body in bodies.items()}
    best = load_in_turn(servers, effort.rounds // 2 or 1)
    tokens = count * len(read_answer())
    return [
        Row("tokens as they come, CPU per request", micros(best["streamed"].cpu_s, count), "us"),
        Row("tokens as they come, per second", tokens / best["streamed"].wall_s, "1/s"),
        Row("tokens as they come, pii on the answer, CPU per request", micros(best["guarded"].cpu_s, count), "us"),
        Row("tokens as they come, pii on the answer, per second", tokens / best["guarded"].wall_s, "1/s"),
    ]


def _median(values: Sequence[float]) -> float:
    """The one in the middle."""
    return float(statistics.median(values))
