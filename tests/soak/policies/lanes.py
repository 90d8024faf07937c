# SPDX-License-Identifier: Apache-2.0
"""The texts of a stream, each a lane: what it says, what is found in it, and where the model cuts it.

A lane is written as runs that know both the characters that detectors read and those on the wire; only in the arguments
of tool calls, which are JSON, the two differ. Knows nothing of messages and policies.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.soak.policies.marks import Find, Mark, write_character
from tests.soak.streams.words import Vocabulary

TEXT, STRUCTURE, ATOM = "text", "structure", "atom"
PLAIN, JSON = "plain", "json"
_STOPS = (". ", ". ", "! ", "? ", ".\n\n")
_EMOJI = ("😀", "👩‍👩‍👧", "🇫🇷", "é", "茶", "\t", '"', "\\", "/")
_WRAPPINGS = (("", ""), ("", ""), ("[", "]"), ('{"a": ', "}"), ('[true, {"b":null,"c":[', "]}]"))
_MOST_SINGLE = 120  # characters of a lane that is sent one by one


class Slot(NamedTuple):
    """A mark, and a place at which it must be cut; 0: anywhere or nowhere."""

    mark: Mark
    place: int = 0


class Run(NamedTuple):
    """A stretch of a lane: what detectors read, and what is on the wire. They differ only in one escaped character."""

    plain: str
    raw: str
    kind: str = TEXT


class Place(NamedTuple):
    """Where a mark lies on the wire, and in which form."""

    mark: Mark
    form: str
    start: int
    end: int


@dataclass(frozen=True)
class Lane:
    """One text of a choice. `field` is how receipts and findings call it; `cuts`: where a piece ends on the wire."""

    choice: int
    field: str
    runs: tuple[Run, ...]
    finds: tuple[Find, ...]
    places: tuple[Place, ...]
    cuts: tuple[int, ...]

    @property
    def plain(self) -> str:
        """What detectors read."""
        return "".join([run.plain for run in self.runs])

    @property
    def raw(self) -> str:
        """What is on the wire."""
        return "".join([run.raw for run in self.runs])

    @property
    def is_json(self) -> bool:
        """Whether it is JSON from its first to its last character."""
        try:
            json.loads(self.raw)
        except ValueError:
            return False
        return True

    @property
    def pieces(self) -> list[str]:
        """What the model says at a time."""
        raw, ends = self.raw, [*self.cuts, len(self.raw)]
        return [raw[low:high] for low, high in zip([0, *self.cuts], ends, strict=True)]

    def list_cut_places(self) -> list[tuple[str, str, int]]:
        """Every place at which a mark is cut: its name, its form and how far into it."""
        cuts = set(self.cuts)
        return [
            (place.mark.name, place.form, at - place.start)
            for place in self.places
            for at in range(place.start + 1, place.end)
            if at in cuts
        ]


class _Writer:
    """Writes runs and keeps their places."""

    def __init__(self, rng: random.Random, words: Vocabulary) -> None:
        self.rng = rng
        self.words = words
        self.runs: list[Run] = []
        self.finds: list[Find] = []
        self.places: list[Place] = []
        self.cuts: set[int] = set()
        self._plain = self._raw = 0

    def add(self, plain: str, raw: str | None = None, kind: str = TEXT) -> None:
        raw = plain if raw is None else raw
        if raw:
            self.runs.append(Run(plain, raw, kind))
            self._plain += len(plain)
            self._raw += len(raw)

    def add_mark(self, slot: Slot, form: str, kind: str = TEXT) -> None:
        mark = slot.mark
        self.finds += [one._replace(start=self._plain + one.start, end=self._plain + one.end) for one in mark.finds]
        written = mark.written if form == JSON else mark.text
        self.places.append(Place(mark, form, self._raw, self._raw + len(written)))
        if slot.place:
            self.cuts.add(self._raw + slot.place)
        if form == PLAIN or kind == ATOM:
            self.add(mark.text, written, kind)
        else:
            for one, raw in zip(mark.text, mark.raw, strict=True):
                self.add(one, raw)

    def build(self, choice: int, field: str) -> Lane:
        cuts = _draw_cuts(self.rng, self._raw, self.cuts)
        return Lane(choice, field, tuple(self.runs), tuple(self.finds), tuple(self.places), cuts)


def _draw_cuts(rng: random.Random, size: int, needed: set[int]) -> tuple[int, ...]:
    """The cuts that are needed, and others: none, small pieces, or every single character."""
    style = rng.choice(("needed", "some", "some", "some", "single"))
    cuts = set(needed)
    if style == "single" and size <= _MOST_SINGLE:
        cuts = set(range(1, size))
    elif style != "needed":
        largest, at = rng.choice((6, 15, 15, 30, 80)), 0
        while (at := at + rng.randint(1, largest)) < size:
            cuts.add(at)
    return tuple(sorted(cuts))


def draw_text(rng: random.Random, words: Vocabulary, slots: Sequence[Slot], choice: int, field: str) -> Lane:
    """Sentences with these marks, each between plain words."""
    writer = _Writer(rng, words)
    waiting = list(slots)
    sentences = max(rng.randint(1, 2), rng.randint(1, len(waiting) + 1))
    for number in range(sentences):
        is_last = number == sentences - 1
        some = len(waiting) if is_last else rng.randint(0, len(waiting))
        _add_sentence(writer, waiting[:some], is_last=is_last)
        del waiting[:some]
    return writer.build(choice, field)


def _add_sentence(writer: _Writer, slots: Sequence[Slot], *, is_last: bool) -> None:
    """A sentence; a mark may be its first word and its last, and the last one may have no end."""
    rng, words = writer.rng, writer.words
    if not slots and rng.random() < 0.1:
        writer.add(words.signs() + "。")
        return
    first = words.plain()
    writer.add(first[0].upper() + first[1:] + " " if not slots or rng.random() < 0.8 else "")
    for slot in slots:
        writer.add_mark(slot, PLAIN)
        writer.add(rng.choice(("", "", "", ",", ";")) + " " + words.plain() + " ")
    writer.add(" ".join(words.plain() for _ in range(rng.randint(1, 3))))
    if slots and rng.random() < 0.2:
        writer.add(" ")
        writer.add_mark(Slot(rng.choice(slots).mark), PLAIN)
    writer.add("" if is_last and rng.random() < 0.3 else rng.choice(_STOPS))


def draw_arguments(rng: random.Random, words: Vocabulary, slots: Sequence[Slot], choice: int, field: str) -> Lane:
    """An object of JSON with these marks in its strings, keys and numbers."""
    writer = _Writer(rng, words)
    share = rng.choice((0.0, 0.0, 0.05, 0.3))
    gap = rng.choice(("", "", " ", "\n "))
    writer.add("{", kind=STRUCTURE)
    members: list[Slot | None] = [*slots, *[None] * rng.randint(0, 2)]
    rng.shuffle(members)
    for number, slot in enumerate(members):
        writer.add(gap, kind=STRUCTURE)
        is_key = slot is not None and rng.random() < 0.1
        _add_string(writer, slot if is_key else None, share)
        writer.add(":" + gap, kind=STRUCTURE)
        _add_value(writer, None if is_key else slot, share)
        writer.add("," if number < len(members) - 1 else "", kind=STRUCTURE)
    if rng.random() < 0.1:  # the model was cut off, perhaps inside an escape, which then stands for no character
        writer.add("," + gap, kind=STRUCTURE)
        writer.add('"', kind=STRUCTURE)
        _add_words(writer, 1, share)
        writer.add("", rng.choice(("", "\\", "\\u", "\\u00", "\\ud83d", "\\ud83d\\u")), kind=STRUCTURE)
    else:
        writer.add(gap + "}", kind=STRUCTURE)
    return writer.build(choice, field)


def _add_value(writer: _Writer, slot: Slot | None, share: float) -> None:
    rng = writer.rng
    if slot is not None and slot.mark.text.isdigit() and rng.random() < 0.6:
        writer.add_mark(slot, JSON, ATOM)
        return
    opening, closing = rng.choice(_WRAPPINGS)
    writer.add(opening, kind=STRUCTURE)  # its words too: no mark covers them
    if slot is None and rng.random() < 0.5:
        writer.add(rng.choice(("12", "-0.5e3", "true", "null", "0")), kind=ATOM)
    else:
        _add_string(writer, slot, share)
    writer.add(closing, kind=STRUCTURE)


def _add_string(writer: _Writer, slot: Slot | None, share: float) -> None:
    rng = writer.rng
    writer.add('"', kind=STRUCTURE)
    _add_words(writer, rng.randint(1, 2), share)
    if slot is not None:
        writer.add(" ")
        writer.add_mark(slot, JSON)
        writer.add(" ")
        _add_words(writer, 1, share)
    writer.add('"', kind=STRUCTURE)


def _add_words(writer: _Writer, count: int, share: float) -> None:
    rng = writer.rng
    said = [writer.words.plain() for _ in range(count)]
    if rng.random() < 0.3:
        said.insert(rng.randint(0, count), rng.choice(_EMOJI))
    for one in " ".join(said) + rng.choice(("", "", ".", ". Bo")):
        writer.add(one, write_character(rng, one, share))
