# SPDX-License-Identifier: Apache-2.0
"""The laws of sharing, over random streams, sizes, limits and orders of events; and they bite."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.fair_queue import BatchShare, FairQueue, QueuedCall
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

Text = str
Queue = FairQueue[Text, Text]
MAX_WAITING = 24

Event = tuple[str, int, Any]


def _to_event(number: int) -> Event:
    """Numbers are drawn much faster than tuples."""
    number, kind = divmod(number, 6)
    number, first = divmod(number, 30)
    if kind < 2:
        return "add", first % 5, 1 + number % 9
    if kind < 4:
        return "take", 1 + first % 6, (None, 4, 12)[number % 3]
    return ("add_results", "cancel")[kind - 4], first, 0


EVENTS = st.lists(st.integers(0, 6 * 30 * 9 - 1), max_size=40).map(lambda numbers: [_to_event(one) for one in numbers])


@dataclass
class Ledger:
    """A queue and what is known about it without looking inside."""

    queue: Queue = field(default_factory=lambda: FairQueue(MAX_WAITING, len))
    calls: list[QueuedCall[Text, Text]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    open: list[BatchShare[Text, Text]] = field(default_factory=list)
    batches: list[list[BatchShare[Text, Text]]] = field(default_factory=list)
    whole: list[QueuedCall[Text, Text]] = field(default_factory=list)
    taken: Counter[int] = field(default_factory=Counter)  # how many items of each call are in batches
    count: int = 0

    def add(self, stream: int, count: int) -> None:
        items = [f"{stream}:{self.count + n:04}"[: 3 + n] + f"{self.count + n:03}" for n in range(count)]
        self.count += count
        before = self.waiting()
        call = self.queue.add(stream, items)
        assert (call is None) == (sum(before.values()) + count > MAX_WAITING)
        if call is not None:
            self.calls.append(call)

    def take(self, max_items: int, max_size: int | None) -> list[BatchShare[Text, Text]]:
        batch = self.queue.take(max_items, max_size)
        self.open += batch
        self.batches.append(batch)
        for share in batch:
            self.taken[id(share.call)] += len(share.items)
        return batch

    def add_results(self, at: int) -> None:
        if self.open:
            share = self.open.pop(at % len(self.open))
            if self.queue.add_results(share, [item.upper() for item in share.items]):
                self.whole.append(share.call)

    def cancel(self, at: int) -> None:
        if self.calls:
            call = self.calls[at % len(self.calls)]
            self.gone.add(id(call))
            self.queue.cancel(call)

    def play(self, event: Event) -> None:
        name, one, two = event
        if name == "add":
            self.add(one, two)
        elif name == "take":
            self.take(one, two)
        elif name == "add_results":
            self.add_results(one)
        else:
            self.cancel(one)

    def drain(self) -> None:
        for _ in range(MAX_WAITING + 1):
            if not self.take(5, None):
                break
        while self.open:
            self.add_results(7)

    def waiting(self) -> Counter[Hashable]:
        """How many items of each stream wait."""
        found = Counter[Hashable]()
        for call in self.calls:
            if id(call) not in self.gone:
                found[call.stream] += len(call.items) - self.taken[id(call)]
        return +found


def _items(batch: Sequence[BatchShare[Text, Text]]) -> list[Text]:
    return [item for share in batch for item in share.items]


@given(EVENTS)
def test_every_item_is_given_out_exactly_once_unless_its_call_left(events: list[Event]) -> None:
    ledger = Ledger()
    for event in events:
        ledger.play(event)
        waiting = ledger.waiting()
        assert ledger.queue.waiting == sum(waiting.values()) <= MAX_WAITING
        assert ledger.queue.streams == len(waiting)
    ledger.drain()
    given_out = Counter(item for batch in ledger.batches for item in _items(batch))
    for call in ledger.calls:
        counts = [given_out.pop(item, 0) for item in call.items]
        assert all(count == 1 for count in counts) or id(call) in ledger.gone
        assert counts == sorted(counts, reverse=True)
        assert max(counts) <= 1
    assert not given_out
    assert ledger.queue.waiting == 0


@given(EVENTS)
def test_a_call_that_left_is_never_given_out_again(events: list[Event]) -> None:
    ledger = Ledger()
    for event in events:
        gone = set(ledger.gone)
        before = len(ledger.batches)
        ledger.play(event)
        assert not [share for batch in ledger.batches[before:] for share in batch if id(share.call) in gone]


@given(EVENTS)
def test_the_order_within_a_stream_is_kept(events: list[Event]) -> None:
    ledger = Ledger()
    for event in events:
        ledger.play(event)
    ledger.drain()
    for stream in {call.stream for call in ledger.calls}:
        asked = [item for call in ledger.calls if call.stream == stream for item in call.items]
        places = [
            asked.index(item)
            for batch in ledger.batches
            for share in batch
            if share.call.stream == stream
            for item in share.items
        ]
        assert places == sorted(places)


@given(EVENTS)
def test_a_call_gets_its_results_whole_and_in_order_whatever_the_batches_and_answers(events: list[Event]) -> None:
    ledger = Ledger()
    for event in events:
        ledger.play(event)
    ledger.drain()
    assert len(ledger.whole) == len({id(call) for call in ledger.whole})
    for call in ledger.whole:
        assert call.results == [item.upper() for item in call.items]
    whole = {id(call) for call in ledger.whole}
    assert all(id(call) in whole | ledger.gone for call in ledger.calls)


@given(EVENTS)
def test_no_stream_that_waits_falls_behind_another_by_more_than_one_item(events: list[Event]) -> None:
    ledger = Ledger()
    served: dict[Hashable, Counter[Hashable]] = {}  # per waiting stream: what all got since it began to wait
    for event in events:
        before = len(ledger.batches)
        ledger.play(event)
        waiting = ledger.waiting()
        for stream in list(served):
            if stream not in waiting:
                del served[stream]
        for batch in ledger.batches[before:]:
            for got in served.values():
                for share in batch:
                    got[share.call.stream] += len(share.items)
        for stream, got in served.items():
            assert all(count <= got[stream] + 1 for count in got.values())
        for stream in waiting:
            served.setdefault(stream, Counter())


@given(st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_streams_that_come_back_again_and_again_overtake_nobody(comers: list[int]) -> None:
    queue: FairQueue[int, int] = FairQueue(100)
    queue.add(0, range(20))
    since = 0
    for stream in comers:
        queue.add(stream, [-1])
        (share,) = queue.take(1)
        since = 0 if share.call.stream == 0 else since + 1
        assert since <= 3


@given(EVENTS)
def test_a_batch_is_as_full_as_its_limits_allow(events: list[Event]) -> None:
    ledger = Ledger()
    for event in events:
        name, max_items, max_size = event
        if name != "take":
            ledger.play(event)
            continue
        waiting = ledger.queue.waiting
        items = _items(ledger.take(max_items, max_size))
        size = sum(map(len, items))
        assert len(items) <= max_items
        if max_size is None:
            assert len(items) == min(waiting, max_items)
        else:
            assert size <= max_size or len(items) == 1
            assert bool(items) == bool(waiting)


def test_a_thousand_waiting_items_of_one_stream_hold_up_no_other() -> None:
    queue: FairQueue[int, int] = FairQueue(2000)
    queue.add("long", range(1000))
    first = queue.take(32)
    queue.add("short", [-1, -2])
    second = queue.take(32)
    assert [share.items for share in first] == [list(range(32))]
    assert [(share.call.stream, len(share.items)) for share in second] == [("long", 30), ("short", 2)]


def test_streams_that_are_done_are_forgotten() -> None:
    queue: FairQueue[int, int] = FairQueue(10)
    for stream in range(1000):
        call = queue.add(stream, [1, 2])
        assert call is not None
        if stream % 2:
            queue.take(5)
        queue.cancel(call)
    assert not queue._streams
    assert queue.waiting == 0


def test_misuse_is_noticed() -> None:
    queue: FairQueue[int, int] = FairQueue(10)
    with pytest.raises(RuntimeError, match="nothing to wait for"):
        queue.add("a", [])
    queue.add("a", [1, 2, 3])
    (share,) = queue.take(2)
    with pytest.raises(RuntimeError, match="2 items"):
        queue.add_results(share, [1])
    assert queue.add_results(share, [1, 2]) is False
    with pytest.raises(RuntimeError, match="once"):
        queue.add_results(share, [1, 2])


BUGS = Bugs()


@BUGS.caught_by(test_no_stream_that_waits_falls_behind_another_by_more_than_one_item)
def a_stream_keeps_its_turn_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue._advance

    def advance(self: Queue, whose: Hashable, calls: Any) -> None:
        honest(self, whose, calls)
        if whose in self._streams:
            self._streams.move_to_end(whose, last=False)

    monkeypatch.setattr(FairQueue, "_advance", advance)


@BUGS.caught_by(test_streams_that_come_back_again_and_again_overtake_nobody)
def a_newcomer_is_served_first(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.add

    def add(self: Queue, whose: Hashable, items: Sequence[Text]) -> Any:
        is_new = whose not in self._streams
        call = honest(self, whose, items)
        if is_new and call is not None:
            self._streams.move_to_end(whose, last=False)
        return call

    monkeypatch.setattr(FairQueue, "add", add)


@BUGS.caught_by(
    test_every_item_is_given_out_exactly_once_unless_its_call_left, test_a_call_that_left_is_never_given_out_again
)
def a_call_that_left_is_still_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel(self: Queue, call: QueuedCall[Text, Text]) -> None:
        call._is_cancelled = True

    monkeypatch.setattr(FairQueue, "cancel", cancel)


@BUGS.caught_by(test_every_item_is_given_out_exactly_once_unless_its_call_left)
def leaving_takes_the_whole_stream_along(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.cancel

    def cancel(self: Queue, call: QueuedCall[Text, Text]) -> None:
        honest(self, call)
        for other in self._streams.pop(call.stream, ()):
            self.waiting -= len(other.items) - other._taken

    monkeypatch.setattr(FairQueue, "cancel", cancel)


@BUGS.caught_by(test_a_call_gets_its_results_whole_and_in_order_whatever_the_batches_and_answers)
def results_are_joined_in_the_order_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.add_results

    def add_results(self: Queue, share: BatchShare[Text, Text], results: Sequence[Text]) -> bool:
        arrived = list(share.call._parts.values())
        is_whole = honest(self, share, results)
        if is_whole:
            share.call.results = [one for part in [*arrived, results] for one in part]
        return is_whole

    monkeypatch.setattr(FairQueue, "add_results", add_results)


@BUGS.caught_by(test_a_call_gets_its_results_whole_and_in_order_whatever_the_batches_and_answers)
def a_call_is_whole_when_its_last_item_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.add_results

    def add_results(self: Queue, share: BatchShare[Text, Text], results: Sequence[Text]) -> bool:
        is_whole = honest(self, share, results)
        is_last = share.start + len(share.items) == len(share.call.items)
        return (is_whole or is_last) and not share.call._is_cancelled

    monkeypatch.setattr(FairQueue, "add_results", add_results)


@BUGS.caught_by(test_the_order_within_a_stream_is_kept)
def the_latest_call_of_a_stream_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.add

    def add(self: Queue, whose: Hashable, items: Sequence[Text]) -> Any:
        call = honest(self, whose, items)
        if call is not None:
            self._streams[whose].rotate(1)
        return call

    monkeypatch.setattr(FairQueue, "add", add)


@BUGS.caught_by(
    test_every_item_is_given_out_exactly_once_unless_its_call_left,
    test_a_call_gets_its_results_whole_and_in_order_whatever_the_batches_and_answers,
)
def an_item_is_given_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue._advance

    def advance(self: Queue, whose: Hashable, calls: Any) -> None:
        call = calls[0]
        honest(self, whose, calls)
        if call._taken == 2 < len(call.items) and not call._parts:
            call._taken, call._parts = 1, {-1: ()}

    monkeypatch.setattr(FairQueue, "_advance", advance)


@BUGS.caught_by(test_a_batch_is_as_full_as_its_limits_allow)
def a_batch_holds_one_item_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.take
    monkeypatch.setattr(FairQueue, "take", lambda self, most, size=None: honest(self, most + 1, size))


@BUGS.caught_by(test_a_batch_is_as_full_as_its_limits_allow)
def the_size_of_a_batch_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.take
    monkeypatch.setattr(FairQueue, "take", lambda self, most, size=None: honest(self, most))


@BUGS.caught_by(test_every_item_is_given_out_exactly_once_unless_its_call_left)
def any_number_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FairQueue.add

    def add(self: Queue, whose: Hashable, items: Sequence[Text]) -> Any:
        self._max_waiting = 10**9
        return honest(self, whose, items)

    monkeypatch.setattr(FairQueue, "add", add)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
