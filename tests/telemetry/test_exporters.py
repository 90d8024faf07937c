# SPDX-License-Identifier: Apache-2.0
"""Which exporters are opened, what the standard variables may decide, and how it ends."""

import dataclasses
import sys
import threading
from contextvars import copy_context

import pytest

from lockgate.config.settings import OtlpSettings
from lockgate.errors import ConfigError
from lockgate.telemetry import client_call, exporters, observe_request, open_telemetry, start_request, trace_headers
from lockgate.telemetry.exporters import _build_resource
from lockgate.telemetry.names import DEFAULT_SERVICE_NAME
from tests.waits import HANG_S

NOBODY = "http://127.0.0.1:9"
TRACES = dataclasses.replace(OtlpSettings(), export=("traces",), traces_endpoint=NOBODY)


def test_the_default_name_is_that_of_the_settings() -> None:
    assert OtlpSettings().service_name == DEFAULT_SERVICE_NAME


@pytest.mark.parametrize(
    ("name", "variables", "expected"),
    [
        (DEFAULT_SERVICE_NAME, {}, DEFAULT_SERVICE_NAME),
        (DEFAULT_SERVICE_NAME, {"OTEL_SERVICE_NAME": "mine"}, "mine"),
        (DEFAULT_SERVICE_NAME, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}, "mine"),
        ("chosen", {"OTEL_SERVICE_NAME": "mine"}, "chosen"),
    ],
)
def test_the_standard_variables_may_name_the_service(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str], expected: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert _build_resource(name).attributes["service.name"] == expected


@pytest.mark.parametrize("export", ["traces", "metrics"])
def test_without_the_extra_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, export: str) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "lockgate.telemetry.otlp_"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    settings = dataclasses.replace(OtlpSettings(), export=(export,))
    with pytest.raises(ConfigError, match=r"otlp\.export: .*pip install 'lockgate\[otel\]'"), open_telemetry(settings):
        pass


def test_a_variable_that_opentelemetry_refuses_is_a_fault_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="refuses one of its variables"), open_telemetry(TRACES):
        pass


@pytest.mark.parametrize(("sampler", "flags"), [("", "01"), ("always_off", "00")])
def test_everything_is_sampled_unless_the_standard_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, sampler: str, flags: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setattr(exporters, "_FLUSH_S", 0.05)
    monkeypatch.setattr(exporters, "_GIVE_UP_S", HANG_S)

    def serve() -> str:
        parent = {b"traceparent": f"00-{'1' * 32}-{'2' * 16}-00".encode()}
        request = start_request("POST", "/x", "/x", parent.get)
        with client_call("detector", "pii"):
            headers = dict(trace_headers())
        observe_request(request)
        return headers["traceparent"]

    with open_telemetry(TRACES):
        parent = copy_context().run(serve)
    assert parent.startswith(f"00-{'1' * 32}-")
    assert parent.endswith(f"-{flags}")


def test_a_collector_that_does_not_answer_does_not_keep_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_FLUSH_S", 0.2)
    monkeypatch.setattr(exporters, "_GIVE_UP_S", HANG_S)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    settings = dataclasses.replace(TRACES, export=("traces", "metrics"), metrics_endpoint=NOBODY)
    with open_telemetry(settings):
        copy_context().run(lambda: observe_request(start_request("POST", "/x", "/x", lambda name: None)))
    assert [thread.name for thread in threading.enumerate() if "elemetry" in thread.name or "Otel" in thread.name] == []


def test_a_flush_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_FLUSH_S", 0.05)
    monkeypatch.setattr(exporters, "_GIVE_UP_S", HANG_S)
    is_given_up, has_ended = threading.Event(), threading.Event()

    def flush() -> None:
        is_given_up.wait()
        has_ended.set()

    with exporters._Export() as export:
        export.close_at_end(flush, is_given_up.set)
    assert has_ended.is_set()
