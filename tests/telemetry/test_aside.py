# SPDX-License-Identifier: Apache-2.0
"""Calls of models that a detector makes do not mix with those of the request whose text it reads."""

import asyncio
from math import inf

import pytest

from lockgate.telemetry import (
    calling_aside,
    client_call,
    note_generation,
    note_stream_ended,
    note_usage,
    observe_request,
    start_request,
)
from lockgate.telemetry.observers import ACTIVE, Observer
from lockgate.telemetry.requests import ServiceCall


class _Notes(Observer):
    def __init__(self) -> None:
        self.settled: list[tuple[str, int | None, bool, int]] = []

    def generation_settled(self, call: ServiceCall) -> None:
        self.settled.append((call.model, call.input_tokens, bool(call.stream_ended_at), call.status))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> _Notes:
    notes = _Notes()
    monkeypatch.setattr(ACTIVE, "observers", (notes,))
    return notes


async def test_a_call_aside_leaves_the_requests_own_call_alone(notes: _Notes) -> None:
    request = start_request("POST", "/x", "/x", lambda name: None)
    note_generation("main", "chat")
    with client_call("model", "openai"):
        with calling_aside(inf):
            note_generation("judge", "chat")
            with client_call("model", "openai") as call:
                assert call.request is request  # and so part of its trace
            note_usage(7, 1)
        assert notes.settled == [("judge", 7, False, 200)]
    note_usage(3, 2)
    note_stream_ended()
    observe_request(request)
    assert notes.settled[1:] == [("main", 3, True, 200)]


async def test_a_call_aside_settles_without_a_request_too(notes: _Notes) -> None:
    with calling_aside(inf):
        note_generation("judge", "chat")
        with client_call("model", "openai"):
            pass
        note_usage(7, 1)
    note_usage(100, 100)
    assert notes.settled == [("judge", 7, False, 200)]


async def test_a_call_aside_that_is_cancelled_late_was_too_slow(notes: _Notes) -> None:
    for until in (-inf, inf):
        with pytest.raises(asyncio.CancelledError), calling_aside(until), client_call("model", "openai"):
            raise asyncio.CancelledError
    assert [status for *_, status in notes.settled] == [504, 0]
