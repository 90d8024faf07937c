# SPDX-License-Identifier: Apache-2.0
"""The answer of a model: of a stream as it comes, each burst within its time; of a whole answer at once."""

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

WithPrompt = Callable[[str, Sequence[Mask]], Generation]  # of the prompt as it may go on, and what was masked in it
ToFrames = Callable[[dict[str, Any]], Iterable[Frame]]


class NoBackend:
    """Stands where no backend is configured: raises UnknownModel."""

    async def generate(self, request: Generation) -> dict[str, Any]:
        """There is no answer."""
        raise UnknownModel("generate", request.model)

    async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """There is no answer."""
        yield (await self.generate(request),)

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """There is no count."""
        raise UnknownModel("tokenize", model)


async def read_whole(backend: Backend, generation: Generation, to_frames: ToFrames) -> Source:
    """The frames of a whole answer."""
    yield list(to_frames(await backend.generate(generation)))


@dataclass(slots=True)
class Deadline:
    """When a model must have said something, by the loop's clock; it may be moved while the answer comes."""

    until: float | None

    async def wait_for(self, bursts: AsyncGenerator[T, None]) -> T | None:
        """What the model says next; None at its end."""
        if self.until is None:
            return await anext(bursts, None)
        if self.until <= asyncio.get_running_loop().time():  # it is not even asked
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
    ask: Callable[[], AsyncGenerator[Any, None]], deadline: Deadline = _NO_DEADLINE, to_frames: ToFrames | None = None
) -> AsyncGenerator[Any, None]:
    """The bursts of a model's answer, or their frames: one list for each read of the socket.

    With a deadline it may be third-party code: an exception that is not a LockgateError is its failure.
    """
    try:
        async with aclosing(ask()) as bursts:
            while (burst := await deadline.wait_for(bursts)) is not None:
                if to_frames is None:
                    yield burst
                    continue
                frames: list[Frame] = []
                try:
                    for message in burst:
                        frames += to_frames(message)
                except LockgateError:
                    yield frames  # what came before the message that cannot be read
                    raise
                yield frames
    except LockgateError:
        raise
    except Exception as error:
        if deadline is _NO_DEADLINE:
            raise
        log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part="model", reason=describe_exception(error))
        raise UpstreamError("model", _BROKEN) from error
