# SPDX-License-Identifier: Apache-2.0
"""What is counted and traced of an agent's steps and turns; traces and metrics go to a real collector."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from contextvars import copy_context

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from lockgate.config.settings import OtlpSettings
from lockgate.errors import TimedOut
from lockgate.telemetry import (
    agent_step,
    client_call,
    count_unreadable_label,
    observe_request,
    observe_turn,
    open_telemetry,
    start_request,
)
from lockgate.telemetry.names import MAX_NAMES, OTHER
from tests.telemetry.collector import Collector, fields_of, open_collector
from tests.telemetry.test_counting import read
from tests.waits import forever


@pytest.fixture
def counting() -> Iterator[None]:
    with open_telemetry(OtlpSettings()):
        yield


def speak(label: str = "RETRIEVAL", outcome: str = "answered", tokens: int = 3) -> None:
    observe_turn(label=label, layer="rules", outcome=outcome, first_token_s=0.2, tokens=tokens)


@pytest.mark.usefixtures("counting")
def test_turns_are_counted_by_label_layer_and_outcome() -> None:
    speak()
    speak(tokens=4)
    observe_turn(label="", layer="", outcome="aborted", first_token_s=None, tokens=0)
    count_unreadable_label()
    series = read()
    assert series["agent_turns_total", "RETRIEVAL", "rules", "answered"] == 2
    assert series["agent_turns_total", "none", "none", "aborted"] == 1
    assert series["agent_tokens_total", "RETRIEVAL"] == 7
    assert series["agent_first_token_seconds_count", "RETRIEVAL"] == 2
    assert series["agent_unreadable_labels_total",] == 1
    assert ("agent_first_token_seconds_count", "none") not in series


@pytest.mark.usefixtures("counting")
def test_labels_and_steps_cannot_be_made_up_without_end() -> None:
    for number in range(2 * MAX_NAMES):
        speak(label=f"label {number}")
        with agent_step(f"step {number}"):
            pass
    series = read()
    assert series["agent_tokens_total", OTHER] > 0
    assert series["agent_step_seconds_count", OTHER] > 0
    assert len([key for key in series if key[0] == "agent_tokens_total"]) <= MAX_NAMES + 1


@pytest.mark.usefixtures("counting")
async def test_steps_are_measured_unless_they_are_cancelled() -> None:
    async def wait_for_ever() -> None:
        with agent_step("retrieve"):
            await forever()

    with agent_step("classify"):
        pass
    with contextlib.suppress(TimedOut), agent_step("classify"):
        raise TimedOut("model", "words")
    task = asyncio.create_task(wait_for_ever())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    counts = {key[1]: value for key, value in read().items() if key[0] == "agent_step_seconds_count"}
    assert counts == {"classify": 2}


async def test_a_step_of_a_stream_that_another_task_closes_comes_to_its_end() -> None:
    steps = []

    async def stream() -> AsyncGenerator[int, None]:
        with agent_step("stream") as step:
            steps.append(step)
            while True:
                yield 1

    async def begin(frames: AsyncGenerator[int, None]) -> None:
        await anext(frames)

    frames = stream()
    await asyncio.create_task(begin(frames))
    await asyncio.create_task(frames.aclose())
    assert (steps[0].ended_at > 0, steps[0].is_abandoned, steps[0].error) == (True, True, "")


def take_a_turn() -> None:
    request = start_request("POST", "/agent", "/agent", lambda _: None)
    with agent_step("prepare"):
        with agent_step("classify"):
            pass
        with contextlib.suppress(TimedOut), agent_step("retrieve"), client_call("source", "index"):
            raise TimedOut("index", "words")
    with contextlib.suppress(asyncio.CancelledError), agent_step("stream"):
        raise asyncio.CancelledError
    count_unreadable_label()
    speak()
    observe_request(request)


@pytest.fixture(scope="module")
def exported() -> Iterator[Collector]:
    """What a collector got of one turn."""
    with open_collector() as collector:
        url = f"http://127.0.0.1:{collector.grpc_port}"
        settings = dataclasses.replace(
            OtlpSettings(), export=("traces", "metrics"), traces_endpoint=url, metrics_endpoint=url
        )
        with open_telemetry(settings):
            copy_context().run(take_a_turn)
        yield collector


def spans_by_name(collector: Collector) -> dict[str, Span]:
    return {span.name: span for span in collector.spans()}


def test_steps_are_spans_below_the_request_and_calls_below_their_step(exported: Collector) -> None:
    spans = spans_by_name(exported)
    parents = {name: span.parent_span_id for name, span in spans.items()}
    request, prepare = spans["request"].span_id, spans["agent.prepare"].span_id
    assert parents == {
        "request": b"",
        "agent.prepare": request,
        "agent.classify": prepare,
        "agent.retrieve": prepare,
        "client HTTP request": spans["agent.retrieve"].span_id,
        "agent.stream": request,
    }
    assert len({span.trace_id for span in spans.values()}) == 1


def test_a_step_that_raises_is_an_error_and_one_that_is_cancelled_is_none(exported: Collector) -> None:
    spans = spans_by_name(exported)
    failed = spans["agent.retrieve"]
    assert (failed.status.code, fields_of(failed.attributes)) == (Status.STATUS_CODE_ERROR, {"error.type": "TimedOut"})
    for name in ("agent.classify", "agent.stream", "agent.prepare"):
        assert (spans[name].status.code, fields_of(spans[name].attributes)) == (Status.STATUS_CODE_UNSET, {}), name


def test_the_span_of_the_request_tells_about_its_turn(exported: Collector) -> None:
    fields = fields_of(spans_by_name(exported)["request"].attributes)
    told = {name.removeprefix("lockgate.agent."): value for name, value in fields.items() if "agent." in name}
    assert told == {"label": "RETRIEVAL", "layer": "rules", "outcome": "answered", "tokens": 3, "first_token_ms": 200}


def test_turns_and_steps_are_exported_as_metrics_too(exported: Collector) -> None:
    metrics = exported.last_metrics()
    assert [point.as_int for point in metrics["agent_turn_count"].sum.data_points] == [1]
    assert [point.as_int for point in metrics["agent_token_count"].sum.data_points] == [3]
    assert [point.as_int for point in metrics["agent_unreadable_label_count"].sum.data_points] == [1]
    assert [point.sum for point in metrics["agent_first_token_duration"].histogram.data_points] == [200]
    steps = metrics["agent_step_duration"]
    counted = {fields_of(point.attributes)["step"]: point.count for point in steps.histogram.data_points}
    assert (steps.unit, counted) == ("ms", {"classify": 1, "retrieve": 1, "prepare": 1})
