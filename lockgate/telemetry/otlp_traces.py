# SPDX-License-Identifier: Apache-2.0
"""Spans for an OpenTelemetry collector. Imported only if traces are exported: the libraries are an extra."""

import logging
from time import time_ns
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from lockgate.telemetry.log import CURRENT, event_of, fields_of
from lockgate.telemetry.names import (
    AGENT_STEP_SPAN,
    GENERATING_KINDS,
    GRPC_CALL_SPAN,
    GRPC_KINDS,
    HTTP_CALL_SPAN,
    REQUEST_SPAN,
    SERVICE,
    GenAi,
)
from lockgate.telemetry.observers import Observer
from lockgate.telemetry.requests import CURRENT_STEP, AgentStep, EndedTurn, IncomingRequest, ServiceCall, TraceContext

_MAX_MODEL_CHARS = 200


class SpanObserver(Observer):
    """One span per request, one for its endpoint, one per step of an agent, one per call."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(SERVICE)

    def request_started(self, request: IncomingRequest) -> None:
        context = Context() if request.parent is None else _context_of(request.parent)
        fields = {"request_method": request.method, "request_path": request.path, "http.route": request.route}
        outer = self._tracer.start_span(REQUEST_SPAN, context, kind=SpanKind.SERVER, attributes=fields)
        name = request.span_name
        inner = outer if not name else self._tracer.start_span(name, set_span_in_context(outer, Context()))
        request.spans = (outer, inner)
        request.trace = _trace_of(inner) or request.trace

    def answer_started(self, request: IncomingRequest) -> None:
        request.spans[0].set_attributes(
            {
                "response_status_code": request.status,
                "request_duration_ms": _millis(request.answer_s),
                "stream_response": request.is_stream,
            }
        )

    def request_ended(self, request: IncomingRequest) -> None:
        outer, inner = request.spans
        if request.is_stream:
            outer.set_attributes(
                {
                    "stream_response_event_count": request.events,
                    "stream_response_error_count": request.errors,
                    "stream_response_duration_ms": _millis(request.stream_s),
                }
            )
        if max(request.status, request.code) >= 500:
            outer.set_status(Status(StatusCode.ERROR))
        if inner is not outer:
            inner.end()
        outer.end()

    def call_started(self, call: ServiceCall) -> None:
        name = GRPC_CALL_SPAN if call.kind in GRPC_KINDS else HTTP_CALL_SPAN
        fields = {"peer.service": call.name, "lockgate.service.kind": call.kind}
        call.span_start_ns = time_ns()
        call.span = self._tracer.start_span(
            name, _find_context(call.request), kind=SpanKind.CLIENT, attributes=fields, start_time=call.span_start_ns
        )
        call.trace = _trace_of(call.span) or call.trace

    def call_ended(self, call: ServiceCall) -> None:
        span: Span = call.span
        if call.status and not call.has_failed:
            span.set_attribute("response_status_code", call.status)
        if call.error:
            span.set_attribute("error.type", call.error)
        if (call.error or call.status >= 400) and not call.is_abandoned:
            span.set_status(Status(StatusCode.ERROR))
        if call.kind not in GENERATING_KINDS:  # those end in `generation_settled`
            span.end()

    def generation_settled(self, call: ServiceCall) -> None:
        call.span.set_attributes(_generation_fields(call))
        seconds = max(call.ended_at, call.stream_ended_at) - call.started_at
        call.span.end(call.span_start_ns + int(seconds * 1e9))

    def step_started(self, step: AgentStep) -> None:
        step.span = self._tracer.start_span(AGENT_STEP_SPAN + step.name, _find_context(step.request))

    def step_ended(self, step: AgentStep) -> None:
        span: Span = step.span
        if step.error:
            span.set_attribute("error.type", step.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def turn_ended(self, turn: EndedTurn) -> None:
        request = CURRENT.get()
        if request is not None and request.spans and request.spans[1].is_recording():
            request.spans[1].set_attributes(_turn_fields(turn))


class SpanEvents(logging.Handler):
    """Adds each log record as an event to the span of the current request (G-191)."""

    def emit(self, record: logging.LogRecord) -> None:
        request = CURRENT.get()
        if request is not None and request.spans and request.spans[1].is_recording():
            fields = {name: _plain(value) for name, value in fields_of(record).items() if value is not None}
            request.spans[1].add_event(event_of(record), {"level": record.levelname.lower(), **fields})


def _generation_fields(call: ServiceCall) -> dict[str, Any]:
    fields = {
        GenAi.PROVIDER: call.provider,
        GenAi.OPERATION: call.operation or None,
        GenAi.REQUEST_MODEL: call.model[:_MAX_MODEL_CHARS] or None,
        GenAi.INPUT_TOKENS: call.input_tokens,
        GenAi.OUTPUT_TOKENS: call.output_tokens,
    }
    return {name.value: value for name, value in fields.items() if value is not None}


def _turn_fields(turn: EndedTurn) -> dict[str, str | int]:
    fields: dict[str, str | int] = {
        "label": turn.label,
        "layer": turn.layer,
        "outcome": turn.outcome,
        "tokens": turn.tokens,
    }
    if turn.first_token_s is not None:
        fields["first_token_ms"] = _millis(turn.first_token_s)
    return {f"lockgate.agent.{name}": value for name, value in fields.items()}


def _find_context(request: IncomingRequest | None) -> Context:
    """The parent of a new span of this request: the agent's step under way, else the endpoint's span."""
    step = CURRENT_STEP.get()
    if step is not None and step.request is request and not step.ended_at and step.span is not None:
        return set_span_in_context(step.span, Context())
    return set_span_in_context(request.spans[1], Context()) if request is not None and request.spans else Context()


def _context_of(trace: TraceContext) -> Context:
    place = SpanContext(
        int(trace.trace_id, 16),
        int(trace.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(trace.flags, 16)),
        trace_state=TraceState.from_header([trace.state]),
    )
    return set_span_in_context(NonRecordingSpan(place), Context())


def _trace_of(span: Span) -> TraceContext | None:
    place = span.get_span_context()
    if not place.is_valid:  # OTEL_SDK_DISABLED may have switched the SDK off
        return None
    ids = f"{place.trace_id:032x}", f"{place.span_id:016x}"
    return TraceContext(*ids, f"{place.trace_flags:02x}", place.trace_state.to_header())


def _plain(value: object) -> str | int | float | bool:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _millis(seconds: float) -> int:
    return round(seconds * 1000)
