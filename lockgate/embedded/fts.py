# SPDX-License-Identifier: Apache-2.0
"""FtsDataSource: the embedded index, searched by words (SQLite full text) and by meaning (vectors) at once.

Decides what a search by words looks for, which vectors count, and that a search which fails does not take the other's
passages away. Everything that touches the file runs in threads of its own. What others put into the file is found at
the next search. Refuses to know how ranks become one order (lockgate.core.fusion) and where passages come from.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from lockgate.core.fusion import LEG_LIMIT, Query
from lockgate.core.hits import MEANING, WORDS, FoundByMeaning, FoundByWords, Hit, name_model, rank_hits
from lockgate.core.passages import DocumentEntry, IndexedDocument, Passage
from lockgate.core.search_words import find_search_words
from lockgate.core.values import Document
from lockgate.embedded.index_file import IndexFile, open_index_file
from lockgate.embedded.vector_table import Nearness, VectorTable, check_library, pack_vectors
from lockgate.errors import TimedOut, Unavailable, UpstreamError
from lockgate.interfaces import Embedder
from lockgate.telemetry import Event, log_event, name_causes

LEG_TIMEOUT_S = 10.0
THREADS = 4
NO_EMBEDDER = "there is no embedder: run `lockgate setup`"
NO_VECTORS = "no passage has a vector of this embedder: run `lockgate index add` again"
NO_FILE = "the index has no documents yet: run `lockgate index add`"
_FAILED = "Search failed: "
T = TypeVar("T")


class _NoVectors(Unavailable):
    """Words of ours, fit for the log."""


class _Near(NamedTuple):
    """What the search by meaning found, and how near any passage is."""

    hits: list[Hit]
    nearness: Nearness


class FtsDataSource:
    """One index file. A file that does not exist is an index without documents."""

    def __init__(self, files: "_Connections", embedder: Embedder | None, leg_timeout_s: float = LEG_TIMEOUT_S) -> None:
        self._files = files
        self._embedder = embedder
        self._leg_timeout_s = leg_timeout_s
        self.model = name_model(embedder)
        self._vectors = VectorTable(self.model)
        self._told: dict[str, str] = {}

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """The best passages for a question whose words are its keywords."""
        return await self.search_both(Query(question, question), limit)

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """The best passages of both searches; raises UpstreamError if none came to its end."""
        if not self._files.exists():
            return []
        words = find_search_words(query.keywords or query.question)
        async with asyncio.TaskGroup() as group:
            by_words = group.create_task(self._try(WORDS, partial(self._search_words, words)))
            by_meaning = group.create_task(self._try(MEANING, partial(self._search_meaning, query.question)))
        return self._put_together(by_words.result(), by_meaning.result(), limit)

    async def knows(self, document: IndexedDocument) -> bool:
        """Whether the document is here as it is, with vectors of its model if it has one."""
        return self._files.exists() and await self._files.run(lambda file: file.knows(document))

    async def add_document(
        self, document: IndexedDocument, passages: Sequence[Passage], vectors: Sequence[Sequence[float]] = ()
    ) -> None:
        """Put a document in, whole, in place of what came from the same source before."""
        packed = pack_vectors(vectors) if vectors else []
        await self._files.run(lambda file: file.add(document, passages, packed))

    async def list_documents(self) -> Sequence[DocumentEntry]:
        """All documents, by source."""
        return await self._files.run(IndexFile.list_documents) if self._files.exists() else []

    async def remove_documents(self, sources: Sequence[str]) -> int:
        """Take documents out; how many were there."""
        return await self._files.run(lambda file: file.remove(sources)) if self._files.exists() else 0

    async def _search_words(self, words: Sequence[str]) -> FoundByWords:
        if not words:
            return FoundByWords([])
        return await self._files.run(lambda file: file.find_words(words, LEG_LIMIT))

    async def _search_meaning(self, question: str) -> _Near | None:
        if self._embedder is None:
            return None  # told when the index was opened
        [vector] = await self._embedder.embed([question])
        return await self._files.run(lambda file: self._compare(file, vector))

    def _compare(self, file: IndexFile, vector: Sequence[float]) -> _Near:
        nearness = self._vectors.compare(file, vector)
        if not len(nearness.keys):
            raise _NoVectors(self._files.name, NO_VECTORS)
        return _Near(file.read_hits(nearness.find_best(LEG_LIMIT)), nearness)

    async def _try(self, leg: str, search: Callable[[], Awaitable[T]]) -> T | UpstreamError:
        """What a search finds in its time, or why it did not."""
        name = self._files.name
        try:
            async with asyncio.timeout(self._leg_timeout_s):
                found = await search()
        except TimeoutError:
            return TimedOut(name, f"{_FAILED}no answer in time")
        except UpstreamError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an embedder is somebody else's code; the other search goes on
            failure = Unavailable(name, f"{_FAILED}the embedder failed")
            failure.__cause__ = error
            return failure
        self._told.pop(leg, None)
        return found

    def _put_together(
        self, words: FoundByWords | UpstreamError, near: _Near | UpstreamError | None, limit: int
    ) -> list[Document]:
        if isinstance(words, UpstreamError):
            if not isinstance(near, _Near):
                raise words
            self._tell(WORDS, words)
        if isinstance(near, UpstreamError):
            self._tell(MEANING, near)
        by_words = None if isinstance(words, UpstreamError) else words
        return rank_hits(by_words, _look_up(near, by_words) if isinstance(near, _Near) else None, limit)

    def _tell(self, leg: str, error: UpstreamError) -> None:
        """The log, once until the search works again."""
        reason = error.message if isinstance(error, _NoVectors) else name_causes(error)
        if self._told.get(leg) != reason:
            self._told[leg] = reason
            log_event(Event.RETRIEVAL_DEGRADED, logging.WARNING, source=self._files.name, leg=leg, reason=reason)


def _look_up(near: _Near, words: FoundByWords | None) -> FoundByMeaning:
    keys = {hit.key for hits in (near.hits, words.hits if words else ()) for hit in hits}
    return FoundByMeaning(near.hits, near.nearness.look_up(keys))


class _Connections:
    """A connection to the file for each thread; new ones when another file lies at its place."""

    def __init__(self, file: Path, name: str) -> None:
        self.name = name
        self._file = file
        self._threads = ThreadPoolExecutor(THREADS, "lockgate-index")
        self._lock = threading.Lock()
        self._open: dict[int, tuple[tuple[int, int], IndexFile]] = {}

    def exists(self) -> bool:
        return self._file.exists()

    async def run(self, work: Callable[[IndexFile], T]) -> T:
        """The work's result, done in a thread with a connection of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)

    def _work(self, work: Callable[[IndexFile], T]) -> T:
        try:
            return work(self._connect())
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(self.name, f"{_FAILED}the index file cannot be used") from error

    def _connect(self) -> IndexFile:
        thread = threading.get_ident()
        held = self._open.get(thread)
        if held is not None:
            if held[0] == _identify(self._file):
                return held[1]
            held[1].close()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        opened = open_index_file(self._file, self.name)
        with self._lock:
            self._open[thread] = (_identify(self._file), opened)
        return opened

    def close(self) -> None:
        """Wait for work that runs, then let go of the file."""
        self._threads.shutdown(cancel_futures=True)
        for _, opened in self._open.values():
            opened.close()


def _identify(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


@contextlib.asynccontextmanager
async def open_index(
    file: Path, embedder: Embedder | None, name: str, leg_timeout_s: float = LEG_TIMEOUT_S
) -> AsyncIterator[FtsDataSource]:
    """The index in a file. Without an embedder it is searched by words only."""
    if embedder is None:
        log_event(Event.RETRIEVAL_DEGRADED, logging.WARNING, source=name, leg=MEANING, reason=NO_EMBEDDER)
    else:
        check_library()
    files = _Connections(file, name)
    if not files.exists():
        log_event(Event.WARNING, logging.WARNING, source=name, reason=NO_FILE)
    try:
        yield FtsDataSource(files, embedder, leg_timeout_s)
    finally:
        await asyncio.to_thread(files.close)
