# SPDX-License-Identifier: Apache-2.0
"""What a real server exports to a real collector, and which trace it tells the services behind it (G-187 … G-191)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lockgate.telemetry.names import Counter, Duration
from tests.server.http_client import CONTENT, JSON_TYPE, NDJSON_TYPE, STREAM, build_line, call
from tests.server.processes import ServerProcess, running
from tests.telemetry.collector import Collector, fields_of, open_collector

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
JOINED = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "vendor=value"}
CONFIG = """
detectors:
  calling:
    embedded: "tests.telemetry.calling_parts:open_calling_detector"
    chunker_id: sentence
    options: {{url: "{url}"}}
  pii: {{embedded: pii, chunker_id: sentence}}
server: {{host: 127.0.0.1}}
"""
# Of a server that is only asked, under no policy, and never fails to be answered.
UNSEEN = {Counter.SERVER_ERROR, Counter.CALLS_4XX, Counter.CALLS_5XX, Counter.CALLS_FAILED, Counter.CALL_STREAMS}
UNSEEN |= {Counter.AGENT_TURNS, Counter.AGENT_TOKENS, Counter.UNREADABLE_LABELS, Counter.POLICY_REQUESTS}
UNSEEN |= {Counter.RECONNECTS}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with open_collector() as opened:
        yield opened


def write_config(collector: Collector, directory: Path) -> list[str]:
    path = directory / "config.yaml"
    path.write_text(CONFIG.format(url=f"http://127.0.0.1:{collector.http_port}/call"))
    return ["--config-path", str(path)]


async def ask(server: ServerProcess, detector: str, **headers: str) -> int:
    body = json.dumps({"content": "One text.", "detectors": {detector: {}}}).encode()
    return (await call(server.api_port, CONTENT, body, headers={**JSON_TYPE, **headers})).status


async def ask_stream(server: ServerProcess) -> int:
    body = build_line(content="One. Two. ", detectors={"pii": {}}) + build_line(content="Three.")
    return len((await call(server.api_port, STREAM, body, headers=NDJSON_TYPE)).lines())


@pytest.fixture(scope="module", params=["grpc", "http"])
def export(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, ServerProcess, str]]:
    """A collector of its own, a server that exports to it, and the protocol."""
    protocol: str = request.param
    directory = tmp_path_factory.mktemp(protocol)
    with open_collector() as opened:
        port = opened.grpc_port if protocol == "grpc" else opened.http_port
        variables = {
            "OTLP_EXPORT": "traces,metrics",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=tests",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=lab",
        }
        with running(directory, write_config(opened, directory), **variables) as server:
            yield opened, server, protocol


async def test_a_collector_gets_every_span_and_every_metric(export: tuple[Collector, ServerProcess, str]) -> None:
    collector, server, _ = export
    assert await ask(server, "calling", **JOINED) == 200
    assert await ask(server, "unknown") == 404
    assert await ask_stream(server) >= 2
    assert (await call(server.api_port, "/made/up", method="GET")).status == 404
    assert server.stop() == 0
    check_spans(collector)
    check_log_events(collector, server)
    check_metrics(collector)
    check_who_exports(collector)


def find(spans: list[Span], **wanted: object) -> Span:
    found = [one for one in spans if wanted.items() <= (fields_of(one.attributes) | {"name": one.name}).items()]
    assert len(found) == 1, (wanted, [one.name for one in spans])
    return found[0]


def check_spans(collector: Collector) -> None:
    spans = collector.spans()
    joined = [one for one in spans if one.trace_id.hex() == TRACE_ID]
    request, inner = find(joined, name="request"), find(joined, name="text_content_detection")
    asked, generated = find(joined, **{"peer.service": "calling"}), find(joined, **{"peer.service": "openai"})
    assert len(joined) == 4
    assert request.parent_span_id.hex() == SPAN_ID
    assert request.trace_state == "vendor=value"
    assert inner.parent_span_id == request.span_id
    assert {one.parent_span_id for one in (asked, generated)} == {inner.span_id}
    assert {one.name for one in (asked, generated)} == {"client HTTP request"}
    assert [one.kind for one in (request, asked)] == [Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT]
    assert [one["traceparent"] for one in collector.calls] == [
        f"00-{TRACE_ID}-{one.span_id.hex()}-01" for one in (asked, generated)
    ]
    assert {one["tracestate"] for one in collector.calls} == {"vendor=value"}
    fields = fields_of(request.attributes)
    assert (fields["request_method"], fields["request_path"]) == ("POST", CONTENT)
    assert (fields["response_status_code"], fields["stream_response"]) == (200, False)
    assert isinstance(fields["request_duration_ms"], int)
    usage = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}
    assert (
        fields_of(generated.attributes).items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "response_status_code": 200,
            **usage,
        }.items()
    )
    check_other_requests(spans)


def check_other_requests(spans: list[Span]) -> None:
    stream = find(spans, name="request", request_path=STREAM)
    fields = fields_of(stream.attributes)
    assert (fields["stream_response"], fields["stream_response_error_count"]) == (True, 0)
    assert fields["stream_response_event_count"] >= 2
    assert isinstance(fields["stream_response_duration_ms"], int)
    inner = find(spans, name="streaming_content_detection")
    assert (inner.parent_span_id, inner.trace_id) == (stream.span_id, stream.trace_id)
    unknown = find(spans, name="request", request_path="/made/up")
    assert fields_of(unknown.attributes)["http.route"] == "other"
    assert len({one.trace_id for one in spans}) == 4


def check_log_events(collector: Collector, server: ServerProcess) -> None:
    """G-191: lines of the log are events of the span; and they name its trace."""
    lines = server.events("request")
    assert next(line["trace_id"] for line in lines if line["path"] == CONTENT) == TRACE_ID
    requests = {one.trace_id.hex() for one in collector.spans() if one.name == "request"}
    assert {line["trace_id"] for line in lines} == requests
    events = [event for one in collector.spans() for event in one.events]
    assert len([event for event in events if event.name == "request"]) == len(lines)


def check_metrics(collector: Collector) -> None:
    """G-190."""
    metrics = collector.last_metrics()
    for name in Counter:
        assert (name.value in metrics) == (name not in UNSEEN), name
    incoming = metrics[Counter.INCOMING].sum
    assert incoming.is_monotonic
    assert incoming.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    counted = {
        name: sum(point.as_int for point in metrics[name].sum.data_points) for name in Counter if name not in UNSEEN
    }
    assert counted == {
        Counter.INCOMING: 6,  # four came in, two went out
        Counter.HANDLED: 4,
        Counter.SUCCESS: 2,
        Counter.CLIENT_ERROR: 2,
        Counter.STREAMS: 1,
        Counter.CALLS_ANSWERED: 2,
        Counter.CALLS_SUCCEEDED: 2,
    }
    for duration in set(Duration) - {Duration.CALL_STREAM, Duration.AGENT_STEP, Duration.TTFT}:
        assert metrics[duration].unit == "ms"
        assert all(point.count for point in metrics[duration].histogram.data_points)
    tokens = metrics["gen_ai.client.token.usage"].histogram.data_points
    assert {fields_of(point.attributes)["gen_ai.token.type"]: point.sum for point in tokens} == {
        "input": 7,
        "output": 3,
    }
    assert metrics["gen_ai.client.operation.duration"].unit == "s"
    paths = {fields_of(point.attributes).get("request_path") for point in incoming.data_points}
    assert paths == {CONTENT, STREAM, "other", None}


def check_who_exports(collector: Collector) -> None:
    """The standard variables work by themselves."""
    for resource in collector.resources():
        assert resource["service.name"] == "fms_guardrails_orchestr8"
        assert resource["deployment.environment.name"] == "lab"
        assert resource["service.instance.id"]
    assert {seen.headers["x-tenant"] for seen in (*collector.traces, *collector.metrics)} == {"tests"}


@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_the_callers_trace_is_joined_but_not_under_fms(collector: Collector, tmp_path: Path, compat: str) -> None:
    """G-187, D-31; without any export."""
    collector.calls.clear()
    with running(tmp_path, write_config(collector, tmp_path), LOCKGATE_COMPAT=compat) as server:
        assert await ask(server, "calling", **JOINED) == 200
        assert await ask(server, "calling", traceparent=f"00-{TRACE_ID}-{'0' * 16}-01") == 200
    trace_ids = [line["trace_id"] for line in server.events("request")]
    parents = [one["traceparent"].split("-") for one in collector.calls]
    assert [parent[1] for parent in parents[::2]] == trace_ids
    assert (trace_ids[0] == TRACE_ID) == (compat == "none")
    assert trace_ids[1] != TRACE_ID  # of a header that is broken nothing is taken
    assert all(parent[2] != SPAN_ID and parent[3] == "01" for parent in parents)
    assert collector.calls[0]["tracestate"] == ("vendor=value" if compat == "none" else "")
    assert collector.calls[2]["tracestate"] == ""
