# SPDX-License-Identifier: Apache-2.0
"""StreamOrder: when the parts of a streamed completion may be written. Pure: releases in, releases out.

A queued lane is written when all lanes before it are complete and the content that the model sent before it was
written: clients take a tool call for complete when the next one begins. A choice ends once. Messages that end the
answer wait for the end of the stream, because the last event carries the receipt.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from lockgate.errors import HeldTooMuch
from lockgate.gate.release import Release

Message = Mapping[str, Any]
Leaving = list[tuple[int, Release]]  # lanes and their releases, in the order in which they are written


class _QueuedLane(NamedTuple):
    """A queued lane, how much content must be written before it, and its waiting releases."""

    lane: int
    after: int
    waiting: list[Release]


class StreamOrder:
    """The order of one stream, over all its choices."""

    def __init__(self, max_held_chars: int) -> None:
        self._max_held_chars = max_held_chars
        self._held_chars = 0
        self._turns: dict[int, _QueuedLane] = {}  # by lane
        self._queues: dict[int, deque[_QueuedLane]] = {}  # by choice
        self._passed: dict[int, int] = {}  # by choice: how much content was written
        self._last: list[Message] = []
        self.ended: set[int] = set()  # choices
        self.endings: dict[int, dict[str, Any]] = {}  # by choice: the message that ends it

    @property
    def is_empty(self) -> bool:
        """Whether all lanes that were queued are complete."""
        return not any(self._queues.values())

    def hold(self, chars: int) -> None:
        """Add to the number of characters that wait; a negative number reduces it."""
        self._held_chars += chars
        if self._held_chars > self._max_held_chars:
            raise HeldTooMuch(f"more than {self._max_held_chars} characters wait for a detector")

    def enqueue(self, choice: int, lane: int, after: int = 0) -> None:
        """Let the lane wait for those before it, and for `after` characters of content."""
        turn = self._turns[lane] = _QueuedLane(lane, after, [])
        self._queues.setdefault(choice, deque()).append(turn)

    def take(self, choice: int, lane: int, release: Release) -> Leaving:
        """Add a release; return those that may be written now."""
        turn = self._turns.get(lane)
        if turn is None:
            return [(lane, release)]
        if not self._is_next(choice, turn):
            self.hold(len(release.text) + 1)
            turn.waiting.append(release)
            return []
        if not release.is_final:
            return [(lane, release)]
        self._queues[choice].popleft()
        return [(lane, release), *self._take_waiting(choice)]

    def pass_content(self, choice: int, upto: int) -> Leaving:
        """Note that the content up to here was written; return the releases that waited for it."""
        self._passed[choice] = upto
        return self._take_waiting(choice)

    def has_content(self, choice: int) -> bool:
        """Whether content of the choice was written."""
        return self._passed.get(choice, 0) > 0

    def is_waiting(self, choice: int, lane: int) -> bool:
        """Whether the lane is queued and its turn has not come."""
        turn = self._turns.get(lane)
        return turn is not None and not self._is_next(choice, turn)

    def _is_next(self, choice: int, turn: _QueuedLane) -> bool:
        return self._queues[choice][0] is turn and turn.after <= self._passed.get(choice, 0)

    def _take_waiting(self, choice: int) -> Leaving:
        leaving: Leaving = []
        queue = self._queues.get(choice)
        while queue and self._is_next(choice, queue[0]):
            turn = queue[0]
            leaving += [(turn.lane, release) for release in turn.waiting]
            is_complete = bool(turn.waiting) and turn.waiting[-1].is_final
            self.hold(-sum([len(release.text) + 1 for release in turn.waiting]))
            turn.waiting.clear()
            if not is_complete:
                break
            queue.popleft()
        return leaving

    def drop(self, choice: int) -> int:
        """Drop the waiting releases of a choice that was cut off; return how many characters of the model they are."""
        chars = 0
        for turn in self._queues.pop(choice, ()):
            chars += sum([release.end - release.start for release in turn.waiting])
            self.hold(-sum([len(release.text) + 1 for release in turn.waiting]))
            turn.waiting.clear()
        return chars

    def end(self, choice: int) -> bool:
        """End the choice; false if it has ended before."""
        is_first = choice not in self.ended
        self.ended.add(choice)
        return is_first

    def pass_message(self, message: Message) -> list[Message]:
        """The messages that may be written now: one that ends a choice or has none may be the last, and waits."""
        ready = [*self._last, message]
        self._last = [ready.pop()] if may_be_last(message) else []
        return ready

    def list_last(self) -> list[dict[str, Any]]:
        """The messages that waited for the end of the stream."""
        return [dict(one) for one in self._last] + [self.endings[index] for index in sorted(self.endings)]


def may_be_last(message: Message) -> bool:
    """Whether a message ends a choice, or has none."""
    choices = message["choices"]
    return not choices or any(one.get("finish_reason") is not None for one in choices)
