# SPDX-License-Identifier: Apache-2.0
"""What is said in the talks: questions and answers that carry numbers, and what is known of each afterwards.

Every question has a number of its own, every answer that of its question and that of the model's call. So whatever is
found anywhere tells where it belongs. Whether it is there rightly is not known here.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lockgate.sessions.turns import StoredTurn

MARK = re.compile(r"q(\d{6})q")
CALLERS = {"ann": "sk-of-ann", "bob": "sk-of-bob", "cyd": "sk-of-cyd"}
LABELS = ("RETRIEVAL", "CODE_GENERATION", "CONVERSATIONAL")
ACKNOWLEDGED, CUT, LEFT, REFUSED, LATE = "acknowledged", "cut", "left", "refused", "late"
ANSWER = "answer"  # of the kinds of calls, the one that somebody hears
_WORDS = ("rain", "säll", "gate", "→", "moss", "日本", "tide", "\n", "x = 1;", "\u2028", "🌧", "end", '"so"', "a\tb")
_MAX_WORDS, _LONG = 40, 600
_LONG_SHARE = 0.03

Where = tuple[str, str]  # a caller, and the id of one of its sessions


class Asked(NamedTuple):
    """One question. `label` is what the caller declares; with a `request_id` it may be asked again."""

    number: int
    where: Where
    question: str
    label: str = ""
    request_id: str = ""

    @property
    def expected_label(self) -> str:
        """How it is remembered."""
        return self.label or name_label(self.number)


@dataclass
class Attempt:
    """One time that a question was asked, of which server, and how that ended; `heard` is the text that came."""

    number: int
    server: int
    sent_at: float
    door: str = ""
    end: str = LATE
    ended_at: float = 0.0
    heard: str = ""
    words: str = ""  # about an end that nobody wanted


@dataclass
class Call:
    """What the model or a source was asked for a question; `text` is all that it was going to say."""

    kind: str
    number: int
    messages: list[tuple[str, str]]
    came_at: float
    text: str = ""
    finished_at: float = 0.0


class Row(NamedTuple):
    """A message as it lies in the table."""

    caller: str
    session: str
    seq: int
    role: str
    text: str


@dataclass
class Evidence:
    """All that is known of a run. `killed_at` tells of servers when they were; `stored` also has aborted turns."""

    asked: dict[int, Asked] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    killed_at: dict[int, float] = field(default_factory=dict)
    stored: Mapping[Where, tuple[StoredTurn, ...]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def count_acknowledged(self) -> int:
        """How many questions were answered as far as their callers know."""
        return len({one.number for one in self.attempts if one.end == ACKNOWLEDGED})

    def count_untold(self) -> int:
        """How many stored turns were stored just before a server was killed that could not tell of them any more."""
        texts = {one.answer for turns in self.stored.values() for one in turns if not one.aborted}
        made = [call for call in self.calls if call.kind == ANSWER and call.text in texts]
        ends = {call.number: self._list_ends(call) for call in made}
        return sum(CUT in found and ACKNOWLEDGED not in found for found in ends.values())

    def _list_ends(self, call: Call) -> set[str]:
        """How attempts ended that were under way when the call came."""
        return {
            one.end
            for one in self.attempts
            if one.number == call.number and one.sent_at <= call.came_at <= one.ended_at
        }


def mark(number: int) -> str:
    """The number, so that it can be found again."""
    return f"q{number:06d}q"


def find_mark(text: str) -> int | None:
    """The number that stands last in a text."""
    found = MARK.findall(text)
    return int(found[-1]) if found else None


def name_label(number: int) -> str:
    """The label that the model chooses for a question."""
    return LABELS[number % len(LABELS)]


def draw_question(number: int, where: Where, rng: random.Random) -> Asked:
    """A question; most declare their label, half can be asked again."""
    label = rng.choice(LABELS) if rng.random() < 0.8 else ""
    words = " ".join(rng.choices(_WORDS, k=rng.randrange(1, 12)))
    question = f"{mark(number)} of {where[0]} in {where[1]}: {words} {mark(number)}?"
    return Asked(number, where, question, label, f"id-{number}" if rng.random() < 0.5 else "")


def draw_answer(number: int, call: int, rng: random.Random) -> list[str]:
    """The pieces of an answer, unlike any other's."""
    count = _LONG if rng.random() < _LONG_SHARE else rng.randrange(1, _MAX_WORDS)
    pieces = [f"{word} " for word in rng.choices(_WORDS, k=count)]
    for place in range(0, count, 9):
        pieces[place] = f"{mark(number)}-{call}-{place} "
    return [f"To {mark(number)} ", *pieces, f"({number}.{call})"]
