# SPDX-License-Identifier: Apache-2.0
"""The guarded request: the one path of every API ("surface") that returns a model's answer.

    read input -> prepare (retrieve, read documents) -> call the model -> gate -> judge -> review -> record

A surface decodes a request into a GuardedRequest and encodes the resulting events. `prepare` is the surface's own step
between input and model: a plain proxy only names its model there, retrieval and the agent's graph do more. The input
check may run at the same time as this step and, with a speculative policy, as the model (`Lookahead`). Text of the
answer is released only after the input check and after every holding detector has read that text.

The `Meter` records the text read, the findings and the released text of one request. Metrics and the log get them
once, when the context ends, also if the client leaves.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lockgate.errors import MODEL, CheckFailed, GenerationFailed, LockgateError, UpstreamError
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.input_texts import CheckedInput as CheckedInput
from lockgate.gate.input_texts import Input as Input
from lockgate.gate.lanes import LanePlan
from lockgate.gate.receipts import RequestPart
from lockgate.gate.release import Release
from lockgate.gate.values import Detection, Document, Subject
from lockgate.gate.verdicts import Action, Judge, Verdict, hide
from lockgate.guard.detectors import ActiveGuard, review_all
from lockgate.guard.error_words import read_words
from lockgate.guard.hold_limits import read_in_time
from lockgate.guard.input_reader import InputReader
from lockgate.guard.policy import Chunking, Meter, Policy, find_sentence, ground, pass_sources
from lockgate.guard.stream import Source, Watch, open_guarded_stream
from lockgate.task_groups import run_group, run_together
from lockgate.telemetry import LogEvent, log_event, name_causes, observe_policy

T = TypeVar("T")


class Lookahead(IntEnum):
    """The last step that may start before the input check ends."""

    NOTHING = 0
    PREPARE = 1
    MODEL = 2


class Prepared(NamedTuple):
    """The model call, as the source of its frames, and the documents for the answer.

    `lack` is the text used for grounding if there are no documents.
    """

    source: Source
    documents: Sequence[Document] = ()
    lack: str = ""


class InputRead(NamedTuple):
    """The input check ended, and the request continues."""

    input: CheckedInput


class InputBlocked(NamedTuple):
    """The input check ended, and the request is blocked: there is no answer."""

    input: CheckedInput
    tokens: int = 0


class ModelStarted(NamedTuple):
    """The model call starts now."""


class Released(NamedTuple):
    """Text of the answer leaves: the verdict's text, or without a verdict the unchanged release."""

    release: Release
    verdict: Verdict | None = None


class Reviewed(NamedTuple):
    """The findings of reviewers in a choice of the complete answer."""

    choice: int
    found: Sequence[Detection]


GuardEvent = InputRead | InputBlocked | ModelStarted | Released | Reviewed
Prepare = Callable[[CheckedInput], AsyncGenerator[Any, None]]  # yields events of the surface, then a Prepared


class GuardedRequest(NamedTuple):
    """One request of any surface.

    `lanes` returns the lane plan for the guards of the answer. `ahead` is the last step that may run during the input
    check; with a speculative policy it is the model call. `is_over` returns after a release whether the encoder has
    written the end of the answer, `is_cut` before a release whether it has ended the choice of that lane.
    `subjects` returns the parts of the complete answer that reviewers read.
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
    is_content: Callable[[int], bool] | None = None  # whether a lane is compared with documents; None: every lane
    watch: Watch | None = None


@asynccontextmanager
async def open_guarded(request: GuardedRequest) -> AsyncIterator[AsyncGenerator[Any, None]]:
    """Opens the events of a request: the surface's events and GuardEvents. Leaving the context stops all its tasks.

    An UpstreamError that does not come from the model or a source is a detector's; a policy makes it a CheckFailed.
    The text of a failing model is read by the policy's detectors, wherever the model failed.
    """
    run = _GuardedRun(request)
    try:
        async with aclosing(run.events()) as events:
            yield events
    except GenerationFailed as error:
        await read_words(error, request.policy)
        raise
    except UpstreamError as error:
        if error in run.source_errors:
            error.known_as = MODEL
            await read_words(error, request.policy)
            raise
        request.meter.note_failure(error.service)
        if request.policy.name:
            raise to_check_failed(error) from error
        raise
    finally:
        if request.meter.is_on:
            observe_policy(request.meter.receipt)


def to_check_failed(error: UpstreamError) -> CheckFailed:
    """Logs a failure of a detector or chunker; returns an error for the client without the failure's message."""
    log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=error.service, reason=name_causes(error))
    return CheckFailed(error.service, status=error.reply_status)


class Speculation:
    """Runs a check in a task while the caller takes items.

    The check's exception does not interrupt the caller: the next call of a method here raises it.
    """

    def __init__(self, check: Callable[[], Awaitable[bool]]) -> None:
        self._check = check
        self._passed: bool | None = None
        self._error: Exception | None = None
        self._is_known = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Runs the check in a task until the block ends."""
        async with run_group() as group:
            group.create_task(self._run())
            yield

    async def next(self, items: AsyncIterator[T]) -> T | None:
        """Returns the next item; None at the end, or if the check fails first. Raises the check's exception."""
        if self._passed:
            return await anext(items, None)
        if self._is_known.is_set():
            await self.has_passed()
            return None
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(items, None)
        except TimeoutError:
            if self._passed is not False:  # a timeout of another task
                raise
            await self.has_passed()
            return None
        finally:
            self._waiting = None

    async def first(self, items: AsyncIterator[T]) -> T | None:
        """Returns the first item once the check has passed; None if there is none, or if the check fails."""
        item = await self.next(items)
        return item if await self.has_passed() else None

    async def has_passed(self) -> bool:
        """Waits for the check and returns whether it passed; raises the check's exception."""
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
    """Runs one request."""

    def __init__(self, request: GuardedRequest) -> None:
        self._request = request
        self._policy = request.policy
        self._meter = request.meter
        self._input = CheckedInput(request.input.text)
        self._reader = InputReader(request.input, request.policy, request.meter)
        self._judges: dict[int, Judge] = {}
        self._prepared: Prepared | None = None
        self.source_errors: list[LockgateError] = []  # errors of the model, not of a detector

    async def events(self) -> AsyncGenerator[Any, None]:
        """Yields all events in order. A release passes through this generator alone."""
        request, reads = self._request, bool(self._policy.input)
        earliest = Lookahead.MODEL if self._policy.is_early else request.ahead
        ahead = earliest if self._reader.changes_nothing() else Lookahead.NOTHING
        if ahead is Lookahead.NOTHING and reads and not await self._read_input():
            yield await self._refuse()
            return
        reading = Speculation(self._read_input) if ahead else None
        async with nullcontext() if reading is None else reading.open():
            async with aclosing(self._prepare(reading, ahead)) as steps:
                async for step in steps:
                    yield step
            if self._prepared is not None:
                waiting = reading if ahead is Lookahead.MODEL else None
                is_cut, is_over = (request.is_cut, request.is_over) if self._meter.is_on else (None, None)
                guards, fields = self._choose_guards(self._prepared), self._meter.fields
                plan = self._plan_lanes(guards)
                async with open_guarded_stream(
                    self._prepared.source, guards, plan, request.watch, self.source_errors.append
                ) as releases:
                    release = await (anext(releases, None) if waiting is None else waiting.first(releases))
                    if waiting is not None and await waiting.has_passed():
                        yield InputRead(self._input)
                    while release is not None:
                        if fields.waits and fields.unread:
                            await self._read_fields(fields, guards)
                        if is_cut is None or not is_cut(release.choice):
                            yield self._judge(release)
                            if is_over is not None and is_over():
                                return
                        release = await anext(releases, None)
                    await self._read_fields(fields, guards)
            if reading is not None and not await reading.has_passed():
                self._meter.reset_answer()
                yield await self._refuse()
            elif self._prepared is not None and self._policy.reviews:
                async with aclosing(self._review_all()) as reviews:
                    async for reviewed in reviews:
                        yield reviewed

    async def _prepare(self, reading: Speculation | None, ahead: Lookahead) -> AsyncGenerator[Any, None]:
        """Yields the events before the answer and keeps its model call; `reading` is the input check if it runs."""
        if self._meter.is_on:
            self._reader.note_sent(self._input)
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
        self._prepared = prepared
        yield ModelStarted()

    # The input.

    async def _read_input(self) -> bool:
        """Checks the input; returns whether the request may continue."""
        self._input = await self._reader.read(can_mask=self._request.can_mask)
        return not self._input.is_blocked

    async def _refuse(self) -> InputBlocked:
        """Returns the event for a blocked input; for a refused input it has the number of input tokens.

        The model's server counts them, so under a policy that changes text they are not counted.
        """
        self._meter.receipt.note_action(Action.BLOCK)
        count_tokens = self._request.count_tokens
        counts = self._input.is_refused and count_tokens is not None and not self._policy.enforces
        tokens = await count_tokens() if counts and count_tokens is not None else 0
        return InputBlocked(self._input, tokens)

    # The answer.

    def _choose_guards(self, prepared: Prepared) -> tuple[ActiveGuard, ...]:
        policy, chunking = self._policy, self._request.chunking
        guards = tuple(policy.output)
        if policy.takes_sources:
            guards = pass_sources(guards, {one.source for one in prepared.documents})
        texts = [one.text for one in prepared.documents] or [prepared.lack]
        if policy.grounding and chunking is not None and any(texts):
            guards += ground(policy.grounding, texts, chunking, policy.max_open, holds=policy.grounding_holds)
        return self._meter.watch(guards, RequestPart.ANSWER) if guards else ()

    def _plan_lanes(self, guards: Sequence[ActiveGuard]) -> LanePlan:
        """Returns the lane plan; detectors of grounding read only content."""
        plan, is_content = self._request.lanes(guards), self._request.is_content
        if not self._policy.grounding or is_content is None:
            return plan
        comparing = frozenset([one.guard.id for one in self._policy.grounding])
        return plan._replace(only_content=comparing, is_content=is_content)

    async def _read_fields(self, fields: AnswerFields, guards: Sequence[ActiveGuard]) -> None:
        """Lets the detectors of the answer read the fields that they have not read with its text."""
        names = fields.give_again() if fields.unread else []
        readings = [
            partial(one.reading.read, ()) if one.max_hold_s is None else partial(read_in_time, one, (), one.max_hold_s)
            for one in guards
            if one.guard.id in names
        ]
        if readings:
            await run_together(readings, self._policy.max_open)

    def _judge(self, release: Release) -> Released:
        """Applies the policy to a release, with one judge for each text of the answer."""
        policy, meter = self._policy, self._meter
        if release.detections:
            meter.note_findings(release.detections, policy.for_output, RequestPart.ANSWER)
        if not meter.is_on:
            return Released(release)
        judge = self._judges.get(release.choice)
        if judge is None:
            sentences = partial(find_sentence, self._request.chunking)
            judge = self._judges[release.choice] = Judge(policy.for_output, meter.names, sentences)
        verdict = judge.judge(release.start, release.text, release.detections)
        meter.receipt.note_released(RequestPart.ANSWER, release.text[: verdict.kept])
        is_content = self._request.is_content
        if policy.grounding and is_content is not None and not is_content(release.choice):
            for one in policy.grounding:
                meter.receipt.note_exempt(one.guard.id, RequestPart.ANSWER, release.text)
        return Released(release, verdict)

    async def _review_all(self) -> AsyncGenerator[Reviewed, None]:
        """Runs the reviewers on each choice; if text may be hidden, only the policy's own findings are reported."""
        policy = self._policy
        reviews = self._meter.watch_reviews(policy.reviews, RequestPart.ANSWER)
        for choice, subject in self._request.subjects():
            found = await review_all(reviews, subject, policy.max_open)
            self._meter.note_findings(found, policy.for_output, RequestPart.ANSWER)
            if policy.hides:
                found = [hide(one) for one in found if policy.for_output.trusts(one.detector_id)]
            if not policy.is_shadow:
                yield Reviewed(choice, found)
