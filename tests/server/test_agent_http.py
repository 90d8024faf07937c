# SPDX-License-Identifier: Apache-2.0
"""Agents and models as clients of OpenAI's and Ollama's see them (B-41 … B-44, D-18), over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.agent.answer import ANSWER_BLOCKED, TurnResult
from lockgate.config.agent_settings import ModelSettings
from lockgate.config.policies import PolicySettings
from lockgate.config.settings import LimitSettings, Settings
from lockgate.errors import CheckFailed, InvalidRequest, TurnFailed
from lockgate.gate.values import Message
from lockgate.sessions.turns import SessionKey
from tests.server.gateways import GROWING_S, ask, events_of, gateway
from tests.server.http_client import Answer, build_request, call, connect
from tests.server.scripted_agents import (
    CHAT,
    MODELS,
    OLLAMA_CHAT,
    OLLAMA_TEXT,
    TAGS,
    TEXT,
    USAGE,
    VERSION,
    Cast,
    ScriptedAgent,
    build_app,
)
from tests.server.served_app import served
from tests.waits import is_pending, settled, until

POSTS = (CHAT, TEXT, OLLAMA_CHAT, OLLAMA_TEXT)
WORDS = ["Hello", " there", "!"]
SETTINGS = Settings(
    models={"tiny": ModelSettings("tiny")},
    policies={"strict": PolicySettings("strict")},
    limits=LimitSettings(agent_request_bytes=5000),
)


@asynccontextmanager
async def playing(agent: ScriptedAgent | None = None, **options: Any) -> AsyncIterator[tuple[int, Cast]]:
    """The port, and who answers: the agents `default` and `docs`."""
    default = agent or ScriptedAgent()
    cast = Cast(SETTINGS, {"default": default, "docs": ScriptedAgent(("docs",))}, default)
    async with served(build_app(cast, **options)) as port:
        yield port, cast


def body(path: str, *, is_stream: bool = False, **fields: Any) -> dict[str, Any]:
    """A question in the path's words."""
    asked: dict[str, Any] = {"prompt": "Hi?"} if path in (TEXT, OLLAMA_TEXT) else {}
    asked = asked or {"messages": [{"role": "user", "content": "Hi?"}]}
    return {"model": "brunix", "stream": is_stream, **asked, **fields}


def said_in(path: str, answer: Answer) -> str:
    """The text of a whole answer."""
    told = answer.json()
    if path in (OLLAMA_CHAT, OLLAMA_TEXT):
        return str(told["message"]["content"] if path == OLLAMA_CHAT else told["response"])
    choice = told["choices"][0]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


def pieces_in(path: str, answer: Answer) -> list[str]:
    """The text of every event or line that has some."""
    if path in (CHAT, TEXT):
        choices = [one["choices"][0] for one in events_of(answer) if isinstance(one, dict) and one.get("choices")]
        texts = [one["delta"].get("content", "") if path == CHAT else one["text"] for one in choices]
    else:
        lines = [one for one in answer.lines() if "error" not in one]
        texts = [one["message"]["content"] if path == OLLAMA_CHAT else one["response"] for one in lines]
    return [text for text in texts if text]


def error_in(path: str, answer: Answer) -> str:
    """The words of an error, in the path's own shape."""
    told = answer.json()
    if path in (CHAT, TEXT):
        assert told["details"] == told["error"]["message"]
        return str(told["error"]["message"])
    assert list(told) == ["error"]
    return str(told["error"])


@pytest.mark.parametrize("path", POSTS)
async def test_an_agent_answers_whole(path: str) -> None:
    async with playing() as (port, cast):
        answer = await ask(port, path, body(path))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert said_in(path, answer) == "Hello there!"
    assert answer.json()["model"] == "brunix"
    (asked,) = cast.model.asked
    assert (asked.question, asked.sent, asked.is_stream) == ("Hi?", (Message("user", "Hi?"),), False)
    assert (asked.session, asked.params) == (None, {})


@pytest.mark.parametrize("path", POSTS)
async def test_an_agent_answers_piece_by_piece(path: str) -> None:
    async with playing(ScriptedAgent(["", *WORDS])) as (port, cast):
        answer = await ask(port, path, body(path, is_stream=True))
    assert pieces_in(path, answer) == WORDS
    assert cast.model.asked[0].is_stream
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
    if path in (CHAT, TEXT):
        *_, last, done = events_of(answer)
        assert (last["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
    else:
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert [line["done"] for line in answer.lines()] == [False, False, False, True]
        assert answer.lines()[-1]["eval_count"] == 2


async def test_only_clients_of_ollama_get_a_stream_that_they_did_not_ask_for() -> None:
    async with playing() as (port, cast):
        for path in POSTS:
            asked = body(path)
            del asked["stream"]
            await ask(port, path, asked)
    assert [one.is_stream for one in cast.model.asked] == [False, False, True, True]


async def test_usage_comes_last_where_it_was_asked_for() -> None:
    async with playing() as (port, _):
        answer = await ask(port, CHAT, body(CHAT, is_stream=True, stream_options={"include_usage": True}))
        assert (await ask(port, CHAT, body(CHAT))).json()["usage"] == USAGE
    counted, done = events_of(answer)[-2:]
    assert (counted["choices"], counted["usage"], done) == ([], USAGE, "[DONE]")


@pytest.mark.parametrize("path", POSTS)
async def test_each_piece_leaves_before_the_next_is_made(path: str) -> None:
    gate = asyncio.Semaphore(0)
    async with playing(ScriptedAgent(gate=gate)) as (port, cast), connect(port) as client:
        await client.send(build_request("POST", path, json.dumps(body(path, is_stream=True)).encode()))
        gate.release()
        await client.read_head()
        for number, word in enumerate(WORDS, start=1):
            heard = b""
            while json.dumps(word).encode() not in heard:
                heard += await client.read_chunk()
            assert (cast.model.said, cast.model.stored) == (number, 0)
            gate.release()


@pytest.mark.parametrize("path", POSTS)
async def test_the_end_is_told_when_the_turn_has_been_stored(path: str) -> None:
    gate = asyncio.Semaphore(len(WORDS))  # all is said, and nothing stored
    async with playing(ScriptedAgent(gate=gate)) as (port, cast), connect(port) as client:
        await client.send(build_request("POST", path, json.dumps(body(path, is_stream=True)).encode()))
        await client.read_head()
        heard = b""
        while json.dumps(WORDS[-1]).encode() not in heard:
            heard += await client.read_chunk()
        more = asyncio.create_task(client.read_chunk())
        assert await is_pending(more)
        assert [end for end in (b'"finish_reason":"stop"', b"[DONE]", b'"done":true') if end in heard] == []
        gate.release()
        heard += await more
        while b"[DONE]" not in heard and b'"done":true' not in heard:
            heard += await client.read_chunk()
        assert cast.model.stored == 1


# Who is named.


async def test_the_model_chooses_who_answers() -> None:
    async with playing() as (port, cast):
        answer = await ask(port, CHAT, body(CHAT, model="agent/docs@strict"))
        assert (answer.status, answer.json()["model"]) == (200, "agent/docs@strict")
        assert said_in(CHAT, await ask(port, CHAT, body(CHAT, model="agent/docs"))) == "docs"
        assert said_in(CHAT, await ask(port, CHAT, body(CHAT, model="agent/default"))) == "Hello there!"
        assert (
            said_in(OLLAMA_CHAT, await ask(port, OLLAMA_CHAT, body(OLLAMA_CHAT, model="agent/docs:latest"))) == "docs"
        )
    assert cast.found == [("docs", "strict")]


@pytest.mark.parametrize(
    "name", ["gpt-4o", "default", "docs", "agent/", "agent/none", "tiny@none", "x@strict", "", "@"]
)
@pytest.mark.parametrize("path", POSTS)
async def test_a_model_that_nobody_is_gets_404(path: str, name: str) -> None:
    async with playing() as (port, cast):
        answer = await ask(port, path, body(path, model=name))
    assert answer.status == 404
    if path in (CHAT, TEXT):
        error = answer.json()["error"]
        assert error == {
            "message": f"The model `{name}` does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    else:
        assert answer.json() == {"error": f"model '{name}' not found"}
    assert cast.model.asked == []


async def test_the_lists_name_agents_and_models() -> None:
    names = ["brunix", "agent/default", "agent/docs", "tiny"]
    async with playing() as (port, _):
        listed = (await call(port, MODELS, method="GET")).json()
        tags = (await call(port, TAGS, method="GET")).json()
        one = (await call(port, f"{MODELS}/agent%2Fdocs", method="GET")).json()
        version = (await call(port, VERSION, method="GET")).json()
        assert (await call(port, f"{MODELS}/none", method="GET")).status == 404
        assert (await call(port, CHAT, method="GET")).status == 405
    assert listed["object"] == "list"
    assert [(one["id"], one["object"], one["owned_by"]) for one in listed["data"]] == [
        (name, "model", "lockgate") for name in names
    ]
    assert one == {**listed["data"][2]}
    assert [one["name"] for one in tags["models"]] == names
    assert version.keys() == {"version"}


# What is asked.


async def test_a_session_is_the_callers_with_this_agent() -> None:
    headers = {"x-request-id": "r-1"}
    async with playing() as (port, cast):
        for path in POSTS:
            assert (await ask(port, path, body(path, session_id="s", query_type="RETRIEVAL"), headers)).status == 200
        await ask(port, CHAT, body(CHAT, session_id=""), {"x-request-id": "x" * 201})
    assert {one.session for one in cast.model.asked[:4]} == {SessionKey("anonymous", "default", "s")}
    assert {(one.request_id, one.label) for one in cast.model.asked[:4]} == {("r-1", "RETRIEVAL")}
    assert (cast.model.asked[4].session, cast.model.asked[4].request_id) == (None, "")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", POSTS)
async def test_a_wrong_request_is_400_before_anybody_is_asked(path: str, is_stream: bool) -> None:
    wrong: list[dict[str, Any]] = [{"prompt": "", "messages": []}, {"session_id": 4}, {"tools": [{}], "suffix": "x"}]
    async with playing() as (port, cast):
        for fields in wrong:
            answer = await ask(port, path, body(path, is_stream=is_stream) | fields)
            assert answer.status == 400
            assert error_in(path, answer)
    assert cast.model.asked == []


@pytest.mark.parametrize("raw", [b"", b"{nope", b"[1,2]", b"3", b"{}", b'{"model": 3}', b'{"model": "brunix"}'])
@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_is_no_object_is_400(path: str, raw: bytes) -> None:
    async with playing() as (port, _):
        answer = await call(port, path, raw)
    assert answer.status == 400
    assert error_in(path, answer)


async def test_what_only_the_agent_knows_to_be_wrong_is_400_too() -> None:
    async with playing(ScriptedAgent((), InvalidRequest("unknown label", status=400))) as (port, _):
        for path in POSTS:
            answer = await ask(port, path, body(path, is_stream=True))
            assert (answer.status, error_in(path, answer)) == (400, "unknown label")


async def test_clients_of_ollama_need_not_name_the_type_of_the_body() -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with playing() as (port, _):
        statuses = [(await call(port, path, json.dumps(body(path)).encode(), headers=form)).status for path in POSTS]
    assert statuses == [415, 415, 200, 200]


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_over_the_limit_is_413(path: str) -> None:
    async with playing() as (port, cast):
        answer = await ask(port, path, body(path, metadata={"padding": "x" * 5000}))
        fitting = await ask(port, path, body(path, metadata={"padding": "x" * 4500}))
    assert (answer.status, fitting.status, len(cast.model.asked)) == (413, 200, 1)
    assert "length limit exceeded" in error_in(path, answer)


# What goes wrong.


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TurnFailed("the model is not available"), 503),
        (TurnFailed("the model did not answer in time", status=504), 504),
        (CheckFailed("pii"), 502),
        (CheckFailed("pii", status=504), 504),
        (RuntimeError("a bug"), 500),
    ],
)
async def test_a_failure_before_the_first_piece_has_its_status(error: Exception, status: int, is_stream: bool) -> None:
    async with playing(ScriptedAgent((), error)) as (port, cast):
        for path in POSTS:
            answer = await ask(port, path, body(path, is_stream=is_stream))
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
            assert "bug" not in error_in(path, answer)
    assert cast.model.left == 4


async def test_a_failure_after_pieces_ends_a_whole_answer_with_its_status() -> None:
    async with playing(ScriptedAgent(WORDS, TurnFailed("gone"))) as (port, _):
        for path in POSTS:
            answer = await ask(port, path, body(path))
            assert (answer.status, error_in(path, answer)) == (503, "gone")


@pytest.mark.parametrize("path", POSTS)
async def test_a_failure_after_pieces_is_the_last_word_of_a_stream(path: str) -> None:
    async with playing(ScriptedAgent(WORDS, TurnFailed("gone"))) as (port, _):
        answer = await ask(port, path, body(path, is_stream=True))
    assert pieces_in(path, answer) == WORDS
    if path in (CHAT, TEXT):
        *others, last = events_of(answer)
        assert last["error"] == {"message": "gone", "type": "server_error", "param": None, "code": 503}
        assert [one["choices"][0]["finish_reason"] for one in others] == [None] * len(others)
        assert b"event:" not in answer.body
    else:
        *others, last = answer.lines()
        assert last == {"error": "gone"}
        assert not any(one["done"] for one in others)


async def test_a_turn_that_takes_too_long_ends_with_an_error() -> None:
    for timeout_s in GROWING_S:
        async with playing(ScriptedAgent(gate=asyncio.Semaphore(1)), timeout_s=timeout_s) as (port, cast):
            answer = await ask(port, OLLAMA_CHAT, body(OLLAMA_CHAT, is_stream=True))
        if answer.status == 200:
            break
    assert pieces_in(OLLAMA_CHAT, answer) == WORDS[:1]
    assert answer.lines()[-1] == {"error": "request timed out"}
    assert cast.model.left == 1


async def test_a_blocked_turn_ends_as_filtered() -> None:
    facts = TurnResult(outcome=ANSWER_BLOCKED)
    async with playing(ScriptedAgent(("Not here.",), facts=facts)) as (port, _):
        whole = (await ask(port, CHAT, body(CHAT))).json()
        streamed = events_of(await ask(port, CHAT, body(CHAT, is_stream=True)))
        lines = (await ask(port, OLLAMA_CHAT, body(OLLAMA_CHAT, is_stream=True))).lines()
    assert (whole["choices"][0]["finish_reason"], whole["usage"]) == ("content_filter", None)
    assert streamed[-2]["choices"][0]["finish_reason"] == "content_filter"
    assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "content_filter")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", POSTS)
async def test_a_client_that_leaves_ends_the_turn(path: str, is_stream: bool) -> None:
    gate = asyncio.Semaphore(1)
    async with playing(ScriptedAgent(gate=gate)) as (port, cast):
        async with connect(port) as client:
            await client.send(build_request("POST", path, json.dumps(body(path, is_stream=is_stream)).encode()))
            if is_stream:
                await client.read_head()
                await client.read_chunk()
            else:
                await until(lambda: cast.model.said, "the first piece")
        await until(lambda: cast.model.left, "the end of the turn")
    assert (cast.model.left, cast.model.stored) == (1, 0)


async def test_a_client_that_does_not_read_slows_the_agent() -> None:
    agent = ScriptedAgent(["x" * 1000] * 20_000)
    async with playing(agent) as (port, _), connect(port, limit=1024, receive_bytes=4096) as client:
        await client.send(build_request("POST", CHAT, json.dumps(body(CHAT, is_stream=True)).encode()))
        await client.read_head()
        assert await settled(lambda: agent.said) < 15_000


# Beside the server behind us.


async def test_without_anybody_to_name_every_model_is_unknown_and_the_lists_are_empty() -> None:
    async with gateway("detectors: {pii: {embedded: pii, chunker_id: sentence}}") as port:
        assert (await ask(port, CHAT, body(CHAT))).json()["error"]["code"] == "model_not_found"
        assert (await ask(port, OLLAMA_CHAT, body(OLLAMA_CHAT))).status == 404
        assert (await call(port, MODELS, method="GET")).json() == {"object": "list", "data": []}
        assert (await call(port, TAGS, method="GET")).json() == {"models": []}
    async with gateway("detectors: {pii: {embedded: pii, chunker_id: sentence}}", LOCKGATE_COMPAT="fms") as port:
        for path in POSTS:
            assert (await ask(port, path, body(path)))[0::2] == (404, b"")
        assert (await call(port, MODELS, method="GET")).status == 404


@pytest.mark.parametrize("path", POSTS)
async def test_an_answer_that_was_cut_says_so(path: str) -> None:
    async with playing(ScriptedAgent(facts=TurnResult(is_cut=True))) as (port, _):
        told = (await ask(port, path, body(path, stream=False))).json()
    end = told["choices"][0]["finish_reason"] if path in (CHAT, TEXT) else told["done_reason"]
    assert end == "length"
