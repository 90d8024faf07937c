# SPDX-License-Identifier: Apache-2.0
"""Reports requests, their calls and the steps of agents to log, metrics and traces; stores no header and no text."""

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
    """A span of a W3C trace: ids in lower-case hex, flags as two digits, and the vendors' state."""

    trace_id: str
    span_id: str
    flags: str = _SAMPLED
    state: str = ""


def new_trace() -> TraceContext:
    """A new trace with its first span."""
    return TraceContext(os.urandom(16).hex(), os.urandom(8).hex())


def read_trace(parent: str, state: str = "") -> TraceContext | None:
    """The span in a `traceparent` header, or None if the header is invalid; an invalid `tracestate` is dropped."""
    found = _PARENT.fullmatch(parent)
    if found is None or (found[1] == "00" and len(parent) > 55):
        return None
    flags = _SAMPLED if int(found[4], 16) & 1 else "00"
    return TraceContext(found[2], found[3], flags, state if _PRINTABLE.fullmatch(state) else "")


@dataclass(slots=True, eq=False, kw_only=True)
class ModelCaller:
    """Calls models one after the other. Token counts of the last call may become known after the call has ended."""

    ended_at: float = 0.0
    next_generation: tuple[str, str] = ("", "")  # model and operation of the next call
    generation: "ServiceCall | None" = None

    def settle_generation(self) -> None:
        """Report the last call of a model as final: nothing more will become known of it."""
        call, self.generation = self.generation, None
        if call is not None and call.ended_at:  # else it settles itself when it ends
            for observer in call.observers:
                observer.generation_settled(call)


@dataclass(slots=True, eq=False, kw_only=True)
class IncomingRequest(ModelCaller):
    """One request. `route` is its path in the table of routes, or OTHER; times are of the performance counter."""

    method: str
    path: str
    route: str
    span_name: str  # the name of its endpoint in traces, or empty
    parent: TraceContext | None
    trace: TraceContext
    observers: tuple[Observer, ...]
    spans: tuple[Any, ...] = ()  # the request's and the endpoint's, if spans are recorded
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
        """Seconds until the answer began."""
        return (self.answered_at or self.ended_at) - self.started_at

    @property
    def stream_s(self) -> float:
        """Seconds for which the answer was streamed."""
        return self.ended_at - self.answered_at

    @property
    def errors(self) -> int:
        """The number of error events in a streamed answer."""
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
    """Make a new request the current one of this task and of the tasks that it starts.

    `route` is None if no route has the path. `is_counted`: whether observers see the request; it is always logged.
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
    """The current request's answer has its status."""
    request = CURRENT.get()
    if request is None or request.answered_at:
        return
    request.status, request.is_stream, request.answered_at = status, is_stream, perf_counter()
    for observer in request.observers:
        observer.answer_started(request)


def frame_sent(count: int = 1) -> None:
    """The current request has sent `count` more frames of its streamed answer."""
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
    """The request has ended: `code` is the status of its error, 0 without one; `has_left`: the client disconnected."""
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


# Events of guards.


def observe_held(detector: str, seconds: float) -> None:
    """A chunk waited `seconds` for this detector, from the moment it was known until the detector had read it."""
    for observer in ACTIVE.observers:
        observer.text_held(detector, seconds)


def count_detections(detections: Sequence[Detection]) -> None:
    """Count detections that are sent to the caller."""
    for observer in ACTIVE.observers:
        observer.detections_found(detections)


def observe_policy(receipt: Receipt) -> None:
    """Count a guarded request that has ended; log it if a detector found something or did not read everything."""
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
    """A context that measures a call of an upstream service. The caller sets the HTTP status once it is known.

    `kind` is detector, chunker, generation, openai, source or model; `name` is the part's id, or the kind of server for
    sources and models that a request names.
    """

    kind: str
    name: str
    request: IncomingRequest | None = field(default_factory=CURRENT.get)
    trace: TraceContext = field(init=False)
    observers: tuple[Observer, ...] = ()
    span: Any = None  # if spans are recorded
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
        """The HTTP status of the answer, or the one that its error maps to; 0 while there is none."""
        return self._status

    @status.setter
    def status(self, status: int) -> None:
        self._status = status
        self.answered_at = self.answered_at or perf_counter()

    def stream_ended(self) -> None:
        """The answer was a stream and has ended."""
        self.stream_ended_at = perf_counter()

    @property
    def provider(self) -> str:
        """The provider for traces: the name of a model, which is its kind of server, else the call's own kind."""
        return self.name if self.kind == "model" else self.kind

    @property
    def stream_s(self) -> float:
        """Seconds for which the answer was streamed."""
        return self.stream_ended_at - (self.answered_at or self.started_at)

    @property
    def has_failed(self) -> bool:
        """Whether an error with a 5xx status ended the call."""
        return bool(self.error) and self._status >= 500

    @property
    def seconds(self) -> float:
        """Seconds until the call ended, or until the answer began if it was a stream or failed."""
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
            until = _until.get()  # a call cancelled after that time was too slow, not abandoned
            self.is_abandoned = until is None or asyncio.get_running_loop().time() < until
        if self._status < 400 and not self.is_abandoned:
            ours = error.status if isinstance(error, LockgateError) else _UNKNOWN
            self._status = TimedOut.status if is_cancelled else ours


def count_reconnect(kind: str, name: str) -> None:
    """Count a request to a service that is sent again on a new connection."""
    for observer in ACTIVE.observers:
        observer.request_resent(kind, name)


client_call = ServiceCall
limit_calls = _until.set  # calls of this task that are cancelled after that time were too slow, not abandoned


@contextmanager
def calling_aside(until: float) -> Iterator[None]:
    """Model calls in this block do not count as the request's own generation, which may be streaming meanwhile.

    A call that is cancelled after `until` (the loop's clock) counts as too slow, not as abandoned.
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
    """The trace headers for a service (G-188: `tracestate` also when empty).

    Call it inside `client_call`, once per call. It also makes the outer call current again: a streaming call stays open
    while its reader, in the same task, makes other calls.
    """
    call = _current.get() or CURRENT.get()
    trace = call.trace if call is not None else new_trace()
    if isinstance(call, ServiceCall):
        _current.set(call._outer)
        call._outer = None
    return [("traceparent", f"00-{trace.trace_id}-{trace.span_id}-{trace.flags}"), ("tracestate", trace.state)]


def note_generation(model: str, operation: str) -> None:
    """Name the model of the current request's next call; `operation` is `chat` or `text_completion`."""
    caller = _model_caller.get()
    if caller is not None:
        caller.next_generation = (model, operation)


def note_usage(input_tokens: int | None, output_tokens: int | None) -> None:
    """Set the token counts of the current request's last model call, also after the call has ended."""
    caller = _model_caller.get()
    if caller is not None and caller.generation is not None:
        caller.generation.input_tokens, caller.generation.output_tokens = input_tokens, output_tokens


def note_stream_ended() -> None:
    """The stream of the current request's last model call has ended; also after the call itself."""
    caller = _model_caller.get()
    if caller is not None and caller.generation is not None:
        caller.generation.stream_ended_at = perf_counter()


# Steps and turns of agents.


@dataclass(slots=True, eq=False)
class AgentStep:
    """A context that measures a step of the current request: a node of the graph, or a phase."""

    name: str
    request: IncomingRequest | None = field(default_factory=CURRENT.get)
    span: Any = None  # if spans are recorded
    started_at: float = 0.0
    ended_at: float = 0.0
    error: str = ""  # the type of the exception that ended it, empty if it was cancelled
    is_abandoned: bool = False
    _outer: "AgentStep | None" = None
    _observers: tuple[Observer, ...] = ()

    @property
    def seconds(self) -> float:
        """The step's duration."""
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
        if CURRENT_STEP.get() is self:  # a generator may be closed by another task than the one that started it
            CURRENT_STEP.set(self._outer)
        self._outer = None
        for observer in self._observers:
            observer.step_ended(self)


CURRENT_STEP: ContextVar[AgentStep | None] = ContextVar("lockgate_agent_step", default=None)
agent_step = AgentStep


class EndedTurn(NamedTuple):
    """An agent's turn that has ended, with or without an answer."""

    label: str
    layer: str
    outcome: str
    first_token_s: float | None
    tokens: int


def observe_turn(*, label: str, layer: str, outcome: str, first_token_s: float | None, tokens: int) -> None:
    """A turn of the current request has ended.

    `outcome` is answered, prompt_blocked, answer_blocked, repeated, aborted or failed; `layer` is what decided the
    `label`. A turn that ended before it had a label has both empty; they are counted as `none`.
    """
    turn = EndedTurn(label or _NONE, layer or _NONE, outcome, first_token_s, tokens)
    for observer in ACTIVE.observers:
        observer.turn_ended(turn)


def count_unreadable_label() -> None:
    """A model that was asked for a label answered without a known one."""
    for observer in ACTIVE.observers:
        observer.label_unreadable()
