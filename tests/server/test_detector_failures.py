# SPDX-License-Identifier: Apache-2.0
"""A detector that does not answer in time, under `pass` and `fail`, in `enforce` and `shadow`: four different outcomes.

| mode    | if it fails | text   | warning                   | receipt                    |
| enforce | fail        | none   | an error                  | none                       |
| enforce | pass        | leaves | DETECTOR_FAILED           | released, not covered      |
| shadow  | fail        | leaves | DETECTOR_FAILED_IN_SHADOW | failed, not covered        |
| shadow  | pass        | leaves | DETECTOR_FAILED           | released, not covered      |
"""

import asyncio
import json
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange, Script, reply, stay_silent
from tests.server.policy_house import MAIL, SAID, open_house
from tests.server.policy_surfaces import SURFACES, Heard, grpc_agent

BOTH = pytest.mark.parametrize("is_stream", [False, True])
FAILED = "Detector `far` failed. The text was not checked by it."
IN_SHADOW = f"{FAILED} Under `enforce` the request would have ended with an error."
STREAMING: dict[str, Any] = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}
ENFORCE_FAIL, ENFORCE_PASS, SHADOW_FAIL, SHADOW_PASS = POLICIES = (
    "enforce_fail",
    "enforce_pass",
    "shadow_fail",
    "shadow_pass",
)
LATE = 1  # seconds that a detector has, the fewest that there can be: so many requests wait together


def check_passed(heard: Heard, policy: str, warning: str, outcome: str) -> None:
    """The text has left, nobody is left in doubt, and the receipt fits all the same."""
    assert (heard.error, heard.text) == (None, SAID)
    assert heard.warnings == [warning]
    receipt = heard.receipt
    assert receipt is not None
    told = (receipt["policy"], receipt["mode"], receipt["outcome"], receipt["covered"])
    assert told == (policy, policy.partition("_")[0], outcome, False)
    [far] = receipt["detectors"]
    assert (far["failed"], far["covered"], far["findings"]) == (True, False, 0)
    assert heard.fits()


def check_failed(heard: Heard) -> None:
    """Nothing was said, and there is no receipt."""
    assert heard.error is not None
    assert (heard.text, heard.receipt) == ("", None)
    assert MAIL.encode() not in heard.body
    assert b"DETECTOR_FAILED" not in heard.body


@BOTH
async def test_a_detector_that_is_too_late_has_four_different_outcomes_on_every_surface(is_stream: bool) -> None:
    asked = [(surface, policy) for surface in SURFACES for policy in POLICIES]
    async with open_house(far=stay_silent, patience=LATE, **STREAMING) as house:
        answers = await asyncio.gather(*[SURFACES[surface](house, policy, is_stream) for surface, policy in asked])
    for surface in SURFACES:
        heard = {policy: one for (on, policy), one in zip(asked, answers, strict=True) if on == surface}
        check_failed(heard[ENFORCE_FAIL])
        check_passed(heard[ENFORCE_PASS], ENFORCE_PASS, "DETECTOR_FAILED", "released")
        check_passed(heard[SHADOW_FAIL], SHADOW_FAIL, "DETECTOR_FAILED_IN_SHADOW", "failed")
        check_passed(heard[SHADOW_PASS], SHADOW_PASS, "DETECTOR_FAILED", "released")


async def test_so_it_is_over_grpc() -> None:
    for policy, answers in zip(POLICIES, await asyncio.gather(*map(ask_agent, POLICIES)), strict=True):
        for heard in answers:
            if policy == ENFORCE_FAIL:
                check_failed(heard)
                assert heard.error == "DEADLINE_EXCEEDED The text could not be checked: `far` failed"
            else:
                is_over = policy == SHADOW_FAIL
                check_passed(heard, policy, IN_SHADOW if is_over else FAILED, "failed" if is_over else "released")


async def ask_agent(policy: str) -> tuple[Heard, Heard]:
    async with open_house(far=stay_silent, patience=LATE, agent_policy=policy) as house:
        return await asyncio.gather(grpc_agent(house, False), grpc_agent(house, True))


@BOTH
@pytest.mark.parametrize("far", [reply(b"", 500), reply(b"{}"), reply(b"no json")])
async def test_any_other_failure_is_the_same(far: Script, is_stream: bool) -> None:
    async with open_house(far=far) as house:
        chat = SURFACES["openai_chat"]
        check_failed(await chat(house, ENFORCE_FAIL, is_stream))
        check_passed(await chat(house, ENFORCE_PASS, is_stream), ENFORCE_PASS, "DETECTOR_FAILED", "released")
        shadow = await chat(house, SHADOW_FAIL, is_stream)
        check_passed(shadow, SHADOW_FAIL, "DETECTOR_FAILED_IN_SHADOW", "failed")


OWN = """
  mixed: {output: {far: {on_detector_failure: pass}, mail: {}}, on_finding: mask}
  reversed: {output: {far: {on_detector_failure: fail}, mail: {}}, on_finding: mask, on_detector_failure: pass}
  checked: {input: {far: {}}, on_finding: block, on_detector_failure: pass}
  shadowed: {mode: shadow, input: {far: {}}, on_finding: block}
"""


@BOTH
async def test_each_detector_may_be_excused_by_itself(is_stream: bool) -> None:
    async with open_house(far=stay_silent, patience=LATE, more=OWN) as house:
        chat = SURFACES["openai_chat"]
        heard, broken = await asyncio.gather(chat(house, "mixed", is_stream), chat(house, "reversed", is_stream))
        assert heard.text == SAID.replace(MAIL, "█" * len(MAIL))
        assert heard.receipt is not None
        failed = {one["detector_id"]: one.get("failed", False) for one in heard.receipt["detectors"]}
        assert failed == {"far": True, "mail": False}
        assert sorted(heard.warnings) == ["DETECTOR_FAILED", "UNSUITABLE_OUTPUT"]
        check_failed(broken)


@BOTH
async def test_a_prompt_that_could_not_be_read_goes_on_with_a_warning(is_stream: bool) -> None:
    outcomes = {"checked": ("DETECTOR_FAILED", "released"), "shadowed": ("DETECTOR_FAILED_IN_SHADOW", "failed")}
    asked = [(surface, policy) for surface in SURFACES for policy in outcomes]
    async with open_house(far=stay_silent, patience=LATE, more=OWN, **STREAMING) as house:
        answers = await asyncio.gather(*[SURFACES[surface](house, policy, is_stream) for surface, policy in asked])
    for (surface, policy), heard in zip(asked, answers, strict=True):
        code, outcome = outcomes[policy]
        assert (heard.text, heard.warnings) == (SAID, [code]), surface
        assert heard.receipt is not None
        assert (heard.receipt["outcome"], heard.receipt["covered"]) == (outcome, False), surface
        assert heard.fits()


async def test_what_is_read_before_the_failure_has_left_and_the_rest_does_not() -> None:
    """Under `fail` a stream ends with one error, behind what the detector has read."""

    async def far(exchange: Exchange) -> None:
        if MAIL in exchange.received.json["contents"][0]:
            await exchange.answer(b"[[]]")
        else:
            await exchange.answer(b"", 500)

    async with open_house(far=far) as house:
        heard = await SURFACES["openai_chat"](house, ENFORCE_FAIL, True)
        assert SAID.startswith(heard.text)
        assert "bluebird" not in heard.text
        assert heard.receipt is None
        error: Any = json.loads(heard.error or "")
        assert (error["code"], error["details"]) == (502, "The text could not be checked: `far` failed")
        passed = await SURFACES["openai_chat"](house, ENFORCE_PASS, True)
        check_passed(passed, ENFORCE_PASS, "DETECTOR_FAILED", "released")
