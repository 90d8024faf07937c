# SPDX-License-Identifier: Apache-2.0
"""Names of log events, spans, metrics and their labels, and the limit on label values. Imports no telemetry library."""

from enum import StrEnum

SERVICE = "lockgate"
DEFAULT_SERVICE_NAME = "fms_guardrails_orchestr8"  # default of the settings; OpenTelemetry's variables may replace it
SHARED_METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's name for the directory processes share
OTHER = "other"  # replaces label values beyond the limit
MAX_NAMES = 100
MAX_NAME_CHARS = 64


class FewNames:
    """Limits a label's values that callers choose: the first MAX_NAMES short names stay, all others become OTHER."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[str] = set()

    def take(self, name: str) -> str:
        """Returns the name if it is within the limits, else OTHER."""
        known = self._known
        if name in known:
            return name
        if len(known) >= MAX_NAMES or len(name) > MAX_NAME_CHARS:
            return OTHER
        known.add(name)
        return name


class LogEvent(StrEnum):
    """The names of the log's events."""

    STARTED = "started"
    STOPPED = "stopped"
    STOPPING = "stopping"
    LISTENING = "listening"
    TRACE_OPEN = "trace_open"
    PORT_LEFT_CLOSED = "port_left_closed"
    UNHEALTHY = "unhealthy"
    WORKER_STARTED = "worker_started"
    WORKER_DIED = "worker_died"
    SETTINGS_RELOADED = "settings_reloaded"
    RELOAD_FAILED = "reload_failed"
    TLS_REFUSED = "tls_refused"
    WARNING = "warning"
    REQUEST = "request"
    CLIENT_LEFT = "client_left"
    UPSTREAM_FAILED = "upstream_failed"
    FAILED = "failed"
    POLICY = "policy"
    POLICY_APPLIED = "policy.applied"
    # Named by the aggregator's contract.
    CHAT_REQUEST_STARTED = "chat.request.started"
    CHAT_REQUEST_COMPLETED = "chat.request.completed"
    CHAT_RETRIEVAL_STARTED = "chat.retrieval.started"
    CHAT_RETRIEVAL_COMPLETED = "chat.retrieval.completed"
    DATA_SOURCE_QUERY_STARTED = "data_source.query.started"
    DATA_SOURCE_QUERY_COMPLETED = "data_source.query.completed"
    DATA_SOURCE_QUERY_FAILED = "data_source.query.failed"
    CHAT_GENERATION_STARTED = "chat.generation.started"
    MODEL_QUERY_COMPLETED = "model.query.completed"
    MODEL_QUERY_FAILED = "model.query.failed"
    # Events of agents.
    RETRIEVAL_DEGRADED = "retrieval.degraded"


# Spans (G-189).
REQUEST_SPAN = "request"
HTTP_CALL_SPAN = "client HTTP request"
AGENT_STEP_SPAN = "agent."  # and the step's name
GRPC_CALL_SPAN = "client gRPC request"
GRPC_KINDS = frozenset({"chunker", "generation"})
GENERATING_KINDS = frozenset({"generation", "openai", "model"})


class Counter(StrEnum):
    """Counters of the OTLP export (G-190); the orchestrator has none for policies and agents."""

    INCOMING = "incoming_request_count"
    HANDLED = "handled_request_count"
    SUCCESS = "success_response_count"
    CLIENT_ERROR = "client_app_error_response_count"
    SERVER_ERROR = "server_error_response_count"
    STREAMS = "service_stream_response_count"
    CALLS_ANSWERED = "client_response_count"
    CALLS_SUCCEEDED = "client_success_response_count"
    CALLS_4XX = "client_4xx_response_count"
    CALLS_5XX = "client_5xx_response_count"
    CALLS_FAILED = "client_request_failure_count"
    CALL_STREAMS = "client_stream_response_count"
    POLICY_REQUESTS = "policy_request_count"
    AGENT_TURNS = "agent_turn_count"
    AGENT_TOKENS = "agent_token_count"
    UNREADABLE_LABELS = "agent_unreadable_label_count"
    RECONNECTS = "client_reconnect_count"


class Duration(StrEnum):
    """Histograms of the OTLP export (G-190), in milliseconds; the orchestrator has none for agents."""

    REQUEST = "service_request_duration"
    STREAM = "service_stream_response_duration"
    CALL = "client_request_duration"
    CALL_STREAM = "client_stream_response_duration"
    AGENT_STEP = "agent_step_duration"
    TTFT = "agent_first_token_duration"  # time to first token


class GenAi(StrEnum):
    """The semantic conventions' names for calls of a model."""

    PROVIDER = "gen_ai.provider.name"
    OPERATION = "gen_ai.operation.name"
    REQUEST_MODEL = "gen_ai.request.model"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    USAGE_TYPE = "gen_ai.token.type"
    DURATION_METRIC = "gen_ai.client.operation.duration"
    USAGE_METRIC = "gen_ai.client.token.usage"
