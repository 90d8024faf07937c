# SPDX-License-Identifier: Apache-2.0
"""Reads the answer of a model: a stream in bursts within a deadline, or a whole answer at once."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from lockgate.errors import LockgateError, TimedOut, UnknownModel, UpstreamError
from lockgate.gate.values import Frame, Generation
from lockgate.gate.verdicts import Mask
from lockgate.guard.stream import Source
from lockgate.interfaces import Backend, Headers
from lockgate.telemetry import LogEvent, describe_exception, limit_calls, log_event

T = TypeVar("T")
TIMED_OUT = "Model request timed out"
_BROKEN = "the model failed"

WithPrompt = Callable[[str, Sequence[Mask]], Generation]  # takes the checked prompt and its masks
ToFrames = Callable[[dict[str, Any]], Iterable[Frame]]


class NoBackend:
    """The backend if none is configured: every call raises UnknownModel."""

    async def generate(self, request: Generation) -> dict[str, Any]:
        """Raises UnknownModel."""
        raise UnknownModel("generate", request.model)

    async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """Raises UnknownModel."""
        yield (await self.generate(request),)

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """Raises UnknownModel."""
        raise UnknownModel("tokenize", model)


async def read_whole(backend: Backend, generation: Generation, to_frames: ToFrames) -> Source:
    """Yields the frames of a whole answer."""
    yield list(to_frames(await backend.generate(generation)))


@dataclass(slots=True)
class Deadline:
    """The time by which the next burst of a model must come, by the loop's clock; it may move during the answer."""

    until: float | None

    async def wait_for(self, bursts: AsyncGenerator[T, None]) -> T | None:
        """Returns the model's next burst, None at the end; raises TimedOut after the deadline."""
        if self.until is None:
            return await anext(bursts, None)
        if self.until <= asyncio.get_running_loop().time():  # no time left: the model is not called
            raise TimedOut("model", TIMED_OUT)
        limit_calls(self.until)
        try:
            async with asyncio.timeout_at(self.until) as limit:
                return await anext(bursts, None)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut("model", TIMED_OUT) from None


_NO_DEADLINE = Deadline(None)


async def read_model(
    open_stream: Callable[[], AsyncGenerator[Any, None]],
    deadline: Deadline = _NO_DEADLINE,
    to_frames: ToFrames | None = None,
) -> AsyncGenerator[Any, None]:
    """Yields the bursts of a model's answer, or a list of frames for each; a burst is the result of one socket read.

    With a deadline the model may be third-party code: any exception then becomes an UpstreamError.
    """
    try:
        async with aclosing(open_stream()) as bursts:
            while (burst := await deadline.wait_for(bursts)) is not None:
                if to_frames is None:
                    yield burst
                    continue
                frames: list[Frame] = []
                try:
                    for message in burst:
                        frames += to_frames(message)
                except LockgateError:
                    yield frames  # from the messages before the invalid one
                    raise
                yield frames
    except LockgateError:
        raise
    except Exception as error:
        if deadline is _NO_DEADLINE:
            raise
        log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part="model", reason=describe_exception(error))
        raise UpstreamError("model", _BROKEN) from error
