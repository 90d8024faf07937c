# SPDX-License-Identifier: Apache-2.0
"""Trace headers, read and written (G-187, G-188, D-31)."""

import asyncio
import re
from collections.abc import Callable
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.telemetry import client_call, start_request, trace_headers
from lockgate.telemetry.requests import TraceContext, read_trace

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


def headers_of(**values: str) -> Callable[[bytes], bytes | None]:
    return {name.encode(): value.encode() for name, value in values.items()}.get


@pytest.mark.parametrize(
    ("parent", "flags"),
    [(PARENT, "01"), (PARENT[:-2] + "00", "00"), (PARENT[:-2] + "ff", "01"), ("cc" + PARENT[2:] + "-more", "01")],
)
def test_a_place_in_a_trace_is_read(parent: str, flags: str) -> None:
    assert read_trace(parent) == TraceContext(TRACE_ID, SPAN_ID, flags)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-more",
        PARENT + " ",
        PARENT[:-1],
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        PARENT.replace("a", "g"),
    ],
)
def test_what_is_no_place_in_a_trace_is_ignored(parent: str) -> None:
    assert read_trace(parent) is None


@given(st.text(max_size=80), st.text(max_size=600))
def test_any_header_is_read_or_ignored(parent: str, state: str) -> None:
    assert read_trace(parent, state) is None
    trace = read_trace(PARENT, state)
    assert trace is not None
    assert trace.state in (state, "")
    assert len(trace.state) <= 512
    assert re.fullmatch(r"[ -~]*", trace.state)


def test_what_is_written_can_be_read() -> None:
    def write() -> tuple[TraceContext, dict[str, str]]:
        return start_request("POST", "/", "/", headers_of()).trace, dict(trace_headers())

    trace, written = copy_context().run(write)
    assert written.keys() == {"traceparent", "tracestate"}
    assert read_trace(written["traceparent"]) == trace


async def test_every_task_of_a_request_speaks_of_its_trace_and_of_no_other() -> None:
    async def serve(parent: str) -> set[str]:
        start_request("POST", "/", "/", headers_of(traceparent=parent, tracestate="a=b"))
        await asyncio.sleep(0)

        async def call() -> str:
            with client_call("detector", "pii"):
                await asyncio.sleep(0)
                headers = dict(trace_headers())
            return headers["traceparent"][3:35] + headers["tracestate"]

        return set(await asyncio.gather(call(), call()))

    other = "1" * 32
    ours, theirs = await asyncio.gather(
        asyncio.create_task(serve(PARENT)), asyncio.create_task(serve(f"00-{other}-{SPAN_ID}-01"))
    )
    assert (ours, theirs) == ({TRACE_ID + "a=b"}, {other + "a=b"})
    assert dict(trace_headers())["traceparent"][3:35] not in (TRACE_ID, other)


def test_a_caller_that_does_not_sample_is_followed() -> None:
    headers = headers_of(traceparent=PARENT[:-2] + "00")
    request = copy_context().run(lambda: start_request("POST", "/", "/", headers))
    assert (request.trace.trace_id, request.trace.flags) == (TRACE_ID, "00")
    assert request.trace.span_id != SPAN_ID
