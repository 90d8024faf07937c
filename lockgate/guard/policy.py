# SPDX-License-Identifier: Apache-2.0
"""Policy: which detectors read which part of one request, and what becomes of what they find.

It is resolved: detectors are chosen, their parameters accepted. Settings and the request's own `detectors` field both
become this one type, on every surface.

Meter: the account of one request, its receipt and policy metrics. Detectors are wrapped so that they write it.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, NamedTuple, cast

from lockgate.errors import BrokeProtocol, LockgateError, Rejected, RequestError, UpstreamError
from lockgate.gate.receipts import Receipt, RequestPart
from lockgate.gate.values import TEXT_CONTENTS, UNANSWERED, Claim, Detection, Excerpt, Subject
from lockgate.gate.verdicts import REPLACING, Action, Measures, Pseudonyms
from lockgate.guard.detectors import ActiveGuard, ActiveReview, Excuse, Guard, last_text, refuse
from lockgate.interfaces import Chunker, Headers, Reading, Review, SourceReading
from lockgate.task_groups import run_together
from lockgate.telemetry import LogEvent, count_detections, log_event, name_causes

_DOCS = "docs"
_ANNOTATE, _BLOCK = Measures(), Measures(Action.BLOCK)


class Chunking(NamedTuple):
    """What cuts text for detectors that have no chunker of their own."""

    id: str
    chunker: Chunker


class Meter:
    """The account of one request: what detectors read, who failed and was excused, which names were made up.

    In shadow no text is held, and no failure ends anything. A request that has no policy and wants no receipt has an
    account that is not on: findings are counted in the metrics alone.
    """

    def __init__(
        self,
        policy: str = "",
        *,
        is_shadow: bool = False,
        lanes: Sequence[str] = ("content",),
        own: frozenset[str] = frozenset(),
        is_on: bool = True,
    ) -> None:
        self.is_on = is_on
        self.receipt = Receipt(policy, is_shadow=is_shadow, lanes=lanes)
        self.names = Pseudonyms()
        self.excused: dict[str, bool] = {}  # who failed, and whether that would have ended the request
        self._is_shadow = is_shadow
        self._own = own  # detectors that the policy names: the caller is not to blame for what they refuse
        self._found_in_answer: dict[str, int] = {}

    def watch(self, guards: Sequence[ActiveGuard], part: RequestPart) -> tuple[ActiveGuard, ...]:
        """The same detectors, their reading of the part noted, their failures excused where that is wanted."""
        if not self.is_on:
            return tuple(guards)
        seen = self._found_in_answer if part is RequestPart.ANSWER else {}
        watched = []
        for one in guards:
            entry = self._open_entry(one, part)
            reading = _MeteredReading(entry, one.reading, one.threshold, seen)
            holds = one.holds and not self._is_shadow
            watched.append(replace(one, reading=reading, holds=holds, excuse=entry.excuse))
        return tuple(watched)

    def watch_reviews(self, reviews: Sequence[ActiveReview], part: RequestPart) -> tuple[ActiveReview, ...]:
        """The same for reviewers."""
        if not self.is_on:
            return tuple(reviews)
        return tuple([replace(one, review=_MeteredReview(self._open_entry(one, part), one.review)) for one in reviews])

    def note_findings(self, found: Sequence[Detection], measures: Measures, part: RequestPart) -> None:
        """What was found is counted, on the receipt and in the metrics; and what it calls for."""
        count_detections(found)
        for one in found if self.is_on else ():
            self.receipt.note_finding(one.detector_id)
            self.receipt.note_action(measures.of(one.detector_id), part)

    def note_failure(self, detector_id: str) -> None:
        """The detector failed, and that ends the request."""
        self.receipt.note_failure(detector_id, ends=True)

    def withdraw_answer(self) -> None:
        """Nothing of the answer has left. What detectors found in it was reported to no client, but it was found."""
        self.receipt.reset_released(RequestPart.ANSWER)
        for name, count in self._found_in_answer.items():
            for _ in range(count):
                self.receipt.note_finding(name)

    def _open_entry(self, one: ActiveGuard | ActiveReview, part: RequestPart) -> "_DetectorAccount":
        name = one.guard.id
        self.receipt.expect(name, part)
        excuse = self._excuse(one) if one.passes or self._is_shadow else None
        return _DetectorAccount(name, part, self.receipt, name in self._own, excuse)

    def _excuse(self, one: ActiveGuard | ActiveReview) -> Excuse:
        """Takes a failure; whether the text goes on all the same."""

        def excuse(error: LockgateError) -> bool:
            if not (self._is_shadow or isinstance(error, UpstreamError)):
                return False
            name, ends = one.guard.id, not one.passes
            if name not in self.excused:
                reason = name_causes(error) if isinstance(error, UpstreamError) else type(error).__name__
                log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=name, reason=f"{reason}; unread text goes on")
            self.excused[name] = self.excused.get(name, False) or ends
            self.receipt.note_failure(name, ends=ends)
            return True

        return excuse


@dataclass(frozen=True, slots=True)
class Policy:
    """The detectors of each part, and the action on their findings; `for_output` holds for grounding too.

    `reviews` read the whole answer when it is complete. `refusing` names detectors whose finding in the input ends the
    request and is reported, for any action: those that a request itself asks for on the guardrails endpoints.
    `unused` detectors belong to the policy and have nothing to read on this surface: the receipt lists them as such.
    """

    input: Sequence[ActiveGuard] = ()
    documents: Sequence[ActiveGuard] = ()
    output: Sequence[ActiveGuard] = ()
    grounding: Sequence[ActiveReview] = ()
    reviews: Sequence[ActiveReview] = ()
    for_input: Measures = _BLOCK
    for_documents: Measures = _BLOCK
    for_output: Measures = _ANNOTATE
    name: str = ""
    is_shadow: bool = False
    is_speculative: bool = False
    grounding_holds: bool = True
    max_open: int = 5
    max_cuts: int = 5
    max_chars: int = 1_048_576  # of a document that is read
    trusts_chunks: bool = False
    lanes: tuple[str, ...] = ("content",)
    refusing: frozenset[str] = frozenset()
    unused: Sequence[str] = ()
    is_metered: bool = True  # a receipt or a policy's metrics are wanted
    # Computed from the rest.
    is_on: bool = field(init=False)  # any detector reads anything
    fallback: str = field(init=False)  # the text in place of an answer that was withheld
    masks_input: bool = field(init=False)  # the input may be changed before a source or the model gets it
    is_early: bool = field(init=False)  # the model is asked before the input has been read
    hides: bool = field(init=False)  # text of the answer in which something is found must not be seen
    trailing: frozenset[str] = field(init=False)  # the detectors of the answer that report at its end
    is_holding: bool = field(init=False)  # any detector holds the answer back
    takes_sources: bool = field(init=False)  # a detector of the answer wants to know where its documents came from
    unshared: tuple[str, ...] = field(init=False)  # the parts with readings that each request needs anew

    def __post_init__(self) -> None:
        is_masking = any(self.for_input.of(one.guard.id) in REPLACING for one in self.input)
        masks_input = is_masking and not self.is_shadow
        trailing = [one.guard.id for one in self.output if self.is_shadow or not one.holds]
        parts = ("input", "documents", "output", "grounding", "reviews")
        unshared = [part for part in parts if any(not one.guard.shares_readings for one in getattr(self, part))]
        computed = {
            "unshared": tuple(unshared),
            "is_on": bool(self.input or self.documents or self.output or self.grounding or self.reviews),
            "fallback": self.for_output.fallback,
            "masks_input": masks_input,
            "is_early": self.is_speculative and bool(self.input) and not masks_input,
            "hides": self.for_output.changes_text([one.guard.id for one in self.output]),
            "trailing": frozenset(trailing),
            "is_holding": len(trailing) < len(self.output),
            "takes_sources": any(_takes_sources(type(one.reading)) for one in self.output),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def bind(self, headers: Headers) -> "Policy":
        """The policy for one request; only what has a state or passes headers on is made anew."""
        if not self.unshared:
            return self
        bound: dict[str, Any] = {}
        for part in self.unshared:
            bound[part] = tuple([one.bind(headers) for one in getattr(self, part)])
        return replace(self, **bound)

    def open_meter(self) -> Meter:
        """The account of one request, with every detector that is to read something, in the order of the parts."""
        if not (self.is_metered and (self.name or self.is_on)):
            return Meter(is_on=False)
        measures = (self.for_input, self.for_documents, self.for_output)
        own = frozenset(name for one in measures for name in one.own or ())
        meter = Meter(self.name, is_shadow=self.is_shadow, lanes=self.lanes, own=own)
        parts: tuple[tuple[RequestPart, Sequence[ActiveGuard | ActiveReview]], ...] = (
            (RequestPart.PROMPT, self.input),
            (RequestPart.DOCUMENTS, self.documents),
            (RequestPart.ANSWER, (*self.output, *self.reviews, *self.grounding)),
        )
        for part, readers in parts:
            for one in readers:
                meter.receipt.expect(one.guard.id, part)
        for name in self.unused:
            meter.receipt.expect(name, RequestPart.ANSWER)
        return meter


NO_POLICY = Policy()


def tell_sources(guards: Sequence[ActiveGuard], paths: Collection[str]) -> tuple[ActiveGuard, ...]:
    """The same detectors; those that want to know are told where the documents behind the answer came from."""
    return tuple(
        [
            replace(one, reading=cast("SourceReading", one.reading).with_sources(paths))
            if _takes_sources(type(one.reading))
            else one
            for one in guards
        ]
    )


def ground(
    reviews: Sequence[ActiveReview], documents: Sequence[str], chunking: Chunking, max_open: int = 5, *, holds: bool
) -> tuple[ActiveGuard, ...]:
    """Reviewers of a text with its context, as readers of an answer: each chunk is a claim about the documents.

    Those without a chunker read what `chunking` cuts; each makes at most `max_open` comparisons at once.
    """
    return tuple([_ground(one, tuple(documents), chunking, max_open, holds=holds) for one in reviews])


@lru_cache
def _takes_sources(kind: type) -> bool:
    return issubclass(kind, SourceReading)  # slow, so once for each class


def _ground(
    one: ActiveReview, documents: tuple[str, ...], chunking: Chunking, max_open: int, *, holds: bool
) -> ActiveGuard:
    own = one.guard
    cutter = chunking if own.chunker is None or own.reads_whole_text else Chunking(own.chunker_id, own.chunker)
    guard = Guard(own.id, TEXT_CONTENTS, own.detector, cutter.id, cutter.chunker, own.default_threshold)
    return ActiveGuard(guard, _Grounding(own.id, one.review, documents, max_open), one.threshold, holds, one.passes)


class _DetectorAccount(NamedTuple):
    """The place of one detector in the account of a request."""

    detector_id: str
    part: RequestPart
    receipt: Receipt
    is_own: bool  # the policy names the detector: what it refuses is a failure
    excuse: Excuse | None

    def fail(self, error: LockgateError) -> None:
        """Raise the error as a failure of the detector as the settings call it, unless it is excused."""
        name = self.detector_id
        if isinstance(error, UpstreamError):
            error.service = name
        elif self.is_own and isinstance(error, RequestError):
            refused, error = error, Rejected(name, f"detector `{name}` refused the text", status=502)
            error.__cause__ = refused
        if self.excuse is None or not self.excuse(error):
            raise error


class _MeteredReading(NamedTuple):
    entry: _DetectorAccount
    reading: Reading
    threshold: float
    seen: dict[str, int]  # findings, by detector

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        entry, started = self.entry, perf_counter()
        name = entry.detector_id
        try:
            found = await self.reading.read(excerpts)
            if any(one is UNANSWERED for one in found):  # for others it has found nothing; here it has not read
                raise BrokeProtocol(name, f"detector `{name}`: too few answers")
        except LockgateError as error:
            entry.fail(error)
            return ()
        texts = [excerpt.text for excerpt in excerpts]
        entry.receipt.note_read(name, entry.part, texts, perf_counter() - started)
        count = sum([one.score >= self.threshold for of_text in found for one in of_text])
        if count:
            self.seen[name] = self.seen.get(name, 0) + count
        return found


class _MeteredReview(NamedTuple):
    entry: _DetectorAccount
    inner: Review

    async def review(self, subject: Subject) -> Sequence[Detection]:
        entry, started = self.entry, perf_counter()
        try:
            found = await self.inner.review(subject)
        except LockgateError as error:
            entry.fail(error)
            return ()
        entry.receipt.note_read(entry.detector_id, entry.part, [last_text(subject)], perf_counter() - started)
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
