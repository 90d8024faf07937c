# SPDX-License-Identifier: Apache-2.0
"""A configured model without an agent: what the client sent goes in, the guarded answer comes out.

Nothing is looked up and nothing remembered.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from functools import partial

from lockgate.agent.answer import (
    PACE,
    Facts,
    Gate,
    ModelCall,
    Pace,
    collect,
    join_whole,
    list_params,
    list_pieces,
    listen,
)
from lockgate.agent.turn_types import Ask, Speech, attend
from lockgate.gate.values import Message
from lockgate.guard.input import InputTexts
from lockgate.guard.policy import Policy
from lockgate.guard.request import CheckedInput, GuardedRequest, Prepared
from lockgate.interfaces import Model
from lockgate.sessions.turns import USER


@dataclass(frozen=True, slots=True)
class ModelSpeaker:
    """A configured model, under a policy or none."""

    model: Model
    guarding: Callable[[], Policy]
    gate: Gate
    pace: Pace = PACE

    @property
    def takes(self) -> frozenset[str]:
        """The parameters of its model."""
        return list_params(self.model)

    def open(self, ask: Ask) -> AbstractAsyncContextManager[Speech]:
        """An answer to what the client sent."""
        return attend(_Reply(self, ask))


class _Reply:
    """One answer of a configured model."""

    def __init__(self, speaker: ModelSpeaker, ask: Ask) -> None:
        self.facts = Facts()
        self._speaker = speaker
        self._ask = ask
        self._sent = ask.sent or (Message(USER, ask.question),)
        self._texts = InputTexts([one.text for one in self._sent])

    async def run(self) -> AsyncGenerator[str, None]:
        """Its pieces; a whole answer is one."""
        speaker, policy, is_whole = self._speaker, self._speaker.guarding(), not self._ask.is_stream
        request = GuardedRequest(
            policy,
            policy.open_meter(),
            self._texts.input,
            self._prepare,
            partial(speaker.gate.plan, is_whole=is_whole),
            speaker.gate.chunking,
        )
        pieces = list_pieces(request, self.facts, nullcontext())
        if is_whole:
            yield await join_whole(pieces)
        else:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        self.facts.found_in_messages = self._texts.locate(self.facts.found_in_prompt)

    async def _prepare(self, checked: CheckedInput) -> AsyncGenerator[Prepared, None]:
        texts = self._texts.split(checked)
        messages = [one._replace(text=text) for one, text in zip(self._sent, texts, strict=True)]
        speaker, ask = self._speaker, self._ask
        source = listen(ModelCall(speaker.model, messages, ask.params, speaker.pace), self.facts)
        yield Prepared(source if ask.is_stream else collect(source))
