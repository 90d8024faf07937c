# SPDX-License-Identifier: Apache-2.0
"""A short slice of the long run of grounded answers, and a look at the judge: it must notice what it is there for."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.soak.grounded.faulty import find_unnoticed
from tests.soak.grounded.laws import judge
from tests.soak.grounded.peers import Call
from tests.soak.grounded.plans import (
    HANGING,
    USAGE,
    WAYS,
    ChatPlan,
    Manners,
    Places,
    Source,
    Speaker,
    draw_wave,
    title_of,
)
from tests.soak.grounded.play import Game, play
from tests.soak.streams.client import Event, Heard
from tests.soak.streams.plans import Leave
from tests.soak.streams.play import UNHURRIED
from tests.waits import HANG_S

PLACES = Places("http://here", "http://nowhere")
ALICE = Source("docs0-q000001q", "alice", ("In q000001q rain.", "In q000001q sun."), 0.1)
BOB = Source("docs1-q000001q", "bob", (), 0.1, "reset")
MODEL = Speaker("model-q000001q", None, ("In q000001q ", "ask bdc@example.org."), 0.1, is_stream=True)
PLAN = ChatPlan(
    1,
    7,
    PLACES,
    "What is known of q000001q?",
    (ALICE, BOB),
    MODEL,
    {"alice": "token-a", "stranger-q000001q": "token-s"},
    {"bob": "fee-b"},
    "mask",
)
RECEIPT = {
    "covered": True,
    "released": {"prompt": 26, "documents": 93, "answer": 32, "sources": 93},
    "prompt_sent_to": [ALICE.path, BOB.path, MODEL.slug],
}
QUICK = Manners(model=0.2, leave=0.3, source_s=0.2, model_s=0.5, ways=[way for way in WAYS if way not in HANGING])
GAME = Game(60, 7, 60, rounds=1, retrieval_s=HANG_S, generation_s=HANG_S, idle_s=0.0, manners=QUICK, patience=UNHURRIED)


async def test_a_few_grounded_answers_break_no_law_and_leave_nothing(tmp_path: Path) -> None:
    report = await play(GAME, tmp_path)
    assert report.violations == []
    assert report.streams == 60
    assert {"done", "error", "left"} == set(report.ends)
    assert find_unnoticed(report.played, HANG_S) == {}


async def test_sources_that_come_to_no_end_are_left_when_the_time_is_over(tmp_path: Path) -> None:
    manners = QUICK._replace(model=0.0, every=1, ways=HANGING)
    report = await play(replace(GAME, requests=20, retrieval_s=0.5, manners=manners), tmp_path)
    assert report.violations == []
    assert {"done", "left"} == set(report.ends)


async def test_a_model_that_comes_to_no_end_is_left_when_the_time_is_over(tmp_path: Path) -> None:
    manners = QUICK._replace(model=1.0, every=1000, ways=HANGING)
    report = await play(replace(GAME, requests=20, generation_s=0.5, manners=manners), tmp_path)
    assert report.violations == []
    assert {"done", "error", "left"} == set(report.ends)  # blocked prompts are done


def right_events() -> list[tuple[str, dict[str, Any]]]:
    """All that a right server says."""
    found = {"start": 16, "end": 31, "text": "█" * 15, "detector_id": "mail"}
    answer = "In q000001q ask ███████████████."
    kept = {title_of(ALICE, place): {"slug": ALICE.path, "content": text} for place, text in enumerate(ALICE.texts)}
    retrieval = [{"path": one.path, "documents_retrieved": 0, "status": ""} for one in (BOB, ALICE)]
    return [
        ("retrieval_start", {"sources": 2}),
        ("source_complete", {"path": BOB.path, "status": "error", "documents": 0}),
        ("source_complete", {"path": ALICE.path, "status": "success", "documents": 2}),
        ("retrieval_complete", {"total_documents": 2, "time_ms": 100}),
        ("generation_start", {}),
        ("token", {"content": answer[:12], "detections": [], "start_index": 0, "processed_index": 12}),
        ("token", {"content": answer[12:], "detections": [found], "start_index": 12, "processed_index": 32}),
        ("done", {"sources": kept, "retrieval_info": retrieval, "metadata": {}, "usage": USAGE, "receipt": RECEIPT}),
    ]


def right_calls() -> list[Call]:
    documents = "".join([f'<document index="1"><title>{title_of(ALICE, place)}</title>' for place in range(2)])
    messages = [{"role": "user", "content": documents + PLAN.prompt}]
    asked: dict[str, Any] = {"messages": PLAN.prompt}
    return [
        Call(ALICE.slug, "Bearer token-a", None, PLAN.id, asked, 0.1, 0.2),
        Call(BOB.slug, None, "fee-b", PLAN.id, {**asked, "transaction_token": "fee-b"}, 0.1, 0.2),
        Call(MODEL.slug, None, None, PLAN.id, {"messages": messages}, 0.3, 0.4),
    ]


def hear(events: list[tuple[str, dict[str, Any]]]) -> Heard:
    heard = [Event(name, json.dumps(value), 1.0) for name, value in events]
    return Heard(200, "content-type: text/event-stream", heard, b"", "complete", 1.0)


def laws_of(heard: Heard, calls: list[Call], plan: ChatPlan = PLAN) -> list[str]:
    return [violation.law for violation in judge(plan, heard, calls)]


def test_the_judge_accepts_a_right_answer() -> None:
    assert laws_of(hear(right_events()), right_calls()) == []


BREAKS: list[tuple[str, Callable[[list[Any]], object]]] = [
    ("end", lambda events: events.pop()),
    ("end", lambda events: events.append(("error", {"message": "x"}))),
    ("order", lambda events: events.insert(0, events.pop(3))),
    ("order", lambda events: events.insert(4, events.pop(5))),
    ("order", lambda events: events.pop(4)),
    ("sources", lambda events: events[0][1].update(sources=3)),
    ("sources", lambda events: events[1][1].update(status="success")),
    ("sources", lambda events: events[1][1].update(path=ALICE.path)),
    ("sources", lambda events: events[2][1].update(documents=1)),
    ("sources", lambda events: events[3][1].update(total_documents=5)),
    ("text", lambda events: events.pop(5)),
    ("text", lambda events: events[6][1].update(content="ask bdc@example.org.")),
    ("offsets", lambda events: events[6][1].update(start_index=0)),
    ("findings", lambda events: events[6][1].update(detections=[])),
    ("documents", lambda events: events[7][1]["sources"].popitem()),
    ("documents", lambda events: events[7][1]["retrieval_info"].pop()),
    ("findings", lambda events: events[7][1].update(detections={"sources": [{"title": "x", "results": [{}]}]})),
    ("receipt", lambda events: events[7][1].update(receipt=RECEIPT | {"prompt_sent_to": [ALICE.path, MODEL.slug]})),
    ("receipt", lambda events: events[7][1].update(receipt=RECEIPT | {"prompt_sent_to": [ALICE.path, BOB.path]})),
    ("receipt", lambda events: events[7][1].update(receipt=RECEIPT | {"covered": False})),
    ("receipt", lambda events: events[7][1].update(receipt=RECEIPT | {"released": {"documents": 93}})),
    ("done", lambda events: events[7][1].update(usage=None)),
    ("error", lambda events: events.__setitem__(7, ("error", {"message": "Model generation failed: x"}))),
    ("mixed", lambda events: events[7][1].update(more="q000002q")),
    ("shape", lambda events: events[6][1].pop("content")),
]


@pytest.mark.parametrize(("law", "break_it"), BREAKS)
def test_the_judge_notices_every_kind_of_broken_law(law: str, break_it: Callable[[list[Any]], object]) -> None:
    events = right_events()
    break_it(events)
    assert laws_of(hear(events), right_calls()) == [law]


@pytest.mark.parametrize(
    ("law", "place", "change"),
    [
        ("tokens", 0, {"authorization": None}),
        ("tokens", 1, {"authorization": "Bearer token-a"}),
        ("tokens", 2, {"fee": "fee-b"}),
        ("calls", 0, {"correlation_id": "another"}),
        ("calls", 0, {"slug": BOB.slug}),
        ("open", 1, {"ended_at": 0.0}),
        ("open", 1, {"ended_at": 2.5}),
        ("prompt", 0, {"body": {"messages": "Something else?"}}),
        ("prompt", 2, {"body": {"messages": [{"role": "user", "content": PLAN.prompt}]}}),
    ],
)
def test_the_judge_notices_a_wrong_call(law: str, place: int, change: dict[str, Any]) -> None:
    calls = right_calls()
    calls[place] = replace(calls[place], **change)
    assert laws_of(hear(right_events()), calls) == [law]


@pytest.mark.parametrize(
    ("place", "times", "change", "laws"),
    [
        (1, 2, {"fee": None}, []),  # the connection was reset, so the request may be sent once more
        (1, 3, {"fee": None}, ["calls"]),
        (1, 2, {}, ["calls"]),
        (0, 2, {}, ["calls"]),
    ],
)
def test_a_request_that_is_sent_again_is_noticed(
    place: int, times: int, change: dict[str, Any], laws: list[str]
) -> None:
    calls = right_calls()
    plan = replace(PLAN, fees={}) if change else PLAN
    one = replace(calls[place], **change)
    calls[place : place + 1] = [one] * times
    assert laws_of(hear(right_events()), calls, plan) == laws


def test_a_failure_of_the_model_that_nobody_is_told_of_is_noticed() -> None:
    plan = replace(PLAN, model=replace(MODEL, way="500"))
    assert laws_of(hear(right_events()), right_calls(), plan) == ["error"]
    error = [*right_events()[:5], ("error", {"message": "Model generation failed: no"})]
    assert laws_of(hear(error), right_calls(), plan) == []


def test_of_a_client_that_has_left_only_what_it_heard_is_judged() -> None:
    plan = replace(PLAN, leave=Leave(3, 1.0, is_abrupt=False))
    heard = replace(hear(right_events()[:3]), end="left")
    assert laws_of(heard, right_calls()[:2], plan) == []


def test_plans_cover_what_they_are_to_cover() -> None:
    plans = draw_wave(300, 3, PLACES, Manners(model=0.5))
    sources = [source for plan in plans for source in plan.sources]
    assert {source.way for source in sources} == {plan.model.way for plan in plans} == {"", *WAYS}
    assert len(sources) // 7 <= sum(bool(source.way) for source in sources) <= len(sources) // 7 + 1
    assert {plan.guard for plan in plans} == {"", "mask", "annotate", "drop", "block"}
    assert 30 <= sum(plan.leave is not None for plan in plans) <= 90
    assert any(plan.answer() != plan.model.text for plan in plans)
    slugs = [endpoint.slug for plan in plans for endpoint in plan.endpoints()]
    assert len(slugs) == len(set(slugs))
