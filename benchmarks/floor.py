# SPDX-License-Identifier: Apache-2.0
"""The floor: bare handlers on Lockgate's own server stack, which decode the same JSON and encode as much.

Each answer is served twice: as it is, and under PARTS behind a call of the bare chunker and the bare detector function
on the request's text. So the parts are measured where they work, between two requests, and not only in a loop.

`python -m benchmarks.floor PORT ANSWERS` serves until SIGTERM. ANSWERS is a JSON file: path -> body to be encoded.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

import msgspec
import uvicorn

from benchmarks.processes import HOST
from lockgate.api.guardrails.format import ContentAnswer, ContentEvent, ContentLine, ContentRequest
from lockgate.chunkers.machines import SENTENCE_MAX_CHARS, cut
from lockgate.chunkers.sentences import SentenceMachine, StopJudge, load_stop_judge
from lockgate.detectors.pii.detector import open_pii_detector
from lockgate.detectors.scans import Scan
from lockgate.gate.ndjson import LineSplitter
from lockgate.server import ports
from lockgate.server.app import App, Handler
from lockgate.server.exchange import Exchange
from lockgate.telemetry import set_up_logging

STREAM_PATH = "/stream"
PARTS = "/parts"
_BODY_BYTES = 1_000_000
_read_request = msgspec.json.Decoder(ContentRequest).decode
_read_line = msgspec.json.Decoder(ContentLine).decode
_encode = msgspec.json.Encoder().encode


def build_unary(answer: ContentAnswer) -> Handler:
    """Decodes a request, encodes the answer."""

    async def handle(exchange: Exchange) -> None:
        _read_request(await exchange.request.read_json(_BODY_BYTES))
        await exchange.reply.answer_json(_encode(answer))

    return handle


def build_with_parts(answer: ContentAnswer, judge: StopJudge, scan: Scan) -> Handler:
    """Decodes a request, cuts and scans its text with the bare functions, encodes the answer."""

    async def handle(exchange: Exchange) -> None:
        text = _read_request(await exchange.request.read_json(_BODY_BYTES)).content
        cut(SentenceMachine(SENTENCE_MAX_CHARS, judge), text)
        scan(text)
        await exchange.reply.answer_json(_encode(answer))

    return handle


async def open_scan() -> Scan:
    """The detector's bare function."""
    async with open_pii_detector({}) as detector:
        return detector.accept({}, ()).scan


async def stream(exchange: Exchange) -> None:
    """Decodes each line, encodes one answer line for it."""
    splitter, position = LineSplitter(_BODY_BYTES), 0
    await exchange.reply.start_stream([(b"content-type", b"application/x-ndjson")], lambda reply: b"")
    async for piece in exchange.request.pieces():
        for line in splitter.feed(piece):
            start, position = position, position + len(_read_line(line).content)
            await exchange.reply.write(_encode(ContentEvent([], position, start)) + b"\n")
    await exchange.reply.end()


def main(port: int, answers: Path) -> None:
    """Serve, set up exactly as `lockgate serve -q` does."""
    set_up_logging(style=None, level="INFO", is_quiet=True)
    bodies = json.loads(answers.read_text(encoding="utf-8"))
    judge, scan = load_stop_judge(), asyncio.run(open_scan())
    routes: dict[str, dict[str, Handler]] = {STREAM_PATH: {"POST": stream}}
    for path, body in bodies.items():
        answer = msgspec.json.decode(body, type=ContentAnswer)
        routes[path] = {"POST": build_unary(answer)}
        routes[PARTS + path] = {"POST": build_with_parts(answer, judge, scan)}
    config = ports.configure(App(routes, max_streams=1000, timeout_s=600.0))
    ports.spare_the_collector()
    listening = socket.create_server((HOST, port), backlog=2048)
    with asyncio.Runner(loop_factory=ports.loop_factory()) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
