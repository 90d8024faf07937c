# SPDX-License-Identifier: Apache-2.0
"""The laws of the turn bite: each bug planted in the machine is caught by a named law."""

import pytest

from lockgate.agent import turn_machine
from lockgate.agent.turn_machine import Effect, NoteAborted, Store, TurnEvent, TurnMachine, TurnPhase
from lockgate.sessions.turns import Turn
from tests.agent import test_turn_machine as laws
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()


@BUGS.caught_by(laws.test_a_turn_is_stored_or_noted_or_leaves_nothing_and_never_two_of_these)
def a_client_that_leaves_after_the_store_makes_an_aborted_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine.stored

    def stored(self: TurnMachine) -> list[Effect]:
        effects = honest(self)
        self.state = TurnPhase.STORING
        return effects

    monkeypatch.setattr(TurnMachine, "stored", stored)


@BUGS.caught_by(
    laws.test_a_repeated_request_id_gives_the_stored_answer_or_is_refused_and_adds_no_turn,
    laws.test_a_turn_is_stored_exactly_when_it_was_read_and_answered_to_its_last_word,
)
def a_retry_makes_a_second_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine.finish

    def finish(self: TurnMachine, *, is_answered: bool) -> list[Effect]:
        self._repeated = None
        return honest(self, is_answered=is_answered)

    monkeypatch.setattr(TurnMachine, "finish", finish)


@BUGS.caught_by(laws.test_a_repeated_request_id_gives_the_stored_answer_or_is_refused_and_adds_no_turn)
def a_request_id_answers_any_question(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine.prepare

    def prepare(self: TurnMachine, question: str) -> Turn | None:
        if self._repeated is not None:
            question = self._repeated.question
        return honest(self, question)

    monkeypatch.setattr(TurnMachine, "prepare", prepare)


@BUGS.caught_by(laws.test_a_turn_is_stored_exactly_when_it_was_read_and_answered_to_its_last_word)
def a_blocked_answer_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine.finish

    def finish(self: TurnMachine, *, is_answered: bool) -> list[Effect]:
        return honest(self, is_answered=is_answered or self.state is TurnPhase.ANSWERING)

    monkeypatch.setattr(TurnMachine, "finish", finish)


@BUGS.caught_by(laws.test_a_question_whose_input_was_not_read_is_kept_nowhere)
def an_unread_question_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine._break_off

    def break_off(self: TurnMachine, ending: str, reason: str, *, is_noted: bool) -> list[Effect]:
        if self.state is TurnPhase.READING:
            self.state = TurnPhase.ANSWERING
        return honest(self, ending, reason, is_noted=is_noted)

    monkeypatch.setattr(TurnMachine, "_break_off", break_off)


@BUGS.caught_by(laws.test_what_breaks_off_is_noted_with_what_was_said_unless_the_caller_is_to_blame)
def a_mistake_of_the_caller_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TurnMachine, reason: str, *, is_callers: bool = False) -> list[Effect]:
        return self._break_off(turn_machine.FAILED, reason, is_noted=True)

    monkeypatch.setattr(TurnMachine, "fail", fail)


@BUGS.caught_by(laws.test_a_turn_is_stored_or_noted_or_leaves_nothing_and_never_two_of_these)
def a_turn_without_a_session_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine._break_off

    def break_off(self: TurnMachine, ending: str, reason: str, *, is_noted: bool) -> list[Effect]:
        self._has_session = True
        return honest(self, ending, reason, is_noted=is_noted)

    monkeypatch.setattr(TurnMachine, "_break_off", break_off)


@BUGS.caught_by(laws.test_what_breaks_off_is_noted_with_what_was_said_unless_the_caller_is_to_blame)
def a_store_that_fails_counts_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine.finish

    def finish(self: TurnMachine, *, is_answered: bool) -> list[Effect]:
        effects = honest(self, is_answered=is_answered)
        for _ in [one for one in effects if isinstance(one, Store)]:
            self.state = TurnPhase.OVER
        return effects

    monkeypatch.setattr(TurnMachine, "finish", finish)
    monkeypatch.setitem(turn_machine.TABLE, (TurnPhase.OVER, TurnEvent.STORE), TurnPhase.OVER)


@BUGS.caught_by(laws.test_what_breaks_off_is_noted_with_what_was_said_unless_the_caller_is_to_blame)
def an_abort_forgets_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine._break_off

    def break_off(self: TurnMachine, ending: str, reason: str, *, is_noted: bool) -> list[Effect]:
        effects = honest(self, ending, reason, is_noted=is_noted)
        return [NoteAborted(one.turn._replace(delivered="")) for one in effects if isinstance(one, NoteAborted)]

    monkeypatch.setattr(TurnMachine, "_break_off", break_off)


@BUGS.caught_by(laws.test_a_label_is_noted_once_for_a_complete_answer_that_is_no_repeat)
def the_label_of_a_blocked_answer_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine.finish

    def finish(self: TurnMachine, *, is_answered: bool) -> list[Effect]:
        effects = honest(self, is_answered=is_answered)
        return effects or [turn_machine.NoteLabel(self._question, self.label)]

    monkeypatch.setattr(TurnMachine, "finish", finish)


@BUGS.caught_by(laws.test_any_order_of_events_follows_the_table_and_another_event_changes_nothing)
def a_turn_may_be_said_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TurnMachine._move

    def move(self: TurnMachine, event: TurnEvent) -> None:
        if event is not TurnEvent.SAY or self.state is not TurnPhase.OVER:
            honest(self, event)

    monkeypatch.setattr(TurnMachine, "_move", move)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
