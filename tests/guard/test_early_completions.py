# SPDX-License-Identifier: Apache-2.0
"""Completions begun while the prompt is being read: nothing is heard before, and a finding ends the backend."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pytest

from lockgate.errors import Unavailable
from lockgate.gate.values import Detection, Frame, Generation
from lockgate.gate.verdicts import Action, Mask, Measures
from lockgate.guard.model_source import read_model, read_whole
from lockgate.guard.policy import Policy
from lockgate.guard.request import (
    CheckedInput,
    GuardedRequest,
    Input,
    InputBlocked,
    InputRead,
    Prepared,
    Released,
    open_guarded,
)
from lockgate.guard.stream import Slice
from lockgate.testing import ScriptedBackend, ScriptedDetector, find_word
from tests.guard.early_parts import Gated, assert_nothing_runs, settle
from tests.lane_plans import plan_lanes
from tests.rag.questions import guard
from tests.waits import forever, until

BURSTS = [[{"text": "It "}], [{"text": "is "}], [{"text": "8033."}]]


def _to_frames(message: Mapping[str, Any]) -> list[Frame]:
    return [Frame(0, message["text"])]


def order(backend: ScriptedBackend, detector: Any, *, is_whole: bool = False, **policy: Any) -> GuardedRequest:
    text = "a bad prompt"
    given: dict[str, Any] = {"for_input": Measures(Action.BLOCK), "is_speculative": True}
    read = Policy(input=[guard("d", detector)], **{**given, **policy})

    async def prepare(checked: CheckedInput) -> AsyncGenerator[Prepared, None]:
        asked = Generation(checked.text, {"masks": tuple(checked.masks)})
        if is_whole:
            yield Prepared(read_whole(backend, asked, _to_frames))
        else:
            yield Prepared(read_model(partial(backend.stream, asked), to_frames=_to_frames))

    return GuardedRequest(
        read,
        read.open_meter(),
        Input(text, [Slice(0, text)]),
        prepare,
        partial(plan_lanes, is_whole=is_whole),
        count_tokens=partial(backend.tokenize, "m", text, ()),
    )


class Heard(NamedTuple):
    """What was found in the prompt, and how many tokens were counted."""

    found: Sequence[Detection]
    raw: Sequence[Detection]
    input_tokens: int = 0


async def hear(asked: GuardedRequest) -> tuple[str | None, Heard]:
    text, heard = "", Heard((), ())
    async with open_guarded(asked) as events:
        async for event in events:
            if isinstance(event, InputRead | InputBlocked):
                heard = Heard(event.input.found, event.input.raw)
            if isinstance(event, InputBlocked):
                return None, heard._replace(input_tokens=event.tokens)
            if isinstance(event, Released):
                text += event.release.text
    return text, heard


@pytest.mark.parametrize("is_whole", [False, True])
async def test_no_completion_is_heard_before_the_prompt_has_been_read(*, is_whole: bool) -> None:
    backend, detector = ScriptedBackend(BURSTS), Gated("none")
    task = asyncio.ensure_future(hear(order(backend, detector, is_whole=is_whole)))
    await detector.is_reading.wait()
    await until(lambda: backend.requests, "the backend's call")
    await settle()
    assert not task.done()
    detector.may_read.set()
    text, answer = await task
    assert text == ("It " if is_whole else "It is 8033.")
    assert not answer.found
    assert not answer.raw
    assert_nothing_runs()


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("reads_first", [True, False])
async def test_a_finding_in_the_prompt_ends_the_backend(*, is_whole: bool, reads_first: bool) -> None:
    class Waiting(ScriptedBackend):
        async def generate(self, request: Generation) -> dict[str, Any]:
            self.requests.append(request)
            try:
                await forever()
            except asyncio.CancelledError:
                self.was_stopped = True
                raise

        async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
            try:
                if not reads_first:
                    yield BURSTS[0]
                yield [await self.generate(request)]
            except GeneratorExit:
                self.was_stopped = True
                raise

    backend, detector = Waiting(BURSTS, tokens=7), Gated("bad")
    task = asyncio.ensure_future(hear(order(backend, detector, is_whole=is_whole)))
    await detector.is_reading.wait()
    await settle()
    assert not task.done()
    detector.may_read.set()
    text, answer = await task
    assert text is None
    assert backend.was_stopped
    assert backend.counted == []  # a policy has said what follows
    assert [one.text for one in answer.raw] == ["bad"]
    assert [one.text for one in answer.found] == ["███"]
    assert_nothing_runs()


async def test_where_no_policy_says_otherwise_the_tokens_of_the_prompt_are_counted() -> None:
    backend, detector = ScriptedBackend(BURSTS, tokens=7), ScriptedDetector(find_word("bad"))
    text, answer = await hear(order(backend, detector, for_input=Measures(), refusing=frozenset({"d"})))
    assert (text, answer.input_tokens, backend.counted) == (None, 7, ["a bad prompt"])
    assert [one.text for one in answer.found] == ["bad"]


async def test_in_shadow_a_completion_is_heard_whatever_was_found_in_the_prompt() -> None:
    backend, detector = ScriptedBackend(BURSTS), ScriptedDetector(find_word("bad"))
    text, answer = await hear(order(backend, detector, for_input=Measures(Action.BLOCK, is_shadow=True)))
    assert text == "It is 8033."
    assert (list(answer.found), [one.text for one in answer.raw]) == ([], ["bad"])


async def test_a_detector_that_fails_ends_a_completion_before_a_word_is_heard() -> None:
    backend = ScriptedBackend([*BURSTS] * 100)
    with pytest.raises(Unavailable, match="gone"):
        await hear(order(backend, ScriptedDetector(error=Unavailable("d", "gone"))))
    assert_nothing_runs()


async def test_a_backend_that_fails_early_ends_the_reading_of_the_prompt() -> None:
    class Broken(ScriptedBackend):
        async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
            await detector.is_reading.wait()
            if self.requests == []:
                raise Unavailable("backend", "no answer")
            yield ()

    detector = Gated("bad")
    with pytest.raises(Unavailable, match="no answer"):
        await hear(order(Broken(BURSTS), detector))
    assert detector.cancelled == 1
    assert_nothing_runs()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_a_client_that_leaves_a_completion_leaves_nothing_behind(turns: int) -> None:
    backend, detector = ScriptedBackend(BURSTS), Gated("none")
    task = asyncio.ensure_future(hear(order(backend, detector)))
    for _ in range(turns):
        await asyncio.sleep(0)
        if turns > 10:
            detector.may_read.set()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert_nothing_runs()


async def test_a_prompt_that_is_masked_goes_on_masked() -> None:
    backend, detector = ScriptedBackend(BURSTS), ScriptedDetector(find_word("bad"))
    text, answer = await hear(order(backend, detector, for_input=Measures(Action.MASK), is_speculative=False))
    assert backend.requests[0].body["masks"] == (Mask(2, 5, "███"),)
    assert (text, [one.model for one in backend.requests]) == ("It is 8033.", ["a ███ prompt"])
    assert [one.text for one in answer.found] == ["███"]


async def test_a_prompt_that_nobody_can_change_is_blocked_in_place_of_masked() -> None:
    backend, detector = ScriptedBackend(BURSTS), ScriptedDetector(find_word("bad"))
    asked = order(backend, detector, for_input=Measures(Action.MASK), is_speculative=False)
    text, answer = await hear(asked._replace(can_mask=False))
    assert (text, backend.requests, answer.input_tokens) == (None, [], 0)
