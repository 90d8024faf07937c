# SPDX-License-Identifier: Apache-2.0
"""The sources and models of the plans, over raw sockets, with every way to fail; they keep books of who asked what.

Whether that was right is not known here.
"""

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

from tests.soak.grounded.plans import USAGE, ChatPlan, Endpoint, Source, Speaker, title_of
from tests.soak.streams.peers import Books, HttpPeer, Request

_PATH = re.compile(r"/api/v1/endpoints/([\w-]+)/query")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DRIP_S = 0.05
_ENDLESS = 524_288  # of a packet: 64 reach the bound of a reply
_WRONG = (b"[1, 2]", b'"no"', b'{"references"', b"not json")


@dataclass
class Call:
    """What one endpoint was asked, and when that was over: answered, or the caller gone."""

    slug: str
    authorization: str | None
    fee: str | None
    correlation_id: str
    body: dict[str, Any]
    came_at: float
    ended_at: float = 0.0


@dataclass
class Known:
    """An endpoint that may be asked, and where its calls are noted."""

    plan: ChatPlan
    endpoint: Endpoint
    calls: list[Call]


class SpaceBooks(Books):
    """Who may be asked, and what is known of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoints: dict[str, Known] = {}

    def expect(self, plan: ChatPlan) -> list[Call]:
        """From now on the request may be played; its calls will be noted in the list."""
        calls: list[Call] = []
        for endpoint in plan.endpoints():
            self.endpoints[endpoint.slug] = Known(plan, endpoint, calls)
        return calls

    def dismiss(self, plan: ChatPlan) -> None:
        """The request is over: whoever still asks for it is wrong."""
        for endpoint in plan.endpoints():
            known = self.endpoints.get(endpoint.slug)
            if known is not None and known.plan is plan:
                del self.endpoints[endpoint.slug]


@dataclass(frozen=True)
class Script:
    """Packets, each with the pause before it; then the connection is kept, closed, reset, or hangs."""

    packets: list[tuple[float, bytes]] = field(default_factory=list)
    end: str = "keep"


class SpacePeer(HttpPeer):
    """One connection to the endpoints."""

    books: SpaceBooks
    _call: Call | None = None
    _playing: "asyncio.Task[None] | None" = None

    def answer(self, request: Request) -> None:
        """Play the endpoint's part."""
        found = _PATH.fullmatch(request.path)
        known = self.books.endpoints.get(found[1]) if found else None
        if known is None:
            self.books.complaints.append(f"somebody asked for {request.path}")
            self.send_json(404, {"detail": "who?"})
            return
        body = json.loads(request.body)
        headers = request.headers
        call = Call(
            known.endpoint.slug,
            headers.get("authorization"),
            body.get("transaction_token"),
            headers.get("x-correlation-id", ""),
            body,
            time.monotonic(),
        )
        known.calls.append(call)
        self._call = call
        self._playing = asyncio.create_task(self._play(write_script(known.plan, known.endpoint), call))

    def connection_lost(self, error: Exception | None) -> None:
        """The caller has gone, perhaps in the middle."""
        if self._call is not None and not self._call.ended_at:
            self._call.ended_at = time.monotonic()
        if self._playing is not None:
            self._playing.cancel()
        super().connection_lost(error)

    async def _play(self, script: Script, call: Call) -> None:
        for pause_s, packet in script.packets:
            if pause_s > 0.001:
                await asyncio.sleep(pause_s)
            self.send(packet)
        if script.end == "hang":
            return
        call.ended_at = time.monotonic()
        self.is_busy = False
        if script.end == "reset":
            self.reset()
        elif script.end == "close":
            self.transport.close()


def write_script(plan: ChatPlan, endpoint: Endpoint) -> Script:
    """What an endpoint sends."""
    rng = random.Random(f"{plan.seed}/{endpoint.slug}")
    if isinstance(endpoint, Source):
        body = json.dumps(_build_documents(endpoint)).encode()
        return _fail(endpoint, body, rng) if endpoint.way else _say_whole(body, endpoint, is_cut=endpoint.is_cut)
    if endpoint.is_stream and endpoint.way in ("", "closed", "reset", "truncated", "hang"):
        return _say_in_pieces(endpoint, rng)
    message = {"role": "assistant", "content": endpoint.text}
    body = json.dumps({"summary": {"message": message, "usage": USAGE}}).encode()
    return _fail(endpoint, body, rng) if endpoint.way else _say_whole(body, endpoint, is_cut=rng.random() < 0.3)


def _build_documents(source: Source) -> dict[str, Any]:
    documents = [
        {"content": text, "metadata": {"title": title_of(source, place)}, "similarity_score": 0.9 - 0.1 * place}
        for place, text in enumerate(source.texts)
    ]
    return {"summary": None, "references": {"documents": documents}}


def _say_whole(body: bytes, endpoint: Endpoint, *, is_cut: bool) -> Script:
    whole = _HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    if not is_cut:
        return Script([(endpoint.delay_s, whole)])
    half = len(whole) // 2
    return Script([(endpoint.delay_s / 2, whole[:half]), (endpoint.delay_s / 2, whole[half:])])


def _say_in_pieces(speaker: Speaker, rng: random.Random) -> Script:
    """Events, each written in one of the ways that are known; up to the fault, if there is one."""
    pieces = speaker.pieces[: speaker.fails_at] if speaker.way else speaker.pieces
    events = [json.dumps(_write_piece(piece, rng.randrange(4))) for piece in pieces]
    if not speaker.way:
        events += [json.dumps({"choices": [], "usage": USAGE}), "[DONE]"]
    lines = [f"data: {event}\n\n".encode() for event in events]
    pause_s = speaker.delay_s / (len(lines) + 1)
    packets = [(pause_s, _EVENTS), *[(pause_s, b"%x\r\n%b\r\n" % (len(line), line)) for line in lines]]
    if not speaker.way:
        return Script([*packets, (0.0, b"0\r\n\r\n")])
    return Script(packets, {"reset": "reset", "hang": "hang"}.get(speaker.way, "close"))


def _write_piece(piece: str, kind: int) -> dict[str, Any]:
    if kind == 0:
        return {"summary": {"message": {"content": piece}}}
    if kind == 1:
        return {"choices": [{"index": 0, "delta": {"content": piece}}]}
    return {"content": piece} if kind == 2 else {"text": piece}


def _fail(endpoint: Endpoint, body: bytes, rng: random.Random) -> Script:
    """The way in which an endpoint does not answer; one that cannot be reached is never here."""
    delay_s = endpoint.delay_s
    whole = _HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    match endpoint.way:
        case "reset" | "closed":
            return Script([(delay_s, b"")], "reset" if endpoint.way == "reset" else "close")
        case "garbage":
            return Script([(delay_s, rng.randbytes(60) + b"\r\n\r\n")], "close")
        case "truncated":
            return Script([(delay_s, whole[: -len(body) // 2])], "close")
        case "drip":
            start = _HEAD + b"content-length: 1000000\r\n\r\n"
            return Script([(delay_s, start), *[(_DRIP_S, b" ")] * 10_000], "hang")
        case "hang":
            return Script([], "hang")
        case "redirect":
            place = f"location: /api/v1/endpoints/{endpoint.slug}-elsewhere/query\r\n".encode()
            return Script([(delay_s, b"HTTP/1.1 307 Elsewhere\r\n" + place + b"content-length: 0\r\n\r\n")])
        case "endless":
            start = _HEAD + b"transfer-encoding: chunked\r\n\r\n"
            chunk = b"%x\r\n%b\r\n" % (_ENDLESS, b" " * _ENDLESS)
            return Script([(delay_s, start), *[(0.02, chunk)] * 10_000], "hang")
        case "wrong JSON":
            wrong = rng.choice(_WRONG)
            return Script([(delay_s, _HEAD + b"content-length: %d\r\n\r\n" % len(wrong) + wrong)])
        case status:
            words = b'{"detail": "not today"}'
            head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\ncontent-length: {len(words)}\r\n\r\n"
            return Script([(delay_s, head.encode() + words)])
