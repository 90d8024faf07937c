# SPDX-License-Identifier: Apache-2.0
"""A request that is lost with an idle connection is sent once more, on a new connection (D-48)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockgate.backends.detector import DetectorClient, open_detector_client
from lockgate.backends.endpoints import Endpoint
from lockgate.backends.reconnects import ResendingConnector
from lockgate.backends.upstreams import Upstreams, open_upstreams
from lockgate.config.settings import OtlpSettings
from lockgate.errors import BrokeOff, UpstreamError
from lockgate.gate.values import Excerpt, Message
from lockgate.telemetry import open_telemetry, render_metrics
from tests.contracts.http_peers import Exchange, Peer, Script, break_off, open_peer, reply, send_raw, stream
from tests.server.gateways import CHAT, GENERIC, ask, chat_body, chunk, events_of, gateway, sse, text_in

FOUND = b"[[]]"
SPACE_ANSWER = b'{"summary":{"message":{"content":"Hi"}},"references":{"documents":[]}}'


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    with open_telemetry(OtlpSettings()):
        yield


def count_reconnects(kind: str, name: str) -> float:
    series = f'lockgate_upstream_reconnects_total{{kind="{kind}",name="{name}"}} '
    lines = render_metrics().decode().splitlines()
    return sum(float(line.removeprefix(series)) for line in lines if line.startswith(series))


class OnlyOnce:
    """Answers the first request of a connection as `first` does, later ones as `later` does."""

    def __init__(self, first: Script, later: Script) -> None:
        self._first = first
        self._later = later
        self._known: set[int] = set()

    async def __call__(self, exchange: Exchange) -> None:
        number = exchange.received.connection
        script = self._later if number in self._known else self._first
        self._known.add(number)
        await script(exchange)


@asynccontextmanager
async def reading(peer: Peer, *, resends: bool = True) -> AsyncIterator[DetectorClient]:
    async with open_detector_client("pii", peer.detector(), resends=resends) as client:
        assert isinstance(client, DetectorClient)
        yield client


async def read(client: DetectorClient, text: str = "x") -> None:
    await client.accept({}, ()).read([Excerpt(text)])


def connections_of(peer: Peer) -> list[int]:
    return [one.connection for one in peer.received]


@pytest.mark.parametrize("later", [break_off, send_raw()], ids=["reset", "closed"])
async def test_a_request_that_is_lost_with_an_idle_connection_is_sent_on_a_new_one(later: Script) -> None:
    async with open_peer(OnlyOnce(reply(FOUND), later)) as peer, reading(peer) as client:
        for _ in range(4):
            await read(client)
    assert connections_of(peer) == [1, 1, 2, 2, 3, 3, 4]
    assert count_reconnects("detector", "pii") == 3


async def test_a_connection_that_ends_between_its_choice_and_the_request_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose = ResendingConnector._get

    async def choose_and_lose(connector: Any, key: Any, traces: Any) -> Any:
        reused = await choose(connector, key, traces)
        if reused is not None:
            reused.protocol.data_received(b"")  # the library does so when a connection ends
            reused.transport.abort()
        return reused

    monkeypatch.setattr(ResendingConnector, "_get", choose_and_lose)
    async with open_peer(reply(FOUND)) as peer, reading(peer) as client:
        for _ in range(3):
            await read(client)
    assert connections_of(peer) == [1, 2, 3]
    assert count_reconnects("detector", "pii") == 2


async def test_the_new_connection_is_never_another_idle_one() -> None:
    may_answer = asyncio.Event()

    async def first(exchange: Exchange) -> None:
        await may_answer.wait()
        await exchange.answer(FOUND)

    async with open_peer(OnlyOnce(first, break_off)) as peer, reading(peer) as client:
        both = asyncio.gather(read(client), read(client))
        await peer.has_received.wait()
        may_answer.set()
        await both
        await read(client)
    assert sorted(connections_of(peer)[:2]) == [1, 2]
    assert connections_of(peer)[3:] == [3]


async def test_what_is_lost_twice_is_a_failure() -> None:
    async with open_peer(reply(FOUND)) as peer, reading(peer) as client:
        await read(client)
        peer.script = break_off
        with pytest.raises(BrokeOff):
            await read(client)
    assert connections_of(peer) == [1, 1, 2]


async def test_a_request_on_a_new_connection_is_sent_once() -> None:
    async with open_peer(break_off) as peer, reading(peer) as client:
        with pytest.raises(BrokeOff):
            await read(client)
    assert connections_of(peer) == [1]


@pytest.mark.parametrize(
    "later",
    [send_raw(b"H"), send_raw(b"HTTP/1.1 200 OK\r\ncontent-le"), send_raw(b"rubbish\r\n\r\n"), reply(b"", 503)],
    ids=["a byte", "half a head", "rubbish", "refusal"],
)
async def test_a_request_that_was_answered_with_a_single_byte_is_not_sent_again(later: Script) -> None:
    async with open_peer(OnlyOnce(reply(FOUND), later)) as peer, reading(peer) as client:
        await read(client)
        with pytest.raises(UpstreamError):
            await read(client)
    assert connections_of(peer) == [1, 1]
    assert count_reconnects("detector", "pii") == 0


async def test_without_this_rule_nothing_is_sent_again() -> None:
    async with open_peer(OnlyOnce(reply(FOUND), break_off)) as peer, reading(peer, resends=False) as client:
        await read(client)
        with pytest.raises(BrokeOff):
            await read(client)
    assert connections_of(peer) == [1, 1]


async def ask_space(upstreams: Upstreams, endpoint: Endpoint) -> None:
    await upstreams.source(endpoint, "", 0.0).search("What?", 1)


async def ask_model(upstreams: Upstreams, endpoint: Endpoint) -> None:
    messages = [Message("user", "What?")]
    assert [one async for one in upstreams.model(endpoint, "").generate(messages, {"stream": False})]


@pytest.mark.parametrize("ask_one", [ask_space, ask_model])
@pytest.mark.parametrize("token", [None, "paid"])
async def test_a_request_with_a_transaction_token_is_never_sent_again(ask_one: object, token: str | None) -> None:
    assert callable(ask_one)
    async with open_peer(OnlyOnce(reply(SPACE_ANSWER), break_off)) as peer, open_upstreams((), {}, {}) as upstreams:
        endpoint = Endpoint(f"http://127.0.0.1:{peer.port}", "s", "al", transaction_token=token)
        await ask_one(upstreams, endpoint)
        if token is None:
            await ask_one(upstreams, endpoint)
        else:
            with pytest.raises(BrokeOff):
                await ask_one(upstreams, endpoint)
    assert connections_of(peer) == ([1, 1, 2] if token is None else [1, 1])


async def speak(exchange: Exchange) -> None:
    if exchange.received.json["stream"]:
        await stream(sse(chunk("One is done."), chunk(finish="stop"), "[DONE]"))(exchange)
        return
    choice = {"index": 0, "message": {"role": "assistant", "content": "One is done."}, "finish_reason": "stop"}
    await exchange.answer(json.dumps({"id": "c1", "choices": [choice]}).encode())


def config(model: int, detector: int) -> str:
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model}, request_timeout: 600}}}}
detectors:
  far: {{type: text_contents, chunker_id: sentence, default_threshold: 0.5,
        service: {{hostname: 127.0.0.1, port: {detector}, request_timeout: 600}}}}
"""


@asynccontextmanager
async def behind_forgetful_servers(**environ: str) -> AsyncIterator[int]:
    """A gateway whose model and detector close each connection after one answer, which they do not announce."""
    model, detector = OnlyOnce(speak, break_off), OnlyOnce(reply(FOUND), send_raw())
    async with (
        open_peer(model) as first,
        open_peer(detector) as second,
        gateway(config(first.port, second.port), **environ) as port,
    ):
        yield port


async def test_servers_that_close_after_each_answer_break_no_request() -> None:
    async with behind_forgetful_servers() as port:
        for number in range(60):
            output: dict[str, Any] = {"detectors": {"output": {"far": {}}}} if number % 3 else {}
            body = chat_body(stream=bool(number % 2), **output)
            if number % 2:
                assert text_in(events_of(await ask(port, CHAT, body))) == "One is done."
            else:
                assert (await ask(port, CHAT, body)).json()["choices"][0]["message"]["content"] == "One is done."


async def test_under_fms_nothing_is_sent_again() -> None:
    async with behind_forgetful_servers(LOCKGATE_COMPAT="fms") as port:
        answers = [await ask(port, CHAT, chat_body(stream=False)) for _ in range(2)]
    assert [one.status for one in answers] == [200, 500]
    assert answers[1].json() == GENERIC
