# SPDX-License-Identifier: Apache-2.0
"""Trace: what happens to one answer behind the gate, for those who may see text that is still held.

Text that came and frontiers that moved since the last look are one note, so what waits here is bounded by what waits
at the gate. Without a trace every answer is the same.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lockgate.gate.lanes import Lanes
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Verdict
from lockgate.rag.sources import Retrieval

RELEASED, MASKED, BLOCKED = "released", "masked", "blocked"


class SourceNote(NamedTuple):
    """A source has answered, and its documents have been read."""

    at_ms: float
    retrieval: Retrieval


class HeldNote(NamedTuple):
    """Text came from the model."""

    at_ms: float
    start: int
    text: str


class FrontierNote(NamedTuple):
    """How far each detector has read, and how many characters wait."""

    at_ms: float
    frontiers: Mapping[str, int]
    held_chars: int


class ReleaseNote(NamedTuple):
    """Text was let through, or not; `held_ms` is how long its first character had waited.

    `kept` is how much of it leaves, from its start, masks in place.
    """

    at_ms: float
    start: int
    end: int
    held_ms: float
    outcome: str
    kept: int
    detections: tuple[Detection, ...]


Note = SourceNote | HeldNote | FrontierNote | ReleaseNote


class Trace:
    """The notes of one request. `clock` tells seconds; `on_note` is called when there is something to look at."""

    def __init__(self, clock: Callable[[], float], on_note: Callable[[], object]) -> None:
        self._clock = clock
        self._on_note = on_note
        self._began = clock()
        self._notes: list[Note] = []
        self._arrivals: deque[tuple[int, float]] = deque()  # where text ended that came, and when
        self._received = 0
        self._coming: list[str] = []  # text that is in no note yet
        self._coming_ms = 0.0
        self._frontiers: dict[str, int] = {}
        self._moved: FrontierNote | None = None  # the same for frontiers
        self._moved_at = 0  # and how much had come then

    def come(self, retrieval: Retrieval) -> None:
        """A source has ended."""
        self._add(SourceNote(self._now_ms(), retrieval))

    def receive(self, burst: Frame | list[Frame]) -> None:
        """Frames came from the model."""
        text = "".join([frame.text for frame in burst]) if isinstance(burst, list) else burst.text
        if text:
            now = self._now_ms()
            self._received += len(text)
            self._coming_ms = self._coming_ms if self._coming else now
            self._coming.append(text)
            self._arrivals.append((self._received, now))
            self._on_note()

    def watch(self, lanes: Lanes) -> None:
        """Something has moved at the gate."""
        if not self._received:  # a model that says nothing opens no lane
            return
        lane = lanes.by_choice[0]
        frontiers = lane.frontiers()
        if frontiers != self._frontiers:
            self._frontiers = frontiers
            self._moved = FrontierNote(self._now_ms(), frontiers, lane.held_chars)
            self._moved_at = self._received
            self._on_note()

    def leave(self, release: Release, verdict: Verdict | None) -> None:
        """A release was judged; no verdict without readers."""
        outcome, kept = RELEASED, len(release.text)
        if verdict is not None and (verdict.masks or verdict.is_blocked):
            outcome, kept = (BLOCKED if verdict.is_blocked else MASKED), verdict.kept
        now = self._now_ms()
        since = now
        while self._arrivals:
            end, came = self._arrivals[0]
            if end > release.start:
                since = min(since, came)
            if end > release.end:
                break
            self._arrivals.popleft()
        if release.text or release.detections:
            self._add(ReleaseNote(now, release.start, release.end, now - since, outcome, kept, release.detections))

    def take(self) -> list[Note]:
        """The notes not taken yet, in order."""
        self._settle()
        notes, self._notes = self._notes, []
        return notes

    def _add(self, note: Note) -> None:
        self._settle()
        self._notes.append(note)
        self._on_note()

    def _settle(self) -> None:
        """What has come and moved up to now becomes notes: text first, and what is said of it counts all of it."""
        if self._coming:
            text = "".join(self._coming)
            self._coming = []
            self._notes.append(HeldNote(self._coming_ms, self._received - len(text), text))
        if self._moved is not None:
            at_ms, frontiers, held_chars = self._moved
            held_chars += self._received - self._moved_at
            since = self._notes[-1].at_ms if self._notes else 0.0
            self._notes.append(FrontierNote(max(at_ms, since), frontiers, held_chars))
            self._moved = None

    def _now_ms(self) -> float:
        return (self._clock() - self._began) * 1000
