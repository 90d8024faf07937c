# SPDX-License-Identifier: Apache-2.0
"""Decodes request bodies: at once, or off the loop where a long one could take long to refuse. Knows no shape."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from lockgate.api.shapes import Shape

T = TypeVar("T")


async def decode(raw: bytes, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the bytes."""
    return read(raw) if Shape.is_cheap(raw) else await asyncio.to_thread(read, raw)


async def decode_body(shape: Shape[T], raw: bytes) -> T:
    """The message in the body."""
    return await decode(raw, shape.decode)
