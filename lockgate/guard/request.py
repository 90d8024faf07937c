# SPDX-License-Identifier: Apache-2.0
"""The guarded request: the one path of every surface that gives an answer of a model.

    read input -> prepare (retrieve, read documents) -> call the model -> gate -> judge -> review -> account

A surface decodes a request into a GuardedRequest and encodes the events that come back. `prepare` is the surface's own
step between input and model: a plain proxy only names its model there, retrieval and the agent's graph do more.
Reading the input may go on beside that step and, where the policy says so, beside the model (`Ahead`). Text of the
answer is released only when the input has been read and every holding detector has read that text.

One account per request (`Meter`) collects what was read, found and released; metrics and the log get it once, when the
context ends, also where the client leaves.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from lockgate.errors import CheckFailed, LockgateError, TimedOut, Unavailable, UpstreamError
from lockgate.gate.lanes import LanePlan
from lockgate.gate.receipts import RequestPart
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Document, Subject
from lockgate.gate.verdicts import Action, Judge, Mask, Verdict, hide, judge_whole
from lockgate.guard.detectors import ActiveGuard, ActiveReview, review_all
from lockgate.guard.policy import Chunking, Meter, Policy, ground, tell_sources
from lockgate.guard.stream import Slice, Source, Watch, detect_slices, open_guarded_stream
from lockgate.task_groups import run_group
from lockgate.telemetry import LogEvent, log_event, name_causes, observe_policy

T = TypeVar("T")


class Lookahead(IntEnum):
    """How far a request goes on while its input is still being read."""

    NOTHING = 0
    PREPARE = 1
    MODEL = 2


class Input(NamedTuple):
    """The texts of a request as one text, and the slices of it that are read; a gap between two is not read."""

    text: str
    slices: Sequence[Slice]


class CheckedInput(NamedTuple):
    """The input as it may go on, and the findings: `found` as they may be reported, `raw` as they were.

    `is_refused`: a detector that the request itself names has found something, and no policy says what follows.
    """

    text: str
    found: Sequence[Detection] = ()
    raw: Sequence[Detection] = ()
    masks: Sequence[Mask] = ()
    is_blocked: bool = False
    is_refused: bool = False


class Prepared(NamedTuple):
    """What the model is asked, as the source of its frames, and the documents that its answer rests on.

    `lack` stands for documents where there are none.
    """

    source: Source
    documents: Sequence[Document] = ()
    lack: str = ""


class InputRead(NamedTuple):
    """The input has been read and goes on."""

    input: CheckedInput


class InputBlocked(NamedTuple):
    """The input has been read and does not go on: there is no answer."""

    input: CheckedInput
    tokens: int = 0


class ModelStarted(NamedTuple):
    """The model is asked now."""


class Released(NamedTuple):
    """Text of the answer leaves, as it may be seen; without a verdict as it was."""

    release: Release
    verdict: Verdict | None = None


class Reviewed(NamedTuple):
    """What reviewers found in a choice of the complete answer."""

    choice: int
    found: Sequence[Detection]


GuardEvent = InputRead | InputBlocked | ModelStarted | Released | Reviewed
Prepare = Callable[[CheckedInput], AsyncGenerator[Any, None]]  # events of the surface, last a Prepared


class GuardedRequest(NamedTuple):
    """One request of any surface.

    `lanes` plans how an answer goes through that these guards read. `ahead` is how far the surface goes on beside the
    reading of the input; a speculative policy goes on as far as the model. `is_over` says after a release whether the
    encoder has written the end of the answer, `is_cut` before one whether it has ended the choice of that lane.
    `subjects` are what reviewers read when the answer is complete.
    """

    policy: Policy
    meter: Meter
    input: Input
    prepare: Prepare
    lanes: Callable[[Sequence[ActiveGuard]], LanePlan]
    chunking: Chunking | None = None
    ahead: Lookahead = Lookahead.NOTHING
    can_mask: bool = True
    count_tokens: Callable[[], Awaitable[int]] | None = None
    is_over: Callable[[], bool] | None = None
    is_cut: Callable[[int], bool] | None = None
    subjects: Callable[[], Iterable[tuple[int, Subject]]] = tuple
    watch: Watch | None = None


@asynccontextmanager
async def open_guarded(request: GuardedRequest) -> AsyncIterator[AsyncGenerator[Any, None]]:
    """The events of a request: its surface's own, and GuardEvents. Leaving the context stops everything behind it.

    An UpstreamError that is not the model's or a source's is that of a detector: under a policy it is a CheckFailed.
    """
    run = _GuardedRun(request)
    try:
        async with aclosing(run.events()) as events:
            yield events
    except UpstreamError as error:
        if error in run.source_errors:
            raise
        request.meter.note_failure(error.service)
        if request.policy.name:
            raise fail_check(error) from error
        raise
    finally:
        if request.meter.is_on:
            observe_policy(request.meter.receipt)


def fail_check(error: UpstreamError) -> CheckFailed:
    """The error for a detector or chunker that failed. It is logged; its own words are not sent."""
    log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=error.service, reason=name_causes(error))
    kept = next((kind.status for kind in (Unavailable, TimedOut) if isinstance(error, kind)), None)
    return CheckFailed(error.service, status=kept)


class Speculation:
    """A check in a task beside the caller, who takes items meanwhile.

    Nothing is thrown at the caller from outside: the next call here raises what the check raises.
    """

    def __init__(self, check: Callable[[], Awaitable[bool]]) -> None:
        self._check = check
        self._passed: bool | None = None
        self._error: Exception | None = None
        self._is_known = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The check runs until the block ends."""
        async with run_group() as group:
            group.create_task(self._run())
            yield

    async def next(self, items: AsyncIterator[T]) -> T | None:
        """The next item; None at the end, or where the check says no while the item is awaited.

        Raises what the check raises.
        """
        if self._passed:
            return await anext(items, None)
        if self._is_known.is_set():
            await self.has_passed()
            return None
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(items, None)
        except TimeoutError:
            if self._passed is not False:  # then it is another one's
                raise
            await self.has_passed()
            return None
        finally:
            self._waiting = None

    async def has_passed(self) -> bool:
        """Wait for the check; whether it has passed. Raises what the check raises."""
        if self._passed is None:
            await self._is_known.wait()
        if self._error is not None:
            raise self._error
        return bool(self._passed)

    async def _run(self) -> None:
        try:
            self._passed = await self._check()
        except Exception as error:  # noqa: BLE001 - raised again to the caller
            self._passed, self._error = False, error
        self._is_known.set()
        if not self._passed and self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())


class _GuardedRun:
    """One request at work."""

    def __init__(self, request: GuardedRequest) -> None:
        self._request = request
        self._policy = request.policy
        self._meter = request.meter
        self._input = CheckedInput(request.input.text)
        self._judges: dict[int, Judge] = {}
        self.source_errors: list[LockgateError] = []  # the model's, not a detector's

    async def events(self) -> AsyncGenerator[Any, None]:
        """Everything that happens, in order."""
        reads = bool(self._policy.input)
        may_go_on = reads and not self._policy.masks_input
        ahead = Lookahead.MODEL if self._policy.is_early else self._request.ahead if may_go_on else Lookahead.NOTHING
        if ahead is Lookahead.NOTHING and reads and not await self._read_input():
            yield await self._refuse()
            return
        for one in self._request.input.slices if self._meter.is_on else ():
            self._meter.receipt.note_released(RequestPart.PROMPT, one.text)
        reading = Speculation(self._read_input) if ahead else None
        async with nullcontext() if reading is None else reading.open():
            async with aclosing(self._answer(reading, ahead)) as events:
                async for event in events:
                    yield event
            if reading is not None and not await reading.has_passed():
                self._meter.withdraw_answer()
                yield await self._refuse()

    async def _answer(self, reading: Speculation | None, ahead: Lookahead) -> AsyncGenerator[Any, None]:
        """From the input to the last review; ends early where the input turns out to be blocked.

        `reading` of the input goes on beside it, unless it has been read.
        """
        if reading is None:
            yield InputRead(self._input)
        prepared: Prepared | None = None
        async with aclosing(self._request.prepare(self._input)) as steps:
            while (step := await (anext(steps, None) if reading is None else reading.next(steps))) is not None:
                if isinstance(step, Prepared):
                    prepared = step
                else:
                    yield step
        if prepared is None:
            return
        if reading is not None and ahead is Lookahead.PREPARE:
            if not await reading.has_passed():
                return
            yield InputRead(self._input)
            reading = None
        yield ModelStarted()
        async with aclosing(self._release(prepared, reading)) as events:
            async for event in events:
                yield event

    async def _release(self, prepared: Prepared, reading: Speculation | None) -> AsyncGenerator[Any, None]:
        """The releases of the answer and the reviews; the input is read before the first, if `reading` goes on."""
        request, readers = self._request, self._choose_readers(prepared)
        plan = request.lanes(readers)
        async with open_guarded_stream(
            prepared.source, readers, plan, request.watch, self.source_errors.append
        ) as releases:
            while (release := await (anext(releases, None) if reading is None else reading.next(releases))) is not None:
                if reading is not None:
                    if not await reading.has_passed():
                        return
                    yield InputRead(self._input)
                    reading = None
                if request.is_cut is not None and request.is_cut(release.choice):
                    continue
                yield self._judge(release)
                if request.is_over is not None and request.is_over():
                    return
        if reading is not None:
            if not await reading.has_passed():
                return
            yield InputRead(self._input)
        if self._policy.reviews:
            reviews = self._meter.watch_reviews(self._policy.reviews, RequestPart.ANSWER)
            for choice, subject in request.subjects():
                reviewed = await self._review(reviews, choice, subject)
                if not self._policy.is_shadow:
                    yield reviewed

    # The input.

    async def _read_input(self) -> bool:
        """Whether the input may go on."""
        policy, request = self._policy, self._request
        found = await detect_slices(
            request.input.slices,
            self._meter.watch(policy.input, RequestPart.PROMPT),
            policy.max_open,
            max_cuts=policy.max_cuts,
            trusts_chunks=policy.trusts_chunks,
        )
        self._meter.note_findings(found, policy.for_input, RequestPart.PROMPT)
        text = request.input.text
        if not found or policy.for_input.is_shadow:
            self._input = CheckedInput(text, raw=found)
            return True
        verdict = judge_whole(text, found, policy.for_input, self._meter.names)
        is_refused = any(one.detector_id in policy.refusing for one in found)
        if verdict.is_blocked or (verdict.masks and not request.can_mask):
            self._input = CheckedInput(text, verdict.detections, found, is_blocked=True)
        elif is_refused:
            self._input = CheckedInput(text, verdict.detections, found, is_blocked=True, is_refused=True)
        else:
            self._input = CheckedInput(verdict.text, verdict.detections, found, verdict.masks)
        return not self._input.is_blocked

    async def _refuse(self) -> InputBlocked:
        """There is no answer. Where no policy says what follows, the tokens of the input are counted."""
        self._meter.receipt.note_action(Action.BLOCK)
        count_tokens = self._request.count_tokens
        tokens = await count_tokens() if self._input.is_refused and count_tokens is not None else 0
        return InputBlocked(self._input, tokens)

    # The answer.

    def _choose_readers(self, prepared: Prepared) -> tuple[ActiveGuard, ...]:
        policy, chunking = self._policy, self._request.chunking
        readers = tuple(policy.output)
        if policy.takes_sources:
            readers = tell_sources(readers, {one.source for one in prepared.documents})
        texts = [one.text for one in prepared.documents] or [prepared.lack]
        if policy.grounding and chunking is not None and any(texts):
            readers += ground(policy.grounding, texts, chunking, policy.max_open, holds=policy.grounding_holds)
        return self._meter.watch(readers, RequestPart.ANSWER) if readers else ()

    def _judge(self, release: Release) -> Released:
        """The release as it may leave. There is one judge for each text of the answer."""
        policy, meter = self._policy, self._meter
        if release.detections:
            meter.note_findings(release.detections, policy.for_output, RequestPart.ANSWER)
        if not meter.is_on:
            return Released(release)
        judge = self._judges.get(release.choice)
        if judge is None:
            judge = self._judges[release.choice] = Judge(policy.for_output, meter.names)
        verdict = judge.judge(release.start, release.text, release.detections)
        meter.receipt.note_released(RequestPart.ANSWER, release.text[: verdict.kept])
        return Released(release, verdict)

    async def _review(self, reviews: Sequence[ActiveReview], choice: int, subject: Subject) -> Reviewed:
        """What was found in a choice; of text that the client does not see, by the policy's own detectors alone."""
        policy = self._policy
        found = await review_all(reviews, subject, policy.max_open)
        self._meter.note_findings(found, policy.for_output, RequestPart.ANSWER)
        if policy.hides:
            found = [hide(one) for one in found if policy.for_output.trusts(one.detector_id)]
        return Reviewed(choice, found)
