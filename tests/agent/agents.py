# SPDX-License-Identifier: Apache-2.0
"""An agent of scripted parts, and what each of its turns did."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockgate.agent.answer import AgentQuestion, AnyAgent, Gate, Pace, TurnResult
from lockgate.agent.graph import build_graphs
from lockgate.agent.prompts import Guess
from lockgate.agent.routes import ROUTES, Routes
from lockgate.agent.turns import Agent, Memory
from lockgate.gate.values import Document, Frame, Message
from lockgate.guard.policy import Chunking, Policy
from lockgate.rag.sources import NamedSource, RetrievalScope
from lockgate.sessions.turns import SessionKey
from lockgate.testing import FixedChunker, MemorySessionStore, ScriptedDataSource, ScriptedModel

KEY = SessionKey("anonymous", "default", "s1")
PASSAGES = (Document("Ports", "The API port is 8033.", 0.9), Document("Health", "The health port is 8034.", 0.8))


class AskedModel:
    """Says what `reply` makes of the messages; records them, and which calls were to be streamed."""

    def __init__(self, reply: Callable[[Sequence[Message]], Sequence[str]]) -> None:
        self.asked: list[tuple[Message, ...]] = []
        self.streamed: list[bool] = []
        self.closed = 0
        self._reply = reply

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """One frame per piece."""
        self.asked.append(tuple(messages))
        self.streamed.append(bool(params.get("stream")))
        try:
            for number, piece in enumerate(self._reply(messages)):
                yield Frame(number, piece)
        finally:
            self.closed += 1


class WaitingModel:
    """Says one piece for each permit that it is given."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.was_closed = asyncio.Event()

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        try:
            for number in range(100):
                await self.permits.acquire()
                yield Frame(number, f"t{number} ")
        finally:
            self.was_closed.set()


def is_classifying(messages: Sequence[Message]) -> bool:
    """Whether a model is asked for a label."""
    return sum("CODE_GENERATION" in one.text for one in messages) > 0


def is_rewriting(messages: Sequence[Message]) -> bool:
    """Whether a model is asked for keywords."""
    return not is_classifying(messages) and "passage" not in messages[-1].text.lower()


def build_main(label: str = "RETRIEVAL", answer: Sequence[str] = ("It ", "is ", "8033.")) -> AskedModel:
    """A main model that classifies, rewrites and answers."""

    def reply(messages: Sequence[Message]) -> Sequence[str]:
        if is_classifying(messages):
            return [f'{{"label": "{label}", "topic": "ports", "use_editor": false}}']
        return ["port number"] if is_rewriting(messages) else answer

    return AskedModel(reply)


async def guess_nothing(question: str) -> Guess | None:
    """A classifier that never knows."""
    return None


def build_agent(routes: Routes = ROUTES, **changed: Any) -> Agent:
    """An agent; `changed` are fields of it."""
    chunking = Chunking("hundred", FixedChunker(100))
    source = ScriptedDataSource(PASSAGES)
    agent = Agent(
        routes=routes,
        graphs=build_graphs(routes),
        main=build_main(),
        conversational=ScriptedModel(["You ", "are ", "welcome."]),
        library=RetrievalScope([NamedSource("docs", source)]),
        memory=Memory(MemorySessionStore()),
        guarding=Policy,
        gate=Gate(chunking),
        guess=guess_nothing,
        note_label=lambda *noted: None,
        prepare_s=600.0,
        pace=Pace(600.0, 600.0),
    )
    return replace(agent, **changed)


async def converse(agent: AnyAgent, ask: AgentQuestion) -> tuple[list[str], TurnResult]:
    """All pieces of a turn, and its facts."""
    async with agent.open(ask) as turn:
        pieces = [piece async for piece in turn.pieces]
        return pieces, turn.facts


async def turns_of(store: MemorySessionStore) -> list[tuple[str, str]]:
    """Questions and answers that are remembered."""
    return [(turn.question, turn.answer) for turn in (await store.load(KEY, 100)).turns]
