# SPDX-License-Identifier: Apache-2.0
"""HoldLimits: how long each detector of a stream may hold a text; past it the detector has failed for that text.

The time of a text begins when its chunk came, so it includes the wait behind earlier chunks, for a permit and in the
queue of a shared request, but no wait for a slow client, who could otherwise make a detector fail.
`on_detector_failure` decides whether the text then leaves unread.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from lockgate.errors import TimedOut
from lockgate.gate.batcher import DetectorRequest
from lockgate.gate.values import Chunk, Detection, Excerpt, Subject
from lockgate.guard.detectors import ActiveGuard
from lockgate.interfaces import Review

Findings = Sequence[Sequence[Detection]]


class HoldLimits:
    """The limits of one stream."""

    def __init__(self, limited: Sequence[ActiveGuard], permits: asyncio.Semaphore | None) -> None:
        self._guards = {one.guard.id: one for one in limited}
        self._permits = permits
        self._restarted = 0.0  # when detectors last stopped waiting for the client
        self._arrivals: dict[str, dict[tuple[int, int], float]] = {name: {} for name in self._guards}
        self._begun: dict[tuple[str, int, int], float] = {}
        self._now = asyncio.get_running_loop().time

    def note_chunk(self, chunker: str, choice: int, chunk: Chunk) -> None:
        """Records when a chunk came, for each detector with a limit that will read it."""
        for name, one in self._guards.items():
            if one.guard.chunker_id == chunker:
                self._arrivals[name].setdefault((choice, chunk.start + len(chunk.text)), self._now())

    def note_request(self, request: DetectorRequest) -> None:
        """Records when the time of a request to a detector with a limit began: when its chunk came, else now."""
        if self.holds(request.detector):
            key, now = (request.choice, request.chunks[-1].end), self._now()
            self._begun[_key(request)] = self._arrivals[request.detector].pop(key, now)

    def restart(self) -> None:
        """Begins the time of all waiting texts again: they waited for the client."""
        self._restarted = self._now()

    def holds(self, detector: str) -> bool:
        """Returns whether the detector has a limit."""
        return detector in self._guards

    async def read(self, request: DetectorRequest) -> Findings:
        """Returns the findings, or none if the time is over and the text may pass unread; else raises TimedOut."""
        active = self._guards[request.detector]
        begun = max(self._begun.pop(_key(request)), self._restarted)
        left_s = begun + (active.max_hold_s or 0.0) - self._now()
        return await read_in_time(active, request.excerpts, left_s, self._permits)


async def read_in_time(
    active: ActiveGuard, excerpts: Sequence[Excerpt], left_s: float, permits: asyncio.Semaphore | None = None
) -> Findings:
    """Returns the findings, or none if the time is over and the text may pass unread; else raises TimedOut."""
    if left_s > 0:
        try:
            async with asyncio.timeout(left_s) as limit, permits or nullcontext():
                return await active.reading.read(excerpts)
        except TimeoutError:
            if not limit.expired():
                raise
    error = _too_late(active.guard.id, active.max_hold_s)
    if active.on_failure is None or not active.on_failure(error):
        raise error
    return ()


def _key(request: DetectorRequest) -> tuple[str, int, int]:
    return request.detector, request.choice, request.number


class LimitedReview(NamedTuple):
    """A reviewer that has failed if it has not answered in time."""

    detector_id: str
    inner: Review
    max_hold_s: float

    async def review(self, subject: Subject) -> Sequence[Detection]:
        """Returns the findings; raises TimedOut."""
        try:
            async with asyncio.timeout(self.max_hold_s) as limit:
                return await self.inner.review(subject)
        except TimeoutError:
            if not limit.expired():
                raise
        raise _too_late(self.detector_id, self.max_hold_s)


def _too_late(detector: str, max_hold_s: float | None) -> TimedOut:
    return TimedOut(detector, f"detector `{detector}` held a text longer than {round((max_hold_s or 0) * 1000)} ms")
