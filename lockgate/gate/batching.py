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


class _Desk:
    """One detector's queue: chunks to ask, requests open, answers that wait for an earlier one."""

    __slots__ = (
        "answers",
        "asked",
        "before",
        "detector",
        "ends_at",
        "frontier",
        "look",
        "open",
        "passed",
        "reader",
        "reported",
        "told",
        "waiting",
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
        self.ends_at: int | None = None

    def excerpt(self, chunk: Chunk) -> Excerpt:
        before = self.before
        self.before = (before + chunk.text)[-self.look :] if chunk.is_forced and self.look else ""
        return Excerpt(chunk.text, before)

    def owes(self) -> bool:
        return bool(self.open or self.waiting)


class DetectionBatcher:
    """All detectors of one text."""

    __slots__ = ("_by_chunker", "_choice", "_desks", "_is_whole", "_max_open")

    def __init__(
        self, readers: Iterable[Reader], *, max_open: int = 4, is_whole: bool = False, choice: int = 0
    ) -> None:
        self._choice = choice
        self._max_open = max_open
        self._is_whole = is_whole
        self._desks = {reader.detector: _Desk(reader) for reader in readers}
        self._by_chunker: dict[str, list[_Desk]] = {}
        for desk in self._desks.values():
            self._by_chunker.setdefault(desk.reader.chunker, []).append(desk)

    def add(self, chunker: str, chunk: Chunk) -> list[Ask]:
        """A chunk to be read by every detector of its chunker."""
        asks: list[Ask] = []
        for desk in self._by_chunker[chunker]:
            if self._is_whole or desk.waiting or len(desk.open) >= self._max_open:
                desk.waiting.append(chunk)
            else:
                is_plain = not (desk.before or chunk.is_forced)  # as nearly every chunk is
                self._open(desk, (chunk,), (Excerpt(chunk.text) if is_plain else desk.excerpt(chunk),), asks)
        return asks

    def add_all(self, chunker: str, chunks: Sequence[Chunk]) -> list[Ask]:
        """Chunks that came at once. Of a whole text they wait until the chunker has ended."""
        if not self._is_whole:
            return [ask for chunk in chunks for ask in self.add(chunker, chunk)]
        for desk in self._by_chunker[chunker]:
            desk.waiting.extend(chunks)
        return []

    def end(self, chunker: str, upto: int) -> tuple[list[Ask], list[Progress]]:
        """The chunker has no more chunks; with its last answer a detector has read up to `upto`."""
        asks: list[Ask] = []
        progress: list[Progress] = []
        for desk in self._by_chunker[chunker]:
            desk.ends_at = upto
            if self._is_whole and desk.waiting:
                self._ask_all(desk, asks)
            elif not desk.owes():
                self._close(desk, progress)
        return asks, progress

    def pass_over(self, chunker: str, upto: int) -> list[Progress]:
        """The chunker has failed: its detectors read what it has cut, and nothing that follows, up to `upto`."""
        progress: list[Progress] = []
        for desk in self._by_chunker[chunker]:
            desk.passed = upto
            if not desk.owes():
                self._pass(desk, progress)
        return progress

    def _pass(self, desk: _Desk, progress: list[Progress]) -> None:
        if desk.passed > desk.frontier:
            desk.frontier = desk.passed
            progress.append(Progress(desk.detector, desk.frontier, ()))

    def answer(self, ask: Ask, findings: Sequence[Sequence[Detection]]) -> tuple[list[Ask], list[Progress]]:
        """A detector's answer to a request: what to ask next, and how far it has now read."""
        desk = self._desks[ask.detector]
        if desk.open.pop(ask.number, None) is None:
            raise RuntimeError(f"request {ask.number} to {ask.detector} is not open")
        asks: list[Ask] = []
        progress: list[Progress] = []
        if ask.number != desk.told:  # an earlier answer is still missing
            desk.answers[ask.number] = ask, findings
        else:
            self._tell(desk, ask, findings, progress)
            while desk.answers and (ready := desk.answers.pop(desk.told, None)) is not None:
                self._tell(desk, *ready, progress)
        if desk.waiting:
            self._ask(desk, asks)
        if not desk.owes():
            self._pass(desk, progress)
            if desk.ends_at is not None:
                self._close(desk, progress)
        return asks, progress

    def owes(self, detector: str) -> bool:
        """Whether the detector has text to read or to answer for."""
        return self._desks[detector].owes()

    def has_backlog(self, chunker: str, limit: int) -> bool:
        """Whether so many of the chunker's chunks wait for one of its detectors."""
        for desk in self._by_chunker[chunker]:  # noqa: SIM110 - asked for every frame, and a loop is cheaper than any()
            if len(desk.waiting) >= limit:
                return True
        return False

    def frontiers(self) -> dict[str, int]:
        """How far each detector has read."""
        return {name: desk.frontier for name, desk in self._desks.items()}

    def _ask(self, desk: _Desk, asks: list[Ask]) -> None:
        while desk.waiting and len(desk.open) < self._max_open:
            chunk = desk.waiting.popleft()
            self._open(desk, (chunk,), (desk.excerpt(chunk),), asks)

    def _ask_all(self, desk: _Desk, asks: list[Ask]) -> None:
        chunks = tuple(desk.waiting)
        desk.waiting.clear()
        if any([chunk.is_forced for chunk in chunks]):  # noqa: C419 - short, and a list is cheaper than a generator
            excerpts = [desk.excerpt(chunk) for chunk in chunks]
        else:
            excerpts = [Excerpt(chunk.text) for chunk in chunks]
        self._open(desk, chunks, tuple(excerpts), asks)

    def _open(self, desk: _Desk, chunks: tuple[Chunk, ...], excerpts: tuple[Excerpt, ...], asks: list[Ask]) -> None:
        number = desk.asked
        ask = desk.open[number] = Ask(desk.detector, number, chunks, excerpts, self._choice)
        desk.asked = number + 1
        asks.append(ask)

    def _tell(self, desk: _Desk, ask: Ask, findings: Sequence[Sequence[Detection]], progress: list[Progress]) -> None:
        found: list[Detection] = []
        desk.told += 1
        look, frontier = desk.look, desk.frontier
        for number, chunk in enumerate(ask.chunks):
            begin, end, is_reread = frontier, chunk.end, look and chunk.is_forced
            if is_reread:
                end -= look - 1
            if end > begin:
                frontier = end
            placed: list[Detection] = []
            if number < len(findings) and findings[number]:  # a short answer means no findings for the rest
                placed = _place(desk, chunk, findings[number], begin, frontier if is_reread else None)
                found += placed
            if look:
                desk.reported = tuple(placed) if is_reread else ()
        desk.frontier = frontier
        progress.append(Progress(desk.detector, frontier, tuple(found)))

    def _close(self, desk: _Desk, progress: list[Progress]) -> None:
        if desk.ends_at is not None and desk.ends_at > desk.frontier:
            desk.frontier = desk.ends_at
            progress.append(Progress(desk.reader.detector, desk.frontier, ()))


def _place(desk: _Desk, chunk: Chunk, findings: Iterable[Detection], begin: int, stop: int | None) -> list[Detection]:
    """The findings that this chunk is responsible for, with spans in the whole text.

    One that starts before the chunk was seen by looking back: it counts from `begin`, where the chunk before stopped.
    One that starts at `stop` or later will be seen again by the next chunk.
    """
    placed = []
    for found in keep(findings, desk.reader.threshold):
        start, end, text = found.start + chunk.start, found.end + chunk.start, found.text
        if stop is not None and start >= stop:
            continue
        if found.start < 0 and start < begin:
            if end <= begin or any(one.start <= start and end <= one.end for one in desk.reported):
                continue
            start, text = begin, text[begin - start :]
        placed.append(found._replace(start=start, end=end, text=text, detector_id=desk.detector))
    return placed
