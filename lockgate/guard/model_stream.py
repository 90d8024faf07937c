# SPDX-License-Identifier: Apache-2.0
"""How a model is listened to: one burst of frames at a time, each within its time, whatever it raises its own fault."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lockgate.errors import LockgateError, TimedOut, UpstreamError
from lockgate.telemetry import Event, describe_exception, limit_calls, log_event

T = TypeVar("T")
TIMED_OUT = "Model request timed out"
_BROKEN = "the model failed"


async def next_burst(frames: AsyncGenerator[T, None], until: float) -> T | None:
    """What the model says next, until that time of the loop's clock; None at its end."""
    if until <= asyncio.get_running_loop().time():  # it is not even asked
        raise TimedOut("model", TIMED_OUT)
    limit_calls(until)
    with blaming_model():
        try:
            async with asyncio.timeout_at(until) as limit:
                return await anext(frames)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut("model", TIMED_OUT) from None


@contextmanager
def blaming_model() -> Iterator[None]:
    """Whatever a model raises that is no error of ours is a failure of the model: it may be somebody else's code."""
    try:
        yield
    except LockgateError:
        raise
    except Exception as error:
        log_event(Event.UPSTREAM_FAILED, logging.ERROR, part="model", reason=describe_exception(error))
        raise UpstreamError("model", _BROKEN) from error
