# SPDX-License-Identifier: Apache-2.0
"""Clients that ask one question through one of three doors, listen to the end or leave, and note what they heard.

The last message, `[DONE]` or the whole answer is the acknowledgement, whatever happens after it. Judges nothing.
"""

import asyncio
import json
import time

import grpc
import grpc.aio

from lockgate.protos.assistance_pb2 import AgentRequest, AgentResponse
from tests.server.http_client import Client, build_request, connect
from tests.soak.agent.forge import Server
from tests.soak.agent.talk import ACKNOWLEDGED, CALLERS, CUT, LATE, LEFT, REFUSED, Asked, Attempt
from tests.waits import HANG_S

WHOLE_DOOR, STREAM_DOOR, HTTP_DOOR = "AskAgent", "AskAgentStream", "HTTP"
DOORS = (WHOLE_DOOR, STREAM_DOOR, HTTP_DOOR)
_CHAT = "/v1/chat/completions"
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def ask(server: Server, asked: Asked, door: str, leave_s: float | None = None) -> Attempt:
    """Ask, and listen until the end or until it is time to leave."""
    attempt = Attempt(asked.number, server.number, time.monotonic(), door)
    listen = _listen_http if door == HTTP_DOOR else _listen_grpc
    try:
        async with asyncio.timeout(HANG_S if leave_s is None else leave_s):
            await listen(server, asked, attempt)
    except TimeoutError:
        _end(attempt, LATE if leave_s is None else LEFT)
    return attempt


def _end(attempt: Attempt, end: str, words: str = "") -> None:
    """The first end counts."""
    if not attempt.ended_at:
        attempt.end, attempt.ended_at, attempt.words = end, time.monotonic(), words


async def _listen_grpc(server: Server, asked: Asked, attempt: Attempt) -> None:
    assert server.channel is not None
    caller, session_id = asked.where
    method = server.channel.unary_stream(
        f"/brunix.AssistanceEngine/{attempt.door}",
        request_serializer=AgentRequest.SerializeToString,
        response_deserializer=AgentResponse.FromString,
    )
    request = AgentRequest(query=asked.question, session_id=session_id, query_type=asked.label)
    call = method(request, metadata=tuple(_headers(caller, asked).items()))
    try:
        async for message in call:
            if attempt.door == WHOLE_DOOR or not message.is_final:
                attempt.heard += message.text
            if message.is_final:
                _end(attempt, ACKNOWLEDGED)
    except grpc.aio.AioRpcError as error:
        _end(attempt, CUT if error.code() in _GONE else REFUSED, f"{error.code().name}: {error.details()}")
    finally:
        call.cancel()
    _end(attempt, CUT, "the stream ended")


async def _listen_http(server: Server, asked: Asked, attempt: Attempt) -> None:
    caller, session_id = asked.where
    body = {"model": "brunix", "stream": True, "session_id": session_id, "query_type": asked.label or None}
    body["messages"] = [{"role": "user", "content": asked.question}]
    headers = {"content-type": "application/json", **_headers(caller, asked)}
    try:
        async with connect(server.api_port, limit=2**20) as client:
            await client.send(build_request("POST", _CHAT, json.dumps(body).encode(), headers))
            await _read_events(client, attempt)
    except (OSError, EOFError, ValueError) as error:
        _end(attempt, CUT, type(error).__name__)


async def _read_events(client: Client, attempt: Attempt) -> None:
    head = await client.read_head()
    if head.status != 200:
        _end(attempt, REFUSED, f"status {head.status}")
        return
    rest = b""
    while not attempt.ended_at and (chunk := await client.read_chunk()):
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            _take_event(event.removeprefix(b"data: ").decode(), attempt)
    _end(attempt, CUT, "the stream ended")


def _take_event(text: str, attempt: Attempt) -> None:
    if text == "[DONE]":
        _end(attempt, ACKNOWLEDGED)
        return
    value = json.loads(text)
    if "error" in value:
        _end(attempt, REFUSED, text)
        return
    for choice in value["choices"]:
        attempt.heard += choice["delta"].get("content") or ""


def _headers(caller: str, asked: Asked) -> dict[str, str]:
    own = {"x-request-id": asked.request_id} if asked.request_id else {}
    return {"authorization": f"Bearer {CALLERS[caller]}", **own}
