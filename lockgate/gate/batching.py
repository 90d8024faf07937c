# SPDX-License-Identifier: Apache-2.0
"""DetectionBatcher: what to ask which detector next.

Decides which chunks go into a request, how many requests are open, and how far each detector has read: answers come
in any order and count in text order. In a stream a request carries one chunk; of a whole text it carries all.

Where a chunker was forced to cut in the middle of running text, a finding may lie across the cut. A detector that
looks back then reads the end of the chunk before once more, so the chunk before counts as read only up to there;
each finding belongs to the chunk that is responsible for its first character, and is reported once. The very first
character seen by looking back belongs to the chunk before, as what seems to begin there may begin earlier: such a
finding counts from the next character on, unless the chunk before has reported it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lockgate.gate.values import Chunk, Detection, Excerpt
from lockgate.gate.verdicts import keep


class Reader(NamedTuple):
    """A detector as the machines see it."""

    detector: str
    chunker: str
    threshold: float = 0.0
    lookbehind_chars: int = 0
    holds: bool = True


class Ask(NamedTuple):
    """One request to one detector. `number` counts that detector's requests."""

    detector: str
    number: int
    chunks: tuple[Chunk, ...]
    excerpts: tuple[Excerpt, ...]
    choice: int = 0


class Progress(NamedTuple):
    """A detector has read everything up to `upto`, and found these."""

    detector: str
    upto: int
    detections: tuple[Detection, ...]


class DetectorQueue:
    """One detector's queue: chunks to ask, requests open, answers that wait for an earlier one."""

    __slots__ = (
        "answers", "asked", "before", "detector", "ends_at", "frontier", "look", "open", "passed", "reader", "reported",
        "told", "waiting",
    )  # fmt: skip

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.detector = reader.detector
        self.look = reader.lookbehind_chars
        self.waiting: deque[Chunk] = deque()
        self.open: dict[int, Ask] = {}
        self.answers: dict[int, tuple[Ask, Sequence[Sequence[Detection]]]] = {}
        self.asked = 0
        self.told = 0
        self.frontier = 0
        self.before = ""
        self.reported: tuple[Detection, ...] = ()  # of the chunk before, where its cut was forced
        self.passed = 0  # how far its text goes on unread, its chunker having failed
        self.ends_at = 0  # where its text ends, its chunker having ended

    def excerpt(self, chunk: Chunk) -> Excerpt:
        """What the detector reads of the chunk."""
        before = self.before
        self.before = (before + chunk.text)[-self.look :] if chunk.is_forced and self.look else ""
        return Excerpt(chunk.text, before)

    def owes(self) -> bool:
        """Whether a chunk waits or a request is open."""
        return bool(self.open or self.waiting)


class DetectionBatcher:
    """All detectors of one text."""

    __slots__ = ("_by_chunker", "_choice", "_is_whole", "_max_open", "_queues")

    def __init__(
        self, readers: Iterable[Reader], *, max_open: int = 4, is_whole: bool = False, choice: int = 0
    ) -> None:
        self._choice = choice
        self._max_open = max_open
        self._is_whole = is_whole
        self._queues = {reader.detector: DetectorQueue(reader) for reader in readers}
        self._by_chunker: dict[str, list[DetectorQueue]] = {}
        for queue in self._queues.values():
            self._by_chunker.setdefault(queue.reader.chunker, []).append(queue)

    def add(self, chunker: str, chunk: Chunk) -> list[Ask]:
        """A chunk to be read by every detector of its chunker."""
        asks: list[Ask] = []
        for queue in self._by_chunker[chunker]:
            if self._is_whole or queue.waiting or len(queue.open) >= self._max_open:
                queue.waiting.append(chunk)
            else:
                is_plain = not (queue.before or chunk.is_forced)  # as nearly every chunk is
                self._open(queue, (chunk,), (Excerpt(chunk.text) if is_plain else queue.excerpt(chunk),), asks)
        return asks

    def add_all(self, chunker: str, chunks: Sequence[Chunk]) -> list[Ask]:
        """Chunks that came at once. Of a whole text they wait until the chunker has ended."""
        if not self._is_whole:
            return [ask for chunk in chunks for ask in self.add(chunker, chunk)]
        for queue in self._by_chunker[chunker]:
            queue.waiting.extend(chunks)
        return []

    def end(self, chunker: str, upto: int) -> tuple[list[Ask], list[Progress]]:
        """The chunker has no more chunks; with its last answer a detector has read up to `upto`."""
        asks: list[Ask] = []
        progress: list[Progress] = []
        for queue in self._by_chunker[chunker]:
            queue.ends_at = upto
            if self._is_whole and queue.waiting:
                self._ask_all(queue, asks)
            elif not queue.owes():
                self._skip(queue, upto, progress)
        return asks, progress

    def pass_over(self, chunker: str, upto: int) -> list[Progress]:
        """The chunker has failed: its detectors read what it has cut, and nothing that follows, up to `upto`."""
        progress: list[Progress] = []
        for queue in self._by_chunker[chunker]:
            queue.passed = upto
            if not queue.owes():
                self._skip(queue, upto, progress)
        return progress

    def _skip(self, queue: DetectorQueue, upto: int, progress: list[Progress]) -> None:
        """The detector has nothing to read before `upto`."""
        if upto > queue.frontier:
            queue.frontier = upto
            progress.append(Progress(queue.detector, upto, ()))

    def answer(self, ask: Ask, findings: Sequence[Sequence[Detection]]) -> tuple[list[Ask], list[Progress]]:
        """A detector's answer to a request: what to ask next, and how far it has now read."""
        queue = self._queues[ask.detector]
        if queue.open.pop(ask.number, None) is None:
            raise RuntimeError(f"request {ask.number} to {ask.detector} is not open")
        asks: list[Ask] = []
        progress: list[Progress] = []
        if ask.number != queue.told:  # an earlier answer is still missing
            queue.answers[ask.number] = ask, findings
        else:
            self._tell(queue, ask, findings, progress)
            while queue.answers and (ready := queue.answers.pop(queue.told, None)) is not None:
                self._tell(queue, *ready, progress)
        if queue.waiting:
            self._ask(queue, asks)
        if not queue.owes():
            self._skip(queue, max(queue.passed, queue.ends_at), progress)
        return asks, progress

    def owes(self, detector: str) -> bool:
        """Whether the detector has text to read or to answer for."""
        return self._queues[detector].owes()

    def has_backlog(self, chunker: str, limit: int) -> bool:
        """Whether so many of the chunker's chunks wait for one of its detectors."""
        is_long = False
        for queue in self._by_chunker[chunker]:  # for every frame: cheaper than any()
            is_long |= len(queue.waiting) >= limit
        return is_long

    def frontiers(self) -> dict[str, int]:
        """How far each detector has read."""
        return {name: queue.frontier for name, queue in self._queues.items()}

    def _ask(self, queue: DetectorQueue, asks: list[Ask]) -> None:
        while queue.waiting and len(queue.open) < self._max_open:
            chunk = queue.waiting.popleft()
            self._open(queue, (chunk,), (queue.excerpt(chunk),), asks)

    def _ask_all(self, queue: DetectorQueue, asks: list[Ask]) -> None:
        chunks = tuple(queue.waiting)
        queue.waiting.clear()
        forced = [chunk for chunk in chunks if chunk.is_forced]
        excerpts = [queue.excerpt(chunk) if forced else Excerpt(chunk.text) for chunk in chunks]
        self._open(queue, chunks, tuple(excerpts), asks)

    def _open(
        self, queue: DetectorQueue, chunks: tuple[Chunk, ...], excerpts: tuple[Excerpt, ...], asks: list[Ask]
    ) -> None:
        number = queue.asked
        ask = queue.open[number] = Ask(queue.detector, number, chunks, excerpts, self._choice)
        queue.asked = number + 1
        asks.append(ask)

    def _tell(
        self, queue: DetectorQueue, ask: Ask, findings: Sequence[Sequence[Detection]], progress: list[Progress]
    ) -> None:
        found: list[Detection] = []
        queue.told += 1
        look, frontier = queue.look, queue.frontier
        for number, chunk in enumerate(ask.chunks):
            begin, end, is_reread = frontier, chunk.end, look and chunk.is_forced
            if is_reread:
                end -= look - 1
            if end > begin:
                frontier = end
            placed: list[Detection] = []
            if number < len(findings) and findings[number]:  # a short answer means no findings for the rest
                placed = _place(queue, chunk, findings[number], begin, frontier if is_reread else None)
                found += placed
            if look:
                queue.reported = tuple(placed) if is_reread else ()
        queue.frontier = frontier
        progress.append(Progress(queue.detector, frontier, tuple(found)))


def _place(
    queue: DetectorQueue, chunk: Chunk, findings: Iterable[Detection], begin: int, stop: int | None
) -> list[Detection]:
    """The findings that this chunk is responsible for, with spans in the whole text.

    One that starts before the chunk was seen by looking back: it counts from `begin`, where the chunk before stopped.
    One that starts at `stop` or later will be seen again by the next chunk.
    """
    placed = []
    for found in keep(findings, queue.reader.threshold):
        start, end, text = found.start + chunk.start, found.end + chunk.start, found.text
        if stop is not None and start >= stop:
            continue
        if found.start < 0 and start < begin:
            if end <= begin or any(one.start <= start and end <= one.end for one in queue.reported):
                continue
            start, text = begin, text[begin - start :]
        placed.append(found._replace(start=start, end=end, text=text, detector_id=queue.detector))
    return placed
