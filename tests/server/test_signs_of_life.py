# SPDX-License-Identifier: Apache-2.0
"""Comments that a silent stream of events sends (G-36), on a clock that the test moves."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from lockgate.server.connection import StreamedBody

PULSE = b":\n\n"
EVENT = b"data: b\n\n"


class Timer(NamedTuple):
    """What is to be done at a time."""

    at_s: float
    act: Callable[[], object]

    def cancel(self) -> None:
        """Nobody does."""


class ManualLoop:
    """A loop whose clock is moved by the test, and whose turns end at once; what a body writes stands in `sent`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sent = b""
        self._timers: list[Timer] = []
        transport = SimpleNamespace(write=self._write, is_closing=lambda: False)
        scope = {"method": "POST", "http_version": "1.1"}
        flow = SimpleNamespace(write_paused=False)
        self.cycle: Any = SimpleNamespace(
            scope=scope, flow=flow, transport=transport, chunked_encoding=False, disconnected=False
        )

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, act: Callable[[], object]) -> Timer:
        self._timers.append(Timer(self.now_s + delay_s, act))
        return self._timers[-1]

    def call_soon(self, act: Callable[[], object]) -> Timer:
        return self.call_later(0, act)

    def advance(self, seconds: float) -> None:
        """Everything that is due until then is done at its time."""
        end_s = self.now_s + seconds
        while due := [timer for timer in self._timers if timer.at_s <= end_s]:
            first = min(due, key=lambda timer: timer.at_s)
            self._timers.remove(first)
            self.now_s = first.at_s
            first.act()
        self.now_s = end_s

    def _write(self, data: bytes) -> None:
        self.sent += data


def open_body(loop: Any) -> StreamedBody:
    """A body that gives a sign of life every eight seconds."""
    body = StreamedBody(loop.cycle, loop)
    body.keep_alive(PULSE, 8.0)
    return body


def test_a_comment_comes_after_every_span_without_an_event_and_not_otherwise() -> None:
    loop = ManualLoop()
    body = open_body(loop)
    loop.advance(20)
    assert loop.sent == PULSE * 2
    for _ in range(10):
        body.add(EVENT)
        loop.advance(7)
    assert loop.sent == PULSE * 2 + EVENT * 10
    loop.advance(1)
    assert loop.sent == PULSE * 2 + EVENT * 10 + PULSE


def test_a_comment_never_falls_into_an_event_that_is_written_in_pieces() -> None:
    loop = ManualLoop()
    body = open_body(loop)
    for piece in (b"data: a", b"b\n", b"\n", b"data: c\n\n"):
        body.add(piece)
        loop.advance(20)
    assert re.fullmatch(rb"data: ab\n\n(:\n\n)+data: c\n\n(:\n\n)+", loop.sent), loop.sent
