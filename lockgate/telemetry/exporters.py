# SPDX-License-Identifier: Apache-2.0
"""open_telemetry: chooses, starts, flushes and stops exporters.

OpenTelemetry is imported only if the settings export something. Its standard variables set everything else.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.errors import ConfigError
from lockgate.telemetry.log import SILENT, logger
from lockgate.telemetry.names import DEFAULT_SERVICE_NAME
from lockgate.telemetry.observers import ACTIVE, Observer

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from lockgate.config.settings import OtlpSettings

_FLUSH_S = 5.0  # how long closing waits for a collector
_GIVE_UP_S = 0.5
_EXPORT_EVERY_MS = 3000
_KEY = "otlp.export"
_EXTRA = "traces and metrics are exported by OpenTelemetry, which is not installed: pip install 'lockgate[otel]'"


@contextmanager
def open_telemetry(otlp: "OtlpSettings", *, joins_traces: bool = True) -> Iterator[None]:
    """Record metrics for Prometheus and the configured exports; flush everything at the end.

    It starts threads, so a process that forks opens it in each child. `joins_traces`: whether to continue the trace
    that a caller names.
    """
    from lockgate.telemetry.prometheus import PrometheusObserver

    counting = PrometheusObserver()
    with _Export() as export:
        observers = [*_open_export(otlp, export), counting]
        ACTIVE.observers, ACTIVE.joins_traces, ACTIVE.render = tuple(observers), joins_traces, counting.render
        try:
            yield
        finally:
            ACTIVE.observers, ACTIVE.joins_traces, ACTIVE.render = (), True, None


class _Export(ExitStack):
    """The open exporters. Closing sends unsent data, but does not wait long for a collector that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self.callback(self._close_all)

    def close_at_end(self, flush: Callable[[], object], give_up: Callable[[], object]) -> None:
        """At the end call `flush`, which sends unsent data and closes; if it takes too long, `give_up` ends it."""
        self._open.append((flush, give_up))

    def _close_all(self) -> None:
        threads = [Thread(target=flush, daemon=True, name="telemetry-flush") for flush, _ in self._open]
        for thread in threads:
            thread.start()
        _join(threads, _FLUSH_S)
        for thread, (_, give_up) in zip(threads, self._open, strict=True):
            if thread.is_alive():
                give_up()
        _join(threads, _GIVE_UP_S)


def _join(threads: Sequence[Thread], timeout_s: float) -> None:
    end = monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - monotonic()))


def _open_export(otlp: "OtlpSettings", export: _Export) -> list[Observer]:
    observers: list[Observer] = []
    try:
        if "traces" in otlp.export:
            observers.append(_open_traces(otlp, export))
        if "metrics" in otlp.export:
            observers.append(_open_metrics(otlp, export))
    except ImportError as error:
        raise ConfigError(_EXTRA, source=_KEY) from error
    except ValueError as error:
        raise ConfigError(f"OpenTelemetry refuses one of its variables: {error}", source=_KEY) from error
    return observers


def _open_traces(otlp: "OtlpSettings", export: _Export) -> Observer:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from lockgate.telemetry.otlp_traces import SpanEvents, SpanObserver

    sampler = None if os.environ.get("OTEL_TRACES_SAMPLER") else ALWAYS_ON
    provider = TracerProvider(sampler, _build_resource(otlp.service_name), shutdown_on_exit=False)
    exporter = _build_exporter("trace", otlp.traces_protocol, otlp.traces_endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    export.close_at_end(provider.shutdown, exporter.shutdown)
    lines, root = SpanEvents(), logging.getLogger()
    root.addHandler(lines)
    if logger.level == SILENT:  # the log is off on standard output, but spans still need its records
        logger.setLevel(logging.INFO)
        root.setLevel(logging.INFO)
    export.callback(root.removeHandler, lines)
    return SpanObserver(provider)


def _open_metrics(otlp: "OtlpSettings", export: _Export) -> Observer:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from lockgate.telemetry.otlp_metrics import MetricObserver

    interval = None if os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") else _EXPORT_EVERY_MS
    exporter = _build_exporter("metric", otlp.metrics_protocol, otlp.metrics_endpoint)
    reader = PeriodicExportingMetricReader(exporter, interval)
    provider = MeterProvider([reader], _build_resource(otlp.service_name), shutdown_on_exit=False)
    export.close_at_end(provider.shutdown, exporter.shutdown)
    return MetricObserver(provider)


def _build_exporter(name: str, protocol: str, endpoint: str) -> Any:
    """The OTLP exporter of `trace` or `metric`."""
    package = f"opentelemetry.exporter.otlp.proto.{'http' if protocol == 'http' else 'grpc'}"
    module = import_module(f"{package}.{name}_exporter")
    exporter = module.OTLPSpanExporter if name == "trace" else module.OTLPMetricExporter
    return exporter(endpoint)


def _build_resource(name: str) -> "Resource":
    """This process's OpenTelemetry resource. Standard variables replace the default service name of the settings."""
    from opentelemetry.sdk.resources import Resource

    given = Resource({"service.instance.id": str(uuid4())}).merge(Resource.create())  # each process has its own counts
    is_named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return given if name == DEFAULT_SERVICE_NAME and is_named else given.merge(Resource({"service.name": name}))
