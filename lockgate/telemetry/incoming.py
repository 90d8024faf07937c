# SPDX-License-Identifier: Apache-2.0
"""IncomingRequest: one request while it is answered, as log, metrics and traces see it. Holds no header and no text."""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lockgate.telemetry.log import log_event, logger
from lockgate.telemetry.names import OTHER, Event
from lockgate.telemetry.observing import ACTIVE, CURRENT, Observer
from lockgate.telemetry.traces import Trace, new_trace, read_trace

if TYPE_CHECKING:
    from lockgate.telemetry.outgoing import Call

_MAX_PATH_CHARS = 200


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
