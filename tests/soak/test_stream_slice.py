# SPDX-License-Identifier: Apache-2.0
"""A short slice of the long runs of guarded streams, and a look at the judge: it must notice what it is there for."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.soak.streams.chunkers import Cutter, read_request, write_answer
from tests.soak.streams.client import Event, Heard
from tests.soak.streams.faulty import VARIANTS
from tests.soak.streams.laws import judge
from tests.soak.streams.leaving import p99
from tests.soak.streams.peers import Answered, Record
from tests.soak.streams.plans import USAGE, Choice, Fault, Leave, Odds, Piece, Plan, draw_plan
from tests.soak.streams.play import UNHURRIED, Game, play
from tests.soak.streams.steady_text import count_mails, sentence_ends, tokens
from tests.soak.streams.words import EYES

FIRST, SECOND = "Bax pilax dux. ", "Hex piman gaz."
CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
PLAN = Plan(
    1,
    0,
    (
        Choice(FIRST + SECOND, (Piece(FIRST, logprob={"token": FIRST}), Piece(SECOND)), "stop", True),
        Choice("", (Piece(tool_call=CALL),), "tool_calls", False),
    ),
    (
        (0, {"choices": [{"delta": {"content": FIRST}}]}),
        (0, {"choices": [{"delta": {"content": SECOND}}]}),
    ),
    ("far_words", "far_texts"),
    "far_words",
    True,
)


async def test_a_few_random_streams_break_no_law_and_leave_nothing(tmp_path: Path) -> None:
    report = await play(Game(streams=30, seed=7, at_once=30, odds=Odds(0.1, 0.1), patience=UNHURRIED), tmp_path)
    assert report.violations == []
    assert report.streams == 30
    assert {"complete", "fault", "left"} <= set(report.ends)


async def test_a_server_that_releases_early_is_found_out(tmp_path: Path) -> None:
    report = await play(Game(streams=8, seed=7, at_once=8, variant="early release", patience=UNHURRIED), tmp_path)
    assert VARIANTS["early release"].laws & set(report.laws())


def found(start: int, end: int, detector: str = "far_words") -> dict[str, Any]:
    text = (FIRST + SECOND)[start:end]
    return {"start": start, "end": end, "text": text, "detector_id": detector, "score": 0.9}


def told(choice: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    one = {"index": choice, "delta": {"role": "assistant", **delta}, "logprobs": None, "finish_reason": finish}
    return {"id": "c1", "model": PLAN.model, "choices": [one], **more}


def entry(start: int, end: int, *results: dict[str, Any], choice: int = 0) -> dict[str, Any]:
    one = {"choice_index": choice, "results": list(results), "start_index": start, "processed_index": end}
    return {"detections": {"output": [one]}, "warnings": [{"type": "UNSUITABLE_OUTPUT", "message": ""}]}


def right_events() -> list[Any]:
    """All that a right server says."""
    first = told(0, {"content": FIRST}, **entry(0, 15, found(4, 9)))
    first["choices"][0]["logprobs"] = {"content": [{"token": FIRST}]}
    last = {"id": "c1", "model": PLAN.model, "choices": [], "usage": USAGE}
    last |= entry(0, 29, found(4, 9, "far_texts"), found(19, 24, "far_texts"))
    return [
        first,
        told(1, {"tool_calls": [CALL]}, "tool_calls"),
        told(0, {"content": SECOND}, **entry(15, 29, found(19, 24))),
        told(0, {}, "stop"),
        last,
        "[DONE]",
    ]


def right_record() -> Record:
    words = ("Bax ", "pilax ", "dux. ", "Hex ", "piman ", "gaz.")
    answers = [Answered("far_words", word, 0.0) for word in words]
    return Record(model_requests=1, model_done_at=4.0, answers=[*answers, Answered("far_texts", FIRST + SECOND, 9.0)])


def hear(events: list[Any]) -> Heard:
    heard = [Event("", one if isinstance(one, str) else json.dumps(one), 1.0 + n) for n, one in enumerate(events)]
    return Heard(200, "content-type: text/event-stream", heard, b"", "complete", 10.0)


def test_the_judge_accepts_a_right_stream() -> None:
    assert judge(PLAN, hear(right_events()), right_record()) == []


def choice_of(events: list[Any], number: int) -> dict[str, Any]:
    one: dict[str, Any] = events[number]["choices"][0]
    return one


def entry_of(events: list[Any], number: int) -> dict[str, Any]:
    one: dict[str, Any] = events[number]["detections"]["output"][0]
    return one


BREAKS: list[tuple[str, Callable[[list[Any]], object]]] = [
    ("done", lambda events: events.pop()),
    ("done", lambda events: events.append("[DONE]")),
    ("final", lambda events: events.insert(5, events[4])),
    ("final", lambda events: events[4].pop("detections")),
    ("usage", lambda events: events[4].pop("usage")),
    ("usage", lambda events: events[0].update(usage=USAGE)),
    ("finish", lambda events: events.pop(3)),
    ("finish", lambda events: choice_of(events, 0).update(finish_reason="stop")),
    ("tool calls", lambda events: choice_of(events, 1)["delta"].update(tool_calls=[])),
    ("logprobs", lambda events: choice_of(events, 0).update(logprobs=None)),
    ("role", lambda events: choice_of(events, 0)["delta"].pop("role")),
    ("text", lambda events: events.pop(2)),
    ("text", lambda events: choice_of(events, 0).update(index=1)),
    ("offsets", lambda events: entry_of(events, 2).update(start_index=0)),
    ("offsets", lambda events: entry_of(events, 2).update(choice_index=1)),
    ("offsets", lambda events: events[2].pop("detections")),
    ("finding lost", lambda events: (entry_of(events, 0)["results"].pop(), events[0].pop("warnings"))),
    ("finding lost", lambda events: entry_of(events, 4)["results"].pop()),
    ("finding twice", lambda events: entry_of(events, 0)["results"].append(found(4, 9))),
    ("finding twice", lambda events: entry_of(events, 4)["results"].append(found(4, 9, "far_texts"))),
    ("finding wrong", lambda events: entry_of(events, 0)["results"].append(found(0, 3))),
    ("finding wrong", lambda events: entry_of(events, 0)["results"][0].update(start=5, end=10)),
    ("finding place", lambda events: entry_of(events, 0)["results"].append(found(19, 24))),
    ("warning", lambda events: events[0].pop("warnings")),
    ("shape", lambda events: choice_of(events, 0).update(index=2)),
    ("shape", lambda events: events.insert(0, told(0, {}))),
]


@pytest.mark.parametrize(("law", "break_it"), BREAKS)
def test_the_judge_notices_every_kind_of_broken_law(law: str, break_it: Callable[[list[Any]], object]) -> None:
    events = right_events()
    break_it(events)
    assert [violation.law for violation in judge(PLAN, hear(events), right_record())] == [law]


def test_text_that_leaves_before_a_detector_has_answered_is_noticed() -> None:
    record = right_record()
    record.answers[2] = record.answers[2]._replace(at=1.1)
    assert [one.law for one in judge(PLAN, hear(right_events()), record)] == ["held"]


def test_a_text_that_is_read_twice_is_noticed() -> None:
    record = right_record()
    record.answers.append(record.answers[0])
    assert [one.law for one in judge(PLAN, hear(right_events()), record)] == ["read once"]


def test_an_error_that_nobody_made_is_noticed() -> None:
    heard = hear(right_events())
    heard.events[-2] = Event("error", '{"code":500,"details":"x"}', 5.0)
    assert [one.law for one in judge(PLAN, heard, right_record())] == ["error"]


@pytest.mark.parametrize(
    ("code", "details", "laws"),
    [(502, "`far_words` failed", []), (500, "`far_words` failed", ["error"]), (502, "`model` failed", ["error"])],
)
def test_a_failure_that_is_told_with_another_code_or_name_is_noticed(code: int, details: str, laws: list[str]) -> None:
    heard = hear([{}, "[DONE]"])
    heard.events[0] = Event("error", json.dumps({"code": code, "details": details}), 5.0)
    plan = replace(PLAN, fault=Fault("far_words", 502))
    assert [one.law for one in judge(plan, heard, Record(model_requests=1))] == laws


def test_a_model_that_speaks_on_after_the_client_has_left_is_noticed() -> None:
    plan = draw_plan(1, 7)
    heard = Heard(end="left", ended_at=10.0)
    assert judge(plan, heard, Record(model_requests=1, model_closed_at=10.05)) == []
    assert [one.law for one in judge(plan, heard, Record(model_requests=1, model_closed_at=12.0))] == ["model stops"]
    assert [one.law for one in judge(plan, heard, Record(model_requests=1))] == ["model stops"]


def test_every_word_of_a_plan_stands_at_one_place() -> None:
    for number in range(50):
        words = " ".join(choice.text for choice in draw_plan(number, 3).choices).split()
        assert len(words) == len(set(words))


def test_plans_cover_what_they_are_to_cover() -> None:
    plans = [draw_plan(number, 3) for number in range(300)]
    assert {len(plan.choices) for plan in plans} == {1, 2, 3, 4}
    assert {len(plan.detectors) for plan in plans} == {1, 2, 3, 4, 5, 6}
    assert len({EYES[name].chunker for plan in plans for name in plan.holders}) == 4
    assert 4 <= sum(plan.fault is not None for plan in plans) <= 20
    assert 4 <= sum(isinstance(plan.leave, Leave) for plan in plans) <= 20


def test_the_chunkers_cut_the_same_whatever_the_frames() -> None:
    text = "Bax dux, gaz. Hex\n\nfox dax bix cux, fex gix hax bux cax dex fix gux. 茶。Bex"
    for name in ("clauses", "spans"):
        whole = Cutter(name)
        expected = [one[:2] for one in [*whole.feed(text, 0), *whole.finish()]]
        cutter = Cutter(name)
        chunks = [chunk for number, sign in enumerate(text) for chunk in cutter.feed(sign, number)] + cutter.finish()
        assert [one[:2] for one in chunks] == expected
        assert "".join(one[0] for one in chunks) == text
        assert all((start, start + len(part) - 1) == (first, last) for part, start, first, last in chunks)


def test_messages_of_the_chunkers_are_encoded_as_agreed() -> None:
    assert read_request(b"\x0a\x05caf\xc3\xa9\x10\xac\x02") == ("café", 300)
    token = b"\x08\x03\x10\x05\x1a\x02ab"
    assert (
        write_answer("ab", 3, 1, 2)
        == b"\x0a" + bytes([len(token)]) + token + b"\x10\x05\x18\x03\xa0\x01\x01\xa8\x01\x02"
    )


def test_figures_are_what_they_say() -> None:
    assert p99([float(n) for n in range(1, 201)]) == 198.0
    assert p99([1.0]) == 1.0
    assert "".join(tokens(4)) == "The parcel is at"
    assert sentence_ends(14) == [len("".join(tokens(13)))]
    assert count_mails(60) == 1
