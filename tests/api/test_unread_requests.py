# SPDX-License-Identifier: Apache-2.0
"""No text of a request goes on unread: a marked string at each place of a request, over real sockets."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
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

MARK, HIDDEN, FALLBACK = "bluebird", "████████", "[withheld]"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTENT, RESULT, NAME = "content", "result", "name"  # masked in place; replaced by the fallback; refused
ASK = {"role": "user", "content": "Hello"}
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "description": "Says it.", "parameters": {}}}
HEAD = {"id": "c1", "created": 1, "model": "m"}


@dataclass(frozen=True)
class Sown:
    """Fields of a request with a mark in one place, and how that place is treated."""

    kind: str
    fields: Mapping[str, Any]
    path: str = CHAT


def say(kind: str, *messages: Mapping[str, Any]) -> Sown:
    """A chat with these messages after its first one."""
    return Sown(kind, {"messages": [ASK, *messages]})


def call_tool(**function: Any) -> dict[str, Any]:
    """A message of the assistant that calls a tool."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "function": {**CALL["function"], **function}}],
    }


def offer(**function: Any) -> Sown:
    """A chat with a tool."""
    return Sown(NAME, {"tools": [{**TOOL, "function": {**TOOL["function"], **function}}]})


def parts(*texts: str) -> list[dict[str, Any]]:
    """A content of several parts."""
    return [{"type": "text", "text": text} for text in texts]


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CASES: Mapping[str, Sown] = {
    **{f"a message of role {role}": say(CONTENT, {"role": role, "content": f"A {MARK}."})
       for role in ("system", "developer", "user", "assistant")},
    "parts of the last message": say(CONTENT, {"role": "user", "content": parts("Hi.", f"A {MARK}.")}),
    "a text over two parts": say(CONTENT, {"role": "user", "content": parts("A blue", "bird.")}),
    "the result of a tool": say(RESULT, call_tool(), {"role": "tool", "tool_call_id": "call_1", "content": MARK}),
    "a result in parts": say(RESULT, call_tool(), {"role": "tool", "tool_call_id": "call_1", "content": parts(MARK)}),
    "the result of a function": say(RESULT, {"role": "function", "name": "f", "content": f'{{"a": "{MARK}"}}'}),
    "a name": say(NAME, {"role": "user", "name": MARK, "content": "Hi."}),
    "a refusal": say(CONTENT, {"role": "assistant", "content": "No.", "refusal": f"A {MARK}."}),
    "reasoning": say(CONTENT, {"role": "assistant", "content": "No.", "reasoning_content": f"A {MARK}."}),
    "arguments of a call": say(CONTENT, call_tool(arguments=f'{{"a": "{MARK}"}}')),
    "a key of arguments": say(CONTENT, call_tool(arguments=f'{{"{MARK}": 1}}')),
    "escaped arguments": say(CONTENT, call_tool(arguments='{"a": "\\u0062luebird"}')),
    "the name of a called tool": say(NAME, call_tool(name=MARK)),
    "the id of a call": say(NAME, {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": MARK}]}),
    "the id of a result": say(NAME, {"role": "tool", "tool_call_id": MARK, "content": "x"}),
    "an unknown field of a message": say(NAME, {"role": "user", "content": "Hi.", "mood": MARK}),
    "an unknown field of a part": say(NAME, {"role": "user", "content": [{"type": "text", "text": "a", "x": [MARK]}]}),
    "the type of a part": say(NAME, {"role": "user", "content": [{"type": MARK, "text": "a"}]}),
    "the name of a tool": offer(name=MARK),
    "a schema's description": offer(parameters={**SCHEMA, "description": MARK}),
    "a schema's property": offer(parameters={"type": "object", "properties": {MARK: {"type": "string"}}}),
    "a schema's example": offer(parameters={"properties": {"a": {"examples": [{"b": MARK}]}}}),
    "the description of a tool": Sown(CONTENT, offer(description=f"A {MARK}.").fields),
    "a function's description": Sown(CONTENT, {"functions": [{"name": "f", "description": f"A {MARK}."}]}),
    "a chosen tool": Sown(NAME, {"tool_choice": {"type": "function", "function": {"name": MARK}}}),
    "a prediction": Sown(CONTENT, {"prediction": {"type": "content", "content": f"A {MARK}."}}),
    "documents": Sown(CONTENT, {"documents": [{"title": "x", "text": f"A {MARK}."}]}),
    "plain documents": Sown(CONTENT, {"documents": [f"A {MARK}."]}),
    "a response format": Sown(NAME, {"response_format": {"type": "json_schema", "json_schema": {"name": MARK}}}),
    "metadata": Sown(NAME, {"metadata": {"note": MARK}}),
    "a key of metadata": Sown(NAME, {"metadata": {MARK: "x"}}),
    "the user": Sown(NAME, {"user": MARK}),
    "a stop sequence": Sown(NAME, {"stop": ["x", MARK]}),
    "an unknown field": Sown(NAME, {"extra": {"deep": [[{"er": MARK}]]}}),
    "an unknown key": Sown(NAME, {MARK: 1}),
    "a word for a number": Sown(NAME, {"temperature": MARK}),
    "a word that is none of the known": Sown(NAME, {"reasoning_effort": MARK}),
    "a prompt": Sown(CONTENT, {"prompt": f"A {MARK}."}, TEXT),
    "one of several prompts": Sown(CONTENT, {"prompt": ["Hi.", f"A {MARK}."]}, TEXT),
    "a suffix": Sown(CONTENT, {"prompt": "Hi.", "suffix": f"A {MARK}."}, TEXT),
}  # fmt: skip
UNREADABLE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "messages[1].content[0].image_url": (
        CHAT, say("", {"role": "user", "content": [{"type": "image_url", "image_url": {"url": MARK}}]}).fields,
    ),
    "messages[1].content[0].input_audio": (
        CHAT, say("", {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": MARK}}]}).fields,
    ),
    "messages[1].content[0].file.file_data": (
        CHAT, say("", {"role": "user", "content": [{"type": "file", "file": {"file_data": MARK}}]}).fields,
    ),
    "messages[1].content[0].file.file_id": (
        CHAT, say("", {"role": "user", "content": [{"type": "file", "file": {"file_id": MARK}}]}).fields,
    ),
    "messages[1].audio": (CHAT, say("", {"role": "assistant", "content": "x", "audio": {"id": MARK}}).fields),
    "prompt": (TEXT, {"prompt": [72, 101]}),
    "prompt[1]": (TEXT, {"prompt": ["Hi.", [72, 101]]}),
    "prompt_embeds": (TEXT, {"prompt": "Hi.", "prompt_embeds": MARK}),
}  # fmt: skip


class RecordingModel:
    """A model that keeps what it is asked, and answers with one word."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, list[tuple[str, str]]]] = []

    async def answer(self, exchange: Exchange) -> None:
        """One answer, as it is asked for."""
        received = exchange.received
        self.asked.append((received.body, received.headers))
        is_chat = "messages" in received.json
        if not received.json.get("stream"):
            told: dict[str, Any] = (
                {"message": {"role": "assistant", "content": "Fine."}} if is_chat else {"text": "Fine."}
            )
            choice = {"index": 0, **told, "logprobs": None, "finish_reason": "stop"}
            whole = {**HEAD, "object": "x", "choices": [choice], "usage": {"total_tokens": 1}}
            await exchange.answer(json.dumps(whole).encode())
            return
        told = {"delta": {"content": "Fine."}} if is_chat else {"text": "Fine."}
        event = {**HEAD, "object": "x", "choices": [{"index": 0, **told, "finish_reason": "stop"}]}
        await exchange.start()
        await exchange.chunk(b"data: %b\n\n" % json.dumps(event).encode(), b"data: [DONE]\n\n")
        await exchange.end()


@dataclass
class Guarded:
    """A gateway, and the model behind it."""

    port: int
    model: RecordingModel

    async def ask(self, path: str, policy: str, fields: Mapping[str, Any], **headers: str) -> Answer:
        """One request under a policy."""
        self.model.asked.clear()
        first = {"messages": [ASK]} if path == CHAT else {}
        body = {"model": "m", **first, **fields, "detectors": {"policy": policy}}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await call(self.port, path, json.dumps(body).encode(), headers={**JSON_TYPE, **named})


def build_config(port: int) -> dict[str, Any]:
    """A policy for each action, with a detector that knows the mark."""
    reads: dict[str, Any] = {"input": {"word": {}}, "fallback": FALLBACK}
    return {
        "openai": {"service": {"hostname": HOST, "port": port}},
        "models": {"own": {"openai": {"url": f"http://{HOST}:{port}/v1", "model": "m"}, "expose": True}},
        "passthrough_headers": ["x-note", "authorization"],
        "detectors": {"word": {"embedded": "keywords", "chunker_id": "sentence", "options": {"keywords": [MARK]}}},
        "policies": {
            "mask": {**reads, "on_finding": "mask"},
            "block": {**reads, "on_finding": "block"},
            "strict": {**reads, "on_finding": "block", "tool_results": "block"},
            "annotate": reads,
            "shadow": {**reads, "on_finding": "block", "mode": "shadow"},
            "pass": {**reads, "on_finding": "mask", "unreadable": "pass"},
            "lenient": {"input": {"word": {"threshold": {"user": 1.5}}}, "on_finding": "mask"},
            "users": {"input": {"word": {"roles": ["user"]}}, "on_finding": "mask"},
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("unread")
    model = RecordingModel()
    async with open_peer(model.answer) as peer:
        settings = load_config(folder, "unread", build_config(peer.port))
        async with open_gateway(settings) as gateway, served(build_api_app(gateway)) as port:
            yield Guarded(port, model)


pytestmark = pytest.mark.asyncio(loop_scope="module")
STREAMS = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


def find_receipt(answer: Answer) -> dict[str, Any]:
    """The receipt of an answer."""
    receipt: dict[str, Any] = next(value["receipt"] for value in read_answer(answer)[0] if value.get("receipt"))
    return receipt


@STREAMS
@pytest.mark.parametrize("name", CASES)
async def test_a_marked_text_is_masked_replaced_or_refused(guarded: Guarded, name: str, *, is_stream: bool) -> None:
    sown = CASES[name]
    answer = await guarded.ask(sown.path, "mask", {**sown.fields, "stream": is_stream})
    if sown.kind == NAME:
        assert guarded.model.asked == []
        assert b"422" in answer.body
    else:
        asked = guarded.model.asked[0][0].decode()
        assert json.loads(asked)
        assert ("█" * 4 in asked) or ("\\u2588" * 4 in asked)
        receipt = find_receipt(answer)
        assert (receipt["covered"], receipt["outcome"]) == (True, "masked")
    assert MARK not in "".join(one.decode() for one, _ in guarded.model.asked)
    assert MARK.encode() not in answer.body


@STREAMS
@pytest.mark.parametrize("name", CASES)
async def test_a_marked_text_is_blocked(guarded: Guarded, name: str, *, is_stream: bool) -> None:
    sown = CASES[name]
    answer = await guarded.ask(sown.path, "block", {**sown.fields, "stream": is_stream})
    receipt = find_receipt(answer)
    if sown.kind == RESULT:  # the conversation goes on without the result
        asked = guarded.model.asked[0][0]
        assert FALLBACK.encode() in asked
        assert MARK.encode() not in asked
        assert (receipt["covered"], receipt["outcome"]) == (True, "masked")
    else:
        assert guarded.model.asked == []
        assert FALLBACK.encode() in answer.body
        assert receipt["outcome"] == "blocked"
    assert MARK.encode() not in answer.body


@pytest.mark.parametrize("policy", ["annotate", "shadow"])
@pytest.mark.parametrize("name", CASES)
async def test_a_policy_that_changes_nothing_has_read_all(guarded: Guarded, name: str, policy: str) -> None:
    sown = CASES[name]
    answer = await guarded.ask(sown.path, policy, sown.fields)
    assert len(guarded.model.asked) == 1
    receipt = find_receipt(answer)
    assert receipt["covered"] is True
    assert receipt["detectors"][0]["findings"] >= 1
    assert ("detections" in answer.json()) is (policy == "annotate")


@pytest.mark.parametrize("name", [name for name, one in CASES.items() if one.kind == RESULT])
async def test_a_policy_may_block_for_the_result_of_a_tool(guarded: Guarded, name: str) -> None:
    answer = await guarded.ask(CHAT, "strict", CASES[name].fields)
    assert guarded.model.asked == []
    assert find_receipt(answer)["outcome"] == "blocked"


@pytest.mark.parametrize("place", UNREADABLE)
async def test_what_cannot_be_read_is_refused_by_name(guarded: Guarded, place: str) -> None:
    path, fields = UNREADABLE[place]
    answer = await guarded.ask(path, "mask", fields)
    assert (answer.status, guarded.model.asked) == (422, [])
    assert answer.json()["details"] == f"`{place}` cannot be read by detectors: leave it out"


@pytest.mark.parametrize("policy", ["pass", "annotate", "shadow"])
@pytest.mark.parametrize("place", UNREADABLE)
async def test_what_may_pass_unread_is_counted(guarded: Guarded, place: str, policy: str) -> None:
    path, fields = UNREADABLE[place]
    answer = await guarded.ask(path, policy, fields)
    receipt = find_receipt(answer)
    assert len(guarded.model.asked) == 1
    assert receipt["covered"] is False
    assert sum(receipt["unread"].values()) == 1


async def test_a_role_that_no_detector_reads_is_counted(guarded: Guarded) -> None:
    answer = await guarded.ask(CHAT, "users", {"messages": [{"role": "system", "content": f"A {MARK}."}, ASK]})
    receipt = find_receipt(answer)
    assert MARK.encode() in guarded.model.asked[0][0]
    assert (receipt["covered"], receipt["unread"]) == (False, {"messages[].content (system)": 1})


async def test_a_role_may_have_its_own_threshold(guarded: Guarded) -> None:
    messages = [{"role": role, "content": f"{role}: {MARK}."} for role in ("system", "user")]
    await guarded.ask(CHAT, "lenient", {"messages": messages})
    asked = json.loads(guarded.model.asked[0][0])["messages"]
    assert [one["content"] for one in asked] == [f"system: {HIDDEN}.", f"user: {MARK}."]


@pytest.mark.parametrize("policy", ["mask", "block"])
async def test_a_header_that_goes_on_is_read_and_a_credential_is_not(guarded: Guarded, policy: str) -> None:
    await guarded.ask(CHAT, policy, {}, x_note=MARK)
    assert guarded.model.asked == []
    await guarded.ask(CHAT, policy, {}, authorization=f"Bearer {MARK}")
    assert ("authorization", f"Bearer {MARK}") in [(key.lower(), one) for key, one in guarded.model.asked[0][1]]


@pytest.mark.parametrize("policy", ["mask", "block"])
async def test_marks_of_a_client_do_not_narrow_a_policy(guarded: Guarded, policy: str) -> None:  # D-44
    answer = await guarded.ask(TEXT, policy, {"prompt": f"Hi {MARK}", "_prompt_masks": [[0, 2]]})
    asked = [body for body, _ in guarded.model.asked]
    assert MARK.encode() not in b"".join(asked)
    assert find_receipt(answer)["detectors"][0]["read"]["prompt"] == len(f"Hi {MARK}")


@pytest.mark.parametrize("kind", [CONTENT, RESULT])
async def test_a_configured_model_gets_the_same(guarded: Guarded, kind: str) -> None:
    cases = {name: one for name, one in CASES.items() if one.kind == kind and one.path == CHAT}
    for name, sown in cases.items():
        await guarded.ask(CHAT, "mask", {**sown.fields, "model": "own"})
        assert guarded.model.asked, name
        assert MARK.encode() not in guarded.model.asked[0][0], name


async def test_a_text_that_was_read_before_is_counted_as_cached(guarded: Guarded) -> None:
    history = [
        {"role": "user", "content": "A long question, that comes again."},
        {"role": "assistant", "content": MARK},
    ]
    first = find_receipt(await guarded.ask(CHAT, "mask", {"messages": history}))["detectors"][0]
    masked = guarded.model.asked[0][0]
    again = find_receipt(await guarded.ask(CHAT, "mask", {"messages": history}))
    assert guarded.model.asked[0][0] == masked
    assert (again["covered"], again["outcome"]) == (True, "masked")
    second = again["detectors"][0]
    assert second["read"] == first["read"]
    kept = second["cached_chars"]  # but no finding whose name repeats its text
    assert kept == sum(second["read"].values()) - len(MARK)
    assert second["findings"] == first["findings"] == 1
