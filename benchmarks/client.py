# SPDX-License-Identifier: Apache-2.0
"""The client of the HTTP benchmarks, a separate process so that its CPU time does not count.

`python -m benchmarks.client` reads one job as a line of JSON and prints one line of JSON when it is done:
  requests   send `body` to `path` so many times over `connections` keep-alive connections; answers may be streams
  timed      the same, each with a correlation id; prints of each its id, the seconds to the first event, and all;
             connections start `stagger_s` after one another
  streams    as `requests`, with `lines`, one HTTP chunk each
  hold       open `connections` streams, send the first line of each, print, and hold them until input ends
"""

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from benchmarks.processes import HOST

_LIMIT = 1 << 24
_END = b"\r\n0\r\n\r\n"
_DONE = "data: [DONE]"  # what a stream must have said, unless the job has a `mark` of its own
_SETTLE_S = 0.5


class Client:
    """Everything one job needs."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._port = int(job["port"])
        self._head = f"POST {job['path']} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: {job['type']}\r\n".encode()
        self._connections = int(job["connections"])
        self._left = int(job.get("requests", 0))
        self._body = str(job.get("body", "")).encode()
        self._lines = [_as_chunk(line) for line in job.get("lines", ())]
        self._mark = str(job.get("mark", _DONE)).encode()
        self._is_timed = job["kind"] == "timed"
        self._stagger_s = float(job.get("stagger_s", 0.0))
        self.times: list[tuple[str, float, float]] = []

    async def run(self) -> float:
        """All requests; the seconds that they took."""
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(self._connections):
                group.create_task(self._work(number * self._stagger_s))
        return time.perf_counter() - started

    async def hold(self) -> None:
        """Open streams that wait for more."""
        writers = [(await self._connect())[1] for _ in range(self._connections)]
        for writer in writers:
            writer.write(self._head + b"transfer-encoding: chunked\r\n\r\n" + self._lines[0])
        await asyncio.sleep(_SETTLE_S)
        print("{}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for writer in writers:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self._port, limit=_LIMIT)

    async def _work(self, after_s: float) -> None:
        reader, writer = await self._connect()
        await asyncio.sleep(after_s)
        one = self._stream if self._lines else self._time if self._is_timed else self._request
        while self._left > 0:
            self._left -= 1
            await one(reader, writer)
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._head + b"content-length: %d\r\n\r\n" % len(self._body) + self._body)
        head = await _read_head(reader)
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if length:
            await reader.readexactly(int(length))
        else:
            self._check(await reader.readuntil(_END))

    async def _time(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = f"timed-{self._left}"
        head = self._head + f"x-correlation-id: {name}\r\ncontent-length: {len(self._body)}\r\n\r\n".encode()
        started = time.perf_counter()
        writer.write(head + self._body)
        length = (await _read_head(reader)).partition(b"content-length: ")[2].partition(b"\r\n")[0]
        answer = b"" if length else await reader.readuntil(b"\n\n")
        first_s = time.perf_counter() - started
        answer += await reader.readexactly(int(length)) if length else await reader.readuntil(_END)
        self.times.append((name, first_s, time.perf_counter() - started))
        if not length:
            self._check(answer)

    def _check(self, answer: bytes) -> None:
        if self._mark not in answer or b"event: error" in answer:
            raise RuntimeError(answer.decode())

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._head + b"transfer-encoding: chunked\r\n\r\n")
        for line in self._lines:
            writer.write(line)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await _read_head(reader)
        answer = await reader.readuntil(_END)
        if b'"code":' in answer:
            raise RuntimeError(answer.decode())


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(head.decode())
    return head


def _as_chunk(line: str) -> bytes:
    data = line.encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main(job: dict[str, Any]) -> None:
    """Do the job."""
    client = Client(job)
    if job["kind"] == "hold":
        await client.hold()
    else:
        print(json.dumps({"wall_s": await client.run(), "times": client.times}), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if given["kind"] == "timed" else None) as runner:
        runner.run(main(given))
