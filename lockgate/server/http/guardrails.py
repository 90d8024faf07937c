# SPDX-License-Identifier: Apache-2.0
"""The stand-alone detection endpoints: translate at the border, a few lines per route."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from lockgate.assembly import Gateway
from lockgate.core.release import Strategy
from lockgate.core.values import Frame
from lockgate.errors import InvalidRequest, UnreadableBody
from lockgate.pipelines.detect import detect_contents
from lockgate.pipelines.guarded_stream import open_guarded_stream, plan_lanes
from lockgate.pipelines.guards import ActiveGuard, Rules, choose_guards
from lockgate.server.http.errors import ErrorReply
from lockgate.server.http.exchange import Exchange
from lockgate.wire.guardrails import (
    CONTENT_LINE,
    CONTENT_REQUEST,
    ContentLine,
    DetectorMap,
    encode_answer,
    encode_error,
    encode_line,
)
from lockgate.wire.ndjson import LineSplitter
from lockgate.wire.shapes import Shape

CONTENT_PATH = "/api/v2/text/detection/content"
STREAM_CONTENT_PATH = "/api/v2/text/detection/stream-content"
_NDJSON = "application/x-ndjson"
_FEW_VALUES = 4
T = TypeVar("T")


class GuardrailsRoutes:
    """The handlers of one open gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._limits = gateway.settings.limits
        is_fms = gateway.is_fms
        self._is_fms = is_fms
        self._unary_rules = Rules(unsuitable_status=422 if is_fms else 400)
        self._stream_rules = Rules(
            unsuitable_status=422 if is_fms else 400,
            allows_whole_text=not is_fms,
            whole_text_holds=gateway.settings.whole_document != "trail",
            checks_threshold=not is_fms,
        )

    async def detect_content(self, exchange: Exchange) -> None:
        """POST detection/content."""
        body = await exchange.read_json(self._limits.body_bytes)
        request = await _decode(CONTENT_REQUEST, body)
        if not request.content:
            raise InvalidRequest("`content` is required")
        if not request.detectors:
            raise InvalidRequest("`detectors` is required")
        guards = await self._choose(request.detectors, self._unary_rules)
        await exchange.answer_json(encode_answer(await detect_contents(request.content, guards)))

    async def stream_content(self, exchange: Exchange) -> None:
        """POST detection/stream-content."""
        if not exchange.header(b"content-type").lower().startswith(_NDJSON):
            raise UnreadableBody(f"expected {_NDJSON}", status=415)
        headers = [] if self._is_fms else [(b"content-type", _NDJSON.encode())]
        await exchange.start_stream(headers, _encode_error_line)
        async with aclosing(_read_lines(exchange, self._limits.line_bytes)) as lines:
            first = await _read_first(lines)
            guards = await self._choose(first.detectors or {}, self._stream_rules)
            plan = plan_lanes(
                guards,
                strategy=self._gateway.strategy(Strategy.MAX_PROCESSED_INDEX),
                max_open=1 if self._is_fms else 4,
                max_held_chars=self._limits.max_held_chars,
            )
            async with open_guarded_stream(_read_frames(first, lines), guards, plan) as releases:
                async for release in releases:
                    if release.text or release.detections:
                        await exchange.write(encode_line(release, is_relative=self._is_fms))
        await exchange.end()

    async def _choose(self, requested: DetectorMap, rules: Rules) -> tuple[ActiveGuard, ...]:
        """The guards of a request, off the loop where it brings many patterns to prepare."""
        lists = [value for params in requested.values() for value in params.values() if isinstance(value, list)]
        if any(len(one) > _FEW_VALUES for one in lists):
            return await asyncio.to_thread(choose_guards, self._gateway.guards, requested, rules)
        return choose_guards(self._gateway.guards, requested, rules)


async def _decode(shape: Shape[T], body: bytes) -> T:
    """Decode, off the loop where a long body could take long to refuse."""
    return shape.decode(body) if shape.is_cheap(body) else await asyncio.to_thread(shape.decode, body)


async def _read_lines(exchange: Exchange, max_bytes: int) -> AsyncGenerator[ContentLine, None]:
    splitter = LineSplitter(max_bytes)
    async with aclosing(exchange.pieces()) as pieces:
        async for piece in pieces:
            for line in splitter.feed(piece):
                yield await _decode_line(line)
    for line in splitter.finish():
        yield await _decode_line(line)


async def _decode_line(raw: bytes) -> ContentLine:
    shape = CONTENT_LINE
    return shape.decode_line(raw) if shape.is_cheap(raw) else await asyncio.to_thread(shape.decode_line, raw)


async def _read_first(lines: AsyncGenerator[ContentLine, None]) -> ContentLine:
    async for first in lines:
        if first.detectors is None:
            break
        if not first.detectors:
            raise InvalidRequest("`detectors` must not be empty")
        _check_content(first)
        return first
    raise InvalidRequest("`detectors` is required for the first message")


async def _read_frames(first: ContentLine, lines: AsyncGenerator[ContentLine, None]) -> AsyncGenerator[Frame, None]:
    yield Frame(0, first.content)
    number = 0
    async for line in lines:
        number += 1
        _check_content(line)
        yield Frame(number, line.content)


def _check_content(line: ContentLine) -> None:
    if not line.content:
        raise InvalidRequest("`content` cannot be empty")


def _encode_error_line(reply: ErrorReply) -> bytes:
    return encode_error(reply.status, reply.details) + b"\n"
