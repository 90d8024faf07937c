# SPDX-License-Identifier: Apache-2.0
"""Clients that leave or stop reading (G-40, D-13): what is behind them is cancelled or waits, nobody else notices."""

import asyncio
import socket
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
from tests.server.processes import ServerProcess, running
from tests.server.slow_parts import read_diary
from tests.server.unread import push_until_unread
from tests.waits import is_pending, until

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


async def wait_for_step(watched: Watched, step: str) -> None:
    await until(lambda: step in read_diary(watched.diary), f"`{step}` in the diary")


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        (build_request("POST", CONTENT, b'{"content":"x","detectors":{"slow":{}}}'), b""),
        (build_request("POST", CONTENT, b'{"content":"%b","detectors":{"slow":{}}}' % (b"x " * 99_000)), b""),
        (build_request("POST", CONTENT, b'{"content":"x","detectors":{"slow":{}}}') * 2, b""),
        (build_request("POST", STREAM, SLOW, NDJSON_TYPE), b""),
        (build_head("POST", STREAM, {**NDJSON_TYPE, "content-length": "999999999"}) + SLOW, b""),
        (build_head("POST", STREAM, {**NDJSON_TYPE, "content-length": "999999999"}) + SLOW,
         build_line(content="word " * 1000)),
    ],
    ids=["unary", "large unary", "pipelined", "stream", "open stream", "stream that is not read on"],
)  # fmt: skip
@pytest.mark.parametrize("way", ["closes", "resets"])
async def test_when_the_client_leaves_its_detector_is_cancelled_at_once(
    watched: Watched, start: bytes, rest: bytes, way: str
) -> None:
    """D-13: also while the server reads nothing from the client. The detector itself would never end."""
    watched.diary.unlink(missing_ok=True)
    files = watched.server.open_files()
    left = len(watched.server.events("client_left"))
    client = socket.create_connection(("127.0.0.1", watched.server.api_port))
    client.sendall(start)
    await wait_for_step(watched, "began")
    if rest:
        await push_until_unread(client, rest)
    if way == "resets":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    client.close()
    await wait_for_step(watched, "cancelled")
    await until(lambda: watched.server.open_files() <= files, "the closing of the connection")
    await until(lambda: len(watched.server.events("client_left")) == left + 1, "the event in the log")


async def test_a_client_that_leaves_in_its_head_or_body_leaves_nothing_behind(server: ServerProcess) -> None:
    await detect(server.api_port, {"content": "x", "detectors": {"pii": {}}})
    files = server.open_files()
    head = build_head("POST", CONTENT, {**JSON_TYPE, "content-length": "1000"})
    starts = [b"", b"POST /", head, head + b'{"content":"', build_head("POST", STREAM, NDJSON_TYPE)]
    for start in starts * 10:
        async with connect(server.api_port) as client:
            await client.send(start)
    await until(lambda: server.open_files() <= files, "the closing of all connections")
    assert (await detect(server.api_port, {"content": "x", "detectors": {"pii": {}}})).status == 200


async def push_until_stuck(client: Client, data: bytes, limit: int) -> int:
    """Sends without reading until nothing more is taken for a while; the bytes that were taken."""
    sent = 0
    while sent < limit:
        client.writer.write(data)
        draining = asyncio.create_task(client.writer.drain())
        if await is_pending(draining, 0.7):
            draining.cancel()
            return sent
        sent += len(data)
    return sent


async def test_a_client_that_does_not_read_is_not_read_from_and_nobody_else_notices(server: ServerProcess) -> None:
    """Back-pressure: buffers are bounded end to end; when the client reads on, nothing is missing."""
    before = server.memory_kb()
    text = "Word. " * 200
    line = build_line(content=text)
    async with connect(server.api_port, limit=1024, receive_bytes=4096) as client:
        await client.start_stream()
        await client.send_line(detectors={"pii": {}}, content=text)
        chunk = b"%x\r\n%b\r\n" % (len(line), line)
        sent = await push_until_stuck(client, chunk * 16, 200_000_000)
        assert sent < 100_000_000, "the server never stopped reading"
        assert server.memory_kb() - before < 30_000
        answer = await stream(server.api_port, {"detectors": {"pii": {}}, "content": "a@b.example"})
        assert len(answer.lines()[0]["detections"]) == 1
        await client.read_head()
        drained = asyncio.create_task(client.writer.drain())
        end = 0
        for _ in range(2000):
            line = await client.read_line()
            assert line == b'{"detections":[],"processed_index":%d,"start_index":%d}\n' % (end + 6, end)
            end += 6
        drained.cancel()


async def test_a_client_that_does_not_read_is_dropped_when_its_time_is_up(hasty: ServerProcess) -> None:
    """D-30, and a client that would not take the last words either."""
    line = build_line(detectors={"pii": {}}, content="A. B. C. D. E. " * 15)
    async with connect(hasty.api_port, limit=1024, receive_bytes=4096) as client:
        await client.start_stream()
        with pytest.raises(ConnectionError):
            while True:
                await client.send_chunk(line)
    assert (await call(hasty.api_port, CONTENT, b'{"content":"x","detectors":{"pii":{}}}')).status == 200


async def test_fifty_clients_that_leave_midway_leave_nothing_behind(server: ServerProcess) -> None:
    files = server.open_files()

    async def leave(number: int) -> None:
        async with connect(server.api_port) as client:
            await client.start_stream()
            await client.send_line(detectors={"pii": {}, "secrets": {}}, content="One a@b.example. Two. Three")
            for _ in range(number % 3):
                await client.reader.readline()

    await asyncio.gather(*(leave(number) for number in range(50)))
    await until(lambda: server.open_files() <= files, "the closing of all connections")
    assert (await stream(server.api_port, {"detectors": {"pii": {}}, "content": "x"})).status == 200
