# SPDX-License-Identifier: Apache-2.0
"""IncomingRequest and AgentStep: requests and agents' work for them in log, metrics and traces. They hold no text."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lockgate.gate.receipts import Outcome, Receipt
from lockgate.telemetry.log import log_event, logger
from lockgate.telemetry.names import OTHER, Event
from lockgate.telemetry.observing import ACTIVE, CURRENT, Observer
from lockgate.telemetry.traces import Trace, new_trace, read_trace

if TYPE_CHECKING:
    from lockgate.telemetry.outgoing import Call

_MAX_PATH_CHARS = 200
_NONE = "none"


class Asking:
    """Somebody who calls models one after the other: of the last call more may become known when it is over."""

    __slots__ = ("ended_at", "generation", "next_generation")

    def __init__(self) -> None:
        self.ended_at = 0.0
        self.next_generation = ("", "")  # model and operation of the call that is about to be made
        self.generation: Call | None = None

    def settle_generation(self) -> None:
        """Nothing more will become known of the last call of a model."""
        call, self.generation = self.generation, None
        if call is not None and call.ended_at:  # else it settles itself when it ends
            call.settle()


class IncomingRequest(Asking):
    """One request. `route` is its path in the table of routes, or OTHER; times are of the performance counter.

    `span_name` is the name of its endpoint in traces, or nothing.
    """

    __slots__ = (
        "answered_at", "caller", "code", "correlation_id", "events", "first_frame_at", "has_left", "is_stream",
        "method", "observers", "parent", "path", "route", "span_name", "spans", "started_at", "status", "trace",
    )  # fmt: skip

    def __init__(self, method: str, path: str, route: str, parent: Trace | None, span_name: str = "") -> None:
        super().__init__()
        self.method = method
        self.path = path[:_MAX_PATH_CHARS]
        self.route = route
        self.span_name = span_name
        self.parent = parent
        self.trace = parent.child() if parent is not None else new_trace()
        self.observers: tuple[Observer, ...] = ()
        self.spans: tuple[Any, ...] = ()  # the outer and the inner one, of whoever records spans
        self.started_at = perf_counter()
        self.answered_at = self.first_frame_at = 0.0
        self.status = self.code = self.events = 0
        self.is_stream = self.has_left = False
        self.caller = self.correlation_id = ""

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


def start_request(
    method: str,
    path: str,
    route: str | None,
    header: Callable[[bytes], str],
    *,
    span_name: str = "",
    is_counted: bool = True,
) -> IncomingRequest:
    """A request came in; what its task and that task's children do from now on belongs to it.

    `route` is None where no route has the path: paths that callers make up are no names to count under. `span_name` is
    the endpoint's name in traces, if it has one. A request that is not counted is logged all the same.
    """
    parent = None
    if ACTIVE.joins_traces and (place := header(b"traceparent")):
        parent = read_trace(place, header(b"tracestate"))
    request = IncomingRequest(method, path, OTHER if route is None else route, parent, span_name)
    CURRENT.set(request)
    if is_counted:
        request.observers = ACTIVE.observers
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


def frame_sent() -> None:
    """A piece of the current request's streamed answer left."""
    request = CURRENT.get()
    if request is None:
        return
    request.events += 1
    if request.events == 1:
        request.first_frame_at = perf_counter()
        for observer in request.observers:
            observer.first_frame_sent(request)


def observe_request(request: IncomingRequest, *, code: int = 0, caller: str = "", has_left: bool = False) -> None:
    """The request is over: `code` is the status of the error that it ended with, `has_left` whether its client went."""
    request.ended_at = perf_counter()
    request.code, request.caller, request.has_left = code, caller, has_left
    _log(request)
    request.settle_generation()
    for observer in request.observers:
        observer.request_ended(request)


def _log(request: IncomingRequest) -> None:
    """The one line that every request leaves in the log."""
    if not logger.isEnabledFor(logging.INFO):
        return
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
    log_event(Event.CLIENT_LEFT if request.has_left else Event.REQUEST, logging.INFO, **fields)


def _millis(seconds: float) -> float:
    return round(seconds * 1000, 2)


class AgentStep:
    """One step while it runs. `error` is the type of the exception that ended it; to be cancelled is none."""

    __slots__ = ("_observers", "_outer", "ended_at", "error", "is_abandoned", "name", "request", "span", "started_at")

    def __init__(self, name: str) -> None:
        self.name = name
        self.request: IncomingRequest | None = CURRENT.get()
        self.span: Any = None  # of whoever records spans
        self.started_at = self.ended_at = 0.0
        self.error = ""
        self.is_abandoned = False
        self._outer: AgentStep | None = None
        self._observers: tuple[Observer, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_at - self.started_at

    def __enter__(self) -> Self:
        self.started_at = perf_counter()
        self._observers = ACTIVE.observers
        for observer in self._observers:
            observer.step_started(self)
        self._outer = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = perf_counter()
        if error is not None:
            self.is_abandoned = isinstance(error, asyncio.CancelledError | GeneratorExit)
            self.error = "" if self.is_abandoned else type(error).__name__
        if _current.get() is self:  # a generator may be closed by another task than began it
            _current.set(self._outer)
        self._outer = None
        for observer in self._observers:
            observer.step_ended(self)


class SpokenTurn(NamedTuple):
    """What is told of a turn that is over, however it ended."""

    label: str
    layer: str
    outcome: str
    first_token_s: float | None
    tokens: int


_current: ContextVar[AgentStep | None] = ContextVar("lockgate_agent_step", default=None)


def agent_step(name: str) -> AgentStep:
    """A context that measures a step of the current request: a node of the graph, or a phase."""
    return AgentStep(name)


def find_step(request: IncomingRequest | None) -> AgentStep | None:
    """The innermost step of this request that is under way here."""
    step = _current.get()
    return step if step is not None and step.request is request and not step.ended_at else None


def observe_turn(*, label: str, layer: str, outcome: str, first_token_s: float | None, tokens: int) -> None:
    """A turn of the current request is over.

    `outcome` is answered, prompt_blocked, answer_blocked, repeated, aborted or failed; `layer` is what decided the
    label. Both are empty, and told as `none`, where the turn ended before it had one.
    """
    turn = SpokenTurn(label or _NONE, layer or _NONE, outcome, first_token_s, tokens)
    for observer in ACTIVE.observers:
        observer.turn_ended(turn)


def count_unreadable_label() -> None:
    """The model was asked for a label and answered none that there is."""
    for observer in ACTIVE.observers:
        observer.label_unreadable()


def observe_policy(receipt: Receipt) -> None:
    """A guarded request is over. It is logged where something was found or not read; it is always counted."""
    for observer in ACTIVE.observers:
        observer.policy_applied(receipt)
    reads = receipt.settle()
    found = {one.detector_id: one.findings for one in reads if one.findings}
    is_covered = all(one.is_covered for one in reads)
    if not found and is_covered and receipt.outcome is Outcome.RELEASED:
        return
    log_event(
        Event.POLICY_APPLIED,
        logging.INFO if is_covered else logging.WARNING,
        policy=receipt.policy,
        mode="shadow" if receipt.is_shadow else "enforce",
        outcome=receipt.outcome.name.lower(),
        findings=found,
        not_covered=[one.detector_id for one in reads if not one.is_covered],
    )
