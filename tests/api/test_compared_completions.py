# SPDX-License-Identifier: Apache-2.0
"""Completions that bring documents: their answers are compared with them, and one without documents says so."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from lockgate.gateway import open_gateway
from lockgate.server.ports import build_api_app
from tests.contracts.http_peers import Exchange, open_peer, reply_json
from tests.server.http_client import JSON_TYPE, Answer, call
from tests.server.served_app import served
from tests.surfaces.answers import collect_text, read_answer
from tests.surfaces.gateway import HOST, load_config

CHAT = "/v1/chat/completions"
SAID, THOUGHT = "It opens at nine.", "Let me think of gates."
MODELS = ["m", "own", "texts"]  # of the section `openai`, with OpenAI's API, and without it


class World(NamedTuple):
    """A gateway before a model that always says the same; `claims` are the texts that were compared, and with what."""

    port: int
    asked: list[Mapping[str, Any]]
    claims: list[Mapping[str, Any]]

    async def ask(self, policy: str, model: str = "m", *, is_stream: bool = False, **more: Any) -> Answer:
        """The answer under a policy."""
        detectors = {"policy": policy, **more.pop("detectors", {})}
        body = {"model": model, "stream": is_stream, "messages": [{"role": "user", "content": "When?"}], **more}
        return await call(self.port, CHAT, json.dumps({**body, "detectors": detectors}).encode(), headers=JSON_TYPE)


def find_receipt(answer: Answer) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one["receipt"] for one in read_answer(answer)[0] if one.get("receipt"))
    return found


def list_warnings(answer: Answer) -> Sequence[str]:
    return [one["type"] for value in read_answer(answer)[0] for one in value.get("warnings") or ()]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    asked: list[Mapping[str, Any]] = []
    claims: list[Mapping[str, Any]] = []

    async def play_model(exchange: Exchange) -> None:
        body = exchange.received.json
        asked.append(body)
        if exchange.received.path == "/api/chat":
            line = {"message": {"role": "assistant", "content": SAID}, "done": True, "done_reason": "stop"}
            await exchange.answer(json.dumps(line).encode())
            return
        said = {"role": "assistant", "reasoning_content": THOUGHT, "content": SAID}
        if not body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            await exchange.answer(json.dumps({"id": "c", "choices": [choice]}).encode())
            return
        deltas = [{"reasoning_content": THOUGHT}, {"content": SAID[:7]}, {"content": SAID[7:]}]
        await exchange.start()
        for delta, end in [*[(one, None) for one in deltas], ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            await exchange.chunk(b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}).encode())
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.end()

    async def compare(exchange: Exchange) -> None:
        body = exchange.received.json
        claims.append(body)
        is_supported = any(body["content"].rstrip(".") in one for one in body["context"])
        found = {"start": 0, "end": 1, "text": "x", "detection": "no", "detection_type": "facts", "score": 0.9}
        await reply_json([] if is_supported else [found])(exchange)

    async with open_peer(play_model) as model, open_peer(compare) as facts:
        ground: dict[str, Any] = {"grounding": {"facts": {}}}
        config = {
            "openai": {"service": {"hostname": HOST, "port": model.port}},
            "models": {
                "own": {"openai": {"url": f"http://{HOST}:{model.port}/v1", "model": "m"}},
                "texts": {"ollama": {"url": f"http://{HOST}:{model.port}", "model": "m"}},
            },
            "detectors": {
                "facts": {
                    "type": "text_context_doc",
                    "chunker_id": "sentence",
                    "default_threshold": 0.5,
                    "service": {"hostname": HOST, "port": facts.port},
                }
            },
            "policies": {
                "masks": {**ground, "on_finding": "mask"},
                "blocks": {**ground, "on_finding": "block", "fallback": "No."},
                "strict": {**ground, "grounding_without_documents": "refuse"},
            },
        }
        settings = load_config(tmp_path, "compared", config)
        async with open_gateway(settings) as gateway, served(build_api_app(gateway)) as port:
            yield World(port, asked, claims)


DOCUMENTS: Sequence[Any] = [
    "It opens at nine, they say.",
    {"title": "Gates", "text": "It opens at nine, they say."},
    {"content": "It opens at nine, they say."},
    {"id": "1", "data": {"text": "It opens at nine, they say."}},
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("document", DOCUMENTS)
async def test_an_answer_that_the_documents_support_leaves(
    world: World, model: str, document: Any, *, is_stream: bool
) -> None:
    answer = await world.ask("masks", model, is_stream=is_stream, documents=[document])
    assert collect_text(read_answer(answer)[0])["content"] == SAID
    assert [one["content"] for one in world.claims] == [SAID]  # reasoning is not compared
    assert "It opens at nine, they say." in world.claims[0]["context"]
    receipt = find_receipt(answer)
    assert (receipt["covered"], receipt["outcome"], list_warnings(answer)) == (True, "released", [])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("policy", "text"), [("masks", "█" * len(SAID)), ("blocks", "No.")])
async def test_an_answer_that_the_documents_do_not_support_is_held_back(
    world: World, model: str, policy: str, text: str, *, is_stream: bool
) -> None:
    answer = await world.ask(policy, model, is_stream=is_stream, documents=["It closes at one."])
    assert collect_text(read_answer(answer)[0])["content"] == text
    assert find_receipt(answer)["covered"] is True


@pytest.mark.parametrize("is_stream", [False, True])
async def test_results_of_tools_are_documents_if_the_request_says_so(world: World, *, is_stream: bool) -> None:
    call_ = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": [call_]},
        {"role": "tool", "tool_call_id": "1", "content": "It opens at nine, they say."},
    ]
    marked = {"grounding": {"from": "tool_results"}}
    answer = await world.ask("masks", is_stream=is_stream, messages=messages, detectors=marked)
    assert collect_text(read_answer(answer)[0])["content"] == SAID
    assert world.claims[0]["context"] == ["It opens at nine, they say."]
    answer = await world.ask("masks", is_stream=is_stream, messages=messages)
    assert list_warnings(answer) == ["NOTHING_TO_COMPARE"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_without_documents_the_answer_says_that_nothing_was_compared(
    world: World, model: str, *, is_stream: bool
) -> None:
    answer = await world.ask("masks", model, is_stream=is_stream)
    assert collect_text(read_answer(answer)[0])["content"] == SAID
    receipt = find_receipt(answer)
    assert (receipt["covered"], receipt["unread"]) == (False, {"grounding": 1})
    assert (list_warnings(answer), world.claims) == (["NOTHING_TO_COMPARE"], [])


async def test_a_policy_may_refuse_a_completion_without_documents(world: World) -> None:
    assert [(await world.ask("strict", model)).status for model in MODELS] == [422, 400, 400]
    assert world.asked == []
    assert (await world.ask("strict", documents=["", "  ", {"text": ""}])).status == 422
    assert (await world.ask("strict", documents=["It opens at nine, they say."])).status == 200


async def test_a_request_may_name_detectors_of_grounding_itself(world: World) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "When?"}], "documents": ["It closes at one."]}
    sent = {**body, "detectors": {"grounding": {"facts": {}}}}
    answer = json.loads((await call(world.port, CHAT, json.dumps(sent).encode(), headers=JSON_TYPE)).body)
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["detections"]["output"][0]["results"][0]["detector_id"] == "facts"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"documents": "x"}, "`documents` must be a list"),
        ({"documents": [5]}, "`documents[0]` must be a string"),
        ({"detectors": {"grounding": {"from": "web"}}}, "`detectors.grounding.from` must be `tool_results`"),
        ({"detectors": {"grounding": {"facts": 1}}}, "`detectors.grounding.facts` must be an object"),
    ],
)
async def test_documents_of_another_shape_are_refused(world: World, more: Mapping[str, Any], words: str) -> None:
    answer = await world.ask("masks", **more)
    assert (answer.status, words in answer.body.decode()) == (422, True)


async def test_a_model_that_gets_no_documents_refuses_them_where_nothing_is_compared(world: World) -> None:
    body = {"model": "texts", "messages": [{"role": "user", "content": "When?"}], "documents": ["x"]}
    answer = await call(world.port, CHAT, json.dumps(body).encode(), headers=JSON_TYPE)
    assert (answer.status, world.asked) == (400, [])
