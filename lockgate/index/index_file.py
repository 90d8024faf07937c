# SPDX-License-Identifier: Apache-2.0
"""The SQLite file of the embedded index. Ids of documents only rise: a reader finds new documents by their ids."""

import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from lockgate.backends.sqlite import connect, look_at, read_kind
from lockgate.errors import Unavailable
from lockgate.index.hits import FoundByWords, Hit, Spread
from lockgate.index.passages import DocumentEntry, IndexedDocument, Passage

BUSY_TIMEOUT_S: Final = 10.0
_APPLICATION: Final = 0x4C4B4958  # "LKIX": an index of Lockgate
_VERSION: Final = 1
_TABLES: Final = Path(__file__).with_suffix(".sql").read_text("utf-8")
_HIT = "passages.id, documents.name, passages.number, passages.title, passages.text"
_JOINED = "passages JOIN documents ON documents.id = passages.document"
_FIND_WORDS = f"""
WITH found AS MATERIALIZED (
    SELECT rowid AS key, rank AS distance FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?
)
SELECT {_HIT} FROM found JOIN passages ON passages.id = found.key JOIN documents ON documents.id = passages.document
ORDER BY found.distance, found.key
"""
_NEXT_EDITION = "UPDATE edition SET number = number + 1, passages = (SELECT count(*) FROM passages)"


class IndexVersion(NamedTuple):
    """A state of an index: its file, the number of writes to it, and the number of passages."""

    file: str
    number: int
    passages: int = 0


class StoredVectors(NamedTuple):
    """The bytes of vectors, sorted by passage."""

    passages: list[int]
    documents: list[int]
    blobs: list[bytes]


class IndexFile:
    """One connection to an index."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def knows(self, document: IndexedDocument) -> bool:
        """Whether it has this version of the document, with vectors of its model, if any."""
        sql = "SELECT digest, model FROM documents WHERE source = ?"
        found = self._connection.execute(sql, (document.source,)).fetchone()
        return found is not None and found[0] == document.digest and document.model in ("", found[1])

    def add(self, document: IndexedDocument, passages: Sequence[Passage], vectors: Sequence[bytes]) -> None:
        """Adds a document; replaces the one of the same source."""
        with self._writing() as connection:
            _remove(connection, document.source)
            sql = "INSERT INTO documents (source, digest, name, title, model, added_at_s) VALUES (?, ?, ?, ?, ?, ?)"
            key = connection.execute(sql, (*document, time.time())).lastrowid
            sql = "INSERT INTO passages (document, number, title, text) VALUES (?, ?, ?, ?)"
            keys = [connection.execute(sql, (key, *passage)).lastrowid for passage in passages]
            if vectors:
                rows = [(passage, key, vector) for passage, vector in zip(keys, vectors, strict=True)]
                connection.executemany("INSERT INTO vectors (passage, document, vector) VALUES (?, ?, ?)", rows)

    def remove(self, sources: Sequence[str]) -> int:
        """Removes documents; returns how many there were."""
        with self._writing() as connection:
            return sum(_remove(connection, source) for source in sources)

    def list_documents(self) -> list[DocumentEntry]:
        """All documents, sorted by source."""
        sql = """SELECT source, digest, name, documents.title, model, count(passages.id), added_at_s
            FROM documents LEFT JOIN passages ON passages.document = documents.id
            GROUP BY documents.id ORDER BY source"""
        return [DocumentEntry(IndexedDocument(*row[:5]), row[5], row[6]) for row in self._connection.execute(sql)]

    def read_edition(self) -> IndexVersion:
        """The version of the index, which differs after every write."""
        return IndexVersion(*self._connection.execute("SELECT file, number, passages FROM edition").fetchone())

    def list_models(self) -> dict[int, str]:
        """The name of the vectors' model for each document."""
        return dict(self._connection.execute("SELECT id, model FROM documents"))

    def find_words(self, words: Sequence[str], limit: int) -> FoundByWords:
        """The passages that have any of the words, the best matches first."""
        quoted = [f'"{word}"' for word in words]  # a quoted word is never a search operator
        with self.reading():
            hits = [Hit(*row) for row in self._connection.execute(_FIND_WORDS, (" OR ".join(quoted), limit))]
            keys = [hit.key for hit in hits]
            spreads = [self._find_spread(word, keys) for word in quoted]
            return FoundByWords(hits, self.read_edition().passages, spreads)

    def _find_spread(self, word: str, keys: Sequence[int]) -> Spread:
        marks = ", ".join("?" * len(keys))
        sql = f"""SELECT count(*), group_concat(CASE WHEN rowid IN ({marks}) THEN rowid END)
            FROM words WHERE words MATCH ?"""
        passages, found = self._connection.execute(sql, (*keys, word)).fetchone()
        return Spread(passages, frozenset(map(int, found.split(","))) if found else frozenset())

    def read_hits(self, passages: Sequence[int]) -> list[Hit]:
        """Returns passages by their keys, in the same order; leaves out those that were removed."""
        marks = ", ".join("?" * len(passages))
        sql = f"SELECT {_HIT} FROM {_JOINED} WHERE passages.id IN ({marks})"
        found = {row[0]: Hit(*row) for row in self._connection.execute(sql, tuple(passages))}
        return [found[key] for key in passages if key in found]

    def read_vectors(self, after: int) -> StoredVectors:
        """The vectors of all documents with higher ids."""
        sql = "SELECT passage, document, vector FROM vectors WHERE document > ? ORDER BY passage"
        rows = self._connection.execute(sql, (after,)).fetchall()
        return StoredVectors([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads in the body see one state of the database."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute(_NEXT_EDITION)
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()


def _remove(connection: sqlite3.Connection, source: str) -> int:
    found = connection.execute("SELECT id FROM documents WHERE source = ?", (source,)).fetchone()
    if found is None:
        return 0
    for sql in (
        "DELETE FROM vectors WHERE document = ?",
        "DELETE FROM passages WHERE document = ?",
        "DELETE FROM documents WHERE id = ?",
    ):
        connection.execute(sql, found)
    return 1


def open_index_file(file: Path, name: str) -> IndexFile:
    """Opens a connection to an index, created if it is missing; raises Unavailable for a file of another kind."""
    if look_at(file, BUSY_TIMEOUT_S).is_foreign(_APPLICATION):
        raise _refuse_foreign(file, name)
    connection = connect(file, BUSY_TIMEOUT_S)
    try:
        _prepare(connection, file, name)
    except BaseException:
        connection.close()
        raise
    return IndexFile(connection)


def _prepare(connection: sqlite3.Connection, file: Path, name: str) -> None:
    if read_kind(connection).application != _APPLICATION:
        connection.execute("BEGIN IMMEDIATE")
        _make_tables(connection, file, name)
        connection.commit()
    version = read_kind(connection).version
    if version != _VERSION:
        raise Unavailable(name, f"{file.name} is an index of another version ({version}): remove it and add again")
    connection.execute("PRAGMA synchronous = NORMAL")


def _refuse_foreign(file: Path, name: str) -> Unavailable:
    return Unavailable(name, f"{file.name} is not a Lockgate index")


def _make_tables(connection: sqlite3.Connection, file: Path, name: str) -> None:
    kind = read_kind(connection)
    if kind.is_foreign(_APPLICATION):  # changed since the first check
        raise _refuse_foreign(file, name)
    if kind.application == _APPLICATION:
        return  # another process was quicker
    for statement in _statements(_TABLES):
        connection.execute(statement)
    connection.execute("INSERT INTO edition VALUES (?, 0, 0)", (secrets.token_hex(8),))
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script one by one: `executescript` would end the transaction."""
    held = ""
    for line in script.splitlines():
        held += line + "\n"
        if sqlite3.complete_statement(held):
            yield held
            held = ""
