# SPDX-License-Identifier: Apache-2.0
"""What names none of ours goes to the server behind us, as ever (D-18): the same bytes in, the same bytes out."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.gate.values import Frame, Message
from lockgate.testing import ScriptedModel
from tests.contracts.http_peers import Peer, Script, reply_json
from tests.server.backend_peers import before
from tests.server.gateways import ask, chat_body
from tests.server.http_client import Answer, call

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
POLICIES = """
policies:
  masked: {output: {words: {}}, on_finding: mask}
"""
NAMED = POLICIES + "models: {tiny: {embedded: 'tests.server.test_agent_passing:open_tiny'}}\n"
SAID = "One is done."
ANSWER = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}],
}  # fmt: skip


class Tiny:
    """A model that runs here."""

    def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """Always the same."""
        return ScriptedModel(["tiny ", "done"]).generate(messages, params)


@asynccontextmanager
async def open_tiny(options: Mapping[str, Any]) -> AsyncIterator[Tiny]:
    """A factory of models."""
    yield Tiny()


async def ask_both(script: Script, path: str, raw: bytes) -> tuple[tuple[Answer, Peer], tuple[Answer, Peer]]:
    """The same bytes to a gateway that has models of its own and to one that has none."""
    answers = []
    for extra in (NAMED, POLICIES):
        async with before(script, extra) as (port, peer):
            answers.append((await call(port, path, raw), peer))
    return answers[0], answers[1]


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps(chat_body(False, seed=3, detectors={"output": {"words": {}}})).encode(),
        b'{ "model":"m" ,"messages":[{"role":"user","content":"\\u00fc"}],"x":{"y":[1.50]}}',
        b'{"model": "agent/none", "messages": [{"role": "user", "content": "Hi"}]}',
        b'{"model": "tiny@none", "messages": [{"role": "user", "content": "Hi"}]}',
        b'{"model": "m", "messages": []}',
        b'{"model": 3, "messages": []}',
        b'{"messages": []}',
        b'{"model": "tiny", "model": "m", "messages": []}',
        b"{nope",
        b"[1,2]",
        b"",
    ],
)
async def test_a_model_that_is_none_of_ours_is_passed_on_as_ever(raw: bytes) -> None:
    (with_models, one), (without, other) = await ask_both(reply_json(ANSWER), CHAT, raw)
    assert with_models.status == without.status
    assert with_models.body == without.body
    assert [received.body for received in one.received] == [received.body for received in other.received]


async def test_a_model_of_ours_is_not_passed_on() -> None:
    async with before(reply_json(ANSWER), NAMED) as (port, peer):
        answer = await ask(port, CHAT, chat_body(False) | {"model": "tiny"})
        masked = await ask(port, CHAT, chat_body(False) | {"model": "tiny@masked"})
        text = await ask(port, TEXT, {"model": "tiny", "prompt": "Hi"})
    assert answer.json()["choices"][0]["message"]["content"] == "tiny done"
    assert masked.json()["choices"][0]["message"]["content"] == "tiny ████"
    assert text.json()["choices"][0]["text"] == "tiny done"
    assert peer.received == []


@pytest.mark.parametrize("extra", [POLICIES, NAMED])
async def test_a_policy_behind_the_name_guards_what_is_passed_on(extra: str) -> None:
    async with before(reply_json(ANSWER), extra) as (port, peer):
        answer = (await ask(port, CHAT, chat_body(False) | {"model": "m@masked"})).json()
        unknown = await ask(port, CHAT, chat_body(False) | {"model": "m@x@none"})
    assert answer["choices"][0]["message"]["content"] == "One is ████."
    assert unknown.status == 200
    assert [received.json["model"] for received in peer.received] == ["m", "m@x@none"]
    assert list(peer.received[0].json) == ["stream", "model", "messages"]


async def test_a_policy_that_is_named_twice_is_the_same_one_or_refused() -> None:
    async with before(reply_json(ANSWER), POLICIES) as (port, peer):
        answer = await ask(port, CHAT, chat_body(False, detectors={"policy": "masked"}) | {"model": "m@masked"})
        other = await ask(port, CHAT, chat_body(False, detectors={"policy": "other"}) | {"model": "m@masked"})
    assert answer.json()["choices"][0]["message"]["content"] == "One is ████."
    assert (other.status, other.json()["details"]) == (
        422,
        "`model` names policy `masked`, `detectors` names `other`: name one",
    )
    assert [received.json["model"] for received in peer.received] == ["m"]


async def test_each_side_has_its_own_limit() -> None:
    limits = "limits: {body_bytes: 1000, agent_request_bytes: 3000}\n"
    async with before(reply_json(ANSWER), NAMED + limits) as (port, peer):
        for size, statuses in ((500, (200, 200)), (2000, (413, 200)), (4000, (413, 413))):
            sent = chat_body(False, metadata={"padding": "x" * size})
            got = [(await ask(port, CHAT, sent | {"model": name})).status for name in ("m", "tiny")]
            assert tuple(got) == statuses
    assert len(peer.received) == 1
