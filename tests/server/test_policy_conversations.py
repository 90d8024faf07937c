# SPDX-License-Identifier: Apache-2.0
"""Under a policy the whole conversation is read before the model sees it, not only what was said last."""

from typing import Any

import pytest

from tests.server.gateways import events_of
from tests.server.policy_house import MAIL, OTHER_MAIL, Voice, chat, open_house, post, verifies

CHAT = "/v1/chat/completions"
HIDDEN = "█" * len(MAIL)
BOTH = pytest.mark.parametrize("is_stream", [False, True])
BEFORE = [
    {"role": "system", "content": f"The desk is {MAIL}."},
    {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": f"Mail {MAIL}!"}]},
    {"role": "tool", "tool_call_id": "1", "content": f"kept: {OTHER_MAIL}"},
    {"role": "assistant", "content": "Fine."},
]


def build(policy: str, last: str, *, is_stream: bool) -> dict[str, Any]:
    body = chat(policy, last, stream=is_stream)
    return body | {"messages": [*BEFORE, *body["messages"]]}


@BOTH
async def test_every_message_reaches_the_model_masked(*, is_stream: bool) -> None:
    voice = Voice("Fine.")
    async with open_house(voice) as house:
        answer = await post(house.port, CHAT, build("masked", "And?", is_stream=is_stream))
    asked = voice.asked[-1]["messages"]
    assert asked[0]["content"] == f"The desk is {HIDDEN}."
    assert asked[1]["content"] == [{"type": "text", "text": "Hi."}, {"type": "text", "text": f"Mail {HIDDEN}!"}]
    assert asked[2]["content"] == "kept: " + "█" * len(OTHER_MAIL)  # D-33
    assert asked[3:] == [BEFORE[3], {"role": "user", "content": "And?"}]
    first = events_of(answer)[0] if is_stream else answer.json()
    told = first["detections"]["input"]
    assert [(one["message_index"], [(x["start"], x["end"]) for x in one["results"]]) for one in told] == [
        (0, [(12, 12 + len(MAIL))]),
        (1, [(5, 5 + len(MAIL))]),
        (2, [(6, 6 + len(OTHER_MAIL))]),
    ]
    assert [one.get("field") for one in told] == [None, "messages[1].content[1].text", None]
    assert MAIL.encode() not in answer.body
    assert verifies(answer.body)


@BOTH
async def test_what_was_said_before_blocks_too(*, is_stream: bool) -> None:
    voice = Voice("Fine.")
    body = build("asked", "And?", is_stream=is_stream)
    body["messages"][0] = {"role": "system", "content": "It is bluebird."}
    async with open_house(voice) as house:
        answer = await post(house.port, CHAT, body)
    assert voice.asked == []
    assert b"[no]" in answer.body
