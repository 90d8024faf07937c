# SPDX-License-Identifier: Apache-2.0
"""The laws of lanes bite: each bug planted in what makes events of them is caught by a named law."""

from collections.abc import Mapping
from typing import Any

import pytest

from lockgate.api.openai import stream_order, stream_reader
from lockgate.api.openai import tool_calls as openai_calls
from lockgate.api.openai.events import EventWriter
from lockgate.api.openai.format import encode_event
from lockgate.api.openai.stream_order import Leaving, Message, StreamOrder
from lockgate.api.openai.stream_reader import Segment, StreamReader
from lockgate.api.openai.tool_calls import CallReader
from lockgate.gate.arguments import ArgumentsDecoder
from lockgate.gate.release import Release
from lockgate.gate.verdicts import Verdict
from tests.api import test_openai_lanes as laws
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

BUGS = Bugs()


@BUGS.caught_by(laws.test_nothing_of_a_match_leaves_in_any_field_of_any_event)
def a_text_ends_where_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamReader._find_segment

    def find(self: StreamReader, index: int, field: str) -> Segment:
        fields = self.choices[index].open
        for other in [one for one in fields if one != field and "call" not in one]:
            del fields[other]
        return honest(self, index, field)

    monkeypatch.setattr(StreamReader, "_find_segment", find)


@BUGS.caught_by(laws.test_calls_come_one_after_the_other_behind_the_content_that_was_said_before)
def a_call_is_named_where_the_content_is(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamReader._add_call

    def add(self: StreamReader, index: int, call: dict[str, Any], own: dict[str, Any]) -> None:
        before, frames = len(self._frames), self._frames
        honest(self, index, call, own)
        lane = self._find_segment(index, "content").lane
        frames[before:] = [one if one.text else one._replace(choice=lane) for one in frames[before:]]

    monkeypatch.setattr(StreamReader, "_add_call", add)


@BUGS.caught_by(laws.test_calls_come_one_after_the_other_behind_the_content_that_was_said_before)
def a_call_does_not_wait_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_self: StreamOrder, _choice: int, lane: int, release: Release) -> Leaving:
        return [(lane, release)]

    monkeypatch.setattr(StreamOrder, "take", take)


@BUGS.caught_by(laws.test_calls_come_one_after_the_other_behind_the_content_that_was_said_before)
def a_call_does_not_wait_for_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamOrder.enqueue

    def enqueue(self: StreamOrder, choice: int, lane: int, after: int = 0) -> None:
        honest(self, choice, lane, after=0)

    monkeypatch.setattr(StreamOrder, "enqueue", enqueue)


@BUGS.caught_by(
    laws.test_nothing_of_a_match_leaves_in_any_field_of_any_event,
    laws.test_every_text_leaves_as_it_was_said_but_for_its_masks,
)
def what_names_a_call_has_its_arguments_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_texts(message: Mapping[str, Any], texts: Mapping[str, str], *, hides: bool) -> dict[str, Any]:
        return {key: value for key, value in message.items() if key in ("tool_calls", "function_call")}

    monkeypatch.setattr(stream_reader, "with_texts", with_texts)


@BUGS.caught_by(laws.test_a_call_is_named_once_and_before_its_arguments)
def a_call_is_named_behind_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamReader._add_call

    def add(self: StreamReader, index: int, call: dict[str, Any], own: dict[str, Any]) -> None:
        before, frames = len(self._frames), self._frames
        honest(self, index, call, own)
        frames[before:] = frames[before:][::-1]

    monkeypatch.setattr(StreamReader, "_add_call", add)


@BUGS.caught_by(laws.test_nothing_of_a_match_leaves_in_any_field_of_any_event)
def unknown_fields_of_a_call_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = openai_calls.with_texts

    def with_texts(*args: Any, hides: bool, **options: Any) -> dict[str, Any]:
        return honest(*args, hides=False, **options)

    monkeypatch.setattr(stream_reader, "with_texts", with_texts)


@BUGS.caught_by(laws.test_nothing_of_a_match_leaves_in_any_field_of_any_event)
def unknown_fields_of_a_delta_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamReader.__init__

    def init(self: StreamReader, *args: Any, **more: Any) -> None:
        honest(self, *args, **more)
        self.kept = None

    monkeypatch.setattr(StreamReader, "__init__", init)


@BUGS.caught_by(laws.test_the_ends_come_last_and_the_very_last_event_bears_a_receipt_that_fits)
def the_end_of_a_choice_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: StreamReader, index: int, own: dict[str, Any], *, has_text: bool) -> dict[str, Any]:
        return own

    monkeypatch.setattr(StreamReader, "_keep_ending", keep)


@BUGS.caught_by(
    laws.test_the_ends_come_last_and_the_very_last_event_bears_a_receipt_that_fits,
    laws.test_messages_that_pass_are_the_models_own_and_all_lanes_are_read_beside,
)
def a_frame_is_not_on_the_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventWriter, "_encode", lambda _self, event: encode_event(event))


@BUGS.caught_by(laws.test_every_text_leaves_as_it_was_said_but_for_its_masks)
def masks_are_put_into_arguments_as_into_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(_self: CallReader, _release: Release, _verdict: Verdict | None, said: str) -> str:
        return said

    monkeypatch.setattr(CallReader, "release", release)


@BUGS.caught_by(laws.test_nothing_of_a_match_leaves_in_any_field_of_any_event)
def escapes_are_read_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CallReader.__init__

    def init(self: CallReader, call: Any, *more: Any, **named: Any) -> None:
        honest(self, call, *more, **named)
        self._arguments = None

    monkeypatch.setattr(CallReader, "__init__", init)


@BUGS.caught_by(laws.test_messages_that_pass_are_the_models_own_and_all_lanes_are_read_beside)
def escapes_are_read_as_they_stand_in_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArgumentsDecoder, "feed", lambda _self, raw: raw)


@BUGS.caught_by(laws.test_lanes_that_are_left_out_pass_unread_and_the_others_are_masked)
def of_unread_texts_the_last_piece_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamReader, "_add_unread", lambda _self, _index, own: own)


@BUGS.caught_by(laws.test_messages_that_pass_are_the_models_own_and_all_lanes_are_read_beside)
def every_message_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = StreamOrder.pass_message

    def pass_message(self: StreamOrder, message: Message) -> list[Message]:
        ready = honest(self, message)
        self._last = self._last[1:]
        return ready

    monkeypatch.setattr(StreamOrder, "pass_message", pass_message)


@BUGS.caught_by(laws.test_a_passing_message_waits_only_where_it_may_be_the_last)
def all_messages_may_be_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_order, "may_be_last", lambda _message: True)


@BUGS.caught_by(laws.test_an_answer_that_is_cut_off_ends_with_the_fallback_and_leaks_nothing)
def what_is_cut_off_leaves_with_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = EventWriter._cut_off

    def cut_off(self: EventWriter, segment: Segment, release: Release, kept: int) -> bytes:
        return honest(self, segment, release._replace(text=release.text + "Q"), kept)

    monkeypatch.setattr(EventWriter, "_cut_off", cut_off)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)
