# SPDX-License-Identifier: Apache-2.0
"""The core machines, per frame, beside decoding and encoding one OpenAI chunk; and how they grow with the text.

Three detectors read words, sentences of 20 frames and paragraphs of 80. Chunks and answers are made beforehand:
chunkers and detectors are not of the core.
"""

import itertools
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from benchmarks.measuring import Effort, Row, best_cpu_s, micros, read_text
from lockgate.gate.batcher import DetectorSpec
from lockgate.gate.lanes import LanePlan, Lanes, Outcome
from lockgate.gate.release import Release, ReleaseGate, Strategy
from lockgate.gate.sse import SseParser, encode_event
from lockgate.gate.values import Chunk, Detection, Frame
from lockgate.gate.verdicts import Action, Judge, Measures

GATE_TARGET, ALL_TARGET, GROWTH_TARGET = 3.0, 8.0, 12.0
_SHORT_CHARS, _LONG_CHARS = 10_000, 100_000
_GRAINS = {"word": 1, "sentence": 20, "paragraph": 80}  # frames per chunk
_FINDING_EVERY = 200  # frames
_HEAD = (
    '{"id":"chatcmpl-8f2b6c1de0a94b7f","object":"chat.completion.chunk","created":1700000000,'
    '"model":"granite-3.1-8b-instruct","system_fingerprint":null,"choices":[{"index":0,"delta":{"content":'
)
_TAIL = '},"logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}'


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int
    delta: _Delta
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: str | None = None


class _ChatChunk(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[_Choice]
    usage: Any = None


class Reading(NamedTuple):
    """A chunk that a frame completes, and what its detector will answer."""

    chunker: str
    chunk: Chunk
    findings: Sequence[Sequence[Detection]]


class Step(NamedTuple):
    """One frame: its text, the bytes in which it came, and what can then be read."""

    text: str
    sent: bytes
    readings: tuple[Reading, ...]


def measure_core(effort: Effort) -> list[Row]:
    """CPU per frame."""
    steps = build_steps(effort.frames)
    raw = (_HEAD + '" harbour"' + _TAIL).encode()
    cpu = best_cpu_s(
        {
            "untyped": partial(_code, raw, msgspec.json.Decoder(), len(steps)),
            "typed": partial(_code, raw, msgspec.json.Decoder(_ChatChunk), len(steps)),
            **{f"gate {one.value}": partial(run_gate, steps, one) for one in Strategy},
            **{f"all {one.value}": partial(run_all, steps, one) for one in Strategy},
        },
        effort.rounds,
    )
    floor = cpu["untyped"]
    rows = [
        Row("floor: decode and encode one chat chunk, no field lost", micros(floor, len(steps)), "us"),
        Row("for comparison: the same with typed fields", micros(cpu["typed"], len(steps)), "us"),
    ]
    for part, target in (("gate", GATE_TARGET), ("all", ALL_TARGET)):
        for one in Strategy:
            taken = cpu[f"{part} {one.value}"]
            what = "release gate alone" if part == "gate" else "all core machines"
            rows.append(Row(f"{what}, {one.value}", micros(taken, len(steps)), "us"))
            rows.append(Row(f"{what}, {one.value}, to the floor", taken / floor, "x", target))
    return rows


def measure_growth(effort: Effort) -> list[Row]:
    """All core machines with ten times the text."""
    long = build_steps(_LONG_CHARS, is_chars=True)
    short = build_steps(_SHORT_CHARS, is_chars=True)
    rows = []
    for one in Strategy:
        cpu = best_cpu_s({"short": partial(run_all, short, one), "long": partial(run_all, long, one)}, effort.rounds)
        rows.append(Row(f"10 KB through all core machines, {one.value}", micros(cpu["short"], 1000), "ms"))
        rows.append(Row(f"100 KB through all core machines, {one.value}", micros(cpu["long"], 1000), "ms"))
        rows.append(Row(f"100 KB to 10 KB, {one.value}", cpu["long"] / cpu["short"], "x", GROWTH_TARGET))
    return rows


def build_steps(size: int, *, is_chars: bool = False) -> list[Step]:
    """So many frames, or frames of so many characters, with the chunks that end in each."""
    texts: list[str] = []
    total = 0
    for word in itertools.cycle(re.findall(r"\S+\s*", read_text("plain"))):
        if (total if is_chars else len(texts)) >= size:
            break
        texts.append(word)
        total += len(word)
    cuts = [_cut(texts, name) for name in _GRAINS]
    return [
        Step(text, _as_event(text), tuple(readings[at] for readings in cuts if at in readings))
        for at, text in enumerate(texts)
    ]


def _cut(texts: Sequence[str], chunker: str) -> dict[int, Reading]:
    """The chunker's chunks, by the number of their last frame."""
    readings, start, grain = {}, 0, _GRAINS[chunker]
    for first in range(0, len(texts), grain):
        text = "".join(texts[first : first + grain])
        chunk = Chunk(start, start + len(text), text)
        found = (Detection(0, 3, text[:3], "Sample", "sample", 0.9),) if first % _FINDING_EVERY == 0 else ()
        readings[min(first + grain, len(texts)) - 1] = Reading(chunker, chunk, (found,))
        start += len(text)
    return readings


def _as_event(text: str) -> bytes:
    return encode_event(_HEAD + msgspec.json.encode(text).decode() + _TAIL)


def _code(raw: bytes, decoder: "msgspec.json.Decoder[Any]", times: int) -> None:
    decode, encode = decoder.decode, msgspec.json.Encoder().encode
    for _ in range(times):
        encode(decode(raw))


def run_gate(steps: Sequence[Step], strategy: Strategy) -> None:
    """Frames and progress in, releases out."""
    gate = ReleaseGate(_GRAINS, strategy=strategy)
    for number, (text, _, readings) in enumerate(steps):
        gate.receive(Frame(number, text))
        for name, chunk, _ in readings:
            gate.clear(name, chunk.end)
    gate.finish()


def run_all(steps: Sequence[Step], strategy: Strategy) -> None:
    """Bytes in, bytes out, through every machine, as the pipeline calls them."""
    parser, lanes = SseParser(), Lanes(LanePlan(tuple(DetectorSpec(name, name) for name in _GRAINS), strategy))
    writer = _Writer()
    number = 0
    for text, sent, readings in steps:
        for _ in parser.feed(sent):
            lanes.receive(Frame(number, text))
            lane = lanes.by_choice[0]
            for name in _GRAINS:
                lane.aligners[name].feed()
            for name, chunk, findings in readings:
                for ask in lane.place(name, chunk):
                    if outcomes := lanes.by_choice[ask.choice].answer(ask, findings):  # type: ignore[arg-type]  # a placed chunk gives asks
                        writer.write(outcomes)
            lanes.may_read()
            number += 1
    writer.write(lanes.end())
    for name in _GRAINS:
        writer.write(lanes.by_choice[0].end_chunker(name))
    if not lanes.is_finished or writer.released != sum(len(step.text) for step in steps):
        raise RuntimeError("not all text left")


class _Writer:
    """Judges each release and writes it as an event."""

    def __init__(self) -> None:
        self._judge = Judge(Measures(Action.MASK))
        self.released = 0

    def write(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Release):
                verdict = self._judge.judge(outcome.start, outcome.text, outcome.detections)
                encode_event(f'{_HEAD}"{verdict.text}"{_TAIL}')
                self.released = outcome.end
