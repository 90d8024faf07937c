# SPDX-License-Identifier: Apache-2.0
"""Lane: one guarded text from its frames to its releases. Lanes: the texts of one stream, one lane per choice.

Joins aligner, batcher and gate, and decides whether more text may be read. Above the soft mark reading stops, but
only while the detector that has read least can go on without more text: it owes an answer, or its chunker has not
yet taken what it was given. Otherwise it waits for text, and refusing to read would wait for ever. Held text has a
hard limit all the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockgate.errors import BrokeProtocol, HeldTooMuch
from lockgate.gate.batcher import (
    ChunkAligner,
    ChunkerInput,
    DetectionBatcher,
    DetectorProgress,
    DetectorRequest,
    DetectorSpec,
)
from lockgate.gate.release import Release, ReleaseGate, Strategy
from lockgate.gate.values import Chunk, Detection, Frame, Span

_TRIM_CHARS = 512
_MAX_FRAMES = 65_536  # that a chunker has not placed


class OpenedLane(NamedTuple):
    """A choice appeared for the first time: its chunkers are to be started."""

    choice: int


Outcome = DetectorRequest | OpenedLane | Release


MAX_CHOICES = 128  # of one answer


class LanePlan(NamedTuple):
    """How the lanes of a stream behave. `is_whole`: the text is complete, and everything is asked at once.

    `feeds_empty`: the chunkers are given frames without text too. `trusts_chunks`: the chunks of a whole text are read
    as they are, wherever their chunker says that they lie; those of a stream lie where their text comes next.
    `reads_empty`: a streamed text without a character is read too, by readers of whole texts. `max_cuts`: how many
    pieces of a whole text a chunker is given at once.
    """

    readers: tuple[DetectorSpec, ...]
    strategy: Strategy = Strategy.FRONTIER
    max_open: int = 4
    soft_held_chars: int = 65_536
    max_held_chars: int | None = 1_048_576
    is_whole: bool = False
    max_choices: int = MAX_CHOICES
    feeds_empty: bool = False
    trusts_chunks: bool = False
    reads_empty: bool = False
    max_cuts: int = 5


class Lane:
    """One text."""

    __slots__ = (
        "_check_at", "_chunker_of", "_claims", "_gate", "_input", "_log", "_open", "_plan", "_trim_at", "aligners",
        "batcher", "is_finished", "is_source_open",
    )  # fmt: skip

    def __init__(self, plan: LanePlan, choice: int = 0) -> None:
        self._plan = plan
        self._input = ChunkerInput()
        self.aligners = {
            name: ChunkAligner(name, self._input, is_whole=plan.is_whole, reads_empty=plan.reads_empty)
            for name in dict.fromkeys([reader.chunker for reader in plan.readers])
        }
        self.is_source_open = True  # more text may come
        self._open = set(self.aligners)  # chunkers that may still send chunks
        self.batcher = DetectionBatcher(plan.readers, max_open=plan.max_open, is_whole=plan.is_whole, choice=choice)
        self._chunker_of = {reader.detector: reader.chunker for reader in plan.readers}
        self._gate = ReleaseGate(
            [reader.detector for reader in plan.readers if reader.holds],
            [reader.detector for reader in plan.readers if not reader.holds],
            strategy=plan.strategy,
            choice=choice,
        )
        self._log = self._gate.log
        self.is_finished = False  # the final release has been given out
        # Of each chunk: its end, the frames that its chunker names, the place that it is said to have.
        self._claims: list[tuple[int, tuple[int, int], Span]] = []
        self._trim_at = _TRIM_CHARS
        self._check_at = float("inf") if plan.max_held_chars is None else plan.max_held_chars

    @property
    def held_chars(self) -> int:
        """Characters that wait at the gate."""
        return self._gate.held_chars

    def frontiers(self) -> dict[str, int]:
        """How far each detector has read."""
        return self.batcher.frontiers()

    def receive(self, frame: Frame) -> list[Outcome]:
        """A frame came from the source."""
        if not self.is_source_open:
            raise RuntimeError("the source has ended")
        log = self._log
        if self.aligners and (frame.text or self._plan.feeds_empty):
            # what a frame carries besides is kept once, by the log
            self._input.append(frame if frame.fields is None else Frame(frame.number, frame.text, frame.choice))
            if self._input.received >= self._trim_at or len(self._input.frames) >= _MAX_FRAMES:
                self._trim()
        outcomes: list[Outcome] = self._gate.receive(frame)  # type: ignore[assignment]  # a new list, ours to extend
        if log.received + len(log.frames) > self._check_at:
            self._check_held()
        return outcomes + self.end() if frame.is_last else outcomes

    def end(self) -> list[Outcome]:
        """The source has ended well: the chunkers may flush."""
        self.is_source_open = False
        return self._advance([], ())

    def place(self, chunker: str, chunk: Chunk) -> list[Outcome]:
        """A chunk came from a chunker."""
        told = Span(chunk.start, chunk.end)
        if self._plan.trusts_chunks and chunk.text:
            at = self.aligners[chunker].find(chunk.text)
            if at is not None and at != chunk.start:  # its text counts, not the place that it is said to have
                chunk = chunk._replace(start=at)
        if chunk.end - chunk.start != len(chunk.text):
            chunk = _fit(chunk)
        is_to_read = self.aligners[chunker].place(chunk)
        if chunk.inputs is not None and is_to_read:
            self._claims.append((chunk.end, chunk.inputs, told))
        return self.batcher.add(chunker, (chunk,)) if is_to_read else []  # type: ignore[return-value]  # a new list

    def place_all(self, chunker: str, chunks: Iterable[Chunk]) -> list[Outcome]:
        """All chunks of a whole text came at once."""
        place = self.aligners[chunker].place
        chunks = [chunk if chunk.end - chunk.start == len(chunk.text) else _fit(chunk) for chunk in chunks]
        if self._plan.trusts_chunks:
            received = self._input.received
            to_read = [chunk if chunk.end <= received else chunk._replace(end=received) for chunk in chunks]
        else:
            to_read = [chunk for chunk in chunks if place(chunk)]
        return self.batcher.add(chunker, to_read)  # type: ignore[return-value]  # a new list

    def end_chunker(self, chunker: str) -> list[Outcome]:
        """A chunker has ended; it may not before the source has."""
        if self.is_source_open:
            raise BrokeProtocol(chunker, f"chunker `{chunker}`: ended before its text")
        asks, progress = self.batcher.end(chunker, self.aligners[chunker].finish())
        self._open.discard(chunker)
        return self._advance([*asks], progress)

    def pass_over(self, chunker: str) -> list[Outcome]:
        """A chunker has failed and is excused: what has come goes on without its detectors."""
        upto = self.aligners[chunker].pass_over()
        return self._advance([], self.batcher.pass_over(chunker, upto))

    def answer(self, ask: DetectorRequest, findings: Sequence[Sequence[Detection]]) -> list[Outcome]:
        """A detector answered."""
        outcomes: list[Outcome]
        outcomes, progress = self.batcher.answer(ask, findings)  # type: ignore[assignment]  # a new list of asks
        return self._advance(outcomes, progress)

    def can_go_on(self) -> bool:
        """Whether anything can still happen without more text: an answer owed, or text that no chunker has taken."""
        return self.batcher.owes(self._chunker_of) or not all(aligner.is_fed for aligner in self.aligners.values())

    def has_unplaced(self) -> bool:
        """Whether a chunker still owes chunks of what has come."""
        return any(aligner.placed < self._input.received for aligner in self.aligners.values())

    def may_read(self) -> bool:
        """Whether the source may be read on. A whole text is read to its end before anything else begins."""
        log = self._log
        if self._plan.is_whole or log.received - log.released + len(log.frames) <= self._plan.soft_held_chars:
            return True
        return not any(
            self.batcher.owes([name]) or not self.aligners[self._chunker_of[name]].is_fed
            for name in self._gate.lowest()
        )

    def _advance(self, outcomes: list[Outcome], progress: Iterable[DetectorProgress]) -> list[Outcome]:
        for detector, upto, detections in progress:
            outcomes += self._gate.clear(detector, upto, detections)
        if self._claims:
            outcomes = [self._name_inputs(one) if isinstance(one, Release) else one for one in outcomes]
        is_busy = self._open or self.is_source_open or self.is_finished
        if not (is_busy or self.batcher.owes(self._chunker_of)):
            self.is_finished = True
            outcomes += self._gate.finish()
        return outcomes

    def _name_inputs(self, release: Release) -> Release:
        """The release with the frames that the chunkers name for the chunks in it."""
        named = [claim for claim in self._claims if claim[0] <= release.end]
        if not named:
            return release
        self._claims = [claim for claim in self._claims if claim[0] > release.end]
        first, last = min(inputs[0] for _, inputs, _ in named), max(inputs[1] for _, inputs, _ in named)
        is_one = self._plan.trusts_chunks and len(named) == 1 and named[0][0] == release.end
        return release._replace(inputs=(first, last), told=named[0][2] if is_one else None)

    def _check_held(self) -> None:
        """No more than the limit may wait, of characters or of frames, which may be empty.

        Nothing can be wrong before the limit's worth has come in behind what is read now: no need to look earlier.
        """
        limit = self._plan.max_held_chars or 0
        read = min(self.batcher.frontiers().values(), default=self._log.received)
        if self._log.received - read > limit or len(self._log.frames) > limit:
            raise HeldTooMuch(f"more than {limit} characters wait for a detector")
        self._check_at = read + limit

    def _trim(self) -> None:
        """Forget what every chunker has placed, at most once per as much text as is left."""
        chunker_input, aligners = self._input, self.aligners.values()
        chunker_input.forget(min(min(aligner.reached, aligner.given) for aligner in aligners))
        if len(chunker_input.frames) >= _MAX_FRAMES:  # without text, or not taken
            raise HeldTooMuch(f"more than {_MAX_FRAMES} messages wait for a chunker")
        left = chunker_input.received - min(aligner.placed for aligner in aligners)
        self._trim_at = chunker_input.received + max(left, _TRIM_CHARS)


def _fit(chunk: Chunk) -> Chunk:
    """A chunk is its text: it ends with that, not where its chunker says."""
    return chunk._replace(end=chunk.start + len(chunk.text))


@dataclass(slots=True, eq=False)
class Lanes:
    """The lanes of one stream, made as choices appear."""

    _plan: LanePlan
    by_choice: dict[int, Lane] = field(default_factory=dict)
    _is_ended: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every lane has given out its final release."""
        return self._is_ended and all(lane.is_finished for lane in self.by_choice.values())

    def receive(self, frame: Frame) -> list[Outcome]:
        """A frame came: it goes to the lane of its choice, which opens with its first frame."""
        lane = self.by_choice.get(frame.choice)
        if lane is not None:
            return lane.receive(frame)
        if len(self.by_choice) >= self._plan.max_choices:  # those that are finished need not be known any more
            self.by_choice = {choice: lane for choice, lane in self.by_choice.items() if not lane.is_finished}
        if len(self.by_choice) >= self._plan.max_choices:
            raise BrokeProtocol("model", f"the model gives more than {self._plan.max_choices} choices")
        lane = self.by_choice[frame.choice] = Lane(self._plan, frame.choice)
        return [OpenedLane(frame.choice), *lane.receive(frame)]

    def end(self) -> list[Outcome]:
        """The source has ended well."""
        self._is_ended = True
        return [outcome for lane in self.by_choice.values() if lane.is_source_open for outcome in lane.end()]

    def may_read(self) -> bool:
        """Whether the source may be read on."""
        may_read = True
        for lane in self.by_choice.values():  # for every frame: cheaper than all()
            may_read = may_read and lane.may_read()
        return may_read

    def can_go_on(self) -> bool:
        """Whether anything can still happen without more text: an answer owed, or text that no chunker has taken."""
        return any(lane.can_go_on() for lane in self.by_choice.values())

    def has_unplaced(self) -> bool:
        """Whether a chunker still owes chunks of what has come."""
        return any(lane.has_unplaced() for lane in self.by_choice.values())
