# SPDX-License-Identifier: Apache-2.0
"""Question in, grounded and guarded answer out: retrieve -> prompt -> guarded stream -> citations.

One coroutine carries a request and tells its listener each step as it happens: a listener that takes long to hear slows
this request and no other. Everything under way belongs to it and ends with it. A whole answer and a stream go the same
way; without detectors text is passed on as it comes.

The prompt is read while the sources are asked, unless what is found is to be masked: then nobody may see it before. The
model is asked when that is done, or where the policy wants it before; nothing leaves before. A prompt that is blocked
ends the request where it stands. Refuses to know any wire shape, and how a source or a model is called.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from lockgate.core.answers import GenerationStarted, Outcome, RetrievalEnded, RetrievalStarted, SourceEnded, Step, Token
from lockgate.core.citations import CitationScanner
from lockgate.core.lanes import LanePlan
from lockgate.core.prompt import Grounds, build_prompt, tell_lack
from lockgate.core.receipts import Part
from lockgate.core.release import Release
from lockgate.core.retrieval import Retrieval, Status, merge_documents
from lockgate.core.trace import Trace
from lockgate.core.values import Frame
from lockgate.core.verdicts import Action, Judge, Measures, Verdict, judge_whole
from lockgate.errors import GenerationFailed, LockgateError, RequestTimedOut, TimedOut, UpstreamError
from lockgate.interfaces import Model
from lockgate.pipelines.detect import detect_contents
from lockgate.pipelines.guarded_stream import Source, open_guarded_stream
from lockgate.pipelines.guards import ActiveGuard, ActiveReview
from lockgate.pipelines.listening import TIMED_OUT, blaming_model, next_burst
from lockgate.pipelines.metering import Basis, Chunking, Meter, ground, tell_sources
from lockgate.pipelines.retrieve import (
    MAX_LOGGED_CHARS,
    Budget,
    Inspection,
    NamedSource,
    Originals,
    inspect,
    query,
    read_text,
)
from lockgate.pipelines.together import Group, run_group
from lockgate.telemetry import Event, log_event, name_causes, observe_policy

_ABANDONED = "Not asked to the end: the prompt was blocked"
_MAX_CITATIONS = 1000
_LOOK_CHARS = 8192  # of an answer are looked through for citations before they are counted
_GRACE_S = 0.5  # for detectors, once sources and model have no time left


class Limits(NamedTuple):
    """How long the parts of a request may take, in seconds."""

    retrieval_s: float = 30.0
    generation_s: float = 120.0
    total_s: float = 180.0


class Guarding(NamedTuple):
    """Who reads what of a request, and what becomes of a finding; `for_output` is for those that compare too."""

    input: Sequence[ActiveGuard] = ()
    documents: Sequence[ActiveGuard] = ()
    output: Sequence[ActiveGuard] = ()
    grounding: Sequence[ActiveReview] = ()
    for_input: Measures = Measures(Action.BLOCK)
    for_documents: Measures = Measures(Action.BLOCK)
    for_output: Measures = Measures()
    policy: str = ""
    is_shadow: bool = False
    is_speculative: bool = False
    grounding_holds: bool = True
    max_open: int = 5
    max_chars: int = 1_048_576  # of a document that is read

    @property
    def is_on(self) -> bool:
        """Whether anybody reads anything."""
        return bool(self.input or self.documents or self.output or self.grounding)

    @property
    def fallback(self) -> str:
        """What stands in place of an answer that was withheld."""
        return self.for_output.fallback

    @property
    def masks_input(self) -> bool:
        """Whether a prompt may have to be changed before anybody sees it."""
        return self.calls_for(self.input, Action.MASK)

    def calls_for(self, guards: Sequence[ActiveGuard], action: Action) -> bool:
        """Whether a finding of one of these that read the prompt would call for just this."""
        return not self.is_shadow and any(self.for_input.of(one.guard.id) is action for one in guards)

    @property
    def is_early(self) -> bool:
        """Whether the model is asked before the prompt has been read."""
        return self.is_speculative and bool(self.input) and not self.masks_input

    def open_meter(self) -> Meter:
        """The account of one request."""
        return Meter(self.policy, is_shadow=self.is_shadow)


class Question(NamedTuple):
    """What is asked, of whom, within which limits."""

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
    guarding: Guarding = Guarding()
    finds_citations: bool = False
    trace: Trace | None = None  # where somebody may see what is held


Tell = Callable[[Step], Awaitable[None]]


async def answer(question: Question, tell: Tell) -> Outcome:
    """Carry out a request. Raises GenerationFailed when the model gives no answer, after what it said before."""
    run = _Run(question, tell)
    log_event(Event.CHAT_REQUEST_STARTED, documents_count=0, status="started", latency_ms=0)
    status = "error"
    try:
        async with asyncio.timeout_at(run.deadline + _GRACE_S) as limit:
            await run.carry_out()
        status = "success"
    except TimeoutError:
        if not limit.expired():
            raise
        raise RequestTimedOut from None
    except UpstreamError as error:  # sources and the model tell theirs otherwise: a detector has failed
        run.outcome.receipt.note_failure(error.service, ends=True)
        raise
    finally:
        if question.guarding.is_on:
            observe_policy(run.outcome.receipt)
        run.outcome.total_ms = run.elapsed_ms(run.started)
        log_event(
            Event.CHAT_REQUEST_COMPLETED,
            documents_count=len(run.outcome.documents),
            status=status,
            latency_ms=run.outcome.total_ms,
        )
    return run.outcome


class _Run:
    """One request at work."""

    def __init__(self, question: Question, tell: Tell) -> None:
        self._clock = asyncio.get_running_loop().time
        self.started = self._clock()
        self.deadline = self.started + question.limits.total_s
        self.outcome = outcome = Outcome()
        self._question = question
        self._prompt = question.prompt
        self._guarding = question.guarding
        self._tell = tell
        self._meter = meter = question.guarding.open_meter()
        outcome.receipt, outcome.excused, outcome.pseudonyms = meter.receipt, meter.excused, meter.names.values
        self._is_guarded = question.guarding.is_on
        self._originals: Originals = {}
        self._early: asyncio.Timeout | None = None  # ends what the model was asked too early
        self._expect_reads()
        # While sources are asked; `moved` is a plain wake-up: whoever waits looks again.
        self._retrieved: dict[int, Retrieval] = {}
        self._unheard: deque[Retrieval] = deque()
        self._is_checking = False
        self._moved = asyncio.Event()

    def elapsed_ms(self, since: float) -> int:
        return int((self._clock() - since) * 1000)

    async def carry_out(self) -> None:
        guarding = self._guarding
        await self._tell(RetrievalStarted(len(self._question.sources)))
        await asyncio.sleep(0)  # others that have just come are told of their start before this one goes on
        if guarding.masks_input:
            await self._check_prompt()
        async with run_group() as group:
            if guarding.input and not guarding.masks_input:
                self._is_checking = True
                group.create_task(self._check_beside())
            await self._retrieve()
            if self._question.sources or not self.outcome.is_prompt_blocked:
                self._note_released(Part.PROMPT, self._question.prompt)
            if not self.outcome.is_prompt_blocked:
                await self._answer()

    async def _answer(self) -> None:
        """Ask the model, perhaps before the prompt has been read: then what is found in it ends this."""
        outcome = self.outcome
        outcome.documents = merge_documents(outcome.retrievals)
        for document in outcome.documents:
            _, read = self._originals.get(id(document), (document, read_text(document)))
            self._note_released(Part.DOCUMENTS, read)
        try:
            async with asyncio.timeout(None) as self._early:
                await self._generate()
        except TimeoutError:
            if not outcome.is_prompt_blocked:
                raise

    def _expect_reads(self) -> None:
        """Every detector is on the receipt, also one that never gets anything to read."""
        guarding, expect = self._guarding, self.outcome.receipt.expect
        parts: tuple[tuple[Part, Sequence[ActiveGuard | ActiveReview]], ...] = (
            (Part.PROMPT, guarding.input),
            (Part.DOCUMENTS, guarding.documents),
            (Part.ANSWER, (*guarding.output, *guarding.grounding)),
        )
        for part, guards in parts:
            for one in guards:
                expect(one.guard.id, part)

    # The prompt.

    async def _check_prompt(self) -> None:
        guarding, outcome = self._guarding, self.outcome
        guards = self._meter.watch(guarding.input, Part.PROMPT)
        found = await detect_contents(self._prompt, guards, guarding.max_open)
        if not found:
            return
        self._meter.note_findings(found, guarding.for_input, Part.PROMPT)
        verdict = judge_whole(self._prompt, found, guarding.for_input, self._meter.names)
        outcome.found_in_prompt = verdict.detections
        outcome.is_prompt_blocked = verdict.is_blocked
        if not verdict.is_blocked:
            self._prompt = verdict.text

    # The sources.

    async def _retrieve(self) -> None:
        question, outcome = self._question, self.outcome
        began = self._clock()
        log_event(Event.CHAT_RETRIEVAL_STARTED, sources=len(question.sources))
        async with run_group() as group:
            self._ask_sources(group, min(began + question.limits.retrieval_s, self.deadline))
            await self._hear_sources()
            outcome.retrieval_ms = self.elapsed_ms(began)
            if not outcome.is_prompt_blocked:
                await self._end_retrieval()
            if not self._guarding.is_early:
                await self._hear_check()
        self._collect()

    async def _hear_check(self) -> None:
        while self._is_checking:
            await self._wait()

    def _ask_sources(self, group: Group, until: float) -> None:
        guarding, limit = self._guarding, self._question.top_k
        guards = self._meter.watch(guarding.documents, Part.DOCUMENTS)
        permits = asyncio.Semaphore(guarding.max_open)
        inspection = Inspection(
            guards, guarding.for_documents, self._meter, permits, self._originals, guarding.max_chars
        )
        budget = Budget()

        async def ask(place: int, source: NamedSource) -> None:
            retrieval = budget.take(await query(source, self._prompt, limit, until))
            self._retrieved[place] = retrieval = await inspect(retrieval, inspection)
            self._unheard.append(retrieval)
            self._moved.set()

        for place, source in enumerate(self._question.sources):
            group.create_task(ask(place, source))

    async def _check_beside(self) -> None:
        await self._check_prompt()
        self._is_checking = False
        self._moved.set()
        if self.outcome.is_prompt_blocked and self._early is not None:
            self._early.reschedule(self._clock())

    async def _hear_sources(self) -> None:
        """Tell of sources as they end, until all have or the prompt is blocked."""
        outcome = self.outcome
        while len(outcome.ended) < len(self._question.sources) and not outcome.is_prompt_blocked:
            if not self._unheard:
                await self._wait()
                continue
            outcome.ended.append(self._unheard.popleft())
            if self._question.trace is not None:
                self._question.trace.come(outcome.ended[-1])
            await self._tell(SourceEnded(outcome.ended[-1]))

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _end_retrieval(self) -> None:
        outcome = self.outcome
        count = sum([one.retrieved for one in outcome.ended])
        log_event(
            Event.CHAT_RETRIEVAL_COMPLETED, documents_count=count, latency_ms=outcome.retrieval_ms, status="success"
        )
        await self._tell(RetrievalEnded(count, outcome.retrieval_ms))

    def _collect(self) -> None:
        """Every source has its entry, also one that nobody heard any more because the prompt was blocked."""
        outcome = self.outcome
        for place, source in enumerate(self._question.sources):
            retrieval = self._retrieved.get(place) or Retrieval(source.path, Status.ERROR, error=_ABANDONED)
            outcome.retrievals.append(retrieval)
        heard = {id(one) for one in outcome.ended}
        outcome.ended += [one for one in outcome.retrievals if id(one) not in heard]

    # The answer.

    async def _generate(self) -> None:
        question, outcome = self._question, self.outcome
        grounds = Grounds(self._prompt, outcome.documents, bool(question.sources), question.system_prompt)
        await self._tell(GenerationStarted())
        log_event(Event.CHAT_GENERATION_STARTED, documents_count=len(outcome.documents))
        began = self._clock()
        guards = self._choose_readers()
        speaker = _Speaker(question, outcome, self._meter)
        source, plan = self._ask_model(grounds, began), question.plan(guards)
        watch = None if question.trace is None else question.trace.watch
        async with open_guarded_stream(source, guards, plan, watch) as releases:
            async for release in releases:
                await self._hear_check()
                if outcome.is_prompt_blocked:  # known before the timeout above can tell
                    return
                token = speaker.judge(release)
                if token is not None:
                    await self._tell(token)
                if outcome.is_answer_blocked:
                    break
        await self._hear_check()
        if outcome.is_prompt_blocked:
            return
        speaker.finish()
        if not speaker.has_spoken:  # an answer without a word is an answer
            await self._tell(Token("", 0, 0))
        outcome.generation_ms = self.elapsed_ms(began)

    def _choose_readers(self) -> tuple[ActiveGuard, ...]:
        guarding, documents = self._guarding, self.outcome.documents
        readers: tuple[ActiveGuard, ...] = ()
        if guarding.output:
            readers = tell_sources(guarding.output, {one.source for one in documents})
        if guarding.grounding and self._question.chunking is not None:
            texts = [one.text for one in documents] or [tell_lack(has_sources=bool(self._question.sources))]
            self.outcome.grounding = [one.guard.id for one in guarding.grounding]
            basis = Basis(texts, self._question.chunking, guarding.max_open)
            readers += ground(guarding.grounding, basis, holds=guarding.grounding_holds)
        return self._meter.watch(readers, Part.ANSWER) if readers else ()

    async def _ask_model(self, grounds: Grounds, began: float) -> Source:
        question = self._question
        until = min(began + question.limits.generation_s, self.deadline)
        try:
            with blaming_model():
                frames = _speak(question.model(), grounds, question.params)
            async with aclosing(frames):
                while (burst := await next_burst(frames, until)) is not None:
                    self._note_usage(burst)
                    if question.trace is not None:
                        question.trace.receive(burst)
                    yield burst
        except LockgateError as error:
            log_event(
                Event.MODEL_QUERY_FAILED,
                logging.WARNING,
                model=question.model_path[:MAX_LOGGED_CHARS],
                latency_ms=self.elapsed_ms(began),
                status="error",
                reason=name_causes(error),
            )
            if not isinstance(error, UpstreamError):
                raise
            cause = TIMED_OUT if isinstance(error, TimedOut) else error.message
            raise GenerationFailed(cause, question.model_path, self.elapsed_ms(began)) from error
        log_event(Event.MODEL_QUERY_COMPLETED, latency_ms=self.elapsed_ms(began), status="success")

    def _note_usage(self, burst: Frame | list[Frame]) -> None:
        for frame in burst if isinstance(burst, list) else (burst,):
            if frame.fields is not None and frame.fields.get("usage"):
                self.outcome.usage = frame.fields["usage"]

    def _note_released(self, part: Part, text: str) -> None:
        """What went on is counted for the receipt, if anybody gets one."""
        if self._is_guarded:
            self.outcome.receipt.note_released(part, text)


def _speak(model: Model, grounds: Grounds, params: Mapping[str, Any]) -> Source:
    """The model's answer, to the prompt that all models get; or to its own, unless whoever asks has one."""
    answer_by_itself: Callable[[Grounds, Mapping[str, Any]], Source] | None = getattr(model, "answer", None)
    if answer_by_itself is not None and not grounds.system_prompt:
        return answer_by_itself(grounds, params)
    question, documents, has_sources, system_prompt = grounds
    messages = build_prompt(question, documents, has_sources=has_sources, system_prompt=system_prompt)
    return model.generate(messages, params)


class _Speaker:
    """Judges the releases of one answer, notes what is said, and looks for citations in it."""

    def __init__(self, question: Question, outcome: Outcome, meter: Meter) -> None:
        self._outcome = outcome
        self._meter = meter
        self._trace = question.trace
        guarding = question.guarding
        self._measures = guarding.for_output
        self._judge = Judge(guarding.for_output, meter.names) if guarding.is_on else None
        known = {one.source for one in outcome.documents}
        self._scanner = CitationScanner(known) if question.finds_citations or guarding.is_on else None
        self.has_spoken = False

    def judge(self, release: Release) -> Token | None:
        """What the client hears of a release."""
        text, detections = release.text, release.detections
        verdict: Verdict | None = None
        if self._judge is not None:
            if detections:
                self._meter.note_findings(detections, self._measures, Part.ANSWER)
            verdict = self._judge.judge(release.start, text, detections)
            self._outcome.receipt.note_released(Part.ANSWER, text[: verdict.kept])
            self._outcome.is_answer_blocked = verdict.is_blocked
            text, detections = verdict.text, verdict.detections
            self._outcome.found_in_answer += detections
        if self._trace is not None:
            self._trace.leave(release, verdict)
        if not text:
            return None
        if self._scanner is not None:
            self._find_citations(self._scanner, text)
        self.has_spoken = True
        return Token(text, release.start, release.end, detections)

    def finish(self) -> None:
        """The answer is complete."""
        if self._scanner is not None:
            self._outcome.citations += self._scanner.finish()

    def _find_citations(self, scanner: CitationScanner, text: str) -> None:
        """Look for them until there are so many that nobody wants more: an answer may be nothing but marks."""
        citations = self._outcome.citations
        for start in range(0, len(text), _LOOK_CHARS):
            citations += scanner.feed(text[start : start + _LOOK_CHARS])
            if len(citations) >= _MAX_CITATIONS:
                del citations[_MAX_CITATIONS:]
                self._scanner = None
                return
