# SPDX-License-Identifier: Apache-2.0
"""Whose chunk is looked at next, where many streams share one service.

Calls wait, each with items of one stream. A batch takes one item of each stream in turn, again and again, until it is
full: a stream with a thousand waiting items is never ahead of another by more than one. A call may be spread over
several batches; its results are joined again in their order.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueuedCall(Generic[Item, Result]):
    """The items of one call; `results` are whole once the queue says so."""

    __slots__ = ("_has_left", "_open", "_parts", "_taken", "items", "results", "whose")

    def __init__(self, whose: Hashable, items: Sequence[Item]) -> None:
        self.whose = whose
        self.items = items
        self.results: list[Result] = []
        self._taken = 0  # how many of its items are in batches
        self._open: set[int] = set()  # where the shares begin that have no results yet
        self._parts: dict[int, Sequence[Result]] = {}  # the results that came, by where their share begins
        self._has_left = False


class BatchShare(Generic[Item, Result]):
    """The part of one call that is in a batch: its items from `start` on."""

    __slots__ = ("call", "items", "start")

    def __init__(self, call: QueuedCall[Item, Result], start: int) -> None:
        self.call = call
        self.start = start
        self.items: list[Item] = []


class FairQueue(Generic[Item, Result]):
    """Calls of many streams, given out in batches: each item once, in order within its stream, streams in turn."""

    def __init__(self, max_waiting: int, size: Callable[[Item], int] = lambda item: 0) -> None:
        self._max_waiting = max_waiting
        self._size = size
        self._streams: OrderedDict[Hashable, deque[QueuedCall[Item, Result]]] = OrderedDict()  # the next in turn first
        self.waiting = 0

    @property
    def streams(self) -> int:
        """How many streams wait: of so many items that are given out next each has one."""
        return len(self._streams)

    def add(self, whose: Hashable, items: Sequence[Item]) -> QueuedCall[Item, Result] | None:
        """A call that waits from now on; none if there would be too many items with it."""
        if not items:
            raise RuntimeError("a call of no items has nothing to wait for")
        if self.waiting + len(items) > self._max_waiting:
            return None
        call: QueuedCall[Item, Result] = QueuedCall(whose, items)
        self._streams.setdefault(whose, deque()).append(call)
        self.waiting += len(items)
        return call

    def take(self, max_items: int, max_size: int | None = None) -> list[BatchShare[Item, Result]]:
        """The next batch; nothing if nothing waits. An item that is larger than a batch may be goes alone."""
        shares: dict[QueuedCall[Item, Result], BatchShare[Item, Result]] = {}
        count = size = 0
        while self._streams and count < max_items:
            whose, calls = next(iter(self._streams.items()))
            call = calls[0]
            item = call.items[call._taken]
            size += self._size(item)
            if max_size is not None and size > max_size and count:
                break
            share = shares.get(call)
            if share is None:
                share = shares[call] = BatchShare(call, call._taken)
            share.items.append(item)
            count += 1
            self._advance(whose, calls)
        for share in shares.values():
            share.call._open.add(share.start)
        self.waiting -= count
        return list(shares.values())

    def _advance(self, whose: Hashable, calls: deque[QueuedCall[Item, Result]]) -> None:
        """The stream's first item is taken: the other streams come first now."""
        calls[0]._taken += 1
        if calls[0]._taken == len(calls[0].items):
            calls.popleft()
        if calls:
            self._streams.move_to_end(whose)
        else:
            del self._streams[whose]

    def give(self, share: BatchShare[Item, Result], results: Sequence[Result]) -> bool:
        """Adds the results of a share; returns whether they complete its call, False if it has left."""
        call = share.call
        if call._has_left:
            return False
        if share.start not in call._open:
            raise RuntimeError("a share has results once")
        if len(results) != len(share.items):
            raise RuntimeError(f"{len(share.items)} items have {len(share.items)} results, not {len(results)}")
        call._open.discard(share.start)
        call._parts[share.start] = results
        if call._open or call._taken < len(call.items):
            return False
        call.results = [result for start in sorted(call._parts) for result in call._parts.pop(start)]
        return True

    def leave(self, call: QueuedCall[Item, Result]) -> None:
        """Ends a call: its waiting items are never given out."""
        if call._has_left:
            return
        call._has_left = True
        rest = len(call.items) - call._taken
        if not rest:
            return
        self.waiting -= rest
        calls = self._streams[call.whose]
        calls.remove(call)
        if not calls:
            del self._streams[call.whose]
