# SPDX-License-Identifier: Apache-2.0
"""ChunkAligner: matches chunks with the text sent to a chunker. DetectionBatcher: builds the requests to detectors.

The aligner checks each chunk. Every character that is not white space must lie in a chunk, and a chunk's text must be
the text at its place: else the chunker is at fault. In a stream the chunks must come in order and not overlap, because
cleared text may already have left. Of a whole text nothing leaves before the detectors have read every chunk, so
overlaps and any order are allowed.

The batcher decides which chunks go into a request, how many requests are open, and how far each detector has read:
responses come in any order and are applied in text order. In a stream a request has one chunk, for a whole text all.

A forced cut lies in the middle of running text, so a finding may lie across it. A detector with look-behind then reads
the end of the previous chunk again, so the previous chunk counts as read only up to the start of this look-behind text.
Each finding belongs to the chunk that is responsible for its first character, and is reported once. The first
character of the look-behind text belongs to the previous chunk, because a finding there may begin earlier: such a
finding counts from the next character on, unless the previous chunk reported it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from lockgate.errors import BrokeProtocol
from lockgate.gate.values import Chunk, Detection, Excerpt, Frame

_MAX_GAP = 64  # white space characters before a chunk whose position `find` looks for
_MAX_BACKLOG = 256  # chunks that wait for one detector before a backlog is reported


@dataclass(slots=True, eq=False)
class ChunkerInput:
    """The frames that are not yet in a chunk of every chunker, shared by all aligners; each keeps its own position."""

    frames: list[Frame] = field(default_factory=list)
    first: int = 0  # the number of frames removed
    received: int = 0

    def append(self, frame: Frame) -> None:
        """Adds a frame."""
        self.frames.append(frame)
        self.received += len(frame.text)

    def forget(self, before: int) -> None:
        """Removes the frames before number `before`, which no aligner needs any more."""
        del self.frames[: before - self.first]
        self.first = before


class ChunkAligner:
    """Tracks one chunker's progress in one text: frames given to it, and text placed in its chunks."""

    __slots__ = ("_chunker", "_head", "_input", "_is_whole", "_reads_empty", "given", "placed", "reached")

    def __init__(
        self, chunker: str, chunker_input: ChunkerInput, *, is_whole: bool = False, reads_empty: bool = False
    ) -> None:
        self._chunker = chunker
        self._reads_empty = reads_empty
        self._is_whole = is_whole
        self._input = chunker_input
        self._head = 0  # characters of the frame `reached` that are already placed
        self.reached = 0  # the first frame that is not wholly placed
        self.given = 0  # frames given to the chunker
        self.placed = 0

    @property
    def has_all_text(self) -> bool:
        """Whether the chunker was given all frames."""
        return self.given == self._input.first + len(self._input.frames)

    def feed(self) -> list[Frame]:
        """Returns the frames not yet given to the chunker."""
        chunker_input = self._input
        frames = chunker_input.frames[self.given - chunker_input.first :]
        if frames:
            self.given += len(frames)
        return frames

    def place(self, chunk: Chunk) -> bool:
        """Checks a chunk of a stream; returns whether to read it. An empty chunk is read only with `reads_empty`."""
        start, end, text = chunk.start, chunk.end, chunk.text
        received = self._input.received
        if not 0 <= start <= end <= received:
            raise self._fault(f"chunk {start}..{end} lies outside the {received} characters sent")
        if start != self.placed:
            self._skip(start)
        if self._take(end - start) != text:
            raise self._fault(f"chunk {start}..{end} is not the text that was sent")
        self.placed = end
        return end > start or (self._reads_empty and not received)

    def place_all(self, chunks: Iterable[Chunk]) -> None:
        """Checks all chunks of a whole text, in any order."""
        whole = "".join([frame.text for frame in self._input.frames])
        upto = 0
        for start, end, text, *_ in sorted(chunks, key=itemgetter(0)):
            if not 0 <= start <= end <= len(whole):
                raise self._fault(f"chunk {start}..{end} lies outside the {len(whole)} characters sent")
            if whole[start:end] != text:
                raise self._fault(f"chunk {start}..{end} is not the text that was sent")
            if start > upto:
                self._check_gap(whole[upto:start], upto)
            upto = max(upto, end)
        if upto < len(whole):
            self._check_gap(whole[upto:], upto)

    def find(self, text: str) -> int | None:
        """Returns the position of a chunk's text if it comes next, perhaps after white space; else None."""
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
        """Handles the end of the chunker; returns the length of the text sent, which its chunks now cover."""
        received = self._input.received
        if not self._is_whole and received != self.placed:
            self._skip(received)
        self.placed = received
        self.reached = self._input.first + len(self._input.frames)
        return received

    def skip_rest(self) -> int:
        """Handles a failure of the chunker: its remaining text stays unread. Returns the position of the text's end."""
        self.placed, self._head = self._input.received, 0
        self.reached = self.given = self._input.first + len(self._input.frames)
        return self.placed

    def _skip(self, upto: int) -> None:
        if upto < self.placed:
            raise self._fault(f"a chunk at {upto} overlaps the one before, which ends at {self.placed}")
        if gap := self._take(upto - self.placed):
            self._check_gap(gap, self.placed)
        self.placed = upto

    def _check_gap(self, gap: str, start: int) -> None:
        if not gap.isspace():
            raise self._fault(f"text at {start}..{start + len(gap)} is in no chunk")

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
    """The settings of a detector that the gate needs."""

    detector: str
    chunker: str
    threshold: float = 0.0
    lookbehind_chars: int = 0
    holds: bool = True


class DetectorRequest(NamedTuple):
    """One request to one detector. `number` counts the requests to this detector."""

    detector: str
    number: int
    chunks: tuple[Chunk, ...]
    excerpts: tuple[Excerpt, ...]
    choice: int = 0


class DetectorProgress(NamedTuple):
    """A detector has read the text up to `upto`, with these new findings."""

    detector: str
    upto: int
    detections: tuple[Detection, ...]


@dataclass(slots=True, eq=False)
class DetectorQueue:
    """One detector's queue: waiting chunks, open requests, and responses that wait for an earlier one."""

    spec: DetectorSpec
    detector: str
    lookbehind: int
    waiting: deque[Chunk] = field(default_factory=deque)
    open: dict[int, DetectorRequest] = field(default_factory=dict)
    answers: dict[int, tuple[DetectorRequest, Sequence[Sequence[Detection]]]] = field(default_factory=dict)
    sent: int = 0
    next_number: int = 0
    frontier: int = 0
    before: str = ""  # the end of the previous chunk, if its cut was forced
    reported: tuple[Detection, ...] = ()  # findings of the previous chunk, if its cut was forced
    unread_until: int = 0  # end of the text that stays unread because the chunker failed
    ends_at: int = 0  # end of the text, once the chunker has ended

    def excerpt(self, chunk: Chunk) -> Excerpt:
        """Returns the text of the chunk, with look-behind text after a forced cut."""
        before = self.before
        self.before = (before + chunk.text)[-self.lookbehind :] if chunk.is_forced and self.lookbehind else ""
        return Excerpt(chunk.text, before)


class DetectionBatcher:
    """Builds the requests to all detectors of one text and tracks their progress."""

    __slots__ = ("_by_chunker", "_choice", "_is_whole", "_max_open", "_queues")

    def __init__(
        self, detectors: Iterable[DetectorSpec], *, max_open: int = 4, is_whole: bool = False, choice: int = 0
    ) -> None:
        self._choice = choice
        self._max_open = max_open
        self._is_whole = is_whole
        self._queues = {one.detector: DetectorQueue(one, one.detector, one.lookbehind_chars) for one in detectors}
        self._by_chunker: dict[str, list[DetectorQueue]] = {}
        for queue in self._queues.values():
            self._by_chunker.setdefault(queue.spec.chunker, []).append(queue)

    def add(self, chunker: str, chunks: Sequence[Chunk]) -> list[DetectorRequest]:
        """Queues chunks for every detector of the chunker. Chunks of a whole text wait until the text has ended."""
        requests: list[DetectorRequest] = []
        for queue in self._by_chunker[chunker]:
            if self._is_whole:
                queue.waiting.extend(chunks)
                continue
            for chunk in chunks:
                if queue.waiting or len(queue.open) >= self._max_open:
                    queue.waiting.append(chunk)
                else:
                    is_plain = not (queue.before or chunk.is_forced)  # the common case
                    self._open(queue, (chunk,), (Excerpt(chunk.text) if is_plain else queue.excerpt(chunk),), requests)
        return requests

    def end(self, chunker: str, upto: int) -> tuple[list[DetectorRequest], list[DetectorProgress]]:
        """Handles the end of a chunker; with its last response a detector has read up to `upto`."""
        requests: list[DetectorRequest] = []
        progress: list[DetectorProgress] = []
        for queue in self._by_chunker[chunker]:
            queue.ends_at = upto
            if self._is_whole and queue.waiting:
                chunks = tuple(queue.waiting)
                queue.waiting.clear()
                forced = [chunk for chunk in chunks if chunk.is_forced]
                excerpts = [queue.excerpt(chunk) if forced else Excerpt(chunk.text) for chunk in chunks]
                self._open(queue, chunks, tuple(excerpts), requests)
            elif not (queue.open or queue.waiting):
                self._skip(queue, upto, progress)
        return requests, progress

    def skip_rest(self, chunker: str, upto: int) -> list[DetectorProgress]:
        """Handles a failure of the chunker: its detectors read the chunks it has made, and no text after them."""
        progress: list[DetectorProgress] = []
        for queue in self._by_chunker[chunker]:
            queue.unread_until = upto
            if not (queue.open or queue.waiting):
                self._skip(queue, upto, progress)
        return progress

    def _skip(self, queue: DetectorQueue, upto: int, progress: list[DetectorProgress]) -> None:
        """Moves the detector's frontier to `upto`, as it has no chunk to read before."""
        if upto > queue.frontier:
            queue.frontier = upto
            progress.append(DetectorProgress(queue.detector, upto, ()))

    def answer(
        self, request: DetectorRequest, findings: Sequence[Sequence[Detection]]
    ) -> tuple[list[DetectorRequest], list[DetectorProgress]]:
        """Handles a detector's response; returns the next requests and the detector's progress."""
        queue = self._queues[request.detector]
        if queue.open.pop(request.number, None) is None:
            raise RuntimeError(f"request {request.number} to {request.detector} is not open")
        requests: list[DetectorRequest] = []
        progress: list[DetectorProgress] = []
        if request.number != queue.next_number:  # an earlier response is missing
            queue.answers[request.number] = request, findings
        else:
            self._apply_answer(queue, request, findings, progress)
            while queue.answers and (ready := queue.answers.pop(queue.next_number, None)) is not None:
                self._apply_answer(queue, *ready, progress)
        while queue.waiting and len(queue.open) < self._max_open:
            chunk = queue.waiting.popleft()
            self._open(queue, (chunk,), (queue.excerpt(chunk),), requests)
        if not (queue.open or queue.waiting):
            self._skip(queue, max(queue.unread_until, queue.ends_at), progress)
        return requests, progress

    def has_pending(self, detectors: Iterable[str]) -> bool:
        """Returns whether one of the detectors has waiting chunks or open requests."""
        return any(self._queues[name].open or self._queues[name].waiting for name in detectors)

    def has_backlog(self, chunker: str) -> bool:
        """Returns whether a detector of the chunker has too many waiting chunks."""
        is_long = False
        for queue in self._by_chunker[chunker]:  # for every frame: cheaper than any()
            is_long |= len(queue.waiting) >= _MAX_BACKLOG
        return is_long

    def frontiers(self) -> dict[str, int]:
        """Returns the position up to which each detector has read."""
        return {name: queue.frontier for name, queue in self._queues.items()}

    def _open(
        self,
        queue: DetectorQueue,
        chunks: tuple[Chunk, ...],
        excerpts: tuple[Excerpt, ...],
        requests: list[DetectorRequest],
    ) -> None:
        number = queue.sent
        request = queue.open[number] = DetectorRequest(queue.detector, number, chunks, excerpts, self._choice)
        queue.sent = number + 1
        requests.append(request)

    def _apply_answer(
        self,
        queue: DetectorQueue,
        request: DetectorRequest,
        findings: Sequence[Sequence[Detection]],
        progress: list[DetectorProgress],
    ) -> None:
        found: list[Detection] = []
        queue.next_number += 1
        lookbehind, frontier = queue.lookbehind, queue.frontier
        for number, chunk in enumerate(request.chunks):
            begin, end, is_reread = frontier, chunk.end, lookbehind and chunk.is_forced
            if is_reread:
                end -= lookbehind - 1
            if end > begin:
                frontier = end
            placed: list[Detection] = []
            if number < len(findings) and findings[number]:  # a short response has no findings for the other chunks
                placed = _place(queue, chunk, findings[number], begin, frontier if is_reread else None)
                found += placed
            if lookbehind:
                queue.reported = tuple(placed) if is_reread else ()
        queue.frontier = frontier
        progress.append(DetectorProgress(queue.detector, frontier, tuple(found)))


def _place(
    queue: DetectorQueue, chunk: Chunk, findings: Iterable[Detection], begin: int, stop: int | None
) -> list[Detection]:
    """Returns the findings that this chunk is responsible for, with spans in the whole text.

    A finding that starts before the chunk lies in its look-behind text: it counts from `begin`, the old frontier.
    A finding that starts at `stop` or later is found again in the next chunk.
    """
    placed = []
    for found in findings:
        start, end, text = found.start + chunk.start, found.end + chunk.start, found.text
        if found.score < queue.spec.threshold or (stop is not None and start >= stop):
            continue
        if found.start < 0 and start < begin:
            if end <= begin or any(one.start <= start and end <= one.end for one in queue.reported):
                continue
            start, text = begin, text[begin - start :]
        placed.append(found._replace(start=start, end=end, text=text, detector_id=queue.detector))
    return placed
