# SPDX-License-Identifier: Apache-2.0
"""No text of a request goes on unread on Ollama's paths and those by `model_id`, over real sockets."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.server.policy_house import MAIL, OTHER_MAIL, Voice, chat, open_house, post

CHAT, GENERATE = "/api/chat", "/api/generate"
CLASSIFY = "/api/v1/task/classification-with-text-generation"
HIDDEN = "█" * len(MAIL)


def ask(**fields: Any) -> dict[str, Any]:
    """A request of Ollama's chat to a model whose default policy masks."""
    return {"model": "safe", "stream": False, "messages": [{"role": "user", "content": "Hello"}], **fields}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ask(messages=[{"role": "system", "content": MAIL}, {"role": "user", "content": "Hello"}])),
        (CHAT, ask(messages=[{"role": "user", "content": MAIL}])),
        (GENERATE, {"model": "safe", "stream": False, "prompt": MAIL}),
        (GENERATE, {"model": "safe", "stream": False, "prompt": "Hello", "system": MAIL}),
    ],
)
async def test_every_message_of_an_ollama_client_is_masked(path: str, body: Mapping[str, Any]) -> None:
    voice = Voice("Fine.")
    async with open_house(voice) as house:
        answer = await post(house.port, path, {**body, "stream": True})
    asked = json.dumps(voice.asked, ensure_ascii=False)
    assert HIDDEN in asked
    assert MAIL not in asked
    assert b'"covered":true' in answer.body


@pytest.mark.parametrize("stop", [MAIL, ["x", MAIL]])
async def test_a_stop_sequence_of_an_ollama_client_is_refused(stop: Any) -> None:
    voice = Voice("Fine.")
    async with open_house(voice) as house:
        answer = await post(house.port, CHAT, ask(options={"stop": stop}))
    assert (answer.status, voice.asked) == (422, [])
    assert MAIL.encode() not in answer.body


@pytest.mark.parametrize("role", ["tool", MAIL])
async def test_a_role_that_ollama_clients_may_not_use_is_refused_without_naming_it(role: str) -> None:
    async with open_house() as house:
        answer = await post(house.port, CHAT, ask(messages=[{"role": role, "content": "x"}]))
    assert answer.status == 400
    assert MAIL.encode() not in answer.body


def classify(policy: str, **fields: Any) -> dict[str, Any]:
    """A request by `model_id`."""
    return {"model_id": "m", "inputs": "Hello", "guardrail_config": {"policy": policy}, **fields}


async def test_a_prompt_by_model_id_is_masked_also_outside_the_marks_of_its_client() -> None:  # D-44
    config = {"policy": "masked", "input": {"models": {"word": {}}, "masks": [[0, 2]]}}
    async with open_house() as house:
        answer = await post(house.port, CLASSIFY, classify("masked", inputs=f"Hi {MAIL}", guardrail_config=config))
    body = answer.json()
    assert [one["detector_id"] for one in body["token_classification_results"]["input"]] == ["mail"]
    read = {
        one["detector_id"]: one["read"]["prompt"] for one in body["receipt"]["detectors"] if "prompt" in one["read"]
    }
    assert read == {"mail": len(f"Hi {MAIL}"), "word": 2}
    assert (body["receipt"]["covered"], body["receipt"]["outcome"]) == (True, "masked")


@pytest.mark.parametrize(
    "fields", [{"model_id": MAIL}, {"text_gen_parameters": {"stop_sequences": [MAIL]}},
               {"text_gen_parameters": {"decoding_method": MAIL}}]
)  # fmt: skip
async def test_names_and_parameters_by_model_id_are_refused(fields: Mapping[str, Any]) -> None:
    async with open_house() as house:
        answer = await post(house.port, CLASSIFY, classify("masked", **fields))
    assert answer.status == 422
    assert MAIL.encode() not in answer.body


async def test_a_value_keeps_its_made_up_name_in_later_requests() -> None:
    voice = Voice("Fine.")
    async with open_house(voice) as house:
        for said in (f"{MAIL}", f"{OTHER_MAIL} or {MAIL}"):
            await post(house.port, "/v1/chat/completions", chat("renamed", said))
    first, second = [asked["messages"][0]["content"] for asked in voice.asked]
    other, again = second.split(" or ")
    assert first == again
    assert other != first
    assert first.endswith("@masked.invalid")


async def test_json_in_a_conversation_stays_json_when_masked() -> None:
    voice = Voice("Fine.")
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": f'{{"to": "{MAIL}", "n": [1, "{MAIL}"]}}'},
    }
    result = {"role": "tool", "tool_call_id": "1", "content": f'[{{"mail": "\\u0061na@example.org", "{MAIL}": null}}]'}
    body = chat("masked", "Go on")
    body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}, result]
    async with open_house(voice) as house:
        await post(house.port, "/v1/chat/completions", body)
    _, called, told = voice.asked[0]["messages"]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"to": HIDDEN, "n": [1, HIDDEN]}
    assert json.loads(told["content"]) == [{"mail": HIDDEN, HIDDEN: None}]
