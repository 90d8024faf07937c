# SPDX-License-Identifier: Apache-2.0
"""Reads the answer of a model: a stream in bursts within a deadline, or a whole answer at once."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from lockgate.errors import MODEL, LockgateError, TimedOut, UnknownModel, UpstreamError
from lockgate.gate.input_texts import CheckedInput
from lockgate.gate.values import Frame, Generation
from lockgate.guard.stream import Source
from lockgate.interfaces import Backend, Headers
from lockgate.telemetry import LogEvent, describe_exception, limit_calls, log_event

T = TypeVar("T")
TIMED_OUT = "Model request timed out"
_BROKEN = "the model failed"

WithInput = Callable[[CheckedInput], Generation]  # the request to the model, with the texts that the check has changed
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
    """The time by which the next burst of a model must come, by the loop's clock; it may move during the answer.

    A burst is the result of one socket read. One timer serves all waits: if it fires too early, it starts again.
    """

    until: float | None = None
    _task: asyncio.Task[Any] | None = None  # waits for a burst now
    _timer: asyncio.TimerHandle | None = None
    _is_late: bool = False

    @asynccontextmanager
    async def open(self, open_stream: Callable[[], AsyncGenerator[T, None]]) -> AsyncIterator[AsyncGenerator[T, None]]:
        """Opens a model's bursts, for `wait_for`.

        With a time limit the model may be third-party code: any exception then becomes an UpstreamError.
        """
        try:
            async with aclosing(open_stream()) as bursts:
                yield bursts
        except LockgateError:
            raise
        except Exception as error:
            if self.until is None:
                raise
            log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part="model", reason=describe_exception(error))
            raise UpstreamError(MODEL, _BROKEN, words="") from error
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def wait_for(self, bursts: AsyncGenerator[T, None]) -> T | None:
        """Returns the model's next burst, None at the end; raises TimedOut after the deadline."""
        if self.until is None:
            return await anext(bursts, None)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if self.until <= loop.time():  # no time left: the model is not called
            raise TimedOut(MODEL, TIMED_OUT)
        limit_calls(self.until)
        if self._timer is None:
            self._timer = loop.call_at(self.until, self._expire)
        elif self.until < self._timer.when():
            self._timer.cancel()
            self._timer = loop.call_at(self.until, self._expire)
        self._task, cancelling = task, task.cancelling()
        try:
            return await anext(bursts, None)
        except asyncio.CancelledError:
            if not self._is_late or task.cancelling() > cancelling + 1:  # another task has cancelled this one
                raise
            raise TimedOut(MODEL, TIMED_OUT) from None
        finally:
            self._task = None
            if self._is_late:
                self._is_late = False
                task.uncancel()

    def _expire(self) -> None:
        self._timer = None  # the next wait starts another
        if self._task is None or self.until is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self.until:
            self._timer = loop.call_at(self.until, self._expire)
        else:
            self._is_late = True
            self._task.cancel()


async def read_model(
    open_stream: Callable[[], AsyncGenerator[Any, None]],
    deadline: Deadline | None = None,
    to_frames: ToFrames | None = None,
) -> AsyncGenerator[Any, None]:
    """Yields the bursts of a model's answer, or a list of frames for each."""
    deadline = deadline or Deadline()
    async with deadline.open(open_stream) as bursts:
        while (burst := await deadline.wait_for(bursts)) is not None:
            if to_frames is None:
                for frame in burst if isinstance(burst, list) else (burst,):
                    if not (isinstance(frame, Frame) and isinstance(frame.text, str)):
                        raise TypeError("a model's answer is no frame of text")
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
