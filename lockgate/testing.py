# SPDX-License-Identifier: Apache-2.0
"""Public fakes of the interfaces, and the contract tests that any implementation must pass."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from lockgate.errors import InvalidRequest, Rejected
from lockgate.gate.batcher import ChunkAligner, ChunkerInput
from lockgate.gate.values import Chunk, Detection, Document, Excerpt, Frame, Generation, Message
from lockgate.interfaces import Chunker, Detector, Headers
from lockgate.sessions.turns import AbortedTurn, Past, SessionEntry, SessionKey, StoredTurn, StoreLimits, Turn
from lockgate.store_tasks import Queues

Find = Callable[[str], Sequence[Detection]]

DEFAULT_LIMITS = StoreLimits()
CHUNKER_TEXTS = (
    "One. Two! Three?",
    "No terminator at all",
    "  leading and trailing  ",
    "Para one.\n\nPara two.\r\n\r\nPara three.",
    "中文句子。下一句！",
    "यह वाक्य है। दूसरा।",
    "مرحبا؟ نعم.",
    "👩‍👩‍👧 e\u0301clair. Done.",
)


class FixedChunker:
    """Cuts after every `size` characters."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls = 0

    async def cut(self, text: str) -> Sequence[Chunk]:
        """All chunks of a complete text."""
        self.calls += 1
        return [
            Chunk(at, min(at + self.size, len(text)), text[at : at + self.size])
            for at in range(0, len(text), self.size)
        ]

    async def stream(self, frames: AsyncIterator[Frame]) -> AsyncGenerator[Chunk, None]:
        """Chunks as soon as they are full."""
        self.calls += 1
        start, rest = 0, ""
        async for frame in frames:
            rest += frame.text
            while len(rest) > self.size:
                yield Chunk(start, start + self.size, rest[: self.size])
                start, rest = start + self.size, rest[self.size :]
        if rest:
            yield Chunk(start, start + len(rest), rest)


class ScriptedDetector:
    """Reports the findings of `find` after `delay_s`; records the texts that it read and how often it was cancelled."""

    def __init__(self, find: Find | None = None, *, delay_s: float = 0.0, error: Exception | None = None) -> None:
        self.lookbehind_chars = 0
        self.read_texts: list[str] = []
        self.cancelled = 0
        self._find = find or (lambda _text: ())
        self._delay_s = delay_s
        self._error = error

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "ScriptedDetector":
        """Refuses all parameters."""
        for name in params:
            raise InvalidRequest(f"unknown parameter `{name}`, this detector takes none")
        return self

    async def read(self, excerpts: Sequence[Excerpt]) -> Sequence[Sequence[Detection]]:
        """The scripted findings."""
        try:
            await asyncio.sleep(self._delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.read_texts += [excerpt.text for excerpt in excerpts]
        if self._error is not None:
            raise self._error
        return [self._find(excerpt.text) for excerpt in excerpts]


def find_word(word: str) -> Find:
    """A `find` that reports every occurrence of a word."""

    def find(text: str) -> list[Detection]:
        places = [at for at in range(len(text)) if text.startswith(word, at)]
        return [Detection(at, at + len(word), word, "Word", "test", 1.0) for at in places]

    return find


class ScriptedModel:
    """Yields the given pieces, one frame each; records whether it was stopped before its end."""

    def __init__(self, pieces: Sequence[str], *, pause_s: float = 0.0, error: Exception | None = None) -> None:
        self.was_stopped = False
        self.said = 0
        self._pieces = pieces
        self._pause_s = pause_s
        self._error = error

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """Yields the pieces, for any request."""
        try:
            for number, piece in enumerate(self._pieces):
                await asyncio.sleep(self._pause_s)
                self.said += 1
                yield Frame(number, piece)
        except (asyncio.CancelledError, GeneratorExit):
            self.was_stopped = True
            raise
        if self._error is not None:
            raise self._error


class ScriptedBackend:
    """Streams the given bursts of messages; answers whole calls with the first message. Records its requests."""

    def __init__(self, bursts: Sequence[Sequence[dict[str, Any]]], *, tokens: int = 0) -> None:
        self.requests: list[Generation] = []
        self.counted: list[str] = []
        self.was_stopped = False
        self._bursts = bursts
        self._tokens = tokens

    async def generate(self, request: Generation) -> dict[str, Any]:
        """The first message."""
        self.requests.append(request)
        await asyncio.sleep(0)
        return self._bursts[0][0]

    async def stream(self, request: Generation) -> AsyncGenerator[Sequence[dict[str, Any]], None]:
        """Yields the bursts."""
        self.requests.append(request)
        try:
            for burst in self._bursts:
                await asyncio.sleep(0)
                yield burst
        except (asyncio.CancelledError, GeneratorExit):
            self.was_stopped = True
            raise

    async def tokenize(self, model: str, text: str, headers: Headers) -> int:
        """The scripted number."""
        self.counted.append(text)
        return self._tokens


class ScriptedDataSource:
    """Returns the given documents, best first, after `delay_s`; records questions, and how often it was cancelled."""

    def __init__(self, documents: Sequence[Document], *, delay_s: float = 0.0, error: Exception | None = None) -> None:
        self.questions: list[str] = []
        self.cancelled = 0
        self._documents = documents
        self._delay_s = delay_s
        self._error = error

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """The documents, for any question."""
        self.questions.append(question)
        try:
            await asyncio.sleep(self._delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return sorted(self._documents, key=lambda one: -one.score)[:limit]


class MemorySessionStore:
    """Keeps sessions in memory: a SessionStore and SessionArchive that loses them when the process ends."""

    def __init__(self, limits: StoreLimits = DEFAULT_LIMITS, *, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._turns: dict[SessionKey, list[tuple[Turn, float]]] = {}
        self._aborted: dict[SessionKey, list[tuple[AbortedTurn, float]]] = {}
        self._queues = Queues[SessionKey]()
        self._held: set[SessionKey] = set()

    @asynccontextmanager
    async def hold(self, key: SessionKey) -> AsyncIterator[None]:
        """Locks the session, in the order of the calls."""
        async with self._queues.hold(key):
            self._held.add(key)
            try:
                yield
            finally:
                self._held.discard(key)

    async def load(self, key: SessionKey, limit: int, request_id: str = "") -> Past:
        """The latest turns and the one of this request id."""
        turns = [turn for turn, at in self._turns.get(key, ()) if at >= self._cutoff()]
        repeated = [turn for turn in turns if request_id and turn.request_id == request_id]
        return Past(tuple(turns[-limit:] if limit else ()), repeated[0] if repeated else None)

    async def append(self, key: SessionKey, turn: Turn) -> None:
        """Adds a turn, unless its request id is already stored."""
        if key not in self._held:
            raise RuntimeError("a turn was added to a session that is not held")
        kept = self._turns.setdefault(key, [])
        if not turn.request_id or all(one.request_id != turn.request_id for one, _ in kept):
            kept.append((turn, self._clock()))
            del kept[: -max(self._limits.max_messages // 2, 1)]

    async def abort(self, key: SessionKey, turn: AbortedTurn) -> None:
        """Stores an aborted turn."""
        self._aborted.setdefault(key, []).append((turn, self._clock()))

    async def list_sessions(self, caller: str | None = None) -> Sequence[SessionEntry]:
        """All sessions, the latest first."""
        entries = []
        for key in {**self._turns, **self._aborted}:
            stored = await self.read_session(key)
            if stored and caller in (None, key.caller):
                count = sum(not turn.aborted for turn in stored)
                entries.append(SessionEntry(key, count, stored[0].at, stored[-1].at))
        return sorted(entries, key=lambda entry: (-entry.last_at, entry.key))

    async def read_session(self, key: SessionKey) -> Sequence[StoredTurn]:
        """All turns of a session by time, also aborted ones."""
        stored = [
            StoredTurn(turn.question, turn.answer, turn.label, at, turn.layer, turn.confidence, turn.request_id)
            for turn, at in self._turns.get(key, ())
        ]
        stored += [
            StoredTurn(
                turn.question, turn.delivered, turn.label, at, "", None, turn.request_id, turn.reason or "aborted"
            )
            for turn, at in self._aborted.get(key, ())
        ]
        return sorted((turn for turn in stored if turn.at >= self._cutoff()), key=lambda turn: turn.at)

    async def delete_session(self, key: SessionKey) -> bool:
        """Removes a session; returns whether there was one."""
        return [self._turns.pop(key, None), self._aborted.pop(key, None)] != [None, None]

    def _cutoff(self) -> float:
        days = self._limits.retention_days
        return self._clock() - days * 86_400 if days is not None else 0.0


async def check_chunker(chunker: Chunker) -> None:
    """Checks a chunker's contract: any cut of the text gives the chunks of the whole, and they can be aligned."""
    for text in CHUNKER_TEXTS:
        whole = list(await chunker.cut(text))
        chunker_input = ChunkerInput()
        chunker_input.append(Frame(0, text))
        aligner = ChunkAligner("chunker under test", chunker_input)
        for chunk in whole:
            aligner.place(chunk)
        aligner.finish()
        for size in (1, 3, len(text)):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            frames = ScriptedModel(pieces).generate((), {})
            streamed = [chunk._replace(inputs=None) async for chunk in chunker.stream(frames)]
            assert streamed == whole, f"cut by {size}: {streamed} is not {whole}"


async def check_detector(detector: Detector, params: Mapping[str, Any]) -> None:
    """Checks a detector's contract: one list per excerpt, valid spans and texts, equal results for equal calls."""
    reading = detector.accept(params, ())
    excerpts = [Excerpt(text) for text in ("", *CHUNKER_TEXTS, "Mail ana@example.org, pay 4111 1111 1111 1111.")]
    first = await reading.read(excerpts)
    assert len(first) == len(excerpts)
    for excerpt, of_excerpt in zip(excerpts, first, strict=True):
        for found in of_excerpt:
            assert 0 <= found.start <= found.end <= len(excerpt.text)
            assert found.text == excerpt.text[found.start : found.end]
            assert 0.0 <= found.score <= 1.0
    assert await reading.read(excerpts) == first
    assert "`no_such_parameter`" in await _refusal_of(detector, {**params, "no_such_parameter": 1})


async def _refusal_of(detector: Detector, params: Mapping[str, Any]) -> str:
    """The error for the parameters: from `accept`, or from a service at the first `read`."""
    try:
        reading = detector.accept(params, ())
    except InvalidRequest as error:
        return error.message
    try:
        await reading.read([Excerpt("a")])
    except Rejected as error:
        return error.message
    return "an unknown parameter was accepted"
