# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.soak.streams.steady_clients PORT STREAMS PER_SECOND TOKENS FILE`: the clients of the steady run.

Each takes one stream to its end, if that comes in time. Writes to the file when each sentence's end had come to each,
and what was wrong.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

import uvloop

from tests.soak.streams.client import PATH
from tests.soak.streams.plans import STREAM_HEADER
from tests.soak.streams.steady_text import TOKEN_S, sentence_ends, tokens

_PATIENCE_S = 30.0
_REQUEST: dict[str, Any] = {
    "model": "steady",
    "messages": [{"role": "user", "content": "Go on."}],
    "stream": True,
    "detectors": {"output": {"pii": {}}},
}


class _Client(asyncio.Protocol):
    def __init__(self, name: str, said: list[str], ends: list[int]) -> None:
        self.times: list[float] = []
        self.found = 0
        self.fault = "it did not end"
        self.over = asyncio.Event()
        self._name = name
        self._ends = ends
        self._text = "".join(said)
        self._count = len(said)
        self._upto = 0
        self._raw = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        body = json.dumps({**_REQUEST, "max_tokens": self._count}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += f"{STREAM_HEADER}: {self._name}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._raw += data
        *lines, self._raw = self._raw.split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._take(json.loads(line[6:]), now)
            elif line == b"data: [DONE]":
                self.fault = "" if self._upto == len(self._text) else f"{self._upto} characters came"
                self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self.over.set()

    def _take(self, value: dict[str, Any], now: float) -> None:
        if "choices" not in value:
            self.fault = str(value)
            self._transport.abort()
            return
        text = value["choices"][0]["delta"].get("content") or ""
        if not self._text.startswith(text, self._upto):
            self.fault = f"at {self._upto}: {text!r}"
            self._transport.abort()
            return
        self._upto += len(text)
        for entry in value.get("detections", {}).get("output", []):
            self.found += len(entry["results"])
        while len(self.times) < len(self._ends) and self._ends[len(self.times)] <= self._upto:
            self.times.append(now)


async def _run(port: int, streams: int, per_second: float, count: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    said, ends = tokens(count), sentence_ends(count)
    clients = []
    started = time.monotonic()
    for number in range(streams):
        await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
        client = _Client(f"t{number}", said, ends)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
        clients.append(client)
    print("all are open", flush=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(count * TOKEN_S + _PATIENCE_S):
            for client in clients:
                await client.over.wait()
    return {f"t{n}": [client.times, client.found, client.fault] for n, client in enumerate(clients)}


def main() -> None:
    """Run them all."""
    port, streams, per_second, count, path = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        heard = runner.run(_run(int(port), int(streams), float(per_second), int(count)))
    Path(path).write_text(json.dumps(heard))


if __name__ == "__main__":
    main()
