# SPDX-License-Identifier: Apache-2.0
"""No field of an answer leaves unread: a marked string at each place of a model's answer, over real sockets."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import pytest_asyncio

from lockgate.gateway import open_gateway
from lockgate.server.ports import build_api_app
from tests.contracts.http_peers import Exchange, open_peer
from tests.server.http_client import JSON_TYPE, Answer, call
from tests.server.served_app import served
from tests.surfaces.answers import read_answer
from tests.surfaces.gateway import HOST, load_config

MARK = "bluebird"
BYTES = list(MARK.encode())
FALLBACK = "[withheld]"
SAID = "Hello there."
PATH = "/v1/chat/completions"
HEAD = {"id": "c1", "created": 1, "model": "m", "system_fingerprint": "fp_1"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
POLICIES = ("mask", "block")
MODELS = {"proxied": "m", "configured": "own"}


@dataclass(frozen=True)
class Plant:
    """A value that the model puts into the whole message (`top`), its choice, its message or delta, or its call."""

    part: str
    value: Mapping[str, Any]
    is_read: bool = True  # else left out: the receipt says so


TOKENS = {"content": [{"token": MARK, "logprob": -1.0, "bytes": BYTES, "top_logprobs": []}]}
PLANTS: Mapping[str, Plant] = {
    "id": Plant("top", {"id": f"c-{MARK}"}),
    "object": Plant("top", {"object": MARK}),
    "created": Plant("top", {"created": MARK}),
    "model": Plant("top", {"model": f"gpt-{MARK}"}),
    "system_fingerprint": Plant("top", {"system_fingerprint": MARK}),
    "service_tier": Plant("top", {"service_tier": MARK}),
    "an unknown field": Plant("top", {"provider": {"who": [MARK]}}, is_read=False),
    "an unknown key": Plant("top", {MARK: {"n": 1}}, is_read=False),
    "prompt_logprobs": Plant("top", {"prompt_logprobs": [{"1": {"decoded_token": MARK}}]}, is_read=False),
    "a key of usage": Plant("top", {"usage": {**USAGE, MARK: 1}}),
    "a key in usage": Plant("top", {"usage": {**USAGE, "prompt_tokens_details": {MARK: 1}}}),
    "a string in usage": Plant("top", {"usage": {**USAGE, "prompt_tokens": MARK}}),
    "usage": Plant("top", {"usage": [MARK]}),
    "finish_reason": Plant("end", {"finish_reason": MARK}),
    "finish_reason in an object": Plant("end", {"finish_reason": {"type": MARK}}),
    "stop_reason": Plant("end", {"stop_reason": MARK}),
    "logprobs": Plant("choice", {"logprobs": TOKENS}, is_read=False),
    "a field of a choice": Plant("choice", {"content_filter_results": {"hate": MARK}}, is_read=False),
    "role": Plant("message", {"role": MARK}),
    "name": Plant("message", {"name": MARK}),
    "tool_call_id": Plant("message", {"tool_call_id": MARK}),
    "annotations": Plant("message", {"annotations": [{"url_citation": {"title": MARK}}]}, is_read=False),
    "citations": Plant("message", {"citations": [MARK]}, is_read=False),
    "audio": Plant("message", {"audio": {"id": "a", "transcript": MARK}}, is_read=False),
    "refusal": Plant("message", {"refusal": f"No {MARK}."}),
    "reasoning_content": Plant("message", {"reasoning_content": f"A {MARK}."}),
    "reasoning": Plant("message", {"reasoning": f"A {MARK}."}),
    "reasoning in an object": Plant("message", {"reasoning": {"text": MARK}}),
    "reasoning_details": Plant("message", {"reasoning_details": [{"text": MARK}]}, is_read=False),
    "content of a tool": Plant("message", {"role": "tool", "content": f"A {MARK}. "}),
    "content of a function": Plant("message", {"role": "function", "content": f"A {MARK}. "}),
    "id of a call": Plant("call", {"id": MARK}),
    "type of a call": Plant("call", {"type": MARK}),
    "index of a call": Plant("call", {"index": MARK}),
    "a field of a call": Plant("call", {"note": MARK}),
    "name of a tool": Plant("call", {"function": {"name": MARK, "arguments": "{}"}}),
    "name of a tool without arguments": Plant("call", {"function": {"name": MARK}}),
    "a field of a function": Plant("call", {"function": {"name": "f", "arguments": "{}", "parsed": MARK}}),
    "arguments": Plant("call", {"function": {"name": "f", "arguments": json.dumps({"a": MARK})}}),
    "a key of arguments": Plant("call", {"function": {"name": "f", "arguments": json.dumps({MARK: 1})}}),
    "escaped arguments": Plant("call", {"function": {"name": "f", "arguments": '{"a": "\\u0062luebird"}'}}),
    "arguments as an object": Plant("call", {"function": {"name": "f", "arguments": {"a": MARK}}}),
    "a custom tool's name": Plant("call", {"type": "custom", "custom": {"name": MARK, "input": "x"}}),
    "a custom tool's input": Plant("call", {"type": "custom", "custom": {"name": "f", "input": MARK}}),
    "a single function's name": Plant("message", {"function_call": {"name": MARK, "arguments": "{}"}}),
    "a single function's arguments": Plant("message", {"function_call": {"name": "f", "arguments": f'"{MARK}"'}}),
}
_CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def build_whole(plant: Plant) -> dict[str, Any]:
    """A whole answer with the planted value."""
    message: dict[str, Any] = {"role": "assistant", "content": SAID}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    answer = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    if plant.part == "call":
        message["tool_calls"] = [{**_CALL, **plant.value}]
    parts = {"top": answer, "choice": choice, "end": choice, "message": message}
    parts.get(plant.part, {}).update(plant.value)
    return answer


def build_stream(plant: Plant) -> list[dict[str, Any]]:
    """The same as messages of a stream: fields of a choice come with its words, those of a message with its role."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "Hello "}, {"content": "there."}]
    if plant.part == "message":
        deltas[0] |= plant.value
    if plant.part == "call":
        deltas.append({"tool_calls": [{**_CALL, **plant.value}]})
    in_choice = plant.value if plant.part == "choice" else {}
    in_end = plant.value if plant.part == "end" else {}
    choices = [{"index": 0, "delta": delta, "finish_reason": None, **in_choice} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop", **in_end})
    top = plant.value if plant.part == "top" else {}
    last = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE, **top}
    return [*[{**HEAD, "object": "chat.completion.chunk", "choices": [one], **top} for one in choices], last]


class Model:
    """A model that says what a test plants."""

    def __init__(self) -> None:
        self.whole: Any = {}
        self.events: Sequence[bytes] = ()

    def say(self, whole: Any, messages: Sequence[Any]) -> None:
        """The next answer."""
        self.whole, self.events = whole, [b"data: %b\n\n" % json.dumps(one).encode() for one in messages]

    async def answer(self, exchange: Exchange) -> None:
        """One answer, as it is asked for."""
        if not exchange.received.json.get("stream"):
            await exchange.answer(json.dumps(self.whole).encode())
            return
        await exchange.start()
        await exchange.chunk(*self.events, b"data: [DONE]\n\n")
        await exchange.end()


@dataclass(frozen=True)
class World:
    """A gateway and its model."""

    port: int
    model: Model

    async def ask(self, policy: str, model: str, *, is_stream: bool, **more: Any) -> tuple[Answer, list[Any]]:
        """The answer of a chat, and the values in it."""
        messages = [{"role": "user", "content": "hi"}]
        options = {"stream_options": {"include_usage": True}} if is_stream else {}
        body = {"model": f"{model}@{policy}", "messages": messages, "stream": is_stream, **options, **more}
        answer = await call(self.port, PATH, json.dumps(body).encode(), headers=JSON_TYPE)
        values, _ = read_answer(answer)
        return answer, values


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    model = Model()
    async with open_peer(model.answer) as peer:
        policy = {"output": {"words": {}, "cards": {}}, "fallback": FALLBACK}
        config = {
            "openai": {"service": {"hostname": HOST, "port": peer.port}},
            "models": {"own": {"openai": {"url": f"http://{HOST}:{peer.port}/v1", "model": "m"}, "expose": True}},
            "detectors": {
                "words": {"embedded": "keywords", "options": {"keywords": [MARK]}},
                "cards": {"embedded": "pii"},
            },
            "policies": {
                **{name: {**policy, "on_finding": name} for name in ("annotate", "mask", "stop", "block")},
                "shadow": {**policy, "on_finding": "mask", "mode": "shadow"},
                "names": {**policy, "on_finding": "mask", "mask_with": "pseudonym"},
                "content": {**policy, "on_finding": "mask", "lanes": ["content"]},
            },
        }
        settings = load_config(tmp_path_factory.mktemp("answers"), "http", config)
        async with open_gateway(settings) as gateway, served(build_api_app(gateway)) as port:
            yield World(port, model)


def find_receipt(values: Sequence[Any]) -> dict[str, Any]:
    [receipt] = [one["receipt"] for one in values if "receipt" in one]
    assert isinstance(receipt, dict)
    return receipt


def join(values: Sequence[Any], key: str) -> str:
    """All text of one field of the first choice."""
    parts = [one.get("delta") or one.get("message") or {} for value in values for one in value["choices"]]
    return "".join([part.get(key) or "" for part in parts])


def list_ends(values: Sequence[Any]) -> list[str]:
    ends = [one.get("finish_reason") for value in values for one in value["choices"]]
    return [one for one in ends if one is not None]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("place", PLANTS)
async def test_a_mark_at_any_place_of_an_answer_is_masked_or_left_out(world: World, place: str) -> None:
    plant = PLANTS[place]
    world.model.say(build_whole(plant), build_stream(plant))
    for target, policy, is_stream in product(MODELS, POLICIES, (False, True)):
        await check_hidden(world, plant, target, policy, is_stream=is_stream)


async def check_hidden(world: World, plant: Plant, target: str, policy: str, *, is_stream: bool) -> None:
    """Nothing of the mark leaves; the answer is complete, and its receipt says that all was read."""
    answer, values = await world.ask(policy, MODELS[target], is_stream=is_stream)
    assert answer.status == 200, answer.body
    told = json.dumps(values, ensure_ascii=False)
    assert MARK not in told
    assert json.dumps(BYTES)[1:-1] not in told
    receipt = find_receipt(values)
    assert receipt["covered"] is True
    assert plant.is_read or receipt["dropped"]
    assert "unread" not in receipt
    assert join(values, "content")
    assert len(list_ends(values)) == 1


# Names and ids.


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_id_with_a_finding_is_replaced_by_one_that_stays_the_same_in_the_answer(
    world: World, is_stream: bool
) -> None:
    plant = Plant("top", {"id": MARK, "model": MARK, "system_fingerprint": MARK})
    world.model.say(build_whole(plant), build_stream(plant))
    _, values = await world.ask("mask", "m", is_stream=is_stream)
    [replaced] = {one["id"] for one in values}
    assert len(replaced) == 32
    assert {one["model"] for one in values} == {"m"}  # the caller's own word
    assert all("system_fingerprint" not in one for one in values)
    assert find_receipt(values)["dropped"] == {"id": 1, "model": 1, "system_fingerprint": 1}
    assert find_receipt(values)["outcome"] == "masked"
    assert join(values, "content") == SAID


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["mask", "stop", "block", "annotate"])
async def test_names_that_hold_nothing_leave_and_the_receipt_counts_only_texts(
    world: World, policy: str, is_stream: bool
) -> None:
    plant = Plant("call", {"id": "call_a.b:c-9", "function": {"name": "get_weather", "arguments": '{"a": 1}'}})
    world.model.say(build_whole(plant), build_stream(plant))
    _, values = await world.ask(policy, "m", is_stream=is_stream)
    assert {one["id"] for one in values} == {"c1"}
    assert {one.get("system_fingerprint", "fp_1") for one in values} == {"fp_1"}
    assert '"get_weather"' in json.dumps(values)
    assert '"call_a.b:c-9"' in json.dumps(values)
    receipt = find_receipt(values)
    assert receipt["covered"] is True
    assert not receipt.keys() & {"unread", "dropped"}
    assert receipt["released"]["answer"] == len(SAID) + len('{"a": 1}')
    assert {one["read"]["answer"] for one in receipt["detectors"]} == {receipt["released"]["answer"]}


NAMED = Plant("call", {"function": {"name": MARK, "arguments": '{"a": 1}'}})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("plant", [NAMED, Plant("call", {"function": {"name": "rm -rf", "arguments": "{}"}})])
async def test_a_call_of_a_tool_whose_name_must_not_leave_is_left_out_whole(
    world: World, plant: Plant, is_stream: bool
) -> None:
    world.model.say(build_whole(plant), build_stream(plant))
    _, values = await world.ask("mask", "m", is_stream=is_stream)
    assert "arguments" not in json.dumps([value["choices"] for value in values])
    assert join(values, "content") == SAID
    assert list_ends(values) == ["content_filter"]
    receipt = find_receipt(values)
    assert receipt["dropped"] == {"tool_calls[].name": 1}
    assert receipt["released"]["answer"] == len(SAID)
    assert receipt["covered"] is True


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["stop", "block"])
async def test_a_tool_name_with_a_finding_ends_the_choice_where_the_policy_ends_texts(
    world: World, policy: str, is_stream: bool
) -> None:
    world.model.say(build_whole(NAMED), build_stream(NAMED))
    _, values = await world.ask(policy, "m", is_stream=is_stream)
    assert "arguments" not in json.dumps([value["choices"] for value in values])
    left = join(values, "content").removesuffix(FALLBACK).removesuffix("\n")
    assert left in ("", SAID)  # of a stream it may wait when the name comes
    assert list_ends(values) == ["content_filter"]
    receipt = find_receipt(values)
    assert receipt["outcome"] == ("blocked" if policy == "block" else "stopped")
    assert receipt["released"]["answer"] == len(left)


# Fields that pass unread, and lanes that a policy leaves out.


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["annotate", "shadow"])
@pytest.mark.parametrize("place", [place for place, plant in PLANTS.items() if not plant.is_read])
async def test_a_field_that_passes_unread_is_named_in_the_receipt(
    world: World, place: str, policy: str, is_stream: bool
) -> None:
    plant = PLANTS[place]
    world.model.say(build_whole(plant), build_stream(plant))
    _, values = await world.ask(policy, "m", is_stream=is_stream)
    assert MARK in json.dumps(values)
    receipt = find_receipt(values)
    assert receipt["covered"] is False
    [key] = plant.value
    assert [name.rpartition(".")[2] for name in receipt["unread"]] == [key]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["annotate", "shadow"])
async def test_a_name_that_is_read_and_passes_is_counted_as_a_finding(
    world: World, policy: str, is_stream: bool
) -> None:
    world.model.say(build_whole(NAMED), build_stream(NAMED))
    _, values = await world.ask(policy, "m", is_stream=is_stream)
    receipt = find_receipt(values)
    assert MARK in json.dumps(values)
    assert receipt["covered"] is True
    assert sum(one["findings"] for one in receipt["detectors"]) == 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("place", ["arguments", "reasoning_content", "reasoning", "a single function's arguments"])
async def test_a_lane_that_the_policy_leaves_out_passes_and_is_counted_as_not_read(
    world: World, place: str, is_stream: bool
) -> None:
    plant = PLANTS[place]
    world.model.say(build_whole(plant), build_stream(plant))
    _, values = await world.ask("content", "m", is_stream=is_stream)
    assert MARK in json.dumps(values)
    receipt = find_receipt(values)
    assert receipt["covered"] is False
    assert receipt["unread"] == {"tool_calls" if plant.part == "call" else next(iter(plant.value)): 1}
    assert receipt["lanes"] == ["content"]


# JSON stays JSON.

CARD = 4111111111111111


def build_json(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer whose content is this text, whole and in pieces of three characters."""
    whole = build_whole(Plant("message", {"content": text}))
    first, *_, end, usage = build_stream(Plant("", {}))
    pieces = [{"content": text[at : at + 3]} for at in range(0, len(text), 3)]
    said = [{**first, "choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces]
    return whole, [first, *said, end, usage]


FORMATS = ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("response_format", FORMATS)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("target", MODELS.values())
async def test_content_that_was_asked_for_as_json_stays_json_under_masks(
    world: World, target: str, is_stream: bool, response_format: Any
) -> None:
    text = f'{{"who": "a \\"{MARK}\\"", "card": {CARD}, "{MARK}": ["\\u0062luebird", null, 7]}}'
    world.model.say(*build_json(text))
    _, values = await world.ask("mask", target, is_stream=is_stream, response_format=response_format)
    mask = "█" * len(MARK)
    masked = {"who": f'a "{mask}"', "card": "█" * 16, mask: [mask, None, 7]}
    assert json.loads(join(values, "content")) == masked
    assert list_ends(values) == ["stop"]
    assert find_receipt(values)["covered"] is True


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["stop", "block"])
async def test_json_that_is_cut_off_says_so_in_its_finish_reason(world: World, policy: str, is_stream: bool) -> None:
    world.model.say(*build_json(f'{{"who": "{MARK}"}}'))
    _, values = await world.ask(policy, "m", is_stream=is_stream, response_format={"type": "json_object"})
    assert MARK not in json.dumps(values)
    assert join(values, "content").endswith(FALLBACK)
    assert list_ends(values) == ["content_filter"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("policy", ["mask", "names"])
async def test_a_card_that_is_a_number_in_arguments_becomes_a_string_or_a_made_up_number(
    world: World, policy: str, is_stream: bool
) -> None:
    plant = Plant("call", {"function": {"name": "f", "arguments": f'{{"card": {CARD}, "n": [{CARD}, 5]}}'}})
    world.model.say(build_whole(plant), build_stream(plant))
    _, values = await world.ask(policy, "m", is_stream=is_stream)
    parts = [one.get("delta") or one.get("message") or {} for value in values for one in value["choices"]]
    calls = [call for part in parts for call in part.get("tool_calls") or ()]
    told = json.loads("".join([call["function"].get("arguments", "") for call in calls]))
    if policy == "mask":
        assert told == {"card": "█" * 16, "n": ["█" * 16, 5]}
    else:
        made = told["card"]
        assert type(made) is int
        assert made != CARD
        assert told == {"card": made, "n": [made, 5]}
