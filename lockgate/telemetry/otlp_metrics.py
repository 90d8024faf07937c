# SPDX-License-Identifier: Apache-2.0
"""Counters and histograms for an OpenTelemetry collector. Imported only if metrics are exported."""

from opentelemetry.metrics import Counter as Instrument
from opentelemetry.sdk.metrics import MeterProvider

from lockgate.telemetry.names import GENERATING_KINDS, SERVICE, Counter, Duration, FewNames, GenAi
from lockgate.telemetry.observers import Observer
from lockgate.telemetry.requests import AgentStep, EndedTurn, IncomingRequest, ServiceCall

Labels = dict[str, str | int]
_BY_CLASS = {2: Counter.SUCCESS, 4: Counter.CLIENT_ERROR, 5: Counter.SERVER_ERROR}
_OPERATION_S = [0.01 * 2**n for n in range(14)]  # buckets of the semantic conventions, as are those of tokens
_TOKENS = [4**n for n in range(14)]
_CALLS_BY_CLASS = {2: Counter.CALLS_SUCCEEDED, 4: Counter.CALLS_4XX, 5: Counter.CALLS_5XX}


class MetricObserver(Observer):
    """Counts under the orchestrator's metric names (G-190), and model calls under those of the semantic conventions."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SERVICE)
        self._counters: dict[Counter, Instrument] = {name: meter.create_counter(name.value) for name in Counter}
        self._histograms = {name: meter.create_histogram(name.value, "ms") for name in Duration}
        self._operations = meter.create_histogram(
            GenAi.DURATION_METRIC.value, "s", explicit_bucket_boundaries_advisory=_OPERATION_S
        )
        self._tokens = meter.create_histogram(
            GenAi.USAGE_METRIC.value, "{token}", explicit_bucket_boundaries_advisory=_TOKENS
        )
        self._models, self._agent_names = FewNames(), FewNames()

    def request_started(self, request: IncomingRequest) -> None:
        self._count(Counter.INCOMING, {"request_method": request.method, "request_path": request.route})

    def answer_started(self, request: IncomingRequest) -> None:
        labels = _request_labels(request)
        self._count(Counter.HANDLED, labels)
        self._measure(Duration.REQUEST, request.answer_s, labels)
        if request.status // 100 in _BY_CLASS:
            self._count(_BY_CLASS[request.status // 100], labels)

    def request_ended(self, request: IncomingRequest) -> None:
        if request.is_stream:
            labels = _request_labels(request)
            self._count(Counter.STREAMS, labels)
            self._measure(Duration.STREAM, request.stream_s, labels)

    def call_started(self, call: ServiceCall) -> None:
        self._count(Counter.INCOMING, {"service_kind": call.kind, "service_name": call.name})

    def call_ended(self, call: ServiceCall) -> None:
        labels = _call_labels(call)
        if call.has_failed:
            self._count(Counter.CALLS_FAILED, labels)
            self._count(Counter.CALLS_5XX, labels)
        elif call.answered_at or not call.error:
            self._count(Counter.CALLS_ANSWERED, labels)
            self._measure(Duration.CALL, call.seconds, labels)
            if call.status // 100 in _CALLS_BY_CLASS:
                self._count(_CALLS_BY_CLASS[call.status // 100], labels)
        if call.kind not in GENERATING_KINDS:  # those are counted in `generation_settled`
            self._count_stream(call)

    def generation_settled(self, call: ServiceCall) -> None:
        self._count_stream(call)
        if not call.operation or call.error or call.status >= 300:
            return
        model = self._models.take(call.model)
        labels: Labels = {
            GenAi.PROVIDER.value: call.provider,
            GenAi.OPERATION.value: call.operation,
            GenAi.REQUEST_MODEL.value: model,
        }
        self._operations.record(max(call.ended_at, call.stream_ended_at) - call.started_at, labels)
        for kind, tokens in (("input", call.input_tokens), ("output", call.output_tokens)):
            if tokens is not None:
                self._tokens.record(tokens, {**labels, GenAi.USAGE_TYPE.value: kind})

    def request_resent(self, kind: str, name: str) -> None:
        self._count(Counter.RECONNECTS, {"service_kind": kind, "service_name": name})

    def step_ended(self, step: AgentStep) -> None:
        if not step.is_abandoned:
            self._measure(Duration.AGENT_STEP, step.seconds, {"step": self._agent_names.take(step.name)})

    def policy_applied(self, policy: str, mode: str, outcome: str) -> None:
        self._count(Counter.POLICY_REQUESTS, {"policy": policy, "mode": mode, "outcome": outcome})

    def turn_ended(self, turn: EndedTurn) -> None:
        take = self._agent_names.take
        label = take(turn.label)
        self._count(Counter.AGENT_TURNS, {"label": label, "layer": take(turn.layer), "outcome": take(turn.outcome)})
        self._counters[Counter.AGENT_TOKENS].add(turn.tokens, {"label": label})
        if turn.first_token_s is not None:
            self._measure(Duration.TTFT, turn.first_token_s, {"label": label})

    def label_unreadable(self) -> None:
        self._count(Counter.UNREADABLE_LABELS, {})

    def _count_stream(self, call: ServiceCall) -> None:
        if call.stream_ended_at:
            labels = _call_labels(call)
            self._count(Counter.CALL_STREAMS, labels)
            self._measure(Duration.CALL_STREAM, call.stream_s, labels)

    def _count(self, name: Counter, labels: Labels) -> None:
        self._counters[name].add(1, labels)

    def _measure(self, name: Duration, seconds: float, labels: Labels) -> None:
        self._histograms[name].record(seconds * 1000, labels)


def _request_labels(request: IncomingRequest) -> Labels:
    return {
        "request_method": request.method,
        "request_path": request.route,
        "response_status_code": request.status,
    }


def _call_labels(call: ServiceCall) -> Labels:
    return {"service_kind": call.kind, "service_name": call.name, "response_status_code": call.status}
