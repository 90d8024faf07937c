# SPDX-License-Identifier: Apache-2.0
"""A policy is resolved once; only what has a state or passes headers on is made for each request."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from lockgate.config.policies import PolicySettings
from lockgate.config.settings import Settings
from lockgate.errors import InvalidRequest, UnknownDetector
from lockgate.gate.values import TEXT_CONTENTS, Detection, Excerpt
from lockgate.gate.verdicts import Action
from lockgate.guard.detectors import Guard, Rules
from lockgate.guard.policy import Policy
from lockgate.interfaces import Headers
from lockgate.policy_resolver import PolicyResolver, Surface

RULES = Rules((TEXT_CONTENTS,))
SURFACE = Surface({"input": RULES, "output": RULES})
NAMED = PolicySettings("named", output={"shared": {"threshold": 0.3}, "own": {}}, on_output=Action.MASK)
NO_POLICY = PolicySettings("")


class _Reading:
    def __init__(self, params: Mapping[str, Any], headers: Headers) -> None:
        self.params, self.headers = params, headers

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        return [() for _ in excerpts]


class _Detector:
    def __init__(self, *, shares_readings: bool) -> None:
        self.shares_readings = shares_readings
        self.accepted: list[_Reading] = []

    def accept(self, params: Mapping[str, Any], headers: Headers) -> _Reading:
        if "bad" in params:
            raise InvalidRequest("bad")
        self.accepted.append(_Reading(params, headers))
        return self.accepted[-1]


class _World:
    def __init__(self) -> None:
        self.shared, self.own = _Detector(shares_readings=True), _Detector(shares_readings=False)
        detectors = {"shared": self.shared, "own": self.own}
        guards = {name: Guard(name, TEXT_CONTENTS, one, "page", None, 0.5) for name, one in detectors.items()}
        self.resolver = PolicyResolver(Settings(), guards)

    def resolve(self, policy: PolicySettings = NO_POLICY, headers: Headers = (), **requested: Any) -> Policy:
        return asyncio.run(self.resolver.resolve(SURFACE, policy, requested, headers))


def _headers_of(policy: Policy) -> Headers:
    reading = policy.output[1].reading
    assert isinstance(reading, _Reading)
    return reading.headers


def test_a_policy_is_resolved_once_for_all_requests() -> None:
    world = _World()
    policy = PolicySettings("p", output={"shared": {}})
    assert world.resolve(policy) is world.resolve(policy)
    assert len(world.shared.accepted) == 1


def test_readings_with_a_state_are_made_for_each_request_with_its_headers() -> None:
    world = _World()
    first, second = (world.resolve(NAMED, [("authorization", name)]) for name in ("ana", "bo"))
    assert first.output[0] is second.output[0]
    assert [one.output[1].reading.headers for one in (first, second)] == [  # type: ignore[attr-defined]
        [("authorization", "ana")],
        [("authorization", "bo")],
    ]
    kept = list(world.resolver._kept.values())
    assert not any(_headers_of(one) for one in kept), "a kept policy has no header of any request"


def test_two_requests_with_equal_numbers_share_a_policy_and_others_do_not() -> None:
    world = _World()
    first = world.resolve(output={"shared": {"threshold": 0.2}})
    assert world.resolve(output={"shared": {"threshold": 0.2}}) is first
    other = world.resolve(output={"shared": {"threshold": 0.9}})
    assert [one.output[0].threshold for one in (first, other)] == [0.2, 0.9]
    assert world.resolve(input={"shared": {"threshold": 0.2}}).output == ()


def test_a_bool_is_no_number_for_a_threshold_that_was_accepted_as_a_number() -> None:
    world = _World()
    world.resolve(output={"shared": {"threshold": 1}})
    with pytest.raises(InvalidRequest, match="must be a number"):
        world.resolve(output={"shared": {"threshold": True}})


@pytest.mark.parametrize("value", ["text", ["a", "b"], {"a": 1}, list("abcdefgh")])
def test_parameters_that_may_be_patterns_are_not_kept(value: Any) -> None:
    world = _World()
    for _ in range(2):
        found = world.resolve(output={"shared": {"regex": value}})
        assert found.output[0].reading.params == {"regex": value}  # type: ignore[attr-defined]
    assert len(world.shared.accepted) == 2
    assert not world.resolver._kept


def test_what_is_kept_is_bounded_and_the_latest_stay() -> None:
    world = _World()
    first = world.resolve(NAMED)

    async def ask_often() -> None:
        for number in range(300):
            await world.resolver.resolve(SURFACE, NO_POLICY, {"output": {"shared": {"threshold": number}}})
            await world.resolver.resolve(SURFACE, NAMED)

    asyncio.run(ask_often())
    assert len(world.resolver._kept) == 256
    assert world.resolve(NAMED).output[0] is first.output[0]


def test_an_error_is_not_kept() -> None:
    world = _World()
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            world.resolve(output={"shared": {"bad": 1}})
        with pytest.raises(UnknownDetector):
            world.resolve(output={"unknown": {}})
    assert not world.resolver._kept


def test_actions_of_a_request_without_a_policy_make_another_policy() -> None:
    world = _World()
    masked = world.resolve(PolicySettings("", on_output=Action.MASK), output={"shared": {}})
    annotated = world.resolve(PolicySettings(""), output={"shared": {}})
    assert (masked.hides, annotated.hides) == (True, False)


def test_the_same_policy_is_another_one_on_another_surface() -> None:
    world, blamed = _World(), []

    @contextmanager
    def blame(section: str) -> Iterator[None]:
        blamed.append(section)
        yield

    other = Surface({"output": RULES}, refuses_input=True, blame=blame)
    requested: dict[str, dict[str, dict[str, Any]]] = {"input": {"shared": {}}, "output": {"shared": {}}}
    ours = asyncio.run(world.resolver.resolve(SURFACE, NO_POLICY, requested))
    theirs = asyncio.run(world.resolver.resolve(other, NO_POLICY, requested))
    assert (len(ours.input), len(theirs.input)) == (1, 0)
    assert (ours.refusing, theirs.refusing, blamed) == (frozenset(), frozenset({"shared"}), ["output"])


def test_agents_resolve_in_the_same_way() -> None:
    world = _World()
    first, second = world.resolver.resolve_for_agent(NAMED)(), world.resolver.resolve_for_agent(NAMED)()
    assert first.output[0] is second.output[0]
    assert first.output[1].reading is not second.output[1].reading
    assert not world.resolver.resolve_for_agent(None)().is_on
