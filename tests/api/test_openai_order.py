# SPDX-License-Identifier: Apache-2.0
"""Laws of the order of a stream: whatever comes when, all of it leaves once, each call complete before the next."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.api.openai.stream_order import Leaving, Message, StreamOrder
from lockgate.errors import HeldTooMuch
from lockgate.gate.release import Release
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

CONTENT = 0  # the lane of the content; the others are calls
BUGS = Bugs()


class Run(NamedTuple):
    """What was written, in order, and where each call may begin."""

    written: Leaving
    afters: dict[int, int]
    pieces: dict[int, list[str]]


def release(text: str, start: int = 0, *, is_final: bool = False) -> Release:
    return Release(start, start + len(text), text, is_final=is_final)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Content and a few calls, each cut into releases, which come in any order that keeps each lane's own."""
    content = draw(st.lists(st.text("ab", max_size=3), min_size=1, max_size=4))
    size = len("".join(content))
    afters = dict(enumerate(sorted(draw(st.lists(st.integers(0, size), max_size=3))), 1))
    pieces = {CONTENT: content} | {
        lane: [f"{lane}{text}" for text in draw(st.lists(st.text("xy", max_size=3), min_size=1, max_size=3))]
        for lane in afters
    }
    order = StreamOrder(1000)
    for lane, after in afters.items():
        order.enqueue(0, lane, after)
    turns = draw(st.permutations([lane for lane, texts in pieces.items() for _ in texts]))
    written: Leaving = []
    sent = dict.fromkeys(pieces, 0)
    passed = 0
    for lane in turns:
        text = pieces[lane][sent[lane]]
        sent[lane] += 1
        one = release(text, passed if lane == CONTENT else 0, is_final=sent[lane] == len(pieces[lane]))
        written += order.take(0, lane, one)
        if lane == CONTENT:
            passed = one.end
            written += order.pass_content(0, passed)
    assert order.is_empty
    return Run(written, afters, pieces)


@given(runs())
def test_every_release_leaves_once_in_the_order_of_its_lane(run: Run) -> None:
    for lane, texts in run.pieces.items():
        assert [one.text for other, one in run.written if other == lane] == texts


@given(runs())
def test_a_call_is_complete_when_the_next_begins_and_follows_the_content_before_it(run: Run) -> None:
    calls = [lane for lane, _ in run.written if lane != CONTENT]
    assert calls == sorted(calls)
    passed = 0
    for lane, one in run.written:
        if lane == CONTENT:
            passed = one.end
        else:
            assert passed >= run.afters[lane]


def messages() -> st.SearchStrategy[list[Message]]:
    ends = st.sampled_from([None, None, "stop"])
    return st.lists(
        st.lists(ends, max_size=2).map(lambda reasons: {"choices": [{"finish_reason": one} for one in reasons]}),
        max_size=8,
    )


@given(messages())
def test_messages_that_pass_leave_once_in_order_and_only_one_that_may_be_the_last_waits(said: list[Message]) -> None:
    order = StreamOrder(1000)
    written: list[Message] = []
    for place, message in enumerate(said, 1):
        written += order.pass_message(message)
        is_end = not message["choices"] or any(one["finish_reason"] for one in message["choices"])
        assert len(written) == place - is_end
    assert [*written, *order.list_last()] == said


def test_a_choice_ends_once_and_the_ends_are_listed_by_choice() -> None:
    order = StreamOrder(1000)
    assert [order.end(1), order.end(1), order.end(0)] == [True, False, True]
    order.endings = {1: {"choices": [1]}, 0: {"choices": [0]}}
    assert order.list_last() == [{"choices": [0]}, {"choices": [1]}]


def test_what_waits_for_its_turn_is_bounded_also_without_text() -> None:
    order = StreamOrder(10)
    order.enqueue(0, 1)
    order.enqueue(0, 2)
    with pytest.raises(HeldTooMuch, match="more than 10 characters"):
        for _ in range(20):
            assert order.take(0, 2, release("")) == []


def test_what_has_left_is_no_longer_counted() -> None:
    order = StreamOrder(10)
    for lane in range(1, 20):
        order.enqueue(0, lane)
    for lane in range(1, 19, 2):
        assert order.take(0, lane + 1, release("12345", is_final=True)) == []
        assert len(order.take(0, lane, release("1", is_final=True))) == 2


@BUGS.caught_by(test_every_release_leaves_once_in_the_order_of_its_lane)
def what_waited_stays_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamOrder._take_waiting

    def take(self: StreamOrder, choice: int) -> Leaving:
        kept = {turn.lane: [*turn.waiting] for turn in self._queues.get(choice, ())}
        leaving = honest(self, choice)
        for turn in self._queues.get(choice, ()):
            turn.waiting[:] = kept[turn.lane]
        return leaving

    monkeypatch.setattr(StreamOrder, "_take_waiting", take)


@BUGS.caught_by(test_a_call_is_complete_when_the_next_begins_and_follows_the_content_before_it)
def a_call_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamOrder, "_is_next", lambda _self, _choice, _turn: True)


@BUGS.caught_by(test_messages_that_pass_leave_once_in_order_and_only_one_that_may_be_the_last_waits)
def the_last_message_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamOrder, "list_last", lambda _self: [])


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
