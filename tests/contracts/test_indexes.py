# SPDX-License-Identifier: Apache-2.0
"""What every index promises, asked of the file and of a real PostgreSQL."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from lockgate.errors import Unavailable, UpstreamError
from lockgate.index.fts import open_index
from lockgate.index.fusion import LEG_LIMIT, RANK_OFFSET, Query
from lockgate.index.passages import IndexedDocument, Passage, text_to_embed
from lockgate.index.postgres import open_postgres_index
from lockgate.interfaces import Embedder
from tests.embedders import BrokenEmbedder, HangingEmbedder, TopicEmbedder
from tests.waits import HANG_S, LoopClock, until

TEXTS = {
    "cars.md": "An automobile has four wheels and an engine.",
    "ships.md": "A vessel lies in the harbour until the tide turns.",
    "bread.md": "Bake the loaf until the crust sounds hollow.",
    "refunds.md": "A refund is paid within ten days of error QS-4711.",
    "words.md": "Nothing of note happens here on most days.",
}
Opener = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["file", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same index again and again."""
    if request.param == "file":
        return lambda embedder: open_index(tmp_path / "sub" / "index.db", embedder, "docs", HANG_S)
    dsn = request.getfixturevalue("postgres_dsn")
    return lambda embedder: open_postgres_index(dsn, "passages", embedder, "docs", leg_timeout_s=HANG_S)


async def fill(index: Any, embedder: Embedder | None, texts: dict[str, str] = TEXTS) -> None:
    for name, text in texts.items():
        await put(index, embedder, name, text)


async def put(index: Any, embedder: Embedder | None, name: str, *texts: str, digest: str = "1") -> None:
    passages = [Passage(number, name.removesuffix(".md"), text) for number, text in enumerate(texts, 1)]
    vectors = await embedder.embed([text_to_embed(one) for one in passages]) if embedder else []
    model = embedder.model if isinstance(embedder, TopicEmbedder) else ""
    await index.add_document(IndexedDocument(f"/docs/{name}", digest, name, "", model), passages, vectors)


def made_at(path: Path) -> float:
    return path.stat().st_mtime


def files(found: Any) -> list[str]:
    return [(one.metadata or {})["file"] for one in found]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [
        (vars(record)["source"], vars(record)["leg"], vars(record)["reason"])
        for record in caplog.records
        if record.getMessage() == "retrieval.degraded"
    ]


async def test_an_index_that_does_not_exist_is_empty(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        assert list(await index.search("anything", 8)) == []
        assert list(await index.list_documents()) == []
        assert await index.remove_documents(["/docs/a.md"]) == 0
        assert not await index.knows(IndexedDocument("/docs/a.md", "1", "a.md"))
        assert (await index.probe(())).status == "HEALTHY"


async def test_words_and_meaning_both_find(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        await fill(index, embedder)
        assert files(await index.search("hollow crust", 1)) == ["bread.md"]
        assert files(await index.search("Where can I drive?", 1)) == ["cars.md"]
        assert files(await index.search_both(Query("Where can I sail?", "hollow crust"), 2)) == ["bread.md", "ships.md"]


async def test_scores_are_those_of_reciprocal_ranks_and_metadata_say_what_was_found(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        await fill(index, embedder)
        best = (await index.search("When is the refund paid? QS-4711", 8))[0]
    assert best.title == "refunds"
    assert best.text == TEXTS["refunds.md"]
    assert best.score == pytest.approx(2 / (RANK_OFFSET + 1))
    assert best.source == ""
    assert best.metadata["id"] == "refunds.md#1"
    assert best.metadata["file"] == "refunds.md"
    assert best.metadata["similarity"] == pytest.approx(1.0, abs=0.2)


async def test_each_search_gives_twenty_four_and_no_more_than_asked_leave(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        await put(index, embedder, "many.md", *(f"loaf number {number}" for number in range(40)))
        assert len(await index.search("loaf", 100)) == LEG_LIMIT
        first = await index.search("loaf", 3)
        assert [one.metadata["id"] for one in first] == ["many.md#1", "many.md#2", "many.md#3"]


async def test_a_document_is_replaced_whole_and_removed_whole(opener: Opener, tmp_path: Path) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        await fill(index, embedder)
        await put(index, embedder, "bread.md", "A vessel carries grain.", "Its sail is red.", digest="2")
        assert TEXTS["bread.md"] not in [one.text for one in await index.search("hollow crust", 8)]
        entries = {entry.document.name: entry for entry in await index.list_documents()}
        assert list(entries) == sorted(TEXTS)
        assert (entries["bread.md"].passages, entries["bread.md"].document.digest) == (2, "2")
        assert entries["bread.md"].added_at_s > entries["cars.md"].added_at_s
        assert entries["bread.md"].added_at_s == pytest.approx(made_at(tmp_path), abs=3600)
        assert await index.remove_documents(["/docs/bread.md", "/docs/ships.md", "/docs/none.md"]) == 2
        assert {"bread.md", "ships.md"}.isdisjoint(files(await index.search("vessel sail red", 8)))


async def test_what_one_process_adds_another_finds_without_being_opened_again(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as server, opener(embedder) as command:
        assert list(await server.search("sail", 8)) == []
        await fill(command, embedder)
        assert files(await server.search("sail", 1)) == ["ships.md"]
        await command.remove_documents(["/docs/ships.md"])
        await put(command, embedder, "boats.md", "A boat under sail")
        assert files(await server.search("sail", 1)) == ["boats.md"]
        assert "ships.md" not in files(await server.search("sail", 8))


async def test_an_index_knows_a_document_by_its_content_and_by_who_made_its_vectors(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        await put(index, None, "a.md", "words only")
        await put(index, embedder, "b.md", "with vectors")

        async def knows(name: str, digest: str, model: str) -> bool:
            return bool(await index.knows(IndexedDocument(f"/docs/{name}", digest, name, "", model)))

        assert await knows("a.md", "1", "")
        assert not await knows("a.md", "2", "")
        assert not await knows("a.md", "1", "topics")
        assert await knows("b.md", "1", "topics")
        assert await knows("b.md", "1", "")
        assert not await knows("b.md", "1", "others")


async def test_without_an_embedder_words_alone_find_and_the_log_says_so_once(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    async with opener(TopicEmbedder()) as index:
        await fill(index, TopicEmbedder())
    async with opener(None) as index:
        for _ in range(3):
            found = await index.search("What does the crust of my automobile do?", 8)
            assert set(files(found)) == {"bread.md", "cars.md"}
    assert "similarity" not in found[0].metadata
    assert warnings_of(caplog) == [("docs", "vector", "there is no embedder: run `lockgate setup`")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unavailable("embedder", "secret words"), "Unavailable"),
        (ValueError("secret words"), "Unavailable < ValueError"),
    ],
)
async def test_a_failing_embedder_leaves_the_words_with_one_warning(
    opener: Opener, caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    async with opener(TopicEmbedder()) as index:
        await fill(index, TopicEmbedder())
    async with opener(BrokenEmbedder(error)) as index:
        for _ in range(3):
            assert files(await index.search("hollow crust", 8)) == ["bread.md"]
    assert warnings_of(caplog) == [("docs", "vector", reason)]


async def test_an_embedder_that_hangs_does_not_hold_the_words(
    opener: Opener, caplog: pytest.LogCaptureFixture, ended: list[str]
) -> None:
    async with opener(TopicEmbedder()) as index:
        await fill(index, TopicEmbedder())
    async with opener(HangingEmbedder()) as index:
        searching = asyncio.create_task(index.search("hollow crust", 8))
        await until(lambda: ended, "the end of the search by words")
        LoopClock().advance()
        assert files(await searching) == ["bread.md"]
    assert warnings_of(caplog) == [("docs", "vector", "TimedOut")]


@pytest.mark.parametrize("embedder", [TopicEmbedder("others"), TopicEmbedder(length=9)], ids=["model", "length"])
async def test_vectors_of_another_model_or_length_are_not_compared(
    opener: Opener, caplog: pytest.LogCaptureFixture, embedder: TopicEmbedder
) -> None:
    async with opener(TopicEmbedder()) as index:
        await fill(index, TopicEmbedder())
    async with opener(embedder) as index:
        assert files(await index.search("hollow crust", 8)) == ["bread.md"]
        [(_, leg, reason)] = warnings_of(caplog)
        assert (leg, "`lockgate index add` again" in reason) == ("vector", True)
        await fill(index, embedder)
        assert files(await index.search("Where can I drive?", 1)) == ["cars.md"]


async def test_both_searches_of_many_run_at_once(
    opener: Opener, caplog: pytest.LogCaptureFixture, ended: list[str]
) -> None:
    class Late(TopicEmbedder):
        """Answers when five ask and all that goes on without it is done."""

        async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
            self.asked += texts
            await until(lambda: len(self.asked) == 5 and len(ended) >= 5)
            return [self._embed(text) for text in texts]

    async with opener(Late()) as index:
        await fill(index, TopicEmbedder())
        found = await asyncio.gather(*(index.search("hollow crust", 1) for _ in range(5)))
        assert [files(one) for one in found] == [["bread.md"]] * 5
    assert warnings_of(caplog) == []


async def test_a_chance_word_does_not_push_out_what_was_meant(opener: Opener) -> None:
    embedder = TopicEmbedder()
    async with opener(embedder) as index:
        chance = random.Random(1)
        noise = {f"{at}.md": f"note {chance.choice('abcdef')} {at} yesterday" for at in range(30)}
        await fill(index, embedder, TEXTS | noise)
        question = "Yesterday, returning home late, I wondered whether I may drive there"
        assert files(await index.search(question, 1)) == ["cars.md"]


ORDERS = (
    'crust" OR *',
    "crust AND NOT (NEAR",
    "title:crust ^ + - {a b} : crust",
    "crust'; DROP TABLE passages; --",
    "crust | & ! <-> :* 'hollow",
    "crust \\' \\",
    "crust \x00 \ud800",
    "crust " + "word " * 5000,
)


async def test_signs_in_a_question_are_never_orders(opener: Opener) -> None:
    async with opener(None) as index:
        await fill(index, None)
        chance = random.Random(3)
        signs = [chr(code) for code in (*range(0x250), 0x301, 0x2019, 0x3042, 0xD800, 0x1F600)]
        anything = ["crust " + "".join(chance.choices(signs, k=20)) for _ in range(40)]
        for question in (*ORDERS, *anything):
            assert "bread.md" in files(await index.search(question, 8)), repr(question)


async def test_a_question_without_words_finds_nothing_by_words(opener: Opener) -> None:
    async with opener(None) as index:
        await put(index, None, "a.md", "Bake it.")
        for question in ("", "?!", "the of and", "\x00", " "):
            assert list(await index.search(question, 8)) == []


async def test_accents_and_endings_do_not_matter(tmp_path: Path) -> None:
    async with open_index(tmp_path / "index.db", None, "docs") as index:
        await put(index, None, "a.md", "The café restores backups.")
        for question in ("cafe", "CAFÉ", "cafe\u0301", "restoring", "backup"):
            assert files(await index.search(question, 1)) == ["a.md"], question


async def test_both_searches_failing_is_an_error(tmp_path: Path) -> None:
    embedder = BrokenEmbedder(Unavailable("embedder", "no"))
    file = tmp_path / "broken.db"
    file.write_bytes(b"this is no database" * 100)
    async with open_index(file, embedder, "docs") as index:
        with pytest.raises(UpstreamError):
            await index.search("crust", 8)
        assert (await index.probe(())).status == "UNHEALTHY"
    async with open_postgres_index("postgresql://127.0.0.1:9/none", "passages", embedder, "docs") as index:
        with pytest.raises(UpstreamError):
            await index.search("crust", 8)
        assert (await index.probe(())).status == "UNHEALTHY"


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lockgate")
