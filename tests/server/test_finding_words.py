# SPDX-License-Identifier: Apache-2.0
"""What a detector service says about its findings does not carry a value past the policy, on any surface."""

import asyncio
import json
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange
from tests.server.policy_house import MAIL, OTHER_MAIL, SAID, open_house
from tests.server.policy_surfaces import SURFACES

MORE = """
  told: {output: {far: {on_finding: annotate}, mail: {}}, on_finding: mask}
  told_in: {input: {far: {on_finding: annotate}}, output: {mail: {}}, on_finding: mask}
  noticed: {output: {far: {}}}
"""
FIELDS = ("detection", "detection_type", "evidence", "metadata")


async def gossip(exchange: Exchange) -> None:
    """A detector that tells an address with each finding, in each field."""
    words = {
        "detection": f"like {OTHER_MAIL}",
        "detection_type": OTHER_MAIL,
        "score": 0.9,
        "evidence": [{"name": "n", "value": OTHER_MAIL}],
        "metadata": {"quotes": [OTHER_MAIL], OTHER_MAIL: 1},
    }
    texts = exchange.received.json["contents"]
    found = [[{"start": 0, "end": 1, "text": text[0], **words}] if text else [] for text in texts]
    await exchange.answer(json.dumps(found).encode())


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_value_in_the_words_of_a_finding_leaves_nowhere(is_stream: bool) -> None:
    policies = ("told", "told_in")
    asked = [(surface, policy) for surface in SURFACES for policy in policies]
    streaming: dict[str, Any] = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}
    async with open_house(far=gossip, more=MORE, **streaming) as house:
        answers = await asyncio.gather(*[SURFACES[surface](house, policy, is_stream) for surface, policy in asked])
    for (surface, policy), heard in zip(asked, answers, strict=True):
        assert (heard.error, heard.text) == (None, SAID.replace(MAIL, "█" * len(MAIL))), surface
        assert OTHER_MAIL.encode() not in heard.body, (surface, policy)
        assert heard.receipt is not None
        assert set(heard.receipt["dropped"]) >= {f"detections.{field}" for field in FIELDS}, surface
        assert heard.fits()


async def test_under_a_policy_that_only_reports_the_words_pass() -> None:
    async with open_house(far=gossip, more=MORE) as house:
        heard = await SURFACES["openai_chat"](house, "noticed", False)
    assert heard.text == SAID
    assert heard.body.count(OTHER_MAIL.encode()) >= len(FIELDS)
