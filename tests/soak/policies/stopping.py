# SPDX-License-Identifier: Apache-2.0
"""Streams that a policy ends: how soon the model is left when it has said what it must not, and what still arrives.

The clock starts when the packet has been sent with which the finding can be made: the last character of the match and
as much behind it as tells that its sentence is over. Then the model goes on or is silent; it never ends by itself.
"""

import asyncio
import json
import random
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from lockgate.chunkers.machines import MachineChunker
from lockgate.chunkers.sentences import SentenceMachine, load_stop_judge
from lockgate.guard.policy import Chunking, find_sentence
from tests.soak.policies.client import listen_to
from tests.soak.policies.digests import Events, find_accepted, verify, verify_as_server
from tests.soak.policies.lanes import draw_text
from tests.soak.policies.laws import WINDOW, Broken, gather_texts, read_events, require
from tests.soak.policies.marks import Find, Mark, draw_catalogue
from tests.soak.policies.peers import PolicyBooks
from tests.soak.policies.script import HEAD, Packet, write_event
from tests.soak.policies.settings import ENDING, FALLBACK, POLICIES, Policy
from tests.soak.streams.client import Heard
from tests.soak.streams.laws import Violation
from tests.soak.streams.words import Vocabulary

BOUND_S = 0.1
LONGEST_S = 2.0  # for every single stream of a busy machine; the bound is for p99
_MORE_S = 2.0  # with a stream that does not end and a model that nobody leaves
_CHATTER = 150  # messages of a model that goes on
_CONTENT = "0/content"
_SENTENCES = Chunking("sentence", MachineChunker(partial(SentenceMachine, 2000, load_stop_judge())))
_OUTCOMES = {"stop": "stopped", "block": "blocked"}


@dataclass(frozen=True)
class StopPlan:
    """One stream that ends at a finding. `text` is what the model says until then; `others` are clean, by lane."""

    number: int
    seed: int
    policy: Policy
    text: str
    start: int
    end: int
    others: dict[str, str]
    packets: list[Packet]
    due: int
    leave: None = None
    is_slow_reader: bool = False
    wants_names: bool = False

    @property
    def id(self) -> str:
        """What the stream is known by."""
        return f"e{self.number}"

    @property
    def model(self) -> str:
        """The model that is asked."""
        return f"end-{self.number}"

    @property
    def path(self) -> str:
        """Where the client asks."""
        return f"/{self.policy.name}/v1/chat/completions"

    def request(self) -> bytes:
        """The body of the client's request."""
        return json.dumps(
            {"model": self.model, "stream": True, "messages": [{"role": "user", "content": "Go."}]}
        ).encode()


def draw_stop(number: int, seed: int) -> StopPlan:
    """The plan of one stream."""
    rng = random.Random(f"stop/{seed}/{number}")
    policy = POLICIES[ENDING[number % len(ENDING)]]
    marks = [mark for mark in draw_catalogue(seed) if _list_hidden(mark, policy)]
    mark, words = rng.choice(marks), Vocabulary(rng)
    before = draw_text(rng, words, [], 0, "content").plain
    before += f"{words.plain().capitalize()} {words.plain()} "
    after = f" {words.plain()} tables. Then {words.plain()} {words.plain()}"  # no word that may be an abbreviation
    others = {
        lane: draw_text(rng, words, [], 0, "").plain
        for lane in ("0/reasoning_content", "1/content")
        if rng.random() < 0.3
    }
    text, start = before + mark.text + after, len(before) + min(find.start for find in _list_hidden(mark, policy))
    packets, due = _write(rng, f"end-{number}", text, others)
    end = len(before) + max(find.end for find in _list_hidden(mark, policy))
    return StopPlan(number, rng.getrandbits(32), policy, text, start, end, others, packets, due)


def _list_hidden(mark: Mark, policy: Policy) -> list[Find]:
    return [find for find in mark.finds if find.label and find.eye in policy.eyes]


def _write(rng: random.Random, model: str, text: str, others: dict[str, str]) -> tuple[list[Packet], int]:
    """The packets, and which of them completes the finding."""
    spoken = [(lane, piece) for lane in others for piece in _cut(rng, others[lane], 30)]
    whole = text.rindex(". ")  # the end of the sentence is told with what shows that it is one
    content = [(_CONTENT, piece) for piece in _cut(rng, text[:whole], rng.choice((1, 4, 12, 40)))]
    last = content.pop()[1] if rng.random() < 0.5 else ""
    content.append((_CONTENT, last + text[whole:]))
    messages: list[tuple[str, str]] = []
    while spoken:  # the last piece of the content comes when all else was said
        messages.append((content if len(content) > 1 and rng.random() < 0.5 else spoken).pop(0))
    packets = [Packet(0.0, HEAD)]
    for lane, piece in messages + content:
        packets.append(Packet(rng.uniform(0, 0.004), write_event(rng, _say(model, lane, piece))))
    due = len(packets) - 1
    if rng.random() < 0.5:
        packets += [Packet(0.01, write_event(rng, _say(model, _CONTENT, " hm"))) for _ in range(_CHATTER)]
    return packets, due


def _cut(rng: random.Random, text: str, largest: int) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, largest)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def _say(model: str, lane: str, piece: str) -> dict[str, Any]:
    index, field = lane.split("/")
    choice = {"index": int(index), "delta": {field: piece}, "logprobs": None, "finish_reason": None}
    return {"id": model, "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}


class Stopped(NamedTuple):
    """A stream that was played: what arrived, and how long the model was not left; nothing if it never was."""

    plan: StopPlan
    heard: Heard
    closing_s: float | None


async def play_stop(plan: StopPlan, books: PolicyBooks, port: int, longest_s: float = LONGEST_S) -> Stopped:
    """Play one stream."""
    record = books.expect(plan, plan.packets, plan.due)
    heard = await listen_to(plan, port, longest_s + _MORE_S)
    try:
        async with asyncio.timeout(longest_s + _MORE_S):
            await record.ended.wait()
    except TimeoutError:
        pass
    books.dismiss(plan)
    was_left = record.closed_at and record.due_at
    return Stopped(plan, heard, record.closed_at - record.due_at if was_left else None)


def judge_stopped(stopped: Stopped, longest_s: float = LONGEST_S) -> list[Violation]:
    """Everything that is wrong with one stream."""
    plan, heard, closing_s = stopped
    violations = judge_stop(plan, heard)
    if closing_s is None or closing_s > longest_s:
        violations.append(Violation("closing", plan.id, f"the model is left running: {closing_s} s"))
    return violations


def judge_stop(plan: StopPlan, heard: Heard) -> list[Violation]:
    """Everything that is wrong with what arrived."""
    try:
        events = read_events(heard)
        _look_at_text(plan, gather_texts(events))
        _look_at_end(plan, events)
        said = "\0".join(event.text for event in heard.events)
        value = plan.text[plan.start : plan.end]
        size = min(WINDOW, len(value))
        leaked = [value[at : at + size] for at in range(len(value) - size + 1) if value[at : at + size] in said]
        require(not leaked, "leak", f"{leaked[:1]} of {value!r}")
    except Broken as broken:
        return [Violation(broken.law, plan.id, broken.words)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return [Violation("shape", plan.id, f"{type(error).__name__}: {error}")]
    return []


def _look_at_text(plan: StopPlan, texts: dict[str, str]) -> None:
    said = texts.pop(_CONTENT, "")
    require(said.endswith(FALLBACK), "text", f"there is no fallback: {said[-60:]!r}")
    kept = said.removesuffix(FALLBACK)
    require(not kept or kept.endswith("\n"), "text", f"the fallback is glued to {kept[-60:]!r}")
    kept = kept.removesuffix("\n")
    if plan.policy.action == "stop":
        whole = plan.text[: find_sentence(_SENTENCES, plan.text, plan.start)]
        require(kept.startswith(whole), "text", f"{kept[-60:]!r} is less than {whole[-60:]!r}")
    require(plan.text[: plan.start].startswith(kept), "text", f"{kept[-60:]!r} goes beyond the finding")
    for lane, text in texts.items():
        require(plan.others.get(lane, "").startswith(text), "text", f"{lane}: {text[-60:]!r} was not said")


def _look_at_end(plan: StopPlan, events: Events) -> None:
    ends = [(one["index"], one.get("finish_reason")) for event in events for one in event["choices"]]
    finished = {index: finish for index, finish in ends if finish is not None}
    known = {0} | ({1} if "1/content" in plan.others else set())
    require(finished == dict.fromkeys(known, "content_filter"), "finish", f"{finished}")
    receipt = events[-1]["receipt"]
    require(verify(events, receipt) and verify_as_server(events, receipt), "digest", f"{receipt['digest']}")
    wanted = _OUTCOMES[plan.policy.action]
    require(receipt["outcome"] == wanted and receipt["covered"], "figures", f"not {wanted} and covered: {receipt}")
    accepted, _ = find_accepted(events, receipt, plan.seed)
    require(not accepted, "tampered", f"accepted: {accepted}")
