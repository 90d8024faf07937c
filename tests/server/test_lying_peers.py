# SPDX-License-Identifier: Apache-2.0
"""Detectors and chunkers that break their contract under a policy: nothing that they hid leaves as read (D-38)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import build_chunk, build_chunker_server
from tests.contracts.http_peers import Exchange, open_peer, stream
from tests.server.gateways import CHAT, TEXT, ask, chunk, events_of, gateway, sse
from tests.server.policy_house import MAIL, SAID, open_house
from tests.server.policy_surfaces import SURFACES

BOTH = pytest.mark.parametrize("is_stream", [False, True])
MORE = """
  strict: {output: {far: {}, mail: {on_finding: annotate}}, on_finding: block, fallback: "[cut]"}
  lenient: {output: {far: {on_detector_failure: pass}}, on_finding: block, fallback: "[cut]"}
"""


def lie(how: str, texts: list[str]) -> Any:
    """What a detector that has found the address answers."""
    lists: list[list[dict[str, Any]]] = []
    for text in texts:
        at = text.find(MAIL)
        place = {"start": at, "end": at + len(MAIL), "text": MAIL, "detection": "x", "detection_type": "y", "score": 1}
        lists.append([place] if at >= 0 else [])
    changes: dict[str, dict[str, Any]] = {
        "places behind the text": {"start": 900, "end": 915},
        "empty places": {"start": 0, "end": 0, "text": ""},
        "places that are turned round": {"start": 9, "end": 3},
        "another text": {"text": "nothing"},
    }
    if how in changes:
        return [[{**one, **changes[how]} for one in of_text] for of_text in lists]
    return [[], *lists] if how == "a list too many" else lists[1:]


HOWS = (
    "a list too many", "a list too few", "places behind the text", "empty places", "places that are turned round",
    "another text",
)  # fmt: skip


@BOTH
@pytest.mark.parametrize("how", HOWS)
async def test_a_detector_that_lies_about_a_finding_has_failed_on_every_surface(how: str, is_stream: bool) -> None:
    async def far(exchange: Exchange) -> None:
        await exchange.answer(json.dumps(lie(how, exchange.received.json["contents"])).encode())

    streaming: dict[str, Any] = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}
    asked = [(surface, policy) for surface in SURFACES for policy in ("strict", "lenient")]
    async with open_house(far=far, more=MORE, **streaming) as house:
        answers = await asyncio.gather(*[SURFACES[surface](house, policy, is_stream) for surface, policy in asked])
    for (surface, policy), heard in zip(asked, answers, strict=True):
        if policy == "strict":
            assert "`far` failed" in (heard.error or ""), surface
            assert (heard.text, MAIL.encode() in heard.body) == ("", False), surface
        else:
            assert (heard.error, heard.text) == (None, SAID), surface
            assert heard.receipt is not None
            assert heard.receipt["covered"] is False
            assert heard.warnings == ["DETECTOR_FAILED"]


# A chunker that leaves out the sentence with the secret.

FIRST, SECRET, LAST = "One is fine. ", "The bird is blue. ", "Bye."
SPOKEN = FIRST + SECRET + LAST
ACTIONS = ("annotate", "mask", "stop", "block")


def leave_out(text: str) -> list[tuple[int, str]]:
    """The chunks of a text, without the one that holds the secret."""
    before, secret, after = text.partition(SECRET)
    chunks = [(0, before), (len(before) + len(secret), after)]
    return [(start, words) for start, words in chunks if words]


@asynccontextmanager
async def before() -> AsyncIterator[int]:
    async def cut(request: Any, _context: Any) -> Any:
        chunks = leave_out(request.text)
        return nlp.TokenizationResults(
            results=[nlp.Token(start=start, end=start + len(words), text=words) for start, words in chunks]
        )

    async def converse(messages: Any, _context: Any) -> AsyncIterator[Any]:
        text = "".join([message.text_stream async for message in messages])
        for start, words in leave_out(text):
            yield build_chunk(start, start + len(words), words)

    async def speak(exchange: Exchange) -> None:
        if exchange.received.json.get("stream"):
            pieces = [chunk(piece) for piece in (FIRST, SECRET, LAST)]
            if "chat" not in exchange.received.path:
                pieces = [
                    {**one, "choices": [{"index": 0, "text": one["choices"][0]["delta"]["content"]}]} for one in pieces
                ]
            await stream(sse(*pieces, "[DONE]"))(exchange)
            return
        message = {"role": "assistant", "content": SPOKEN}
        choice = {"index": 0, "message": message, "text": SPOKEN, "finish_reason": "stop"}
        await exchange.answer(json.dumps({"id": "c1", "choices": [choice], "usage": None}).encode())

    policies = "".join(
        f"  {part}_{action}{suffix}: {{{part}: {{bird: {{}}}}, on_finding: {action}{passes}}}\n"
        for part in ("input", "output")
        for action in ACTIONS
        for suffix, passes in (("", ""), ("_pass", ", on_detector_failure: pass"))
    )
    server = build_chunker_server(cut, converse)
    async with open_peer(speak) as model, server.listening() as chunker:
        config = f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model.port}}}}}
chunkers: {{cut: {{type: sentence, service: {{hostname: 127.0.0.1, port: {chunker}}}}}}}
detectors: {{bird: {{embedded: keywords, chunker_id: cut, options: {{keywords: [bird]}}}}}}
policies:
{policies}"""
        async with gateway(config) as port:
            yield port


@BOTH
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("part", ["input", "output"])
async def test_text_that_a_chunker_leaves_out_does_not_leave_unread(part: str, path: str, is_stream: bool) -> None:
    said = SPOKEN if part == "input" else "Hello."
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": said}]} if path == CHAT else {"prompt": said}
    async with before() as port:
        for action in ACTIONS:
            body = {"model": "m", "stream": is_stream, **asked, "detectors": {"policy": f"{part}_{action}"}}
            answer = await ask(port, path, body)
            assert b"The text could not be checked: `cut` failed" in answer.body, action
            assert b"bird" not in answer.body
            body["detectors"] = {"policy": f"{part}_{action}_pass"}
            answer = await ask(port, path, body)
            assert b'"covered":false' in answer.body
            assert b"DETECTOR_FAILED" in answer.body
            if is_stream:
                assert not [event for event in events_of(answer) if "$error" in event]
            else:
                assert answer.status == 200
