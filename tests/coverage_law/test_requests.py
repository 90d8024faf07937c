# SPDX-License-Identifier: Apache-2.0
"""The law of requests, on every surface: a marked string at any place of a body never goes on unread in silence."""

import json
from collections import Counter
from collections.abc import Iterable
from random import Random
from uuid import uuid4

import pytest

from tests.coverage_law.planting import MARK, Planted, draw, plant_at_random, plant_everywhere
from tests.coverage_law.requests import REQUEST_SURFACES, RequestSurface, build_path, calm, name_policy
from tests.coverage_law.verdicts import judge_request
from tests.coverage_law.world import POLICIES, World

GRPC_FIELDS = dict.fromkeys(("editor_content", "selected_text", "extra_context", "user_info"), "plain")
CASES, RANDOM_CASES = 60, 15  # `make soak` takes all places, and thousands of random ones
SHOWN = 15


async def break_requests(
    world: World, surface: RequestSurface, policy: str, cases: Iterable[Planted], most: int = 1000
) -> list[str]:
    """The cases that break the law, each with its place; at most so many."""
    broken: list[str] = []
    for planted in cases:
        body = name_policy(surface, planted.value, policy)
        if body is None:
            continue
        world.forget()
        calm(world, surface)
        answer = await world.post(build_path(surface, policy), body)
        if fault := judge_request(world, answer, is_key=planted.is_key):
            broken.append(f"{planted.place}: {fault}")
            if len(broken) == most:
                break
    return broken


def describe(broken: list[str]) -> str:
    """The first of the faults, and how many there are."""
    kinds = Counter(one.partition(": ")[2][:40] for one in broken)
    return "\n".join([f"{len(broken)} places break the law: {dict(kinds)}", *broken[:SHOWN]])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("surface", REQUEST_SURFACES, ids=lambda one: one.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_place_of_a_request_goes_on_unread(world: World, surface: RequestSurface, policy: str) -> None:
    random = Random(f"{surface.name} {policy}")
    cases = draw(plant_everywhere(surface.body), CASES, random)
    cases += [plant_at_random(surface.body, random) for _ in range(RANDOM_CASES)]
    broken = await break_requests(world, surface, policy, cases)
    assert not broken, describe(broken)


@pytest.mark.parametrize("surface", REQUEST_SURFACES, ids=lambda one: one.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_without_the_mark_is_answered(world: World, surface: RequestSurface) -> None:
    calm(world, surface)
    answer = await world.post(build_path(surface, "mask"), name_policy(surface, surface.body, "mask"))
    assert answer.status == 200, answer.body[:500]
    assert b"withheld" not in answer.body
    assert b"Two" in answer.body


async def break_headers(world: World, surface: RequestSurface, header: str) -> str:
    """How a marked header breaks the law, or nothing."""
    world.forget()
    calm(world, surface)
    body = name_policy(surface, surface.body, "block")
    answer = await world.post(build_path(surface, "block"), body, {header: MARK})
    return judge_request(world, answer, is_key=False)


@pytest.mark.parametrize("header", ["x-note", "x-correlation-id", "x-other"])
@pytest.mark.parametrize("surface", REQUEST_SURFACES, ids=lambda one: one.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_header_goes_on_unread(world: World, surface: RequestSurface, header: str) -> None:
    assert not await break_headers(world, surface, header)


@pytest.mark.parametrize("method", ["AskAgent", "AskAgentStream"])
@pytest.mark.parametrize("name", ["query", *GRPC_FIELDS])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_field_of_a_grpc_request_goes_on_unread(world: World, policy: str, name: str, method: str) -> None:
    world.forget()
    calm(world, REQUEST_SURFACES[-1])
    fields = {**GRPC_FIELDS, "query": "Which book?", name: MARK}
    outcome = await world.agents[policy].ask(fields.pop("query"), uuid4().hex, method=method, **fields)
    receipt = json.loads(outcome.trailing.get("lockgate-receipt", "null"))
    assert not world.find_leaks() or (receipt and not receipt["covered"] and receipt.get("unread"))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_refused_by_its_own_detector_is_not_counted_by_the_model(world: World) -> None:
    world.forget()
    world.finding = {"detection": "Name", "detection_type": "pii", "score": 0.9}
    body = {"model": "m", "prompt": f"Who is {MARK}?", "detectors": {"input": {"remote": {}}, "policy": "mask"}}
    answer = await world.post("/v1/completions", body)
    assert answer.json()["detections"]["input"]
    assert not world.received
