# SPDX-License-Identifier: Apache-2.0
"""A gateway with policies that find the mark, and its upstreams on loopback. A case says what they answer."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from lockgate.config.load import load_settings
from lockgate.gateway import Gateway, open_gateway
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.server.ports import build_api_app
from tests.contracts.grpc_peers import Context, build_nlp_server
from tests.contracts.http_peers import Exchange, Received, open_peer
from tests.coverage_law.planting import MARK
from tests.server.http_client import Answer, call
from tests.server.served_app import served
from tests.surfaces.gateway import open_agent_client
from tests.waits import HANG_S

HOST = "127.0.0.1"
FALLBACK = "[withheld]"
POLICIES = ("block", "mask")
AGENT_MODEL = "small"
JSON_TYPE = {"content-type": "application/json"}


@dataclass
class ModelReply:
    """What a model answers: a body, or packets of a stream."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: Sequence[str] = ()
    packets: Sequence[bytes] = ()


@dataclass
class World:
    """One gateway; `replies` and the other fields are what the upstreams say next."""

    port: int = 0
    agents: dict[str, Any] = field(default_factory=dict)
    reply: ModelReply = field(default_factory=ModelReply)
    documents: Any = None
    source_status: int = 200
    finding: dict[str, Any] = field(default_factory=dict)  # of the remote detector, in every text
    generated: Any = None
    received: list[Received] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # what gRPC backends received

    def forget(self) -> None:
        """Forgets what the upstreams received."""
        self.received.clear()
        self.messages.clear()

    def find_leaks(self) -> list[str]:
        """The upstream requests that have the mark, by their path; detectors may read it."""
        leaks = [one.path for one in self.received if _has_mark(one)]
        return leaks + ["generation" for one in self.messages if MARK in one]

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        """One request; the path names its policy."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await call(self.port, path, raw, headers={**JSON_TYPE, **(headers or {})})

    # The upstreams.

    async def play_model(self, exchange: Exchange) -> None:
        """An OpenAI-compatible server and Ollama, and the model by which an agent classifies."""
        body = exchange.received.json if exchange.received.body else {}
        self.received.append(exchange.received)
        if exchange.received.path == "/tokenize":
            await exchange.answer(b'{"count": 1}')
            return
        if body.get("model") == AGENT_MODEL and not body.get("stream"):
            await exchange.answer(json.dumps({"message": {"content": "gates"}, "done": True}).encode())
            return
        reply = self.reply
        if not reply.packets:
            await exchange.answer(reply.body, reply.status, reply.kind, *reply.headers)
            return
        await exchange.start(reply.kind)
        await exchange.chunk(*reply.packets)
        await exchange.end()

    async def play_source(self, exchange: Exchange) -> None:
        """A data source."""
        self.received.append(exchange.received)
        await exchange.answer(json.dumps(self.documents).encode(), self.source_status)

    async def play_detector(self, exchange: Exchange) -> None:
        """A detector that has a finding in every text."""
        contents = exchange.received.json["contents"]
        found = [[{"start": 0, "end": 1, "text": one[:1], **self.finding}] if one else [] for one in contents]
        await exchange.answer(json.dumps(found).encode())

    async def generate(self, message: Any, _context: Context) -> Any:
        """A caikit model."""
        self.messages.append(str(message))
        return self.generated

    async def generate_stream(self, message: Any, _context: Context) -> AsyncIterator[Any]:
        """The same, streamed."""
        self.messages.append(str(message))
        for one in self.generated:
            yield one

    async def count_tokens(self, _message: Any, _context: Context) -> Any:
        """The number of tokens of a text."""
        return nlp.TokenizationResults(token_count=1)


def _has_mark(received: Received) -> bool:
    heads = [value for pair in received.headers for value in pair]
    texts = [received.path, *heads, received.body.decode(errors="replace")]
    with suppress(ValueError):
        texts.append(json.dumps(json.loads(received.body), ensure_ascii=False))
    return any(MARK in one for one in texts)


def build_config(ports: dict[str, int], folder: Path) -> dict[str, Any]:
    """The config file of the gateway."""
    model = f"http://{HOST}:{ports['model']}"
    space = {"url": f"http://{HOST}:{ports['source']}", "slug": "docs"}
    options = {"patterns": [{"name": "mark", "pattern": MARK}]}
    return {
        "openai": {"service": {"hostname": HOST, "port": ports["model"]}},
        "generation": {"provider": "nlp", "service": {"hostname": HOST, "port": ports["generation"]}},
        "models": {
            "configured": {"openai": {"url": f"{model}/v1", "model": "m"}, "expose": True},
            "ollama": {"ollama": {"url": model, "model": "m"}, "expose": True},
            AGENT_MODEL: {"ollama": {"url": model, "model": AGENT_MODEL}},
        },
        "sources": {"docs": {"syftai_space": space, "expose": True}},
        "agents": {name: {"main": AGENT_MODEL, "sources": ["docs"], "policy": name} for name in POLICIES},
        "aggregator": {"model_streaming": True},
        "sessions": {"sqlite": str(folder / "sessions.db")},
        "detectors": {
            "mark": {"type": "text_contents", "embedded": "regex", "chunker_id": "sentence", "options": options},
            "remote": {
                "type": "text_contents",
                "service": {"hostname": HOST, "port": ports["detector"]},
                "chunker_id": "sentence",
                "default_threshold": 0.5,
            },
        },
        "policies": {
            **{name: _build_policy(name, {"mark": {}}) for name in POLICIES},
            "noted": _build_policy("mask", {"mark": {}, "remote": {"on_finding": "annotate"}}),
        },
        "passthrough_headers": ["x-note"],
        "limits": {"request_timeout_s": HANG_S / 2},
    }


def _build_policy(action: str, output: dict[str, Any]) -> dict[str, Any]:
    documents = {"block": "drop"}.get(action, action)
    actions = {"input": action, "documents": documents, "output": action}
    sections = {"input": {"mark": {}}, "documents": {"mark": {}}, "output": output}
    return {**sections, "on_finding": actions, "fallback": FALLBACK}


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    """The gateway before its upstreams, all over real sockets."""
    world = World()
    methods = {
        "TextGenerationTaskPredict": world.generate,
        "ServerStreamingTextGenerationTaskPredict": world.generate_stream,
        "TokenizationTaskPredict": world.count_tokens,
    }
    async with AsyncExitStack() as stack:
        peers = {"model": world.play_model, "source": world.play_source, "detector": world.play_detector}
        ports = {name: (await stack.enter_async_context(open_peer(play))).port for name, play in peers.items()}
        ports["generation"] = await stack.enter_async_context(build_nlp_server(methods).listening())
        gateway = await stack.enter_async_context(_open(folder, build_config(ports, folder)))
        world.port = await stack.enter_async_context(served(build_api_app(gateway)))
        for name in POLICIES:
            agent = {"default": {"main": AGENT_MODEL, "sources": ["docs"], "policy": name}}
            config = {**build_config(ports, folder), "agents": agent}
            one = await stack.enter_async_context(_open(folder, config))
            world.agents[name] = await stack.enter_async_context(open_agent_client(one))
        yield world


@asynccontextmanager
async def _open(folder: Path, config: dict[str, Any]) -> AsyncIterator[Gateway]:
    path = folder / f"{uuid4().hex}.yaml"
    path.write_text(yaml.safe_dump(config))
    settings = load_settings(config_path=path, flags={}, environ={"LOCKGATE_DATA_DIR": str(folder)})
    async with open_gateway(settings) as gateway:
        yield gateway
