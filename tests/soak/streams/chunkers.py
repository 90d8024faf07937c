# SPDX-License-Identifier: Apache-2.0
"""Chunkers over gRPC, with an encoding of their own for the few messages: cut while the text still arrives.

`clauses` cuts behind a comma or full stop and its white space, `spans` at the first white space after some
characters. Both take their time now and then. Each fails at its poison.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tests.soak.streams.words import POISON

_METHOD = "/caikit.runtime.Chunkers.ChunkersService/BidiStreamingChunkerTokenizationTaskPredict"
_CUTS = {
    "clauses": re.compile(r"(?:[,;.!?]\s+|。\s*)(?=\S)"),
    "spans": re.compile(r"(?s:.{40,}?)\s+(?=\S)"),
}
_LETTERS = {"clauses": "l", "spans": "s"}
_CODES = {
    "u": grpc.StatusCode.UNAVAILABLE,
    "i": grpc.StatusCode.INTERNAL,
    "a": grpc.StatusCode.INVALID_ARGUMENT,
}


class Cutter:
    """Text in, chunks out: (text, start, first and last input)."""

    def __init__(self, name: str) -> None:
        self._cut = _CUTS[name]
        self._held = ""
        self._start = 0
        self._inputs: list[tuple[int, int]] = []  # where each input that is not yet cut off ends, and its number

    def feed(self, text: str, number: int) -> list[tuple[str, int, int, int]]:
        """What is certain now."""
        self._held += text
        self._inputs.append((self._start + len(self._held), number))
        chunks = []
        while (cut := self._cut.search(self._held)) is not None:
            chunks.append(self._take(cut.end()))
        return chunks

    def finish(self) -> list[tuple[str, int, int, int]]:
        """What is left."""
        return [self._take(len(self._held))] if self._held else []

    def _take(self, size: int) -> tuple[str, int, int, int]:
        text, start = self._held[:size], self._start
        self._held = self._held[size:]
        self._start += size
        first = next(number for end, number in self._inputs if end > start)
        last = next(number for end, number in self._inputs if end >= self._start)
        self._inputs = [one for one in self._inputs if one[0] > self._start]
        return text, start, first, last


class ChunkerPeers:
    """All chunkers behind one port; the name of a call says which is meant."""

    def __init__(self, complaints: list[str]) -> None:
        self.open = 0
        self.calls = 0
        self._complaints = complaints

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The method that is called, if it is ours."""
        name = str(dict(details.invocation_metadata or ()).get("mm-model-id", ""))
        if details.method != _METHOD or name not in _CUTS:
            self._complaints.append(f"a chunker was called as {details.method} {name}")
            return None
        return grpc.stream_stream_rpc_method_handler(self._stream(name))

    def _stream(self, name: str) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
        async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            self.open += 1
            self.calls += 1
            try:
                await context.send_initial_metadata(())
                async for answer in self._cut(name, requests, context.abort):
                    yield answer
            finally:
                self.open -= 1

        return stream

    async def _cut(
        self, name: str, requests: AsyncIterator[bytes], abort: Callable[..., Awaitable[None]]
    ) -> AsyncIterator[bytes]:
        cutter, previous, is_slow = Cutter(name), -1, random.random() < 0.1
        async for raw in requests:
            text, number = read_request(raw)
            if number <= previous:
                self._complaints.append(f"{name}: input {number} came after {previous}")
            previous = number
            for chunk in cutter.feed(text, number):
                await _check(name, chunk[0], abort)
                if is_slow:
                    await asyncio.sleep(random.uniform(0, 0.03))
                yield write_answer(*chunk)
        for chunk in cutter.finish():
            await _check(name, chunk[0], abort)
            yield write_answer(*chunk)


async def _check(name: str, text: str, abort: Callable[..., Awaitable[None]]) -> None:
    poison = POISON.search(text)
    if poison is not None and poison["service"] == _LETTERS[name]:
        await abort(_CODES[poison["way"]], "not today")


async def serve_chunkers(peers: ChunkerPeers) -> tuple[grpc.aio.Server, int]:
    """The chunkers at a free port."""

    class _Services(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            return peers.service(details)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Services(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def read_request(raw: bytes) -> tuple[str, int]:
    """text_stream [1] and input_index_stream [2]."""
    text, number, at = "", 0, 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        if key == (1 << 3 | 2):
            size, at = _read_varint(raw, at)
            text, at = raw[at : at + size].decode(), at + size
        elif key == (2 << 3 | 0):
            number, at = _read_varint(raw, at)
        else:
            raise ValueError(f"unknown field {key >> 3} of type {key & 7}")
    return text, number


def write_answer(text: str, start: int, first: int, last: int) -> bytes:
    """results [1], processed_index [2], start_index [3], input_start_index [20], input_end_index [21]."""
    end = start + len(text)
    token = _write_number(1, start) + _write_number(2, end) + _write_bytes(3, text.encode())
    numbers = ((2, end), (3, start), (20, first), (21, last))
    return _write_bytes(1, token) + b"".join(_write_number(field, value) for field, value in numbers)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _write_number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _write_bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
