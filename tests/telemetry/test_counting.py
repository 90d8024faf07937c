# SPDX-License-Identifier: Apache-2.0
"""What is counted of calls, texts and findings; how many names are taken; how processes share their numbers."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockgate.config.settings import OtlpSettings
from lockgate.errors import Rejected, Unavailable
from lockgate.gate.values import Detection
from lockgate.telemetry import client_call, count_detections, observe_held, open_telemetry, render_metrics
from lockgate.telemetry.names import MAX_NAME_CHARS, MAX_NAMES, OTHER
from tests.server.processes import clean_environment
from tests.waits import forever

CHILD = """
from lockgate.config.settings import OtlpSettings
from lockgate.telemetry import observe_held, open_telemetry, render_metrics, start_request
with open_telemetry(OtlpSettings()):
    observe_held("pii", 0.5)
    start_request("POST", "/x", "/x", lambda name: None)
    if {shows}:
        print(render_metrics().decode())
"""


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    with open_telemetry(OtlpSettings()):
        yield


def read(text: str | None = None) -> dict[tuple[str, ...], float]:
    """The series: name and values of the labels, in the order of the labels' names."""
    families = text_string_to_metric_families(render_metrics().decode() if text is None else text)
    return {
        (sample.name.removeprefix("lockgate_"), *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


async def begin(frames: AsyncGenerator[int, None]) -> None:
    await anext(frames)


async def end(frames: AsyncGenerator[int, None]) -> None:
    await frames.aclose()


def find(kind: str) -> Detection:
    return Detection(0, 1, "x", "X", kind, 0.5, "pii")


def test_findings_are_counted_by_detector_and_type() -> None:
    count_detections([find("pii"), find("pii"), find("secret")])
    series = read()
    assert series["detections_total", "pii", "pii"] == 2
    assert series["detections_total", "pii", "secret"] == 1


def test_a_detector_cannot_make_up_types_without_end() -> None:
    count_detections([find("x" * (MAX_NAME_CHARS + 1)), *[find(f"type {n}") for n in range(10 * MAX_NAMES)]])
    types = [key[2] for key in read() if key[0] == "detections_total"]
    assert len(types) == MAX_NAMES + 1
    assert read()["detections_total", "pii", OTHER] == 9 * MAX_NAMES + 1


def test_the_time_that_text_waits_is_measured_per_detector() -> None:
    observe_held("pii", 0.002)
    observe_held("pii", 0.3)
    series = read()
    assert (series["held_seconds_count", "pii"], series["held_seconds_bucket", "pii", "0.0025"]) == (2, 1)


def test_calls_are_measured_and_their_errors_counted_by_status() -> None:
    with client_call("openai", "openai") as call:
        call.status = 200
    with client_call("detector", "pii") as call:
        call.status = 422
    with contextlib.suppress(Unavailable), client_call("detector", "pii"):
        raise Unavailable("pii", "words")
    with contextlib.suppress(Rejected), client_call("chunker", "sentences") as call:
        call.status = 400
        raise Rejected("sentences", "words", status=400)
    with contextlib.suppress(ZeroDivisionError), client_call("generation", "generation"):
        raise ZeroDivisionError
    series = read()
    errors = {key[1:]: value for key, value in series.items() if key[0] == "backend_errors_total"}
    assert errors == {
        ("detector", "pii", "422"): 1,
        ("detector", "pii", "503"): 1,
        ("chunker", "sentences", "400"): 1,
        ("generation", "generation", "500"): 1,
    }
    assert series["backend_seconds_count", "openai", "openai"] == 1
    assert series["backend_seconds_count", "detector", "pii"] == 1  # who gave no answer took no time to answer


async def test_a_call_that_we_give_up_is_no_error_of_the_service() -> None:
    async def call_for_ever() -> None:
        with client_call("detector", "pii"):
            await forever()

    task = asyncio.create_task(call_for_ever())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert not [key for key in read() if key[0].startswith("backend")]


async def test_a_stream_that_is_closed_by_another_task_ends_its_call() -> None:
    calls = []

    async def stream() -> AsyncGenerator[int, None]:
        with client_call("openai", "openai") as call:
            calls.append(call)
            call.status = 200
            while True:
                yield 1

    frames = stream()
    await asyncio.create_task(begin(frames))
    await asyncio.create_task(end(frames))
    assert calls[0].ended_at
    assert read()["backend_seconds_count", "openai", "openai"] == 1


def test_nothing_is_counted_and_nothing_fails_when_nobody_looks_on() -> None:
    code = """
import sys
from lockgate.telemetry import *
observe_held("pii", 0.5); count_detections([]); assert render_metrics() == b""
with client_call("detector", "pii") as call: call.status = 200
assert not {name.partition(".")[0] for name in sys.modules} & {"prometheus_client", "opentelemetry"}
"""
    subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=True)


def test_processes_that_share_a_directory_are_shown_as_one(tmp_path: Path) -> None:
    environ = clean_environment(PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    for shows in (False, True):
        command = [sys.executable, "-c", CHILD.format(shows=shows)]
        shown = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    series = read(shown)
    assert (series["held_seconds_count", "pii"], series["held_seconds_sum", "pii"]) == (2, 1.0)
    assert series["open_requests",] == 2
