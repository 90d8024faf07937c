# SPDX-License-Identifier: Apache-2.0
"""Types shared by agents: the question, the result of a turn, the gate of an answer, and the call of a model.

A piece is a chunk of the model or, with detectors, what the gate releases. The model is read as fast as they are taken.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from lockgate.agent.routes import Editor
from lockgate.errors import HeldTooMuch, LockgateError, TimedOut, TooManyRequests, TurnFailed, UpstreamError
from lockgate.gate.lanes import LanePlan
from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection, Document, Frame, Message
from lockgate.guard.detectors import ActiveGuard
from lockgate.guard.model_source import Deadline
from lockgate.guard.policy import Chunking
from lockgate.guard.request import Released
from lockgate.guard.stream import Source, list_readers
from lockgate.interfaces import Model, NamedModel, TunableModel
from lockgate.rag.sources import InspectedDocument
from lockgate.sessions.turns import SessionKey
from lockgate.telemetry import LogEvent, log_event, name_causes

T = TypeVar("T")
Fail = Callable[[UpstreamError, bool], LockgateError]  # from a failure, and whether the model has sent text
ANSWERED, PROMPT_BLOCKED, ANSWER_BLOCKED = "answered", "prompt_blocked", "answer_blocked"
BASIC_PARAMS = frozenset({"max_tokens", "temperature"})
MAX_WHOLE_CHARS = 8 * 1024 * 1024  # of an answer that leaves in one piece
_OPEN_IN_STREAMS = 4  # requests per detector
_OVER_LIMIT = "the model refused the request: it gets too many, try again later"


@dataclass(slots=True)
class TurnResult:
    """The result of a turn; complete when its last piece has been taken."""

    label: str = ""
    layer: str = ""
    confidence: float | None = None
    topic: str = ""
    prepare_ms: int = 0
    first_token_ms: int = 0
    tokens: int = 0
    outcome: str = ANSWERED
    is_cut: bool = False  # the model reached its limit of tokens
    is_repeated: bool = False
    usage: Mapping[str, int] | None = None
    documents: tuple[Document, ...] = field(default=())
    found_in_prompt: Sequence[Detection] = ()  # in all texts of the input
    found_in_messages: Sequence[tuple[int, Detection]] = ()  # the same with the index of the client's message
    found_in_answer: list[Detection] = field(default_factory=list)
    inspected: Sequence[InspectedDocument] = ()  # documents in which something was found
    grounding: frozenset[str] = frozenset()  # detectors that compared the answer with its documents
    receipt: Receipt | None = None  # None if the meter is off
    failed_detectors: Mapping[str, bool] = field(default_factory=dict)  # as in Meter
    pseudonyms: Mapping[str, str] = field(default_factory=dict)  # what made-up names stand for

    def take(self, released: Released) -> str:
        """Records the findings of a release; returns its text that leaves."""
        release, verdict = released
        if verdict is None:
            return release.text
        self.found_in_answer += verdict.detections
        if verdict.is_blocked:
            self.outcome = ANSWER_BLOCKED
        return verdict.text

    @property
    def passages(self) -> int:
        """The number of documents given to the model."""
        return len(self.documents)


class AgentQuestion(NamedTuple):
    """A question to an agent. Without a session, the messages before it are the history."""

    question: str
    session: SessionKey | None = None
    sent: tuple[Message, ...] = ()  # by the client; the last one of its user is the question
    label: str = ""
    editor: Editor = Editor()
    account: str = ""
    request_id: str = ""
    params: Mapping[str, Any] = MappingProxyType({})
    is_stream: bool = True
    caller: str = ""


class OpenTurn(NamedTuple):
    """A running turn: its result, complete at the end, and the pieces of its answer."""

    facts: TurnResult
    pieces: AsyncIterator[str]


class AnyAgent(Protocol):
    """The interface of an agent."""

    @property
    def takes(self) -> frozenset[str]:
        """The names of the parameters that a request may have, as in OpenAI's API."""

    def open(self, ask: AgentQuestion) -> AbstractAsyncContextManager[OpenTurn]:
        """Opens a turn. Leaving the context ends it and all its calls; errors are LockgateError.

        Nothing is called before the first piece is awaited; an error before it means that the client got no text.
        """


class Pace(NamedTuple):
    """Time limits of a model in seconds, to its first text and between texts."""

    first_token_s: float = 60.0
    token_gap_s: float = 60.0


PACE = Pace()


class Gate(NamedTuple):
    """The limits of held text, and the chunker for detectors that compare an answer with documents."""

    chunking: Chunking
    max_held_chars: int = 1_048_576
    max_open: int = _OPEN_IN_STREAMS  # for a whole answer

    def plan(self, guards: Sequence[ActiveGuard], *, is_whole: bool) -> LanePlan:
        """The lane plan of an answer that these guards read, streamed or whole."""
        return LanePlan(
            list_readers(guards),
            max_open=self.max_open if is_whole else _OPEN_IN_STREAMS,
            max_held_chars=self.max_held_chars,
            is_whole=is_whole,
        )


class ModelCall(NamedTuple):
    """A call of a model."""

    model: Model
    messages: Sequence[Message]
    params: Mapping[str, Any]
    pace: Pace


def list_params(model: Model) -> frozenset[str]:
    """The names of the parameters that a model takes."""
    return model.takes if isinstance(model, TunableModel) else BASIC_PARAMS


def fail_model(model: Model, error: UpstreamError, has_begun: bool = False) -> LockgateError:
    """Logs a failure; returns an error without the model's words, which may quote the prompt."""
    name = model.known_as if isinstance(model, NamedModel) else ""
    log_event(
        LogEvent.UPSTREAM_FAILED,
        logging.WARNING,
        part="model",
        model=name,
        status=error.status,
        reason=name_causes(error),
    )
    if isinstance(error, TimedOut):
        return TurnFailed("the model did not answer in time", status=TurnFailed.status if has_begun else 504)
    refusal = error.refusal
    if refusal is not None and refusal.status == TooManyRequests.status and not has_begun:
        return TurnFailed(_OVER_LIMIT, status=refusal.status, retry_after_s=refusal.retry_after_s)
    return TurnFailed("the model is not available")


def listen(call: ModelCall, facts: TurnResult) -> Source:
    """Returns the model's frames within its time limits; records the usage in `facts`."""
    generate = partial(call.model.generate, call.messages, {**call.params, "stream": True})
    return keep_pace(generate, call.pace, partial(fail_model, call.model), partial(_note, facts))


async def keep_pace(
    generate: Callable[[], AsyncGenerator[T, None]], pace: Pace, fail: Fail, has_text: Callable[[T], bool]
) -> AsyncGenerator[T, None]:
    """Yields the model's output within its time limits; `fail` makes the error for its failure."""
    clock, has_begun = asyncio.get_running_loop().time, False
    deadline = Deadline(clock() + pace.first_token_s)
    try:
        async with deadline.open(generate) as bursts:
            while (burst := await deadline.wait_for(bursts)) is not None:
                if has_text(burst):
                    deadline.until, has_begun = clock() + pace.token_gap_s, True
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


async def join_pieces(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """The whole answer as one piece."""
    yield await join_whole(pieces)


async def join_whole(pieces: AsyncGenerator[str, None]) -> str:
    """Returns a whole answer; raises HeldTooMuch if it has more than MAX_WHOLE_CHARS."""
    parts, left = [], MAX_WHOLE_CHARS
    async with aclosing(pieces):
        async for piece in pieces:
            parts.append(piece)
            left -= len(piece)
            if left < 0:
                raise HeldTooMuch(f"the answer has more than {MAX_WHOLE_CHARS} characters: ask for a stream")
    return "".join(parts)


def _note(facts: TurnResult, burst: Frame | list[Frame]) -> bool:
    before = facts.tokens
    for frame in burst if isinstance(burst, list) else (burst,):
        if not (isinstance(frame, Frame) and isinstance(frame.text, str)):  # of a plugin
            raise TypeError("a model's answer is no frame of text")
        if frame.text:
            facts.tokens += 1
        if frame.fields is not None:
            facts.usage = frame.fields.get("usage") or facts.usage
            facts.is_cut = bool(frame.fields.get("is_cut")) or facts.is_cut
    return facts.tokens > before
