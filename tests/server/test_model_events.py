# SPDX-License-Identifier: Apache-2.0
"""Events of a model's stream that are no part of its answer: comments, pings and unknown types are skipped."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from lockgate.backends.openai import ChunkReader
from lockgate.backends.openai_model import _CompletionReader
from lockgate.compat.fms import RULES
from lockgate.gateway import open_gateway
from lockgate.server.ports import build_api_app
from tests.contracts.http_peers import Exchange, Peer, open_peer
from tests.server.http_client import JSON_TYPE, call
from tests.server.served_app import served
from tests.surfaces.answers import read_answer
from tests.surfaces.gateway import HOST, load_config
from tests.surfaces.upstreams import HEAD

PIECES = ("Hello ", "there. ", "Bye.")
ASIDES = (
    b": a comment\n\n",
    b"event: ping\n\n",
    b"event: ping\ndata: {}\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b'data: {"type": "ping", "at": 1}\n\n',
    b"event: telemetry\ndata: 12 ms\n\n",
    b"data: ping\n\n",
    b"data:\n\n",
    b"id: 7\nretry: 100\n\n",
)
FAULTS = (
    b'event: error\ndata: {"error": {"message": "no", "type": "t", "code": 500}}\n\n',
    b'event: ping\ndata: {"error": {"message": "no", "type": "t", "code": 500}}\n\n',
    b'data: {"error": {"message": "no", "type": "t", "code": 500}}\n\n',
    b"event: error\ndata: no\n\n",
    b'data: {"choices": \n\n',
    b'data: {"piece": "Bye."}\n\n',
)
MODELS = ("m", "m@mask", "own", "own@mask")


def write_events(aside: bytes) -> list[bytes]:
    """A stream with this between all its messages."""
    ends = [None] * len(PIECES) + ["stop"]
    choices = [
        {"index": 0, "delta": {"content": piece}, "finish_reason": end}
        for piece, end in zip((*PIECES, ""), ends, strict=True)
    ]
    said = [b"data: %b\n\n" % json.dumps({**HEAD, "choices": [one]}).encode() for one in choices]
    return [part for one in said for part in (aside, one)] + [aside, b"data: [DONE]\n\n"]


class House(NamedTuple):
    """A gateway, and the model behind it."""

    port: int
    peer: Peer

    async def ask(self, model: str, aside: bytes) -> tuple[str, str]:
        """The text of an answer, and the status of its error."""

        async def answer(exchange: Exchange) -> None:
            await exchange.start()
            await exchange.chunk(*write_events(aside))
            await exchange.end()

        self.peer.script = answer
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        got = await call(self.port, "/v1/chat/completions", json.dumps(body).encode(), headers=JSON_TYPE)
        values, error = read_answer(got)
        deltas = [one["delta"] for value in values for one in value.get("choices", ())]
        return "".join([one.get("content") or "" for one in deltas]), error


def build_config(port: int) -> dict[str, Any]:
    url = f"http://{HOST}:{port}"
    return {
        "openai": {"service": {"hostname": HOST, "port": port}},
        "models": {"own": {"openai": {"url": f"{url}/v1", "model": "m"}, "expose": True}},
        "detectors": {"words": {"embedded": "keywords", "options": {"keywords": ["bluebird"]}}},
        "policies": {"mask": {"output": {"words": {}}, "on_finding": "mask"}},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with open_peer() as peer:
        settings = load_config(tmp_path_factory.mktemp("events"), "http", build_config(peer.port))
        async with open_gateway(settings) as gateway, served(build_api_app(gateway)) as port:
            yield House(port, peer)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("aside", ASIDES)
@pytest.mark.parametrize("model", MODELS)
async def test_an_event_that_is_no_part_of_the_answer_is_skipped(house: House, model: str, aside: bytes) -> None:
    assert await house.ask(model, aside) == ("".join(PIECES), "")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("model", MODELS)
async def test_an_error_and_what_may_be_a_broken_message_end_the_stream(house: House, model: str, fault: bytes) -> None:
    text, error = await house.ask(model, fault)
    assert text == ""
    assert error


@pytest.mark.parametrize("aside", ASIDES)
def test_a_model_that_is_read_as_text_skips_them_too(aside: bytes) -> None:
    reader = _CompletionReader()
    assert "".join(piece for event in write_events(aside) for piece in reader.feed(event)) == "".join(PIECES)
    assert (reader.failure, reader.is_done) == (None, True)


@pytest.mark.parametrize("aside", [one for one in ASIDES if b"data:" in one])
def test_in_the_compatibility_mode_they_stay_failures(aside: bytes) -> None:
    reader = ChunkReader("", skips_events=False)
    reader.feed(aside)
    assert reader.failure is not None
    assert RULES.skips_events is False
