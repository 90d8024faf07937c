# SPDX-License-Identifier: Apache-2.0
"""Detectors that wait until they may read, and models that know when they began and how they were closed."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from lockgate.gate.values import Frame, Message
from lockgate.gate.verdicts import Measures
from lockgate.guard.policy import Policy
from lockgate.testing import ScriptedDetector, find_word
from tests.rag.questions import guard
from tests.waits import forever

FALLBACK = "Withheld."


class Gated:
    """A detector that waits until it may read, then finds the word."""

    def __init__(self, word: str, error: Exception | None = None) -> None:
        self.lookbehind_chars = 0
        self.may_read = asyncio.Event()
        self.is_reading = asyncio.Event()
        self.cancelled = 0
        self._scripted = ScriptedDetector(find_word(word), error=error)

    def accept(self, params: Mapping[str, Any], headers: Any) -> "Gated":
        return self

    async def read(self, excerpts: Sequence[Any]) -> Any:
        self.is_reading.set()
        try:
            await self.may_read.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await self._scripted.read(excerpts)


class Talker:
    """A model that says its pieces and then waits for ever, or ends; knows when it began and how it was closed."""

    def __init__(self, pieces: Sequence[str] = ("It ", "is ", "8033."), *, ends: bool = True) -> None:
        self.has_begun = asyncio.Event()
        self.said = 0
        self.closed = 0
        self.messages: Sequence[Message] = ()
        self._pieces = pieces
        self._ends = ends

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        self.messages = messages
        self.has_begun.set()
        try:
            for number, piece in enumerate(self._pieces):
                await asyncio.sleep(0)
                self.said += 1
                yield Frame(number, piece)
            if not self._ends:
                await forever()
        finally:
            self.closed += 1


def guarding(detector: Any, **more: Any) -> Policy:
    """The prompt is read by this detector, and the model asked before it has."""
    given: dict[str, Any] = {"input": [guard("d", detector)], "is_speculative": True}
    return Policy(**{**given, "for_output": Measures(fallback=FALLBACK), **more})


async def settle() -> None:
    """Whatever can go on without anybody's leave has gone on."""
    for _ in range(30):
        await asyncio.sleep(0)


def assert_nothing_runs() -> None:
    """Nothing was left behind."""
    assert asyncio.all_tasks() == {asyncio.current_task()}
