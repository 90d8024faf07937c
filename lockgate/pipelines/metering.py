# SPDX-License-Identifier: Apache-2.0
"""Detectors whose work is noted on a request's receipt, and which are told what an answer rests on.

Knows how a detector at work is wrapped; decides nothing about what it finds.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from lockgate.core.receipts import Part, Receipt
from lockgate.core.values import TEXT_CONTENTS, Claim, Detection, Excerpt
from lockgate.errors import RequestError
from lockgate.interfaces import Chunker, Reading, Review
from lockgate.pipelines.guards import ActiveGuard, ActiveReview, Chosen, Guard, forgive, refuse
from lockgate.pipelines.together import run_together
from lockgate.telemetry import count_detections

_DOCS = "docs"


class Chunking(NamedTuple):
    """What cuts text for detectors that have no chunker of their own."""

    id: str
    chunker: Chunker


class Basis(NamedTuple):
    """What an answer is compared with, by what it is cut for that, and how many comparisons may be open at once."""

    documents: Sequence[str]
    chunking: Chunking
    max_open: int = 5


class Meter(NamedTuple):
    """Notes what detectors read. `report` is told of one that failed, where that is forgiven; else nobody is."""

    receipt: Receipt
    report: Callable[[str], object] | None = None

    def watch(self, guards: Sequence[ActiveGuard], part: Part) -> tuple[ActiveGuard, ...]:
        """The same detectors, their reading of the part noted, their failures forgiven if that is wanted."""
        watched = tuple(
            ActiveGuard(one.guard, _Metered(one.guard.id, one.reading, part, self.receipt), one.threshold, one.holds)
            for one in guards
        )
        return watched if self.report is None else forgive(Chosen(watched), self._forgive).contents

    def _forgive(self, detector_id: str) -> None:
        self.receipt.note_failure(detector_id)
        if self.report is not None:
            self.report(detector_id)


def tell_sources(guards: Sequence[ActiveGuard], paths: Collection[str]) -> tuple[ActiveGuard, ...]:
    """The same detectors; those that want to know are told where the documents behind the answer came from."""
    return tuple(_tell(one, paths) for one in guards)


def ground(reviews: Sequence[ActiveReview], basis: Basis, *, holds: bool) -> tuple[ActiveGuard, ...]:
    """Reviewers of a text with its context, as readers of an answer: each chunk is a claim about the documents."""
    return tuple(_ground(one, basis, holds) for one in reviews)


def note_findings(receipt: Receipt, found: Sequence[Detection]) -> None:
    """What was found is counted, on the receipt and in the metrics."""
    count_detections(found)
    for one in found:
        receipt.note_finding(one.detector_id)


def _tell(one: ActiveGuard, paths: Collection[str]) -> ActiveGuard:
    with_sources: Callable[[Collection[str]], Reading] | None = getattr(one.reading, "with_sources", None)
    if with_sources is None:
        return one
    return ActiveGuard(one.guard, with_sources(paths), one.threshold, one.holds)


def _ground(one: ActiveReview, basis: Basis, holds: bool) -> ActiveGuard:
    own = one.guard
    has_own = own.chunker is not None and not own.reads_whole_text
    cutter = Chunking(own.chunker_id, own.chunker) if has_own and own.chunker is not None else basis.chunking
    guard = Guard(own.id, TEXT_CONTENTS, own.detector, cutter.id, cutter.chunker, own.default_threshold)
    return ActiveGuard(
        guard, _Grounding(own.id, one.review, tuple(basis.documents), basis.max_open), one.threshold, holds
    )


class _Metered(NamedTuple):
    detector_id: str
    reading: Reading
    part: Part
    receipt: Receipt

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        started = perf_counter()
        found = await self.reading.read(excerpts)
        texts = [excerpt.text for excerpt in excerpts]
        self.receipt.note_read(self.detector_id, self.part, texts, perf_counter() - started)
        return found


class _Grounding(NamedTuple):
    detector_id: str
    review: Review
    documents: tuple[str, ...]
    max_open: int

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        found: list[Sequence[Detection]] = []
        for start in range(0, len(excerpts), self.max_open):  # a whole answer may have very many
            window = excerpts[start : start + self.max_open]
            found += await run_together([partial(self._compare, one.text) for one in window], self.max_open)
        return found

    async def _compare(self, text: str) -> Sequence[Detection]:
        """What is found about a claim covers all of it."""
        claim = text.strip()
        if not claim:
            return ()
        try:
            found = await self.review.review(Claim(claim, _DOCS, self.documents))
        except RequestError as error:
            raise refuse(self.detector_id, error) from error
        start = text.index(claim)
        return [one._replace(start=start, end=start + len(claim), text=claim) for one in found]
