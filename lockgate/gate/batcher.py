# SPDX-License-Identifier: Apache-2.0
"""ChunkAligner: ties a chunker's answers to its text. DetectionBatcher: what to ask which detector next.

The aligner decides whether a chunk may be believed. In a stream chunks must follow each other: white space may be left
out between them, anything else that no detector would read, an overlap, or text that was never sent is the chunker's
fault, because cleared text may already have left. When the text is whole, nothing leaves before every chunk has been
read, so gaps, overlaps and any order are fine; only text that does not match is a fault.

The batcher decides which chunks go into a request, how many requests are open, and how far each detector has read:
answers come in any order and count in text order. In a stream a request carries one chunk, of a whole text all.

Where a chunker was forced to cut in the middle of running text, a finding may lie across the cut. A detector that
looks back then reads the end of the chunk before once more, so the chunk before counts as read only up to there;
each finding belongs to the chunk that is responsible for its first character, and is reported once. The very first
character seen by looking back belongs to the chunk before, as what seems to begin there may begin earlier: such a
finding counts from the next character on, unless the chunk before has reported it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockgate.errors import BrokeProtocol
from lockgate.gate.values import Chunk, Detection, Excerpt, Frame

_MAX_GAP = 64  # of white space before a chunk whose place has to be found
_MAX_BACKLOG = 256  # chunks that wait for one detector


@dataclass(slots=True, eq=False)
class ChunkerInput:
    """The frames that some chunker has not placed, stored once for all; each aligner keeps its own place in them."""

    frames: list[Frame] = field(default_factory=list)
    first: int = 0  # how many frames were forgotten
    received: int = 0

    def append(self, frame: Frame) -> None:
        """Take in a frame with text."""
        self.frames.append(frame)
        self.received += len(frame.text)

    def forget(self, before: int) -> None:
        """No aligner needs the frames before that one any more."""
        del self.frames[: before - self.first]
        self.first = before


class ChunkAligner:
    """One chunker's view of one text: how much it was given, and how much it has placed."""

    __slots__ = ("_chunker", "_head", "_input", "_is_whole", "_reads_empty", "_whole", "given", "placed", "reached")

    def __init__(
        self, chunker: str, chunker_input: ChunkerInput, *, is_whole: bool = False, reads_empty: bool = False
    ) -> None:
        self._chunker = chunker
        self._reads_empty = reads_empty
        self._is_whole = is_whole
        self._input = chunker_input
        self._whole: str | None = None
        self._head = 0  # characters of the frame `reached` that are already placed
        self.reached = 0  # the first frame that is not placed whole
        self.given = 0  # frames that the chunker has taken
        self.placed = 0

    @property
    def is_fed(self) -> bool:
        """Whether the chunker has taken all there is."""
        return self.given == self._input.first + len(self._input.frames)

    def feed(self) -> list[Frame]:
        """The frames that the chunker has not yet taken."""
        chunker_input = self._input
        frames = chunker_input.frames[self.given - chunker_input.first :]
        if frames:
            self.given += len(frames)
        return frames

    def place(self, chunk: Chunk) -> bool:
        """Whether the chunk is one to read: in a stream an empty one is passed over, unless empty texts are read."""
        start, end, text = chunk.start, chunk.end, chunk.text
        received = self._input.received
        if not 0 <= start <= end <= received:
            raise self._fault(f"chunk {start}..{end} lies outside the {received} characters sent")
        if self._is_whole:
            if self._whole is None:
                self._whole = "".join([frame.text for frame in self._input.frames])
            if self._whole[start:end] != text:
                raise self._fault(f"chunk {start}..{end} is not the text that was sent")
            return True
        if start != self.placed:
            self._skip(start)
        if self._take(end - start) != text:
            raise self._fault(f"chunk {start}..{end} is not the text that was sent")
        self.placed = end
        return end > start or (self._reads_empty and not received)

    def find(self, text: str) -> int | None:
        """Where the text stands that a chunker names, if it is what comes next; white space may be left out."""
        start, wanted = self.placed, len(text)
        come, size = [], 0
        head = self._head
        for frame in self._input.frames[self.reached - self._input.first :]:
            come.append(frame.text[head:])
            size += len(frame.text) - head
            head = 0
            if size >= wanted + _MAX_GAP:
                break
        rest = "".join(come)
        gap = 0 if rest.startswith(text) else len(rest) - len(rest.lstrip())
        return start + gap if rest.startswith(text, gap) else None

    def finish(self) -> int:
        """The chunker has ended: the position up to which its chunks count, which is all that was sent."""
        received = self._input.received
        if not self._is_whole:
            self._skip(received)
        self.placed = received
        self.reached = self._input.first + len(self._input.frames)
        return received

    def pass_over(self) -> int:
        """The chunker has failed, and its text goes on unread: the position up to which that is so."""
        self.placed, self._head = self._input.received, 0
        self.reached = self.given = self._input.first + len(self._input.frames)
        return self.placed

    def _skip(self, upto: int) -> None:
        if upto < self.placed:
            raise self._fault(f"a chunk at {upto} overlaps the one before, which ends at {self.placed}")
        gap = self._take(upto - self.placed)
        if gap and not gap.isspace():
            raise self._fault(f"text at {self.placed}..{upto} is in no chunk")
        self.placed = upto

    def _take(self, length: int) -> str:
        frames, at, head = self._input.frames, self.reached - self._input.first, self._head
        if not head and length and len(frames[at].text) == length:  # exactly one frame
            self.reached += 1
            return frames[at].text
        taken = []
        while length > 0:
            text = frames[at].text
            if not head and len(text) <= length:
                part = text
                at += 1
            else:
                part = text[head : head + length]
                head += len(part)
                if head == len(text):
                    head = 0
                    at += 1
            length -= len(part)
            taken.append(part)
        self.reached, self._head = at + self._input.first, head
        return taken[0] if len(taken) == 1 else "".join(taken)

    def _fault(self, reason: str) -> BrokeProtocol:
        return BrokeProtocol(self._chunker, f"chunker `{self._chunker}`: {reason}")


class DetectorSpec(NamedTuple):
    """A detector as the machines see it."""

    detector: str
    chunker: str
    threshold: float = 0.0
    lookbehind_chars: int = 0
    holds: bool = True


class DetectorRequest(NamedTuple):
    """One request to one detector. `number` counts that detector's requests."""

    detector: str
    number: int
    chunks: tuple[Chunk, ...]
    excerpts: tuple[Excerpt, ...]
    choice: int = 0


class DetectorProgress(NamedTuple):
    """A detector has read everything up to `upto`, and found these."""

    detector: str
    upto: int
    detections: tuple[Detection, ...]


@dataclass(slots=True, eq=False)
class DetectorQueue:
    """One detector's queue: chunks to ask, requests open, answers that wait for an earlier one."""

    reader: DetectorSpec
    detector: str
    look: int
    waiting: deque[Chunk] = field(default_factory=deque)
    open: dict[int, DetectorRequest] = field(default_factory=dict)
    answers: dict[int, tuple[DetectorRequest, Sequence[Sequence[Detection]]]] = field(default_factory=dict)
    asked: int = 0
    told: int = 0
    frontier: int = 0
    before: str = ""
    reported: tuple[Detection, ...] = ()  # of the chunk before, where its cut was forced
    passed: int = 0  # how far its text goes on unread, its chunker having failed
    ends_at: int = 0  # where its text ends, its chunker having ended

    def excerpt(self, chunk: Chunk) -> Excerpt:
        """What the detector reads of the chunk."""
        before = self.before
        self.before = (before + chunk.text)[-self.look :] if chunk.is_forced and self.look else ""
        return Excerpt(chunk.text, before)


class DetectionBatcher:
    """All detectors of one text."""

    __slots__ = ("_by_chunker", "_choice", "_is_whole", "_max_open", "_queues")

    def __init__(
        self, readers: Iterable[DetectorSpec], *, max_open: int = 4, is_whole: bool = False, choice: int = 0
    ) -> None:
        self._choice = choice
        self._max_open = max_open
        self._is_whole = is_whole
        self._queues = {one.detector: DetectorQueue(one, one.detector, one.lookbehind_chars) for one in readers}
        self._by_chunker: dict[str, list[DetectorQueue]] = {}
        for queue in self._queues.values():
            self._by_chunker.setdefault(queue.reader.chunker, []).append(queue)

    def add(self, chunker: str, chunks: Sequence[Chunk]) -> list[DetectorRequest]:
        """Chunks to be read by every detector of their chunker. Those of a whole text wait until it has ended."""
        asks: list[DetectorRequest] = []
        for queue in self._by_chunker[chunker]:
            if self._is_whole:
                queue.waiting.extend(chunks)
                continue
            for chunk in chunks:
                if queue.waiting or len(queue.open) >= self._max_open:
                    queue.waiting.append(chunk)
                else:
                    is_plain = not (queue.before or chunk.is_forced)  # as nearly every chunk is
                    self._open(queue, (chunk,), (Excerpt(chunk.text) if is_plain else queue.excerpt(chunk),), asks)
        return asks

    def end(self, chunker: str, upto: int) -> tuple[list[DetectorRequest], list[DetectorProgress]]:
        """The chunker has no more chunks; with its last answer a detector has read up to `upto`."""
        asks: list[DetectorRequest] = []
        progress: list[DetectorProgress] = []
        for queue in self._by_chunker[chunker]:
            queue.ends_at = upto
            if self._is_whole and queue.waiting:
                chunks = tuple(queue.waiting)
                queue.waiting.clear()
                forced = [chunk for chunk in chunks if chunk.is_forced]
                excerpts = [queue.excerpt(chunk) if forced else Excerpt(chunk.text) for chunk in chunks]
                self._open(queue, chunks, tuple(excerpts), asks)
            elif not (queue.open or queue.waiting):
                self._skip(queue, upto, progress)
        return asks, progress

    def pass_over(self, chunker: str, upto: int) -> list[DetectorProgress]:
        """The chunker has failed: its detectors read what it has cut, and nothing that follows, up to `upto`."""
        progress: list[DetectorProgress] = []
        for queue in self._by_chunker[chunker]:
            queue.passed = upto
            if not (queue.open or queue.waiting):
                self._skip(queue, upto, progress)
        return progress

    def _skip(self, queue: DetectorQueue, upto: int, progress: list[DetectorProgress]) -> None:
        """The detector has nothing to read before `upto`."""
        if upto > queue.frontier:
            queue.frontier = upto
            progress.append(DetectorProgress(queue.detector, upto, ()))

    def answer(
        self, ask: DetectorRequest, findings: Sequence[Sequence[Detection]]
    ) -> tuple[list[DetectorRequest], list[DetectorProgress]]:
        """A detector's answer to a request: what to ask next, and how far it has now read."""
        queue = self._queues[ask.detector]
        if queue.open.pop(ask.number, None) is None:
            raise RuntimeError(f"request {ask.number} to {ask.detector} is not open")
        asks: list[DetectorRequest] = []
        progress: list[DetectorProgress] = []
        if ask.number != queue.told:  # an earlier answer is still missing
            queue.answers[ask.number] = ask, findings
        else:
            self._tell(queue, ask, findings, progress)
            while queue.answers and (ready := queue.answers.pop(queue.told, None)) is not None:
                self._tell(queue, *ready, progress)
        while queue.waiting and len(queue.open) < self._max_open:
            chunk = queue.waiting.popleft()
            self._open(queue, (chunk,), (queue.excerpt(chunk),), asks)
        if not (queue.open or queue.waiting):
            self._skip(queue, max(queue.passed, queue.ends_at), progress)
        return asks, progress

    def owes(self, detectors: Iterable[str]) -> bool:
        """Whether one of the detectors has text to read or to answer for."""
        return any(self._queues[name].open or self._queues[name].waiting for name in detectors)

    def has_backlog(self, chunker: str) -> bool:
        """Whether many of the chunker's chunks wait for one of its detectors."""
        is_long = False
        for queue in self._by_chunker[chunker]:  # for every frame: cheaper than any()
            is_long |= len(queue.waiting) >= _MAX_BACKLOG
        return is_long

    def frontiers(self) -> dict[str, int]:
        """How far each detector has read."""
        return {name: queue.frontier for name, queue in self._queues.items()}

    def _open(
        self,
        queue: DetectorQueue,
        chunks: tuple[Chunk, ...],
        excerpts: tuple[Excerpt, ...],
        asks: list[DetectorRequest],
    ) -> None:
        number = queue.asked
        ask = queue.open[number] = DetectorRequest(queue.detector, number, chunks, excerpts, self._choice)
        queue.asked = number + 1
        asks.append(ask)

    def _tell(
        self,
        queue: DetectorQueue,
        ask: DetectorRequest,
        findings: Sequence[Sequence[Detection]],
        progress: list[DetectorProgress],
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
        progress.append(DetectorProgress(queue.detector, frontier, tuple(found)))


def _place(
    queue: DetectorQueue, chunk: Chunk, findings: Iterable[Detection], begin: int, stop: int | None
) -> list[Detection]:
    """The findings that this chunk is responsible for, with spans in the whole text.

    One that starts before the chunk was seen by looking back: it counts from `begin`, where the chunk before stopped.
    One that starts at `stop` or later will be seen again by the next chunk.
    """
    placed = []
    for found in findings:
        start, end, text = found.start + chunk.start, found.end + chunk.start, found.text
        if found.score < queue.reader.threshold or (stop is not None and start >= stop):
            continue
        if found.start < 0 and start < begin:
            if end <= begin or any(one.start <= start and end <= one.end for one in queue.reported):
                continue
            start, text = begin, text[begin - start :]
        placed.append(found._replace(start=start, end=end, text=text, detector_id=queue.detector))
    return placed
