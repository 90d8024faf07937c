# SPDX-License-Identifier: Apache-2.0
"""The surfaces of the table: how each is asked under a policy. A request names the policy where the surface lets it."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import grpc

from tests.server.documented import find_undocumented
from tests.server.http_client import JSON_TYPE, call
from tests.surfaces.answers import Seen, read_answer, read_seen
from tests.surfaces.cells import (
    ANSWER_PLACES,
    CHAT_PLACES,
    SECRET,
    TEXT_PLACES,
    UNGROUNDED,
    Cell,
    Place,
)
from tests.surfaces.gateway import AGENT, OLLAMA_MODEL, OPENAI_MODEL, SOURCE, WEAK, Table

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
V2_CHAT, V2_TEXT = "/api/v2/chat/completions-detection", "/api/v2/text/completions-detection"
V1 = "/api/v1/task/classification-with-text-generation"
V1_STREAM = "/api/v1/task/server-streaming-classification-with-text-generation"
AGGREGATOR, OLLAMA_CHAT, OLLAMA_TEXT = "/api/v1/chat", "/api/chat", "/api/generate"
OLLAMA_PLACES: tuple[Place, ...] = (*TEXT_PLACES, "reasoning")
CHOICE_PLACES: tuple[Place, ...] = (*TEXT_PLACES, "one_of_two_choices")
TOOL = {"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}
# As HTTP would say it. `UNAVAILABLE` is 502 as well as 503 (D-41); no cell of the table has a 503.
STATUSES = {grpc.StatusCode.INTERNAL: "500", grpc.StatusCode.UNAVAILABLE: "502"}


@dataclass(frozen=True)
class Request:
    """One cell, asked on one surface."""

    table: Table
    cell: Cell
    is_stream: bool
    is_required: bool = False  # the policy of the cell is that of the caller, and the request names another

    @property
    def policy(self) -> str:
        """The name that the request gives."""
        return WEAK if self.is_required else self.cell.name

    @property
    def place(self) -> Place:
        """Where the finding is."""
        return self.cell.place

    @property
    def question(self) -> str:
        """What the caller says."""
        return self.cell.scene.question

    @property
    def secret(self) -> str:
        """What is found."""
        return UNGROUNDED if self.place == "grounding" else SECRET

    def build_chat(self, **more: Any) -> dict[str, Any]:
        """The body of a chat."""
        tools = {"tools": [TOOL]} if self.place == "tool_arguments" else {}
        return {"messages": [{"role": "user", "content": self.question}], **self._build_common(), **tools, **more}

    def build_text(self, **more: Any) -> dict[str, Any]:
        """The body of a text completion."""
        return {"prompt": self.question, **self._build_common(), **more}

    def _build_common(self) -> dict[str, Any]:
        count = {"n": 2} if self.place == "one_of_two_choices" else {}
        return {"model": "m", "stream": self.is_stream, **count}

    async def post(self, path: str, body: Mapping[str, Any]) -> Seen:
        """The answer of an HTTP surface."""
        headers = {**JSON_TYPE, "x-lockgate-mapping": "true"}
        headers |= {"x-lockgate-key": self.cell.name} if self.is_required else {}
        port = await self.table.find_http_port()
        answer = await call(port, path, json.dumps(body).encode(), headers=headers)
        undocumented = find_undocumented(path, answer)
        assert not undocumented, undocumented
        return read_seen(*read_answer(answer), self.table.upstreams.prompts, self.secret)


Ask = Callable[[Request], Awaitable[Seen]]


@dataclass(frozen=True)
class Surface:
    """One surface, whole or streamed. `retrieves`: answers come from documents."""

    ask: Ask
    places: tuple[Place, ...]
    is_stream: bool
    retrieves: bool = False


async def _ask_v1(request: Request) -> Seen:
    body = {"model_id": "m", "inputs": request.question, "guardrail_config": {"policy": request.policy}}
    return await request.post(V1_STREAM if request.is_stream else V1, body)


def _ask_proxied_chat(path: str) -> Ask:
    async def ask(request: Request) -> Seen:
        return await request.post(path, request.build_chat(detectors={"policy": request.policy}))

    return ask


def _ask_proxied_text(path: str) -> Ask:
    async def ask(request: Request) -> Seen:
        return await request.post(path, request.build_text(detectors={"policy": request.policy}))

    return ask


def _ask_chat(model: str, path: str = CHAT) -> Ask:
    async def ask(request: Request) -> Seen:
        return await request.post(path, request.build_chat(model=f"{model}@{request.policy}"))

    return ask


def _ask_text(model: str, path: str = TEXT) -> Ask:
    async def ask(request: Request) -> Seen:
        return await request.post(path, request.build_text(model=f"{model}@{request.policy}"))

    return ask


async def _ask_aggregator(request: Request) -> Seen:
    body = {
        "prompt": request.question,
        "model": {"url": "lockgate:", "slug": OPENAI_MODEL},
        "data_sources": [{"url": "lockgate:", "slug": SOURCE}],
        "detectors": {"policy": request.policy},
    }
    return await request.post(AGGREGATOR + "/stream" * request.is_stream, body)


async def _ask_grpc(request: Request) -> Seen:
    client = await request.table.find_agent(request.cell)
    method = "AskAgentStream" if request.is_stream else "AskAgent"
    outcome = await client.ask(request.question, uuid4().hex, method=method, query_type="RETRIEVAL")
    trailing = outcome.trailing
    last = {
        "receipt": json.loads(trailing.get("lockgate-receipt", "null")),
        "outcome": trailing.get("lockgate-outcome"),
    }
    last["pseudonyms"] = json.loads(trailing.get("lockgate-pseudonyms", "null"))
    error = "" if outcome.code is grpc.StatusCode.OK else STATUSES.get(outcome.code, outcome.code.name)
    values = [*[{"text": one.text} for one in outcome.messages], last]
    return read_seen(values, error, request.table.upstreams.prompts, request.secret)


_KINDS: Mapping[str, tuple[Ask, tuple[Place, ...]]] = {
    "v1": (_ask_v1, TEXT_PLACES),
    "proxied_chat": (_ask_proxied_chat(CHAT), CHAT_PLACES),
    "proxied_text": (_ask_proxied_text(TEXT), CHOICE_PLACES),
    "v2_chat": (_ask_proxied_chat(V2_CHAT), CHAT_PLACES),
    "v2_text": (_ask_proxied_text(V2_TEXT), CHOICE_PLACES),
    "model_chat": (_ask_chat(OPENAI_MODEL), CHAT_PLACES),
    "model_text": (_ask_text(OPENAI_MODEL), CHOICE_PLACES),
    "ollama_chat": (_ask_chat(OLLAMA_MODEL, OLLAMA_CHAT), OLLAMA_PLACES),
    "ollama_text": (_ask_text(OLLAMA_MODEL, OLLAMA_TEXT), OLLAMA_PLACES),
    "ollama_as_openai": (_ask_chat(OLLAMA_MODEL), OLLAMA_PLACES),
    "openai_as_ollama": (_ask_chat(OPENAI_MODEL, OLLAMA_CHAT), OLLAMA_PLACES),
    "aggregator": (_ask_aggregator, ANSWER_PLACES),
    "agent_chat": (_ask_chat(f"agent/{AGENT}"), ANSWER_PLACES),
    "agent_text": (_ask_text(f"agent/{AGENT}", TEXT), ANSWER_PLACES),
    "agent_grpc": (_ask_grpc, ANSWER_PLACES),
}
SURFACES: Mapping[str, Surface] = {
    f"{name}/{'stream' if is_stream else 'whole'}": Surface(ask, places, is_stream, places is ANSWER_PLACES)
    for name, (ask, places) in _KINDS.items()
    for is_stream in (False, True)
}
