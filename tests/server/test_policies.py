# SPDX-License-Identifier: Apache-2.0
"""Policies end to end: what is found never leaves, by no field of any answer, and the model is stopped in time."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import Context
from tests.contracts.http_peers import Exchange, Script, reply, reply_json, stay_silent, stream
from tests.server.endings import ended_badly, ended_well, error_of
from tests.server.gateways import BASE, CHAT, TEXT, V1, V1_STREAM, ask, chunk, events_of, results_in, sse, text_in
from tests.server.http_client import build_request, connect
from tests.server.policy_peers import (
    CUT_OFF,
    FAILED,
    HIDDEN,
    LEAVES,
    PIECES,
    WITHHELD,
    before,
    check_hidden,
    finishes,
    message_of,
    request,
    said,
    speak,
    text_of,
)
from tests.waits import forever

# What the model says.


@pytest.mark.parametrize("path", [CHAT, TEXT, V1])
@pytest.mark.parametrize("policy", LEAVES)
async def test_a_whole_answer_leaves_as_its_policy_says(path: str, policy: str) -> None:
    async with before() as (port, _):
        answer = await ask(port, path, request(path, policy, is_stream=False))
    got = answer.json()
    assert answer.status == 200
    assert text_of(path, got) == LEAVES[policy]
    finish = got["finish_reason"] if path == V1 else got["choices"][0]["finish_reason"]
    assert (finish == "content_filter") == (policy in CUT_OFF)
    found = got["token_classification_results"]["output"] if path == V1 else results_in([got])
    word = "word" if path == V1 else "text"
    content = [one for one in found if one["start"] == 11]
    assert [(one["start"], one["end"], one[word]) for one in content] == [
        (11, 19, "bluebird" if policy == "watch" else HIDDEN)
    ]
    assert got["warnings"][0] in ({"id": "UNSUITABLE_OUTPUT", **SAYS}, {"type": "UNSUITABLE_OUTPUT", **SAYS})
    if policy != "watch":
        check_hidden(answer)


SAYS = {"message": "Unsuitable output detected."}


@pytest.mark.parametrize("path", [CHAT, TEXT, V1_STREAM])
@pytest.mark.parametrize("policy", LEAVES)
async def test_a_stream_leaves_as_its_policy_says(path: str, policy: str) -> None:
    async with before() as (port, _):
        answer = await ask(port, path, request(path, policy, is_stream=True))
    events = events_of(answer) if path == V1_STREAM else ended_well(events_of(answer))
    assert said(path, events) == LEAVES[policy]
    normal = "EOS_TOKEN" if path == V1_STREAM else "stop"
    assert finishes(path, events) == ["content_filter" if policy in CUT_OFF else normal]
    if policy != "watch":
        check_hidden(answer)
        assert HIDDEN.encode() in answer.body


@pytest.mark.parametrize("path", [CHAT, TEXT, V1_STREAM])
async def test_a_whole_document_detector_holds_the_stream_that_it_may_change(path: str) -> None:
    async with before() as (port, _):
        answer = await ask(port, path, request(path, "whole", is_stream=True))
    events = events_of(answer) if path == V1_STREAM else ended_well(events_of(answer))
    assert said(path, events[:1]) == LEAVES["mask"]
    check_hidden(answer)


async def test_choices_of_a_whole_answer_are_judged_one_by_one() -> None:
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate(["A bluebird.", "A finch.", "", "Bluebird"])
    ]
    async with before(reply_json({**BASE, "choices": choices})) as (port, _):
        answer = await ask(port, CHAT, request(CHAT, "block", is_stream=False))
    got = [(one["message"]["content"], one["finish_reason"]) for one in answer.json()["choices"]]
    filtered = (WITHHELD, "content_filter")
    assert got == [filtered, ("A finch.", "stop"), ("", "stop"), filtered]
    check_hidden(answer)


async def test_nothing_of_a_withheld_message_leaves_besides_the_fallback() -> None:
    parts = [{"type": "text", "text": "A bluebird."}, {"type": "text", "text": "bluebird"}]
    message = {"role": "assistant", "content": parts,
               "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "bluebird"}}],
               "refusal": "bluebird", "audio": {"transcript": "bluebird"}}  # fmt: skip
    async with before(reply_json({**BASE, "choices": [{"index": 0, "message": message}]})) as (port, _):
        answer = await ask(port, CHAT, request(CHAT, "block", is_stream=False))
    check_hidden(answer)
    assert answer.json()["choices"][0]["message"] == {"role": "assistant", "content": WITHHELD}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "refusal"])
async def test_other_texts_of_a_whole_answer_are_masked_too(key: str) -> None:
    message = {"role": "assistant", "content": "Fine.", key: "It is bluebird."}
    async with before(reply_json({**BASE, "choices": [{"index": 0, "message": message}]})) as (port, peers):
        answer = await ask(port, CHAT, request(CHAT, "mask", is_stream=False))
        got = answer.json()
        field = "refusal" if key == "refusal" else "reasoning_content"
        masked = {"role": "assistant", "content": "Fine.", field: f"It is {HIDDEN}."}
        assert got["choices"][0]["message"] == masked
        (entry,) = got["detections"]["output"]
        assert entry["field"] == field
        assert [one["start"] for one in entry["results"]] == [6]
        check_hidden(answer)
        answer = await ask(port, CHAT, request(CHAT, "block", is_stream=False))
        before_it = "Fine.\n" if key == "refusal" else ""  # reasoning stands before the content
        assert answer.json()["choices"][0]["message"] == {"role": "assistant", "content": before_it + WITHHELD}
        assert answer.json()["choices"][0]["finish_reason"] == "content_filter"
        check_hidden(answer)
    assert len(peers.model.received) == 2


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "refusal"])
async def test_other_texts_of_a_stream_are_masked_too(key: str) -> None:
    thought = [{**BASE, "choices": [{"index": 0, "delta": {key: piece}}]} for piece in ("It is blue", "bird. So")]
    said = [*thought, chunk("Fine."), chunk(finish="stop")]
    async with before(stream(sse(*said, "[DONE]"))) as (port, _):
        answer = await ask(port, CHAT, request(CHAT, "mask", is_stream=True))
        events = ended_well(events_of(answer))
        field = "refusal" if key == "refusal" else "reasoning_content"
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        assert "".join(one.get(field, "") for one in deltas) == f"It is {HIDDEN}. So"
        assert text_in(events) == "Fine."
        check_hidden(answer)
        answer = await ask(port, CHAT, request(CHAT, "block", is_stream=True))
        events = ended_well(events_of(answer))
        assert (text_in(events), finishes(CHAT, events)) == (WITHHELD, ["content_filter"])
        assert field not in events[0]["choices"][0]["delta"]
        check_hidden(answer)


FAR = {
    "text": "bluebird. Guard",
    "detection": "x",
    "detection_type": "y",
    "score": 1.0,
    "evidence": [{"name": "bluebird"}],
}


async def test_a_mask_hides_what_a_detector_says_of_the_text_too() -> None:
    async def far(exchange: Exchange) -> None:
        texts = exchange.received.json["contents"]
        place = {"start": 11, "end": 20, "text": "bluebird."}
        found = [FAR | place | {"metadata": {"rule": "a bluebird. it is", "kind": "bird"}}]
        lists = [found if text.startswith("The key") else [] for text in texts]
        await exchange.answer(json.dumps(lists).encode())

    async with before(far=far) as (port, _):
        for path in (CHAT, TEXT):
            answer = await ask(port, path, request(path, "far", is_stream=True))
            events = ended_well(events_of(answer))
            assert said(path, events) == "The key is " + "█" * 9 + " Guard it."
            (found,) = results_in(events)
            assert (found["start"], found["end"], found["text"]) == (11, 20, "█" * 9)
            assert found["metadata"] == {"rule": "█" * 17, "kind": "bird"}
            assert "evidence" not in found


async def test_what_reviewers_found_is_told_without_evidence_of_it() -> None:
    async def far(exchange: Exchange) -> None:
        found = FAR | {"text": ""}
        await exchange.answer(json.dumps([found]).encode())

    async with before(far=far) as (port, _):
        for is_stream in (False, True):
            body = request(CHAT, "mask", is_stream=is_stream)
            body["detectors"]["output"] = {"talk": {}}
            answer = await ask(port, CHAT, body)
            assert b'"talk"' in answer.body
            check_hidden(answer)


# What is cut off.


@pytest.mark.parametrize("policy", CUT_OFF)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_policy_that_cuts_off_closes_the_model_and_ends_every_choice(path: str, policy: str) -> None:
    left = asyncio.Event()

    async def model(exchange: Exchange) -> None:
        is_chat = path == CHAT
        await exchange.start()
        await exchange.chunk(sse(*[message_of(piece, index, is_chat) for index in (1, 0) for piece in PIECES]))
        await exchange.wait_until_left()
        left.set()

    async with before(model) as (port, _):
        answer = await ask(port, path, request(path, policy, is_stream=True, n=2))
        await left.wait()
    events = ended_well(events_of(answer))
    ends = [
        (one["index"], one["finish_reason"]) for event in events for one in event["choices"] if one["finish_reason"]
    ]
    assert sorted(ends) == [(0, "content_filter"), (1, "content_filter")]
    assert answer.body.count(WITHHELD.encode()) == (0 if policy == "blank" else 2)
    check_hidden(answer)


@pytest.mark.parametrize("policy", CUT_OFF)
async def test_a_policy_that_cuts_off_one_choice_lets_the_others_go_on(policy: str) -> None:
    """D-46."""
    said = [chunk("Once. Upon", 1), *[chunk(piece) for piece in PIECES], chunk(" a time.", 1)]
    ends = [chunk(index=index, finish="stop") for index in (0, 1)]
    async with before(stream(sse(*said, *ends, "[DONE]"))) as (port, _):
        answer = await ask(port, CHAT, request(CHAT, policy, is_stream=True, n=2))
    events = ended_well(events_of(answer))
    reasons = {one["index"]: one["finish_reason"] for event in events for one in event["choices"]}
    assert reasons == {0: "content_filter", 1: "stop"}
    assert text_in(events, 1) == "Once. Upon a time."
    check_hidden(answer)


async def test_a_policy_that_cuts_off_stops_a_generation_server_too() -> None:
    async def endless(_message: Any, _context: Context) -> AsyncIterator[Any]:
        for piece in PIECES:
            yield nlp.GeneratedTextStreamResult(generated_text=piece)
        await forever()

    async with before(ServerStreamingTextGenerationTaskPredict=endless) as (port, peers):
        events = events_of(await ask(port, V1_STREAM, request(V1_STREAM, "block", is_stream=True)))
        assert said(V1_STREAM, events) == WITHHELD
        await peers.generation.left.wait()


def find_bird(text: str) -> list[dict[str, Any]]:
    """The bird at the beginning of a text."""
    return [FAR | {"start": 0, "end": 8, "text": "bluebird"}] if text.startswith("bluebird") else []


async def test_what_is_withheld_takes_with_it_what_was_thought_and_is_still_being_read() -> None:
    """The finding in the content is known, the reasoning is never read; nothing unread leaves to tell of it."""

    async def far(exchange: Exchange) -> None:
        texts = exchange.received.json["contents"]
        if any("Hm" in text for text in texts):
            await stay_silent(exchange)
            return
        await exchange.answer(json.dumps([find_bird(text) for text in texts]).encode())

    said = [chunk(reasoning_content="Hm."), chunk("bluebird. So"), chunk(" it is. And"), chunk(reasoning_content="Ah.")]
    async with before(stream(sse(*said, chunk(tool_calls=[{"index": 0}], finish="stop"), "[DONE]")), far) as (port, _):
        answer = await ask(port, CHAT, request(CHAT, "farblock", is_stream=True))
    events = ended_well(events_of(answer))
    assert [event["choices"][0]["delta"].get("content") for event in events] == [WITHHELD, None]
    for word in (b"reasoning_content", b"Hm.", b"Ah.", b"tool_calls"):
        assert word not in answer.body
    assert (text_in(events), finishes(CHAT, events)) == (WITHHELD, ["content_filter"])
    check_hidden(answer)


async def test_what_was_thought_and_read_before_leaves_before_what_is_withheld() -> None:
    is_thought_heard = asyncio.Event()

    async def late(exchange: Exchange) -> None:
        found = [find_bird(text) for text in exchange.received.json["contents"]]
        if any(found):
            await is_thought_heard.wait()
        await exchange.answer(json.dumps(found).encode())

    said = [chunk(reasoning_content="Hm. So"), chunk("bluebird. So"), chunk(" it is."), chunk(finish="stop")]
    body = json.dumps(request(CHAT, "farblock", is_stream=True)).encode()
    async with before(stream(sse(*said, "[DONE]")), late) as (port, _), connect(port) as client:
        await client.send(build_request("POST", CHAT, body))
        answer = await client.read_head()
        while part := await client.read_chunk():
            answer = answer._replace(body=answer.body + part)
            if b'So"' in answer.body:
                is_thought_heard.set()
    events = ended_well(events_of(answer))
    thoughts = [event["choices"][0]["delta"].get("reasoning_content") for event in events]
    assert thoughts == ["Hm. ", "So", None, None]
    assert (text_in(events), finishes(CHAT, events)) == (WITHHELD, ["content_filter"])
    check_hidden(answer)


# What the caller says.


@pytest.mark.parametrize("path", [CHAT, TEXT, V1, V1_STREAM])
async def test_a_prompt_is_masked_before_the_model_reads_it(path: str) -> None:
    prompt = "Is 😀 bluebird it?"
    async with before(reply_json({**BASE, "choices": []}) if path in (CHAT, TEXT) else speak) as (port, peers):
        is_stream = path == V1_STREAM
        answer = await ask(port, path, request(path, "inmask", is_stream=is_stream, prompt=prompt))
        assert answer.status == 200
        if path in (V1, V1_STREAM):
            read = peers.generation.received[-1].text
        else:
            asked = peers.model.received[-1].json
            assert "detectors" not in asked
            read = asked["messages"][-1]["content"] if path == CHAT else asked["prompt"]
            if path == CHAT:
                assert asked["messages"][0] == {"role": "system", "content": "s"}
        assert read == f"Is 😀 {HIDDEN} it?"
        got = events_of(answer)[0] if is_stream else answer.json()
        v1 = got.get("token_classification_results", {}).get("input")
        found = v1 or got["detections"]["input"][0]["results"]
        assert [(one["start"], one["end"], one["score"]) for one in found] == [(5, 13, 1.0)]
        assert HIDDEN in (found[0].get("word"), found[0].get("text"))
        assert [one.get("id") or one.get("type") for one in got["warnings"]] == ["UNSUITABLE_INPUT"]


async def test_a_masked_prompt_is_told_in_a_stream_once() -> None:
    async with before() as (port, peers):
        for names in ([], ["key"], ["whole"]):
            body = request(CHAT, "inmask", is_stream=True, prompt="A bluebird?")
            body["detectors"]["output"] = {name: {} for name in names}
            events = ended_well(events_of(await ask(port, CHAT, body)))
            told = [event["detections"]["input"] for event in events if "input" in event.get("detections", {})]
            assert [one[0]["message_index"] for one in told] == [1]
            assert peers.model.received[-1].json["messages"][-1]["content"] == f"A {HIDDEN}?"


@pytest.mark.parametrize("path", [CHAT, TEXT, V1, V1_STREAM])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prompt_that_is_blocked_reaches_no_model(path: str, is_stream: bool) -> None:
    async with before() as (port, peers):
        answer = await ask(port, path, request(path, "inblock", is_stream=is_stream, prompt="A bluebird?"))
        assert (peers.model.received, peers.generation.calls) == ([], 0)
    check_hidden(answer)
    if path == V1_STREAM or (is_stream and path in (CHAT, TEXT)):
        (got,) = events_of(answer) if path == V1_STREAM else ended_well(events_of(answer))
        assert said(path, [got]) == "Ask me something else."
    else:
        got = answer.json()
        assert text_of(path, got) == "Ask me something else."
    choice = got if path in (V1, V1_STREAM) else got["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert [one.get("id") or one.get("type") for one in got["warnings"]] == ["UNSUITABLE_INPUT"]


# Detectors that fail.


@pytest.mark.parametrize("far", [reply(b"", 500), reply(b"{}"), reply_json({"code": 422, "message": "no"}, 422)])
@pytest.mark.parametrize("path", [CHAT, TEXT, V1, V1_STREAM])
async def test_a_failure_that_may_pass_is_a_warning(path: str, far: Script) -> None:
    async with before(far=far) as (port, _):
        is_stream = path == V1_STREAM
        answer = await ask(port, path, request(path, "lenient", is_stream=is_stream))
        check_hidden(answer)  # the other detector still reads
        values = events_of(answer) if is_stream else [answer.json()]
        assert (said(path, values) if is_stream else text_of(path, values[0])) == LEAVES["mask"]
        check_failed(values)
        if path in (CHAT, TEXT):
            events = ended_well(events_of(await ask(port, path, request(path, "lenient", is_stream=True))))
            assert said(path, events) == LEAVES["mask"]
            check_failed(events)


def check_failed(values: list[Any]) -> None:
    warnings = [one for value in values for one in value.get("warnings", ())]
    failed = [one for one in warnings if "DETECTOR_FAILED" in (one.get("type"), one.get("id"))]
    assert [one["message"] for one in failed] == [FAILED]


@pytest.mark.parametrize("path", [CHAT, TEXT, V1, V1_STREAM])
async def test_a_failure_that_may_not_pass_ends_the_request(path: str) -> None:
    error = error_of(503, "The text could not be checked: `far` failed")  # and nothing in the words of the detector
    async with before(far=reply_json({"code": 503, "message": "gone"}, 503)) as (port, _):
        if path != V1_STREAM:
            answer = await ask(port, path, request(path, "strict", is_stream=False))
            assert (answer.status, answer.json()) == (503, error)
        if path != V1:
            events = events_of(await ask(port, path, request(path, "strict", is_stream=True)))
            assert ended_badly(events, error, has_mark=path != V1_STREAM) == []


@pytest.mark.parametrize("path", [CHAT, TEXT, V1])
async def test_a_blocked_prompt_tells_of_the_detector_that_failed(path: str) -> None:
    async with before(far=reply(b"", 500)) as (port, _):
        got = (await ask(port, path, request(path, "inlenient", is_stream=False, prompt="A bluebird?"))).json()
    assert text_of(path, got) == WITHHELD
    check_failed([got])


async def test_a_policy_that_nobody_knows_is_refused() -> None:
    unknown = {"code": 422, "details": "policy `no` not found"}
    async with before() as (port, peers):
        for path in (CHAT, TEXT, V1):
            for is_stream in (False, True):
                answer = await ask(port, path, request(path, "no", is_stream=is_stream))
                assert (answer.status, answer.json()) == (422, unknown)
        events = events_of(await ask(port, V1_STREAM, request(V1_STREAM, "no", is_stream=True)))
        assert events == [{"$error": unknown}]
        assert (peers.model.received, peers.generation.calls) == ([], 0)
