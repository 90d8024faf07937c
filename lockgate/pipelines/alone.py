# SPDX-License-Identifier: Apache-2.0
"""A model alone: what the client sent goes in, the answer comes out, through the gate if a policy is named.

Nothing is looked up and nothing remembered. Refuses to know any wire shape, and how the model is reached.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import partial

from lockgate.core.receipts import Part
from lockgate.core.turns import USER
from lockgate.core.values import Message
from lockgate.interfaces import Model
from lockgate.pipelines.answer import Guarding
from lockgate.pipelines.asking import Ask, Speech, attend
from lockgate.pipelines.early import take_first
from lockgate.pipelines.metering import Meter
from lockgate.pipelines.speaking import PACE, PROMPT_BLOCKED, Facts, Gate, Pace, Saying, check_texts, join_whole, speak


@dataclass(frozen=True, slots=True)
class ModelSpeaker:
    """A model alone: nothing is looked up and nothing remembered; with a policy it speaks through the gate."""

    model: Model
    guarding: Callable[[], Guarding]
    gate: Gate
    pace: Pace = PACE

    def open(self, ask: Ask) -> AbstractAsyncContextManager[Speech]:
        """An answer to what the client sent."""
        return attend(_Reply(self, ask))


class _Reply:
    """One answer of a model alone."""

    def __init__(self, speaker: ModelSpeaker, ask: Ask) -> None:
        self.facts = Facts()
        self._speaker = speaker
        self._ask = ask

    async def run(self) -> AsyncGenerator[str, None]:
        speaker, ask = self._speaker, self._ask
        guarding = speaker.guarding()
        meter = guarding.open_meter()
        if guarding.is_on:
            self.facts.begin(meter)
        sent = ask.sent or (Message(USER, ask.question),)
        texts = [one.text for one in sent]
        if guarding.is_early:
            async with aclosing(self._speak(sent, texts, guarding, meter)) as pieces:
                has_passed, piece = await take_first(pieces, partial(self._check, texts, guarding, meter))
                while has_passed and piece is not None:
                    yield piece
                    piece = await anext(pieces, None)
        else:
            checked = await check_texts(texts, guarding, meter)
            has_passed = checked is not None
            if checked is not None:
                async with aclosing(self._speak(sent, checked, guarding, meter)) as pieces:
                    async for piece in pieces:
                        yield piece
        if not has_passed:
            meter.receipt.take_back(Part.ANSWER)
            self.facts.outcome = PROMPT_BLOCKED
            yield guarding.fallback

    async def _check(self, texts: Sequence[str], guarding: Guarding, meter: Meter) -> bool:
        return await check_texts(texts, guarding, meter, is_early=True) is not None

    async def _speak(
        self, sent: Sequence[Message], texts: Sequence[str], guarding: Guarding, meter: Meter
    ) -> AsyncGenerator[str, None]:
        speaker, ask = self._speaker, self._ask
        messages = [one._replace(text=text) for one, text in zip(sent, texts, strict=True)]
        saying = Saying(
            speaker.model, messages, ask.params, speaker.pace, guarding, meter, speaker.gate, is_whole=not ask.is_stream
        )
        async with aclosing(speak(saying, self.facts)) as pieces:
            if ask.is_stream:
                async for piece in pieces:
                    yield piece
            else:
                yield await join_whole(pieces)
