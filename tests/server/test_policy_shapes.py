# SPDX-License-Identifier: Apache-2.0
"""What policies do to answers of an unusual shape, over sockets: roles of tools, texts with the fields of a chat."""

import json

import pytest

from tests.server.gateways import BASE, sse
from tests.server.policy_house import MAIL, PIECES, SAID, Voice, chat, open_house, post, spoken, text
from tests.server.test_policy_streams import CHAT, HIDDEN, TEXT, read, said_in


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["masked", "stopped", "blocked", "content"])
@pytest.mark.parametrize("role", ["tool", "function"])
async def test_the_answer_of_any_role_is_read_under_a_policy(role: str, policy: str, is_stream: bool) -> None:
    voice = Voice({"role": role, "content": ""}, *PIECES)
    voice.whole_message = {"role": role, "content": SAID}
    async with open_house(voice) as house:
        events = read(await post(house.port, CHAT, chat(policy, stream=is_stream)), is_stream=is_stream)
    cut = {"stopped": "[cut]", "blocked": "[cut]"}
    assert said_in(events) == cut.get(policy, SAID.replace(MAIL, HIDDEN))
    assert events[-1]["receipt"]["detectors"][-1]["findings"] == 1


class TextWithDeltas(Voice):
    """A text completion whose messages have what only those of chats have."""

    def _write_events(self, is_chat: bool) -> list[bytes]:
        delta = {
            "role": "tool",
            "content": MAIL,
            "refusal": MAIL,
            "reasoning_content": MAIL,
            "tool_calls": [{"index": 0, "function": {"name": MAIL, "arguments": MAIL}}],
        }
        said = [("Ask ", None), ("", None), (f"{MAIL}. ", None), ("Bye.", None), ("", "stop")]
        choices = [{"index": 0, "text": text, "delta": delta, "finish_reason": end} for text, end in said]
        return [sse({**BASE, "choices": [choice]}) for choice in choices]


@pytest.mark.parametrize("policy", ["masked", "every", "stopped", "blocked"])
async def test_what_only_chats_have_does_not_leave_with_a_text_that_is_held(policy: str) -> None:
    async with open_house(TextWithDeltas()) as house:
        events = read(await post(house.port, TEXT, text(policy)), is_stream=True)
    cut = {"stopped": "[cut]", "blocked": "[cut]"}
    assert spoken(events) == cut.get(policy, f"Ask {HIDDEN}. Bye.")
    assert MAIL.encode() not in json.dumps(events).encode()
    assert "delta" not in json.dumps(events)
