# SPDX-License-Identifier: Apache-2.0
"""InputLog: records the messages of a text stream that each chunk consists of.

A message with text belongs to every chunk that has one of its characters. A message without text belongs to the chunk
whose text follows it, at the end of the stream to the last chunk, so its other fields are not lost.
"""

from collections import deque
from typing import NamedTuple


class _MessageRun(NamedTuple):
    """A message with text, or all messages without text at the same position."""

    first: int
    last: int
    start: int
    end: int


class InputLog:
    """The messages of one stream, by the sender's numbers."""

    __slots__ = ("_is_finished", "_latest", "_runs", "placed", "received")

    def __init__(self) -> None:
        self._runs: deque[_MessageRun] = deque()
        self._latest = 0
        self._is_finished = False
        self.received = 0
        self.placed = 0

    @property
    def held_chars(self) -> int:
        """The number of characters that are not yet in a chunk."""
        return self.received - self.placed

    def receive(self, number: int, length: int) -> None:
        """Adds a message with that many characters."""
        if self._is_finished:
            raise RuntimeError("a message came after the end")
        start, self._latest = self.received, number
        self.received += length
        run = _MessageRun(number, number, start, self.received)
        if not length and self._runs and self._runs[-1].start == start:
            run = self._runs.pop()._replace(last=number)
        self._runs.append(run)

    def finish(self) -> None:
        """Ends the input."""
        self._is_finished = True

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Returns the numbers of the first and the last message of the chunk `start`..`end`; chunks come in order."""
        runs = self._runs
        while runs and _is_before(runs[0], start):
            runs.popleft()
        first = last = runs[0].first if runs else self._latest
        has_all = self._is_finished and end >= self.received
        while runs and (runs[0].start < end or has_all):
            last = runs[0].last
            if runs[0].end > end:  # the next chunk has characters of it too
                break
            runs.popleft()
        self.placed = end
        return first, last


def _is_before(run: _MessageRun, start: int) -> bool:
    return run.end < start or (run.end == start and run.start < start)
