# SPDX-License-Identifier: Apache-2.0
"""The gateways of the table, in this process over real sockets: one with every backend and policy, and the agents'."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from lockgate.api.grpc.agent import build_agent_port
from lockgate.config.load import load_settings
from lockgate.config.settings import Listener, Settings
from lockgate.gateway import Gateway, open_gateway
from lockgate.server.health import Readiness
from lockgate.server.ports import build_api_app
from tests.server.agent_houses import Client, find_free_port, open_client
from tests.server.served_app import served
from tests.surfaces.cells import CELLS, UNGROUNDED, Cell
from tests.surfaces.upstreams import AGENT_MODEL, Ports, Upstreams, open_upstreams
from tests.waits import HANG_S

HOST = "127.0.0.1"
WEAK, _WEAK_POLICY = "weak", {"mode": "shadow", "lanes": [], "fallback": "[weak]"}
OPENAI_MODEL, OLLAMA_MODEL, AGENT, SOURCE = "openai-model", "ollama-model", "free", "docs"


def build_config(ports: Ports) -> dict[str, Any]:
    """The config file of the gateway for all surfaces over HTTP, where a request names its policy."""
    url = f"http://{HOST}:{ports.model}"
    config = _build_agent_parts(ports, CELLS)
    config["models"] |= {
        OPENAI_MODEL: {"openai": {"url": f"{url}/v1", "model": "m"}, "expose": True},
        OLLAMA_MODEL: {"ollama": {"url": url, "model": "m"}, "expose": True},
    }
    return {
        **config,
        "openai": {"service": {"hostname": HOST, "port": ports.model}},
        "generation": {"provider": "nlp", "service": {"hostname": HOST, "port": ports.generation}},
        "agents": {AGENT: {"main": AGENT_MODEL, "sources": [SOURCE]}},
        "aggregator": {"model_streaming": True},
    }


def build_agent_config(ports: Ports, cell: Cell) -> dict[str, Any]:
    """The config file of an agent on the gRPC port, where its policy is fixed."""
    agent = {"main": AGENT_MODEL, "sources": [SOURCE], "policy": cell.name}
    return {**_build_agent_parts(ports, [cell]), "agents": {"default": agent}}


def _build_agent_parts(ports: Ports, cells: Sequence[Cell]) -> dict[str, Any]:
    space = {"url": f"http://{HOST}:{ports.source}", "slug": "docs"}
    used = {cell.find_detector(section) for cell in cells for section in cell.sections}
    detectors = _build_detectors(ports)
    return {
        "models": {AGENT_MODEL: {"ollama": {"url": f"http://{HOST}:{ports.model}", "model": AGENT_MODEL}}},
        "sources": {SOURCE: {"syftai_space": space, "expose": True}},
        "detectors": {name: detectors[name] for name in sorted(used)},
        "policies": {cell.name: cell.build_policy() for cell in cells},
        "limits": {"request_timeout_s": HANG_S / 2},  # where a part waits for another one that is not asked
    }


def _build_detectors(ports: Ports) -> dict[str, Any]:
    mail: dict[str, Any] = {"embedded": "pii", "chunker_id": "sentence"}
    common = {"type": "text_contents", "chunker_id": "sentence", "default_threshold": 0.5}
    remote = {name: {**common, "service": {"hostname": HOST, "port": port}} for name, port in ports.detectors.items()}
    grounds = {f"{name}_ground": {**one, "type": "text_context_doc"} for name, one in remote.items()}
    ground: dict[str, Any] = {"embedded": "keywords", "type": "text_context_doc", "options": {"keywords": [UNGROUNDED]}}
    return (
        {**dict.fromkeys(("question_mail", "document_mail", "answer_mail"), mail), "ground": ground} | remote | grounds
    )


def load_config(folder: Path, name: str, config: Mapping[str, Any], **environ: str) -> Settings:
    """The settings of a config file, each with its own data."""
    path = folder / name / "config.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(config))
    return load_settings(config_path=path, flags={}, environ={"LOCKGATE_DATA_DIR": str(path.parent), **environ})


@asynccontextmanager
async def open_agent_client(gateway: Gateway) -> AsyncIterator[Client]:
    """A client of the agent's gRPC port."""
    listener = Listener("agent", HOST, find_free_port(), is_explicit=True)
    agent = build_agent_port(gateway, Readiness({}), listener)
    await agent.start()
    serving = asyncio.ensure_future(agent.serve(1))
    try:
        async with open_client(listener.port, ("x-lockgate-mapping", "true")) as client:
            yield client
    finally:
        agent.cut()
        await serving


class Table:
    """The gateway for all surfaces over HTTP, and one more for each policy of the agent on the gRPC port."""

    def __init__(self, folder: Path, stack: AsyncExitStack, upstreams: Upstreams, ports: Ports) -> None:
        self.upstreams = upstreams
        self._folder = folder
        self._stack = stack
        self._ports = ports
        self._http_port = 0
        self._agents: dict[str, Client] = {}

    async def find_http_port(self) -> int:
        """Of the gateway with all policies."""
        if not self._http_port:
            settings = self._load_http(build_config(self._ports))
            gateway = await self._stack.enter_async_context(open_gateway(settings))
            self._http_port = await self._stack.enter_async_context(served(build_api_app(gateway)))
        return self._http_port

    async def find_agent(self, cell: Cell) -> Client:
        """A client of the agent under the policy of a cell."""
        if cell.name not in self._agents:
            settings = load_config(self._folder, cell.name, self._build_agent(cell))
            gateway = await self._stack.enter_async_context(open_gateway(settings))
            self._agents[cell.name] = await self._stack.enter_async_context(open_agent_client(gateway))
        return self._agents[cell.name]

    def _load_http(self, config: dict[str, Any]) -> Settings:
        return load_config(self._folder, "http", config)

    def _build_agent(self, cell: Cell) -> dict[str, Any]:
        return build_agent_config(self._ports, cell)


class RequiredTable(Table):
    """The same, where each policy is required of a caller by its name, and requests name one that does nothing."""

    def _load_http(self, config: dict[str, Any]) -> Settings:
        names = dict.fromkeys(cell.name for cell in CELLS)
        callers = {name: {"key_env": find_key_variable(name), "required_policy": name} for name in names}
        policies = config["policies"] | {WEAK: _WEAK_POLICY}
        keys = {find_key_variable(name): name for name in names}
        return load_config(self._folder, "http", config | {"callers": callers, "policies": policies}, **keys)

    def _build_agent(self, cell: Cell) -> dict[str, Any]:
        config = build_agent_config(self._ports, cell)
        config["agents"]["default"]["policy"] = WEAK
        policies = config["policies"] | {WEAK: _WEAK_POLICY}
        return config | {"policies": policies, "required_policies": {"/": cell.name}}


def find_key_variable(name: str) -> str:
    """The variable with the key of the caller of that name; the key is the name."""
    return f"KEY_{name}".replace("-", "_").upper()


@asynccontextmanager
async def open_table(folder: Path, build: type[Table] = Table) -> AsyncIterator[Table]:
    """The upstreams, and gateways before them as they are needed."""
    upstreams = Upstreams()
    async with open_upstreams(upstreams) as ports, AsyncExitStack() as stack:
        yield build(folder, stack, upstreams, ports)
