# SPDX-License-Identifier: Apache-2.0
"""The index in a PostgreSQL database: full text and pgvector, or full text only if the extension is missing."""

import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lockgate.backends.postgres import PostgresPool, open_postgres
from lockgate.data_files import Table, read_table
from lockgate.errors import ConfigError, Unavailable, UpstreamError
from lockgate.gate.values import Document, Health
from lockgate.index.fusion import LEG_LIMIT, Query
from lockgate.index.hits import FoundByWords, Hit, Spread
from lockgate.index.hybrid_search import (
    LEG_TIMEOUT_S,
    NO_VECTORS,
    DoubleSearch,
    FoundByMeaning,
    NothingToCompare,
    find_vector,
    name_model,
)
from lockgate.index.passages import DocumentEntry, IndexedDocument, Passage
from lockgate.index.search_words import find_search_words
from lockgate.interfaces import Embedder, Headers
from lockgate.store_tasks import read_health


class IndexStatements(Table, frozen=True):
    """All SQL of `postgres.toml`, for one table; `build_statements` builds it."""

    look: str
    tables: str
    add_column: str
    known: str
    list: str
    add_document: str
    add: str
    add_with_vectors: str
    remove: str
    find_words: str
    find_near: str
    look_up: str


_FILE = read_table(Path(__file__).with_name("postgres.toml"), IndexStatements)


def build_statements(name: str) -> IndexStatements:
    """Returns the SQL for a table; the caller has checked that its name is an identifier."""
    passages, documents = f'"{name}"', f'"{name}_documents"'
    names = {"name": name, "passages": passages, "documents": documents}
    names["hit"] = f"{passages}.id, {documents}.name, {passages}.number, {passages}.title, {passages}.text"
    return IndexStatements(**{key: sql.format_map(names) for key, sql in msgspec.structs.asdict(_FILE).items()})


NO_EXTENSION = "the database has no extension `vector` (pgvector)"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,47}", re.ASCII)
_WRITE_LOCK = 0x6C6B6978  # held by the process that writes


class _DatabaseState(NamedTuple):
    """Which parts of the index the database has."""

    has_tables: bool
    has_documents: bool
    has_vectors: bool


class PostgresIndex(DoubleSearch):
    """One index. A table that does not exist is an index without documents."""

    def __init__(self, pool: PostgresPool, table: str, embedder: Embedder | None, leg_timeout_s: float) -> None:
        super().__init__(pool.name, embedder, leg_timeout_s)
        self._pool = pool
        self._table = table
        self._sql = build_statements(table)
        self._model = name_model(embedder)
        self._known: _DatabaseState | None = None  # read again until everything exists

    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """Returns the best passages of both searches; raises UpstreamError if both failed."""
        words = find_search_words(query.keywords or query.question)
        by_meaning = partial(self._search_meaning, self._embedder, query) if self._embedder else None
        found = await self._ask_both(partial(self._search_words, words), by_meaning)
        return await self._build_documents(*found, limit)

    async def probe(self, headers: Headers) -> Health:
        """Whether the database answers; never raises."""
        return await read_health(self._pool.fetch("SELECT 1"))

    async def knows(self, document: IndexedDocument) -> bool:
        """Whether it has this version of the document, with vectors of its model, if any."""
        state = await self._find_state()
        if not state.has_tables:
            return False
        rows = await self._pool.fetch(self._sql.known, document.source)
        wanted = document.model if state.has_vectors else ""
        return bool(rows) and rows[0]["digest"] == document.digest and wanted in ("", rows[0]["model"])

    async def add_document(
        self, document: IndexedDocument, passages: Sequence[Passage], vectors: Sequence[Sequence[float]] = ()
    ) -> None:
        """Adds a document, whole or not at all; replaces the one of the same source."""
        state = await self._set_up()
        packed = [_pack(vector) for vector in vectors] if state.has_vectors else []
        stored = document if packed else document._replace(model="")
        columns = [[passage[at] for passage in passages] for at in range(len(Passage._fields))]
        async with self._pool.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _WRITE_LOCK)
            await connection.execute(self._sql.remove, [document.source])
            key = await connection.fetchval(self._sql.add_document, *stored)
            if packed:
                await connection.execute(self._sql.add_with_vectors, key, *columns, packed)
            else:
                await connection.execute(self._sql.add, key, *columns)

    async def list_documents(self) -> Sequence[DocumentEntry]:
        """All documents, sorted by source."""
        if not (await self._find_state()).has_tables:
            return []
        rows = await self._pool.fetch(self._sql.list)
        return [DocumentEntry(IndexedDocument(*row[:5]), row[5], row[6]) for row in map(tuple, rows)]

    async def remove_documents(self, sources: Sequence[str]) -> int:
        """Removes documents; returns how many there were."""
        if not (await self._find_state()).has_tables:
            return 0
        return int((await self._pool.execute(self._sql.remove, list(sources))).split()[-1])

    async def _search_words(self, words: Sequence[str]) -> FoundByWords:
        if not words or not (await self._find_state()).has_tables:
            return FoundByWords([])
        rows = await self._pool.fetch(self._sql.find_words, [f"'{word}'" for word in words], LEG_LIMIT)
        if not rows:
            return FoundByWords([])
        spread = dict(zip(rows[0]["places"], rows[0]["spread"], strict=True))
        spreads = [
            Spread(count, {row["id"] for row in rows if place in row["matched"]}) for place, count in spread.items()
        ]
        return FoundByWords([_read_hit(row) for row in rows], rows[0]["total"], spreads)

    async def _search_meaning(self, embedder: Embedder, query: Query) -> FoundByMeaning:
        state = await self._find_state()
        if not state.has_tables:
            return FoundByMeaning([], partial(self._look_up, "", 0))
        if not state.has_vectors:
            raise NothingToCompare(self._pool.name, NO_EXTENSION)
        vector = await find_vector(query, embedder)
        rows = await self._pool.fetch(self._sql.find_near, _pack(vector), self._model, len(vector), LEG_LIMIT)
        if not rows:
            raise NothingToCompare(self._pool.name, NO_VECTORS)
        return FoundByMeaning([_read_hit(row) for row in rows], partial(self._look_up, _pack(vector), len(vector)))

    async def _look_up(self, vector: str, length: int, keys: Collection[int]) -> Mapping[int, float]:
        rows = await self._pool.fetch(self._sql.look_up, vector, self._model, length, list(keys))
        return {row["id"]: row["cosine"] for row in rows}

    async def _find_state(self) -> _DatabaseState:
        """Returns which parts exist; reads that again until all exist."""
        if self._known is None or not all(self._known):
            async with self._pool.borrow() as connection:
                self._known = await self._read_state(connection)
        return self._known

    async def _read_state(self, connection: Any) -> _DatabaseState:
        state = _DatabaseState(*await connection.fetchrow(self._sql.look, self._table, f"{self._table}_documents"))
        if state.has_tables and not state.has_documents:
            raise Unavailable(self._pool.name, f"the table `{self._table}` is not a Lockgate index")
        return state

    async def _set_up(self) -> _DatabaseState:
        """Creates the tables, and the column of vectors if the extension is installed."""
        state = await self._find_state()
        if all(state):
            return state
        with suppress(UpstreamError):  # if it cannot be installed, only words are searched
            await self._pool.execute("CREATE EXTENSION IF NOT EXISTS vector")
        async with self._pool.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _WRITE_LOCK)
            if not (await self._read_state(connection)).has_tables:
                await connection.execute(self._sql.tables)
            if await connection.fetchval("SELECT count(*) FROM pg_extension WHERE extname = 'vector'"):
                await connection.execute(self._sql.add_column)
        return await self._find_state()


def _read_hit(row: Any) -> Hit:
    return Hit(row["id"], row["name"], row["number"], row["title"], row["text"])


def _pack(vector: Sequence[float]) -> str:
    return f"[{','.join(map(repr, map(float, vector)))}]"


@asynccontextmanager
async def open_postgres_index(
    dsn: str,
    table: str,
    embedder: Embedder | None,
    name: str,
    *,
    leg_timeout_s: float = LEG_TIMEOUT_S,
    is_quiet: bool = False,
) -> AsyncIterator[PostgresIndex]:
    """Opens the index in a table; the first use connects. Logs what is missing, unless quiet."""
    if not _IDENTIFIER.fullmatch(table):
        words = "the name of a table has at most 48 lower-case letters, digits and _, and does not begin with a digit"
        raise ConfigError(words, source=name, key="table")
    async with open_postgres(dsn, name) as pool:
        index = PostgresIndex(pool, table, embedder, leg_timeout_s)
        if not is_quiet:
            index.log_state()
        yield index
