# SPDX-License-Identifier: Apache-2.0
"""Grounded answers that are begun while the prompt is being read: no token before, and a finding ends the model."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from lockgate.errors import GenerationFailed, Unavailable
from lockgate.gate.receipts import Outcome, RequestPart
from lockgate.gate.values import Frame, Message
from lockgate.gate.verdicts import Action, Measures
from lockgate.rag.answer import Token
from lockgate.testing import ScriptedDataSource, ScriptedDetector, find_word
from tests.guard.early_parts import FALLBACK, Gated, Talker, assert_nothing_runs, guarding, settle
from tests.rag.questions import NOTES, ask, names_of, run, text_of


@pytest.mark.parametrize(
    ("changed", "is_early"),
    [
        ({}, True),
        ({"for_input": Measures(Action.BLOCK)}, True),
        ({"for_input": Measures(Action.MASK)}, False),
        ({"for_input": Measures(Action.BLOCK, {"d": Action.MASK})}, False),
        ({"for_input": Measures(Action.BLOCK, {"other": Action.MASK})}, True),
        ({"for_input": Measures(Action.MASK), "is_shadow": True}, True),
        ({"input": ()}, False),
        ({"is_speculative": False}, False),
    ],
)
def test_a_model_is_not_asked_early_where_the_prompt_may_be_masked(changed: dict[str, Any], *, is_early: bool) -> None:
    assert guarding(ScriptedDetector(), **changed).is_early is is_early


async def test_a_grounded_answer_waits_for_the_prompt_to_be_read() -> None:
    model, detector = Talker(), Gated("none")
    task = asyncio.ensure_future(run(ask(model, guarding=guarding(detector))))  # type: ignore[arg-type]
    await model.has_begun.wait()
    await settle()
    assert not task.done()
    detector.may_read.set()
    steps, outcome = await task
    assert text_of(steps) == "It is 8033."
    assert outcome.receipt.list_reads()[0].is_covered
    assert_nothing_runs()


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("pieces", [(), ("It ", "is ")])
async def test_a_prompt_that_is_blocked_late_leaves_only_the_fallback(pieces: Sequence[str], *, ends: bool) -> None:
    model, detector = Talker(pieces, ends=ends), Gated("long")
    task = asyncio.ensure_future(run(ask(model, ScriptedDataSource([NOTES]), guarding=guarding(detector))))  # type: ignore[arg-type]
    await model.has_begun.wait()
    await settle()
    assert not task.done()
    detector.may_read.set()
    steps, outcome = await task
    assert outcome.is_prompt_blocked
    assert [step.text for step in steps if isinstance(step, Token)] == [FALLBACK]
    assert model.closed == 1
    assert outcome.found_in_answer == []
    assert outcome.receipt.outcome is Outcome.BLOCKED
    assert outcome.receipt.released[RequestPart.ANSWER] == 0
    assert_nothing_runs()


async def test_a_prompt_that_is_blocked_while_sources_are_asked_asks_no_model() -> None:
    model, slow = Talker(), ScriptedDataSource([NOTES], delay_s=3600)
    steps, outcome = await run(ask(model, slow, guarding=guarding(ScriptedDetector(find_word("long")))))  # type: ignore[arg-type]
    assert outcome.is_prompt_blocked
    assert not model.has_begun.is_set()
    assert slow.cancelled == 1
    assert "GenerationStarted" not in names_of(steps)


async def test_a_detector_that_fails_late_fails_the_grounded_answer_without_a_token() -> None:
    model, detector = Talker(ends=False), Gated("", Unavailable("d", "gone"))
    heard: list[str] = []

    async def listen() -> None:
        steps, _ = await run(ask(model, guarding=guarding(detector)))  # type: ignore[arg-type]
        heard.extend(names_of(steps))

    task = asyncio.ensure_future(listen())
    await model.has_begun.wait()
    await settle()
    detector.may_read.set()
    with pytest.raises(Unavailable):
        await task
    assert (heard, model.closed) == ([], 1)
    assert_nothing_runs()


async def test_a_model_that_fails_early_is_told_as_it_is() -> None:
    class Broken(Talker):
        async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
            await detector.is_reading.wait()
            if self.said == 0:
                raise Unavailable("model", "gone")
            yield Frame(0, "")

    detector = Gated("long")
    with pytest.raises(GenerationFailed):
        await run(ask(Broken(), guarding=guarding(detector)))  # type: ignore[arg-type]
    assert detector.cancelled == 1
    assert_nothing_runs()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
async def test_a_client_that_leaves_a_grounded_answer_leaves_nothing_behind(turns: int) -> None:
    model, detector = Talker(), Gated("none")
    task = asyncio.ensure_future(run(ask(model, ScriptedDataSource([NOTES]), guarding=guarding(detector))))  # type: ignore[arg-type]
    for number in range(turns):
        await asyncio.sleep(0)
        if number > 15:
            detector.may_read.set()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert_nothing_runs()
    assert model.closed == model.has_begun.is_set()
