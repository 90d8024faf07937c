# SPDX-License-Identifier: Apache-2.0
"""The SQL of an index in PostgreSQL.

Decides how documents, passages, words and vectors lie in two tables, and how a search by words ranks. Refuses to know
connections, and when anything is asked.
"""

from dataclasses import dataclass
from typing import NamedTuple

_LOOK = """
    SELECT to_regclass($1) IS NOT NULL, to_regclass($2) IS NOT NULL, EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = to_regclass($1) AND attname = 'embedding' AND NOT attisdropped)"""


@dataclass(frozen=True, slots=True)
class IndexStatements:
    """All SQL, for one table. Values are always parameters. Made by `build_statements`."""

    look: str
    tables: tuple[str, ...]
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


class _Names(NamedTuple):
    """The two tables as SQL spells them."""

    passages: str
    documents: str

    @property
    def hit(self) -> str:
        table, documents = self
        return f"{table}.id, {documents}.name, {table}.number, {table}.title, {table}.text"

    @property
    def joined(self) -> str:
        table, documents = self
        return f"{table} JOIN {documents} ON {documents}.id = {table}.document"


def build_statements(name: str) -> IndexStatements:
    """The SQL for a table, whose name is an identifier that was checked."""
    names = _Names(f'"{name}"', f'"{name}_documents"')
    add, add_with_vectors = _write_adding(names)
    find_near, look_up = _write_comparing(names)
    return IndexStatements(
        look=_LOOK,
        tables=_write_tables(name, names),
        add_column=f"ALTER TABLE {names.passages} ADD COLUMN IF NOT EXISTS embedding vector",
        known=f"SELECT digest, model FROM {names.documents} WHERE source = $1",
        list=_write_list(names),
        add_document=f"""
            INSERT INTO {names.documents} (source, digest, name, title, model)
            VALUES ($1, $2, $3, $4, $5) RETURNING id""",
        add=add,
        add_with_vectors=add_with_vectors,
        remove=f"DELETE FROM {names.documents} WHERE source = ANY ($1::text[])",
        find_words=_write_find_words(names),
        find_near=find_near,
        look_up=look_up,
    )


def _write_tables(name: str, names: _Names) -> tuple[str, ...]:
    table, documents = names
    return (
        f"""CREATE TABLE {documents} (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, source TEXT NOT NULL UNIQUE, digest TEXT NOT NULL,
            name TEXT NOT NULL, title TEXT NOT NULL, model TEXT NOT NULL,
            added_at TIMESTAMPTZ NOT NULL DEFAULT now())""",
        f"""CREATE TABLE {table} (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            document BIGINT NOT NULL REFERENCES {documents} (id) ON DELETE CASCADE,
            number INTEGER NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL,
            words TSVECTOR GENERATED ALWAYS AS (to_tsvector('english', title || ' ' || text)) STORED)""",
        f'CREATE INDEX "{name}_words" ON {table} USING gin (words)',
        f'CREATE INDEX "{name}_document" ON {table} (document)',
    )


def _write_list(names: _Names) -> str:
    table, documents = names
    return f"""
        SELECT source, digest, name, {documents}.title, model, count({table}.id),
            extract(epoch FROM added_at)::float8
        FROM {documents} LEFT JOIN {table} ON {table}.document = {documents}.id
        GROUP BY {documents}.id ORDER BY source COLLATE "C" """


def _write_adding(names: _Names) -> tuple[str, str]:
    """Passages, without vectors and with them."""
    table = names.passages
    without = f"""
        INSERT INTO {table} (document, number, title, text)
        SELECT $1, * FROM unnest($2::integer[], $3::text[], $4::text[])"""
    with_vectors = f"""
        INSERT INTO {table} (document, number, title, text, embedding)
        SELECT $1, number, title, text, packed::vector
        FROM unnest($2::integer[], $3::text[], $4::text[], $5::text[]) AS new (number, title, text, packed)"""
    return without, with_vectors


def _write_find_words(names: _Names) -> str:
    """A word counts the more the rarer it is, and the more often it stands in the passage, but less and less so."""
    table, documents = names
    return f"""
        WITH terms AS MATERIALIZED (
            SELECT place, query, (SELECT count(*) FROM {table} WHERE words @@ query) AS passages
            FROM unnest($1::text[]) WITH ORDINALITY AS word (text, place), to_tsquery('english', word.text) AS query
            WHERE numnode(query) > 0
        ), weighed AS MATERIALIZED (
            SELECT place, query, ln(1 + (total - passages + 0.5) / (passages + 0.5))::float8 AS weight
            FROM terms, (SELECT count(*) AS total FROM {table}) AS whole
        ), found AS MATERIALIZED (
            SELECT {table}.id AS key, array_agg(place) AS matched,
                sum(weight * ts_rank_cd(words, query) / (ts_rank_cd(words, query) + 0.1)) AS score
            FROM weighed JOIN {table} ON words @@ query
            GROUP BY {table}.id ORDER BY score DESC, {table}.id LIMIT $2
        )
        SELECT {names.hit}, found.matched, (SELECT count(*) FROM {table}) AS total,
            (SELECT array_agg(place ORDER BY place) FROM terms) AS places,
            (SELECT array_agg(passages ORDER BY place) FROM terms) AS spread
        FROM found JOIN {table} ON {table}.id = found.key JOIN {documents} ON {documents}.id = {table}.document
        ORDER BY found.score DESC, found.key"""


def _write_comparing(names: _Names) -> tuple[str, str]:
    """The passages whose vectors are nearest, and how near given ones are."""
    table, documents = names
    comparable = f"{documents}.model = $2 AND vector_dims({table}.embedding) = $3"
    cosine = f"1 - ({table}.embedding <=> $1::text::vector) AS cosine"
    nearest = f"""
        SELECT {names.hit}, {cosine} FROM {names.joined} WHERE {comparable}
        ORDER BY {table}.embedding <=> $1::text::vector, {table}.id LIMIT $4"""
    given = f"""
        SELECT {table}.id, {cosine} FROM {names.joined} WHERE {comparable} AND {table}.id = ANY ($4::bigint[])"""
    return nearest, given
