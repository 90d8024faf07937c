# SPDX-License-Identifier: Apache-2.0
"""The index in PostgreSQL where the database is not as one would wish."""

import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from lockgate.errors import ConfigError, Unavailable, UpstreamError
from lockgate.index.passages import IndexedDocument, Passage
from lockgate.index.postgres import NO_EXTENSION, open_postgres_index
from tests.embedders import TopicEmbedder


async def put(index: Any, name: str, text: str, embedder: TopicEmbedder | None = None) -> None:
    vectors = await embedder.embed([text]) if embedder else []
    document = IndexedDocument(f"/{name}", "1", name, "", embedder.model if embedder else "")
    await index.add_document(document, [Passage(1, "", text)], vectors)


def find(found: Any) -> list[str]:
    return [one.metadata["file"] for one in found]


async def run(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
async def weak_dsn(postgres_dsn: str) -> AsyncIterator[str]:
    """The address for somebody who may make tables and no extensions."""
    role = f"weak_{secrets.token_hex(4)}"
    await run(postgres_dsn, f"CREATE ROLE {role} LOGIN", f"GRANT CREATE, USAGE ON SCHEMA public TO {role}")
    user = urlsplit(postgres_dsn).username
    try:
        yield postgres_dsn.replace(f"//{user}", f"//{role}", 1)
    finally:
        await run(postgres_dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_without_the_extension_words_alone_are_searched_with_one_warning(
    weak_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lockgate")
    embedder = TopicEmbedder()
    async with open_postgres_index(weak_dsn, "passages", embedder, "docs") as index:
        await put(index, "a.md", "Bake the loaf", embedder)
        assert await index.knows(IndexedDocument("/a.md", "1", "a.md", "", embedder.model))
        for _ in range(3):
            assert find(await index.search("loaf", 8)) == ["a.md"]
    told = [(vars(one)["leg"], vars(one)["reason"]) for one in caplog.records]
    assert told == [("vector", NO_EXTENSION)]


async def test_an_extension_that_comes_later_is_used(postgres_dsn: str, weak_dsn: str) -> None:
    embedder = TopicEmbedder()
    async with open_postgres_index(weak_dsn, "passages", embedder, "docs") as index:
        await put(index, "a.md", "Bake the loaf", embedder)
        await run(postgres_dsn, "CREATE EXTENSION vector")
        await put(index, "b.md", "A vessel", embedder)
        assert not await index.knows(IndexedDocument("/a.md", "1", "a.md", "", embedder.model))
        assert find(await index.search("harbour", 1)) == ["b.md"]


async def test_who_only_searches_needs_no_right_to_write(postgres_dsn: str, weak_dsn: str) -> None:
    embedder = TopicEmbedder()
    role = urlsplit(weak_dsn).username
    async with open_postgres_index(postgres_dsn, "passages", embedder, "docs") as index:
        await put(index, "a.md", "Bake the loaf", embedder)
    await run(postgres_dsn, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    async with open_postgres_index(weak_dsn, "passages", embedder, "docs") as index:
        assert find(await index.search("oven", 8)) == ["a.md"]
        with pytest.raises(Unavailable, match="does not allow it"):
            await put(index, "b.md", "text", embedder)


async def test_a_table_of_somebody_else_is_left_alone(postgres_dsn: str) -> None:
    await run(postgres_dsn, "CREATE TABLE passages (mine TEXT)")
    async with open_postgres_index(postgres_dsn, "passages", None, "docs") as index:
        with pytest.raises(Unavailable, match="`passages` is not a Lockgate index"):
            await put(index, "a.md", "text")
        with pytest.raises(UpstreamError):
            await index.search("text", 8)


async def test_a_table_may_be_called_by_a_word_of_sql_and_two_do_not_meet(postgres_dsn: str) -> None:
    async with (
        open_postgres_index(postgres_dsn, "order", None, "docs") as one,
        open_postgres_index(postgres_dsn, "user", None, "docs") as two,
    ):
        await put(one, "a.md", "Bake the loaf")
        await put(two, "b.md", "Slice the loaf")
        assert find(await one.search("loaf", 8)) == ["a.md"]
        assert find(await two.search("loaf", 8)) == ["b.md"]


@pytest.mark.parametrize("table", ["", "a b", 'a"; DROP TABLE x; --', "Passages", "1a", "a" * 49, "public.passages"])
async def test_a_name_that_is_no_name_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="the name of a table"):
        async with open_postgres_index("postgresql://127.0.0.1/x", table, None, "docs"):
            pass


async def test_rare_words_count_more_than_common_ones(postgres_dsn: str) -> None:
    async with open_postgres_index(postgres_dsn, "passages", None, "docs") as index:
        for number in range(10):
            await put(index, f"{number}.md", f"error error error while baking bread {number}")
        await put(index, "rare.md", "The code QS-4711 is harmless.")
        assert find(await index.search("error while baking: QS-4711?", 1)) == ["rare.md"]
