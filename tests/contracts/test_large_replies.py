# SPDX-License-Identifier: Apache-2.0
"""Large replies of sources and models: read like small ones, off the loop, and none may cost much."""

import asyncio
import json
import threading
from contextlib import aclosing
from typing import Any

import pytest

from lockgate.backends.endpoints import Endpoint
from lockgate.backends.http import CHEAP_BYTES, decode
from lockgate.backends.upstreams import Upstreams, open_upstreams
from lockgate.errors import UpstreamError
from lockgate.gate.values import Generation
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.http_peers import Script, open_peer, reply, stream
from tests.contracts.test_generation_clients import PREDICT as CAIKIT_PREDICT
from tests.contracts.test_generation_clients import answering, ask, caikit
from tests.waits import bounded_work

LONG = "A long text, with commas and [brackets].\n" * 10_000
HOSTILE = b'{"references":{},"summary":{"message":"x"},"choices":[{"message":{"content":"x"}}],"x":[%bNaN]}'
INVALID = "Invalid response from model"


async def ask_source(script: Script) -> list[str]:
    async with open_peer(script) as peer, open_upstreams((), {}, {}) as upstreams:
        source = upstreams.source(Endpoint(f"http://127.0.0.1:{peer.port}", "notes"), "c", 0.5)
        return [document.text for document in await source.search("q", 5)]


async def ask_model(script: Script, scheme: str, *, is_stream: bool = False) -> str:
    async with open_peer(script) as peer, open_upstreams((), {}, {}) as upstreams:
        return await _collect(upstreams, f"{scheme}http://127.0.0.1:{peer.port}", is_stream)


async def _collect(upstreams: Upstreams, url: str, is_stream: bool) -> str:
    pieces: list[str] = []
    async with aclosing(upstreams.model(Endpoint(url, "m"), "c").generate((), {"stream": is_stream})) as bursts:
        async for burst in bursts:
            pieces += [frame.text for frame in (burst if isinstance(burst, list) else [burst])]
    return "".join(pieces)


async def words_of(asking: Any) -> str:
    with pytest.raises(UpstreamError) as caught:
        await asking
    return caught.value.message


def space_answer(text: str) -> dict[str, Any]:
    return {"summary": {"message": {"content": text}}}


def completion(text: str, part: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, part: {"content": text}}]}


async def test_only_a_large_body_is_decoded_in_another_thread() -> None:
    def tell_thread(body: bytes) -> int:
        return threading.get_ident()

    assert await decode(b"x" * CHEAP_BYTES, tell_thread) == threading.get_ident()
    assert await decode(b"x" * (CHEAP_BYTES + 1), tell_thread) != threading.get_ident()


async def test_large_documents_come_whole() -> None:
    items = [{"content": LONG, "similarity_score": 0.5}, {"content": LONG, "similarity_score": float("nan")}]
    assert await ask_source(reply(json.dumps({"references": {"documents": items}}).encode())) == [LONG, LONG]


async def test_a_large_answer_comes_whole() -> None:
    assert await ask_model(reply(json.dumps(space_answer(LONG)).encode()), "") == LONG
    assert await ask_model(reply(json.dumps(completion(LONG, "message")).encode()), "openai+") == LONG


async def test_a_large_event_comes_whole_and_small_ones_behind_it_too() -> None:
    for scheme, chunks in (
        ("", [space_answer(LONG), space_answer("x")]),
        ("openai+", [completion(LONG, "delta"), completion("x", "delta")]),
    ):
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        assert await ask_model(stream(*events, b"data: [DONE]\n\n"), scheme, is_stream=True) == f"{LONG}x"
        assert await ask_model(stream(b"".join(events)[:-2]), scheme, is_stream=True) == f"{LONG}x"


async def test_a_large_refusal_is_told_by_its_first_words() -> None:
    said = json.dumps({"detail": "no " * 100_000, "error": "no " * 100_000}).encode()
    detail = ("no " * 400)[:1000]
    assert await words_of(ask_source(reply(said, 400))) == f"HTTP 400: {detail}"
    for scheme in ("", "openai+"):
        assert await words_of(ask_model(reply(said, 400), scheme)) == f"Model request failed: HTTP 400 - {detail}"


@pytest.mark.parametrize("unit", [b"12345,", b'{"a":[]},', b'{"abcde":1},', b"1.25,", b'"",   '])
async def test_a_reply_that_is_made_to_cost_much_is_refused_and_read_off_the_loop(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = HOSTILE % (unit * (16 * 1024 * 1024 // len(unit)))
    off_loop: list[int] = []
    run_off_loop = asyncio.to_thread

    async def note(read: Any, given: bytes) -> Any:
        off_loop.append(len(given))
        return await run_off_loop(read, given)

    monkeypatch.setattr(asyncio, "to_thread", note)
    with bounded_work():
        assert await words_of(ask_source(reply(body))) == "the answer is not the JSON of a data source"
        for scheme in ("", "openai+"):
            assert await words_of(ask_model(reply(body), scheme)) == INVALID
    assert off_loop == [len(body)] * 3


async def test_an_answer_of_caikit_above_the_limit_is_refused() -> None:
    async with caikit({CAIKIT_PREDICT: answering(b"\x0a\x83\x80\x80\x20" + b"a" * (64 * 1024 * 1024 + 3))}) as (
        client,
        _,
    ):
        with pytest.raises(UpstreamError) as caught:
            await client.generate(ask())
    assert caught.value.status == 500


async def test_a_large_answer_and_a_large_prompt_of_caikit_pass() -> None:
    text = "é" * 3_000_000
    async with caikit({CAIKIT_PREDICT: answering(nlp.GeneratedTextResult(generated_text=text))}) as (client, record):
        answer = await client.generate(Generation("m", {"text": text, "params": None}))
    assert answer["generated_text"] == text
    assert record.received[0].text == text
