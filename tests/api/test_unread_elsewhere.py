# SPDX-License-Identifier: Apache-2.0
"""No field of an answer leaves unread on Ollama's routes and where texts come by `model_id`, over real sockets."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lockgate.gateway import open_gateway
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.server.ports import build_api_app
from tests.api.test_unread_answers import CARD, FALLBACK, MARK, PLANTS, SAID, Model, Plant, build_stream, build_whole
from tests.contracts.grpc_peers import Context, build_nlp_server
from tests.contracts.http_peers import open_peer
from tests.server.http_client import JSON_TYPE, call
from tests.server.served_app import served
from tests.surfaces.answers import read_answer
from tests.surfaces.gateway import HOST, load_config

V1 = "/api/v1/task/classification-with-text-generation"
V1_STREAM = "/api/v1/task/server-streaming-classification-with-text-generation"
TOKENS = [nlp.GeneratedToken(text=MARK)]
ROUTES = ("/api/chat", "/api/generate")


async def generate(_message: Any, _context: Context) -> Any:
    return nlp.GeneratedTextResult(
        generated_text=SAID, tokens=TOKENS, input_tokens=TOKENS, finish_reason="EOS_TOKEN", input_token_count=1
    )


async def generate_stream(_message: Any, _context: Context) -> AsyncIterator[Any]:
    yield nlp.GeneratedTextStreamResult(input_tokens=TOKENS, details=nlp.TokenStreamDetails(input_token_count=1))
    yield nlp.GeneratedTextStreamResult(generated_text=SAID, tokens=TOKENS)
    yield nlp.GeneratedTextStreamResult(tokens=TOKENS, details=nlp.TokenStreamDetails(finish_reason="EOS_TOKEN"))


class World:
    """A gateway, its model with OpenAI's API, and a server of texts by `model_id`."""

    def __init__(self, port: int, model: Model) -> None:
        self.port = port
        self.model = model

    async def ask(self, path: str, body: Any) -> list[Any]:
        """The values of an answer."""
        answer = await call(self.port, path, json.dumps(body).encode(), headers=JSON_TYPE)
        assert answer.status == 200, answer.body
        return read_answer(answer)[0]

    async def ask_ollama(self, path: str, policy: str, *, is_stream: bool, **more: Any) -> list[Any]:
        """The lines of an answer for clients of Ollama."""
        said: Any = {"messages": [{"role": "user", "content": "hi"}]} if path == "/api/chat" else {"prompt": "hi"}
        return await self.ask(path, {"model": f"own@{policy}", "stream": is_stream, **said, **more})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    model = Model()
    methods = {
        "TextGenerationTaskPredict": generate,
        "ServerStreamingTextGenerationTaskPredict": generate_stream,
    }
    policy = {"output": {"words": {}, "cards": {}}, "fallback": FALLBACK}
    async with open_peer(model.answer) as peer, build_nlp_server(methods).listening() as port:
        config = {
            "generation": {"provider": "nlp", "service": {"hostname": HOST, "port": port}},
            "models": {"own": {"openai": {"url": f"http://{HOST}:{peer.port}/v1", "model": "m"}, "expose": True}},
            "detectors": {
                "words": {"embedded": "keywords", "options": {"keywords": [MARK]}},
                "cards": {"embedded": "pii"},
            },
            "policies": {name: {**policy, "on_finding": name} for name in ("annotate", "mask", "stop", "block")},
        }
        settings = load_config(tmp_path_factory.mktemp("elsewhere"), "http", config)
        async with open_gateway(settings) as gateway, served(build_api_app(gateway)) as http:
            yield World(http, model)


def find_receipt(values: list[Any]) -> dict[str, Any]:
    [receipt] = [one["receipt"] for one in values if "receipt" in one]
    assert isinstance(receipt, dict)
    return receipt


def join(values: list[Any], key: str) -> str:
    """All text of an answer for clients of Ollama."""
    name = {"content": "response"}.get(key, key)
    return "".join([(one.get("message") or {}).get(key) or one.get(name) or "" for one in values])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", [V1, V1_STREAM])
@pytest.mark.parametrize("policy", ["mask", "block", "annotate"])
async def test_tokens_of_answer_and_prompt_are_left_out_or_counted_as_unread(
    world: World, policy: str, path: str
) -> None:
    wanted = {"input_tokens": True, "generated_tokens": True}
    body = {"model_id": "m", "inputs": "hi", "text_gen_parameters": wanted, "guardrail_config": {"policy": policy}}
    values = await world.ask(path, body)
    receipt, counts = find_receipt(values), {"tokens": 1, "input_tokens": 1}
    assert "".join(one.get("generated_text", "") for one in values) == SAID
    if policy == "annotate":
        assert MARK in json.dumps(values)
        assert (receipt["covered"], receipt["unread"], receipt.get("dropped")) == (False, counts, None)
    else:
        assert MARK not in json.dumps(values)
        assert (receipt["covered"], receipt["dropped"], receipt.get("unread")) == (True, counts, None)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("place", PLANTS)
async def test_a_mark_at_any_place_of_an_answer_does_not_reach_clients_of_ollama(world: World, place: str) -> None:
    plant = PLANTS[place]
    world.model.say(build_whole(plant), build_stream(plant))
    for path in ROUTES:
        for is_stream in (False, True):
            values = await world.ask_ollama(path, "mask", is_stream=is_stream)
            assert MARK not in json.dumps(values)
            receipt = find_receipt(values)
            assert receipt["covered"] is True
            has_no_place = {"refusal", "tool_calls", "function_call", "annotations", "audio"} & set(plant.value)
            is_call = {"tool_calls"} if plant.part == "call" else set[str]()
            assert receipt.get("dropped", {}).keys() == has_no_place | is_call
            assert values[-1]["done_reason"] in ("stop", "length")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("policy", "thought"), [("mask", "A ████████."), ("block", ""), ("annotate", f"A {MARK}.")])
async def test_reasoning_reaches_clients_of_ollama_as_the_policy_says(
    world: World, policy: str, thought: str, is_stream: bool, path: str
) -> None:
    plant = Plant("message", {"reasoning_content": f"A {MARK}."})
    world.model.say(build_whole(plant), build_stream(plant))
    values = await world.ask_ollama(path, policy, is_stream=is_stream)
    assert join(values, "thinking") == thought
    assert join(values, "content") == (FALLBACK if policy == "block" else SAID)
    assert values[-1]["done_reason"] == ("content_filter" if policy == "block" else "stop")
    assert find_receipt(values)["released"]["answer"] == (0 if policy == "block" else len(f"A {MARK}.{SAID}"))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
async def test_json_for_clients_of_ollama_stays_json_under_masks(world: World, is_stream: bool) -> None:
    text = json.dumps({"who": MARK, "card": CARD})
    whole = build_whole(Plant("message", {"content": text}))
    first, *_, end, usage = build_stream(Plant("", {}))
    said = [{**first, "choices": [{"index": 0, "delta": {"content": one}, "finish_reason": None}]} for one in text]
    world.model.say(whole, [first, *said, end, usage])
    values = await world.ask_ollama("/api/chat", "mask", is_stream=is_stream, format="json")
    assert json.loads(join(values, "content")) == {"who": "█" * len(MARK), "card": "█" * 16}
