# SPDX-License-Identifier: Apache-2.0
"""Policy: the detectors for each part of a request, and the actions on their findings.

It is resolved: detectors are chosen and have accepted their parameters. Settings and the request's own `detectors`
field both become this one type, on every API.

Meter: writes the receipt and the policy metrics of one request. It wraps the detectors to record their work.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import blake2b
from time import perf_counter
from typing import Any, NamedTuple, cast

from lockgate.errors import BrokeProtocol, LockgateError, Rejected, RequestError, UpstreamError
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.receipts import Receipt, RequestPart
from lockgate.gate.values import TEXT_CONTENTS, UNANSWERED, Claim, Detection, Excerpt, Subject
from lockgate.gate.verdicts import REPLACING, Action, Measures, Pseudonyms, keep
from lockgate.guard.detectors import ActiveGuard, ActiveReview, FailureHandler, last_text, to_invalid_request
from lockgate.guard.finding_words import FindingWords
from lockgate.guard.hold_limits import LimitedReview
from lockgate.guard.input_cache import CachedReads
from lockgate.interfaces import Chunker, Headers, InPlaceChunker, Reading, Review, SourceReading
from lockgate.task_groups import run_together
from lockgate.telemetry import LogEvent, count_detections, log_event, name_causes

_DOCS = "docs"
_SENTENCE_WINDOW = 4000  # more characters than the longest sentence has
_NO_FIELDS = AnswerFields()
_ANNOTATE, _BLOCK = Measures(), Measures(Action.BLOCK)


class Chunking(NamedTuple):
    """The chunker of sentences: for reviewers without a chunker, and for the end of an answer that is cut off."""

    id: str
    chunker: Chunker


def find_sentence(chunking: Chunking | None, text: str, at: int) -> int:
    """Returns where the sentence that holds the character at `at` begins; 0 if its chunker is a remote one."""
    if chunking is None or not isinstance(chunking.chunker, InPlaceChunker):
        return 0
    begin = max(at - _SENTENCE_WINDOW, 0)
    machine = chunking.chunker.build_machine()
    chunks = [*machine.feed(text[begin : at + _SENTENCE_WINDOW]), *machine.finish()]
    starts = [chunk.start for chunk in chunks if chunk.start <= at - begin]
    return begin + starts[-1] if starts and starts[-1] else 0


class Meter:
    """Records one request: the text that detectors read, tolerated failures of detectors, and pseudonyms.

    In shadow mode no text is held, and a detector's failure does not end the request. A request without policy and
    receipt has a meter that is not on: it only counts findings in the metrics.
    """

    def __init__(
        self,
        policy: str = "",
        *,
        is_shadow: bool = False,
        lanes: Sequence[str] = ("content",),
        own: frozenset[str] = frozenset(),
        words: FindingWords | None = None,
        names_key: bytes = b"",
        is_on: bool = True,
    ) -> None:
        self.is_on = is_on
        self.receipt = Receipt(policy, is_shadow=is_shadow, lanes=lanes)
        self.names = Pseudonyms(names_key)
        self.failed_detectors: dict[str, bool] = {}  # tolerated failures; True: outside shadow it would end the request
        self.fields = _NO_FIELDS  # of the answer: its strings besides texts
        self._is_shadow = is_shadow
        self._own = own  # the policy's detectors: if one refuses the text, that is not the caller's error
        self._words = words  # reads the words of remote detectors' findings
        self._found_in_answer: dict[str, int] = {}

    def watch(self, guards: Sequence[ActiveGuard], part: RequestPart) -> tuple[ActiveGuard, ...]:
        """Returns the detectors wrapped: they record their reading of the part and tolerate allowed failures."""
        if not self.is_on:
            return tuple(guards)
        is_answer = part is RequestPart.ANSWER
        counts, fields = (self._found_in_answer, self.fields) if is_answer else ({}, _NO_FIELDS)
        watched = []
        for one in guards:
            record = self._open_record(one, part)
            own = fields if one.guard.id in fields.actions else None
            reading = _MeteredReading(record, one.reading, one.threshold, counts, own)
            holds = one.holds and not self._is_shadow
            watched.append(replace(one, reading=reading, holds=holds, on_failure=record.on_failure))
        return tuple(watched)

    def watch_reviews(self, reviews: Sequence[ActiveReview], part: RequestPart) -> tuple[ActiveReview, ...]:
        """Returns the reviewers wrapped in the same way."""
        if not self.is_on:
            return tuple(reviews)
        return tuple(
            [replace(one, review=_MeteredReview(self._open_record(one, part), _limit(one))) for one in reviews]
        )

    def note_findings(self, found: Sequence[Detection], measures: Measures, part: RequestPart) -> None:
        """Counts the findings in the metrics, and records them and their actions on the receipt."""
        count_detections(found)
        for one in found if self.is_on else ():
            self.receipt.note_finding(one.detector_id)
            self.receipt.note_action(measures.of(one.detector_id), part)

    def note_failure(self, detector_id: str) -> None:
        """Records a failure of the detector that ends the request."""
        self.receipt.note_failure(detector_id, ends=True)

    def reset_answer(self) -> None:
        """Resets the released text of an answer of which nothing was sent; counts its findings, which were made."""
        self.receipt.reset_released(RequestPart.ANSWER)
        for name, count in self._found_in_answer.items():
            for _ in range(count):
                self.receipt.note_finding(name)

    def _open_record(self, one: ActiveGuard | ActiveReview, part: RequestPart) -> "_DetectorRecord":
        name = one.guard.id
        self.receipt.expect(name, part)
        on_failure = self._make_failure_handler(one) if one.passes or self._is_shadow else None
        words = self._words if one.guard.is_remote else None
        return _DetectorRecord(name, part, self.receipt, name in self._own, on_failure, words)

    def _make_failure_handler(self, one: ActiveGuard | ActiveReview) -> FailureHandler:
        """Returns a handler that records a failure and returns whether the text may pass."""

        def on_failure(error: LockgateError) -> bool:
            if not (self._is_shadow or isinstance(error, UpstreamError)):
                return False
            name, ends = one.guard.id, not one.passes
            if name not in self.failed_detectors:
                reason = name_causes(error) if isinstance(error, UpstreamError) else type(error).__name__
                log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=name, reason=f"{reason}; unread text goes on")
            self.failed_detectors[name] = self.failed_detectors.get(name, False) or ends
            self.receipt.note_failure(name, ends=ends)
            return True

        return on_failure


@dataclass(frozen=True, slots=True)
class Policy:
    """The detectors of each part, and the actions on their findings; `for_output` applies to grounding too.

    `reviews` read the complete answer. A finding of a `refusing` detector in the input ends the request and is reported
    regardless of its action: these are the detectors that a request itself names on the guardrails endpoints.
    `unused` detectors belong to the policy but have no text to read on this API: the receipt lists them too.
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
    masks_sources: bool = True  # detectors of the answer read the documents that it shows
    grounding_holds: bool = True
    max_open: int = 5
    max_cuts: int = 5
    max_chars: int = 1_048_576  # per document
    trusts_chunks: bool = False
    lanes: tuple[str, ...] = ("content",)
    refusing: frozenset[str] = frozenset()
    unused: Sequence[str] = ()
    refuses_ungrounded: bool = False  # an answer that cannot be compared with documents is refused
    is_metered: bool = True  # write a receipt or policy metrics
    clean_words: dict[str, None] = field(
        default_factory=dict, compare=False
    )  # words of findings in which nothing was found
    unreadable: Mapping[str, str] = field(default_factory=dict)  # by kind: `refuse` or `pass`, as far as given
    names_key: bytes = b""  # of made-up names; empty: they are given in the order of first use
    replaces_tool_results: bool = False  # `block` replaces the result of a tool by the fallback
    cached_reads: CachedReads | None = None  # of the detectors of the input whose readings requests share
    # Computed from the other fields.
    is_on: bool = field(init=False)  # the policy has a detector
    has_roles: bool = field(init=False)  # a detector of the input reads some roles only, or has thresholds by role
    enforces: bool = field(init=False)  # a finding may mask, stop or block: nothing may pass unread by default
    fallback: str = field(init=False)  # the text in place of a withheld answer
    masks_input: bool = field(init=False)  # the input may be masked before a source or the model gets it
    is_early: bool = field(init=False)  # the model call starts before the input check ends
    hides: bool = field(init=False)  # a finding in the answer may hide text
    reads_errors: bool = field(init=False)  # error texts of services leave only if the detectors find nothing in them
    reads_findings: bool = field(init=False)  # the words of remote detectors' findings are read like the answer
    trailing: frozenset[str] = field(init=False)  # the detectors of the answer that report at its end
    is_holding: bool = field(init=False)  # a detector holds the answer
    takes_sources: bool = field(init=False)  # a detector of the answer needs the sources of the documents
    unshared: tuple[str, ...] = field(init=False)  # the parts whose readings cannot be shared by requests

    def __post_init__(self) -> None:
        is_masking = any(self.for_input.of(one.guard.id) in REPLACING for one in self.input)
        masks_input = is_masking and not self.is_shadow
        trailing = [one.guard.id for one in self.output if self.is_shadow or not one.holds]
        comparing = [one.guard.id for one in self.grounding]
        trailing += comparing if self.is_shadow or not self.grounding_holds else []
        parts = ("input", "documents", "output", "grounding", "reviews")
        unshared = [part for part in parts if any(not one.guard.shares_readings for one in getattr(self, part))]
        enforces = bool(self.name) and not self.is_shadow and self._changes_text()
        hides = self.for_output.changes_text([*[one.guard.id for one in self.output], *comparing])
        computed = {
            "unshared": tuple(unshared),
            "has_roles": any(one.roles is not None or one.thresholds for one in self.input),
            "is_on": bool(self.input or self.documents or self.output or self.grounding or self.reviews),
            "enforces": enforces,
            "fallback": self.for_output.fallback,
            "masks_input": masks_input,
            "is_early": self.is_speculative and bool(self.input) and not masks_input,
            "hides": hides,
            "reads_errors": not self.is_shadow and (enforces or hides),
            "reads_findings": enforces and any(one.guard.is_remote for part in parts for one in getattr(self, part)),
            "trailing": frozenset(trailing),
            "is_holding": len(trailing) < len(self.output) + len(comparing),
            "takes_sources": any(_takes_sources(type(one.reading)) for one in self.output),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def _changes_text(self) -> bool:
        parts: tuple[tuple[Measures, Sequence[ActiveGuard | ActiveReview]], ...] = (
            (self.for_input, self.input),
            (self.for_documents, self.documents),
            (self.for_output, (*self.output, *self.grounding)),
        )
        return any(measures.changes_text([one.guard.id for one in guards]) for measures, guards in parts)

    def list_enforcing(self) -> tuple[ActiveGuard, ...]:
        """Returns the detectors of texts whose findings change text: of the answer, else of the input or documents."""
        parts = ((self.for_output, self.output), (self.for_input, self.input), (self.for_documents, self.documents))
        for measures, guards in parts:
            found = tuple([one for one in guards if measures.of(one.guard.id) is not Action.ANNOTATE])
            if found:
                return found
        return ()

    def refuses_unreadable(self, kind: str) -> bool:
        """Returns whether a request with a value of this kind, which detectors cannot read, is refused."""
        given = self.unreadable.get(kind)
        is_refused = kind != "encrypted" and self.enforces if given is None else given == "refuse"
        return is_refused and not self.is_shadow

    def bind(self, headers: Headers) -> "Policy":
        """Returns the policy for one request; only readings that requests cannot share are created again."""
        if not self.unshared:
            return self
        bound: dict[str, Any] = {}
        for part in self.unshared:
            bound[part] = tuple([one.bind(headers) for one in getattr(self, part)])
        return replace(self, **bound)

    def open_meter(self, caller: str = "") -> Meter:
        """Returns a meter for one request that expects every detector of the policy, in the order of the parts.

        All requests of a caller give a value the same made-up name.
        """
        if not (self.is_metered and (self.name or self.is_on)):
            return Meter(is_on=False)
        measures = (self.for_input, self.for_documents, self.for_output)
        own = frozenset(name for one in measures for name in one.own or ())
        words = FindingWords(self.list_enforcing(), self.clean_words, self.max_open) if self.reads_findings else None
        names_key = self.names_key and blake2b(caller.encode(), key=self.names_key, digest_size=32).digest()
        meter = Meter(self.name, is_shadow=self.is_shadow, lanes=self.lanes, own=own, words=words, names_key=names_key)
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


def pass_sources(guards: Sequence[ActiveGuard], paths: Collection[str]) -> tuple[ActiveGuard, ...]:
    """Returns the detectors; those that need it get the paths of the sources of the answer's documents."""
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
    """Returns reviewers as guards of an answer: each chunk is a claim that they compare with the documents.

    Reviewers without a chunker use `chunking`; each makes at most `max_open` comparisons at once.
    """
    return tuple([_ground(one, tuple(documents), chunking, max_open, holds=holds) for one in reviews])


@lru_cache
def _takes_sources(kind: type) -> bool:
    return issubclass(kind, SourceReading)  # slow, so cached for each class


def _ground(
    one: ActiveReview, documents: tuple[str, ...], chunking: Chunking, max_open: int, *, holds: bool
) -> ActiveGuard:
    own = one.guard
    cutter = chunking if own.chunker is None or own.reads_whole_text else Chunking(own.chunker_id, own.chunker)
    guard = replace(own, type=TEXT_CONTENTS, chunker_id=cutter.id, chunker=cutter.chunker)
    reading = _Grounding(own.id, one.review, documents, max_open)
    return ActiveGuard(guard, reading, one.threshold, holds, one.passes, max_hold_s=one.max_hold_s)


def _limit(one: ActiveReview) -> Review:
    return one.review if one.max_hold_s is None else LimitedReview(one.guard.id, one.review, one.max_hold_s)


class _DetectorRecord(NamedTuple):
    """Records one detector's work on one part of a request."""

    detector_id: str
    part: RequestPart
    receipt: Receipt
    is_own: bool  # the policy names the detector: if it refuses the text, that is a failure
    on_failure: FailureHandler | None
    words: FindingWords | None = None

    def fail(self, error: LockgateError) -> None:
        """Raises the error as a failure of the detector, by its configured name, unless the failure is tolerated."""
        name = self.detector_id
        if isinstance(error, UpstreamError):
            error.service = name
        elif self.is_own and isinstance(error, RequestError):
            refused, error = error, Rejected(name, f"detector `{name}` refused the text", status=502)
            error.__cause__ = refused
        if self.on_failure is None or not self.on_failure(error):
            raise error


class _MeteredReading(NamedTuple):
    """A reading that is recorded. The fields of the answer that wait are read with its next texts, or alone."""

    record: _DetectorRecord
    reading: Reading
    threshold: float
    counts: dict[str, int]  # findings, by detector
    fields: AnswerFields | None = None

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        record, started = self.record, perf_counter()
        name, fields = record.detector_id, self.fields
        waiting = None if fields is None else fields.waiting if excerpts else fields.alone
        values = waiting.pop(name, ()) if waiting else ()
        try:
            found = await self.reading.read([*excerpts, *map(Excerpt, values)] if values else excerpts)
            is_short = bool(values) and len(found) < len(excerpts) + len(values)
            if is_short or any(one is UNANSWERED for one in found):  # without a meter this counts as no findings
                raise BrokeProtocol(name, f"detector `{name}`: too few answers")
            if record.words is not None and any(found):
                found = await record.words.read(found, record.receipt)
        except LockgateError as error:
            record.fail(error)
            if fields is not None:
                fields.note(name, values)
            return ()
        if fields is not None and values:
            found_there = found[len(excerpts) :]
            fields.note(name, values, self._keep_found(fields, values, found_there) if any(found_there) else ())
            found = found[: len(excerpts)]
        texts = [excerpt.text for excerpt in excerpts]
        record.receipt.note_read(name, record.part, texts, perf_counter() - started)
        count = sum([one.score >= self.threshold for of_text in found for one in of_text])
        if count:
            self.counts[name] = self.counts.get(name, 0) + count
        return found

    def _keep_found(
        self, fields: AnswerFields, values: Sequence[str], found: Sequence[Sequence[Detection]]
    ) -> list[str]:
        """Returns the fields with findings, and counts these. A field is left out at most, so it counts as masked."""
        record = self.record
        for one in [one for of_value in found for one in keep(of_value, self.threshold)]:
            count_detections([one])
            record.receipt.note_finding(record.detector_id)
            record.receipt.note_action(min(fields.actions[record.detector_id], Action.MASK), record.part)
        return [value for value, of_value in zip(values, found, strict=False) if keep(of_value, self.threshold)]


class _MeteredReview(NamedTuple):
    record: _DetectorRecord
    inner: Review

    async def review(self, subject: Subject) -> Sequence[Detection]:
        record, started = self.record, perf_counter()
        try:
            found = await self.inner.review(subject)
            if record.words is not None and found:
                [found] = await record.words.read([found], record.receipt)
        except LockgateError as error:
            record.fail(error)
            return ()
        record.receipt.note_read(record.detector_id, record.part, [last_text(subject)], perf_counter() - started)
        return found


class _Grounding(NamedTuple):
    detector_id: str
    review: Review
    documents: tuple[str, ...]
    max_open: int

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        found: list[Sequence[Detection]] = []
        for start in range(0, len(excerpts), self.max_open):  # a whole answer may have very many excerpts
            window = excerpts[start : start + self.max_open]
            found += await run_together([partial(self._compare, one.text) for one in window], self.max_open)
        return found

    async def _compare(self, text: str) -> Sequence[Detection]:
        """Returns the findings about a claim, each with the span of the whole claim."""
        claim = text.strip()
        if not claim:
            return ()
        try:
            found = await self.review.review(Claim(claim, _DOCS, self.documents))
        except RequestError as error:
            raise to_invalid_request(self.detector_id, error) from error
        start = text.index(claim)
        return [one._replace(start=start, end=start + len(claim), text=claim) for one in found]
