# SPDX-License-Identifier: Apache-2.0
"""Every setting with its default and help text. `load_settings` fills in the fields that have no help text."""

import dataclasses
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from lockgate.config import kinds
from lockgate.config.agent_settings import (
    AgentSettings,
    ClassifierSettings,
    EmbeddingSettings,
    EvaluationSettings,
    ModelSettings,
    SessionSettings,
    SourceSettings,
    UpstreamSettings,
)
from lockgate.config.caller_settings import CallerSettings as CallerSettings
from lockgate.config.kinds import Secret as Secret
from lockgate.config.kinds import Section, SectionMap, empty_map, make_key, option
from lockgate.config.policy_keys import PolicyKeys
from lockgate.gate.values import WHOLE_TEXT_CHUNKER

if TYPE_CHECKING:
    from lockgate.config.policies import PolicySettings

Compat = Literal["none", "fms"]
ReleaseStrategy = Literal["max_processed_index", "frontier"]
WholeDocument = Literal["hold", "trail"]
Grounding = Literal["hold", "trail"]
DetectorType = Literal["text_contents", "text_generation", "text_chat", "text_context_doc"]

EMBEDDED_DEFAULT = "embedded default"
ANY_HOST = str(IPv4Address(0))  # every address of the machine
PART_GROUPS = {  # where the embedded parts of a section are registered
    "detectors": "lockgate.detectors",
    "chunkers": "lockgate.chunkers",
    "models": "lockgate.models",
    "sources": "lockgate.data_sources",
}
EMBEDDED_CHUNKERS = ("sentence", "paragraph", "word", WHOLE_TEXT_CHUNKER)
EMBEDDED_DETECTORS = ("pii", "secrets", "regex", "keywords", "format", "citations")
DETECTOR_TYPES = get_args(DetectorType)


@dataclasses.dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of connections to a service."""

    cert_path: Path | None = option(kinds.PATH, "client certificate chain (PEM)", None)
    key_path: Path | None = option(kinds.PATH, "private key of the client certificate (PEM)", None)
    client_ca_cert_path: Path | None = option(
        kinds.PATH, "CA bundle; replaces the system's (HTTP) or adds to it (gRPC)", None
    )
    insecure: bool = option(kinds.BOOLEAN, "do not verify the server's certificate", False)


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Where a remote service is and how to call it. `port` is resolved; `api_token` names a variable."""

    hostname: str = option(kinds.TEXT, "host name or IPv4 address; no scheme, port or path")
    port: int = option(kinds.PORT, "port", shown="detectors and openai 8080, chunkers and nlp 8085, tgis 8033")
    path_prefix: str = option(
        kinds.normalised(kinds.TEXT, lambda text: text.strip("/")), "before every path (HTTP)", ""
    )
    request_timeout: int = option(
        kinds.SECONDS, "seconds for a whole answer; a stream must begin, and a model go on, in them", 600
    )
    tls: TlsSettings | None = option(
        Section(TlsSettings, shared="<tls>", can_be_named=True), "name of an entry of `tls`, or such an entry", None
    )
    grpc_dns_probe_interval: int = option(kinds.SECONDS, "seconds between DNS look-ups (gRPC)", 10)
    resolution_strategy: str = option(
        kinds.normalised(kinds.TEXT, lambda text: "eager" if text == "eager" else "lazy"),
        "`eager`: the host must resolve at start (gRPC); anything else is lazy",
        "lazy",
    )
    resolution_strategy_timeout: int = option(kinds.SECONDS, "seconds that an eager look-up may take", 10)
    max_retries: int = option(kinds.COUNT, "retries of a call (provider `nlp`)", 3)
    http2_keep_alive_interval: int = option(kinds.SECONDS, "seconds between HTTP/2 pings", 30)
    keep_alive_timeout: int = option(kinds.SECONDS, "seconds to wait for the answer to a ping", 30)
    api_token: str | None = option(kinds.TEXT, "name of the environment variable that holds the bearer token", None)
    api_token_value: Secret | None = None


SERVICE = Section(ServiceSettings, shared="<service>")


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationSettings:
    """A generation server, called over gRPC."""

    provider: str = option(kinds.choice("tgis", "nlp"), "protocol of the generation server")
    service: ServiceSettings = option(SERVICE, "where it is")


@dataclasses.dataclass(frozen=True, slots=True)
class OpenAISettings:
    """An OpenAI-compatible server."""

    service: ServiceSettings = option(SERVICE, "where it is")
    health_service: ServiceSettings | None = option(SERVICE, "where to send health checks, if elsewhere", None)
    policies: Mapping[str, Any] = option(
        kinds.MAP, "the policy of requests that name none, by model; `*` for all other models", dict, "{}"
    )
    required_policies: Mapping[str, Any] = option(
        kinds.MAP, "the policy that is always in force, by model; `*` for all other models", dict, "{}"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkerSettings:
    """A chunker, which cuts text; exactly one of `service` and `embedded` is set."""

    type: str | None = option(kinds.choice("sentence", "all"), "has no effect", None, "required with `service`")
    service: ServiceSettings | None = option(SERVICE, "a remote chunker", None)
    embedded: str | None = option(
        kinds.EMBEDDED,
        "a chunker inside Lockgate: sentence, paragraph, word, whole_doc_chunker, or `module:attribute`",
        None,
    )
    options: Mapping[str, Any] = option(kinds.MAP, "options of the embedded chunker", dict, "{}")


@dataclasses.dataclass(frozen=True, slots=True)
class DetectorSettings:
    """A detector, which reads text; exactly one of `service` and `embedded` is set."""

    type: DetectorType = option(
        kinds.choice(*DETECTOR_TYPES),
        "what it reads, which decides the endpoints that can use it",
        shown="required; embedded: text_contents (`groundedness`: text_context_doc)",
    )
    chunker_id: str = option(
        kinds.TEXT,
        "id of a chunker, or whole_doc_chunker",
        shown="required; embedded: sentence (`format`: whole_doc_chunker)",
    )
    default_threshold: float = option(
        kinds.NUMBER,
        "lowest score that is reported, unless a request sets `threshold`",
        shown="required; embedded: 0.5 (`prompt_injection`, `toxicity`: 0.8)",
    )
    service: ServiceSettings | None = option(SERVICE, "a remote detector", None)
    health_service: ServiceSettings | None = option(SERVICE, "where to send health checks, if elsewhere", None)
    model_id: str | None = option(kinds.TEXT, "read for router mode, which is not supported", None)
    embedded: str | None = option(
        kinds.EMBEDDED,
        "a detector inside Lockgate: pii, secrets, regex, keywords, format, citations, prompt_injection, toxicity, "
        "language, groundedness, llm_judge, or `module:attribute`",
        None,
    )
    options: Mapping[str, Any] = option(kinds.MAP, "options of the embedded detector", dict, "{}")
    path: str | None = option(
        kinds.normalised(kinds.TEXT, lambda text: "/" + text.lstrip("/")),
        "path on the remote detector",
        None,
        "by type",
    )
    batch_contents: int = option(
        kinds.POSITIVE, "most texts of several streams in one request to a busy remote detector; 1: never share", 32
    )
    batch_wait_ms: float = option(
        kinds.between(0, 1000), "milliseconds that a text may wait for others to share a request with", 5.0, "5"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RouterSettings:
    """Router mode of the orchestrator's files; `enabled: true` is a fault."""

    enabled: bool = option(kinds.BOOLEAN, "router mode is not supported: true stops the start", False)
    hostname: str = option(kinds.TEXT, "not used", "localhost")
    port: int = option(kinds.PORT, "not used", 19080)
    sla_seconds: int = option(kinds.SECONDS, "not used", 60)
    reply_type: str = option(kinds.TEXT, "not used", "redis")


@dataclasses.dataclass(frozen=True, slots=True)
class ModerationSettings:
    """Settings of `/v1/moderations`."""

    policy: str | None = option(kinds.NAME, "id of the policy of moderations that name none", None)


@dataclasses.dataclass(frozen=True, slots=True)
class AggregatorSettings:
    """How questions are answered from documents: `/api/v1/chat` and its stream."""

    retrieval_timeout_s: float = option(
        kinds.DURATION, "seconds that a source may take", 30.0, "30", ("AGGREGATOR_RETRIEVAL_TIMEOUT",)
    )
    generation_timeout_s: float = option(
        kinds.DURATION, "seconds that the model may take", 120.0, "120", ("AGGREGATOR_GENERATION_TIMEOUT",)
    )
    total_timeout_s: float = option(
        kinds.DURATION, "seconds that a whole question may take", 180.0, "180", ("AGGREGATOR_TOTAL_TIMEOUT",)
    )
    default_top_k: int = option(
        kinds.POSITIVE, "documents per source, unless a request sets `top_k`", 5,
        "5, or `max_top_k` if that is less", ("AGGREGATOR_DEFAULT_TOP_K",),
    )  # fmt: skip
    max_top_k: int = option(
        kinds.POSITIVE, "most documents per source that a request may ask for", 20, variables=("AGGREGATOR_MAX_TOP_K",)
    )
    max_data_sources: int = option(
        kinds.POSITIVE, "sources that a request may name", 10, variables=("AGGREGATOR_MAX_DATA_SOURCES",)
    )
    model_streaming: bool = option(
        kinds.BOOLEAN,
        "in streams, pass the model's text on as it arrives",
        False,
        variables=("AGGREGATOR_MODEL_STREAMING_ENABLED",),
    )
    cors_origins: tuple[str, ...] = option(
        kinds.ORIGINS,
        "origins that browsers may call `/api/v1/*`, `/health` and `/ready` from",
        ("*",),
        '["*"]',
        ("AGGREGATOR_CORS_ORIGINS",),
    )
    syfthub_url: str = option(
        kinds.TEXT,
        "accepted for compatibility; never called",
        "http://localhost:8000",
        variables=("AGGREGATOR_SYFTHUB_URL",),
    )
    syfthub_jwks_cache_ttl_s: int = option(
        kinds.SECONDS,
        "accepted for compatibility; never called",
        3600,
        variables=("AGGREGATOR_SYFTHUB_JWKS_CACHE_TTL",),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ServerTlsSettings:
    """TLS of the API port; the health port is always plain."""

    cert_path: Path | None = option(kinds.PATH, "certificate chain (PEM)", None, variables=("TLS_CERT_PATH",))
    key_path: Path | None = option(kinds.PATH, "private key (PEM)", None, variables=("TLS_KEY_PATH",))
    client_ca_cert_path: Path | None = option(
        kinds.PATH, "CA bundle; client certificates become mandatory", None, variables=("TLS_CLIENT_CA_CERT_PATH",)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSettings:
    """Ports, processes and optional pages of the server."""

    host: str = option(kinds.NAME, "address to bind", ANY_HOST, "0.0.0.0; 127.0.0.1 without a config file")
    http_port: int = option(kinds.PORT, "API port", 8033, variables=("HTTP_PORT",))
    health_port: int = option(kinds.PORT, "health port", 8034, variables=("HEALTH_HTTP_PORT",))
    grpc_port: int = option(kinds.PORT, "agent port (gRPC), opened when an agent is configured", 50051)
    docs: bool = option(kinds.BOOLEAN, "serve `/docs`", False)
    playground: bool = option(kinds.BOOLEAN, "serve the playground", False)
    trace: bool = option(kinds.BOOLEAN, "serve the trace endpoint", False)
    cors_origins: tuple[str, ...] = option(kinds.ORIGINS, "origins that browsers may call every path from", (), "[]")
    allowed_hosts: tuple[str, ...] = option(
        kinds.TEXTS, "host names besides loopback for playground and trace", (), "[]"
    )
    samples: Path | None = option(kinds.PATH, "sample questions of the playground, a YAML file", None)
    tls: ServerTlsSettings = option(Section(ServerTlsSettings), "TLS of the API port", ServerTlsSettings)
    workers: int = option(kinds.integer(1, 512), "processes that serve the API port", 1)
    shutdown_timeout_s: float | None = option(
        kinds.DURATION, "seconds that open requests may still take after a stop signal", None, "10 with TLS, else 30"
    )
    pid_file: Path | None = option(
        kinds.PATH,
        "file for the process id, by which `lockgate reload` finds the process",
        None,
        "`lockgate.pid` in the data directory, with agents",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits on sizes, numbers and times of requests."""

    body_bytes: int = option(kinds.POSITIVE, "largest request body", 2097152)
    line_bytes: int = option(kinds.POSITIVE, "longest line of a streamed request", 2097152)
    max_held_chars: int = option(kinds.POSITIVE, "text held back per choice; beyond it the request fails", 1048576)
    max_streams: int = option(kinds.POSITIVE, "requests served at once; beyond it: 503", 1000)
    request_timeout_s: float = option(kinds.DURATION, "seconds that a whole request may take", 600.0, "600")
    agent_request_bytes: int = option(kinds.POSITIVE, "largest request to an agent", 4194304)
    document_bytes: int = option(kinds.POSITIVE, "read of one document with its title; the rest is cut", 1048576)
    source_bytes: int = option(kinds.POSITIVE, "read of all documents of one source; the rest is left out", 8388608)
    question_bytes: int = option(kinds.POSITIVE, "read of the documents of all sources of one question", 33554432)


@dataclasses.dataclass(frozen=True, slots=True)
class LogSettings:
    """The log on standard output. `format` None: chosen at start, by whether standard output is a terminal."""

    format: str | None = option(
        kinds.choice(*kinds.LOG_FORMATS, is_case_kept=False),
        "shape of a log line",
        None,
        "json; console on a terminal",
        ("AGGREGATOR_LOG_FORMAT", "LOG_FORMAT", "LOCKGATE_LOG_FORMAT"),
    )
    level: str = option(
        kinds.LEVEL, "lowest level logged", "INFO", None, ("RUST_LOG", "AGGREGATOR_LOG_LEVEL", "LOCKGATE_LOG_LEVEL")
    )


@dataclasses.dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Export of traces and metrics. Once loaded, both signal endpoints are set."""

    export: tuple[str, ...] = option(
        kinds.words_of("traces", "metrics"), "what to export", (), "[]", variables=("OTLP_EXPORT",)
    )
    service_name: str = option(
        kinds.TEXT, "`service.name`", "fms_guardrails_orchestr8", variables=("OTLP_SERVICE_NAME",)
    )
    endpoint: str = option(
        kinds.TEXT,
        "base endpoint; its path is `/`",
        "http://localhost:4317",
        "grpc http://localhost:4317, http http://localhost:4318",
        ("OTEL_EXPORTER_OTLP_ENDPOINT",),
    )
    traces_endpoint: str = option(
        kinds.TEXT, "endpoint of traces", "http://localhost:4317", "derived", ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",)
    )
    metrics_endpoint: str = option(
        kinds.TEXT, "endpoint of metrics", "http://localhost:4317", "derived", ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",)
    )
    protocol: str = option(kinds.TEXT, "grpc | http", "grpc", variables=("OTEL_EXPORTER_OTLP_PROTOCOL",))
    traces_protocol: str = option(
        kinds.TEXT, "protocol of traces", "grpc", "`otlp.protocol`", ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",)
    )
    metrics_protocol: str = option(
        kinds.TEXT, "protocol of metrics", "grpc", "`otlp.protocol`", ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",)
    )


class Listener(NamedTuple):
    """One socket to open. `is_explicit`: a flag, a variable or the file names its port."""

    name: str
    host: str
    port: int
    is_explicit: bool


class Listeners(NamedTuple):
    """The sockets of the process; `agent` only if an agent is configured, `aggregator` with an AGGREGATOR_ variable."""

    api: Listener
    health: Listener
    agent: Listener | None = None
    aggregator: Listener | None = None


DEFAULT_LISTENERS = Listeners(Listener("api", "127.0.0.1", 8033, False), Listener("health", "127.0.0.1", 8034, False))


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All settings, checked and complete."""

    source: str = EMBEDDED_DEFAULT
    warnings: tuple[str, ...] = ()
    listeners: Listeners = DEFAULT_LISTENERS
    trace_token: Secret | None = None  # made anew at each start
    names_key: Secret = dataclasses.field(default_factory=make_key, compare=False)  # of made-up names in all workers
    watch: bool = option(kinds.BOOLEAN, "reload the settings when the config file changes", False)
    compat: Compat = option(
        kinds.choice("none", "fms"), "fms: answer exactly as the guardrails orchestrator does", "none"
    )
    release_strategy: ReleaseStrategy | None = option(
        kinds.choice("max_processed_index", "frontier"), "where releases of held text end; null: by endpoint", None
    )
    whole_document: WholeDocument | None = option(
        kinds.choice("hold", "trail"), "whether whole-document detectors hold a stream; null: by endpoint", None
    )
    grounding: Grounding = option(
        kinds.choice("hold", "trail"),
        "whether detectors that compare answer and documents hold the stream, or report at its end",
        "hold",
    )
    generation: GenerationSettings | None = option(Section(GenerationSettings), "generation server", None)
    openai: OpenAISettings | None = option(
        Section(OpenAISettings),
        "OpenAI-compatible server; `chat_generation` and `chat_completions` are old names",
        None,
    )
    chunkers: Mapping[str, ChunkerSettings] = option(SectionMap(ChunkerSettings), "chunkers by id", empty_map)
    detectors: Mapping[str, DetectorSettings] = option(SectionMap(DetectorSettings), "detectors by id", empty_map)
    tls: Mapping[str, TlsSettings] = option(SectionMap(TlsSettings, shared="<tls>"), "TLS settings by name", empty_map)
    router: RouterSettings = option(Section(RouterSettings), "router mode", RouterSettings)
    passthrough_headers: tuple[str, ...] = option(
        kinds.normalised(kinds.TEXTS, lambda names: tuple(dict.fromkeys(name.lower() for name in names))),
        "request headers passed on to services",
        (),
        "[]",
    )
    rewrite_forwarded_access_header: bool = option(
        kinds.BOOLEAN, "pass `x-forwarded-access-token` on as `authorization: Bearer`", False
    )
    detector_concurrent_requests: int = option(kinds.POSITIVE, "requests open at once per detector and request", 5)
    chunker_concurrent_requests: int = option(kinds.POSITIVE, "requests open at once per chunker and request", 5)
    aggregator: AggregatorSettings = option(
        Section(AggregatorSettings), "how questions are answered from documents", AggregatorSettings
    )
    models: Mapping[str, ModelSettings] = option(SectionMap(ModelSettings), "models by id", empty_map)
    sources: Mapping[str, SourceSettings] = option(SectionMap(SourceSettings), "data sources by id", empty_map)
    policies: Mapping[str, "PolicySettings"] = option(SectionMap(PolicyKeys), "policies by id", empty_map)
    required_policies: Mapping[str, Any] = option(
        kinds.MAP, "the policy that is always in force on a path and on all paths below it, by path", dict, "{}"
    )
    moderation: ModerationSettings = option(
        Section(ModerationSettings), "how `/v1/moderations` is answered", ModerationSettings
    )
    agents: Mapping[str, AgentSettings] = option(SectionMap(AgentSettings), "agents by name", empty_map)
    sessions: SessionSettings = option(Section(SessionSettings), "where an agent's sessions are kept", SessionSettings)
    embeddings: EmbeddingSettings = option(
        Section(EmbeddingSettings), "the embedding model; if not set, it runs inside Lockgate", EmbeddingSettings
    )
    classifier: ClassifierSettings = option(
        Section(ClassifierSettings),
        "the classifier that chooses an agent's route without a call to a model",
        ClassifierSettings,
    )
    evaluation: EvaluationSettings = option(
        Section(EvaluationSettings), "how an agent's answers are judged", EvaluationSettings
    )
    callers: Mapping[str, CallerSettings] = option(SectionMap(CallerSettings), "callers by name", empty_map)
    upstreams: UpstreamSettings = option(
        Section(UpstreamSettings), "which addresses that requests name may be called", UpstreamSettings
    )
    server: ServerSettings = option(
        Section(ServerSettings), "ports, processes and optional pages of the server", ServerSettings
    )
    limits: LimitSettings = option(
        Section(LimitSettings), "limits on sizes, numbers and times of requests", LimitSettings
    )
    log: LogSettings = option(Section(LogSettings), "the log", LogSettings)
    quiet: bool = option(kinds.BOOLEAN, "no log on standard output", False, variables=("QUIET",))
    start_up_health_check: bool = option(
        kinds.BOOLEAN, "probe every service once at start", False, variables=("START_UP_HEALTH_CHECK",)
    )
    otlp: OtlpSettings = option(Section(OtlpSettings), "export of traces and metrics", OtlpSettings)
    data_dir: Path = option(
        kinds.PATH,
        "directory of weights, index and sessions",
        Path("~/.local/share/lockgate"),
        "$XDG_DATA_HOME/lockgate, else ~/.local/share/lockgate",
    )
