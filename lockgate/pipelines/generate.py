# SPDX-License-Identifier: Apache-2.0
"""Prompt in, guarded text out: the one journey of every endpoint that generates.

Check the prompt; if something is found, count its tokens and stop. Otherwise ask the backend and guard what it says.
A unary call is a stream of one message per choice: its backend is called the unary way, everything else is the same.
What messages look like, and how they become frames, the endpoint says.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from lockgate.core.lanes import LanePlan
from lockgate.core.release import Release
from lockgate.core.values import Detection, Frame, Generation
from lockgate.core.verdicts import Action, judge_whole
from lockgate.errors import LockgateError, UnknownModel
from lockgate.interfaces import Backend, Headers
from lockgate.pipelines.detect import Slice, detect_slices
from lockgate.pipelines.guarded_stream import Source, open_guarded_stream
from lockgate.pipelines.guards import ActiveGuard

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


class Prompt(NamedTuple):
    """What is read before the backend is asked. `text` is what is counted when it is blocked."""

    text: str
    slices: Sequence[Slice]
    guards: Sequence[ActiveGuard] = ()
    action: Action = Action.ANNOTATE
    max_open: int = 5
    max_cuts: int = 5
    trusts_chunks: bool = False


class Order(NamedTuple):
    """What a request wants: a prompt checked, an answer generated and guarded."""

    prompt: Prompt
    backend: Backend
    generation: Generation
    guards: Sequence[ActiveGuard]
    plan: LanePlan
    to_frames: ToFrames
    with_prompt: Callable[[str], Generation] | None = None


class Answer(NamedTuple):
    """What came of it: the releases of the answer; none, if what was found in the prompt stopped it."""

    releases: AsyncIterator[Release] | None = None
    found: Sequence[Detection] = ()
    input_tokens: int = 0


@asynccontextmanager
async def open_answer(order: Order) -> AsyncIterator[Answer]:
    """The answer to an order. Leaving the context stops everything behind it, the backend included."""
    prompt, generation = order.prompt, order.generation
    found: Sequence[Detection] = ()
    if prompt.guards:
        found = await detect_slices(
            prompt.slices,
            prompt.guards,
            prompt.max_open,
            max_cuts=prompt.max_cuts,
            trusts_chunks=prompt.trusts_chunks,
        )
    if found and prompt.action is Action.ANNOTATE:
        yield Answer(None, found, await order.backend.tokenize(generation.model, prompt.text, generation.headers))
        return
    if found:
        verdict = judge_whole(prompt.text, found, prompt.action)
        found = verdict.detections
        if verdict.is_blocked or order.with_prompt is None:
            yield Answer(None, found)
            return
        generation = order.with_prompt(verdict.text)
    source = _read_whole if order.plan.is_whole else _read_stream
    frames = source(order.backend, generation, order.to_frames)
    async with open_guarded_stream(frames, order.guards, order.plan) as releases:
        yield Answer(releases, found)


async def _read_whole(backend: Backend, generation: Generation, to_frames: ToFrames) -> Source:
    yield list(to_frames(await backend.generate(generation)))


async def _read_stream(backend: Backend, generation: Generation, to_frames: ToFrames) -> Source:
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
