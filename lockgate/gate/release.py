# SPDX-License-Identifier: Apache-2.0
"""ReleaseGate: decides which text may leave now. This is the main guarantee of Lockgate.

The gate keeps one frontier per holding detector: the position up to which this detector has read. No character leaves
before every holding detector has cleared it, so detectors may use chunks of any size. Two strategies end a release:

FRONTIER             up to the smallest frontier, as soon as it moves.
MAX_PROCESSED_INDEX  wait for one response of every detector; the largest chunk end among the first responses is the
                     reference; when every detector has reached it, release up to it. The releases do not depend on
                     the order of the responses.

A finding leaves once, with the first released text that overlaps it. A trailing detector holds no text; its findings
leave with the final release. The other fields of a frame leave with its last character.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import NamedTuple

from lockgate.gate.values import Detection, Frame, Span


class Strategy(Enum):
    """The rule that decides where a release ends."""

    FRONTIER = "frontier"
    MAX_PROCESSED_INDEX = "max_processed_index"


class Release(NamedTuple):
    """Text that may leave, with its findings and the frames that it completes. `is_final`: it is the last release.

    `inputs`: the numbers of its first and last frame, as claimed by the chunkers, else by position of the text.
    `claimed`: the span that a trusted chunker claims for this text; it may differ from `start`..`end`.
    """

    start: int
    end: int
    text: str
    detections: tuple[Detection, ...] = ()
    frames: tuple[Frame, ...] = ()
    choice: int = 0
    is_final: bool = False
    inputs: tuple[int, int] = (0, 0)
    claimed: Span | None = None


@dataclass(slots=True, eq=False)
class FrameLog:
    """The frames of one text that are received and not yet released."""

    frames: deque[Frame] = field(default_factory=deque)
    received: int = 0
    released: int = 0
    first: int = 0  # numbers of the first and the last frame with text in the latest release
    last: int = 0
    _head_start: int = 0

    def append(self, frame: Frame) -> None:
        """Adds one frame at the end."""
        self.frames.append(frame)
        self.received += len(frame.text)

    def release(self, upto: int) -> tuple[str, tuple[Frame, ...]]:
        """Returns the text from the last release up to `upto`, and the frames whose last character it contains."""
        if not self.released <= upto <= self.received:
            raise RuntimeError(f"cannot release up to {upto}: released {self.released}, received {self.received}")
        frames, texts, completed = self.frames, [], []
        position, start = self.released, self._head_start
        if frames:
            self.first = frames[0].number
        while frames:
            text = frames[0].text
            end = start + len(text)
            if text and start < upto:
                self.last = frames[0].number
            if end > upto:
                texts.append(text[position - start : upto - start])
                break
            texts.append(text[position - start :] if position > start else text)
            completed.append(frames.popleft())
            start = position = end
        self._head_start, self.released = start, upto
        return "".join(texts), tuple(completed)


class ReleaseGate:
    """The gate of one text: takes frames and detector progress, returns releases."""

    __slots__ = (
        "_choice", "_ends", "_frontiers", "_lowest", "_order", "_pending", "_reference", "_seen", "_trailing", "log",
    )  # fmt: skip

    def __init__(
        self,
        holding: Iterable[str],
        trailing: Iterable[str] = (),
        *,
        strategy: Strategy = Strategy.FRONTIER,
        choice: int = 0,
    ) -> None:
        self._frontiers = dict.fromkeys(holding, 0)
        self._trailing: dict[str, list[Detection]] = {name: [] for name in trailing}
        self._order = {name: place for place, name in enumerate([*self._frontiers, *self._trailing])}
        self._ends: dict[str, deque[int]] | None = None
        if strategy is Strategy.MAX_PROCESSED_INDEX and len(self._frontiers) > 1:
            self._ends = {name: deque() for name in self._frontiers}
        self._reference = -1
        self._lowest = 0
        self.log = FrameLog()
        self._pending: list[tuple[int, int, int, Detection]] = []
        self._seen = 0
        self._choice = choice

    @property
    def received(self) -> int:
        """The number of characters received."""
        return self.log.received

    @property
    def released(self) -> int:
        """The number of characters released."""
        return self.log.released

    @property
    def held_chars(self) -> int:
        """The number of characters not yet released."""
        return self.log.received - self.log.released

    def lowest(self) -> list[str]:
        """Returns the holding detectors that have read least."""
        return [name for name, upto in self._frontiers.items() if upto == self._lowest]

    def receive(self, frame: Frame) -> list[Release]:
        """Handles a frame; releases it at once if no detector holds, or if it has no text and no text waits."""
        log = self.log
        log.append(frame)
        if log.received == log.released or not self._frontiers:
            return [self._release(log.received)]
        return []

    def clear(self, detector: str, upto: int, detections: Sequence[Detection] = ()) -> list[Release]:
        """Handles a detector's progress: it has read the text up to `upto` and made these findings."""
        before = self._frontiers.get(detector)
        if before is None:
            self._trailing[detector].extend(detections)
            return []
        if not before <= upto <= self.log.received:
            raise RuntimeError(f"{detector} cannot clear {upto}: it was at {before} of {self.log.received}")
        for found in detections:  # each leaves with its first character, or with the nearest character just cleared
            at = min(max(found.start, before), max(upto - 1, before))
            heapq.heappush(self._pending, (at, self._order[detector], self._seen, found))
            self._seen += 1
        if upto == before:
            return []
        self._frontiers[detector] = upto
        if before == self._lowest:
            self._lowest = min(self._frontiers.values())
        if self._ends is None:
            return [self._release(self._lowest)] if self._lowest > self.log.released else []
        self._ends[detector].append(upto)
        return self._release_references(self._ends)

    def finish(self) -> list[Release]:
        """Returns the final release, after every detector has read the whole text."""
        if self._frontiers and self._lowest < self.log.received:
            raise RuntimeError(f"{self.lowest()} read only {self._lowest} of {self.log.received} characters")
        last = self._release(self.log.received, is_final=True)
        trailing = [found for of_detector in self._trailing.values() for found in of_detector]
        return [last._replace(detections=(*last.detections, *trailing))]

    def _release_references(self, ends: dict[str, deque[int]]) -> list[Release]:
        releases: list[Release] = []
        while True:
            if self._reference < 0:
                if not all(ends.values()):
                    return releases
                self._reference = max(queue[0] for queue in ends.values())
            if self._lowest < self._reference:
                return releases
            releases.append(self._release(self._reference))
            for queue in ends.values():
                while queue and queue[0] <= self._reference:
                    queue.popleft()
            self._reference = -1

    def _release(self, upto: int, *, is_final: bool = False) -> Release:
        start = self.log.released
        text, frames = self.log.release(upto)
        found = []
        while self._pending and (is_final or self._pending[0][0] < upto):
            found.append(heapq.heappop(self._pending)[1:])
        detections = tuple([one for _, _, one in sorted(found, key=itemgetter(0, 1))]) if found else ()
        return Release(start, upto, text, detections, frames, self._choice, is_final, (self.log.first, self.log.last))
