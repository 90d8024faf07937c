# SPDX-License-Identifier: Apache-2.0
"""Answers a question from documents: retrieve -> prompt -> guarded stream -> citations.

Detectors read the prompt while the sources are searched, unless the policy masks it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from lockgate.errors import MODEL, GenerationFailed, LockgateError, RequestTimedOut, TimedOut, UpstreamError
from lockgate.gate.coverage import FieldText, Path, TextKind, describe
from lockgate.gate.input_texts import CheckedInput, Input, Slice, locate
from lockgate.gate.lanes import LanePlan
from lockgate.gate.prompt import AnswerGrounds, Citation, CitationScanner, build_prompt, explain_missing_documents
from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection, Document, Message
from lockgate.guard.detectors import ActiveGuard
from lockgate.guard.model_source import TIMED_OUT, Deadline, read_model
from lockgate.guard.policy import Chunking, Policy
from lockgate.guard.request import (
    GuardedRequest,
    InputBlocked,
    InputRead,
    Lookahead,
    ModelStarted,
    Prepared,
    Released,
    open_guarded,
)
from lockgate.guard.stream import Source
from lockgate.interfaces import GroundedModel, Model
from lockgate.rag.sources import (
    BOUNDS,
    MAX_LOGGED_CHARS,
    Bounds,
    DocumentReader,
    InspectedDocument,
    NamedSource,
    Retrieval,
    Status,
    merge_documents,
)
from lockgate.rag.trace import Trace
from lockgate.task_groups import run_group
from lockgate.telemetry import LogEvent, log_event, name_causes

PROMPT_PATH: Path = ("prompt",)
_SYSTEM_PATH: Path = ("custom_system_prompt",)
_NOT_AWAITED = "Not asked to the end: the prompt was blocked"
_MAX_CITATIONS = 1000
_SCAN_CHARS = 8192  # characters to scan before the citations are counted
_GRACE_S = 0.5  # extra time for detectors after the deadline of sources and model


class RetrievalStarted(NamedTuple):
    """The search of the sources starts."""

    sources: int


class SourceEnded(NamedTuple):
    """A source has answered, failed or timed out."""

    retrieval: Retrieval


class RetrievalEnded(NamedTuple):
    """All sources have ended."""

    documents: int
    time_ms: int


class GenerationStarted(NamedTuple):
    """The model call starts."""


class Token(NamedTuple):
    """A released piece of the answer, masks applied; the span is that of the model's original text."""

    text: str
    start: int
    end: int
    detections: tuple[Detection, ...] = ()


Step = RetrievalStarted | SourceEnded | RetrievalEnded | GenerationStarted | Token


@dataclass(slots=True, eq=False)
class AnswerResult:
    """The result of a request. Retrievals are in the order of the request's sources."""

    retrievals: list[Retrieval] = field(default_factory=list)
    ended: list[Retrieval] = field(default_factory=list)  # in the order of their ends
    documents: list[Document] = field(default_factory=list)
    usage: Mapping[str, int] | None = None
    retrieval_ms: int = 0
    generation_ms: int = 0
    total_ms: int = 0
    found_in_prompt: Sequence[Detection] = ()
    found_in_fields: Sequence[tuple[str, Detection]] = ()  # in other fields of the request, by their places
    found_in_answer: list[Detection] = field(default_factory=list)
    grounding: Sequence[str] = ()  # the detectors that compared the answer with its documents
    citations: list[Citation] = field(default_factory=list)
    shown: Sequence[Retrieval] | None = None  # with the documents as the answer shows them; None: as they are
    inspected_sources: Sequence[InspectedDocument] = ()  # of these documents, those in which something was found
    receipt: Receipt = field(default_factory=Receipt)
    failed_detectors: Mapping[str, bool] = field(default_factory=dict)  # as in Meter
    pseudonyms: Mapping[str, str] = field(default_factory=dict)  # what made-up names stand for
    is_prompt_blocked: bool = False
    is_answer_blocked: bool = False


class Limits(NamedTuple):
    """The time limits of the parts of a request, in seconds."""

    retrieval_s: float = 30.0
    generation_s: float = 120.0
    total_s: float = 180.0


class GroundedQuestion(NamedTuple):
    """A question with its sources, its model, its policy and its limits."""

    prompt: str
    sources: Sequence[NamedSource]
    model: Callable[[], Model]
    model_path: str
    params: Mapping[str, Any]
    top_k: int
    limits: Limits
    plan: Callable[[Sequence[ActiveGuard]], LanePlan]
    chunking: Chunking | None = None
    system_prompt: str | None = None
    history: Sequence[Message] = ()  # the messages before the question, for the model only
    guarding: Policy = Policy()
    finds_citations: bool = False
    trace: Trace | None = None  # if the client may see held text
    bounds: Bounds = BOUNDS
    is_retrieval_only: bool = False  # no model is called
    caller: str = ""
    input: Input | None = None  # all texts that detectors read, at their paths; None: the prompt alone


SendStep = Callable[[Step], Awaitable[None]]


async def answer(question: GroundedQuestion, send: SendStep) -> AnswerResult:
    """Runs a request. Raises GenerationFailed if the model fails, after the text that it gave before."""
    run = _AnswerRun(question, send)
    log_event(LogEvent.CHAT_REQUEST_STARTED, documents_count=0, status="started", latency_ms=0)
    status = "error"
    try:
        async with asyncio.timeout_at(run.deadline + _GRACE_S) as limit:
            await run.run()
        status = "success"
    except TimeoutError:
        if not limit.expired():
            raise
        raise RequestTimedOut from None
    finally:
        run.outcome.total_ms = run.elapsed_ms(run.started)
        log_event(
            LogEvent.CHAT_REQUEST_COMPLETED,
            documents_count=len(run.outcome.documents),
            status=status,
            latency_ms=run.outcome.total_ms,
        )
    return run.outcome


class _AnswerRun:
    """Runs one request."""

    def __init__(self, question: GroundedQuestion, send: SendStep) -> None:
        self._clock = asyncio.get_running_loop().time
        self.started = self._generation_started_at = self._clock()
        self.deadline = self.started + question.limits.total_s
        self.outcome = outcome = AnswerResult()
        self._question = question
        self._policy = (
            replace(question.guarding, is_speculative=False) if question.is_retrieval_only else question.guarding
        )
        self._send = send
        self._meter = meter = question.guarding.open_meter(question.caller)
        outcome.receipt = meter.receipt
        meter.receipt.prompt_sent_to = []
        outcome.failed_detectors = meter.failed_detectors
        outcome.pseudonyms = meter.names.values
        self._finds_citations = question.finds_citations or question.guarding.is_on
        self._scanner: CitationScanner | None = None
        self._reader: DocumentReader | None = None
        self._has_text = False
        self._retrieved: dict[int, Retrieval] = {}
        self._finished: asyncio.Queue[Retrieval] = asyncio.Queue()

    def elapsed_ms(self, since: float) -> int:
        return int((self._clock() - since) * 1000)

    async def run(self) -> None:
        question, outcome = self._question, self.outcome
        await self._send(RetrievalStarted(len(question.sources)))
        await asyncio.sleep(0)  # other new requests send their first step before this one continues
        may_block = self._policy.for_input.changes_text([one.guard.id for one in self._policy.input])
        waits = may_block or question.is_retrieval_only
        request = GuardedRequest(
            self._policy,
            self._meter,
            question.input or Input(question.prompt, [Slice(0, question.prompt)]),
            self._prepare,
            question.plan,
            question.chunking,
            Lookahead.PREPARE if question.sources and not waits else Lookahead.NOTHING,
            is_over=lambda: self.outcome.is_answer_blocked,
            watch=None if question.trace is None else question.trace.watch,
        )
        async with open_guarded(request) as events:
            async for event in events:
                await self._handle_event(event)
            self._collect()
            if outcome.is_prompt_blocked:
                outcome.shown = ()
                return
            if self._reader is not None:
                self.outcome.shown, self.outcome.inspected_sources = await self._reader.read_shown(outcome.retrievals)
        if self._scanner is not None:
            outcome.citations += self._scanner.finish()
        if question.is_retrieval_only:
            return
        if not self._has_text:  # an empty answer sends one token too
            await self._send(Token("", 0, 0))
        outcome.generation_ms = self.elapsed_ms(self._generation_started_at)

    async def _handle_event(self, event: Any) -> None:
        outcome, question = self.outcome, self._question
        if isinstance(event, Released):
            release, verdict = event
            text, detections = release.text, release.detections
            if verdict is not None:
                outcome.is_answer_blocked = verdict.is_blocked
                text, detections = verdict.text, verdict.detections
                outcome.found_in_answer += detections
            if self._question.trace is not None:
                self._question.trace.add_release(release, verdict)
            if text:
                self._find_citations(text)
                self._has_text = True
                await self._send(Token(text, release.start, release.end, detections))
        elif isinstance(event, InputRead | InputBlocked):
            outcome.found_in_prompt = event.input.found
            if event.input.found and question.input is not None:
                outcome.found_in_prompt, outcome.found_in_fields = _sort_by_field(question.input, event.input.found)
            outcome.is_prompt_blocked = event.input.is_blocked
            if event.input.is_blocked:
                await self._send(Token(self._policy.fallback, 0, 0))
        elif isinstance(event, ModelStarted):
            self._generation_started_at = self._clock()
            if outcome.receipt.prompt_sent_to is not None:
                outcome.receipt.prompt_sent_to.append(self._question.model_path)
            await self._send(GenerationStarted())
            log_event(LogEvent.CHAT_GENERATION_STARTED, documents_count=len(outcome.documents))
        else:
            await self._send(event)

    # The sources.

    async def _prepare(self, checked: CheckedInput) -> AsyncGenerator[Step | Prepared, None]:
        """Searches all sources at once; yields a step for each end, and last the model call."""
        outcome = self.outcome
        question = self._question = _apply_changes(self._question, checked)
        started_at = self._clock()
        log_event(LogEvent.CHAT_RETRIEVAL_STARTED, sources=len(question.sources))
        reader = self._reader = DocumentReader(self._policy, self._meter, question.bounds)
        async with run_group() as group:
            until = min(started_at + question.limits.retrieval_s, self.deadline)
            for place, source in enumerate(question.sources):
                group.create_task(self._ask_source(place, source, reader, until))
            while len(outcome.ended) < len(question.sources):
                retrieval = await self._finished.get()
                outcome.ended.append(retrieval)
                if question.trace is not None:
                    question.trace.add_retrieval(retrieval)
                yield SourceEnded(retrieval)
        outcome.retrieval_ms = self.elapsed_ms(started_at)
        count = sum([one.retrieved for one in outcome.ended])
        log_event(
            LogEvent.CHAT_RETRIEVAL_COMPLETED, documents_count=count, latency_ms=outcome.retrieval_ms, status="success"
        )
        yield RetrievalEnded(count, outcome.retrieval_ms)
        self._collect()
        outcome.documents = merge_documents(outcome.retrievals)
        if question.is_retrieval_only:
            return
        reader.note_used(outcome.documents)
        grounds = AnswerGrounds(
            question.prompt, outcome.documents, bool(question.sources), question.system_prompt, question.history
        )
        if self._policy.grounding:
            outcome.grounding = [one.guard.id for one in self._policy.grounding]
        lack = explain_missing_documents(has_sources=bool(question.sources))
        yield Prepared(self._ask_model(grounds), outcome.documents, lack)

    async def _ask_source(self, place: int, source: NamedSource, reader: DocumentReader, until: float) -> None:
        limit = self._question.top_k
        search = partial(source.source.search, source.query or self._question.prompt, limit)
        retrieval = await reader.ask(source.path, search, limit, until)
        self._retrieved[place] = retrieval
        self._finished.put_nowait(retrieval)

    def _collect(self) -> None:
        """Adds an entry for every source, also for those not awaited."""
        outcome = self.outcome
        outcome.retrievals = [
            self._retrieved.get(place) or Retrieval(source.path, Status.ERROR, error=_NOT_AWAITED)
            for place, source in enumerate(self._question.sources)
        ]
        known = {id(one) for one in outcome.ended}
        outcome.ended += [one for one in outcome.retrievals if id(one) not in known]

    # The model.

    async def _ask_model(self, grounds: AnswerGrounds) -> Source:
        question = self._question
        deadline = Deadline(min(self._clock() + question.limits.generation_s, self.deadline))
        try:
            async with aclosing(read_model(partial(_generate, question, grounds), deadline)) as bursts:
                async for burst in bursts:
                    for frame in burst if isinstance(burst, list) else (burst,):
                        if frame.fields is not None and frame.fields.get("usage"):
                            self.outcome.usage = frame.fields["usage"]
                    if question.trace is not None:
                        question.trace.receive(burst)
                    yield burst
        except LockgateError as error:
            latency_ms = self.elapsed_ms(self._generation_started_at)
            log_event(
                LogEvent.MODEL_QUERY_FAILED,
                logging.WARNING,
                model=question.model_path[:MAX_LOGGED_CHARS],
                latency_ms=latency_ms,
                status="error",
                reason=name_causes(error),
            )
            if not isinstance(error, UpstreamError):
                raise
            cause = TIMED_OUT if isinstance(error, TimedOut) else error.message
            error.known_as = MODEL
            own = error.own or error.summary
            raise GenerationFailed(cause, question.model_path, latency_ms, words=error.words, own=own) from error
        log_event(
            LogEvent.MODEL_QUERY_COMPLETED, latency_ms=self.elapsed_ms(self._generation_started_at), status="success"
        )

    # The answer.

    def _find_citations(self, text: str) -> None:
        if not self._finds_citations:
            return
        if self._scanner is None:
            self._scanner = CitationScanner({one.source for one in self.outcome.documents})
        citations = self.outcome.citations
        for start in range(0, len(text), _SCAN_CHARS):
            citations += self._scanner.feed(text[start : start + _SCAN_CHARS])
            if len(citations) >= _MAX_CITATIONS:
                del citations[_MAX_CITATIONS:]
                self._scanner, self._finds_citations = None, False
                return


def list_question_texts(question: GroundedQuestion) -> list[FieldText]:
    """Returns the texts of a question that are no names, at the places where a request has them."""
    texts = [FieldText(PROMPT_PATH, question.prompt, TextKind.CONTENT, "user")]
    if question.system_prompt:
        texts.append(FieldText(_SYSTEM_PATH, question.system_prompt, TextKind.CONTENT, "system"))
    for place, one in enumerate(question.history):
        texts.append(FieldText(("messages", place, "content"), one.text, TextKind.CONTENT, one.role))
    for place, source in enumerate(question.sources):
        if source.query:
            texts.append(FieldText(("data_sources", place, "query_override"), source.query, TextKind.CONTENT, "user"))
    return texts


def _apply_changes(question: GroundedQuestion, checked: CheckedInput) -> GroundedQuestion:
    """Returns the question with the texts that the check has changed."""
    if not checked.changes:
        return question
    find = checked.changes.get
    sources = [
        one._replace(query=find(("data_sources", place, "query_override"), one.query))
        for place, one in enumerate(question.sources)
    ]
    history = [
        Message(one.role, find(("messages", place, "content"), one.text)) for place, one in enumerate(question.history)
    ]
    return question._replace(
        prompt=find(PROMPT_PATH, checked.text if question.input is None else question.prompt),
        system_prompt=find(_SYSTEM_PATH, question.system_prompt or "") or None,
        history=history,
        sources=sources,
    )


def _sort_by_field(given: Input, found: Sequence[Detection]) -> tuple[list[Detection], list[tuple[str, Detection]]]:
    """Returns the findings in the prompt, and those in other fields with their places; spans count in the field."""
    in_prompt: list[Detection] = []
    elsewhere: list[tuple[str, Detection]] = []
    for text, own in locate(given.texts, found):
        if text.path == PROMPT_PATH:
            in_prompt += own
        else:
            elsewhere += [(describe(text.path, given.table), one) for one in own]
    return in_prompt, elsewhere


def _generate(question: GroundedQuestion, grounds: AnswerGrounds) -> Source:
    """Calls the model with the standard prompt; a GroundedModel builds its own, unless the request brings messages."""
    model, params = question.model(), question.params
    if not (grounds.system_prompt or grounds.history) and isinstance(model, GroundedModel):
        return model.answer(grounds, params)
    prompt, documents, has_sources, system_prompt, history = grounds
    messages = build_prompt(prompt, documents, has_sources=has_sources, system_prompt=system_prompt, history=history)
    return model.generate(messages, params)
