# SPDX-License-Identifier: Apache-2.0
"""`max_hold_ms`: a detector that is silent holds a text only so long, on every surface, streamed and whole."""

import asyncio
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange
from tests.server.policy_house import MAIL, SAID, open_house
from tests.server.policy_surfaces import SURFACES, grpc_agent

MORE = """
  held: {output: {far: {max_hold_ms: 40}}, on_finding: mask}
  let: {output: {far: {max_hold_ms: 40, on_detector_failure: pass}, mail: {}}, on_finding: mask}
  asked_held: {input: {far: {max_hold_ms: 40}}, on_finding: block}
  asked_let: {input: {far: {max_hold_ms: 40}}, on_finding: block, on_detector_failure: pass}
"""
BOTH = pytest.mark.parametrize("is_stream", [False, True])


class Silent:
    """A detector that never answers, and what it was asked."""

    def __init__(self) -> None:
        self.params: list[Any] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.params.append(exchange.received.json["detector_params"])
        await exchange.wait_until_left()


@BOTH
async def test_a_detector_that_holds_too_long_is_a_504_by_its_name_or_passed_by_the_policy(is_stream: bool) -> None:
    far, policies = Silent(), ("held", "let", "asked_held", "asked_let")
    asked = [(surface, policy) for surface in SURFACES for policy in policies]
    streaming: dict[str, Any] = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}
    async with open_house(far=far, more=MORE, **streaming) as house:
        answers = await asyncio.gather(*[SURFACES[surface](house, policy, is_stream) for surface, policy in asked])
    for (surface, policy), heard in zip(asked, answers, strict=True):
        if policy.endswith("held"):
            assert "`far` failed" in (heard.error or ""), surface
            assert surface != "openai_chat" or "504" in (heard.error or "")
            assert (heard.text, MAIL.encode() in heard.body) == ("", False)
        else:
            said = SAID.replace(MAIL, "█" * len(MAIL)) if policy == "let" else SAID
            assert (heard.error, heard.text) == (None, said), surface
            assert "DETECTOR_FAILED" in heard.warnings
            assert heard.receipt is not None
            assert heard.receipt["covered"] is False
            assert heard.fits()
    assert {str(params) for params in far.params} == {"{}"}


async def test_so_it_is_over_grpc() -> None:
    async with open_house(far=Silent(), more=MORE, agent_policy="held") as house:
        for heard in await asyncio.gather(grpc_agent(house, False), grpc_agent(house, True)):
            assert heard.error == "DEADLINE_EXCEEDED The text could not be checked: `far` failed"
            assert heard.text == ""
