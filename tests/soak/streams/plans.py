# SPDX-License-Identifier: Apache-2.0
"""Plans of streams, drawn from a seed: what the model says, who reads it, what goes wrong, when the client goes.

Everything that is random about a stream is decided here, before it is played. Knows no sockets and no laws.
"""

import json
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.soak.streams.words import EYES, POISON, REMOTE_CHUNKERS, Vocabulary, cut_anywhere, draw_text

STREAM_HEADER = "x-soak-stream"
USAGE = {"prompt_tokens": 9, "total_tokens": 49, "completion_tokens": 40}
_FAILED = 502  # what the client is told of every failure that is not another service's word about the request
_MODEL_CODES = {503: 503, 400: 400, 429: 429, 404: _FAILED, 500: _FAILED}  # what the client is told, by the model's
_WAYS = {"u": 503, "i": _FAILED, "a": _FAILED, "r": _FAILED, "n": _FAILED}
_CHUNKER_WAYS = {"u": 503, "i": _FAILED, "a": _FAILED}
_CHUNKER_LETTERS = dict(zip(REMOTE_CHUNKERS, "ls", strict=True))


class Odds(NamedTuple):
    """How likely it is that a service fails, and that a client leaves."""

    fault: float = 0.03
    leave: float = 0.03


ODDS = Odds()


class Piece(NamedTuple):
    """What one message of the model adds to a choice."""

    text: str = ""
    tool_call: dict[str, Any] | None = None
    logprob: dict[str, Any] | None = None


@dataclass(frozen=True)
class Choice:
    """One choice of the answer. `is_finish_apart`: its finish reason comes in a message of its own."""

    text: str
    pieces: tuple[Piece, ...]
    finish: str
    is_finish_apart: bool


class Fault(NamedTuple):
    """A service that fails. `code`: what the client is told. `at`: before which of its messages the model fails.

    `said`: the model's own code.
    """

    service: str
    code: int
    at: int = 0
    said: int = 0

    @property
    def name(self) -> str:
        """How the client is told of the service."""
        return "model" if self.service.startswith("model") else self.service


class Leave(NamedTuple):
    """When the client goes, whichever comes first, and how."""

    after_events: int
    after_s: float
    is_abrupt: bool


@dataclass(frozen=True)
class Plan:
    """One stream. `messages` are the model's, with the choice of each; a usage message belongs to none."""

    number: int
    seed: int
    choices: tuple[Choice, ...]
    messages: tuple[tuple[int, dict[str, Any]], ...]
    detectors: tuple[str, ...]
    slow: str
    wants_usage: bool
    fault: Fault | None = None
    leave: Leave | None = None
    is_slow_reader: bool = False

    @property
    def id(self) -> str:
        """What the stream is known by."""
        return f"s{self.number}"

    @property
    def model(self) -> str:
        """The model that the request names."""
        return f"tale-{self.number}"

    @property
    def holders(self) -> list[str]:
        """The detectors that hold text."""
        return [name for name in self.detectors if EYES[name].holds]

    @property
    def trailers(self) -> list[str]:
        """The detectors that report at the end."""
        return [name for name in self.detectors if not EYES[name].holds]

    def request(self) -> bytes:
        """The body of the client's request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Tell me a tale."}],
            "stream": True,
            "detectors": {"output": {name: {} for name in self.detectors}},
        }
        if len(self.choices) > 1:
            body["n"] = len(self.choices)
        if self.wants_usage:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()

    def sent(self, choice: int) -> str:
        """What of a choice's text the model gets to say: all of it, unless it fails."""
        upto = len(self.messages)
        if self.fault is not None and self.fault.service.startswith("model"):
            upto = self.fault.at
        deltas = [message["choices"][0]["delta"] for owner, message in self.messages[:upto] if owner == choice]
        return "".join(delta.get("content") or "" for delta in deltas)


def draw_plan(number: int, seed: int, odds: Odds = ODDS) -> Plan:
    """The plan of one stream."""
    rng = random.Random(f"{seed}/{number}")
    detectors = tuple(rng.sample(list(EYES), rng.choice((1, 2, 3, 3, 4, 5, 6))))
    fault, poison = _draw_fault(rng, detectors) if rng.random() < odds.fault else (None, "")
    words = Vocabulary(rng)
    size = rng.choice((1, 1, 1, 2, 3, 4))
    poisoned = rng.randrange(size) if poison else -1
    choices = tuple(_draw_choice(rng, words, number, poison if index == poisoned else "") for index in range(size))
    wants_usage = rng.random() < 0.5
    messages = _draw_messages(rng, number, choices, wants_usage)
    if fault is not None and fault.service.startswith("model"):
        fault = fault._replace(at=0 if fault.service == "model status" else rng.randint(0, len(messages) - 1))
    return Plan(
        number,
        rng.getrandbits(32),
        choices,
        tuple(messages),
        detectors,
        rng.choice(detectors),
        wants_usage,
        fault,
        _draw_leave(rng) if fault is None and rng.random() < odds.leave else None,
        rng.random() < 0.05,
    )


def _draw_leave(rng: random.Random) -> Leave:
    return Leave(rng.choice((0, 1, 2, 3, 5, 8)), rng.uniform(0.0, 1.0), rng.random() < 0.5)


def _draw_fault(rng: random.Random, detectors: tuple[str, ...]) -> tuple[Fault, str]:
    """A fault, and the poison that brings it about where a text must hold it."""
    remote = [name for name in detectors if EYES[name].is_remote]
    chunkers = [name for name in {EYES[name].chunker: None for name in detectors} if name in REMOTE_CHUNKERS]
    kinds = ["model"] + ["detector"] * bool(remote) + ["chunker"] * bool(chunkers)
    kind = rng.choice(kinds)
    if kind == "detector":
        way = rng.choice(list(_WAYS))
        return Fault(rng.choice(remote), _WAYS[way]), "d" + way
    if kind == "chunker":
        name, way = rng.choice(chunkers), rng.choice(list(_CHUNKER_WAYS))
        return Fault(name, _CHUNKER_WAYS[way]), _CHUNKER_LETTERS[name] + way
    kind = rng.choice(("model status", "model error", "model reset", "model cut"))
    if kind in ("model reset", "model cut"):
        return Fault(kind, _FAILED), ""
    said = rng.choice(list(_MODEL_CODES))
    return Fault(kind, _MODEL_CODES[said], said=said), ""


def _draw_choice(rng: random.Random, words: Vocabulary, number: int, poison: str) -> Choice:
    text = "" if not poison and rng.random() < 0.03 else draw_text(rng, words, rng.randint(1, 9), poison)
    has_logprobs = rng.random() < 0.2
    pieces = [
        Piece(part, logprob={"token": part, "logprob": -0.5, "top_logprobs": []} if has_logprobs else None)
        for part in cut_anywhere(rng, text)
    ]
    finish = rng.choice(("stop", "length"))
    if not text or rng.random() < 0.08:
        finish = "tool_calls"
        place = rng.choice((rng.randint(0, len(pieces)), len(pieces)))
        pieces[place:place] = [Piece(tool_call=call) for call in _draw_tool_calls(rng, number)]
    is_apart = not pieces or rng.random() < 0.7
    return Choice(text, tuple(pieces), finish, is_apart)


def _draw_tool_calls(rng: random.Random, number: int) -> list[dict[str, Any]]:
    head = {"name": "look_up", "arguments": ""}
    calls: list[dict[str, Any]] = [{"index": 0, "id": f"call-{number}", "type": "function", "function": head}]
    calls += [
        {"index": 0, "function": {"arguments": f'{{"n":{rng.randint(1, 99)}}}'}} for _ in range(rng.randint(1, 3))
    ]
    return calls


def _draw_messages(
    rng: random.Random, number: int, choices: tuple[Choice, ...], wants_usage: bool
) -> list[tuple[int, dict[str, Any]]]:
    """The choices' messages, interleaved, each choice in its own order."""
    base = {"id": f"c{number}", "object": "chat.completion.chunk", "created": 1700000000, "model": f"tale-{number}"}
    queues = [_choice_messages(rng, index, choice) for index, choice in enumerate(choices)]
    messages: list[tuple[int, dict[str, Any]]] = []
    while any(queues):
        index = rng.choice([index for index, queue in enumerate(queues) if queue])
        some = rng.choice((1, 1, 1, 2, 5))
        messages += [(index, {**base, "choices": [one]}) for one in queues[index][:some]]
        del queues[index][:some]
    if wants_usage:
        messages.append((-1, {**base, "choices": [], "usage": USAGE}))
    return messages


def _choice_messages(rng: random.Random, index: int, choice: Choice) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for piece in choice.pieces:
        delta: dict[str, Any] = (
            {"content": piece.text} if piece.tool_call is None else {"tool_calls": [piece.tool_call]}
        )
        logprobs = None if piece.logprob is None else {"content": [piece.logprob]}
        deltas.append({"delta": delta, "logprobs": logprobs, "finish_reason": None})
    if choice.is_finish_apart:
        deltas.append({"delta": {}, "logprobs": None, "finish_reason": None})
    deltas[-1]["finish_reason"] = choice.finish
    if rng.random() < 0.7:
        deltas.insert(0, {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})
    else:
        deltas[0]["delta"]["role"] = "assistant"
    return [{"index": index, **delta} for delta in deltas]


def poison_in(text: str) -> int:
    """Where a text has its poison; behind its end if it has none."""
    found = POISON.search(text)
    return found.start() if found else len(text) + 1
