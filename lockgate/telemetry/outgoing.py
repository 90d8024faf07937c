# SPDX-License-Identifier: Apache-2.0
"""Call: one call of a service behind us, as metrics and traces see it. Holds no header and no text."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from lockgate.errors import LockgateError, TimedOut
from lockgate.telemetry.incoming import Asking, IncomingRequest
from lockgate.telemetry.names import GENERATING_KINDS
from lockgate.telemetry.observing import ACTIVE, CURRENT, Observer
from lockgate.telemetry.traces import Headers, Trace, new_trace

_UNKNOWN = 500


class Call:
    """One call while it runs; whoever calls notes the HTTP status it came to as soon as it is known."""

    __slots__ = (
        "_asking", "_observers", "_outer", "_status", "answered_at", "ended_at", "error", "input_tokens",
        "is_abandoned", "kind", "model", "name", "operation", "output_tokens", "request", "span", "span_start_ns",
        "started_at", "stream_ended_at", "trace",
    )  # fmt: skip

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.request: IncomingRequest | None = CURRENT.get()
        self._asking = _who_asks()
        self.trace: Trace = self.request.trace if self.request is not None else new_trace()
        self.span: Any = None  # of whoever records spans
        self.span_start_ns = 0
        self.started_at = self.answered_at = self.stream_ended_at = self.ended_at = 0.0
        self.error = ""  # the type of the exception that ended it
        self.is_abandoned = False
        self.model = self.operation = ""
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self._status = 0
        self._outer: Call | None = None
        self._observers: tuple[Observer, ...] = ()

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
        """Whether it ended without an answer that counts, and not because we lost interest."""
        return bool(self.error) and self._status >= 500

    @property
    def seconds(self) -> float:
        """How long the answer took: until it began, where it was a stream or broke off."""
        is_cut = self.stream_ended_at or self.error
        return ((self.answered_at if is_cut else 0.0) or self.ended_at) - self.started_at

    def settle(self) -> None:
        """All is known of it."""
        for observer in self._observers:
            observer.generation_settled(self)

    def __enter__(self) -> Self:
        self.started_at = perf_counter()
        if self.kind in GENERATING_KINDS and self._asking is not None and not self._asking.ended_at:
            self._become_last(self._asking)
        self._observers = ACTIVE.observers
        for observer in self._observers:
            observer.call_started(self)
        self._outer = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = perf_counter()
        if error is not None:
            self.error = type(error).__name__
            self.is_abandoned = isinstance(error, asyncio.CancelledError | GeneratorExit) and not _is_late()
        if error is None:
            self._status = self._status or 200
        elif self._status < 400 and not self.is_abandoned:
            self._status = _status_of(error)
        self.leave()
        for observer in self._observers:
            observer.call_ended(self)
        if self.kind in GENERATING_KINDS and (self._asking is None or self._asking.generation is not self):
            self.settle()

    def _become_last(self, asking: Asking) -> None:
        asking.settle_generation()
        asking.generation = self
        (self.model, self.operation), asking.next_generation = asking.next_generation, ("", "")

    def leave(self) -> None:
        """What follows is no part of this call."""
        if _current.get() is self:
            _current.set(self._outer)
        self._outer = None


def _is_late() -> bool:
    """Whether the time that whoever called had for it is over: then it was not abandoned but too slow."""
    until = _until.get()
    return until is not None and asyncio.get_running_loop().time() >= until


_until: ContextVar[float | None] = ContextVar("lockgate_until", default=None)
_current: ContextVar[Call | None] = ContextVar("lockgate_call", default=None)
_aside: ContextVar[Asking | None] = ContextVar("lockgate_aside", default=None)


def _who_asks() -> Asking | None:
    """Whose call of a model this is: that of the block that calls aside, else the request's own."""
    return _aside.get() or CURRENT.get()


@contextmanager
def calling_aside(until: float) -> Iterator[None]:
    """Calls of a model in this block are no part of the answer of a request, whose own model may be speaking now.

    Those that are cancelled after that time of the loop's clock were too slow, not abandoned.
    """
    asking = Asking()
    tokens = _aside.set(asking), _until.set(until)
    try:
        yield
    finally:
        _aside.reset(tokens[0])
        _until.reset(tokens[1])
        asking.settle_generation()


def client_call(kind: str, name: str) -> Call:
    """A context that measures a call: `kind` is detector, chunker, generation, openai, source or model.

    `name` is the part's id; sources and models that requests name are called by the kind of their server.
    """
    return Call(kind, name)


def limit_calls(until: float | None) -> None:
    """Calls of this task that are cancelled after that time of the loop's clock were too slow, not abandoned."""
    _until.set(until)


def trace_headers() -> Headers:
    """The headers that carry the trace on to a service. To be asked for inside of `client_call`, once per call.

    A call is current only until then: a stream's call stays open while its reader, in the same task, makes others.
    """
    call = _current.get()
    if call is not None:
        call.leave()
        return call.trace.headers()
    request = CURRENT.get()
    return (request.trace if request is not None else new_trace()).headers()


def note_generation(model: str, operation: str) -> None:
    """The model that the current request is about to call; `operation` is `chat` or `text_completion`."""
    asking = _who_asks()
    if asking is not None:
        asking.next_generation = (model, operation)


def note_usage(input_tokens: int | None, output_tokens: int | None) -> None:
    """What the model that the current request called last says it has read and written; also after that call."""
    asking = _who_asks()
    if asking is not None and asking.generation is not None:
        asking.generation.input_tokens, asking.generation.output_tokens = input_tokens, output_tokens


def note_stream_ended() -> None:
    """The stream of the model that the current request called last came to its end; also after that call."""
    asking = _who_asks()
    if asking is not None and asking.generation is not None:
        asking.generation.stream_ended()


def _status_of(error: BaseException) -> int:
    if isinstance(error, asyncio.CancelledError):
        return TimedOut.status
    return error.status if isinstance(error, LockgateError) else _UNKNOWN
