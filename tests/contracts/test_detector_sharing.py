# SPDX-License-Identifier: Apache-2.0
"""Chunks of many streams share requests to a busy detector; nobody is mixed up with, held up or failed by another."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockgate.backends import detector as batching
from lockgate.backends.detector import ALONE_CALLS, MAX_CHARS, DetectorClient, open_detector_client
from lockgate.config.load import load_settings
from lockgate.config.settings import DetectorSettings
from lockgate.errors import BrokeOff, BrokeProtocol, LockgateError, Rejected, TimedOut, Unavailable
from lockgate.gate.values import Detection, Excerpt
from lockgate.gateway import open_gateway
from lockgate.interfaces import Headers
from lockgate.telemetry.observers import ACTIVE, Observer
from lockgate.telemetry.requests import ServiceCall
from tests.contracts.http_peers import Exchange, Peer, open_peer
from tests.waits import LoopClock, linger, until

HOUR_MS = 3_600_000.0  # longer than any test: what happens does not happen because this has passed
Outcome = Sequence[Sequence[Detection]] | BaseException


class Scanner:
    """A detector server that finds the word `x`; it waits while its gate is shut."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.left = 0

    async def __call__(self, exchange: Exchange) -> None:
        contents = exchange.received.json["contents"]
        self.requests.append(contents)
        leaving = asyncio.create_task(exchange.wait_until_left())
        opening = asyncio.create_task(self.gate.wait())
        done, waiting = await asyncio.wait({leaving, opening}, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if leaving in done:
            self.left += 1
            return
        await asyncio.wait({leaving})
        await self.answer(exchange, contents)

    async def answer(self, exchange: Exchange, contents: list[str]) -> None:
        await exchange.answer(json.dumps([self.scan(text) for text in contents]).encode())

    def scan(self, text: str) -> Any:
        places = [at for at, letter in enumerate(text) if letter == "x"]
        return [{"start": at, "end": at + 1, "detection": "x", "detection_type": "t", "score": 1.0} for at in places]

    @property
    def shared(self) -> list[list[str]]:
        """The requests that came once the gate had been shut for others."""
        return self.requests[ALONE_CALLS:]


def found_in(*texts: str) -> list[list[tuple[int, int, str]]]:
    return [[(at, at + 1, "x") for at, letter in enumerate(text) if letter == "x"] for text in texts]


def places(found: Outcome) -> list[list[tuple[int, int, str]]]:
    assert not isinstance(found, BaseException), found
    return [[(one.start, one.end, one.text) for one in of_text] for of_text in found]


@asynccontextmanager
async def busy(scanner: Scanner, **changes: Any) -> AsyncIterator[tuple[Peer, DetectorClient, list[asyncio.Task[Any]]]]:
    """A client whose detector is busy with as many calls as are sent alone; they end when the gate opens."""
    scanner.gate.clear()
    async with open_peer(scanner) as peer, open_client(peer.detector(), **changes) as client:
        alone = [read(client, f"alone {number}") for number in range(ALONE_CALLS)]
        await until(lambda: len(scanner.requests) == ALONE_CALLS)
        yield peer, client, alone
        scanner.gate.set()
        await asyncio.gather(*alone, return_exceptions=True)


@asynccontextmanager
async def open_client(settings: DetectorSettings, **changes: Any) -> AsyncIterator[DetectorClient]:
    async with open_detector_client("d", replace(settings, **changes)) as client:
        assert isinstance(client, DetectorClient)
        yield client
        await until(lambda: client.shared is None or not client.shared._lanes, "the end of every lane")


def read(client: DetectorClient, *texts: str, params: Any = None, headers: Headers = ()) -> "asyncio.Task[Any]":
    """A stream that asks about these texts."""
    reading = client.accept(params or {}, headers)
    return asyncio.get_running_loop().create_task(_read(reading, texts))


async def _read(reading: Any, texts: Sequence[str]) -> Outcome:
    found: Outcome = await reading.read([Excerpt(text) for text in texts])
    return found


async def test_a_quiet_detector_is_asked_at_once_and_by_each_alone() -> None:
    scanner = Scanner()
    async with open_peer(scanner) as peer, open_client(peer.detector(), batch_wait_ms=HOUR_MS) as client:
        tasks = [read(client, f"{number}x", "y") for number in range(ALONE_CALLS)]
        for number, found in enumerate(await asyncio.gather(*tasks)):
            assert places(found) == found_in(f"{number}x", "y")
    assert sorted(scanner.requests) == [[f"{number}x", "y"] for number in range(ALONE_CALLS)]


async def test_calls_to_a_busy_detector_share_requests_and_each_gets_its_own_part() -> None:
    scanner = Scanner()
    async with busy(scanner) as (_, client, alone):
        texts = [[f"{'.' * number}x", "no", "xx"][: 1 + number % 3] for number in range(20)]
        tasks = [read(client, *some) for some in texts]
        await until(lambda: sum(map(len, scanner.shared)) == sum(map(len, texts)))
        scanner.gate.set()
        for some, found in zip(texts, await asyncio.gather(*tasks), strict=True):
            assert places(found) == found_in(*some)
        await asyncio.gather(*alone)
    assert len(scanner.shared) <= 3
    assert max(map(len, scanner.shared)) <= 32


async def test_a_text_waits_for_company_only_so_long() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=20.0) as (_, client, _alone):
        task = read(client, "x")
        await until(lambda: scanner.shared)
        scanner.gate.set()
        assert places(await task) == found_in("x")


async def test_what_waits_is_sent_as_soon_as_the_detector_is_free() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=HOUR_MS) as (_, client, alone):
        tasks = [read(client, "x") for _ in range(5)]
        await linger()
        assert not scanner.shared
        alone[0].cancel()
        await until(lambda: scanner.shared)
        scanner.gate.set()
        await asyncio.gather(*tasks)
    assert scanner.shared == [["x"] * 5]


async def test_a_full_request_is_sent_at_once() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=HOUR_MS, batch_contents=4) as (_, client, _alone):
        tasks = [read(client, f"x{number}") for number in range(8)]
        await until(lambda: len(scanner.shared) == 2)
        scanner.gate.set()
        await asyncio.gather(*tasks)
    assert [len(one) for one in scanner.shared] == [4, 4]


async def test_a_request_holds_a_bounded_number_of_characters() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=5.0) as (_, client, _alone):
        long = "a" * (MAX_CHARS // 2 - 100)
        tasks = [read(client, f"{long}{number}") for number in range(6)] + [read(client, "b" * (MAX_CHARS + 1))]
        await until(lambda: sum(map(len, scanner.shared)) == 7)
        scanner.gate.set()
        await asyncio.gather(*tasks)
    sizes = sorted(sum(map(len, one)) for one in scanner.shared)
    assert sizes[-1] == MAX_CHARS + 1
    assert sizes[-2] <= MAX_CHARS


async def test_a_stream_with_a_thousand_texts_holds_up_no_other() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=HOUR_MS) as (_, client, _alone):
        long = read(client, *(f"long {number}" for number in range(1000)))
        await until(lambda: scanner.shared)
        short = read(client, "short x")
        await until(lambda: any("short x" in one for one in scanner.shared))
        assert len(scanner.shared) == 2
        scanner.gate.set()
        assert places(await short) == found_in("short x")
        assert len(places(await long)) == 1000
    counts = Counter(text for one in scanner.shared for text in one)
    assert set(counts.values()) == {1}
    assert len(counts) == 1001


@pytest.mark.parametrize(
    "other",
    [
        {"headers": [("x-tenant", "b")]},
        {"headers": [("x-tenant", "a"), ("x-more", "1")]},
        {"params": {"level": 1}},
        {"params": {"level": "0"}},
    ],
)
async def test_calls_with_other_headers_or_parameters_never_share(other: dict[str, Any]) -> None:
    scanner = Scanner()
    one: dict[str, Any] = {"params": {"level": 0}, "headers": [("x-tenant", "a")]}
    scanner.gate.clear()
    async with open_peer(scanner) as peer, open_client(peer.detector()) as client:
        tasks = [read(client, "one", **one) for _ in range(30)] + [
            read(client, "two", **(one | other)) for _ in range(30)
        ]
        await until(lambda: sum(map(len, scanner.requests)) == 60)
        scanner.gate.set()
        await asyncio.gather(*tasks)
        said = {
            (text, request.json["detector_params"]["level"], *request.all("x-tenant"), *request.all("x-more"))
            for request in peer.received
            for text in request.json["contents"]
        }
    headers = [value for _, value in other.get("headers", one["headers"])]
    assert said == {("one", 0, "a"), ("two", other.get("params", one["params"])["level"], *headers)}
    assert all(len(set(contents)) == 1 for contents in scanner.requests)
    assert len(scanner.requests) < 40


async def test_sharing_can_be_switched_off() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_contents=1) as (_, client, _alone):
        tasks = [read(client, "x") for _ in range(20)]
        await until(lambda: len(scanner.shared) == 20)
        scanner.gate.set()
        await asyncio.gather(*tasks)
    assert scanner.shared == [["x"]] * 20


@pytest.mark.parametrize(("compat", "is_shared"), [("fms", False), ("none", True)])
async def test_nothing_is_shared_where_the_existing_orchestrator_is_followed(
    compat: str, is_shared: bool, tmp_path: Path
) -> None:
    scanner = Scanner()
    scanner.gate.clear()
    async with open_peer(scanner) as peer:
        service = f"{{hostname: 127.0.0.1, port: {peer.port}}}"
        detector = f"{{type: text_contents, chunker_id: c, default_threshold: 0.5, service: {service}}}"
        path = tmp_path / "config.yaml"
        path.write_text(f"compat: {compat}\nchunkers: {{c: {{embedded: sentence}}}}\ndetectors: {{d: {detector}}}\n")
        async with open_gateway(load_settings(config_path=path, flags={}, environ={})) as gateway:
            client: Any = gateway.guards["d"].detector
            tasks = [read(client, "x") for _ in range(40)]
            await until(lambda: sum(map(len, scanner.requests)) == 40)
            scanner.gate.set()
            await asyncio.gather(*tasks)
    assert (len(scanner.requests) < 40) == is_shared


class Picky(Scanner):
    """Refuses every request with a text that it does not like, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way

    async def answer(self, exchange: Exchange, contents: list[str]) -> None:
        if not any("bad" in text for text in contents):
            await super().answer(exchange, contents)
        elif self._way == "refuse":
            await exchange.answer(b'{"code": 422, "message": "do not like it"}', 422)
        elif self._way == "fail":
            await exchange.answer(b"oops", 500)
        elif self._way == "no json":
            await exchange.answer(b"<html>")
        elif self._way == "no http":
            await exchange.send(b"SMTP ready\r\n\r\n")
            exchange.hang_up()
        elif self._way == "one wrong":
            await exchange.answer(
                json.dumps([[{"start": 3, "end": 1}] if "bad" in one else self.scan(one) for one in contents]).encode()
            )


@pytest.mark.parametrize(
    ("way", "kind", "repeats"),
    [
        ("refuse", Rejected, True),
        ("fail", LockgateError, True),
        ("no json", BrokeProtocol, True),
        ("no http", BrokeProtocol, True),
        ("one wrong", BrokeProtocol, False),
    ],
)
async def test_a_bad_answer_fails_only_its_own_stream(way: str, kind: type[Exception], repeats: bool) -> None:
    scanner = Picky(way)
    async with busy(scanner) as (_, client, _alone):
        texts = [("x",), ("a", "bad"), ("..x", "x"), ("b",)]
        tasks = [read(client, *some) for some in texts]
        await until(lambda: scanner.shared)
        scanner.gate.set()
        outcomes: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        for some, outcome in zip(texts, outcomes, strict=True):
            if "bad" in some:
                assert isinstance(outcome, kind), outcome
            else:
                assert places(outcome) == found_in(*some)
    again = scanner.shared[1:]
    assert sorted(again) == (sorted(list(some) for some in texts) if repeats else [])


@pytest.mark.parametrize("change", [-1, 1])
async def test_an_answer_with_too_few_or_too_many_lists_is_given_to_nobody(change: int) -> None:
    class Miscounts(Scanner):
        async def answer(self, exchange: Exchange, contents: list[str]) -> None:
            lists = [self.scan(text) for text in contents]
            is_shared = len(contents) > 1
            lists = lists[1:] if is_shared and change < 0 else [self.scan("x"), *lists] if is_shared else lists
            await exchange.answer(json.dumps(lists).encode())

    scanner = Miscounts()
    async with busy(scanner) as (_, client, _alone):
        tasks = [read(client, text) for text in ("x", "y", ".x", "z")]
        await until(lambda: scanner.shared)
        scanner.gate.set()
        assert [places(found) for found in await asyncio.gather(*tasks)] == [
            found_in(one) for one in ("x", "y", ".x", "z")
        ]
    assert len(scanner.shared) == 5


@pytest.mark.parametrize(("way", "kind"), [("silent", TimedOut), ("gone", BrokeOff)])
async def test_a_detector_that_is_gone_or_too_slow_fails_those_who_shared_and_is_not_asked_again(
    way: str, kind: type[Exception]
) -> None:
    class Fails(Scanner):
        async def answer(self, exchange: Exchange, contents: list[str]) -> None:
            if len(contents) == 1:
                await super().answer(exchange, contents)
            elif way == "gone":
                exchange.reset()
            else:
                await until(lambda: all(task.done() for task in alone))
                LoopClock().advance()
                await exchange.wait_until_left()

    scanner = Fails()
    scanner.gate.clear()
    async with open_peer(scanner) as peer, open_client(peer.detector()) as client:
        alone = [read(client, "alone") for _ in range(ALONE_CALLS)]
        await until(lambda: len(scanner.requests) == ALONE_CALLS)
        tasks = [read(client, "x") for _ in range(4)]
        await until(lambda: scanner.shared)
        scanner.gate.set()
        await asyncio.gather(*alone)
        outcomes: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in outcomes] == [kind] * 4
    assert len(scanner.shared) == 1


async def test_a_caller_that_leaves_while_its_texts_wait_takes_them_out() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=HOUR_MS) as (_, client, alone):
        stays, goes = read(client, "stays x"), read(client, "goes", "goes too")
        await linger()
        goes.cancel()
        await asyncio.wait([goes])
        alone[0].cancel()
        await until(lambda: scanner.shared)
        scanner.gate.set()
        assert places(await stays) == found_in("stays x")
        assert goes.cancelled()
    assert scanner.shared == [["stays x"]]


async def test_a_request_goes_on_while_anybody_waits_for_it_and_ends_with_the_last() -> None:
    scanner = Scanner()
    async with busy(scanner) as (_, client, _alone):
        first, second, third = (read(client, text) for text in ("a", "b", "c"))
        await until(lambda: scanner.shared == [["a", "b", "c"]])
        first.cancel()
        second.cancel()
        await linger()
        assert scanner.left == 0
        third.cancel()
        await until(lambda: scanner.left == 1)


async def test_who_stays_gets_its_part_when_others_leave_during_a_shared_request() -> None:
    scanner = Scanner()
    async with busy(scanner) as (_, client, _alone):
        goes, stays = read(client, "xx"), read(client, ".x")
        await until(lambda: scanner.shared)
        goes.cancel()
        await linger()
        scanner.gate.set()
        assert places(await stays) == found_in(".x")
        assert goes.cancelled()


async def test_closing_ends_whoever_waits_and_nobody_is_asked_any_more() -> None:
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=50.0, batch_contents=2) as (_, client, alone):
        asked = [read(client, "asked") for _ in range(2)]
        await until(lambda: len(scanner.shared) == 1)
        waiting = [read(client, "waits")]
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        assert client.shared is not None
        await client.shared.close()
        late = read(client, "late")
        outcomes: list[Any] = await asyncio.gather(*asked, *waiting, late, return_exceptions=True)
        assert [type(one) for one in outcomes] == [Unavailable] * 4
        alone[0].cancel()  # the end of a call sends nothing either
        await linger()
        assert not {task for task in asyncio.all_tasks() - before if "_ask" in repr(task)}
        assert len(scanner.shared) == 1


async def test_the_number_of_lanes_is_bounded_and_empty_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_LANES", 4)
    scanner = Scanner()
    scanner.gate.clear()
    async with open_peer(scanner) as peer, open_client(peer.detector()) as client:
        tasks = [read(client, "x", headers=[("x-tenant", str(number))]) for number in range(10)]
        await until(lambda: len(scanner.requests) == 10)
        assert client.shared is not None
        assert len(client.shared._lanes) == 4
        scanner.gate.set()
        await asyncio.gather(*tasks)
        assert not client.shared._lanes


async def test_what_does_not_fit_among_those_who_wait_is_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_WAITING", 3)
    scanner = Scanner()
    async with busy(scanner, batch_wait_ms=HOUR_MS) as (_, client, _alone):
        tasks = [read(client, "x", "y"), read(client, "x", "z")]
        await until(lambda: scanner.shared)
        assert scanner.shared == [["x", "z"]]
        scanner.gate.set()
        assert [places(one) for one in await asyncio.gather(*tasks)] == [found_in("x", "y"), found_in("x", "z")]


async def test_every_request_is_counted_once() -> None:
    class Counting(Observer):
        calls: list[ServiceCall]

        def call_ended(self, call: ServiceCall) -> None:
            self.calls.append(call)

    observer = Counting()
    observer.calls = []
    scanner = Picky("refuse")
    ACTIVE.observers, before = (observer,), ACTIVE.observers
    try:
        async with busy(scanner) as (_, client, _alone):
            tasks = [read(client, text) for text in ("x", "bad", "y")]
            await until(lambda: scanner.shared)
            scanner.gate.set()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        ACTIVE.observers = before
    assert len(observer.calls) == len(scanner.requests) == ALONE_CALLS + 1 + 3
    assert Counter(call.status for call in observer.calls) == {200: ALONE_CALLS + 2, 422: 2}
    assert {(call.kind, call.name) for call in observer.calls} == {("detector", "d")}


async def test_a_hundred_streams_need_a_few_requests() -> None:
    async def serve(batch_contents: int) -> int:
        scanner = Scanner()
        async with open_peer(scanner) as peer, open_client(peer.detector(), batch_contents=batch_contents) as client:
            texts = [f"{'.' * (number % 7)}x" for number in range(100)]
            found = await asyncio.gather(*(read(client, text) for text in texts))
            assert [places(one) for one in found] == [found_in(one) for one in texts]
            return len(scanner.requests)

    assert await serve(32) < 20
    assert await serve(1) == 100
