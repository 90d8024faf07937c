# SPDX-License-Identifier: Apache-2.0
"""FtsDataSource: the embedded index, searched by words (SQLite full text) and by meaning (vectors) at once."""

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from lockgate.errors import ConfigError, Unavailable
from lockgate.gate.values import Document, Health
from lockgate.index.fusion import LEG_LIMIT, Query
from lockgate.index.hits import FoundByWords
from lockgate.index.hybrid_search import (
    LEG_TIMEOUT_S,
    NO_VECTORS,
    DoubleSearch,
    FoundByMeaning,
    NothingToCompare,
    find_vector,
    name_model,
)
from lockgate.index.index_file import IndexFile, IndexVersion, StoredVectors, open_index_file
from lockgate.index.passages import DocumentEntry, IndexedDocument, Passage
from lockgate.index.search_words import find_search_words
from lockgate.interfaces import Embedder, Headers
from lockgate.store_tasks import read_health
from lockgate.telemetry import LogEvent, log_event

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]
    Keys = NDArray[np.int64]


# --- Vectors --------------------------------------------------------------------------------------------------

_LITTLE_ENDIAN: Final = "<f4"


class Nearness(NamedTuple):
    """The cosine of every passage to a question; keys are ascending."""

    keys: "Keys"
    cosines: "Numbers"

    def find_best(self, limit: int) -> list[int]:
        """Returns the nearest passages; of equally near ones those with lower keys."""
        import numpy as np

        if len(self.keys) > limit:
            edge = np.partition(self.cosines, -limit)[-limit]
            places = np.flatnonzero(self.cosines >= edge)
        else:
            places = np.arange(len(self.keys))
        order = np.argsort(-self.cosines[places], kind="stable")[:limit]
        return [int(key) for key in self.keys[places[order]]]

    def look_up(self, keys: Iterable[int]) -> dict[int, float]:
        """The cosines of those passages that have a vector."""
        import numpy as np

        found = {}
        for key in keys:
            place = int(np.searchsorted(self.keys, key))
            if place < len(self.keys) and self.keys[place] == key:
                found[key] = float(self.cosines[place])
        return found


class _Rows(NamedTuple):
    """A state of the table. `seen` is the highest id of a document that was read."""

    edition: IndexVersion
    keys: "Keys"
    documents: "Keys"
    matrix: "Numbers"
    seen: int


class VectorTable:
    """The vectors of one model. May be used by several threads."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._rows: _Rows | None = None

    def compare(self, file: IndexFile, vector: Sequence[float]) -> Nearness:
        """Compares all passages with a vector of length 1; leaves out passages whose vectors have another dimension."""
        import numpy as np

        wanted = np.asarray(vector, dtype=np.float32)
        with self._lock:
            rows = self._rows = self._follow(file, len(wanted))
        return Nearness(rows.keys, rows.matrix @ wanted)

    def _follow(self, file: IndexFile, length: int) -> _Rows:
        """Returns the rows that the file has now; reads only new documents."""
        with file.reading():
            edition = file.read_edition()
            rows = self._rows
            if rows is None or rows.edition.file != edition.file or rows.matrix.shape[1] != length:
                rows = _no_rows(edition.file, length)
            if rows.edition == edition:
                return rows
            models, new = file.list_models(), file.read_vectors(rows.seen)
        return self._merge(rows._replace(edition=edition), models, new)

    def _merge(self, rows: _Rows, models: dict[int, str], new: StoredVectors) -> _Rows:
        import numpy as np

        length = rows.matrix.shape[1]
        counts = [
            models[document] == self._model and len(blob) == 4 * length
            for document, blob in zip(new.documents, new.blobs, strict=True)
        ]
        joined = b"".join(blob for blob, is_good in zip(new.blobs, counts, strict=True) if is_good)
        stays = np.isin(rows.documents, list(models))
        return _Rows(
            rows.edition,
            np.concatenate([rows.keys[stays], np.asarray(new.passages, np.int64)[np.asarray(counts, bool)]]),
            np.concatenate([rows.documents[stays], np.asarray(new.documents, np.int64)[np.asarray(counts, bool)]]),
            np.concatenate([rows.matrix[stays], np.frombuffer(joined, _LITTLE_ENDIAN).reshape(-1, length)]),
            max(models, default=0),
        )


def _no_rows(file: str, length: int) -> _Rows:
    import numpy as np

    none = np.zeros(0, np.int64)
    return _Rows(IndexVersion(file, -1), none, none, np.zeros((0, length), np.float32), 0)


def pack_vectors(vectors: Sequence[Sequence[float]]) -> list[bytes]:
    """The bytes of vectors for the file."""
    import numpy as np

    return [np.asarray(vector, dtype=_LITTLE_ENDIAN).tobytes() for vector in vectors]


# --- The source -----------------------------------------------------------------------------------------------

THREADS = 4
NO_FILE = "the index has no documents yet: run `lockgate index add`"
T = TypeVar("T")


class FtsDataSource(DoubleSearch):
    """One index file. A file that does not exist is an index without documents."""

    def __init__(self, files: "_Connections", embedder: Embedder | None, leg_timeout_s: float = LEG_TIMEOUT_S) -> None:
        super().__init__(files.name, embedder, leg_timeout_s)
        self._files = files
        self._vectors = VectorTable(name_model(embedder))

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """Returns the best passages of both searches; raises UpstreamError if both failed."""
        if not self._files.exists():
            return []
        words = find_search_words(query.keywords or query.question)
        by_meaning = partial(self._search_meaning, self._embedder, query) if self._embedder else None
        found = await self._ask_both(partial(self._search_words, words), by_meaning)
        return await self._build_documents(*found, limit)

    async def probe(self, headers: Headers) -> Health:
        """Returns whether the file can be read; a missing file is healthy. Never raises."""
        return await read_health(self._files.run(IndexFile.read_edition)) if self._files.exists() else Health("HEALTHY")

    def log_state(self) -> None:
        """Logs what is missing."""
        super().log_state()
        if not self._files.exists():
            log_event(LogEvent.WARNING, logging.WARNING, source=self._files.name, reason=NO_FILE)

    async def knows(self, document: IndexedDocument) -> bool:
        """Whether it has this version of the document, with vectors of its model, if any."""
        return self._files.exists() and await self._files.run(lambda file: file.knows(document))

    async def add_document(
        self, document: IndexedDocument, passages: Sequence[Passage], vectors: Sequence[Sequence[float]] = ()
    ) -> None:
        """Adds a document, whole or not at all; replaces the one of the same source."""
        packed = pack_vectors(vectors) if vectors else []
        await self._files.run(lambda file: file.add(document, passages, packed))

    async def list_documents(self) -> Sequence[DocumentEntry]:
        """All documents, sorted by source."""
        return await self._files.run(IndexFile.list_documents) if self._files.exists() else []

    async def remove_documents(self, sources: Sequence[str]) -> int:
        """Removes documents; returns how many there were."""
        return await self._files.run(lambda file: file.remove(sources)) if self._files.exists() else 0

    async def _search_words(self, words: Sequence[str]) -> FoundByWords:
        if not words:
            return FoundByWords([])
        return await self._files.run(lambda file: file.find_words(words, LEG_LIMIT))

    async def _search_meaning(self, embedder: Embedder, query: Query) -> FoundByMeaning:
        vector = await find_vector(query, embedder)
        return await self._files.run(lambda file: self._compare(file, vector))

    def _compare(self, file: IndexFile, vector: Sequence[float]) -> FoundByMeaning:
        nearness = self._vectors.compare(file, vector)
        if not len(nearness.keys):
            raise NothingToCompare(self._files.name, NO_VECTORS)
        return FoundByMeaning(file.read_hits(nearness.find_best(LEG_LIMIT)), partial(_look_up, nearness))


async def _look_up(nearness: Nearness, keys: Collection[int]) -> Mapping[int, float]:
    return nearness.look_up(keys)


class _Connections:
    """A connection to the file for each thread; opened again if the file was replaced."""

    def __init__(self, file: Path, name: str) -> None:
        self.name = name
        self._file = file
        self._threads = ThreadPoolExecutor(THREADS, "lockgate-index")
        self._lock = threading.Lock()
        self._open: dict[int, tuple[tuple[int, int], IndexFile]] = {}

    def exists(self) -> bool:
        """Whether there is a file; one without permission exists, and fails when it is used."""
        try:
            self._file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    async def run(self, work: Callable[[IndexFile], T]) -> T:
        """Runs the work in a thread that has a connection; returns the work's result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)

    def _work(self, work: Callable[[IndexFile], T]) -> T:
        try:
            return work(self._connect())
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(self.name, "the index file cannot be used") from error

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
        """Waits for running work, then closes the connections."""
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
    file: Path,
    embedder: Embedder | None,
    name: str,
    leg_timeout_s: float = LEG_TIMEOUT_S,
    *,
    is_quiet: bool = False,
) -> AsyncIterator[FtsDataSource]:
    """Opens the index in a file; without an embedder it searches words only. Logs what is missing, unless quiet."""
    if embedder is not None and find_spec("numpy") is None:
        raise ConfigError("searching by meaning needs numpy: pip install 'lockgate[agent]'", source="index")
    files = _Connections(file, name)
    try:
        source = FtsDataSource(files, embedder, leg_timeout_s)
        if not is_quiet:
            source.log_state()
        yield source
    finally:
        await asyncio.to_thread(files.close)
