# SPDX-License-Identifier: Apache-2.0
"""Which layer wins, where the file is looked for, and what is resolved at the end."""

import dataclasses
from pathlib import Path

import pytest

from lockgate.config.load import load_settings
from lockgate.config.settings import EMBEDDED_DEFAULT, EMBEDDED_DETECTORS, Settings
from lockgate.errors import ConfigError, ConfigFaults
from tests.config.config_cases import PII, Loader


def test_without_a_file_the_embedded_detectors_are_known(loader: Loader) -> None:  # D-21, D-23
    settings = loader.load(None)
    assert settings.source == EMBEDDED_DEFAULT
    assert tuple(settings.detectors) == EMBEDDED_DETECTORS
    assert {name for name, part in settings.detectors.items() if part.chunker_id == "whole_doc_chunker"} == {"format"}
    assert list(settings.chunkers) == ["sentence", "paragraph", "word", "whole_doc_chunker"]
    assert settings.warnings == ()


def test_the_file_at_the_default_path_is_read(loader: Loader) -> None:
    Path("config").mkdir()
    Path("config/config.yaml").write_text(PII)
    settings = loader.load(None)
    assert settings.source == "config/config.yaml"
    assert list(settings.detectors) == ["pii"]


def test_the_flag_for_the_file_wins_over_the_variable(loader: Loader) -> None:  # G-2
    Path("other.yaml").write_text("detectors: {other: {embedded: pii}}")
    variable = {"ORCHESTRATOR_CONFIG": "other.yaml"}
    assert list(loader.load(None, variable).detectors) == ["other"]
    assert list(loader.load(PII, variable).detectors) == ["pii"]


def test_a_file_that_was_asked_for_must_exist(loader: Loader) -> None:  # D-21, G-22
    with pytest.raises(ConfigFaults, match=r"failed to read config from `nowhere\.yaml`: No such file"):
        loader.load(None, {"ORCHESTRATOR_CONFIG": "nowhere.yaml"})


def test_flag_beats_variable_beats_file_beats_default(loader: Loader) -> None:  # D-23
    text = f"{PII}limits: {{body_bytes: 2, line_bytes: 2, max_held_chars: 2}}"
    variables = {"LOCKGATE_LIMITS__BODY_BYTES": "3", "LOCKGATE_LIMITS__LINE_BYTES": "3"}
    limits = loader.load(text, variables, limits__body_bytes=4).limits
    assert (limits.body_bytes, limits.line_bytes, limits.max_held_chars, limits.max_streams) == (4, 3, 2, 1000)


def test_a_fault_names_the_layer_that_it_came_from(loader: Loader) -> None:
    text = f"{PII}limits: {{body_bytes: 0, line_bytes: 0, max_held_chars: 0}}"
    assert loader.faults(text, {"LOCKGATE_LIMITS__LINE_BYTES": "-1"}, limits__body_bytes="many") == [
        "command line: limits.body_bytes: must be an integer, not a string",
        "LOCKGATE_LIMITS__LINE_BYTES: limits.line_bytes: must be at least 1",
        "config.yaml: limits.max_held_chars: must be at least 1",
    ]


def test_faults_are_one_error_of_ours(loader: Loader) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load("detectors: {}\nlimits: 7")
    assert isinstance(caught.value, ConfigFaults)
    assert [(fault.key, fault.source) for fault in caught.value.faults] == [
        ("limits", str(loader.path)),
        ("detectors", str(loader.path)),
    ]


def test_an_unknown_flag_is_a_fault(loader: Loader) -> None:
    [fault] = loader.faults(PII, server__htp_port=1)
    assert fault.startswith("command line: server.htp_port: no such setting; the nearest is `server.http_port`")


def test_flags_may_be_typed_or_text(loader: Loader) -> None:
    export = "Traces,metrics"
    settings = loader.load(PII, server__http_port="9000", quiet=True, otlp__export=export, data_dir=Path("here"))
    assert settings.server.http_port == 9000
    assert settings.quiet
    assert settings.otlp.export == ("traces", "metrics")
    assert settings.data_dir == Path("here")


def test_a_flag_that_was_not_given_changes_nothing(loader: Loader) -> None:
    assert loader.load(f"{PII}compat: fms", compat=None).compat == "fms"


def test_without_a_file_only_loopback_is_bound(loader: Loader) -> None:  # D-16
    listeners = loader.load(None, {"HTTP_PORT": "9000"}).listeners
    assert listeners.api[1:] == ("127.0.0.1", 9000, True)
    assert listeners.health[1:] == ("127.0.0.1", 8034, False)
    assert listeners.aggregator is None
    assert listeners.agent is None


def test_a_host_that_was_asked_for_is_bound(loader: Loader) -> None:  # D-16
    assert loader.load(None, server__host="0.0.0.0").listeners.api.host == "0.0.0.0"


def test_with_a_file_every_address_is_bound(loader: Loader) -> None:  # D-16
    agent = "models: {m: {embedded: a}}\nagents: {a: {main: m}}"
    listeners = loader.load(f"{PII}server: {{health_port: 8034}}\n{agent}").listeners
    assert listeners.api == ("api", "0.0.0.0", 8033, False)
    assert listeners.health == ("health", "0.0.0.0", 8034, True)
    assert listeners.agent == ("agent", "0.0.0.0", 50051, False)


@pytest.mark.parametrize(
    ("environ", "flag", "expected"),
    [
        ({}, None, "/home/someone/.local/share/lockgate"),
        ({"XDG_DATA_HOME": "/x"}, None, "/x/lockgate"),
        ({"XDG_DATA_HOME": "relative"}, None, "/home/someone/.local/share/lockgate"),
        ({"LOCKGATE_DATA_DIR": "~/y", "XDG_DATA_HOME": "/x"}, None, "/home/someone/y"),
        ({"LOCKGATE_DATA_DIR": "/y"}, "/z", "/z"),
        ({"LOCKGATE_DATA_DIR": "/with: colon # and hash"}, None, "/with: colon # and hash"),
    ],
)
def test_the_data_directory_follows_the_desktop_rules(
    loader: Loader, environ: dict[str, str], flag: str | None, expected: str
) -> None:  # D-26
    assert loader.load(None, environ, data_dir=flag).data_dir == Path(expected)


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"TLS_CERT_PATH": "c"}, "TLS_CERT_PATH: server.tls.cert_path: tls: must provide both cert and key"),
        ({"TLS_KEY_PATH": "k"}, "TLS_KEY_PATH: server.tls.key_path: tls: must provide both cert and key"),
        (
            {"TLS_CLIENT_CA_CERT_PATH": "c"},
            "TLS_CLIENT_CA_CERT_PATH: server.tls.client_ca_cert_path: "
            "tls: cannot provide client ca cert without keypair",
        ),
    ],
)
def test_half_a_key_pair_is_a_fault(loader: Loader, environ: dict[str, str], fault: str) -> None:  # G-4
    assert loader.faults(PII, environ) == [fault]


def test_a_key_pair_is_kept(loader: Loader) -> None:  # G-4
    tls = loader.load(PII, {"TLS_CERT_PATH": "c", "TLS_KEY_PATH": "k"}).server.tls
    assert (tls.cert_path, tls.key_path, tls.client_ca_cert_path) == (Path("c"), Path("k"), None)


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a/b"}, "invalid otlp_endpoint"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "a:4317"}, "invalid otlp_endpoint"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/v1/traces"},
            "invalid otlp_traces_endpoint for grpc protocol",
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "http"},
            "invalid otlp_metrics_endpoint for http protocol: path should be /v1/metrics",
        ),
    ],
)
def test_endpoints_of_telemetry_are_checked(loader: Loader, environ: dict[str, str], fault: str) -> None:  # G-3
    [found] = loader.faults(PII, environ)
    assert found.endswith(f": {fault}")


def test_endpoints_of_telemetry_follow_the_protocol(loader: Loader) -> None:  # G-3
    otlp = loader.load(PII, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http"}).otlp
    assert (otlp.endpoint, otlp.traces_endpoint) == ("http://localhost:4318", "http://localhost:4318/v1/traces")
    mixed = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1/", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http"}
    otlp = loader.load(PII, mixed).otlp
    assert (otlp.traces_endpoint, otlp.metrics_endpoint) == ("http://a:1", "http://a:1/v1/metrics")


def test_an_unknown_telemetry_protocol_falls_back_with_a_warning(loader: Loader) -> None:  # G-2
    settings = loader.load(PII, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    assert settings.otlp.protocol == "grpc"
    assert settings.warnings == ("unknown otlp.protocol `http/protobuf`: using grpc; write grpc or http",)


def test_an_unknown_word_in_the_export_list_is_a_fault(loader: Loader) -> None:  # G-2
    [fault] = loader.faults(PII, {"OTLP_EXPORT": "traces,logs"})
    assert fault == "OTLP_EXPORT: otlp.export: must be one of traces, metrics, not `logs`"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("compat: fmz", "compat: must be one of none, fms, not `fmz`; did you mean `fms`?"),
        ("release_strategy: fast", "release_strategy: must be one of max_processed_index, frontier, not `fast`"),
        ("whole_document: 1", "whole_document: must be one of hold, trail, not an integer"),
        ("limits: {request_timeout_s: 0}", "limits.request_timeout_s: must be more than 0 seconds"),
        ("limits: {max_streams: 1.5}", "limits.max_streams: must be an integer, not a number"),
        ("server: {docs: maybe}", "server.docs: must be true or false, not a string"),
        ("server: {host: ''}", "server.host: must not be empty"),
        ("server: {cors_origins: [[]]}", "server.cors_origins: must be a string, not a list"),
        ("grounding: maybe", "grounding: must be one of hold, trail, not `maybe`"),
        ("log: {level: loud}", "log.level: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("models: [main]", "models: must be a map, not a list"),
        ("models: {main: x}", "models.main: must be a map, not a string"),
        ("models: {main: {openai: url}}", "models.main.openai: must be a map, not a string"),
        ("embeddings: {ollama: here}", "embeddings.ollama: must be a map, not a string"),
        ("sessions: {retention_days: soon}", "sessions.retention_days: must be an integer, not a string"),
        ("upstreams: {allow: {}}", "upstreams.allow: must be a list of strings, not a map"),
    ],
)
def test_types_and_ranges_of_our_own_keys_are_checked(loader: Loader, text: str, fault: str) -> None:  # D-23
    assert loader.faults(PII + text) == [f"config.yaml: {fault}"]


def test_settings_are_frozen(loader: Loader) -> None:
    settings = loader.load(PII)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.compat = "fms"  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.detectors["x"] = settings.detectors["pii"]  # type: ignore[index]


def test_null_stands_for_the_default(loader: Loader) -> None:
    settings = loader.load(f"{PII}compat:\nlimits:\nserver: {{http_port: null}}")
    assert settings.compat == "none"
    assert settings.server.http_port == 8033
    assert not settings.listeners.api.is_explicit


def test_the_file_may_begin_with_a_byte_order_mark(loader: Loader) -> None:
    loader.path.write_bytes(b"\xef\xbb\xbf" + PII.encode())
    assert isinstance(load_settings(config_path=loader.path, flags={}, environ={}), Settings)


def test_a_file_that_is_not_utf_8_is_refused(loader: Loader) -> None:
    loader.path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigFaults, match=r"invalid config file: .*: not UTF-8 at byte 3"):
        load_settings(config_path=loader.path, flags={}, environ={})
