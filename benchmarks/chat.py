# SPDX-License-Identifier: Apache-2.0
"""The generating endpoint beside a minimal relay before the same scripted model: CPU per token and per request."""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.floor import open_scan
from benchmarks.measuring import Effort, Row, best_cpu_s, micros, read_answer
from benchmarks.processes import HOST, Load, Server, load, open_lockgate, open_relay, open_upstream
from benchmarks.upstream import BURST, CHAT_PATH, PACED
from lockgate.chunkers.machines import SENTENCE_MAX_CHARS, cut
from lockgate.chunkers.sentences import SentenceMachine, StopJudge, load_stop_judge
from lockgate.detectors.scans import Scan
from lockgate.gate.sse import SseParser

CHAT_DETECTION_PATH = "/api/v2/chat/completions-detection"
PASSTHROUGH_TARGET, GUARDED_TARGET, UNARY_TARGET = 1.5, 2.0, 2.5
_CONFIG = """
openai: {{service: {{hostname: {host}, port: {port}}}}}
detectors:
  pii: {{embedded: pii, chunker_id: sentence}}
  remote:
    type: text_contents
    chunker_id: sentence
    default_threshold: 0.5
    service: {{hostname: {host}, port: {port}}}
"""
_MESSAGES = [
    {"role": "system", "content": "You answer guests of a small agency that lets houses by the sea. Be brief."},
    {"role": "user", "content": "Can I still change the date of my stay, and whom would I have to tell?"},
]
EMBEDDED: dict[str, Any] = {"output": {"pii": {}}}
_REMOTE: dict[str, Any] = {"output": {"remote": {}}}
_CONNECTIONS = 8
_PACED_ROUNDS = 3  # each takes two seconds; the others are short, and there are twice as many of them
_CALLS = 200  # of the bare functions in one round


class Case(NamedTuple):
    """One row's load: `how` is unary, burst or paced; without `detectors` text only passes through."""

    name: str
    how: str
    detectors: Mapping[str, Any] | None = None
    target: float | None = None


CASES = (
    Case("passthrough stream", "burst", None, PASSTHROUGH_TARGET),
    Case("guarded stream, embedded", "burst", EMBEDDED, GUARDED_TARGET),
    Case("guarded stream, remote detector", "burst", _REMOTE),
    Case("passthrough stream", "paced", None, PASSTHROUGH_TARGET),
    Case("guarded stream, embedded", "paced", EMBEDDED, GUARDED_TARGET),
    Case("guarded stream, remote detector", "paced", _REMOTE),
    Case("unary chat", "unary", None, UNARY_TARGET),
    Case("unary chat, guarded, embedded", "unary", EMBEDDED),
)
TITLES = {"burst": "burst", "paced": "one token at a time", "unary": "unary"}


def measure_chat(effort: Effort) -> list[Row]:
    """The floor and every case, for each way to answer."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_upstream() as upstream,
        open_relay(upstream) as relay,
        open_lockgate(build_config(upstream), Path(folder)) as server,
    ):
        for case in CASES:
            check(server, CHAT_DETECTION_PATH, case, effort)
        rows = [row for how in TITLES for row in _measure(how, relay, server, effort)]
    return [*rows, *_measure_bare(effort, {row.name: row.value for row in rows})]


def build_config(upstream: Server) -> str:
    """Lockgate's settings: the scripted model, an embedded and a remote detector."""
    return _CONFIG.format(host=HOST, port=upstream.port)


def build_job(path: str, case: Case, effort: Effort) -> dict[str, Any]:
    """The job for the client."""
    is_paced = case.how == "paced"
    counts = {"unary": effort.content_requests, "burst": effort.chat_requests, "paced": effort.chat_streams}
    body: dict[str, Any] = {"model": f"{PACED}{effort.pace_ms}" if is_paced else BURST, "messages": _MESSAGES}
    if case.how != "unary":
        body["stream"] = True
    if case.detectors is not None:
        body["detectors"] = case.detectors
    return {
        "kind": "requests",
        "path": path,
        "type": "application/json",
        "body": json.dumps(body),
        "requests": counts[case.how],
        "connections": effort.chat_streams if is_paced else _CONNECTIONS,
    }


def check(server: Server, path: str, case: Case, effort: Effort) -> None:
    """Nothing is measured that does not give the whole answer."""
    job = build_job(path, case, effort)
    connection = HTTPConnection(HOST, server.port, timeout=30)
    connection.request("POST", path, job["body"], {"content-type": job["type"]})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != 200 or _text_of(answer, case.how) != "".join(read_answer()):
        raise RuntimeError(f"{case.name}, {case.how}: {answer.decode()}")


def _text_of(answer: bytes, how: str) -> str:
    if how == "unary":
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    events = [event.data for event in SseParser().feed(answer) if event.data != "[DONE]"]
    choices = [choice for event in events for choice in json.loads(event).get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _measure(how: str, relay: Server, server: Server, effort: Effort) -> list[Row]:
    cases = [case for case in CASES if case.how == how]
    servers = {"floor": (relay, build_job(CHAT_PATH, Case("floor", how), effort))}
    servers |= {case.name: (server, build_job(CHAT_DETECTION_PATH, case, effort)) for case in cases}
    best = load_in_turn(servers, min(effort.rounds, _PACED_ROUNDS) if how == "paced" else 2 * effort.rounds)
    floor, per = best["floor"], per_one(how, effort)
    rows = [Row(f"{TITLES[how]}: floor, CPU per {per.unit}", micros(floor.cpu_s, per.number), "us")]
    for case in cases:
        taken = best[case.name]
        rows += [
            Row(f"{TITLES[how]}: {case.name}, CPU per {per.unit}", micros(taken.cpu_s, per.number), "us"),
            Row(f"{TITLES[how]}: {case.name}, to the floor", taken.cpu_s / floor.cpu_s, "x", case.target),
        ]
    if how == "paced":
        busy = max(taken.cpu_s / taken.wall_s for taken in best.values())
        rows.append(Row(f"{TITLES[how]}: most of a core in use; near 1, tokens would merge", busy, ""))
    return rows


def load_in_turn(servers: Mapping[str, tuple[Server, Mapping[str, Any]]], rounds: int) -> dict[str, Load]:
    """The best of each, all taking turns."""
    best: dict[str, Load] = {}
    for _ in range(rounds):
        for name, (server, job) in servers.items():
            taken = load(server, job)
            best[name] = min(best.get(name, taken), taken)
    return best


class Per(NamedTuple):
    """What CPU time is divided by."""

    unit: str
    number: int


def per_one(how: str, effort: Effort) -> Per:
    """Requests of unary chat, tokens of streams."""
    if how == "unary":
        return Per("request", effort.content_requests)
    streams = effort.chat_streams if how == "paced" else effort.chat_requests
    return Per("token", streams * len(read_answer()))


def _measure_bare(effort: Effort, measured: Mapping[str, float]) -> list[Row]:
    """What of the guarded answers is spent in the chunker and the detector themselves."""
    works = {"bare": partial(_cut_and_scan, read_answer(), load_stop_judge(), asyncio.run(open_scan()))}
    taken_s = best_cpu_s(works, effort.rounds)["bare"] / _CALLS
    floor = measured["unary: floor, CPU per request"]
    served = measured["unary: unary chat, guarded, embedded, CPU per request"]
    to_both = served / (floor + micros(taken_s, 1))
    return [
        Row("bare sentence and pii, in a loop of their own, CPU per token", micros(taken_s, len(read_answer())), "us"),
        Row("bare sentence and pii, in a loop of their own, CPU per answer", micros(taken_s, 1), "us"),
        Row("for comparison, unary chat, guarded, to the floor and that loop", to_both, "x"),
    ]


def _cut_and_scan(pieces: list[str], judge: StopJudge, scan: Scan) -> None:
    text = "".join(pieces)
    for _ in range(_CALLS):
        for chunk in cut(SentenceMachine(SENTENCE_MAX_CHARS, judge), text):
            scan(chunk.text)
