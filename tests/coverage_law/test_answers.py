# SPDX-License-Identifier: Apache-2.0
"""The law of answers, on every surface: a marked string of an upstream never leaves unread in silence."""

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from tests.coverage_law.conversations import assemble
from tests.coverage_law.planting import MARK, draw
from tests.coverage_law.replies import CHAT_EVENTS, TEXT_EVENTS, ReplyCase, build_stream, list_cases, list_findings
from tests.coverage_law.requests import REQUEST_SURFACES, RequestSurface, build_path, calm, name_policy
from tests.coverage_law.test_requests import CASES, describe
from tests.coverage_law.verdicts import judge_answer
from tests.coverage_law.world import POLICIES, World


async def break_answers(
    world: World, surface: RequestSurface, policy: str, cases: Iterable[ReplyCase], most: int = 1000
) -> list[str]:
    """The cases that break the law, each with its place; at most so many."""
    broken: list[str] = []
    for case in cases:
        calm(world, surface)
        case.prepare(world)
        answer = await world.post(build_path(surface, policy), name_policy(surface, surface.body, policy))
        if fault := judge_answer(answer):
            broken.append(f"{case.place}: {fault}")
            if len(broken) == most:
                break
    return broken


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("surface", REQUEST_SURFACES, ids=lambda one: one.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_place_of_an_answer_leaves_unread(world: World, surface: RequestSurface, policy: str) -> None:
    cases = draw(list_cases(surface), CASES, Random(f"{surface.name} {policy}"))
    broken = await break_answers(world, surface, policy, cases)
    assert not broken, describe(broken)


async def break_findings(world: World, surface: RequestSurface) -> list[str]:
    """The marked strings of a remote detector's finding that break the law."""
    broken = []
    for planted in list_findings():
        calm(world, surface)
        world.finding = planted.value if isinstance(planted.value, dict) else {}
        answer = await world.post(build_path(surface, "noted"), name_policy(surface, surface.body, "noted"))
        if fault := judge_answer(answer):
            broken.append(f"{planted.place}: {fault}")
    return broken


@pytest.mark.parametrize("surface", REQUEST_SURFACES[:4], ids=lambda one: one.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_string_of_a_finding_leaves_unread(world: World, surface: RequestSurface) -> None:
    broken = await break_findings(world, surface)
    assert not broken, describe(broken)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_block_in_one_of_two_prompts_ends_its_own_answer_only(world: World) -> None:
    calm(world, REQUEST_SURFACES[0])
    texts = [(0, "Two books. "), (1, f"Ask {MARK}. "), (0, "They are red.")]
    events = [{**TEXT_EVENTS[0], "choices": [{"index": at, "text": text, "finish_reason": None}]} for at, text in texts]
    world.reply = build_stream(events)
    body = {"model": "m", "prompt": ["Which?", "Who?"], "stream": True, "detectors": {"policy": "block"}}
    answer = await world.post("/v1/completions", body)
    assert b"They are red." in answer.body
    assert not judge_answer(answer)


@pytest.mark.parametrize("numbered", [{}, {"index": 0}], ids=["without an index", "with the same index"])
@pytest.mark.asyncio(loop_scope="module")
async def test_calls_that_only_their_ids_tell_apart_stay_apart(world: World, numbered: dict[str, int]) -> None:
    calm(world, REQUEST_SURFACES[0])
    calls: list[dict[str, Any]] = []
    for name in ("a", "b"):
        said = {"name": name, "arguments": '{"x": '}
        calls.append({**numbered, "id": f"call_{name}", "type": "function", "function": said})
        calls.append({**numbered, "function": {"arguments": f'"{name} {MARK}"}}'}})
    head = {key: value for key, value in CHAT_EVENTS[0].items() if key != "choices"}
    deltas: list[dict[str, Any]] = [{"tool_calls": [one]} for one in calls]
    events = [{**head, "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
    world.reply = build_stream(
        [*events, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
    )
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Who?"}],
        "stream": True,
        "detectors": {"policy": "mask"},
    }
    message = assemble(await world.post("/v1/chat/completions", body))
    heard = [
        (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message["tool_calls"]
    ]
    assert heard == [(f"call_{name}", name, {"x": f"{name} {'█' * len(MARK)}"}) for name in ("a", "b")]
