# SPDX-License-Identifier: Apache-2.0
"""Lane: one guarded text from its frames to its releases. Lanes: the texts of one stream, one lane per choice.

A lane connects aligner, batcher and gate, and decides whether to read more text from the source. Above the soft limit
reading stops, but only while the detector that has read least can continue without more text: it has an open request
or waiting chunks, or its chunker has not taken all frames. Otherwise this detector needs more text, and to stop
reading would be a deadlock. Held text has a hard limit too.
"""

from collections.abc import Callable, Iterable, Sequence
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
_MAX_FRAMES = 65_536  # frames that are not in a chunk


class OpenedLane(NamedTuple):
    """The first frame of a choice came: the caller starts its chunkers."""

    choice: int


Outcome = DetectorRequest | OpenedLane | Release


MAX_CHOICES = 128  # per answer


class LanePlan(NamedTuple):
    """The settings of a stream's lanes. `is_whole`: the text is complete, and each detector gets it in one request.

    `feeds_empty`: chunkers also get frames without text. `trusts_chunks`: chunks of a whole text are read without
    a check of their positions; chunks of a stream are placed where their text comes next.
    `reads_empty`: detectors of whole texts also read an empty streamed text. `max_cuts`: the number of pieces of a
    whole text that a chunker cuts at the same time.
    """

    detectors: tuple[DetectorSpec, ...]
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
    only_content: frozenset[str] = frozenset()  # detectors that read only texts that are the content of an answer
    is_content: Callable[[int], bool] | None = None  # of a choice


class Lane:
    """The state of one guarded text."""

    __slots__ = (
        "_check_at", "_chunker_of", "_claims", "_gate", "_input", "_log", "_open", "_plan", "_trim_at", "aligners",
        "batcher", "choice", "is_finished", "is_source_open",
    )  # fmt: skip

    def __init__(self, plan: LanePlan, choice: int = 0) -> None:
        self._plan = plan
        self.choice = choice
        self._input = ChunkerInput()
        self.aligners = {
            name: ChunkAligner(name, self._input, is_whole=plan.is_whole, reads_empty=plan.reads_empty)
            for name in dict.fromkeys([spec.chunker for spec in plan.detectors])
        }
        self.is_source_open = True  # more text may come
        self._open = set(self.aligners)  # chunkers that may still send chunks
        self.batcher = DetectionBatcher(plan.detectors, max_open=plan.max_open, is_whole=plan.is_whole, choice=choice)
        self._chunker_of = {spec.detector: spec.chunker for spec in plan.detectors}
        self._gate = ReleaseGate(
            [spec.detector for spec in plan.detectors if spec.holds],
            [spec.detector for spec in plan.detectors if not spec.holds],
            strategy=plan.strategy,
            choice=choice,
        )
        self._log = self._gate.log
        self.is_finished = False  # the final release was returned
        # For each chunk: its end, the frames and the span that its chunker claims for it.
        self._claims: list[tuple[int, tuple[int, int], Span]] = []
        self._trim_at = _TRIM_CHARS
        self._check_at = float("inf") if plan.max_held_chars is None else plan.max_held_chars

    @property
    def held_chars(self) -> int:
        """The number of characters not yet released."""
        return self._gate.held_chars

    def frontiers(self) -> dict[str, int]:
        """Returns the position up to which each detector has read."""
        return self.batcher.frontiers()

    def receive(self, frame: Frame) -> list[Outcome]:
        """Handles a frame from the source."""
        if not self.is_source_open:
            raise RuntimeError("the source has ended")
        log = self._log
        if self.aligners and (frame.text or self._plan.feeds_empty):
            # only the log keeps the other fields of a frame
            self._input.append(frame if frame.fields is None else Frame(frame.number, frame.text, frame.choice))
            if self._input.received >= self._trim_at or len(self._input.frames) >= _MAX_FRAMES:
                self._trim()
        outcomes: list[Outcome] = self._gate.receive(frame)  # type: ignore[assignment]  # a new list
        if log.received + len(log.frames) > self._check_at:
            self._check_held()
        return outcomes + self.end() if frame.is_last else outcomes

    def end(self) -> list[Outcome]:
        """Handles the end of the source; chunkers may now end too."""
        self.is_source_open = False
        return self._advance([], ())

    def place(self, chunker: str, chunk: Chunk) -> list[Outcome]:
        """Handles a chunk of a streamed text."""
        claimed = Span(chunk.start, chunk.end)
        if self._plan.trusts_chunks and chunk.text:
            at = self.aligners[chunker].find(chunk.text)
            if at is not None and at != chunk.start:  # its text counts, not the claimed position
                chunk = chunk._replace(start=at)
        if chunk.end - chunk.start != len(chunk.text):
            chunk = _fit(chunk)
        is_to_read = self.aligners[chunker].place(chunk)
        if chunk.inputs is not None and is_to_read:
            self._claims.append((chunk.end, chunk.inputs, claimed))
        return self.batcher.add(chunker, (chunk,)) if is_to_read else []  # type: ignore[return-value]  # a new list

    def place_all(self, chunker: str, chunks: Iterable[Chunk]) -> list[Outcome]:
        """Handles all chunks of a whole text."""
        chunks = [chunk if chunk.end - chunk.start == len(chunk.text) else _fit(chunk) for chunk in chunks]
        if self._plan.trusts_chunks:
            received = self._input.received
            chunks = [chunk if chunk.end <= received else chunk._replace(end=received) for chunk in chunks]
        else:
            self.aligners[chunker].place_all(chunks)
        return self.batcher.add(chunker, chunks)  # type: ignore[return-value]  # a new list

    def end_chunker(self, chunker: str) -> list[Outcome]:
        """Handles the end of a chunker, which must come after the end of the source."""
        if self.is_source_open:
            raise BrokeProtocol(chunker, f"chunker `{chunker}`: ended before its text")
        requests, progress = self.batcher.end(chunker, self.aligners[chunker].finish())
        self._open.discard(chunker)
        return self._advance([*requests], progress)

    def skip_rest(self, chunker: str) -> list[Outcome]:
        """Handles a failure of a chunker that may fail: its detectors read its chunks, and no text after them."""
        upto = self.aligners[chunker].skip_rest()
        return self._advance([], self.batcher.skip_rest(chunker, upto))

    def answer(self, request: DetectorRequest, findings: Sequence[Sequence[Detection]]) -> list[Outcome]:
        """Handles a detector's response."""
        outcomes: list[Outcome]
        outcomes, progress = self.batcher.answer(request, findings)  # type: ignore[assignment]  # a new list
        return self._advance(outcomes, progress)

    def can_progress(self) -> bool:
        """Returns whether the lane can progress without more text: chunks to read, or frames not given to a chunker."""
        return self.batcher.has_pending(self._chunker_of) or not all(
            aligner.has_all_text for aligner in self.aligners.values()
        )

    def awaits_chunks(self) -> bool:
        """Returns whether a chunker has not yet placed all received text in chunks."""
        return any(aligner.placed < self._input.received for aligner in self.aligners.values())

    def may_read(self) -> bool:
        """Returns whether to read more from the source. A whole text is always read to its end first."""
        log = self._log
        if self._plan.is_whole or log.received - log.released + len(log.frames) <= self._plan.soft_held_chars:
            return True
        return not any(
            self.batcher.has_pending([name]) or not self.aligners[self._chunker_of[name]].has_all_text
            for name in self._gate.lowest()
        )

    def _advance(self, outcomes: list[Outcome], progress: Iterable[DetectorProgress]) -> list[Outcome]:
        for detector, upto, detections in progress:
            outcomes += self._gate.clear(detector, upto, detections)
        if self._claims:
            outcomes = [self._name_inputs(one) if isinstance(one, Release) else one for one in outcomes]
        is_busy = self._open or self.is_source_open or self.is_finished
        if not (is_busy or self.batcher.has_pending(self._chunker_of)):
            self.is_finished = True
            outcomes += self._gate.finish()
        return outcomes

    def _name_inputs(self, release: Release) -> Release:
        """Returns the release with the frame numbers that the chunkers claim for its chunks."""
        named = [claim for claim in self._claims if claim[0] <= release.end]
        if not named:
            return release
        self._claims = [claim for claim in self._claims if claim[0] > release.end]
        first, last = min(inputs[0] for _, inputs, _ in named), max(inputs[1] for _, inputs, _ in named)
        is_one = self._plan.trusts_chunks and len(named) == 1 and named[0][0] == release.end
        return release._replace(inputs=(first, last), claimed=named[0][2] if is_one else None)

    def _check_held(self) -> None:
        """Raises HeldTooMuch if more characters or frames wait than the limit allows; frames may be empty.

        The next check can wait until `limit` more characters or frames than those read now have come.
        """
        limit = self._plan.max_held_chars or 0
        read = min(self.batcher.frontiers().values(), default=self._log.received)
        if self._log.received - read > limit or len(self._log.frames) > limit:
            raise HeldTooMuch(f"more than {limit} characters wait for a detector")
        self._check_at = read + limit

    def _trim(self) -> None:
        """Removes the frames that every chunker has placed. The next run waits for as much new text as remains."""
        chunker_input, aligners = self._input, self.aligners.values()
        chunker_input.forget(min(min(aligner.reached, aligner.given) for aligner in aligners))
        if len(chunker_input.frames) >= _MAX_FRAMES:  # without text, or not taken
            raise HeldTooMuch(f"more than {_MAX_FRAMES} messages wait for a chunker")
        left = chunker_input.received - min(aligner.placed for aligner in aligners)
        self._trim_at = chunker_input.received + max(left, _TRIM_CHARS)


def _fit(chunk: Chunk) -> Chunk:
    """Returns the chunk with an end that matches the length of its text."""
    return chunk._replace(end=chunk.start + len(chunk.text))


@dataclass(slots=True, eq=False)
class Lanes:
    """The lanes of one stream, made as choices appear."""

    _plan: LanePlan
    by_choice: dict[int, Lane] = field(default_factory=dict)
    _is_ended: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every lane has returned its final release."""
        return self._is_ended and all(lane.is_finished for lane in self.by_choice.values())

    def receive(self, frame: Frame) -> list[Outcome]:
        """Handles a frame: passes it to the lane of its choice, which the first frame opens."""
        lane = self.by_choice.get(frame.choice)
        if lane is not None:
            return lane.receive(frame)
        if len(self.by_choice) >= self._plan.max_choices:  # finished lanes are not needed any more
            self.by_choice = {choice: lane for choice, lane in self.by_choice.items() if not lane.is_finished}
        if len(self.by_choice) >= self._plan.max_choices:
            raise BrokeProtocol("model", f"the model gives more than {self._plan.max_choices} choices")
        plan = self._plan
        if plan.is_content is not None and not plan.is_content(frame.choice):
            plan = plan._replace(
                detectors=tuple([one for one in plan.detectors if one.detector not in plan.only_content])
            )
        lane = self.by_choice[frame.choice] = Lane(plan, frame.choice)
        return [OpenedLane(frame.choice), *lane.receive(frame)]

    def end(self) -> list[Outcome]:
        """Handles the end of the source."""
        self._is_ended = True
        return [outcome for lane in self.by_choice.values() if lane.is_source_open for outcome in lane.end()]

    def may_read(self) -> bool:
        """Returns whether to read more from the source."""
        may_read = True
        for lane in self.by_choice.values():  # for every frame: cheaper than all()
            may_read = may_read and lane.may_read()
        return may_read

    def can_progress(self) -> bool:
        """Returns whether a lane can progress without more text."""
        return any(lane.can_progress() for lane in self.by_choice.values())

    def awaits_chunks(self) -> bool:
        """Returns whether a chunker has not yet placed all received text in chunks."""
        return any(lane.awaits_chunks() for lane in self.by_choice.values())
