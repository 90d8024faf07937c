# SPDX-License-Identifier: Apache-2.0
"""The services behind the server: a model and detectors, over raw sockets, playing plans and keeping books.

The books say what was asked and answered when, by the clock that the clients use too. Whether that was right is not
known here.
"""

import asyncio
import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from tests.soak.streams.plans import STREAM_HEADER, Plan
from tests.soak.streams.script import refuse, write_script
from tests.soak.streams.words import EYES, POISON

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)
_ANSWERS = {"u": 503, "i": 500, "a": 422}
_NOISE = {"start": 0, "end": 1, "text": "", "detection": "noise", "detection_type": "seen", "score": 0.2}


class Answered(NamedTuple):
    """A piece of text that a detector has answered for, and when."""

    detector: str
    text: str
    at: float


@dataclass
class Record:
    """What the services have seen of one stream."""

    model_requests: int = 0
    model_closed_at: float = 0.0
    model_done_at: float = 0.0
    last_asked_at: float = 0.0
    answers: list[Answered] = field(default_factory=list)


class Books:
    """The plans that may be played, what is known of each stream, and which connections are open."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}
        self.records: dict[str, Record] = {}
        self.open: set[HttpPeer] = set()
        self.complaints: list[str] = []

    def admit(self, plan: Plan) -> Record:
        """From now on the stream may be played."""
        self.plans[plan.id] = plan
        return self.records.setdefault(plan.id, Record())

    def forget(self, plan: Plan) -> None:
        """The stream is over: whoever still asks for it is wrong."""
        self.plans.pop(plan.id, None)
        self.records.pop(plan.id, None)

    def find(self, headers: dict[str, str]) -> tuple[Plan, Record] | None:
        """Whose request it is."""
        stream = headers.get(STREAM_HEADER, "")
        return (self.plans[stream], self.records[stream]) if stream in self.plans else None

    def busy(self) -> int:
        """Connections on which an answer is due or under way."""
        return sum(peer.is_busy for peer in self.open)


class Request(NamedTuple):
    """An HTTP request; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class HttpPeer(asyncio.Protocol):
    """One HTTP/1.1 connection: whole requests in, `answer` does the rest."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.is_busy = False
        self._buffer = b""
        self.transport = cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast("asyncio.Transport", transport)
        self.books.open.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone."""
        self.books.open.discard(self)
        self.is_busy = False

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        self._buffer += data
        request = self._take_request()
        if request is not None:
            if self.is_busy:
                self.books.complaints.append(f"a second request came during the first: {request.path}")
            self.is_busy = True
            self.answer(request)

    def answer(self, request: Request) -> None:
        """What to do with a request."""
        raise NotImplementedError

    def send(self, raw: bytes) -> None:
        """Bytes to the client, if it is still there."""
        if not self.transport.is_closing():
            self.transport.write(raw)

    def send_json(self, status: int, value: object) -> None:
        """A whole answer."""
        body = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.is_busy = False
        self.send(head.encode() + body)

    def reset(self) -> None:
        """Break the connection."""
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def _take_request(self) -> Request | None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        body, rest = _take_body(headers, rest)
        if body is None:
            return None
        self._buffer = rest
        return Request(first.split(" ")[1], headers, body)


def _take_body(headers: dict[str, str], rest: bytes) -> tuple[bytes | None, bytes]:
    if headers.get("transfer-encoding", "") != "chunked":
        size = int(headers.get("content-length", "0"))
        return (rest[:size], rest[size:]) if len(rest) >= size else (None, rest)
    parts = []
    while (line := re.match(rb"([0-9a-fA-F]+)\r\n", rest)) is not None:
        size = int(line[1], 16)
        if len(rest) < line.end() + size + 2:
            break
        parts.append(rest[line.end() : line.end() + size])
        rest = rest[line.end() + size + 2 :]
        if size == 0:
            return b"".join(parts), rest
    return None, rest


class ModelPeer(HttpPeer):
    """A model that says what the plan of the stream says, at the plan's pace."""

    _record: Record | None = None
    _playing: "asyncio.Task[None] | None" = None

    def answer(self, request: Request) -> None:
        """Play the plan."""
        known = self.books.find(request.headers)
        if known is None or request.path != "/v1/chat/completions":
            self.books.complaints.append(f"the model was asked for {request.path} by a stream that is over")
            self.is_busy = False
            self.send(refuse(404))
            return
        plan, self._record = known
        self._record.model_requests += 1
        body = json.loads(request.body)
        if body.get("stream") is not True or "detectors" in body or body.get("model") != plan.model:
            self.books.complaints.append(f"the model was asked in wrong words: {sorted(body)}")
        self._playing = asyncio.create_task(self._play(plan, self._record))

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone, perhaps in the middle."""
        if self._record is not None and not self._record.model_closed_at:
            self._record.model_closed_at = time.monotonic()
        if self._playing is not None:
            self._playing.cancel()
        super().connection_lost(error)

    async def _play(self, plan: Plan, record: Record) -> None:
        script = write_script(plan)
        for pause, packet in script.packets:
            if pause > 0.001:
                await asyncio.sleep(pause)
            self.send(packet)
        self.is_busy = False
        record.model_done_at = time.monotonic()
        self._record = None
        if script.end == "reset":
            self.reset()
        elif script.end == "close":
            self.transport.close()


class DetectorPeer(HttpPeer):
    """A detector whose findings are a pattern in the text, and which takes its time."""

    def __init__(self, books: Books, name: str) -> None:
        super().__init__(books)
        self._name = name
        self._timer: asyncio.TimerHandle | None = None

    def answer(self, request: Request) -> None:
        """After a while, what the eye sees."""
        known = self.books.find(request.headers)
        if known is None:
            self.books.complaints.append(f"{self._name} was asked by a stream that is over")
            self.send_json(404, {"code": 404, "message": "who?"})
            return
        plan, record = known
        record.last_asked_at = time.monotonic()
        if request.headers.get("detector-id") != self._name or request.path != "/api/v1/text/contents":
            self.books.complaints.append(f"{self._name} was called by another name, or at {request.path}")
        contents = json.loads(request.body)["contents"]
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_draw_delay(plan, self._name), self._reply, plan, record, contents)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)

    def _reply(self, plan: Plan, record: Record, contents: list[str]) -> None:
        poison = next(filter(None, map(POISON.search, contents)), None)
        if poison is not None and plan.fault is not None and plan.fault.service == self._name:
            self._fail(poison["way"])
            return
        now = time.monotonic()
        record.answers += [Answered(self._name, text, now) for text in contents]
        self.send_json(200, [describe(self._name, text) for text in contents])

    def _fail(self, way: str) -> None:
        if way in _ANSWERS:
            self.send_json(_ANSWERS[way], {"code": _ANSWERS[way], "message": "not today"})
        elif way == "n":
            self.send_json(200, b'[[{"start": "here"')
        else:
            self.reset()


def describe(name: str, text: str) -> list[dict[str, Any]]:
    """A detector's answer for one text: its findings, and one that is below every threshold."""
    found = [
        {"start": a, "end": b, "text": text[a:b], "detection": name, "detection_type": "seen", "score": 0.9}
        for a, b in EYES[name].find(text)
    ]
    return [*found, {**_NOISE, "text": text[:1]}]


def _draw_delay(plan: Plan, name: str) -> float:
    """Words come often, so they are read fast; one detector of each stream is slow."""
    longest = 0.004 if EYES[name].chunker == "word" else 0.03
    return random.uniform(0, longest * (3 if plan.slow == name else 1))


async def listen(make: Callable[[], HttpPeer]) -> tuple[asyncio.Server, int]:
    """A peer at a free port."""
    server = await asyncio.get_running_loop().create_server(make, HOST, 0)
    return server, server.sockets[0].getsockname()[1]
