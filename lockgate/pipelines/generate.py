# SPDX-License-Identifier: Apache-2.0
"""Prompt in, guarded text out: the one journey of every endpoint that generates.

Check the prompt; if something is found, count its tokens and stop. Otherwise ask the backend and guard what it says;
where that is wanted, ask it at once and let nothing leave before the prompt has been read.
A unary call is a stream of one message per choice: its backend is called the unary way, everything else is the same.
What messages look like, and how they become frames, the endpoint says.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, NamedTuple

from lockgate.core.lanes import LanePlan
from lockgate.core.masks import Mask, Pseudonyms
from lockgate.core.release import Release
from lockgate.core.values import Detection, Frame, Generation
from lockgate.core.verdicts import Action, Measures, judge_whole
from lockgate.errors import LockgateError, UnknownModel
from lockgate.interfaces import Backend, Headers
from lockgate.pipelines.detect import Slice, detect_slices
from lockgate.pipelines.early import take_first
from lockgate.pipelines.guarded_stream import Source, open_guarded_stream
from lockgate.pipelines.guards import ActiveGuard

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


class Prompt(NamedTuple):
    """What is read before the backend is asked. `text` is what is counted when it is blocked."""

    text: str
    slices: Sequence[Slice]
    guards: Sequence[ActiveGuard] = ()
    measures: Measures = Measures()
    names: Pseudonyms | None = None
    max_open: int = 5
    max_cuts: int = 5
    trusts_chunks: bool = False
    is_speculative: bool = False  # the backend may be asked before this has been read


class Order(NamedTuple):
    """What a request wants: a prompt checked, an answer generated and guarded."""

    prompt: Prompt
    backend: Backend
    generation: Generation
    guards: Sequence[ActiveGuard]
    plan: LanePlan
    to_frames: ToFrames
    with_prompt: WithPrompt | None = None


class Answer(NamedTuple):
    """What came of it: the releases of the answer; none, if what was found in the prompt stopped it.

    `found` is as it may be told, `raw` as it was found.
    """

    releases: AsyncIterator[Release] | None = None
    found: Sequence[Detection] = ()
    input_tokens: int = 0
    raw: Sequence[Detection] = ()


class _Checked(NamedTuple):
    """What was found in a prompt, and what may go on of it: nothing, if `text` is None."""

    text: str | None
    told: Sequence[Detection] = ()
    raw: Sequence[Detection] = ()
    masks: Sequence[Mask] = ()


@asynccontextmanager
async def open_answer(order: Order) -> AsyncIterator[Answer]:
    """The answer to an order. Leaving the context stops everything behind it, the backend included."""
    prompt, generation = order.prompt, order.generation
    if prompt.guards and prompt.is_speculative:
        async with _open_early(order) as answer:
            yield answer
        return
    checked = await _check(order) if prompt.guards else _Checked(prompt.text)
    if checked.text is None:
        yield await _refuse(order, checked)
        return
    if checked.text != prompt.text and order.with_prompt is not None:
        generation = order.with_prompt(checked.text, checked.masks)
    async with _open_releases(order, generation) as releases:
        yield Answer(releases, checked.told, raw=checked.raw)


@asynccontextmanager
async def _open_early(order: Order) -> AsyncIterator[Answer]:
    """The backend is asked while the prompt is being read; what is found there ends it before anything has left."""
    checked = _Checked(None)

    async def check() -> bool:
        nonlocal checked
        checked = await _check(order)
        return checked.text is not None

    async with _open_releases(order, order.generation) as releases:
        has_passed, first = await take_first(releases, check)
        if has_passed:
            yield Answer(_Resumed(first, releases), checked.told, raw=checked.raw)
            return
    yield await _refuse(order, checked)


class _Resumed:
    """Releases of which the first has been taken already."""

    def __init__(self, first: Release | None, rest: AsyncIterator[Release]) -> None:
        self._first = first
        self._rest = rest

    def __aiter__(self) -> "_Resumed":
        return self

    async def __anext__(self) -> Release:
        first, self._first = self._first, None
        return first if first is not None else await anext(self._rest)


async def _check(order: Order) -> _Checked:
    prompt = order.prompt
    found = await detect_slices(
        prompt.slices, prompt.guards, prompt.max_open, max_cuts=prompt.max_cuts, trusts_chunks=prompt.trusts_chunks
    )
    if not found or prompt.measures.is_shadow:
        return _Checked(prompt.text, (), found)
    if prompt.measures.strictest([one.detector_id for one in found]) is Action.ANNOTATE:
        return _Checked(None, found, found)
    verdict = judge_whole(prompt.text, found, prompt.measures, prompt.names)
    if verdict.is_blocked or (verdict.masks and order.with_prompt is None):
        return _Checked(None, verdict.detections, found)
    return _Checked(verdict.text, verdict.detections, found, verdict.masks)


async def _refuse(order: Order, checked: _Checked) -> Answer:
    """There is no answer. Where no policy says otherwise, the tokens of the prompt are counted."""
    prompt, generation = order.prompt, order.generation
    tokens = 0
    if prompt.measures.strictest([one.detector_id for one in checked.raw]) is Action.ANNOTATE:
        tokens = await order.backend.tokenize(generation.model, prompt.text, generation.headers)
    return Answer(None, checked.told, tokens, checked.raw)


def _open_releases(order: Order, generation: Generation) -> AbstractAsyncContextManager[AsyncIterator[Release]]:
    source = _read_whole if order.plan.is_whole else _read_stream
    return open_guarded_stream(source(order.backend, generation, order.to_frames), order.guards, order.plan)


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
