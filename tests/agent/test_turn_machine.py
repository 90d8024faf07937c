# SPDX-License-Identifier: Apache-2.0
"""Laws of the turn: what a session holds after any order of events, breaks and retries."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.agent.turn_machine import (
    ABORTED,
    FAILED,
    REPEATED,
    TABLE,
    Effect,
    Label,
    NoteAborted,
    NoteLabel,
    Store,
    TurnEvent,
    TurnMachine,
)
from lockgate.errors import InvalidRequest
from lockgate.sessions.turns import AbortedTurn, Turn, forget_reasoning

LABELS = st.builds(Label, st.sampled_from(["RETRIEVAL", "CODE_GENERATION"]), st.just("rules"), st.text(max_size=3))
ENDS = st.sampled_from(["answered", "answered", "blocked", "input blocked"])
BREAKS = st.sampled_from(["leave", "fail", "caller", "store"])


class Attempt(NamedTuple):
    """One request: what is asked and said, how it ends, and where it breaks off, if it does."""

    question: str
    request_id: str
    pieces: list[str]
    label: Label
    end: str
    is_early: bool  # prepared before the input has been read
    breaks_at: int
    how: str


ATTEMPTS = st.builds(
    Attempt,
    st.sampled_from(["who?", "why?"]),
    st.sampled_from(["", "r1", "r2"]),
    st.lists(st.sampled_from(["a", "bc ", "<think>no</think>", ""]), max_size=4),
    LABELS,
    ENDS,
    st.booleans(),
    st.integers(0, 12),
    BREAKS,
)


class World:
    """A session, and a driver that carries effects out."""

    def __init__(self, *, has_session: bool = True) -> None:
        self.has_session = has_session
        self.turns: list[Turn] = []

    def run(self, attempt: Attempt) -> "Ran":
        """One attempt, as the driver would make it."""
        run = Ran(self, attempt)
        run.go()
        return run

    def find(self, request_id: str) -> Turn | None:
        return next((one for one in self.turns if request_id and one.request_id == request_id), None)


class Ran:
    """One attempt at work, and what became of it."""

    def __init__(self, world: World, attempt: Attempt) -> None:
        self.world, self.attempt = world, attempt
        self.machine = TurnMachine(attempt.request_id, has_session=world.has_session)
        self.before = world.find(attempt.request_id) if world.has_session else None
        self.said: list[str] = []
        self.stored: list[Turn] = []
        self.noted: list[AbortedTurn] = []
        self.labelled: list[NoteLabel] = []
        self.is_read = self.is_refused = self.is_broken = self.is_complete = False
        self._steps = 0

    def go(self) -> None:
        try:
            self._go()
            self.is_complete = True
        except _Broken:
            self.is_broken = True
            how = self.attempt.how
            effects = self.machine.leave() if how == "leave" else self.machine.fail(how, is_callers=how == "caller")
            self.carry_out(effects)
        except InvalidRequest as error:
            self.is_refused = True
            self.carry_out(self.machine.fail(error.message, is_callers=True))

    def _go(self) -> None:
        attempt, machine = self.attempt, self.machine
        self._step()
        machine.load(self.before)
        self._step()
        is_read = attempt.end != "input blocked"
        answer: Turn | None = None
        if attempt.is_early:
            answer = self._prepare()
            self._step()
        if is_read:
            machine.read()
            self.is_read = True
            self._step()
            if not attempt.is_early:
                answer = self._prepare()
                self._step()
        for piece in attempt.pieces if answer is None else [answer.answer]:
            machine.say(piece)
            self.said.append(piece)
            self._step()
        self.carry_out(machine.finish(is_answered=attempt.end == "answered"))

    def _prepare(self) -> Turn | None:
        repeated = self.machine.prepare(self.attempt.question)
        if repeated is None:
            self.machine.label = self.attempt.label
        return repeated

    def _step(self) -> None:
        self._steps += 1
        if self._steps == self.attempt.breaks_at:
            raise _Broken

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                if self.attempt.how == "store" and self.attempt.breaks_at % 2:
                    raise _Broken  # the store has failed
                self.stored.append(effect.turn)
                self.world.turns.append(effect.turn)
                further = self.machine.stored()
                if self.attempt.how == "leave" and self.attempt.breaks_at == 12:
                    raise _Broken  # the client left while the store was at it
                self.carry_out(further)
            elif isinstance(effect, NoteAborted):
                self.noted.append(effect.turn)
            else:
                self.labelled.append(effect)


class _Broken(Exception):
    pass


SCRIPTS = st.lists(ATTEMPTS, max_size=8)


@given(SCRIPTS, st.booleans())
def test_a_turn_is_stored_or_noted_or_leaves_nothing_and_never_two_of_these(
    script: list[Attempt], has_session: bool
) -> None:
    world = World(has_session=has_session)
    for ran in map(world.run, script):
        assert len(ran.stored) + len(ran.noted) <= 1
        assert has_session or not (ran.stored or ran.noted)
        assert not (ran.stored and ran.machine.ending)


@given(SCRIPTS)
def test_a_turn_is_stored_exactly_when_it_was_read_and_answered_to_its_last_word(script: list[Attempt]) -> None:
    world = World()
    for attempt in script:
        ran = world.run(attempt)
        if ran.is_complete:
            assert bool(ran.stored) == (attempt.end == "answered" and ran.before is None)
        for turn in ran.stored:
            assert ran.is_read
            assert attempt.end == "answered"
            assert turn.question == attempt.question
            assert turn.answer == forget_reasoning("".join(attempt.pieces))
            assert (turn.label, turn.topic, turn.request_id) == (
                attempt.label.label,
                attempt.label.topic,
                attempt.request_id,
            )


@given(SCRIPTS)
def test_what_breaks_off_is_noted_with_what_was_said_unless_the_caller_is_to_blame(script: list[Attempt]) -> None:
    world = World()
    for attempt in script:
        ran = world.run(attempt)
        if ran.is_broken and not ran.stored:
            assert bool(ran.noted) == (attempt.how != "caller")
            assert ran.machine.ending == (ABORTED if attempt.how == "leave" else FAILED)
        if ran.is_refused or ran.is_complete:
            assert not ran.noted
        for turn in ran.noted:
            assert turn.delivered == "".join(ran.said)
            assert turn.request_id == attempt.request_id


@given(SCRIPTS)
def test_a_question_whose_input_was_not_read_is_kept_nowhere(script: list[Attempt]) -> None:
    world = World()
    for ran in map(world.run, script):
        if not ran.is_read:
            assert not ran.stored
            assert not any(turn.question for turn in ran.noted)
        assert all(turn.question in ("", ran.attempt.question) for turn in ran.noted)


@given(SCRIPTS)
def test_a_repeated_request_id_gives_the_stored_answer_or_is_refused_and_adds_no_turn(script: list[Attempt]) -> None:
    world = World()
    for attempt in script:
        ran = world.run(attempt)
        if ran.before is None:
            assert not ran.is_refused
            assert ran.machine.ending != REPEATED
            continue
        assert not ran.stored
        assert not ran.labelled
        if ran.before.question != attempt.question:
            assert not ran.is_complete or attempt.end == "input blocked"
            assert not ran.said or attempt.end == "input blocked"
        elif ran.is_complete:
            assert ran.machine.ending == REPEATED
            assert attempt.end == "input blocked" or ran.said == [ran.before.answer]
    ids = [turn.request_id for turn in world.turns if turn.request_id]
    assert len(ids) == len(set(ids))


@given(SCRIPTS, st.booleans())
def test_a_label_is_noted_once_for_a_complete_answer_that_is_no_repeat(
    script: list[Attempt], has_session: bool
) -> None:
    world = World(has_session=has_session)
    for attempt in script:
        ran = world.run(attempt)
        is_new = ran.is_complete and attempt.end == "answered" and ran.before is None
        assert [(one.question, one.label) for one in ran.labelled] == (
            [(attempt.question, attempt.label)] if is_new else []
        )


@given(st.lists(st.sampled_from(list(TurnEvent)), max_size=12))
def test_any_order_of_events_follows_the_table_and_another_event_changes_nothing(events: list[TurnEvent]) -> None:
    machine = TurnMachine("r", has_session=True)
    stored = noted = 0
    for event in events:
        before = machine.state
        expected = TABLE.get((before, event))
        if expected is None:
            with pytest.raises(RuntimeError):
                _send(machine, event)
            assert machine.state is before
            continue
        if event is TurnEvent.COMPLETE:  # this machine has a session, and no turn to repeat
            continue
        effects = _send(machine, event)
        assert machine.state is expected
        stored += sum(isinstance(one, Store) for one in effects)
        noted += sum(isinstance(one, NoteAborted) for one in effects)
    assert stored <= 1
    assert noted <= 1


def _send(machine: TurnMachine, event: TurnEvent) -> list[Effect]:
    if event in (TurnEvent.KEEP, TurnEvent.WITHHOLD):
        return machine.finish(is_answered=event is TurnEvent.KEEP)
    if event is TurnEvent.COMPLETE:
        machine._move(event)
    elif event is TurnEvent.STORE:
        return machine.stored()
    elif event is TurnEvent.BREAK_OFF:
        return machine.leave()
    else:
        steps: dict[TurnEvent, Callable[[], object]] = {
            TurnEvent.LOAD: machine.load,
            TurnEvent.PREPARE: lambda: machine.prepare("who?"),
            TurnEvent.READ: machine.read,
            TurnEvent.SAY: lambda: machine.say("a"),
        }
        steps[event]()
    return []


def test_only_so_much_of_an_answer_is_stored() -> None:
    machine = TurnMachine(has_session=True, max_chars=3)
    machine.load()
    machine.prepare("who?")
    machine.read()
    machine.say("abcdef")
    [store] = machine.finish(is_answered=True)
    assert isinstance(store, Store)
    assert store.turn.answer == "abc [...]"
