# SPDX-License-Identifier: Apache-2.0
"""A real OpenTelemetry collector's receiving side on loopback, gRPC and HTTP, in a thread of its own."""

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc.aio
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.waits import HANG_S


class Seen(NamedTuple):
    """One export: the headers that it came with, and what it holds."""

    headers: dict[str, str]
    message: Any


class Collector:
    """What has come in."""

    def __init__(self) -> None:
        self.grpc_port = self.http_port = 0
        self.traces: list[Seen] = []
        self.metrics: list[Seen] = []
        self.calls: list[dict[str, str]] = []  # the headers of every call of the service beside it

    def spans(self) -> list[Span]:
        """All spans, in the order in which they ended."""
        return [
            span
            for seen in self.traces
            for resource in seen.message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def last_metrics(self) -> dict[str, Metric]:
        """The metrics of the last export that had each."""
        return {
            metric.name: metric
            for seen in self.metrics
            for resource in seen.message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def resources(self) -> list[dict[str, Any]]:
        """Who exported, once per export."""
        found = [one.resource for seen in self.traces for one in seen.message.resource_spans]
        found += [one.resource for seen in self.metrics for one in seen.message.resource_metrics]
        return [fields_of(one.attributes) for one in found]


class _Traces(TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the contract's name
        self._collector.traces.append(Seen(dict(context.invocation_metadata()), request))
        return traces.ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the contract's name
        self._collector.metrics.append(Seen(dict(context.invocation_metadata()), request))
        return metrics.ExportMetricsServiceResponse()


def fields_of(attributes: Any) -> dict[str, Any]:
    """Attributes as a plain dict."""
    return {one.key: _plain(one) for one in attributes}


def _plain(field: KeyValue) -> Any:
    value: AnyValue = field.value
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


@contextmanager
def open_collector() -> Iterator[Collector]:
    """A collector that listens, and a service beside it at /call that answers everything with a usage of tokens."""
    collector, ready = Collector(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        server = grpc.aio.server()
        add_TraceServiceServicer_to_server(_Traces(collector), server)  # type: ignore[no-untyped-call]
        add_MetricsServiceServicer_to_server(_Metrics(collector), server)  # type: ignore[no-untyped-call]
        collector.grpc_port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        runner = web.AppRunner(_build_app(collector), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        collector.http_port = runner.addresses[0][1]
        ready.set()
        await stop.wait()
        await runner.cleanup()
        await server.stop(None)

    def work() -> None:
        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(HANG_S)
    try:
        yield collector
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _build_app(collector: Collector) -> web.Application:
    async def call(request: web.Request) -> web.Response:
        collector.calls.append(_headers(request))
        return web.json_response({"usage": {"prompt_tokens": 7, "completion_tokens": 3}})

    app = web.Application()
    app.router.add_post("/v1/traces", _receive(collector.traces, traces.ExportTraceServiceRequest))
    app.router.add_post("/v1/metrics", _receive(collector.metrics, metrics.ExportMetricsServiceRequest))
    app.router.add_post("/call", call)
    return app


def _receive(kept: list[Seen], shape: Any) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip" and body.startswith(b"\x1f\x8b"):
            body = gzip.decompress(body)
        kept.append(Seen(_headers(request), shape.FromString(body)))
        return web.Response(content_type="application/x-protobuf")

    return receive


def _headers(request: web.Request) -> dict[str, str]:
    headers: Mapping[str, str] = request.headers
    return {name.lower(): value for name, value in headers.items()}
