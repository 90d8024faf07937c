# SPDX-License-Identifier: Apache-2.0
"""SyftAI-Spaces on real sockets, scripted by the test, and a client that reads events as they come."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from lockgate.gate.sse import SseParser

CHAT = "/api/v1/chat"
STREAM = "/api/v1/chat/stream"
Say = Callable[[str], Awaitable[None]]
Script = Callable[[Say], Awaitable[None]]


class Asked(NamedTuple):
    """One request that a space got."""

    slug: str
    body: dict[str, Any]
    headers: Mapping[str, str]


class Space:
    """One server: endpoints by slug. A list is documents, a text a whole answer, a coroutine function a stream."""

    def __init__(self, endpoints: Mapping[str, Sequence[tuple[str, str, float]] | str | Script]) -> None:
        self.endpoints = endpoints
        self.asked: list[Asked] = []
        self.open_calls = 0
        self.is_idle = asyncio.Event()
        self.url = ""

    def prompt(self) -> str:
        """What the model was asked last, without the rules that come first."""
        return str(self.asked[-1].body["messages"][1]["content"]).partition("\n<documents>\n")[2]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        slug = request.match_info["slug"]
        self.asked.append(Asked(slug, await request.json(), request.headers))
        self.open_calls += 1
        self.is_idle.clear()
        try:
            return await self._play(self.endpoints[slug], request)
        finally:
            self.open_calls -= 1
            if not self.open_calls:
                self.is_idle.set()

    async def _play(self, played: Any, request: web.Request) -> web.StreamResponse:
        if callable(played):
            return await _stream(played, request)
        if isinstance(played, str):
            message = {"role": "assistant", "content": played}
            usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            return web.json_response({"summary": {"message": message, "usage": usage}, "references": None})
        documents = [
            {"content": text, "metadata": {"title": title}, "similarity_score": score} for title, text, score in played
        ]
        return web.json_response({"summary": None, "references": {"documents": documents}})


async def _stream(script: Script, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)

    async def say(text: str) -> None:
        await response.write(b"data: %b\n\n" % json.dumps({"content": text}).encode())

    with suppress(ConnectionError):  # whoever listened has left
        await script(say)
        await response.write(b"data: [DONE]\n\n")
    return response


@asynccontextmanager
async def open_space(endpoints: Mapping[str, Any]) -> AsyncIterator[Space]:
    """A space that listens; a client that leaves ends its call."""
    space = Space(endpoints)
    app = web.Application()
    app.router.add_post("/api/v1/endpoints/{slug}/query", space.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    space.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield space
    finally:
        await runner.cleanup()


def ref(space: Space, slug: str, owner: str = "al") -> dict[str, str]:
    """An endpoint as a request names it."""
    return {"url": space.url, "slug": slug, "owner_username": owner}


def chat_request(space: Space, *sources: str, **more: Any) -> dict[str, Any]:
    """A question for the model `llm` of that space, from these of its sources."""
    named = [ref(space, slug) for slug in sources]
    return {"prompt": "How long does the kettle take?", "model": ref(space, "llm", "mo"), "data_sources": named, **more}


async def ask_chat(port: int, body: Mapping[str, Any], **headers: str) -> tuple[int, Any]:
    """The status and the answer of a whole request."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{CHAT}", json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def read_events(port: int, body: Mapping[str, Any]) -> AsyncGenerator[tuple[str, Any], None]:
    """The events of a stream as they come; closing it leaves."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{STREAM}", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        parser = SseParser()
        async for packet in response.content.iter_any():
            for event in parser.feed(packet):
                yield event.event, json.loads(event.data)


async def collect(port: int, body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """All events of a stream."""
    return [event async for event in read_events(port, body)]


def said_in(events: Sequence[tuple[str, Any]]) -> str:
    """The answer."""
    return "".join([event["content"] for name, event in events if name == "token"])
