# SPDX-License-Identifier: Apache-2.0
"""Random streams of a model that says secrets in every field, cut anywhere, and the way through a policy's events.

Secrets are made of letters that nothing else has, so one such letter anywhere is a leak; and they are known only whole.
What a detector is told and when it has read it is drawn too: any order of the texts, any place not inside a secret.
"""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.api.openai.envelope import Envelope
from lockgate.api.openai.events import EventWriter
from lockgate.api.openai.format import CHAT, read_request
from lockgate.api.openai.stream_reader import StreamOptions
from lockgate.api.openai.whole_answer import CHATS
from lockgate.api.receipts import AnswerAccount
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.receipts import Receipt
from lockgate.gate.release import Release, ReleaseGate
from lockgate.gate.sse import SseParser
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Action, Judge, MaskWith, Measures, Pseudonyms

LETTERS = "QXZ@"
SECRET = re.compile("Q[X@]*Z")
ESCAPED = re.compile(r"\\u00(?:40|51|58|5a)", re.IGNORECASE)
FALLBACK = "withheld!"
ALL_LANES = ("content", "reasoning", "tool_arguments")
BASE = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
REQUEST = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"q"}]}'
_SPOKEN = ("content", "reasoning_content", "refusal")
_LANE_OF = {"content": "content", "reasoning_content": "reasoning", "refusal": "content"}

Message = dict[str, Any]
Texts = dict[tuple[int, str], str]


def lane_of(field: str) -> str:
    """The lane, as policies call it, that a text belongs to."""
    return _LANE_OF.get(field, "tool_arguments")


class World(NamedTuple):
    """What a model says: its messages, and all of each text by choice and field."""

    messages: list[Message]
    texts: Texts
    finishes: dict[int, str]
    names: dict[tuple[int, int], str]  # of calls by choice and place
    has_usage: bool


def build_world(rng: random.Random, *, n_choices: int = 2) -> World:
    """A stream of a few choices with all kinds of texts, their pieces mixed."""
    texts: Texts = {}
    for index in range(rng.randint(1, n_choices)):
        for field in _SPOKEN:
            if rng.random() < 0.6 or field == "content":
                texts[index, field] = _write(rng)
        for place in range(rng.randint(0, 2)):
            texts[index, f"tool_calls/{place}/arguments"] = _write_arguments(rng)
        if rng.random() < 0.2:
            texts[index, "tool_calls/7/input"] = _write(rng)
        if rng.random() < 0.2:
            texts[index, "function_call/arguments"] = _write_arguments(rng)
    names = {(index, _place_of(field)): f"f{_place_of(field)}" for index, field in texts if "call" in field}
    finishes = {index: rng.choice(["stop", "tool_calls", "length"]) for index, _ in texts}
    world = World([], texts, finishes, names, rng.random() < 0.3)
    world.messages.extend(_mix(rng, world))
    return world


def _place_of(field: str) -> int:
    return -1 if field.startswith("function_call") else int(field.split("/")[1])


def _write(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(0, 4)):
        parts.append("".join(rng.choices("abc .\né😀", k=rng.randint(0, 4))))
        if rng.random() < 0.5:
            parts.append("".join(["Q", *rng.choices("X@", k=rng.randint(0, 4)), "Z"]))
    return "".join(parts) or "a"


def _write_arguments(rng: random.Random) -> str:
    def leaf() -> Any:
        return rng.choice([_write(rng), _write(rng), rng.choice([1, -2.5, None, True, 10**6]), [_write(rng)]])

    value = {f"k{number}{_write(rng)}": leaf() for number in range(rng.randint(0, 3))}
    raw = json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", ": ")]))
    return "".join([f"\\u{ord(one):04x}" if one in LETTERS and rng.random() < 0.4 else one for one in raw])


def _cut(rng: random.Random, text: str) -> list[str]:
    """The text in pieces; of an escape or a pair of surrogates any part may come alone."""
    size = rng.choice([1, 2, 3, 8])
    pieces, at = [], 0
    while at < len(text):
        step = rng.randint(1, size)
        pieces.append(text[at : at + step])
        at += step
    return pieces


def _mix(rng: random.Random, world: World) -> Iterable[Message]:
    """Messages that say all texts: those of a text in order, everything else by chance."""
    waiting = {key: _cut(rng, text) for key, text in world.texts.items()}
    named: set[tuple[int, int]] = set()
    joins = rng.choice([0.0, 0.0, 0.8])  # how often a message says something in two texts of a choice
    while waiting:
        choices: dict[int, Message] = {}
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if not waiting:
                break
            index, field = rng.choice(sorted(waiting))
            delta = choices.setdefault(index, {})
            if "call" in field and (index, _place_of(field)) not in named:
                named.add((index, _place_of(field)))
                piece = waiting[index, field].pop(0) if rng.random() < 0.5 else rng.choice([None, ""])
                _name_call(delta, field, world.names[index, _place_of(field)], piece)
            else:
                _say(delta, field, waiting[index, field].pop(0))
            for other in _SPOKEN if rng.random() < joins else ():
                if other not in delta and waiting.get((index, other)):
                    _say(delta, other, waiting[index, other].pop(0))
            waiting = {key: pieces for key, pieces in waiting.items() if pieces}
        yield _message(rng, [(index, delta, None) for index, delta in choices.items()])
    for index in sorted(world.finishes, key=lambda _: rng.random()):
        yield _message(rng, [(index, {}, world.finishes[index])])
    if world.has_usage:
        yield {**BASE, "choices": [], "usage": {"total_tokens": 3}}


def _name_call(delta: Message, field: str, name: str, piece: str | None) -> None:
    told = {"name": name, **({} if piece is None else {"arguments": piece}), "parsed": "QXZ"}
    if field.startswith("function_call"):
        delta["function_call"] = told
        return
    kind = "custom" if field.endswith("input") else "function"
    if kind == "custom":
        told = {"name": name, **({} if piece is None else {"input": piece})}
    call = {"index": _place_of(field), "id": f"id-{name}", "type": kind, kind: told}
    delta.setdefault("tool_calls", []).append(call)


def _say(delta: Message, field: str, piece: str) -> None:
    if field in _SPOKEN:
        delta[field] = delta.get(field, "") + piece
    elif field.startswith("function_call"):
        before = delta.get("function_call", {})
        delta["function_call"] = {**before, "arguments": (before.get("arguments") or "") + piece}
    else:
        kind = ("custom", "input") if field.endswith("input") else ("function", "arguments")
        delta.setdefault("tool_calls", []).append({"index": _place_of(field), kind[0]: {kind[1]: piece}})


def _message(rng: random.Random, choices: Sequence[tuple[int, Message, str | None]]) -> Message:
    """Besides texts it has fields that nobody knows, with a secret in them."""
    listed = []
    for index, delta, finish in choices:
        if rng.random() < 0.2:
            delta = {**delta, "note": "QXZ"}
        if rng.random() < 0.2:
            delta = {"role": "assistant", **delta}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        listed.append(choice | ({"words": ["QXZ"], "logprobs": {"content": [{"token": "QXZ"}]}} if finish else {}))
    return {**BASE, "choices": listed}


# Through a policy.


class Told(NamedTuple):
    """What a client got, and what is known besides."""

    events: list[Message]
    raw: bytes
    read: Texts  # what detectors were given
    names: Mapping[str, str]

    def texts(self) -> Texts:
        """All of each text, put together as clients do."""
        said: Texts = {}
        for event in self.events:
            for choice in event["choices"]:
                for field, text in list_texts(choice["delta"]):
                    key = choice["index"], field
                    said[key] = said.get(key, "") + text
        return said


def list_texts(delta: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Every text of a delta, with its field; names excepted."""
    for field in _SPOKEN:
        if delta.get(field):
            yield field, delta[field]
    single = delta.get("function_call") or {}
    yield "function_call/arguments", single.get("arguments") or ""
    for call in delta.get("tool_calls") or ():
        for kind, key in (("function", "arguments"), ("custom", "input")):
            yield f"tool_calls/{call['index']}/{key}", call.get(kind, {}).get(key) or ""


class PolicyCase(NamedTuple):
    """What the policy says."""

    action: Action = Action.MASK
    mask_with: MaskWith = MaskWith.BLOCK
    lanes: frozenset[str] = frozenset(ALL_LANES)
    max_held_chars: int = 1_048_576
    holds: bool = True
    is_shadow: bool = False


PASSING = PolicyCase(Action.ANNOTATE, holds=False)
SHADOW = PASSING._replace(is_shadow=True)


def open_writer(case: PolicyCase) -> EventWriter:
    """The writer of a stream under this policy."""
    hides = case.action is not Action.ANNOTATE
    envelope = Envelope(AnswerFields(), hides=hides, lanes=case.lanes)
    options = StreamOptions(
        hides=hides,
        fallback=FALLBACK,
        max_held_chars=case.max_held_chars,
        lanes=case.lanes,
        holds=case.holds,
        is_shadow=case.is_shadow,
        envelope=envelope,
    )
    writer = EventWriter(CHATS, read_request(CHAT, REQUEST), options)
    writer.account = AnswerAccount(Receipt("p"))
    return writer


def play(rng: random.Random, world: World, case: PolicyCase) -> Told:
    """Carry the stream through: detectors read each text in steps of their own, in any order."""
    writer = open_writer(case)
    frames = [list(writer.to_frames(message)) for message in world.messages]
    whole: dict[int, str] = {}
    for frame in [one for burst in frames for one in burst]:
        whole[frame.choice] = whole.get(frame.choice, "") + frame.text
    writer = open_writer(case)
    run = _Run(rng, writer, case, whole)
    for message in world.messages:
        for frame in writer.to_frames(message):
            run.receive(frame)
        run.read_on()
        if writer.is_blocked:
            break
    run.finish()
    raw = run.written + writer.finish()
    told = [one.data for one in SseParser().feed(raw)]
    assert told[-1] == "[DONE]"
    places = run.places()
    read = {places[lane]: text for lane, text in whole.items() if lane in places and text}
    return Told([json.loads(one) for one in told[:-1]], raw, read, run.names.values)


class _Run:
    def __init__(self, rng: random.Random, writer: EventWriter, case: PolicyCase, whole: Mapping[int, str]) -> None:
        self._rng = rng
        self._writer = writer
        self._measures = Measures(case.action, mask_with=case.mask_with, fallback=FALLBACK)
        self._whole = whole
        self._gates: dict[int, ReleaseGate] = {}
        self._judges: dict[int, Judge] = {}
        self._cleared: dict[int, int] = {}
        self.names = Pseudonyms()
        self.written = b""

    def places(self) -> dict[int, tuple[int, str]]:
        """The choice and field of each lane."""
        return {one.lane: (one.choice, one.field) for one in self._writer._segments if one.field}

    def receive(self, frame: Frame) -> None:
        gate = self._gates.get(frame.choice)
        if gate is None:
            gate = self._gates[frame.choice] = ReleaseGate(["d"], choice=frame.choice)
            self._cleared[frame.choice] = 0
        self._take(gate.receive(frame))

    def read_on(self) -> None:
        """Some lanes are read further, in any order."""
        for lane in self._rng.sample(sorted(self._gates), len(self._gates)):
            if self._rng.random() < 0.5:
                self._clear(lane, self._find_end(lane))

    def _find_end(self, lane: int) -> int:
        """Any place up to which the text has come, not inside a secret, also one of which only a part has come."""
        gate, text = self._gates[lane], self._whole[lane]
        upto = self._rng.randint(self._cleared[lane], gate.received)
        for one in SECRET.finditer(text):
            if one.start() < upto < one.end() or one.start() < upto == gate.received < one.end():
                upto = one.start()
        return max(upto, self._cleared[lane])

    def _clear(self, lane: int, upto: int) -> None:
        if self._writer.is_blocked:
            return
        before, text = self._cleared[lane], self._whole[lane]
        found = [
            Detection(one.start(), one.end(), one[0], "Word", "word", 1.0, "d")
            for one in SECRET.finditer(text)
            if before <= one.start() < upto
        ]
        self._cleared[lane] = upto
        self._take(self._gates[lane].clear("d", upto, found))

    def finish(self) -> None:
        for lane in self._rng.sample(sorted(self._gates), len(self._gates)):
            if not self._writer.is_blocked:
                self._clear(lane, self._gates[lane].received)
                if not self._writer.is_blocked:
                    self._take(self._gates[lane].finish())

    def _take(self, releases: Sequence[Release]) -> None:
        for release in releases:
            if self._writer.is_blocked:
                return
            judge = self._judges.setdefault(release.choice, Judge(self._measures, self.names))
            verdict = judge.judge(release.start, release.text, release.detections)
            left = release._replace(text=verdict.text, detections=verdict.detections)
            self.written += self._writer.take(left, verdict)
