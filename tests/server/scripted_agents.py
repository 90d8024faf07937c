# SPDX-License-Identifier: Apache-2.0
"""Agents that follow a script, and an application in which they are agents and models, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockgate.agent.answer import BASIC_PARAMS, AgentQuestion, AnyAgent, OpenTurn, TurnResult
from lockgate.api.openai.turn_routes import TEXT_FORMATS, AgentRoutes, tell_version
from lockgate.config.grants import ANYTHING, Grant
from lockgate.config.settings import Settings
from lockgate.interfaces import Backend
from lockgate.server.app import App, Handler, Routes

CHAT, TEXT, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
OLLAMA_CHAT, OLLAMA_TEXT, TAGS, VERSION = "/api/chat", "/api/generate", "/api/tags", "/api/version"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@dataclass
class ScriptedAgent:
    """Says its pieces, each when `gate` lets it, then what `error` is, or stores them; remembers what it was asked."""

    pieces: Sequence[str] = ("Hello", " there", "!")
    error: Exception | None = None
    gate: asyncio.Semaphore | None = None
    facts: TurnResult = field(default_factory=lambda: TurnResult(usage=USAGE))
    asked: list[AgentQuestion] = field(default_factory=list)
    said: int = 0
    left: int = 0  # turns that were ended before their last piece
    stored: int = 0
    takes: frozenset[str] = BASIC_PARAMS

    @asynccontextmanager
    async def open(self, ask: AgentQuestion) -> AsyncIterator[OpenTurn]:
        """A turn."""
        self.asked.append(ask)
        before = self.stored
        try:
            yield OpenTurn(self.facts, self._say())
        finally:
            self.left += self.stored == before

    async def _say(self) -> AsyncIterator[str]:
        for piece in self.pieces:
            if self.gate is not None:
                await self.gate.acquire()
            self.said += 1
            yield piece
        if self.error is not None:
            raise self.error
        if self.gate is not None:
            await self.gate.acquire()
        self.stored += 1


@dataclass
class Cast:
    """Who can be named: agents by name; `model` is the default one."""

    settings: Settings
    agents: Mapping[str, AnyAgent]
    model: ScriptedAgent = field(default_factory=ScriptedAgent)
    found: list[tuple[str, str | None]] = field(default_factory=list)
    openai: Backend | None = None

    def find_agent(self, name: str, policy: str | None, grant: Grant = ANYTHING) -> AnyAgent:
        """The agent of that name, whatever the policy."""
        if policy is not None:
            self.found.append((name, policy))
        return self.agents[name]


def build_app(cast: Cast, **options: Any) -> App:
    """The application."""
    routes = AgentRoutes(cast)
    posts: dict[str, Handler] = {CHAT: routes.complete_chat, TEXT: routes.complete_text}
    posts |= {OLLAMA_CHAT: partial(routes.answer, TEXT_FORMATS["ollamaChat"])}
    posts |= {OLLAMA_TEXT: partial(routes.answer, TEXT_FORMATS["ollamaGenerate"])}
    gets = {MODELS: routes.list_models, TAGS: routes.list_tags, VERSION: tell_version}
    gets |= {f"{MODELS}/{name}": routes.show_model for name in routes.names}
    table: Routes = {path: {"POST": one} for path, one in posts.items()} | {
        path: {"GET": one} for path, one in gets.items()
    }
    return App(table, **{"max_streams": 100, "timeout_s": 600.0, **options})
