# SPDX-License-Identifier: Apache-2.0
"""Plans of streams under policies, drawn from a seed: what the model says in which lanes, and in which messages.

Streams under the policies that read everything take their cuts from a list of all places of all marks, one after the
other, so that over a long run every mark is cut everywhere; those of the others are cut anywhere. Knows no sockets.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from tests.soak.policies.lanes import JSON, PLAIN, Lane, Slot, draw_arguments, draw_text
from tests.soak.policies.marks import Mark, draw_catalogue, draw_poison
from tests.soak.policies.settings import LANES, MASKING, MASKS, POLICIES, Policy
from tests.soak.streams.words import Vocabulary

USAGE = {"prompt_tokens": 9, "total_tokens": 49, "completion_tokens": 40}
PERIOD, COVERING = 5, 2  # so many of so many streams cut marks at the places that are due
_PLAIN_SLOTS, _JSON_SLOTS = 4, 7  # marks of each of those
OLD_CALL = "function_call"  # the one call of clients that know only one
OLD_PLACE = -1
_WAYS = ("path", "body", "model")
_POISONED, _BROKEN = 0.15, 0.1  # of the streams that may fail
_BASE = {"object": "chat.completion.chunk", "created": 1700000000}


class Call(NamedTuple):
    """A tool call of a choice, as its first piece names it."""

    choice: int
    place: int
    id: str
    kind: str
    name: str

    @property
    def lane(self) -> str:
        """How receipts call it."""
        return OLD_CALL if self.kind == OLD_CALL else f"tool_calls/{self.place}"


@dataclass(frozen=True)
class Plan:
    """One stream. `way`: how the request names its policy. `messages` are the model's."""

    number: int
    seed: int
    policy: Policy
    is_chat: bool
    way: str
    wants_names: bool
    wants_usage: bool
    lanes: tuple[Lane, ...]
    calls: tuple[Call, ...]
    finishes: tuple[str, ...]
    messages: tuple[dict[str, Any], ...]
    prompt: Lane
    is_poisoned: bool = False
    is_broken: bool = False
    is_slow_reader: bool = False
    leave: None = None

    @property
    def id(self) -> str:
        """What the stream is known by."""
        return f"s{self.number}"

    @property
    def model(self) -> str:
        """The model that is asked."""
        return f"tale-{self.number}"

    @property
    def fails(self) -> bool:
        """Whether the stream ends with an error: a detector fails, or the model breaks off."""
        return self.is_poisoned or self.is_broken

    @property
    def texts(self) -> tuple[Lane, ...]:
        """All lanes, and the prompt where it is read."""
        return (*self.lanes, self.prompt) if self.policy.reads_prompt else self.lanes

    @property
    def path(self) -> str:
        """Where the client asks."""
        if self.way == "body":
            return f"/api/v2/{'chat' if self.is_chat else 'text'}/completions-detection"
        prefix = f"/{self.policy.name}" if self.way == "path" else ""
        return f"{prefix}/v1/{'chat/' if self.is_chat else ''}completions"

    def request(self) -> bytes:
        """The body of the client's request."""
        model = f"{self.model}@{self.policy.name}" if self.way == "model" else self.model
        body: dict[str, Any] = {"model": model, "stream": True, "n": len(self.finishes)}
        prompt = self.prompt.plain
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.is_chat else {"prompt": prompt}
        if self.way == "body":
            body["detectors"] = {"policy": self.policy.name}
        if self.wants_usage:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()


@lru_cache(maxsize=4)
def list_due(seed: int, form: str) -> tuple[Slot, ...]:
    """Every mark of a run at every place at which it can be cut, in random order."""
    slots = [
        Slot(mark, place)
        for mark in _catalogue(seed)
        for place in range(1, len(mark.written if form == JSON else mark.text))
    ]
    random.Random(f"due/{seed}/{form}").shuffle(slots)
    return tuple(slots)


@lru_cache(maxsize=4)
def _catalogue(seed: int) -> tuple[Mark, ...]:
    return draw_catalogue(seed)


def count_needed(seed: int) -> int:
    """How many streams it takes until every mark was cut everywhere."""
    turns = max(len(list_due(seed, PLAIN)) / _PLAIN_SLOTS, len(list_due(seed, JSON)) / _JSON_SLOTS)
    return (int(turns / COVERING) + 1) * PERIOD


def draw_plan(number: int, seed: int, names: Sequence[str] = MASKING) -> Plan:
    """The plan of one stream, under one of these policies or, where cuts are due, one that reads everything."""
    rng = random.Random(f"policies/{seed}/{number}")
    is_due = names is MASKING and number % PERIOD < COVERING
    policy = POLICIES[f"all-{rng.choice(MASKS)}" if is_due else rng.choice(names)]
    is_chat = is_due or rng.random() < 0.85
    plain, written = _draw_slots(rng, number, seed, is_due)
    fault = rng.random() if not is_due and _may_fail(policy) else 1.0
    is_poisoned, is_broken = fault < _POISONED, _POISONED <= fault < _POISONED + _BROKEN
    plain += [Slot(draw_poison(rng))] if is_poisoned else []
    drawn = _Drawing(rng, number, policy, is_chat).draw(plain, written)
    return replace(drawn, is_poisoned=is_poisoned, is_broken=is_broken)


def _may_fail(policy: Policy) -> bool:
    """Whether the detector that can fail reads everything; in a part of an answer made-up names cannot be checked."""
    return "codes" in policy.readers and policy.lanes == LANES and policy.mask != "pseudonym" and not policy.is_shadow


def _draw_slots(rng: random.Random, number: int, seed: int, is_due: bool) -> tuple[list[Slot], list[Slot]]:
    if not is_due:
        marks = _catalogue(seed)
        plain, written = ([Slot(one) for one in rng.choices(marks, k=rng.randint(0, 4))] for _ in range(2))
        return [*plain, *rng.sample(plain, min(len(plain), rng.randint(0, 1)))], written
    turn = number // PERIOD * COVERING + number % PERIOD
    found = []
    for form, count in ((PLAIN, _PLAIN_SLOTS), (JSON, _JSON_SLOTS)):
        due = list_due(seed, form)
        found.append([due[(turn * count + place) % len(due)] for place in range(count)])
    return found[0], found[1]


class _Drawing:
    """A plan in the making."""

    def __init__(self, rng: random.Random, number: int, policy: Policy, is_chat: bool) -> None:
        self._rng = rng
        self._number = number
        self._policy = policy
        self._is_chat = is_chat
        self._words = Vocabulary(rng)
        self._lanes: list[Lane] = []
        self._calls: list[Call] = []
        self._told: dict[tuple[int, str], str] = {}  # how a lane's field is written on the wire, where that differs

    def draw(self, plain: Sequence[Slot], written: Sequence[Slot]) -> Plan:
        rng = self._rng
        size = rng.choice((1, 1, 1, 1, 2, 3))
        self._add_texts(size, plain)
        if self._is_chat:
            self._add_calls(size, written)
        finishes = tuple(
            "tool_calls" if any(call.choice == index for call in self._calls) else rng.choice(("stop", "length"))
            for index in range(size)
        )
        wants_usage = rng.random() < 0.5
        return Plan(
            self._number,
            rng.getrandbits(32),
            self._policy,
            self._is_chat,
            rng.choice(_WAYS),
            rng.random() < 0.5,
            wants_usage,
            tuple(self._lanes),
            tuple(self._calls),
            finishes,
            self._draw_messages(finishes, wants_usage),
            self._draw_prompt([*plain, *written]),
            is_slow_reader=rng.random() < 0.03,
        )

    def _draw_prompt(self, slots: Sequence[Slot]) -> Lane:
        """Sentences; where they are read some of what the model is going to say is in them."""
        marks = [slot.mark for slot in slots if slot.mark.finds] if self._policy.reads_prompt else []
        return draw_text(self._rng, self._words, [Slot(one) for one in marks[: self._rng.randint(0, 3)]], -1, "prompt")

    def _add_texts(self, size: int, slots: Sequence[Slot]) -> None:
        """Each choice has content, some also reasoning or a refusal; the marks are dealt out among them."""
        rng = self._rng
        fields = [(index, "content" if self._is_chat else "text") for index in range(size)]
        for index in range(size if self._is_chat else 0):
            if rng.random() < 0.5:
                fields.append((index, "reasoning_content"))
            if rng.random() < 0.06:
                fields.append((index, "refusal"))
        dealt = _deal(rng, slots, len(fields))
        for (index, field), own in zip(fields, dealt, strict=True):
            self._lanes.append(draw_text(rng, self._words, own, index, field))
            if field == "reasoning_content" and rng.random() < 0.3:
                self._told[index, field] = "reasoning"

    def _add_calls(self, size: int, slots: Sequence[Slot]) -> None:
        rng = self._rng
        count = max(rng.choice((0, 1, 1, 2)), min(1, len(slots)))
        for own in _deal(rng, slots, count):
            choice = rng.randrange(size)
            place = sum(call.choice == choice and call.kind != OLD_CALL for call in self._calls)
            kind = "custom" if not own and rng.random() < 0.5 else "function"
            if rng.random() < 0.1 and all((call.choice, call.kind) != (choice, OLD_CALL) for call in self._calls):
                kind = OLD_CALL
            call = Call(choice, place, f"call-{self._number}-{len(self._calls)}", kind, f"tool_{place}")
            if kind == OLD_CALL:
                call = call._replace(place=OLD_PLACE, id="")
            if kind == "custom":
                marks = [Slot(rng.choice(slots).mark)] if slots else []
                lane = draw_text(rng, self._words, marks, choice, f"tool_calls/{place}/input")
            else:
                field = "function_call/arguments" if kind == OLD_CALL else f"tool_calls/{place}/arguments"
                lane = draw_arguments(rng, self._words, own, choice, field)
            self._calls.append(call)
            self._lanes.append(lane)

    # Lanes into messages.

    def _draw_messages(self, finishes: Sequence[str], wants_usage: bool) -> tuple[dict[str, Any], ...]:
        rng = self._rng
        queues = [self._draw_choice(index, finish) for index, finish in enumerate(finishes)]
        base = {"id": f"c{self._number}", **_BASE, "model": f"tale-{self._number}"}
        messages: list[dict[str, Any]] = []
        while any(queues):
            index = rng.choice([index for index, queue in enumerate(queues) if queue])
            for one in queues[index][: rng.choice((1, 1, 1, 2, 6))]:
                others = messages[-1]["choices"] if messages else []
                if rng.random() < 0.1 and others and all(other["index"] != index for other in others):
                    others.append(one)  # several choices in one message
                else:
                    messages.append({**base, "choices": [one]})
                queues[index].remove(one)
        if wants_usage:
            messages.append({**base, "choices": [], "usage": USAGE})
        return tuple(messages)

    def _draw_choice(self, index: int, finish: str) -> list[dict[str, Any]]:
        rng = self._rng
        if not self._is_chat:
            [lane] = [lane for lane in self._lanes if lane.choice == index]
            told = [_build_choice(index, {"text": piece}) for piece in lane.pieces]
        else:
            deltas = self._order_deltas(index)
            deltas.insert(0, {"role": "assistant", "content": rng.choice(("", None))})
            told = [_build_choice(index, {"delta": one}) for one in deltas]
        if rng.random() < 0.6:
            told.append(_build_choice(index, {"delta": {}} if self._is_chat else {"text": ""}))
        told[-1]["finish_reason"] = finish
        for one in told if rng.random() < 0.1 else ():
            _gossip(one)
        return told

    def _order_deltas(self, index: int) -> list[dict[str, Any]]:
        """One lane behind the other, or each in its own order among the others; some say two things at once."""
        rng = self._rng
        queues = [self._list_deltas(lane) for lane in self._lanes if lane.choice == index]
        rng.shuffle(queues)
        if rng.random() < 0.3:
            return [delta for queue in queues for delta in queue]
        deltas: list[dict[str, Any]] = []
        while any(queues):
            queue = rng.choice([queue for queue in queues if queue])
            delta = queue.pop(0)
            if deltas and rng.random() < 0.15 and not deltas[-1].keys() & delta.keys():
                deltas[-1] |= delta
            elif deltas and rng.random() < 0.3 and deltas[-1].keys() == delta.keys() == {"tool_calls"}:
                deltas[-1]["tool_calls"] += delta["tool_calls"]
            else:
                deltas.append(delta)
        return deltas

    def _list_deltas(self, lane: Lane) -> list[dict[str, Any]]:
        if lane.field.startswith(OLD_CALL):
            [call] = [one for one in self._calls if (one.choice, one.kind) == (lane.choice, OLD_CALL)]
            first, *rest = lane.pieces
            said: list[dict[str, Any]] = [
                {"name": call.name, "arguments": first},
                *({"arguments": one} for one in rest),
            ]
            return [{OLD_CALL: one} for one in said]
        if not lane.field.startswith("tool_calls/"):
            key = self._told.get((lane.choice, lane.field), lane.field)
            return [{key: piece} for piece in lane.pieces]
        _, place, key = lane.field.split("/")
        known = [one for one in self._calls if one.kind != OLD_CALL]
        call = next(one for one in known if (one.choice, one.place) == (lane.choice, int(place)))
        pieces = lane.pieces if self._rng.random() < 0.5 else ["", *lane.pieces]
        told = [{"index": call.place, call.kind: {key: piece}} for piece in pieces]
        named: dict[str, Any] = {"name": call.name, key: pieces[0]}
        told[0] = {"index": call.place, "id": call.id, "type": call.kind, call.kind: named}
        return [{"tool_calls": [one]} for one in told]


def _build_choice(index: int, said: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": None}


def _deal(rng: random.Random, slots: Sequence[Slot], count: int) -> list[list[Slot]]:
    dealt: list[list[Slot]] = [[] for _ in range(count)]
    for slot in slots if count else ():
        rng.choice(dealt).append(slot)
    return dealt


def _gossip(choice: dict[str, Any]) -> None:
    """The choice says once more what it says, where a policy that hides must not pass it on."""
    delta = choice.get("delta")
    said = choice.get("text") or (delta.get("content") if delta else None)
    if said:
        choice["logprobs"] = {"content": [{"token": said, "logprob": -0.5, "top_logprobs": []}]}
        choice["words"] = [said]
        if delta:
            delta["annotations"] = [{"quote": said}]
