# SPDX-License-Identifier: Apache-2.0
"""Ways to spoil what a judge of grounded answers is given, and the law that must report each.

A run that was right is spoiled after it was played, so that the judge must find what it is there for in real answers.
What a broken server would do to open calls is tried with a broken server, not here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.soak.grounded.laws import CLOSES_S, judge
from tests.soak.grounded.peers import Call
from tests.soak.grounded.plans import ChatPlan
from tests.soak.streams.client import Event, Heard


class Played(NamedTuple):
    """A request that was played."""

    plan: ChatPlan
    heard: Heard
    calls: list[Call]


Spoil = Callable[[Played, Played], Played | None]


def forget_the_end(one: Played, _other: Played) -> Played | None:
    """The stream stops without a word."""
    return _with_events(one, one.heard.events[:-1])


def end_twice(one: Played, _other: Played) -> Played | None:
    """An error follows the end."""
    return _with_events(one, [*one.heard.events, Event("error", '{"message": "x"}', 0.0)])


def swap_events(one: Played, _other: Played) -> Played | None:
    """The model is asked before the sources have answered."""
    events = list(one.heard.events)
    place = next((place for place, event in enumerate(events) if event.name == "generation_start"), 0)
    if place < 1:
        return None
    events[place - 1], events[place] = events[place], events[place - 1]
    return _with_events(one, events)


def lose_a_token(one: Played, _other: Played) -> Played | None:
    """A piece of the answer does not arrive."""
    events = list(one.heard.events)
    place = next((place for place, event in enumerate(events) if event.name == "token"), None)
    if place is None or events[-1].name != "done":
        return None
    return _with_events(one, events[:place] + events[place + 1 :])


def mix_answers(one: Played, other: Played) -> Played | None:
    """Somebody else's documents are told."""
    return _with_events(one, [*one.heard.events[:-1], other.heard.events[-1]])


def show_a_token(one: Played, _other: Played) -> Played | None:
    """An endpoint is given the token of another owner."""
    if not one.calls:
        return None
    stolen = one.plan.tokens[f"stranger-{one.plan.id.removeprefix('soak-')}"]
    return one._replace(calls=[replace(one.calls[0], authorization=f"Bearer {stolen}"), *one.calls[1:]])


def leave_a_call(one: Played, _other: Played) -> Played | None:
    """A call is still open when all is over."""
    return one._replace(calls=[replace(one.calls[0], ended_at=0.0), *one.calls[1:]]) if one.calls else None


VARIANTS: Mapping[str, tuple[Spoil, frozenset[str]]] = {
    "no end": (forget_the_end, frozenset({"end"})),
    "two ends": (end_twice, frozenset({"end"})),
    "wrong order": (swap_events, frozenset({"order", "sources"})),
    "lost token": (lose_a_token, frozenset({"text", "order"})),
    "mixed answers": (mix_answers, frozenset({"mixed"})),
    "token shown to another": (show_a_token, frozenset({"tokens"})),
    "call left open": (leave_a_call, frozenset({"open"})),
}


def find_unnoticed(played: Sequence[Played], closes_s: float = CLOSES_S) -> dict[str, str]:
    """By variant, what the judge did not notice; every answer is spoiled in every way that fits."""
    right = [one for one in played if one.heard.end == "complete" and not judge(*one, closes_s)]
    telling = [one for one in right if one.plan.kept() and one.heard.events[-1].name == "done"]
    unnoticed: dict[str, str] = {}
    for name, (spoil, laws) in VARIANTS.items():
        tried = 0
        for one in right:
            other = next((other for other in telling if other is not one), one)
            spoiled = spoil(one, other) if other is not one else None
            if spoiled is None:
                continue
            tried += 1
            if not laws & {violation.law for violation in judge(*spoiled, closes_s)}:
                unnoticed[name] = one.plan.id
        if not tried:
            unnoticed[name] = "there was nothing to try it on"
    return unnoticed


def _with_events(one: Played, events: list[Event]) -> Played:
    return one._replace(heard=replace(one.heard, events=events))
