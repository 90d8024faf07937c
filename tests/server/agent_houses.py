# SPDX-License-Identifier: Apache-2.0
"""Everything around an agent on real sockets: model, embedder and index by script, the agent itself, a gRPC client."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

from lockgate.api.grpc.agent import build_agent_port
from lockgate.config.load import load_settings
from lockgate.config.settings import Listener
from lockgate.gateway import open_gateway
from lockgate.protos.assistance_pb2 import AgentRequest, AgentResponse, EvalRequest, EvalResponse
from lockgate.protos.grpc_health_pb2 import HealthCheckRequest, HealthCheckResponse
from lockgate.server.callers import Callers
from lockgate.server.health import Readiness
from lockgate.sessions.sqlite import open_sqlite_sessions
from lockgate.sessions.turns import SessionKey, StoredTurn, StoreLimits
from tests.contracts.http_peers import Exchange, Peer, open_peer
from tests.server.processes import ServerProcess
from tests.waits import HANG_S, until, wait_until

HOST = "127.0.0.1"
SERVICE = "brunix.AssistanceEngine"
CLASSIFY, REWRITE, EMBED, WORDS, MEANING, SPEAK = "classify", "rewrite", "embed", "words", "meaning", "speak"
NDJSON = "application/x-ndjson"
_CONFIG = """
models:
  main: {{ollama: {{url: "http://127.0.0.1:{port}", model: main}}}}
  small: {{ollama: {{url: "http://127.0.0.1:{port}", model: small}}}}
sources: {{docs: {{elasticsearch: {{url: "http://127.0.0.1:{port}", index: docs}}}}}}
embeddings: {{ollama: {{url: "http://127.0.0.1:{port}", model: embedder}}}}
agents: {{default: {{main: main, conversational: small, sources: [docs]{agent}}}}}
classifier: {{model_path: "{folder}/none"}}
{more}
"""


class Saying:
    """A model's answer under way."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def say(self, text: str) -> None:
        """One token."""
        await self._exchange.chunk(_line(text))

    async def end(self) -> None:
        """The closing line."""
        await self._exchange.chunk(_line("", is_last=True))
        await self._exchange.end()

    async def end_early(self) -> None:
        """The end without the closing line."""
        await self._exchange.end()

    def reset(self) -> None:
        """Break off."""
        self._exchange.reset()

    async def wait_until_left(self) -> None:
        """Until whoever listens is gone."""
        await self._exchange.wait_until_left()

    async def pour(self, text: str, times: int) -> AsyncIterator[int]:
        """So many tokens as fast as they are taken, hardly any of them waiting here; the characters that have left."""
        writer = self._exchange._writer
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer.transport.set_write_buffer_limits(0)
        line = _line(text)
        for number in range(1, times + 1):
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await writer.drain()
            yield number * len(text)


Speak = Callable[[Saying], Awaitable[None]]


def say(*tokens: str) -> Speak:
    """An answer of these tokens."""

    async def speak(saying: Saying) -> None:
        for token in tokens:
            await saying.say(token)
        await saying.end()

    return speak


class Upstream:
    """What stands behind the agent; tests change what it says."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As it was at first."""
        self.label = "RETRIEVAL"
        self.speak: Speak = say("It ", "is ", "8033.")
        self.status = 200  # of streamed answers
        self.is_silent = False  # where no streamed answer is asked for
        self.is_left = asyncio.Event()  # by whoever waited in silence
        self.asked: list[tuple[str, str]] = []  # kind of call, model
        self.prompts: list[list[dict[str, str]]] = []  # of streamed answers

    async def wait_for(self, kind: str) -> None:
        """Until that is asked for."""
        await until(lambda: kind in self.kinds, f"`{kind}` among what was asked for")

    @property
    def kinds(self) -> list[str]:
        """What was asked for, in order."""
        return [kind for kind, _ in self.asked]

    def prompt(self, number: int = -1) -> str:
        """All text of a prompt."""
        return "\n".join(one["content"] for one in self.prompts[number])

    async def play(self, exchange: Exchange) -> None:
        """One request."""
        kind, body = _find_kind(exchange)
        if not kind:
            await exchange.answer(b'{"version": {"number": "8.0.0"}}')
            return
        self.asked.append((kind, body.get("model", "")))
        if kind == SPEAK:
            self.prompts.append(body["messages"])
            await self._speak(exchange)
            return
        if self.is_silent:
            await exchange.wait_until_left()
            self.is_left.set()
            return
        await exchange.answer(json.dumps(self._answer(kind, body)).encode())

    async def _speak(self, exchange: Exchange) -> None:
        if self.status != 200:
            await exchange.answer(b'{"error": "secret words"}', self.status)
            return
        await exchange.start(NDJSON)
        await self.speak(Saying(exchange))

    def _answer(self, kind: str, body: Mapping[str, Any]) -> Any:
        if kind in (CLASSIFY, REWRITE):
            label = json.dumps({"label": self.label, "topic": "ports", "use_editor": False})
            return json.loads(_line(label if kind == CLASSIFY else "api port number", is_last=True))
        if kind == EMBED:
            return {"embeddings": [[0.6, 0.8]] * len(body["input"])}
        source = {"title": "Ports", "content": "The API port is 8033."}
        return {"hits": {"hits": [{"_id": "1", "_index": "docs", "_score": 0.9, "_source": source}]}}


def _find_kind(exchange: Exchange) -> tuple[str, dict[str, Any]]:
    received = exchange.received
    body: dict[str, Any] = received.json if received.body else {}
    if received.path == "/api/chat":
        if body["stream"]:
            return SPEAK, body
        return (CLASSIFY if b"CODE_GENERATION" in received.body else REWRITE), body
    if received.path == "/docs/_search":
        return (MEANING if "knn" in body else WORDS), body
    return (EMBED if received.path == "/api/embed" else ""), body


def _line(text: str, *, is_last: bool = False) -> bytes:
    said = {"model": "m", "message": {"role": "assistant", "content": text}, "done": is_last}
    return json.dumps(said).encode() + b"\n"


@asynccontextmanager
async def open_upstream() -> AsyncIterator[tuple[Upstream, Peer]]:
    """It, and the server in which it plays."""
    upstream = Upstream()
    async with open_peer(upstream.play) as peer:
        yield upstream, peer


def write_config(folder: Path, port: int, *, agent: str = "", more: str = "") -> Path:
    """A config file for an agent before that upstream; `agent` are more options of it, `more` other sections."""
    path = folder / "config.yaml"
    path.write_text(_CONFIG.format(port=port, folder=folder, agent=agent and f", {agent}", more=more))
    return path


# The agent.


class AgentProcess(ServerProcess):
    """`lockgate serve` with an agent."""

    def __init__(self, folder: Path, config: Path, **variables: str) -> None:
        given = {"LOCKGATE_SERVER__GRPC_PORT": "0", "LOCKGATE_DATA_DIR": str(folder), **variables}
        super().__init__(folder, ["--host", HOST, "--config-path", str(config)], given)
        self.grpc_port = 0

    def wait_for_start(self) -> None:
        """Until the agent's port listens too; what an agent needs takes a while to load."""
        wait_until(lambda: self._has_agent() or self.process.poll() is not None, "the start")
        super().wait_for_start()
        [address] = [one["address"] for one in self.events("listening") if one["port"] == "agent"]
        self.grpc_port = int(address.rpartition(":")[2])

    def _has_agent(self) -> bool:
        return "agent" in [one["port"] for one in self.events("listening")]


@asynccontextmanager
async def running_agent(folder: Path, config: Path, **variables: str) -> AsyncIterator[AgentProcess]:
    """A process that listens; at the end it must stop with status 0 and nothing on standard error."""
    server = AgentProcess(folder, config, **variables)
    try:
        await asyncio.to_thread(server.wait_for_start)
        yield server
    finally:
        status = await asyncio.to_thread(server.stop)
    said = server.error_path.read_text()
    assert (status, said) == (0, ""), f"{status}: {said}"


@asynccontextmanager
async def open_agent(folder: Path, config: Path, **environ: str) -> AsyncIterator[int]:
    """The same in this process: the agent's port alone."""
    settings = load_settings(config_path=config, flags={}, environ={"LOCKGATE_DATA_DIR": str(folder), **environ})
    async with open_gateway(settings) as gateway:
        readiness = Readiness(gateway.opened.needed)
        number = find_free_port()
        callers = Callers(settings.callers.values(), lambda: 0.0)  # for them no minute ever ends
        port = build_agent_port(gateway, readiness, Listener("agent", HOST, number, is_explicit=True), callers)
        await port.start()
        async with readiness.watch():
            serving = asyncio.create_task(port.serve(1.0))
            try:
                yield number
            finally:
                port.cut()
                await serving


def find_free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def taken_port() -> Any:
    """A port on which somebody else listens."""
    with socket.create_server((HOST, 0)) as listening:
        yield int(listening.getsockname()[1])


# Its clients.


@dataclass(frozen=True)
class Outcome:
    """All that a call gave."""

    messages: Sequence[AgentResponse]
    code: grpc.StatusCode
    details: str
    trailing: Mapping[str, str]

    @property
    def text(self) -> str:
        """The answer as clients put it together."""
        return "".join(one.text for one in self.messages if not one.is_final)

    @property
    def is_complete(self) -> bool:
        """Whether the last message says so."""
        return bool(self.messages) and self.messages[-1].is_final


class Client:
    """One channel to the agent. `metadata` go with every call."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.channel = channel
        self.metadata = tuple(metadata)

    def start(self, query: str, session_id: str = "", *, method: str = "AskAgentStream", **fields: Any) -> Any:
        """A call under way; `metadata` and `timeout` are the call's own, other fields the request's."""
        metadata = (*self.metadata, *fields.pop("metadata", ()))
        call = self.channel.unary_stream(
            f"/{SERVICE}/{method}",
            request_serializer=AgentRequest.SerializeToString,
            response_deserializer=AgentResponse.FromString,
        )
        timeout = fields.pop("timeout", None)
        return call(AgentRequest(query=query, session_id=session_id, **fields), metadata=metadata, timeout=timeout)

    async def ask(self, query: str, session_id: str = "", **fields: Any) -> Outcome:
        """A whole call, however it ends."""
        return await finish(self.start(query, session_id, **fields))

    async def evaluate(self) -> EvalResponse:
        """The agent's scores."""
        method = self.channel.unary_unary(
            f"/{SERVICE}/EvaluateRAG",
            request_serializer=EvalRequest.SerializeToString,
            response_deserializer=EvalResponse.FromString,
        )
        answer: EvalResponse = await method(EvalRequest(), metadata=self.metadata, timeout=HANG_S)
        return answer

    async def check_health(self, service: str = "") -> str:
        """What the standard service says."""
        method = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        answer = await method(HealthCheckRequest(service=service), timeout=HANG_S)
        return HealthCheckResponse.ServingStatus.Name(answer.status)

    def watch_health(self, service: str = "") -> Any:
        """The same, whenever it changes."""
        method = self.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        return method(HealthCheckRequest(service=service), timeout=HANG_S)


async def finish(call: Any) -> Outcome:
    """The rest of a call."""
    messages: list[AgentResponse] = []
    with suppress(grpc.aio.AioRpcError):  # it is told below
        while (message := await call.read()) is not grpc.aio.EOF:
            messages.append(message)
    trailing = {key: str(value) for key, value in await call.trailing_metadata() or ()}
    return Outcome(messages, await call.code(), await call.details() or "", trailing)


@asynccontextmanager
async def open_client(
    port: int, *metadata: tuple[str, str], tls: grpc.ChannelCredentials | None = None, grows: bool = True
) -> AsyncIterator[Client]:
    """A channel of its own, closed at the end. Unless it `grows`, its window stays as small as it is at first."""
    address = f"{HOST}:{port}"
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", int(grows))]
    opened = (
        grpc.aio.insecure_channel(address, options) if tls is None else grpc.aio.secure_channel(address, tls, options)
    )
    async with opened as channel:
        yield Client(channel, metadata)


class Stored(NamedTuple):
    """What a file holds of one session."""

    turns: list[tuple[str, str]]
    aborted: list[StoredTurn]


async def read_stored(folder: Path, session_id: str, caller: str = "anonymous") -> Stored:
    """What operators see of a session, read by a store of our own on the same file."""
    async with open_sqlite_sessions(folder / "sessions.db", StoreLimits()) as store:
        found = await store.read_session(SessionKey(caller, "default", session_id))
    turns = [(one.question, one.answer) for one in found if not one.aborted]
    return Stored(turns, [one for one in found if one.aborted])
