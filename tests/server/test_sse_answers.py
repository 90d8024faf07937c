# SPDX-License-Identifier: Apache-2.0
"""Streams of events (G-36 … G-38): their form, signs of life, turns of the loop, slow and leaving clients, the door."""

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lockgate.errors import InvalidRequest
from lockgate.server.app import App
from lockgate.server.exchange import Exchange
from tests.server.http_client import JSON_TYPE, build_head, build_request, call, connect
from tests.server.served_app import build_app, served
from tests.waits import HANG_S, LoopClock, forever, is_pending, latency, linger, settled, until

DONE, PULSE = b"data: [DONE]\n\n", b":\n\n"
TIMED_OUT = b'event: error\ndata: {"code":504,"details":"request timed out"}\n\n'


def event(text: str | int) -> bytes:
    return f"data: {text}\n\n".encode()


async def few(exchange: Exchange) -> None:
    await exchange.reply.start_events(done=DONE)
    for number in range(3):
        await exchange.reply.write(event(number))
    await exchange.reply.write(DONE)
    await exchange.reply.end()


async def health(exchange: Exchange) -> None:
    await exchange.reply.answer_json(b"{}")


@asynccontextmanager
async def serving(endpoint: Callable[[Exchange], Awaitable[None]], **options: float) -> AsyncIterator[int]:
    """`/events` is the endpoint, `/few` three events."""
    app = build_app(
        {"/events": endpoint, "/few": few, "/health": health},
        max_streams=int(options.get("max_streams", 100)),
        timeout_s=options.get("timeout_s", 600.0),
    )
    app.keep_alive_s = options.get("keep_alive_s", 600.0)
    async with served(app) as port:
        yield port


async def test_a_stream_of_events_has_the_right_head_and_ends_without_more() -> None:
    """G-36, G-38."""
    async with serving(few) as port:
        answer = await call(port, "/few")
    assert answer.status == 200
    assert answer.headers == {
        "content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked",
    }  # fmt: skip
    assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n" + DONE


@pytest.mark.parametrize("done", [b"", DONE])
@pytest.mark.parametrize("is_in_one_turn", [True, False])
async def test_an_error_after_the_start_is_the_last_event(done: bytes, is_in_one_turn: bool) -> None:
    """G-37, G-38: after everything that was written, and followed by the end marker."""

    async def fail(exchange: Exchange) -> None:
        await exchange.reply.start_events(done=done)
        await exchange.reply.write(event("é"))
        if not is_in_one_turn:
            await linger(0.01)
        raise InvalidRequest("not\n“so”")

    async with serving(fail) as port, connect(port) as client:
        for _ in range(2):  # the connection stays usable
            await client.send(build_request("POST", "/events"))
            answer = await client.read_answer()
            said = '{"code":422,"details":"not\\n“so”"}'.encode()
            assert (answer.status, answer.body) == (200, event("é") + b"event: error\ndata: " + said + b"\n\n" + done)


async def test_an_error_before_the_start_has_its_own_status() -> None:
    async def fail(exchange: Exchange) -> None:
        raise InvalidRequest("no")

    async with serving(fail) as port:
        answer = await call(port, "/events")
    assert (answer.status, answer.body) == (422, b'{"code":422,"details":"no"}')


async def test_writing_without_an_open_stream_is_a_bug_and_harms_nobody() -> None:
    async def write_late(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        await exchange.reply.end()
        with pytest.raises(RuntimeError, match="no stream is open"):
            await exchange.reply.write(b"x")
        raise RuntimeError("after the end")

    async def write_early(exchange: Exchange) -> None:
        await exchange.reply.write(b"x")

    async with served(build_app({"/late": write_late, "/early": write_early, "/few": few})) as port:
        assert (await call(port, "/early")).status == 500
        async with connect(port) as client:
            for path, body in (("/late", b""), ("/few", b"data: 0\n\ndata: 1\n\ndata: 2\n\n" + DONE)):
                await client.send(build_request("POST", path))
                assert (await client.read_answer()).body == body


# Signs of life


async def test_a_silent_stream_sends_a_comment_now_and_then_between_events() -> None:
    """G-36: again and again until the next event, none after the end."""
    turns = asyncio.Event(), asyncio.Event()

    async def dawdle(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        for turn, text in zip(turns, "ab", strict=True):
            await turn.wait()
            await exchange.reply.write(event(text))
        await exchange.reply.end()

    async with serving(dawdle, keep_alive_s=0.02) as port, connect(port) as client:
        await client.send(build_request("POST", "/events"))
        await client.read_head()
        body = b""
        while part := await client.read_chunk():
            body += part
            if body.endswith(PULSE * 3):
                turns[body.count(b"data")].set()
        assert re.fullmatch(rb"(:\n\n){3,}data: a\n\n(:\n\n){3,}data: b\n\n", body), body
        reading = asyncio.create_task(client.read_answer())
        assert await is_pending(reading)
        await client.send(build_request("POST", "/few"))
        assert (await reading).body.startswith(b"data: 0\n\n")


async def test_other_streams_give_no_sign_of_life() -> None:
    async def lines(exchange: Exchange) -> None:
        await exchange.reply.start_stream([], lambda reply: b"")
        await linger()
        await exchange.reply.write(b"{}\n")
        await exchange.reply.end()

    async with serving(lines, keep_alive_s=0.02) as port:
        assert (await call(port, "/events")).body == b"{}\n"


# Turns of the loop


async def test_what_is_written_in_one_turn_leaves_as_one_chunk_and_waits_no_longer() -> None:
    go_on = asyncio.Event()

    async def burst(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        for _ in range(200):
            await exchange.reply.write(event("x"))
        await go_on.wait()
        await exchange.reply.write(event("y"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await exchange.reply.write(event("z"))
        await exchange.reply.end()

    async with serving(burst) as port, connect(port) as client:
        await client.send(build_request("POST", "/events"))
        await client.read_head()
        assert await client.read_chunk() == event("x") * 200
        go_on.set()
        assert [await client.read_chunk() for _ in range(3)] == [event("y"), event("z"), b""]


async def test_the_buffer_of_one_turn_is_bounded() -> None:
    written: list[int] = []

    async def flood(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        for number in range(20_000):
            written.append(number)
            await exchange.reply.write(event("x" * 1000))
        await exchange.reply.end()

    async with serving(flood) as port, connect(port, limit=1024, receive_bytes=4096) as client:
        await client.send(build_request("POST", "/events"))
        assert await settled(lambda: len(written)) < 10_000  # the system's own buffers take the most of it
        assert (await call(port, "/few")).status == 200
        assert len(written) < 10_000
        await client.read_head()
        seen = 0
        while seen < 30:
            chunk = await client.read_chunk()
            assert chunk.replace(event("x" * 1000), b"") == b""
            seen += len(chunk) // 1008


async def test_a_slow_reader_gets_everything_in_order() -> None:
    async def count(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        for number in range(1500):
            await exchange.reply.write(event(f"{number:0500}"))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await exchange.reply.end()

    async with serving(count) as port, connect(port) as client:
        await client.send(build_request("POST", "/events"))
        await client.read_head()
        body = b""
        while chunk := await client.read_chunk():
            body += chunk
            if len(body) < 100_000:
                await latency(0.005)
    assert body == b"".join(event(f"{number:0500}") for number in range(1500))


# Other ways to ask


async def test_http_1_0_gets_the_body_without_chunks_and_its_end_is_that_of_the_connection() -> None:
    async def slowly(exchange: Exchange) -> None:
        await exchange.reply.start_events(done=DONE)
        await exchange.reply.write(event("a"))
        await linger(0.01)
        await exchange.reply.write(event("b"))
        if exchange.request.header(b"x-fail"):
            raise InvalidRequest("no")
        await exchange.reply.end()

    async with serving(slowly) as port:
        for headers, end in (
            ({}, b""),
            ({"x-fail": "1"}, b'event: error\ndata: {"code":422,"details":"no"}\n\n' + DONE),
        ):
            async with connect(port) as client:
                await client.send(build_request("POST", "/events", b"", headers).replace(b"HTTP/1.1", b"HTTP/1.0"))
                head = await client.read_head()
                assert (head.headers["connection"], head.headers.get("transfer-encoding")) == ("close", None)
                assert await client.reader.read() == event("a") + event("b") + end


async def test_head_has_no_body_and_the_connection_stays_usable() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        await exchange.reply.write(event("a"))
        await linger()
        await exchange.reply.write(event("b"))
        await exchange.reply.end()

    async with serving(slow, keep_alive_s=0.01) as port, connect(port) as client:
        await client.send(build_request("HEAD", "/events") + build_request("GET", "/few"))
        head = await client.read_answer("HEAD")
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert (await client.read_answer()).body.endswith(DONE)


async def test_pipelined_streams_are_answered_in_their_order() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        for number in range(5):
            await exchange.reply.write(event(f"slow {number}"))
            await latency(0.01)
        await exchange.reply.end()
        await latency(0.02)  # the next one is under way already

    async with serving(slow) as port, connect(port) as client:
        await client.send(b"".join(build_request("POST", path) for path in ("/events", "/few", "/events", "/few")))
        for body in [b"".join(event(f"slow {n}") for n in range(5)), b"data: 0\n\ndata: 1\n\ndata: 2\n\n" + DONE] * 2:
            assert (await client.read_answer()).body == body


async def test_a_client_that_waited_for_leave_to_send_gets_its_events() -> None:
    async def echo(exchange: Exchange) -> None:
        body = await exchange.request.read_json(1000)
        await exchange.reply.start_events()
        await exchange.reply.write(event(body.decode()))
        await exchange.reply.end()

    async with serving(echo) as port, connect(port) as client:
        headers = {**JSON_TYPE, "content-length": "2", "expect": "100-continue"}
        await client.send(build_head("POST", "/events", headers))
        assert (await client.read_head()).status == 100
        await client.send(b"{}")
        assert (await client.read_answer()).body == event("{}")


# Time, leaving, admission


async def test_a_stream_that_takes_too_long_ends_with_that_error() -> None:
    """D-30."""
    steps: list[str] = []

    async def too_long(exchange: Exchange) -> None:
        if not exchange.request.header(b"x-unary"):
            await exchange.reply.start_events(done=DONE)
            await exchange.reply.write(event("a"))
        try:
            clock.advance(limit_s)  # less than the client waits
            await forever()
        finally:
            steps.append("cancelled")

    clock, limit_s = LoopClock(), HANG_S / 2
    async with serving(too_long, timeout_s=limit_s) as port:
        answer = await call(port, "/events")
        assert (answer.status, answer.body) == (200, event("a") + TIMED_OUT + DONE)
        assert steps == ["cancelled"]
        unary = await call(port, "/events", headers={"x-unary": "1"})
        assert (unary.status, unary.body) == (504, b'{"code":504,"details":"request timed out"}')


@pytest.mark.parametrize("way", ["is silent", "writes"])
async def test_a_client_that_leaves_takes_everything_with_it(way: str) -> None:
    """D-13: the endpoint is cancelled, and no timer keeps the exchange."""
    gone = asyncio.Event()
    kept: list[weakref.ref[object]] = []

    class Token:
        pass

    async def endless(exchange: Exchange) -> None:
        token = Token()
        kept.append(weakref.ref(token))
        await exchange.reply.start_events()
        await exchange.reply.write(event("a"))
        try:
            while way == "writes":
                await exchange.reply.write(event("x" * 100))
                await asyncio.sleep(0)
            await forever()
        finally:
            gone.set()

    async with serving(endless, keep_alive_s=1000.0) as port:
        gc.collect()
        gc.disable()
        try:
            async with connect(port) as client:
                await client.send(build_request("POST", "/events"))
                await client.reader.readuntil(event("a"))
            await gone.wait()
            await until(lambda: [ref() for ref in kept] == [None], "the end of the exchange")
        finally:
            gc.enable()
        timers = getattr(asyncio.get_running_loop(), "_scheduled", ())
        assert [one for one in timers if not one.cancelled() and "StreamedBody" in repr(one)] == []
        assert (await call(port, "/few")).status == 200


async def test_the_end_of_one_exchange_does_not_hide_that_the_next_one_loses_its_client() -> None:
    began, gone = asyncio.Event(), asyncio.Event()

    async def stay(exchange: Exchange) -> None:
        await few(exchange)
        await began.wait()

    async def endless(exchange: Exchange) -> None:
        began.set()
        try:
            await forever()
        finally:
            gone.set()

    async with served(build_app({"/stay": stay, "/endless": endless})) as port:
        async with connect(port) as client:
            await client.send(build_request("POST", "/stay") + build_request("POST", "/endless"))
            await client.read_answer()
            await began.wait()
            await linger()
        await gone.wait()


async def test_a_permit_lives_as_long_as_the_stream() -> None:
    go_on = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await exchange.reply.start_events()
        await exchange.reply.write(event("a"))
        await go_on.wait()
        await exchange.reply.end()

    async with serving(wait, max_streams=1) as port, connect(port) as client:
        await client.send(build_request("POST", "/events"))
        await client.reader.readuntil(event("a"))
        for path in ("/events", "/few"):
            refused = await call(port, path)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.body == b'{"code":503,"details":"too many requests at once, try again later"}'
        assert (await call(port, "/health", method="GET")).status == 200
        go_on.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        assert (await call(port, "/few")).status == 200


@pytest.mark.parametrize("end", ["leaves", "fails", "takes too long"])
async def test_a_permit_comes_back_however_the_stream_ends(end: str) -> None:
    is_over = asyncio.Event()

    async def bad(exchange: Exchange) -> None:
        try:
            await exchange.reply.start_events()
            await exchange.reply.write(event("a"))
            if end == "fails":
                raise ZeroDivisionError
            if end == "takes too long":
                clock.advance()
            await forever()
        finally:
            is_over.set()

    clock = LoopClock()
    async with serving(bad, max_streams=1) as port:
        for _ in range(3):
            async with connect(port) as client:
                await client.send(build_request("POST", "/events"))
                await client.reader.readuntil(event("a"))
                if end != "leaves":
                    await client.reader.readuntil(b"0\r\n\r\n")
            await is_over.wait()
            is_over.clear()
        assert (await call(port, "/few")).status == 200


async def test_an_exchange_knows_that_nobody_in_particular_asks() -> None:
    seen: list[str] = []

    async def look(exchange: Exchange) -> None:
        seen.append(exchange.request.caller)
        await exchange.reply.answer_json(b"{}")

    app: App = build_app({"/look": look})
    async with served(app) as port:
        await call(port, "/look")
    assert seen == ["anonymous"]
