# SPDX-License-Identifier: Apache-2.0
"""Every surface on which a policy can stand before a model, asked in one way; what came back, in one shape."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import grpc

from lockgate.api.receipts import list_frames
from lockgate.gate.sse import SseParser
from tests.server.agent_houses import open_client
from tests.server.gateways import V1, V1_STREAM
from tests.server.http_client import Answer
from tests.server.policy_house import House, chat, post, text, verifies

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
AGGREGATOR, OLLAMA_CHAT, OLLAMA_TEXT = "/api/v1/chat", "/api/chat", "/api/generate"
AGENT = "agent/free"


class Heard(NamedTuple):
    """What a client got: all text, the receipt, the warnings, and the error if there was one."""

    text: str
    receipt: dict[str, Any] | None
    warnings: list[str]  # their codes, or their words where there are no codes
    error: str | None
    names: dict[str, str] | None
    body: bytes = b""

    def fits(self) -> bool:
        """Whether its receipt is that of what was received."""
        return verifies(self.body, self.receipt)


Ask = Callable[..., Awaitable[Heard]]
SURFACES: dict[str, Ask] = {}


def _surface(ask: Ask) -> Ask:
    SURFACES[ask.__name__] = ask
    return ask


def _hear(answer: Answer) -> Heard:
    """An answer over HTTP, whatever its shape."""
    kind = answer.headers["content-type"]
    error = None if answer.status == 200 else answer.body.decode()
    values: list[Any] = []
    if kind == "text/event-stream":
        for event in SseParser().feed(answer.body):
            if event.event == "error" or event.data.startswith('{"code"'):
                error = event.data
            elif event.data != "[DONE]":
                values.append(json.loads(event.data))
    else:
        values = [json.loads(line) for line in answer.body.splitlines()] if error is None else []
    error = next((json.dumps(value) for value in values if "error" in value), error)
    last = values[-1] if values else {}
    said = "".join([found for value in values for lane, found in list_frames(value) if not lane.endswith("name")])
    warnings = [one.get("type") or one["id"] for value in values for one in value.get("warnings", ())]
    assert ["receipt" in value for value in values[:-1]] == [False] * len(values[:-1])
    return Heard(said, last.get("receipt"), warnings, error, last.get("pseudonyms"), answer.body)


def _headers(mapping: bool) -> dict[str, str]:
    return {"x_lockgate_mapping": "true"} if mapping else {}


@_surface
async def openai_chat(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    return _hear(await post(house.port, CHAT, chat(policy, stream=is_stream), **_headers(mapping)))


@_surface
async def openai_text(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    return _hear(await post(house.port, TEXT, text(policy, stream=is_stream), **_headers(mapping)))


@_surface
async def guardrails_v1(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    body = {"model_id": "m", "inputs": "Hello", "guardrail_config": {"policy": policy}}
    return _hear(await post(house.port, V1_STREAM if is_stream else V1, body, **_headers(mapping)))


@_surface
async def aggregator(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    model = {"url": "lockgate:", "slug": "alone"}
    body: dict[str, Any] = {"prompt": "Hello", "model": model, "detectors": {"policy": policy}}
    return _hear(await post(house.port, AGGREGATOR + "/stream" * is_stream, body, **_headers(mapping)))


@_surface
async def agent_chat(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    body = chat(model=f"{AGENT}@{policy}", stream=is_stream)
    return _hear(await post(house.port, CHAT, body, **_headers(mapping)))


@_surface
async def model_text(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    body = text(model=f"main@{policy}", stream=is_stream)
    return _hear(await post(house.port, TEXT, body, **_headers(mapping)))


@_surface
async def ollama_chat(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    body = chat(model=f"{AGENT}@{policy}", stream=is_stream)
    return _hear(await post(house.port, OLLAMA_CHAT, body, **_headers(mapping)))


@_surface
async def ollama_text(house: House, policy: str, is_stream: bool, mapping: bool = False) -> Heard:
    body = text(model=f"{AGENT}@{policy}:latest", stream=is_stream)
    return _hear(await post(house.port, OLLAMA_TEXT, body, **_headers(mapping)))


async def grpc_agent(house: House, is_stream: bool, mapping: bool = False) -> Heard:
    """The agent `default` under its own policy: nobody can name another here."""
    metadata = [("x-lockgate-mapping", "true")] if mapping else []
    method = "AskAgentStream" if is_stream else "AskAgent"
    async with open_client(house.grpc_port, *metadata) as client:
        outcome = await client.ask("Hello", method=method)
    trailing: Mapping[str, str] = outcome.trailing
    receipt, names = trailing.get("lockgate-receipt"), trailing.get("lockgate-pseudonyms")
    return Heard(
        "".join(one.text for one in outcome.messages),
        None if receipt is None else json.loads(receipt),
        [one for one in trailing.get("lockgate-warnings", "").split("; ") if one],
        None if outcome.code is grpc.StatusCode.OK else f"{outcome.code.name} {outcome.details}",
        None if names is None else json.loads(names),
        b"".join([json.dumps({"text": one.text}).encode() + b"\n" for one in outcome.messages]),
    )
