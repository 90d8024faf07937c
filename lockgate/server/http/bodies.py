# SPDX-License-Identifier: Apache-2.0
"""Decodes request bodies: at once, or off the loop where a long one could take long to refuse."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from lockgate.wire.shapes import Shape

T = TypeVar("T")
R = TypeVar("R")


async def decode_body(shape: Shape[T], raw: bytes) -> T:
    """The message in the body."""
    return shape.decode(raw) if shape.is_cheap(raw) else await asyncio.to_thread(shape.decode, raw)


async def decode(shape: Shape[Any], raw: bytes, read: Callable[[Shape[Any], bytes], R]) -> R:
    """The same, by a function that reads more than the shape."""
    return read(shape, raw) if shape.is_cheap(raw) else await asyncio.to_thread(read, shape, raw)
