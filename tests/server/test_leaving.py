# SPDX-License-Identifier: Apache-2.0
"""Clients that leave or stop reading (G-40, D-13): what is behind them is cancelled or waits, nobody else notices."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server.http_client import (
    CONTENT,
    JSON_TYPE,
    NDJSON_TYPE,
    STREAM,
    Client,
    build_head,
    build_line,
    build_request,
    call,
    connect,
    detect,
    stream,
)
from tests.server.processes import ServerProcess, running, wait_until
from tests.server.slow_parts import read_diary

NOTICED_S = 0.1
SLOW = build_line(detectors={"slow": {}}, content="Hello there. And")


class Watched(NamedTuple):
    """A server with a detector that never answers, and the diary of that detector."""

    server: ServerProcess
    diary: Path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("watched")
    diary, config = directory / "diary", directory / "config.yaml"
    config.write_text(
        "detectors: {slow: {embedded: 'tests.server.slow_parts:open_slow_detector', "
        f"options: {{diary: {diary}}}}}}}\nserver: {{host: 127.0.0.1}}\n"
    )
    with running(directory, ["--config-path", str(config)]) as server:
        yield Watched(server, diary)


async def wait_for_step(watched: Watched, step: str, count: int = 1) -> float:
    for _ in range(500):
        times = [at for name, at in read_diary(watched.diary) if name == step]
        if len(times) >= count:
            return times[-1]
        await asyncio.sleep(0.01)
    raise AssertionError(f"the detector never {step}")


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        (build_request("POST", CONTENT, b'{"content":"x","detectors":{"slow":{}}}'), b""),
        (build_request("POST", CONTENT, b'{"content":"%b","detectors":{"slow":{}}}' % (b"x " * 99_000)), b""),
        (build_request("POST", CONTENT, b'{"content":"x","detectors":{"slow":{}}}') * 2, b""),
        (build_request("POST", STREAM, SLOW, NDJSON_TYPE), b""),
        (build_head("POST", STREAM, {**NDJSON_TYPE, "content-length": "999999999"}) + SLOW, b""),
        (build_head("POST", STREAM, {**NDJSON_TYPE, "content-length": "999999999"}) + SLOW,
         build_line(content="word " * 1000) * 400),
    ],
    ids=["unary", "large unary", "pipelined", "stream", "open stream", "stream that is not read on"],
)  # fmt: skip
@pytest.mark.parametrize("way", ["closes", "resets"])
async def test_when_the_client_leaves_its_detector_is_cancelled_at_once(
    watched: Watched, start: bytes, rest: bytes, way: str
) -> None:
    """D-13: within 100 ms, also while the server reads nothing from the client."""
    watched.diary.unlink(missing_ok=True)
    files = watched.server.open_files()
    left = len(watched.server.events("client_left"))
    client = socket.create_connection(("127.0.0.1", watched.server.api_port))
    client.sendall(start)
    await wait_for_step(watched, "began")
    client.settimeout(0.2)
    try:
        client.sendall(rest)
        await asyncio.sleep(0.1)
    except TimeoutError:
        pass  # both buffers are full: the server does not read
    if way == "resets":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    gone = time.monotonic()
    client.close()
    assert await wait_for_step(watched, "cancelled") - gone < NOTICED_S
    wait_until(lambda: watched.server.open_files() <= files, 2.0, "the closing of the connection")
    wait_until(lambda: len(watched.server.events("client_left")) == left + 1, 2.0, "the event in the log")
    assert all(step != "ended" for step, _ in read_diary(watched.diary))


async def test_a_client_that_leaves_in_its_head_or_body_leaves_nothing_behind(server: ServerProcess) -> None:
    await detect(server.api_port, {"content": "x", "detectors": {"pii": {}}})
    files = server.open_files()
    head = build_head("POST", CONTENT, {**JSON_TYPE, "content-length": "1000"})
    starts = [b"", b"POST /", head, head + b'{"content":"', build_head("POST", STREAM, NDJSON_TYPE)]
    for start in starts * 10:
        async with connect(server.api_port) as client:
            await client.send(start)
    wait_until(lambda: server.open_files() <= files, 2.0, "the closing of all connections")
    assert (await detect(server.api_port, {"content": "x", "detectors": {"pii": {}}})).status == 200


async def push_until_stuck(client: Client, data: bytes, limit: int) -> int:
    """Sends without reading until nothing more is taken for a while; the bytes that were taken."""
    sent = 0
    while sent < limit:
        client.writer.write(data)
        try:
            await asyncio.wait_for(client.writer.drain(), 0.7)
        except TimeoutError:
            return sent
        sent += len(data)
    return sent


async def test_a_client_that_does_not_read_is_not_read_from_and_nobody_else_notices(server: ServerProcess) -> None:
    """Back-pressure: buffers are bounded end to end; when the client reads on, nothing is missing."""
    before = server.memory_kb()
    text = "Word. " * 200
    line = build_line(content=text)
    async with connect(server.api_port, limit=1024) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.start_stream()
        await client.send_line(detectors={"pii": {}}, content=text)
        chunk = b"%x\r\n%b\r\n" % (len(line), line)
        sent = await push_until_stuck(client, chunk * 16, 200_000_000)
        assert sent < 100_000_000, "the server never stopped reading"
        assert server.memory_kb() - before < 30_000
        started = time.monotonic()
        answer = await stream(server.api_port, {"detectors": {"pii": {}}, "content": "a@b.example"})
        assert len(answer.lines()[0]["detections"]) == 1
        assert time.monotonic() - started < 1.0
        await client.read_head()
        drained = asyncio.create_task(client.writer.drain())
        end = 0
        for _ in range(2000):
            line = await client.read_line()
            assert line == b'{"detections":[],"processed_index":%d,"start_index":%d}\n' % (end + 6, end)
            end += 6
        drained.cancel()


async def test_a_client_that_does_not_read_is_dropped_when_its_time_is_up(narrow: ServerProcess) -> None:
    """D-30, and a client that would not take the last words either."""
    files = narrow.open_files()
    line = build_line(detectors={"pii": {}}, content="A. B. C. D. E. " * 15)
    async with connect(narrow.api_port, limit=1024) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.start_stream()
        try:
            for _ in range(4000):
                await asyncio.wait_for(client.send_chunk(line), 1.0)
        except (ConnectionError, TimeoutError):
            pass
        wait_until(lambda: narrow.open_files() <= files, 5.0, "the end of the connection")
    assert (await call(narrow.api_port, CONTENT, b'{"content":"x","detectors":{"pii":{}}}')).status == 200


async def test_fifty_clients_that_leave_midway_leave_nothing_behind(server: ServerProcess) -> None:
    files = server.open_files()

    async def leave(number: int) -> None:
        async with connect(server.api_port) as client:
            await client.start_stream()
            await client.send_line(detectors={"pii": {}, "secrets": {}}, content="One a@b.example. Two. Three")
            for _ in range(number % 3):
                await client.reader.readline()

    await asyncio.gather(*(leave(number) for number in range(50)))
    wait_until(lambda: server.open_files() <= files, 3.0, "the closing of all connections")
    assert (await stream(server.api_port, {"detectors": {"pii": {}}, "content": "x"})).status == 200
