# SPDX-License-Identifier: Apache-2.0
"""Requests, the calls made for them and the steps of agents, as log, metrics and traces see them.

They hold no header and no text.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self

from lockgate.errors import LockgateError, TimedOut
from lockgate.gate.receipts import Outcome, Receipt
from lockgate.gate.values import Detection
from lockgate.telemetry.log import CURRENT, log_event, logger
from lockgate.telemetry.names import GENERATING_KINDS, OTHER, LogEvent
from lockgate.telemetry.observers import ACTIVE, Observer

Headers = list[tuple[str, str]]
_MAX_PATH_CHARS = 200
_UNKNOWN = 500
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_PRINTABLE = re.compile(r"[ -~]{1,512}")
_SAMPLED = "01"
_NONE = "none"  # the label of a turn that had none


class TraceContext(NamedTuple):
    """A place in a W3C trace: ids in lower-case hex, flags as two digits, and the vendors' state."""

    trace_id: str
    span_id: str
    flags: str = _SAMPLED
    state: str = ""


def new_trace() -> TraceContext:
    """The first place of a new trace."""
    return TraceContext(os.urandom(16).hex(), os.urandom(8).hex())


def read_trace(parent: str, state: str = "") -> TraceContext | None:
    """The place that a caller names, if it names one; of a broken state only the place is kept."""
    found = _PARENT.fullmatch(parent)
    if found is None or (found[1] == "00" and len(parent) > 55):
        return None
    flags = _SAMPLED if int(found[4], 16) & 1 else "00"
    return TraceContext(found[2], found[3], flags, state if _PRINTABLE.fullmatch(state) else "")


@dataclass(slots=True, eq=False, kw_only=True)
class ModelCaller:
    """Calls models one after the other: of the last call more may become known when it is over."""

    ended_at: float = 0.0
    next_generation: tuple[str, str] = ("", "")  # model and operation of the call that is about to be made
    generation: "ServiceCall | None" = None

    def settle_generation(self) -> None:
        """Nothing more will become known of the last call of a model."""
        call, self.generation = self.generation, None
        if call is not None and call.ended_at:  # else it settles itself when it ends
            for observer in call.observers:
                observer.generation_settled(call)


@dataclass(slots=True, eq=False, kw_only=True)
class IncomingRequest(ModelCaller):
    """One request. `route` is its path in the table of routes, or OTHER; times are of the performance counter.

    `span_name` is the name of its endpoint in traces, or nothing.
    """

    method: str
    path: str
    route: str
    span_name: str
    parent: TraceContext | None
    trace: TraceContext
    observers: tuple[Observer, ...]
    spans: tuple[Any, ...] = ()  # the outer and the inner one, where spans are recorded
    started_at: float = field(default_factory=perf_counter)
    answered_at: float = 0.0
    first_frame_at: float = 0.0
    status: int = 0
    code: int = 0
    events: int = 0
    is_stream: bool = False
    has_left: bool = False
    caller: str = ""
    correlation_id: str = ""

    @property
    def answer_s(self) -> float:
        """How long the answer took to begin."""
        return (self.answered_at or self.ended_at) - self.started_at

    @property
    def stream_s(self) -> float:
        """How long the answer was streamed."""
        return self.ended_at - self.answered_at

    @property
    def errors(self) -> int:
        """How many events of a streamed answer are errors."""
        return 1 if self.code and self.is_stream else 0


_model_caller: ContextVar[ModelCaller | None] = ContextVar("lockgate_model_caller", default=None)


def start_request(
    method: str,
    path: str,
    route: str | None,
    header: Callable[[bytes], bytes | None],
    *,
    span_name: str = "",
    is_counted: bool = True,
) -> IncomingRequest:
    """A request came in; what its task and that task's children do from now on belongs to it.

    `route` is None where no route has the path. A request that is not counted is logged all the same.
    """
    parent = None
    if ACTIVE.joins_traces and (place := header(b"traceparent")):
        parent = read_trace(str(place, "latin-1"), str(header(b"tracestate") or b"", "latin-1"))
    ids = os.urandom(24).hex()
    trace = TraceContext(ids[:32], ids[32:]) if parent is None else parent._replace(span_id=ids[32:])
    request = IncomingRequest(
        method=method,
        path=path[:_MAX_PATH_CHARS],
        route=OTHER if route is None else route,
        span_name=span_name,
        parent=parent,
        trace=trace,
        observers=ACTIVE.observers if is_counted else (),
    )
    CURRENT.set(request)
    _model_caller.set(request)
    for observer in request.observers:
        observer.request_started(request)
    return request


def answer_started(status: int, *, is_stream: bool) -> None:
    """The current request has its status."""
    request = CURRENT.get()
    if request is None or request.answered_at:
        return
    request.status, request.is_stream, request.answered_at = status, is_stream, perf_counter()
    for observer in request.observers:
        observer.answer_started(request)


def frame_sent(count: int = 1) -> None:
    """Pieces of the current request's streamed answer left."""
    request = CURRENT.get()
    if request is None:
        return
    is_first = not request.events
    request.events += count
    if is_first:
        request.first_frame_at = perf_counter()
        for observer in request.observers:
            observer.first_frame_sent(request)


def observe_request(request: IncomingRequest, *, code: int = 0, caller: str = "", has_left: bool = False) -> None:
    """The request is over: `code` is the status of the error that it ended with, `has_left` whether its client went."""
    request.ended_at = perf_counter()
    request.code, request.caller, request.has_left = code, caller, has_left
    if logger.isEnabledFor(logging.INFO):
        log_event(LogEvent.CLIENT_LEFT if has_left else LogEvent.REQUEST, logging.INFO, **_list_log_fields(request))
    request.settle_generation()
    for observer in request.observers:
        observer.request_ended(request)


def _list_log_fields(request: IncomingRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {"method": request.method, "path": request.path}
    fields["status"] = None if request.has_left else request.status
    if request.code:
        fields["code"] = request.code
    fields["duration_ms"] = _millis(request.ended_at - request.started_at)
    if request.caller:
        fields["caller"] = request.caller
    if request.is_stream:
        fields["events"], fields["stream_ms"] = request.events, _millis(request.stream_s)
    if request.first_frame_at:
        fields["first_frame_ms"] = _millis(request.first_frame_at - request.started_at)
    return fields


def _millis(seconds: float) -> float:
    return round(seconds * 1000, 2)


# What guards do for a request.


def observe_held(detector: str, seconds: float) -> None:
    """Text waited so long for this detector: from the moment its chunk was known until it was read."""
    for observer in ACTIVE.observers:
        observer.text_held(detector, seconds)


def count_detections(detections: Sequence[Detection]) -> None:
    """These findings leave for the caller."""
    for observer in ACTIVE.observers:
        observer.detections_found(detections)


def observe_policy(receipt: Receipt) -> None:
    """A guarded request is over. It is logged where something was found or not read; it is always counted."""
    mode, outcome = "shadow" if receipt.is_shadow else "enforce", receipt.outcome.name.lower()
    for observer in ACTIVE.observers:
        observer.policy_applied(receipt.policy, mode, outcome)
    reads = receipt.list_reads()
    found = {one.detector_id: one.findings for one in reads if one.findings}
    missed = [one.detector_id for one in reads if not one.is_covered]
    if found or missed or receipt.outcome is not Outcome.RELEASED:
        level = logging.WARNING if missed else logging.INFO
        fields = {"policy": receipt.policy, "mode": mode, "outcome": outcome}
        log_event(LogEvent.POLICY_APPLIED, level, **fields, findings=found, not_covered=missed)


# Calls of services.


_until: ContextVar[float | None] = ContextVar("lockgate_until", default=None)
_current: ContextVar["ServiceCall | None"] = ContextVar("lockgate_call", default=None)


@dataclass(slots=True, eq=False)
class ServiceCall:
    """A context that measures a call of a service behind us. The caller notes the HTTP status once it is known.

    `kind` is detector, chunker, generation, openai, source or model; `name` is the part's id. Sources and models that
    requests name are called by the kind of their server.
    """

    kind: str
    name: str
    request: IncomingRequest | None = field(default_factory=CURRENT.get)
    trace: TraceContext = field(init=False)
    observers: tuple[Observer, ...] = ()
    span: Any = None  # where spans are recorded
    span_start_ns: int = 0
    started_at: float = 0.0
    answered_at: float = 0.0
    stream_ended_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""  # the type of the exception that ended it
    is_abandoned: bool = False
    model: str = ""
    operation: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    _status: int = 0
    _model_caller: ModelCaller | None = field(default_factory=_model_caller.get)
    _outer: "ServiceCall | None" = None

    @property
    def status(self) -> int:
        """The HTTP status of the answer, or the one that stands for it; 0 while there is none."""
        return self._status

    @status.setter
    def status(self, status: int) -> None:
        self._status = status
        self.answered_at = self.answered_at or perf_counter()

    def stream_ended(self) -> None:
        """The answer was a stream, and it came to its end."""
        self.stream_ended_at = perf_counter()

    @property
    def provider(self) -> str:
        """Who generates: a model is called by its kind of server, others are such a kind themselves."""
        return self.name if self.kind == "model" else self.kind

    @property
    def stream_s(self) -> float:
        """How long the answer was streamed."""
        return self.stream_ended_at - (self.answered_at or self.started_at)

    @property
    def has_failed(self) -> bool:
        """Whether it ended without an answer that counts, and was not abandoned."""
        return bool(self.error) and self._status >= 500

    @property
    def seconds(self) -> float:
        """How long the answer took: until it began, where it was a stream or broke off."""
        is_cut = self.stream_ended_at or self.error
        return ((self.answered_at if is_cut else 0.0) or self.ended_at) - self.started_at

    def __enter__(self) -> Self:
        self.started_at = perf_counter()
        self.trace = self.request.trace if self.request is not None else new_trace()
        caller = self._model_caller
        if self.kind in GENERATING_KINDS and caller is not None and not caller.ended_at:
            caller.settle_generation()
            caller.generation = self
            (self.model, self.operation), caller.next_generation = caller.next_generation, ("", "")
        self.observers = ACTIVE.observers
        for observer in self.observers:
            observer.call_started(self)
        self._outer = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = perf_counter()
        if error is None:
            self._status = self._status or 200
        else:
            self._note_error(error)
        if _current.get() is self:
            _current.set(self._outer)
        self._outer = None
        for observer in self.observers:
            observer.call_ended(self)
        caller = self._model_caller
        if self.kind in GENERATING_KINDS and (caller is None or caller.generation is not self):
            for observer in self.observers:
                observer.generation_settled(self)

    def _note_error(self, error: BaseException) -> None:
        self.error = type(error).__name__
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if is_cancelled or isinstance(error, GeneratorExit):
            until = _until.get()  # after that time it was too slow, not abandoned
            self.is_abandoned = until is None or asyncio.get_running_loop().time() < until
        if self._status < 400 and not self.is_abandoned:
            ours = error.status if isinstance(error, LockgateError) else _UNKNOWN
            self._status = TimedOut.status if is_cancelled else ours


client_call = ServiceCall
limit_calls = _until.set  # calls of this task that are cancelled after that time were too slow, not abandoned


@contextmanager
def calling_aside(until: float) -> Iterator[None]:
    """Calls of a model in this block are no part of the answer of a request, whose own model may be speaking now.

    Those that are cancelled after that time of the loop's clock were too slow, not abandoned.
    """
    caller = ModelCaller()
    tokens = _model_caller.set(caller), _until.set(until)
    try:
        yield
    finally:
        _model_caller.reset(tokens[0])
        _until.reset(tokens[1])
        caller.settle_generation()


def trace_headers() -> Headers:
    """The headers that carry the trace on to a service (G-188: the state also when empty).

    To be called inside of `client_call`, once per call. A call is current only until then: a stream's call stays open
    while its reader, in the same task, makes others.
    """
    call = _current.get() or CURRENT.get()
    trace = call.trace if call is not None else new_trace()
    if isinstance(call, ServiceCall):
        _current.set(call._outer)
        call._outer = None
    return [("traceparent", f"00-{trace.trace_id}-{trace.span_id}-{trace.flags}"), ("tracestate", trace.state)]


def note_generation(model: str, operation: str) -> None:
    """The model that the current request is about to call; `operation` is `chat` or `text_completion`."""
    caller = _model_caller.get()
    if caller is not None:
        caller.next_generation = (model, operation)


def note_usage(input_tokens: int | None, output_tokens: int | None) -> None:
    """What the model that the current request called last says it has read and written; also after that call."""
    caller = _model_caller.get()
    if caller is not None and caller.generation is not None:
        caller.generation.input_tokens, caller.generation.output_tokens = input_tokens, output_tokens


def note_stream_ended() -> None:
    """The stream of the model that the current request called last came to its end; also after that call."""
    caller = _model_caller.get()
    if caller is not None and caller.generation is not None:
        caller.generation.stream_ended_at = perf_counter()


# Steps and turns of agents.


@dataclass(slots=True, eq=False)
class AgentStep:
    """A context that measures a step of the current request: a node of the graph, or a phase.

    `error` is the type of the exception that ended it; to be cancelled is none.
    """

    name: str
    request: IncomingRequest | None = field(default_factory=CURRENT.get)
    span: Any = None  # where spans are recorded
    started_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""
    is_abandoned: bool = False
    _outer: "AgentStep | None" = None
    _observers: tuple[Observer, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_at - self.started_at

    def __enter__(self) -> Self:
        self.started_at = perf_counter()
        self._observers = ACTIVE.observers
        for observer in self._observers:
            observer.step_started(self)
        self._outer = CURRENT_STEP.get()
        CURRENT_STEP.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = perf_counter()
        if error is not None:
            self.is_abandoned = isinstance(error, asyncio.CancelledError | GeneratorExit)
            self.error = "" if self.is_abandoned else type(error).__name__
        if CURRENT_STEP.get() is self:  # a generator may be closed by another task than began it
            CURRENT_STEP.set(self._outer)
        self._outer = None
        for observer in self._observers:
            observer.step_ended(self)


CURRENT_STEP: ContextVar[AgentStep | None] = ContextVar("lockgate_agent_step", default=None)
agent_step = AgentStep


class EndedTurn(NamedTuple):
    """A turn that is over, however it ended."""

    label: str
    layer: str
    outcome: str
    first_token_s: float | None
    tokens: int


def observe_turn(*, label: str, layer: str, outcome: str, first_token_s: float | None, tokens: int) -> None:
    """A turn of the current request is over.

    `outcome` is answered, prompt_blocked, answer_blocked, repeated, aborted or failed; `layer` is what decided the
    label. Both are empty, and counted as `none`, where the turn ended before it had one.
    """
    turn = EndedTurn(label or _NONE, layer or _NONE, outcome, first_token_s, tokens)
    for observer in ACTIVE.observers:
        observer.turn_ended(turn)


def count_unreadable_label() -> None:
    """The model was asked for a label and answered none that there is."""
    for observer in ACTIVE.observers:
        observer.label_unreadable()
