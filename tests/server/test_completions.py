# SPDX-License-Identifier: Apache-2.0
"""Completions over real sockets, before a real (scripted) model: what clients see in default mode."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange, Peer, open_peer, reply_json, stream
from tests.server.gateways import (
    CHAT,
    TEXT,
    ask,
    build_request,
    chat_body,
    chunk,
    connect,
    events_of,
    gateway,
    results_in,
    sse,
    text_in,
)

SAID = ["Mail ", "ana@exa", "mple.com today", ". It is fine", ".\n\nThe ", "end"]
WHOLE = "".join(SAID)


def config(port: int, extra: str = "") -> str:
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {port}, request_timeout: 600}}}}
detectors:
  pii: {{embedded: pii, chunker_id: sentence}}
  words: {{embedded: keywords, chunker_id: word, options: {{keywords: [fine, There]}}}}
  pages: {{embedded: keywords, chunker_id: paragraph, options: {{keywords: [today, end]}}}}
  whole: {{embedded: keywords, chunker_id: whole_doc_chunker, options: {{keywords: [The]}}}}
  talk: {{type: text_chat, embedded: keywords, options: {{keywords: [fine]}}}}
  about: {{type: text_generation, embedded: keywords, options: {{keywords: [fine]}}}}
{extra}
"""


def answer(text: str = WHOLE, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message | more, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"x": 1}},
    }  # fmt: skip


def said(*pieces: str) -> bytes:
    return sse(chunk(role="assistant"), *[chunk(piece) for piece in pieces], chunk(finish="stop"), "[DONE]")


@asynccontextmanager
async def before(peer_script: Any, extra: str = "", **environ: str) -> AsyncIterator[tuple[int, Peer]]:
    async with open_peer(peer_script) as peer, gateway(config(peer.port, extra), **environ) as port:
        yield port, peer


async def test_detectors_of_four_sizes_read_one_stream() -> None:
    async with before(stream(said(*SAID))) as (port, _):
        body = chat_body(detectors={"output": {"pii": {}, "words": {}, "pages": {}, "whole": {}}})
        events = events_of(await ask(port, CHAT, body))
    assert events[-1] == "[DONE]"
    assert text_in(events) == WHOLE
    found = {(one["detector_id"], one["text"], one["start"]) for one in results_in(events)}
    assert found == {
        ("pii", "ana@example.com", 5), ("words", "fine", 34), ("pages", "today", 21), ("pages", "end", 45),
        ("whole", "The", 41),
    }  # fmt: skip
    assert [one for one in results_in(events[:-2]) if one["detector_id"] == "whole"] == []
    places = [event["detections"]["output"][0] for event in events[:-2] if "detections" in event]
    ends = [0, *[one["processed_index"] for one in places]]
    assert [one["start_index"] for one in places] == ends[:-1]
    assert ends[-1] == len(WHOLE)


async def test_whole_document_detectors_hold_where_the_setting_says_so() -> None:
    async with before(stream(said(*SAID)), "whole_document: hold") as (port, _):
        events = events_of(await ask(port, CHAT, chat_body(detectors={"output": {"whole": {}}})))
    assert [event["choices"][0]["delta"].get("content") for event in events[:-1]] == [WHOLE, None]
    assert [one["text"] for one in results_in(events)] == ["The"]


async def test_clients_find_completions_under_the_names_they_know() -> None:
    async with before(reply_json(answer())) as (port, peer):
        got = (await ask(port, "/v1/chat/completions", chat_body(False, temperature=0.5))).json()
        assert got["choices"][0]["message"]["content"] == WHOLE
        assert got["usage"]["prompt_tokens_details"] == {"x": 1}
        assert peer.received[-1].json == {
            "stream": False, "model": "m", "messages": [{"role": "user", "content": "Hello there"}], "temperature": 0.5,
        }  # fmt: skip
    async with before(reply_json(answer()), LOCKGATE_COMPAT="fms") as (port, _):
        assert (await ask(port, "/v1/chat/completions", chat_body(False))).status == 404


async def test_a_whole_answer_gets_its_findings_and_warnings() -> None:
    detectors: dict[str, Any] = {"output": {"pii": {}, "talk": {}}}
    async with before(reply_json(answer(reasoning_content="hm"))) as (port, _):
        got = (await ask(port, CHAT, chat_body(False, detectors=detectors))).json()
    (entry,) = got["detections"]["output"]
    assert [(one["detector_id"], one.get("start")) for one in entry["results"]] == [("pii", 5), ("talk", None)]
    assert got["warnings"] == [{"type": "UNSUITABLE_OUTPUT", "message": "Unsuitable output detected."}]
    assert got["choices"][0]["message"] == {"role": "assistant", "content": WHOLE, "reasoning_content": "hm"}
    assert list(got)[-2:] == ["detections", "warnings"]


async def test_an_empty_answer_warns_and_is_reviewed() -> None:
    async with before(reply_json(answer(""))) as (port, _):
        got = (await ask(port, CHAT, chat_body(False, detectors={"output": {"pii": {}, "talk": {}}}))).json()
    assert got["warnings"] == [{"type": "EMPTY_OUTPUT", "message": "Choice of index 0 has no content"}]
    assert "detections" not in got


async def test_a_prompt_with_a_finding_is_counted_and_goes_no_further() -> None:
    async with before(reply_json({"count": 7})) as (port, peer):
        body = chat_body(False, detectors={"input": {"words": {}}})
        body["messages"] = [{"role": "system", "content": "s"}, {"role": "user", "content": "There it is"}]
        got = (await ask(port, CHAT, body)).json()
        streamed = events_of(await ask(port, CHAT, body | {"stream": True}))
    assert [one.path for one in peer.received] == ["/tokenize", "/tokenize"]
    assert peer.received[0].json == {"model": "m", "prompt": "There it is"}
    assert got["object"] == "chat.completion"
    assert got["choices"] == []
    assert got["usage"] == {"prompt_tokens": 7, "total_tokens": 0, "completion_tokens": 0}
    assert got["detections"]["input"][0]["message_index"] == 1
    assert got["warnings"][0]["type"] == "UNSUITABLE_INPUT"
    assert streamed[0]["object"] == "chat.completion.chunk"
    assert streamed[1:] == ["[DONE]"]


@pytest.mark.parametrize(
    ("change", "status", "details"),
    [
        ({"model": ""}, 422, "`model` must not be empty"),
        ({"messages": []}, 422, "`messages` must not be empty"),
        ({"detectors": {"input": {"pii": {"threshold": "x"}}}}, 422,
         "`threshold` parameter specified for model `pii` must be a number"),
        ({"detectors": {"input": {"nobody": {}}}, "stream": False}, 404, "detector `nobody` not found"),
        ({"detectors": {"input": {"talk": {}}}, "stream": False}, 400,
         "detector `talk` is not supported by this endpoint"),
        ({"detectors": {"output": {"about": {}}}, "stream": False}, 400,
         "detector `about` is not supported by this endpoint"),
        ({"detectors": {"input": {"pii": {}}}, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, 422,
         "Detection on array is not supported"),
        ({"detectors": {"input": {"pii": {}}}, "messages": [{"role": "user"}]}, 422,
         "if input detectors are provided, `content` must not be empty on last message"),
        ({"detectors": {"input": {"pii": {}}}, "messages": [{"role": "tool", "content": "x"}], "stream": False}, 422,
         "Last message role must be user, assistant, or system"),
        ({"detectors": {"policy": "nowhere"}}, 422, "policy `nowhere` not found"),
        ({"detectors": {"inputs": {}}}, 422, "detectors.inputs: unknown field `inputs`"),
        ({"tools": [{"type": "x"}]}, 422, "tools[0]: data did not match any variant of untagged enum Tool"),
        ({"messages": [{"role": "king"}]}, 422, "messages[0].role: unknown variant, expected one of `user`"),
    ],
)  # fmt: skip
async def test_requests_that_break_a_rule_never_reach_the_model(
    change: dict[str, Any], status: int, details: str
) -> None:
    async with before(reply_json(answer())) as (port, peer):
        got = await ask(port, CHAT, chat_body() | change)
        assert (got.status, got.json()["code"]) == (status, status)
        assert got.json()["details"].startswith(details)
        assert peer.received == []


async def test_a_wrong_detector_of_a_stream_is_an_event_and_the_end() -> None:
    async with before(reply_json(answer())) as (port, peer):
        events = events_of(await ask(port, CHAT, chat_body(detectors={"output": {"nobody": {}}})))
    assert events == [{"$error": {"code": 404, "details": "detector `nobody` not found"}}, "[DONE]"]
    assert peer.received == []


async def test_texts_are_read_with_their_prompt() -> None:
    choice = {"index": 0, "text": "all fine", "logprobs": None, "finish_reason": "stop"}
    completion = {
        "id": "t",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": None,
    }
    detectors: dict[str, Any] = {"output": {"about": {}, "words": {}}}
    async with before(reply_json(completion)) as (port, _):
        got = (await ask(port, TEXT, {"model": "m", "prompt": "how?", "detectors": detectors})).json()
    assert [(one["detector_id"], one.get("start")) for one in got["detections"]["output"][0]["results"]] == [
        ("words", 4),
        ("about", None),
    ]
    async with before(stream(sse(completion | {"choices": [choice | {"text": ""}]}, "[DONE]"))) as (port, _):
        body = {"model": "m", "prompt": "how?", "stream": True, "detectors": {"output": {"whole": {}, "about": {}}}}
        events = events_of(await ask(port, TEXT, body))
    assert [one["results"] for one in events[-2]["detections"]["output"]] == [[], []]
    assert "warnings" not in events[-2]


async def test_masks_of_a_prompt_limit_what_is_read() -> None:
    async with before(reply_json({"count": 1})) as (port, peer):
        body = {
            "model": "m",
            "prompt": "fine. not fine",
            "detectors": {"input": {"words": {}}},
            "_prompt_masks": [[6, 14]],
        }
        got = (await ask(port, TEXT, body)).json()
        assert [one["start"] for one in got["detections"]["input"][0]["results"]] == [10]
        wrong = await ask(port, TEXT, body | {"_prompt_masks": [[3, 1]]})
    assert wrong.json() == {"code": 422, "details": "invalid masks"}
    assert "_prompt_masks" not in json.dumps([one.json for one in peer.received])


async def test_text_is_on_its_way_while_the_model_still_speaks() -> None:
    may_go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(sse(chunk("One is done. "), chunk("Two")))
        await may_go_on.wait()
        await exchange.chunk(sse(chunk(" is done."), chunk(finish="stop"), "[DONE]"))
        await exchange.end()

    async with before(script) as (port, _), connect(port) as client:
        body = json.dumps(chat_body(detectors={"output": {"pii": {}}})).encode()
        await client.send(build_request("POST", CHAT, body))
        await client.read_head()
        first = json.loads((await client.read_line()).removeprefix(b"data: "))
        assert first["choices"][0]["delta"]["content"] == "One is done. "
        may_go_on.set()
        assert await client.read_line() == b"\n"
        second = json.loads((await client.read_line()).removeprefix(b"data: "))
        assert second["choices"][0]["delta"]["content"] == "Two is done."


@pytest.mark.parametrize("detectors", [{}, {"output": {"pii": {}}}, {"output": {"whole": {}}}])
async def test_a_client_that_leaves_takes_the_models_connection_with_it(detectors: dict[str, Any]) -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(sse(chunk("One is done. Two")))
        await exchange.wait_until_left()
        left.set()

    async with before(script) as (port, _):
        async with connect(port) as client:
            body = json.dumps(chat_body(detectors=detectors)).encode()
            await client.send(build_request("POST", CHAT, body))
            await client.read_head()
            await client.read_line()
        await left.wait()


ODD_CHUNK = '{"id":"c1",  "new":[1.50,{"b":2,"a":1}], "choices":[{"index":0,"delta":{"content":"\\u00e9"}}]}'


async def test_messages_that_nothing_reads_leave_as_the_bytes_they_were() -> None:
    async with before(stream(b": note\n\ndata: " + ODD_CHUNK.encode() + b"\n\n" + said("end"))) as (port, _):
        received = await ask(port, CHAT, chat_body())
    assert received.body.startswith(b"data: " + ODD_CHUNK.encode() + b"\n\n")
    assert text_in(events_of(received)) == "éend"
    assert received.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("bad", ['{"choices":{}}', '{"choices":[}', "[1]", "word"])
async def test_an_event_that_is_no_message_is_not_passed_on(bad: str) -> None:
    async with before(stream(said("end")[: -len("data: [DONE]\n\n")] + f"data: {bad}\n\n".encode())) as (port, _):
        received = await ask(port, CHAT, chat_body())
    assert bad.encode() not in received.body
    assert b"event: error" in received.body
    assert text_in([one for one in events_of(received)[:-2] if isinstance(one, dict)]) == "end"
