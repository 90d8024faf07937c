# SPDX-License-Identifier: Apache-2.0
"""Plugins that raise or answer in a wrong shape fail as a service would: by their name, and as the policy says."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.errors import ConfigFaults
from tests.contracts.http_peers import Exchange, open_peer, stream
from tests.server.gateways import CHAT, ask, chunk, events_of, gateway, sse, text_in
from tests.server.http_client import CONTENT
from tests.server.odd_plugins import CUTS, READINGS, SECRET

SAID = "One is done. Two is done."
BOTH = pytest.mark.parametrize("is_stream", [False, True])


def config(model: int, detector: str, chunker: str = "") -> str:
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model}}}}}
chunkers:
  cut: {{type: sentence, embedded: "tests.server.odd_plugins:open_odd_chunker", options: {{how: {chunker}}}}}
detectors:
  odd: {{embedded: "tests.server.odd_plugins:open_odd_detector", chunker_id: cut, options: {{how: {detector}}}}}
  judge: {{type: text_chat, embedded: "tests.server.odd_plugins:open_odd_detector", options: {{how: {detector}}}}}
  well: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [done]}}}}
policies:
  strict: {{output: {{odd: {{}}, well: {{}}}}, on_finding: mask}}
  lenient: {{output: {{odd: {{on_detector_failure: pass}}, well: {{}}}}, on_finding: mask}}
"""


async def speak(exchange: Exchange) -> None:
    if exchange.received.json.get("stream"):
        await stream(sse(*[chunk(piece) for piece in ("One is do", "ne. Two", " is done.")], chunk(finish="stop")))(
            exchange
        )
        return
    choice = {"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}
    await exchange.answer(json.dumps({"id": "c1", "choices": [choice], "usage": None}).encode())


@asynccontextmanager
async def before(detector: str = "", chunker: str = "") -> AsyncIterator[int]:
    async with open_peer(speak) as model, gateway(config(model.port, repr(detector), repr(chunker))) as port:
        yield port


async def talk(port: int, policy: str, *, is_stream: bool) -> tuple[str, bytes]:
    """What the model's words came to under a policy, and all bytes of the answer."""
    body: dict[str, Any] = {"model": "m", "stream": is_stream, "messages": [{"role": "user", "content": "Hi"}]}
    answer = await ask(port, CHAT, body | {"detectors": {"policy": policy}})
    assert SECRET.encode() not in answer.body
    assert b"Traceback" not in answer.body
    if is_stream:
        return text_in(events_of(answer)), answer.body
    choices = answer.json().get("choices", ())
    return "".join(one["message"]["content"] for one in choices), answer.body


async def check_policies(port: int, *, is_stream: bool) -> None:
    said, body = await talk(port, "strict", is_stream=is_stream)
    assert said == ""
    assert b"The text could not be checked: `odd` failed" in body
    assert b'"code":502' in body
    said, body = await talk(port, "lenient", is_stream=is_stream)
    assert said == SAID.replace("done", "████")
    assert b"DETECTOR_FAILED" in body
    assert b'"covered":false' in body


@BOTH
@pytest.mark.parametrize("how", READINGS)
async def test_a_detector_fails_by_its_name_as_the_policy_says(how: str, is_stream: bool) -> None:
    async with before(how) as port:
        await check_policies(port, is_stream=is_stream)


@BOTH
@pytest.mark.parametrize("how", CUTS)
async def test_a_chunker_fails_by_the_names_of_those_who_need_it(how: str, is_stream: bool) -> None:
    async with before(chunker=how) as port:
        said, body = await talk(port, "lenient", is_stream=is_stream)
        was_read = is_stream and how == "leaves out text"  # its first chunk, before it failed
        assert said == SAID.replace("done", "████").replace("One", "███" if was_read else "One")
        assert b'"covered":false' in body
        said, body = await talk(port, "strict", is_stream=is_stream)
        assert said == ""
        assert b"The text could not be checked" in body


@BOTH
async def test_a_plugin_that_keeps_its_contract_is_believed(is_stream: bool) -> None:
    async with before() as port:
        said, body = await talk(port, "strict", is_stream=is_stream)
        assert said == SAID.replace("done", "████").replace("One", "███")
        assert b'"covered":true' in body


async def test_what_a_plugin_raises_is_logged_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    async with before("raises") as port:
        with caplog.at_level(logging.WARNING, "lockgate"):
            answer = await ask(port, CONTENT, {"content": SAID, "detectors": {"odd": {}}})
    assert answer.status >= 500
    assert SECRET.encode() not in answer.body
    assert any(record.exc_info and record.exc_info[0] is KeyError for record in caplog.records)


@pytest.mark.parametrize("how", ["raises", "gives dicts", "gives no kind", "answers nothing"])
async def test_a_reviewer_fails_too(how: str) -> None:
    async with before(how) as port:
        body = {"messages": [{"role": "user", "content": "Hi"}], "detectors": {"judge": {}}}
        answer = await ask(port, "/api/v2/text/detection/chat", body)
        assert answer.status >= 500
        assert SECRET.encode() not in answer.body


async def test_a_detector_that_raises_for_the_parameters_of_a_policy_is_a_fault_of_the_settings() -> None:
    with pytest.raises(ConfigFaults, match="detector `odd` raised ZeroDivisionError"):
        async with before("refuses to begin"):
            pass
