# SPDX-License-Identifier: Apache-2.0
"""A gateway before a scripted OpenAI-compatible server, asked at both endpoints in every mode of their streams."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.contracts.http_peers import Exchange, Peer, Script, open_peer, stream
from tests.server.endings import ended_badly
from tests.server.gateways import CHAT, TEXT, ask, chat_body, chunk, events_of, gateway, sse
from tests.server.http_client import Answer

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole": {"output": {"whole": {}}},
    "reviewed": {"output": {"talk": {}}},
    "chunked": {"output": {"words": {}}},
    "both": {"output": {"words": {}, "whole": {}, "talk": {}}},
}
HOLDING = ("chunked", "both")
THREE = ("plain", "whole", "chunked")
STATUSES = [400, 401, 403, 404, 408, 409, 422, 429, 500, 502, 503, 504]
FIRST = "One is done. "


def config(port: int, extra: str = "", patience: int = 600) -> str:
    """Detectors of every kind, all of which run here."""
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {port}, request_timeout: {patience}}}}}
detectors:
  words: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [done]}}}}
  whole: {{embedded: keywords, chunker_id: whole_doc_chunker, options: {{keywords: [done]}}}}
  talk: {{type: text_chat, embedded: keywords, options: {{keywords: [done]}}}}
  about: {{type: text_generation, embedded: keywords, options: {{keywords: [done]}}}}
{extra}
"""


@asynccontextmanager
async def before(
    script: Script, extra: str = "", patience: int = 600, **environ: str
) -> AsyncIterator[tuple[int, Peer]]:
    """The port of the gateway, and the server behind it."""
    async with open_peer(script) as peer, gateway(config(peer.port, extra, patience), **environ) as port:
        yield port, peer


def request(path: str, mode: str, *, is_stream: bool) -> dict[str, Any]:
    """A request of a mode; what reviews chats is another detector for texts."""
    detectors = MODES[mode]
    if path == CHAT:
        return chat_body(is_stream, detectors=detectors)
    output: dict[str, Any] = {"about" if name == "talk" else name: {} for name in detectors.get("output", ())}
    return {"model": "m", "prompt": "Hello there", "stream": is_stream, "detectors": {"output": output}}


async def ask_all(port: int, *, is_stream: bool, modes: Iterable[str] = MODES) -> list[tuple[str, str, Answer]]:
    """Both endpoints in every mode, at once."""
    cases = [(path, mode) for path in (CHAT, TEXT) for mode in modes]
    answers = await asyncio.gather(*[ask(port, *case_of(path, mode, is_stream)) for path, mode in cases])
    return [(path, mode, answer) for (path, mode), answer in zip(cases, answers, strict=True)]


def case_of(path: str, mode: str, is_stream: bool) -> tuple[str, dict[str, Any]]:
    """What `ask` needs besides the port."""
    return path, request(path, mode, is_stream=is_stream)


def piece(path: str, text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A message of a stream on either endpoint."""
    if path == CHAT:
        return chunk(text, finish=finish, **more)
    return {
        **chunk(),
        "object": "text_completion",
        "choices": [{"index": 0, "text": text or "", "finish_reason": finish}],
    }


def speak(*texts: str, then: bytes = b"", cuts: int = 0) -> Script:
    """A stream on either endpoint: these texts, then other bytes; in packets of a few bytes, if told."""

    async def script(exchange: Exchange) -> None:
        path = CHAT if "chat" in exchange.received.path else TEXT
        body = sse(*[piece(path, text) for text in texts]) + then
        parts = [body[at : at + cuts] for at in range(0, len(body), cuts)] if cuts else [body]
        await stream(*parts)(exchange)

    return script


def said(path: str, events: list[Any]) -> str:
    """All text of the answer, whatever its choices look like."""
    choices = [choice for event in events for choice in event["choices"] if isinstance(choice, dict)]
    texts = [(choice.get("delta") or {}).get("content") if path == CHAT else choice.get("text") for choice in choices]
    return "".join(text for text in texts if isinstance(text, str))


def complete(mode: str) -> str:
    """What may have left when a stream breaks off behind FIRST and the beginning of another sentence."""
    return FIRST if mode in HOLDING else FIRST + "Two"


def check(answer: Answer, error: dict[str, Any], is_stream: bool) -> None:
    """The answer is this error and nothing else."""
    if is_stream:
        assert ended_badly(events_of(answer), error) == []
    else:
        assert (answer.status, answer.json()) == (error["code"], error)
