# SPDX-License-Identifier: Apache-2.0
"""What /metrics tells of a real server, and what its log never tells."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.http_client import CONTENT, JSON_TYPE, STREAM, call, connect, detect, stream
from tests.server.processes import ServerProcess, running
from tests.server.spaces import Say, chat_request, collect, open_space
from tests.waits import forever, until

SECRETS = {
    "authorization": "Bearer zqx-token-1",
    "x-lockgate-key": "zqx-key-2",
    "x-forwarded-access-token": "zqx-token-3",
    "cookie": "id=zqx-cookie-4",
    "traceparent": "zqx-trace-5",
    "tracestate": "zqx-state-6",
    "user-agent": "zqx-agent-7",
}
LOST = """
  lost: {embedded: "tests.telemetry.calling_parts:open_calling_detector", options: {url: "http://127.0.0.1:9/zqx-url"}}
"""
MAIL, CARD = "zqx-mail@example.org", "4111 1111 1111 1111"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, mixed_config: Path) -> Iterator[ServerProcess]:
    """A server of our own: others would be counted too. Behind one of its detectors nobody answers."""
    directory = tmp_path_factory.mktemp("metrics")
    path = directory / "config.yaml"
    path.write_text(mixed_config.read_text().replace("\nserver:", f"{LOST}server:"))
    with running(directory, ["--config-path", str(path)], LOCKGATE_LOG__LEVEL="DEBUG") as process:
        yield process


async def read_metrics(server: ServerProcess) -> Series:
    answer = await call(server.health_port, "/metrics", method="GET", headers={})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = text_string_to_metric_families(answer.body.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def take(series: Series, metric: str, /, **labels: str) -> float:
    return series.get((f"lockgate_{metric}", frozenset(labels.items())), 0.0)


def count(series: Series, path: str, status: str) -> float:
    return take(series, "requests_total", path=path, status=status, caller="anonymous")


async def test_requests_are_counted_by_path_and_status(server: ServerProcess) -> None:
    before = await read_metrics(server)
    assert (await detect(server.api_port, {"content": "x", "detectors": {"pii": {}}})).status == 200
    assert (await detect(server.api_port, {"content": "x", "detectors": {"none": {}}})).status == 404
    assert (await call(server.api_port, CONTENT, method="GET")).status == 405
    after = await read_metrics(server)
    for status in ("200", "404", "405"):
        assert count(after, CONTENT, status) == count(before, CONTENT, status) + 1
    assert take(after, "request_seconds_count", path=CONTENT) == take(before, "request_seconds_count", path=CONTENT) + 3
    assert take(after, "open_requests") == 0


async def test_paths_that_callers_make_up_are_one(server: ServerProcess) -> None:
    for number in range(5):
        await call(server.api_port, f"/made/up/{number}", method="GET")
        await call(server.health_port, f"/made/up/{number}", method="GET")
    series = await read_metrics(server)
    assert count(series, "other", "404") == 5  # the health port is not counted
    paths = {dict(labels)["path"] for name, labels in series if name == "lockgate_requests_total"}
    assert paths <= {CONTENT, STREAM, "other"}


async def test_streams_are_measured_from_begin_to_end(server: ServerProcess) -> None:
    before = await read_metrics(server)
    answer = await stream(server.api_port, {"content": "One. Two. ", "detectors": {"pii": {}}}, {"content": "Three."})
    failed = await stream(server.api_port, {"content": "One. ", "detectors": {"broken": {}}})
    assert failed.lines()[-1]["code"] == 502
    after = await read_metrics(server)
    grown = {
        name: take(after, name, path=STREAM) - take(before, name, path=STREAM)
        for name in ("stream_seconds_count", "first_frame_seconds_count", "stream_events_total", "stream_errors_total")
    }
    assert grown == {
        "stream_seconds_count": 2,
        "first_frame_seconds_count": 2,
        "stream_events_total": len(answer.lines()) + 1,
        "stream_errors_total": 1,
    }
    line = server.events("request")[-2]
    assert (line["status"], line["events"]) == (200, len(answer.lines()))
    assert line["stream_ms"] >= 0
    assert line["first_frame_ms"] <= line["duration_ms"]


async def test_a_request_is_open_until_its_client_leaves(server: ServerProcess) -> None:
    before, left = await read_metrics(server), len(server.events("client_left"))
    async with connect(server.api_port) as client:
        await client.start_stream()
        await client.send_line(content="One. ", detectors={"slow": {}})
        await client.read_head()
        assert take(await read_metrics(server), "open_requests") == 1
    await until(lambda: len(server.events("client_left")) > left, "the event in the log")
    after = await read_metrics(server)
    assert take(after, "open_requests") == 0
    assert count(after, STREAM, "left") == count(before, STREAM, "left") + 1


async def test_findings_and_the_time_that_text_waited_are_counted_per_detector(server: ServerProcess) -> None:
    before = await read_metrics(server)
    text = f"Write to {MAIL}. "
    await detect(server.api_port, {"content": text, "detectors": {"pii": {}}})
    await stream(server.api_port, {"content": text, "detectors": {"pii": {}, "words": {}}}, {"content": "Have tea. "})
    after = await read_metrics(server)

    def grown(name: str, **labels: str) -> float:
        return take(after, name, **labels) - take(before, name, **labels)

    assert grown("detections_total", detector="pii", type="pii") == 2
    assert grown("held_seconds_count", detector="pii") >= 2
    assert grown("held_seconds_count", detector="words") >= 1


async def test_metrics_are_on_the_health_port_alone(server: ServerProcess) -> None:
    assert (await call(server.api_port, "/metrics", method="GET")).status == 404
    series = await read_metrics(server)
    assert any(name == "process_resident_memory_bytes" for name, _ in series)


async def test_no_header_and_no_text_is_ever_logged(server: ServerProcess) -> None:
    text = f"Write to {MAIL} or pay with {CARD}. " * 3
    body = json.dumps({"content": text, "detectors": {"pii": {}}}).encode()
    answer = await call(server.api_port, CONTENT, body, headers={**JSON_TYPE, **SECRETS})
    assert MAIL in answer.body.decode()
    assert CARD in answer.body.decode()
    refused: list[dict[str, object]] = [{"pii": {}, "broken": {}}, {"pii": {"zqx-param": 1}}, {"zqx-detector": {}}]
    for detectors in (*refused, {"lost": {}}):
        await call(
            server.api_port,
            CONTENT,
            json.dumps({"content": text, "detectors": detectors}).encode(),
            headers={**JSON_TYPE, **SECRETS},
        )
    await call(server.api_port, CONTENT, f'{{"content": "{MAIL}", oops'.encode(), headers={**JSON_TYPE, **SECRETS})
    await stream(server.api_port, {"content": text, "detectors": {"pii": {}, "words": {}}}, {"content": text})
    await stream(server.api_port, {"content": text, "detectors": {"broken": {}}})
    await call(server.api_port, f"{CONTENT}?key=zqx-query", body, headers=JSON_TYPE)
    log = server.log_path.read_text()
    assert len(server.events("request")) >= 8
    assert "ZeroDivisionError" in log  # what went wrong and where is told, in whose words is not
    reasons = [event["reason"] for event in server.events("upstream_failed")]
    assert any(reason.startswith("Unavailable < ClientConnectorError < ") for reason in reasons)
    assert reasons[-1] == "BrokeProtocol < ZeroDivisionError"
    said = re.sub(r'"(?:trace_id|correlation_id)": "[^"]*"', "", log)  # made by chance, they may hold any digits
    for secret in ("zqx", CARD, "4111", "Write to", "secret words", "Bearer"):
        assert secret not in said


async def test_a_question_whose_detector_fails_is_logged_and_counted_like_any_other(server: ServerProcess) -> None:
    path = "/api/v1/chat/stream"
    before = await read_metrics(server)
    for section in ("input", "documents", "output"):
        async with open_space({"docs": [("t", "x", 0.5)], "llm": "x"}) as space:
            events = await collect(server.api_port, chat_request(space, "docs", detectors={section: {"lost": {}}}))
        assert events[-1] == ("error", {"message": "The text could not be checked: `lost` failed"})
    after = await read_metrics(server)
    assert count(after, path, "200") == count(before, path, "200") + 3
    assert take(after, "open_requests") == 0
    lines = [line for line in server.events("request") if line["path"] == path]
    assert [line["code"] for line in lines] == [503] * 3
    assert all(line["correlation_id"] for line in lines)


async def test_a_source_that_is_too_late_is_counted_as_failed(tmp_path: Path) -> None:
    async def hang(say: Say) -> None:
        await forever()

    with running(tmp_path, LOCKGATE_AGGREGATOR__RETRIEVAL_TIMEOUT_S="0.5") as server:
        async with open_space({"docs": hang, "llm": "x"}) as space:
            events = await collect(server.api_port, chat_request(space, "docs"))
        counted = await read_metrics(server)
    assert dict(events)["source_complete"]["status"] == "timeout"
    assert take(counted, "backend_errors_total", kind="source", name="syftai_space", status="504") == 1
    failed = server.events("data_source.query.failed")[-1]
    assert (failed["source"], failed["status"], failed["reason"]) == ("al/docs", "timeout", "TimedOut")
