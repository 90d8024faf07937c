# SPDX-License-Identifier: Apache-2.0
"""The answer of a configured model as pieces of text, through the guarded request.

Decides how long a model may be silent, and what its failure is called. Without detectors each chunk of the model is
one piece; with them a piece is what the gate releases. The model is read only as fast as pieces are taken.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from lockgate.errors import HeldTooMuch, LockgateError, TimedOut, TurnFailed, UpstreamError
from lockgate.gate.lanes import LanePlan
from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection, Document, Frame, Message
from lockgate.guard.detectors import ActiveGuard
from lockgate.guard.model_stream import blaming_model, next_burst
from lockgate.guard.policy import Chunking, Meter
from lockgate.guard.request import (
    GuardedRequest,
    InputBlocked,
    InputRead,
    ModelStarted,
    Released,
    fail_check,
    open_guarded,
)
from lockgate.guard.stream import Source
from lockgate.interfaces import Model, NamedModel, TunableModel
from lockgate.rag.sources import Inspected
from lockgate.telemetry import Event, log_event, name_causes

T = TypeVar("T")
Fail = Callable[[UpstreamError, bool], LockgateError]  # of a failure, and whether the model has said something
ANSWERED, PROMPT_BLOCKED, ANSWER_BLOCKED = "answered", "prompt_blocked", "answer_blocked"
BASIC_PARAMS = frozenset({"max_tokens", "temperature"})
MAX_WHOLE_CHARS = 8 * 1024 * 1024  # of an answer that leaves in one piece
_GONE = "the model is not available"
_LATE = "the model did not answer in time"


@dataclass(slots=True)
class Facts:
    """What is known of a turn; complete when its last piece has been heard."""

    label: str = ""
    layer: str = ""
    confidence: float | None = None
    topic: str = ""
    prepare_ms: int = 0
    first_token_ms: int = 0
    tokens: int = 0
    outcome: str = ANSWERED
    is_cut: bool = False  # the model was not allowed to say more
    is_repeated: bool = False
    usage: Mapping[str, int] | None = None
    documents: tuple[Document, ...] = field(default=())
    has_read_input: bool = False
    found_in_prompt: Sequence[Detection] = ()  # in all texts of the input as one
    found_in_messages: Sequence[tuple[int, Detection]] = ()  # the same by the number of the client's message
    found_in_answer: list[Detection] = field(default_factory=list)
    inspected: Sequence[Inspected] = ()  # documents in which something was found
    grounding: frozenset[str] = frozenset()  # detectors that compared the answer with its documents
    receipt: Receipt | None = None  # where detectors read anything
    excused: Mapping[str, bool] = field(default_factory=dict)  # who failed, and whether that would have ended the turn
    pseudonyms: Mapping[str, str] = field(default_factory=dict)  # what made-up names stand for

    def begin(self, meter: Meter) -> None:
        """The account of the request is known from now on, if it has one."""
        if meter.is_on:
            self.receipt, self.excused, self.pseudonyms = meter.receipt, meter.excused, meter.names.values

    def take(self, released: Released) -> str:
        """What leaves of a release; its findings are noted."""
        release, verdict = released
        if verdict is None:
            return release.text
        self.found_in_answer += verdict.detections
        if verdict.is_blocked:
            self.outcome = ANSWER_BLOCKED
        return verdict.text

    @property
    def passages(self) -> int:
        """How many documents the model was given."""
        return len(self.documents)


class Pace(NamedTuple):
    """How long a model may be silent, in seconds."""

    first_token_s: float = 60.0
    token_gap_s: float = 60.0


PACE = Pace()


class Plan(Protocol):
    """Makes the plan of a text that these guards read, as it comes or all at once."""

    def __call__(self, guards: Sequence[ActiveGuard], /, *, is_whole: bool) -> LanePlan: ...


class Gate(NamedTuple):
    """How text is held for detectors: how it goes through, and by what it is cut for those that compare."""

    plan: Plan
    chunking: Chunking


class ModelCall(NamedTuple):
    """What a model is asked."""

    model: Model
    messages: Sequence[Message]
    params: Mapping[str, Any]
    pace: Pace


def list_params(model: Model) -> frozenset[str]:
    """The parameters that a model takes."""
    return model.takes if isinstance(model, TunableModel) else BASIC_PARAMS


async def list_pieces(
    request: GuardedRequest, facts: Facts, answering: AbstractContextManager[object]
) -> AsyncGenerator[str, None]:
    """The pieces of a guarded answer; `facts` learn what was found and how it ended.

    `answering` is entered when the model is asked.
    """
    facts.begin(request.meter)
    facts.grounding = frozenset([one.guard.id for one in request.policy.grounding])
    request = request._replace(is_over=lambda: facts.outcome == ANSWER_BLOCKED)
    try:
        async with open_guarded(request) as events, AsyncExitStack() as stack:
            async for event in events:
                if isinstance(event, Released):
                    piece = facts.take(event)
                    if piece:
                        yield piece
                elif isinstance(event, ModelStarted):
                    stack.enter_context(answering)
                elif isinstance(event, InputRead):
                    facts.found_in_prompt, facts.has_read_input = event.input.found, True
                elif isinstance(event, InputBlocked):
                    facts.found_in_prompt, facts.outcome = event.input.found, PROMPT_BLOCKED
                    yield request.policy.fallback
    except UpstreamError as error:  # the model's own have other names
        raise fail_check(error) from error


def fail_model(model: Model, error: UpstreamError, has_begun: bool = False) -> LockgateError:
    """The error for a model that failed. Its words are for nobody: they may quote the prompt or a header.

    One that falls silent after it has begun is as good as gone: too late is only a first word.
    """
    name = model.known_as if isinstance(model, NamedModel) else ""
    log_event(
        Event.UPSTREAM_FAILED, logging.WARNING, part="model", model=name, status=error.status, reason=name_causes(error)
    )
    if isinstance(error, TimedOut):
        return TurnFailed(_LATE, status=TurnFailed.status if has_begun else 504)
    return TurnFailed(_GONE)


def listen(call: ModelCall, facts: Facts) -> Source:
    """The frames of the model, each within its time; `facts` learn of tokens, usage, and whether it was cut off."""
    generate = partial(call.model.generate, call.messages, {**call.params, "stream": True})
    return keep_pace(generate, call.pace, partial(fail_model, call.model), partial(_note, facts))


async def keep_pace(
    generate: Callable[[], AsyncGenerator[T, None]], pace: Pace, fail: Fail, has_text: Callable[[T], bool]
) -> AsyncGenerator[T, None]:
    """What the model says, each time within its time; `fail` makes the error for its failure."""
    clock, has_begun = asyncio.get_running_loop().time, False
    until = clock() + pace.first_token_s
    try:
        with blaming_model():
            bursts = generate()
        async with aclosing(bursts):
            while (burst := await next_burst(bursts, until)) is not None:
                if has_text(burst):
                    until, has_begun = clock() + pace.token_gap_s, True
                yield burst
    except UpstreamError as error:
        raise fail(error, has_begun) from error


async def collect(source: Source) -> Source:
    """The whole text as one frame."""

    async def list_texts() -> AsyncGenerator[str, None]:
        async with aclosing(source):
            async for burst in source:
                for frame in burst if isinstance(burst, list) else (burst,):
                    yield frame.text

    yield Frame(0, await join_whole(list_texts()), is_last=True)


async def join_whole(pieces: AsyncGenerator[str, None]) -> str:
    """A whole answer, which must have an end; raises HeldTooMuch."""
    parts, left = [], MAX_WHOLE_CHARS
    async with aclosing(pieces):
        async for piece in pieces:
            parts.append(piece)
            left -= len(piece)
            if left < 0:
                raise HeldTooMuch(f"the answer has more than {MAX_WHOLE_CHARS} characters: ask for a stream")
    return "".join(parts)


def _note(facts: Facts, burst: Frame | list[Frame]) -> bool:
    """Count what came; whether there was text in it."""
    before = facts.tokens
    for frame in burst if isinstance(burst, list) else (burst,):
        if frame.text:
            facts.tokens += 1
        if frame.fields is not None:
            facts.usage = frame.fields.get("usage") or facts.usage
            facts.is_cut = bool(frame.fields.get("is_cut")) or facts.is_cut
    return facts.tokens > before
