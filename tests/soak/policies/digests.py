# SPDX-License-Identifier: Apache-2.0
"""How a client checks a receipt, twice: by steps written from docs/receipts.md, and with the server's own functions.

And what could befall a stream on its way: every such copy must fail both checks.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from lockgate.api.receipts import list_frames
from lockgate.gate.receipts import FrameChain

Events = list[dict[str, Any]]
_SPOKEN = ("reasoning_content", "reasoning", "content", "refusal")
_CALLED = (("function", ("name", "arguments")), ("custom", ("name", "input")))
_WAYS_AT_ONCE = 3  # to tamper with one stream; the next one takes others


class Text(NamedTuple):
    """A text of an event: its lane, and where it stands."""

    lane: str
    holder: dict[str, Any]
    key: str

    @property
    def words(self) -> str:
        """The text itself."""
        return str(self.holder[self.key])


def list_texts(event: dict[str, Any]) -> Iterator[Text]:
    """The texts of an event of a chat or a text completion, in the order of the specification."""
    for choice in event.get("choices", []):
        delta, prefix = choice.get("delta") or {}, f"{choice['index']}/"
        for key in _SPOKEN:
            if delta.get(key):
                yield Text(prefix + key, delta, key)
        for key in ("name", "arguments"):
            if (delta.get("function_call") or {}).get(key):
                yield Text(f"{prefix}function_call/{key}", delta["function_call"], key)
        for call in delta.get("tool_calls") or ():
            for kind, keys in _CALLED:
                inner = call.get(kind) or {}
                for key in keys:
                    if inner.get(key):
                        yield Text(f"{prefix}tool_calls/{call['index']}/{key}", inner, key)
        if choice.get("text"):
            yield Text(prefix + "text", choice, "text")


def verify(events: Sequence[dict[str, Any]], receipt: dict[str, Any]) -> bool:
    """Whether the texts of the events are those of the receipt, by the steps of the specification."""
    value, frames = sha256(b"lockgate receipt 1").digest(), 0
    for event in events:
        for text in list_texts(event):
            lane, words = text.lane.encode(), text.words.encode("utf-8", "surrogatepass")
            head = len(lane).to_bytes(4, "big") + lane + len(words).to_bytes(8, "big")
            value, frames = sha256(value + head + words).digest(), frames + 1
    return bool(receipt["digest"] == {"algorithm": "sha256-chain-1", "frames": frames, "value": value.hex()})


def verify_as_server(events: Sequence[dict[str, Any]], receipt: dict[str, Any]) -> bool:
    """The same with the functions of the server, which `lockgate verify` uses too."""
    chain = FrameChain()
    for event in events:
        for lane, text in list_frames(event):
            chain.add(lane, text)
    return (receipt["digest"]["frames"], receipt["digest"]["value"]) == (chain.frames, chain.value)


# What could befall a stream. Each takes a copy of the events, changes it, and says whether it could.


def _choose(rng: random.Random, events: Events, least: int = 1) -> tuple[int, Text] | None:
    """An event, and one of its texts of at least so many characters."""
    found = [(place, text) for place, event in enumerate(events) for text in list_texts(event)]
    found = [one for one in found if len(one[1].words) >= least]
    return rng.choice(found) if found else None


def change(rng: random.Random, events: Events) -> bool:
    """One character is another."""
    chosen = _choose(rng, events)
    if chosen is None:
        return False
    text = chosen[1]
    words, at = text.words, rng.randrange(len(text.words))
    text.holder[text.key] = words[:at] + ("a" if words[at] != "a" else "b") + words[at + 1 :]
    return True


def drop(rng: random.Random, events: Events) -> bool:
    """An event is lost."""
    chosen = _choose(rng, events)
    if chosen is not None:
        del events[chosen[0]]
    return chosen is not None


def double(rng: random.Random, events: Events) -> bool:
    """An event comes twice."""
    chosen = _choose(rng, events)
    if chosen is not None:
        events.insert(chosen[0], copy.deepcopy(events[chosen[0]]))
    return chosen is not None


def swap(rng: random.Random, events: Events) -> bool:
    """Two neighbours change places."""
    said = [place for place, event in enumerate(events) if any(list_texts(event))]
    pairs = [(a, b) for a, b in zip(said, said[1:], strict=False) if _words_of(events[a]) != _words_of(events[b])]
    if not pairs:
        return False
    a, b = rng.choice(pairs)
    events[a], events[b] = events[b], events[a]
    return True


def cut(rng: random.Random, events: Events) -> bool:
    """An event comes as two."""
    chosen = _choose(rng, events, least=2)
    if chosen is None:
        return False
    place, text = chosen
    number = [one.lane for one in list_texts(events[place])].index(text.lane)
    at = rng.randint(1, len(text.words) - 1)
    second = copy.deepcopy(events[place])
    rest = list(list_texts(second))[number]
    text.holder[text.key], rest.holder[rest.key] = text.words[:at], rest.words[at:]
    for other in list(list_texts(second))[:number] + list(list_texts(second))[number + 1 :]:
        other.holder[other.key] = ""
    events.insert(place + 1, second)
    return True


def join(rng: random.Random, events: Events) -> bool:
    """Two events come as one."""
    texts = [text for event in events for text in list_texts(event)]
    pairs = [(a, b) for a, b in zip(texts, texts[1:], strict=False) if a.lane == b.lane and a.holder is not b.holder]
    if not pairs:
        return False
    a, b = rng.choice(pairs)
    a.holder[a.key], b.holder[b.key] = a.words + b.words, ""
    return True


def move(rng: random.Random, events: Events) -> bool:
    """An event is told as another choice's."""
    chosen = _choose(rng, events)
    for choice in events[chosen[0]]["choices"] if chosen else ():
        choice["index"] += 1
    return chosen is not None


TAMPERINGS: dict[str, Callable[[random.Random, Events], bool]] = {
    "changed": change,
    "dropped": drop,
    "doubled": double,
    "swapped": swap,
    "cut": cut,
    "joined": join,
    "moved": move,
}


def find_accepted(events: Events, receipt: dict[str, Any], seed: int) -> tuple[list[str], int]:
    """The ways to tamper with a stream that a check did not notice, and how many were tried."""
    rng = random.Random(f"tamper/{seed}")
    accepted, tried = [], 0
    texts = json.dumps([{"choices": event["choices"]} for event in events])
    for name, tamper in rng.sample(list(TAMPERINGS.items()), _WAYS_AT_ONCE):
        copied = json.loads(texts)
        if tamper(rng, copied):
            tried += 1
            accepted += [name] if verify(copied, receipt) or verify_as_server(copied, receipt) else []
    return accepted, tried


def _words_of(event: dict[str, Any]) -> list[tuple[str, str]]:
    return [(text.lane, text.words) for text in list_texts(event)]
