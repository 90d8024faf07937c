# SPDX-License-Identifier: Apache-2.0
"""The messages of a backend as frames of an answer: of a stream as they come, of a whole answer at once."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from lockgate.errors import LockgateError, UnknownModel
from lockgate.gate.values import Frame, Generation
from lockgate.gate.verdicts import Mask
from lockgate.guard.stream import Source
from lockgate.interfaces import Backend, Headers

WithPrompt = Callable[[str, Sequence[Mask]], Generation]  # of the prompt as it may go on, and what was masked in it
ToFrames = Callable[[dict[str, Any]], Iterable[Frame]]


class NoBackend:
    """Stands where no backend is configured: whoever asks it is told so."""

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


async def read_stream(backend: Backend, generation: Generation, to_frames: ToFrames) -> Source:
    """The frames of a streamed answer, one list for each read of the socket."""
    async with aclosing(backend.stream(generation)) as bursts:
        async for messages in bursts:
            frames: list[Frame] = []
            try:
                for message in messages:
                    frames += to_frames(message)
            except LockgateError:
                yield frames  # what came before the message that cannot be read
                raise
            yield frames
