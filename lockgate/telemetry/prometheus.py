# SPDX-License-Identifier: Apache-2.0
"""The metrics that Prometheus fetches. Only `open_telemetry` imports this: the library reads its variable at import.

The number of label values is bounded: `FewNames` limits names that callers choose.
"""

import os
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from lockgate.gate.values import Detection
from lockgate.telemetry.names import SHARED_METRICS_VARIABLE, FewNames
from lockgate.telemetry.observers import Observer
from lockgate.telemetry.requests import AgentStep, EndedTurn, IncomingRequest, ServiceCall

_LEFT = "left"
_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
Child = TypeVar("Child")


class Family(dict[Any, Child], Generic[Child]):
    """Caches the series of one metric by their labels: a dict lookup takes a tenth of the library's time."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: Any) -> Child:
        child: Child = self._metric.labels(*labels) if isinstance(labels, tuple) else self._metric.labels(labels)
        self[labels] = child
        return child


class PrometheusObserver(Observer):
    """Counts for Prometheus."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def count(name: str, help_text: str, *labels: str) -> Family[Counter]:
            return Family(Counter(f"lockgate_{name}", help_text, labels, registry=registry))

        def measure(
            name: str, help_text: str, label: str | tuple[str, ...], buckets: Sequence[float]
        ) -> Family[Histogram]:
            labels = (label,) if isinstance(label, str) else label
            return Family(Histogram(f"lockgate_{name}", help_text, labels, registry=registry, buckets=buckets))

        self._requests = count(
            "requests", "Requests answered; status left: the client went.", "path", "status", "caller"
        )
        self._request_seconds = measure("request_seconds", "Time until the answer began.", "path", _SHORT)
        self._stream_seconds = measure("stream_seconds", "Time from begin to end of streamed answers.", "path", _LONG)
        self._first_frame_seconds = measure("first_frame_seconds", "Time until the first frame left.", "path", _SHORT)
        self._stream_events = count("stream_events", "Frames of streamed answers.", "path")
        self._stream_errors = count("stream_errors", "Streamed answers that ended with an error.", "path")
        self._held_seconds = measure("held_seconds", "Time that text waited for a detector.", "detector", _SHORT)
        self._detections = count("detections", "Findings that left for callers.", "detector", "type")
        self._policies = count("policy_requests", "Guarded requests.", "policy", "mode", "outcome")
        self._backend_seconds = measure("backend_seconds", "Time until a service answered.", ("kind", "name"), _SHORT)
        self._backend_errors = count("backend_errors", "Calls that a service failed.", "kind", "name", "status")
        self._reconnects = count("upstream_reconnects", "Requests sent again on a new connection.", "kind", "name")
        self._reloads = count("reloads", "Reloads of the settings.", "result")
        self._step_seconds = measure("agent_step_seconds", "Time that a step of an agent took.", "step", _STEPS)
        self._agent_turns = count("agent_turns", "Turns of agents.", "label", "layer", "outcome")
        self._first_token_seconds = measure(
            "agent_first_token_seconds", "Time until an agent's first word.", "label", _LONG
        )
        self._agent_tokens = count("agent_tokens", "Pieces of agents' answers.", "label")
        self._unreadable_labels = Counter(
            "lockgate_agent_unreadable_labels", "Answers of models that name no label.", registry=registry
        )
        gauge = Gauge("lockgate_open_requests", "Requests under way.", registry=registry, multiprocess_mode="livesum")
        self._open, self._close = gauge.inc, gauge.dec
        self._types, self._callers, self._agent_names = FewNames(), FewNames(), FewNames()

    def request_started(self, request: IncomingRequest) -> None:
        self._open()

    def first_frame_sent(self, request: IncomingRequest) -> None:
        self._first_frame_seconds[request.route].observe(request.first_frame_at - request.started_at)

    def request_ended(self, request: IncomingRequest) -> None:
        self._close()
        route = request.route
        self._requests[route, _LEFT if request.has_left else request.status, self._callers.take(request.caller)].inc()
        if request.answered_at:
            self._request_seconds[route].observe(request.answered_at - request.started_at)
        if request.is_stream:
            self._stream_seconds[route].observe(request.stream_s)
            self._stream_events[route].inc(request.events)
            self._stream_errors[route].inc(request.errors)

    def call_ended(self, call: ServiceCall) -> None:
        if (call.answered_at or not call.error) and not call.has_failed:
            self._backend_seconds[call.kind, call.name].observe(call.seconds)
        if call.status >= 400 and not call.is_abandoned:
            self._backend_errors[call.kind, call.name, call.status].inc()

    def request_resent(self, kind: str, name: str) -> None:
        self._reconnects[kind, name].inc()

    def settings_reloaded(self, result: str) -> None:
        self._reloads[result].inc()

    def text_held(self, detector: str, seconds: float) -> None:
        self._held_seconds[detector].observe(seconds)

    def detections_found(self, detections: Sequence[Detection]) -> None:
        types = self._types
        for one in detections:
            self._detections[one.detector_id, types.take(one.detection_type)].inc()

    def policy_applied(self, policy: str, mode: str, outcome: str) -> None:
        self._policies[policy, mode, outcome].inc()

    def step_ended(self, step: AgentStep) -> None:
        if not step.is_abandoned:
            self._step_seconds[self._agent_names.take(step.name)].observe(step.seconds)

    def turn_ended(self, turn: EndedTurn) -> None:
        take = self._agent_names.take
        label = take(turn.label)
        self._agent_turns[label, take(turn.layer), take(turn.outcome)].inc()
        self._agent_tokens[label].inc(turn.tokens)
        if turn.first_token_s is not None:
            self._first_token_seconds[label].observe(turn.first_token_s)

    def label_unreadable(self) -> None:
        self._unreadable_labels.inc()

    def render(self) -> bytes:
        """All metrics in the text format, of all processes if they share a directory."""
        if SHARED_METRICS_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return generate_latest(shared)
