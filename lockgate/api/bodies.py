# SPDX-License-Identifier: Apache-2.0
"""Reads requests: decodes bodies, prepares parameters, chooses headers for upstream services."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from lockgate.api.shapes import Shape
from lockgate.config.settings import Settings
from lockgate.interfaces import Headers
from lockgate.server.exchange import Exchange

T = TypeVar("T")
_FEW_VALUES = 4  # more of them may take long to prepare


async def decode(raw: bytes, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the bytes."""
    return read(raw) if Shape.is_cheap(raw) else await asyncio.to_thread(read, raw)


async def decode_body(shape: Shape[T], raw: bytes) -> T:
    """The message in the body."""
    return await decode(raw, shape.decode)


def build_passthrough(settings: Settings) -> Callable[[Exchange], Headers]:
    """What gives the headers of a request that services get."""
    names, rewrites = frozenset(settings.passthrough_headers), settings.rewrite_forwarded_access_header
    return lambda exchange: exchange.request.passthrough(names, rewrites) if names else ()


async def prepare(requested: Iterable[Mapping[str, Any]], accept: Callable[[], T]) -> T:
    """What `accept` makes of these parameters, off the loop where they bring many patterns to prepare."""
    lists = (value for params in requested for value in params.values() if isinstance(value, list))
    if any(len(one) > _FEW_VALUES for one in lists):
        return await asyncio.to_thread(accept)
    return accept()
