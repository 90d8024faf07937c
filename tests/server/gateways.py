# SPDX-License-Identifier: Apache-2.0
"""A gateway in this process, from a config file's text, over a real socket; and clients of its answers."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lockgate.config.load import load_settings
from lockgate.gate.sse import SseParser
from lockgate.gateway import open_gateway
from lockgate.server.app import App
from lockgate.server.ports import build_api_app
from lockgate.server.routes import health_routes
from tests.server.http_client import JSON_TYPE, Answer, build_request, call, connect
from tests.server.served_app import served

CHAT = "/api/v2/chat/completions-detection"
TEXT = "/api/v2/text/completions-detection"
V1 = "/api/v1/task/classification-with-text-generation"
V1_STREAM = "/api/v1/task/server-streaming-classification-with-text-generation"
GENERIC = {"code": 500, "details": "unexpected error occurred while processing request"}
Serve = Callable[[App], AbstractAsyncContextManager[int]]
GROWING_S = (0.3, 3.0, 30.0)  # limits of time to try until everything that must come before them does
BASE = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


@asynccontextmanager
async def gateway(text: str, serve: Serve = served, /, *, port_of: str = "api", **environ: str) -> AsyncIterator[int]:
    """The port of a gateway with these settings; `serve` is the HTTP server that it runs on."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "config.yaml"
        path.write_text(text, encoding="utf-8")
        settings = load_settings(config_path=path, flags={}, environ=environ)
        async with open_gateway(settings) as opened:
            timeout_s = settings.limits.request_timeout_s
            is_api = port_of == "api"
            app = build_api_app(opened) if is_api else App(health_routes(opened), max_streams=100, timeout_s=timeout_s)
            async with serve(app) as port:
                yield port


async def ask(port: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
    """One JSON request."""
    return await call(port, path, json.dumps(body).encode(), headers={**JSON_TYPE, **(headers or {})})


async def listen(
    port: int,
    path: str,
    body: Mapping[str, Any],
    hear: Callable[[Answer], object],
    headers: Mapping[str, str] = JSON_TYPE,
) -> Answer:
    """The same for an answer in parts: whenever another has come, `hear` gets all that has come so far."""
    async with connect(port) as client:
        await client.send(build_request("POST", path, json.dumps(body).encode(), headers))
        answer = await client.read_head()
        while part := await client.read_chunk():
            answer = answer._replace(body=answer.body + part)
            hear(answer)
        return answer


def events_of(answer: Answer) -> list[Any]:
    """The events of an answer: values, `[DONE]`, and errors as {"$error": value}."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "text/event-stream"
    events: list[Any] = []
    for event in SseParser().feed(answer.body):
        value = event.data if event.data == "[DONE]" else json.loads(event.data)
        events.append({"$error": value} if event.event == "error" else value)
    return events


def text_in(events: list[Any], index: int = 0) -> str:
    """The text of a choice of a chat."""
    choices = [choice for event in events if isinstance(event, dict) for choice in event.get("choices", ())]
    return "".join(one["delta"].get("content") or "" for one in choices if one["index"] == index)


def results_in(events: list[Any]) -> list[dict[str, Any]]:
    """Every finding of an answer."""
    entries = [
        entry for event in events if isinstance(event, dict) for entry in event.get("detections", {}).get("output", ())
    ]
    return [result for entry in entries for result in entry["results"]]


def chunk(text: str | None = None, index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """An upstream message of a chat."""
    parts = ({"content": text} if text is not None else {}) | delta
    return {**BASE, "choices": [{"index": index, "delta": parts, "logprobs": None, "finish_reason": finish}]}


def sse(*messages: Any) -> bytes:
    """Messages as bytes of a stream."""
    return b"".join(
        b"data: %b\n\n" % (one.encode() if isinstance(one, str) else json.dumps(one).encode()) for one in messages
    )


def chat_body(stream: bool = True, **more: Any) -> dict[str, Any]:
    """A request of a chat."""
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hello there"}], **more}


__all__ = ["build_request", "connect"]
