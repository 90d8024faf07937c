# SPDX-License-Identifier: Apache-2.0
"""Trace: notes about the progress of one answer, for clients that may see held text.

All text since the last note becomes one note, and so do all frontier moves: the text at the gate bounds the notes.
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
    """A source has ended, and detectors have read its documents."""

    at_ms: float
    retrieval: Retrieval


class HeldNote(NamedTuple):
    """Text came from the model."""

    at_ms: float
    start: int
    text: str


class FrontierNote(NamedTuple):
    """The position up to which each detector has read, and the number of held characters."""

    at_ms: float
    frontiers: Mapping[str, int]
    held_chars: int


class ReleaseNote(NamedTuple):
    """Text was released, masked or blocked; `held_ms` is the time that its first character waited."""

    at_ms: float
    start: int
    end: int
    held_ms: float
    outcome: str
    kept: int  # characters that leave, masks applied
    detections: tuple[Detection, ...]


Note = SourceNote | HeldNote | FrontierNote | ReleaseNote


class Trace:
    """The notes of one request. `clock` returns seconds; `on_note` is called when there are new notes."""

    def __init__(self, clock: Callable[[], float], on_note: Callable[[], object]) -> None:
        self._clock = clock
        self._on_note = on_note
        self._started_at = clock()
        self._notes: list[Note] = []
        self._arrivals: deque[tuple[int, float]] = deque()  # end and time of each received text
        self._received = 0
        self._pending_text: list[str] = []  # text that is not in a note yet
        self._pending_text_at_ms = 0.0
        self._frontiers: dict[str, int] = {}
        self._pending_frontier: FrontierNote | None = None  # frontiers that are not in a note yet
        self._pending_frontier_received = 0  # the number of characters received at that time

    def add_retrieval(self, retrieval: Retrieval) -> None:
        """Adds a note for a source that has ended."""
        self._add(SourceNote(self._now_ms(), retrieval))

    def receive(self, burst: Frame | list[Frame]) -> None:
        """Records the text of frames from the model."""
        text = "".join([frame.text for frame in burst]) if isinstance(burst, list) else burst.text
        if text:
            now = self._now_ms()
            self._received += len(text)
            self._pending_text_at_ms = self._pending_text_at_ms if self._pending_text else now
            self._pending_text.append(text)
            self._arrivals.append((self._received, now))
            self._on_note()

    def watch(self, lanes: Lanes) -> None:
        """Records the frontiers after a step of the gate."""
        if not self._received:  # there may be no lane yet
            return
        lane = lanes.by_choice[0]
        frontiers = lane.frontiers()
        if frontiers != self._frontiers:
            self._frontiers = frontiers
            self._pending_frontier = FrontierNote(self._now_ms(), frontiers, lane.held_chars)
            self._pending_frontier_received = self._received
            self._on_note()

    def add_release(self, release: Release, verdict: Verdict | None) -> None:
        """Adds a note for a release; without detectors it has no verdict."""
        outcome, kept = RELEASED, len(release.text)
        if verdict is not None and (verdict.masks or verdict.is_blocked):
            outcome, kept = (BLOCKED if verdict.is_blocked else MASKED), verdict.kept
        now = self._now_ms()
        since = now
        while self._arrivals:
            end, arrived_ms = self._arrivals[0]
            if end > release.start:
                since = min(since, arrived_ms)
            if end > release.end:
                break
            self._arrivals.popleft()
        if release.text or release.detections:
            self._add(ReleaseNote(now, release.start, release.end, now - since, outcome, kept, release.detections))

    def take(self) -> list[Note]:
        """Returns the notes not taken yet, in order."""
        self._flush()
        notes, self._notes = self._notes, []
        return notes

    def _add(self, note: Note) -> None:
        self._flush()
        self._notes.append(note)
        self._on_note()

    def _flush(self) -> None:
        """Turns pending text and then pending frontiers into notes; the held characters count all text received."""
        if self._pending_text:
            text = "".join(self._pending_text)
            self._pending_text = []
            self._notes.append(HeldNote(self._pending_text_at_ms, self._received - len(text), text))
        if self._pending_frontier is not None:
            at_ms, frontiers, held_chars = self._pending_frontier
            held_chars += self._received - self._pending_frontier_received
            since = self._notes[-1].at_ms if self._notes else 0.0
            self._notes.append(FrontierNote(max(at_ms, since), frontiers, held_chars))
            self._pending_frontier = None

    def _now_ms(self) -> float:
        return (self._clock() - self._started_at) * 1000
