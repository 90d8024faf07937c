# SPDX-License-Identifier: Apache-2.0
"""FairQueue: chooses the items of the next batch when many streams share one service.

Each waiting call has items of one stream. A batch takes one item of each stream in turn until it is full, so a stream
with a thousand waiting items is never ahead of another by more than one. The items of a call may be in several
batches; the queue joins their results in order.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueuedCall(Generic[Item, Result]):
    """The items of one call; `results` is complete when `add_results` returns True."""

    __slots__ = ("_is_cancelled", "_open", "_parts", "_taken", "items", "results", "stream")

    def __init__(self, stream: Hashable, items: Sequence[Item]) -> None:
        self.stream = stream
        self.items = items
        self.results: list[Result] = []
        self._taken = 0  # items that are in batches
        self._open: set[int] = set()  # start positions of the shares without results
        self._parts: dict[int, Sequence[Result]] = {}  # results so far, by the start position of their share
        self._is_cancelled = False


class BatchShare(Generic[Item, Result]):
    """The items of one call in one batch: consecutive items from position `start`."""

    __slots__ = ("call", "items", "start")

    def __init__(self, call: QueuedCall[Item, Result], start: int) -> None:
        self.call = call
        self.start = start
        self.items: list[Item] = []


class FairQueue(Generic[Item, Result]):
    """Puts the calls of many streams into batches: each item once, in order within its stream, streams in turn."""

    def __init__(self, max_waiting: int, size: Callable[[Item], int] = lambda item: 0) -> None:
        self._max_waiting = max_waiting
        self._size = size
        self._streams: OrderedDict[Hashable, deque[QueuedCall[Item, Result]]] = OrderedDict()  # the next in turn first
        self.waiting = 0

    @property
    def streams(self) -> int:
        """The number of streams that wait; a batch of this many items has one of each stream."""
        return len(self._streams)

    def add(self, stream: Hashable, items: Sequence[Item]) -> QueuedCall[Item, Result] | None:
        """Adds a call; returns None if the queue would hold too many items."""
        if not items:
            raise RuntimeError("a call of no items has nothing to wait for")
        if self.waiting + len(items) > self._max_waiting:
            return None
        call: QueuedCall[Item, Result] = QueuedCall(stream, items)
        self._streams.setdefault(stream, deque()).append(call)
        self.waiting += len(items)
        return call

    def take(self, max_items: int, max_size: int | None = None) -> list[BatchShare[Item, Result]]:
        """Returns the next batch, empty if no item waits. An item larger than `max_size` is a batch by itself."""
        shares: dict[QueuedCall[Item, Result], BatchShare[Item, Result]] = {}
        count = size = 0
        while self._streams and count < max_items:
            stream, calls = next(iter(self._streams.items()))
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
            self._advance(stream, calls)
        for share in shares.values():
            share.call._open.add(share.start)
        self.waiting -= count
        return list(shares.values())

    def _advance(self, stream: Hashable, calls: deque[QueuedCall[Item, Result]]) -> None:
        """Removes the stream's first item and moves the stream behind the others."""
        calls[0]._taken += 1
        if calls[0]._taken == len(calls[0].items):
            calls.popleft()
        if calls:
            self._streams.move_to_end(stream)
        else:
            del self._streams[stream]

    def add_results(self, share: BatchShare[Item, Result], results: Sequence[Result]) -> bool:
        """Adds the results of a share; returns whether the call is complete, False if it was cancelled."""
        call = share.call
        if call._is_cancelled:
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

    def cancel(self, call: QueuedCall[Item, Result]) -> None:
        """Cancels a call and removes its waiting items."""
        if call._is_cancelled:
            return
        call._is_cancelled = True
        rest = len(call.items) - call._taken
        if not rest:
            return
        self.waiting -= rest
        calls = self._streams[call.stream]
        calls.remove(call)
        if not calls:
            del self._streams[call.stream]
