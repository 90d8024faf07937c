# SPDX-License-Identifier: Apache-2.0
"""The law of envelopes: a mark in any JSON that a model puts into an answer leaves only where nothing is hidden.

Planted bugs, one for each way out, are caught by the law.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.api.openai import envelope as envelopes
from lockgate.api.openai.deltas import ALL_LANES
from lockgate.api.openai.envelope import Envelope
from lockgate.api.openai.events import EventWriter
from lockgate.api.openai.format import CHAT, TEXT, read_request
from lockgate.api.openai.stream_reader import StreamOptions
from lockgate.api.openai.whole_answer import CHATS, TEXTS, Dialect, WholeAnswer
from lockgate.api.receipts import AnswerAccount
from lockgate.errors import BrokeProtocol
from lockgate.gate.answer_fields import MAX_CHARS, MAX_VALUES, AnswerFields
from lockgate.gate.receipts import Receipt
from lockgate.gate.release import ReleaseGate
from lockgate.gate.sse import SseParser
from lockgate.gate.values import Detection, Frame
from lockgate.gate.verdicts import Action, Judge, Measures
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

MARK, FALLBACK = "bluebird", "withheld"
BUGS = Bugs()
REQUESTS: Mapping[str, Any] = {
    CHATS.kind: (CHAT, b'{"model":"m","messages":[{"role":"user","content":"q"}]}'),
    TEXTS.kind: (TEXT, b'{"model":"m","prompt":"q"}'),
}

# Any JSON at the places that a model can fill.
STRINGS = st.sampled_from(["x", "stop", "tool_calls", "custom", "", MARK, f"a {MARK}.", f"get_{MARK}", MARK * 40])
KEYS = st.sampled_from(["a", "id", "type", "text", MARK, "function", "name", "arguments", "index", "total_tokens"])
VALUES = st.recursive(
    STRINGS | st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
TOP = ("id", "object", "created", "model", "system_fingerprint", "service_tier", "usage", "provider", MARK)
CHOICE = ("finish_reason", "stop_reason", "logprobs", "note", MARK)
PART = (
    *("role", "name", "tool_call_id", "annotations", "audio", "reasoning_content", "reasoning", "refusal"),
    *("function_call", "tool_calls", "note", MARK),
)
CALL = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("id", "type", "index", "note"), STRINGS | VALUES),
        "function": st.dictionaries(st.sampled_from(["name", "arguments", "parsed"]), STRINGS | VALUES, max_size=3),
        "custom": st.dictionaries(st.sampled_from(["name", "input"]), STRINGS, max_size=2),
    },
)


def pick(keys: Iterable[str]) -> Any:
    """An object with some of these keys."""
    return st.dictionaries(st.sampled_from(list(keys)), STRINGS | VALUES, max_size=3)


PARTS = st.builds(
    lambda part, calls, content: {**part, **({"tool_calls": calls} if calls else {}), "content": content},
    pick(PART),
    st.lists(CALL, max_size=2),
    st.sampled_from(["Hello.", f"A {MARK}.", None]),
)
CHOICES = st.builds(
    lambda choice, part, text: {"index": 0, **choice, "message": part, "delta": part, "text": text},
    pick(CHOICE),
    PARTS,
    STRINGS,
)
MESSAGES = st.builds(lambda top, choice: {**top, "choices": [choice]}, pick(TOP), CHOICES)


def open_envelope() -> Envelope:
    return Envelope(AnswerFields({"d": Action.MASK}), hides=True)


def read_fields(envelope: Envelope) -> None:
    """What a detector does with the values that wait."""
    values = envelope.fields.waiting.pop("d", [])
    envelope.fields.note("d", values, [value for value in values if MARK in value])


def release(writer: WholeAnswer | EventWriter, frames: list[Frame], action: Action) -> bytes:
    """The bytes for the texts of all lanes, each read at once."""
    written = b""
    for lane in dict.fromkeys(frame.choice for frame in frames):
        gate, judge = ReleaseGate(["d"], choice=lane), Judge(Measures(action, fallback=FALLBACK))
        own = [frame for frame in frames if frame.choice == lane]
        text = "".join(frame.text for frame in own)
        releases = [one for frame in own for one in gate.receive(frame)]
        spots = [at for at in range(len(text)) if text.startswith(MARK, at)]
        found = [Detection(at, at + len(MARK), MARK, "Word", "word", 1.0, "d") for at in spots]
        for one in [*releases, *gate.clear("d", len(text), found), *gate.finish()]:
            if writer.is_cut(lane) or writer.is_blocked:
                break
            verdict = judge.judge(one.start, one.text, one.detections)
            written += writer.take(one._replace(text=verdict.text, detections=verdict.detections), verdict)
    return written


def write_whole(message: Mapping[str, Any], dialect: Dialect, action: Action) -> tuple[bytes, Receipt]:
    """A whole answer as it leaves; nothing if it is refused."""
    request, receipt = read_request(*REQUESTS[dialect.kind]), Receipt("p")
    envelope = open_envelope()
    envelope.receipt = receipt
    writer = WholeAnswer(dialect, request, has_guards=True, fallback=FALLBACK, lanes=ALL_LANES, envelope=envelope)
    writer.account = AnswerAccount(receipt)
    try:
        frames = list(writer.to_frames(dict(message)))
    except BrokeProtocol:
        return b"", receipt
    read_fields(envelope)
    return release(writer, frames, action) + writer.finish(), receipt


def write_stream(messages: Iterable[Mapping[str, Any]], dialect: Dialect, action: Action) -> tuple[bytes, Receipt]:
    """The same, streamed."""
    request, receipt = read_request(*REQUESTS[dialect.kind]), Receipt("p")
    envelope = open_envelope()
    envelope.receipt = receipt
    options = StreamOptions(hides=True, fallback=FALLBACK, lanes=ALL_LANES, holds=True, envelope=envelope)
    writer = EventWriter(dialect, request, options)
    writer.account = AnswerAccount(receipt)
    try:
        frames = [frame for message in messages for frame in writer.to_frames(dict(message))]
    except BrokeProtocol:
        return b"", receipt
    read_fields(envelope)
    return release(writer, frames, action) + writer.finish(), receipt


def check_hidden(written: bytes, receipt: Receipt) -> None:
    """Nowhere in what is written stands the mark, the receipt included; and nothing is counted as unread."""
    assert MARK.encode() not in written
    for event in SseParser().feed(written) if written.startswith(b"data: ") else ():
        assert event.data == "[DONE]" or json.loads(event.data)
    assert not receipt.unread
    assert all(MARK not in name for name in receipt.dropped)


ACTIONS = st.sampled_from([Action.MASK, Action.STOP, Action.BLOCK])
DIALECTS = st.sampled_from([CHATS, TEXTS])


@given(MESSAGES, DIALECTS, ACTIONS)
def test_no_mark_in_any_json_leaves_with_a_whole_answer(message: Any, dialect: Dialect, action: Action) -> None:
    check_hidden(*write_whole(message, dialect, action))


@given(st.lists(MESSAGES, min_size=1, max_size=3), DIALECTS, ACTIONS)
def test_no_mark_in_any_json_leaves_with_a_stream(messages: list[Any], dialect: Dialect, action: Action) -> None:
    check_hidden(*write_stream(messages, dialect, action))


LAWS = (test_no_mark_in_any_json_leaves_with_a_whole_answer, test_no_mark_in_any_json_leaves_with_a_stream)


@BUGS.caught_by(*LAWS)
def unknown_fields_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Envelope.note

    def note(self: Envelope, message: Any, *more: Any) -> None:
        honest(self, message, *more)
        self._built = None
        self._head["provider"] = message.get("provider")

    monkeypatch.setattr(Envelope, "note", note)
    monkeypatch.setattr(Envelope, "_may_leave", lambda _self, name, _value: name == "provider")


@BUGS.caught_by(*LAWS)
def a_finding_in_a_field_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = AnswerFields.note
    monkeypatch.setattr(AnswerFields, "note", lambda self, name, values, _found=(): honest(self, name, values))


@BUGS.caught_by(*LAWS)
def names_of_tools_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "judge_label", lambda _self, _label: Action.ANNOTATE)


@BUGS.caught_by(*LAWS)
def reasons_pass_as_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "_close_choice", lambda _self, choice: choice)


@BUGS.caught_by(*LAWS)
def usage_passes_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelopes, "type_usage", lambda usage, *_: usage)


@BUGS.caught_by(*LAWS)
def the_receipt_names_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    class Everything:
        def __contains__(self, _name: object) -> bool:
            return True

    monkeypatch.setattr(envelopes, "_NAMED", Everything())


@BUGS.caught_by(LAWS[0])
def the_names_of_a_message_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "keep_names", lambda _self, message: {"role": message.get("role", "assistant")})


@BUGS.caught_by(LAWS[1])
def later_heads_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Envelope.close

    def close(self: Envelope, event: Any, **named: str) -> dict[str, Any]:
        return {**honest(self, event, **named), "id": event.get("id")}

    monkeypatch.setattr(Envelope, "close", close)


@pytest.mark.parametrize(("plant", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(plant: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(plant, law, monkeypatch)


# AnswerFields.


def test_a_value_may_leave_when_every_detector_has_read_it_and_found_nothing() -> None:
    fields = AnswerFields({"a": Action.MASK, "b": Action.ANNOTATE})
    assert fields.add("x")
    assert fields.add("x")
    assert fields.unread == 2
    fields.note("a", fields.waiting.pop("a"))
    assert fields.find_action("x") is Action.MASK  # one has not answered
    fields.note("b", fields.waiting.pop("b"), ["x"])
    assert (fields.find_action("x"), fields.unread) == (Action.ANNOTATE, 0)  # that one only annotates
    assert fields.find_action("never added") is Action.MASK


def test_the_strictest_action_counts_and_what_was_given_in_vain_is_given_again() -> None:
    fields = AnswerFields({"a": Action.MASK, "b": Action.BLOCK})
    fields.add("x")
    fields.waiting.clear()  # given, and never answered
    assert sorted(fields.give_again()) == ["a", "b"]
    assert not fields.waiting
    for name in ("b", "a"):
        fields.note(name, fields.alone.pop(name), ["x"])
    assert fields.find_action("x") is Action.BLOCK
    assert fields.give_again() == []


def test_values_are_bounded_in_length_and_number() -> None:
    fields = AnswerFields({"a": Action.MASK})
    assert not fields.add("x" * (MAX_CHARS + 1))
    assert all(fields.add(str(number)) for number in range(MAX_VALUES))
    assert not fields.add("one more")
    assert fields.find_action("one more") is Action.MASK


@pytest.mark.parametrize("part", ["loose", {"text": ["nested"]}, {"type": "odd", "text": ""}, {"text": "a", "b": 1}])
@pytest.mark.parametrize("hides", [True, False])
def test_a_part_of_content_that_is_more_than_a_text_is_counted(part: Any, hides: bool) -> None:
    envelope = Envelope(AnswerFields(), hides=hides)
    for content in ([{"type": "text", "text": "a"}], [part]):
        assert (envelope.receipt.dropped, envelope.receipt.unread) == ({}, {})
        envelope.note({"choices": [{"message": {"content": content}}]}, "message")
    counted = envelope.receipt.dropped if hides else envelope.receipt.unread
    assert counted == {"choices[].message.content": 1}
