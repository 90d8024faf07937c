# SPDX-License-Identifier: Apache-2.0
"""The SQL of an index in PostgreSQL.

Decides how documents, passages, words and vectors lie in two tables, and how a search by words ranks. Refuses to know
connections, and when anything is asked.
"""
# ruff: noqa: S608 - the one thing put in is a name that was checked


class IndexStatements:
    """All SQL, for one table. Its name is an identifier that was checked; values are always parameters."""

    def __init__(self, name: str) -> None:
        table, documents = f'"{name}"', f'"{name}_documents"'
        hit = f"{table}.id, {documents}.name, {table}.number, {table}.title, {table}.text"
        joined = f"{table} JOIN {documents} ON {documents}.id = {table}.document"
        comparable = f"{documents}.model = $2 AND vector_dims({table}.embedding) = $3"
        cosine = f"1 - ({table}.embedding <=> $1::text::vector) AS cosine"
        self.look = """
            SELECT to_regclass($1) IS NOT NULL, to_regclass($2) IS NOT NULL, EXISTS (
                SELECT FROM pg_attribute
                WHERE attrelid = to_regclass($1) AND attname = 'embedding' AND NOT attisdropped)"""
        self.tables = (
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
        self.add_column = f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS embedding vector"
        self.known = f"SELECT digest, model FROM {documents} WHERE source = $1"
        self.add_document = f"""
            INSERT INTO {documents} (source, digest, name, title, model) VALUES ($1, $2, $3, $4, $5) RETURNING id"""
        self.add = f"""
            INSERT INTO {table} (document, number, title, text)
            SELECT $1, * FROM unnest($2::integer[], $3::text[], $4::text[])"""
        self.add_with_vectors = f"""
            INSERT INTO {table} (document, number, title, text, embedding)
            SELECT $1, number, title, text, packed::vector
            FROM unnest($2::integer[], $3::text[], $4::text[], $5::text[]) AS new (number, title, text, packed)"""
        self.remove = f"DELETE FROM {documents} WHERE source = ANY ($1::text[])"
        self.list = f"""
            SELECT source, digest, name, {documents}.title, model, count({table}.id),
                extract(epoch FROM added_at)::float8
            FROM {documents} LEFT JOIN {table} ON {table}.document = {documents}.id
            GROUP BY {documents}.id ORDER BY source COLLATE "C" """
        # A word counts the more the rarer it is, and the more often it stands in the passage, but less and less so.
        self.find_words = f"""
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
            SELECT {hit}, found.matched, (SELECT count(*) FROM {table}) AS total,
                (SELECT array_agg(place ORDER BY place) FROM terms) AS places,
                (SELECT array_agg(passages ORDER BY place) FROM terms) AS spread
            FROM found JOIN {table} ON {table}.id = found.key JOIN {documents} ON {documents}.id = {table}.document
            ORDER BY found.score DESC, found.key"""
        self.find_near = f"""
            SELECT {hit}, {cosine} FROM {joined} WHERE {comparable}
            ORDER BY {table}.embedding <=> $1::text::vector, {table}.id LIMIT $4"""
        self.look_up = f"""
            SELECT {table}.id, {cosine} FROM {joined} WHERE {comparable} AND {table}.id = ANY ($4::bigint[])"""
