# SPDX-License-Identifier: Apache-2.0
"""The services behind the server: a model that plays plans, and detectors that take their time, in any order.

The server may ask a detector for several streams at once, so nothing tells a detector whose text it reads: what it
finds follows from the text alone.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.soak.policies.marks import CODE, POISON, TAG
from tests.soak.policies.script import Packet
from tests.soak.policies.settings import REMOTE
from tests.soak.streams.peers import Books, HttpPeer, Request, listen

_LONGEST_S = {"codes": 0.03, "tags": 0.01}
_NOISE = {"start": 0, "end": 1, "text": "", "detection": "noise", "detection_type": "seen", "score": 0.2}
_WRONG: dict[str, dict[str, Any]] = {"e": {"start": 9}, "t": {"start": "here"}}


class Scripted(Protocol):
    """What a model must know of a plan."""

    @property
    def model(self) -> str: ...


@dataclass
class Record:
    """What the model has seen of one stream. `due_at`: when the packet had left that must end the stream."""

    packets: list[Packet]
    due: int = -1
    is_broken: bool = False
    requests: int = 0
    prompt: str = ""
    due_at: float = 0.0
    done_at: float = 0.0
    closed_at: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PolicyBooks(Books):
    """The streams that may be played, by model; and how many texts detectors were given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, Record] = {}
        self.asked = 0
        self.shared = 0
        self.pace = 1.0  # how slow detectors are: 0 answers at once

    def expect(self, plan: Scripted, packets: list[Packet], due: int = -1, *, is_broken: bool = False) -> Record:
        """From now on the stream may be played; a model that is broken breaks the connection at its end."""
        record = self.streams[plan.model] = Record(packets, due, is_broken)
        return record

    def dismiss(self, plan: Scripted) -> None:
        """The stream is over: whoever still asks for it is wrong."""
        self.streams.pop(plan.model, None)


class TalePeer(HttpPeer):
    """A model that says what the plan says; one whose packets never end speaks until it is left."""

    books: PolicyBooks
    _record: Record | None = None
    _playing: "asyncio.Task[None] | None" = None

    def answer(self, request: Request) -> None:
        """Play the plan."""
        body = json.loads(request.body)
        self._record = self.books.streams.get(body.get("model"))
        if self._record is None or "detectors" in body or body.get("stream") is not True:
            self.books.complaints.append(f"the model was asked in wrong words, or for {body.get('model')}")
            self.send_json(404, {"error": {"message": "who?"}})
            return
        self._record.requests += 1
        self._record.prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        self._playing = asyncio.create_task(self._play(self._record))

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone, perhaps in the middle."""
        if self._record is not None:
            self._record.closed_at = time.monotonic()
            self._record.ended.set()
        if self._playing is not None:
            self._playing.cancel()
        super().connection_lost(error)

    async def _play(self, record: Record) -> None:
        for number, packet in enumerate(record.packets):
            if packet.pause_s > 0.001:
                await asyncio.sleep(packet.pause_s)
            self.send(packet.raw)
            if number == record.due:
                record.due_at = time.monotonic()
        if record.due >= 0:
            return  # it has no more to say and does not end either
        self.is_busy = False
        self._record = None
        record.done_at = time.monotonic()
        record.ended.set()
        if record.is_broken:
            self.reset()


class EyePeer(HttpPeer):
    """A detector with one eye."""

    books: PolicyBooks

    def __init__(self, books: PolicyBooks, name: str) -> None:
        super().__init__(books)
        self._name = name
        self._timer: asyncio.TimerHandle | None = None

    def answer(self, request: Request) -> None:
        """After a while, what the eye sees."""
        contents = json.loads(request.body)["contents"]
        self.books.asked += 1
        self.books.shared += len(contents) > 1
        if request.headers.get("detector-id") != self._name:
            self.books.complaints.append(f"{self._name} was called {request.headers.get('detector-id')}")
        delay_s = random.uniform(0, _LONGEST_S[self._name] * self.books.pace)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._reply, contents)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)

    def _reply(self, contents: list[str]) -> None:
        found = [[*_SEE[self._name](text), {**_NOISE, "text": text[:1]}] for text in contents]
        poisons = [POISON.search(text) for text in contents if self._name == "codes"]
        ways = [poison[1] if poison else "" for poison in poisons]
        for place, way in enumerate(ways):  # in these only the answer for its own text is wrong
            if way in _WRONG:
                found[place] = [{**_NOISE, **_WRONG[way]}]
        if "u" in ways:
            self.send_json(503, {"code": 503, "message": "not today"})
        else:
            told = found[:-1] if "c" in ways else found  # nothing is said about one of the texts
            self.send_json(200, b'[[{"start": "here"' if "n" in ways else told)


def see_codes(text: str) -> list[dict[str, Any]]:
    """The codes of a text."""
    return [_found(text, *one.span(), "Codename") for one in CODE.finditer(text)]


def see_tags(text: str) -> list[dict[str, Any]]:
    """The tags of a text and their tails, which touch."""
    spans = [(one.span(number), kind) for one in TAG.finditer(text) for number, kind in ((1, "Tag"), (2, "Tail"))]
    found = [_found(text, *span, kind) for span, kind in spans if span[0] < span[1]]
    random.shuffle(found)
    return found


_SEE: dict[str, Callable[[str], list[dict[str, Any]]]] = {"codes": see_codes, "tags": see_tags}


def _found(text: str, start: int, end: int, kind: str) -> dict[str, Any]:
    evidence = [{"name": "word", "value": text[start:end], "score": 0.9, "evidence": []}]
    told = {"start": start, "end": end, "text": text[start:end], "detection": kind, "detection_type": "seen"}
    return told | {"score": 0.9, "evidence": evidence, "metadata": {"word": text[start:end]}}


@asynccontextmanager
async def open_services() -> AsyncIterator[tuple[PolicyBooks, dict[str, int]]]:
    """All services, listening, and their ports; at the end they are closed."""
    books = PolicyBooks()
    makers: dict[str, Callable[[], HttpPeer]] = {"model": lambda: TalePeer(books)}
    for name in REMOTE:
        makers[name] = lambda name=name: EyePeer(books, name)  # type: ignore[misc]
    servers, ports = [], {}
    try:
        for name, make in makers.items():
            server, ports[name] = await listen(make)
            servers.append(server)
        yield books, ports
    finally:
        for server in servers:
            server.close()
        for peer in list(books.open):
            peer.transport.abort()
