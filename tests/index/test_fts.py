# SPDX-License-Identifier: Apache-2.0
"""The file of the embedded index: what it is not, what others do to it, and how little is read of it."""

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockgate.errors import ConfigError, Unavailable
from lockgate.index.fts import FtsDataSource, VectorTable, open_index, pack_vectors
from lockgate.index.index_file import IndexFile, open_index_file
from lockgate.index.index_part import find_index_file, open_index_part
from lockgate.index.passages import IndexedDocument, Passage
from tests.embedders import TopicEmbedder
from tests.waits import HANG_S


async def put(index: FtsDataSource, name: str, text: str, embedder: TopicEmbedder | None = None) -> None:
    vectors = await embedder.embed([text]) if embedder else []
    document = IndexedDocument(f"/{name}", "1", name, "", embedder.model if embedder else "")
    await index.add_document(document, [Passage(1, "", text)], vectors)


def find(found: Any) -> list[str]:
    return [one.metadata["file"] for one in found]


async def test_searching_makes_no_file_and_says_once_that_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lockgate")
    async with open_index(tmp_path / "index.db", TopicEmbedder(), "docs") as index:
        assert list(await index.search("anything", 8)) == []
        assert list(await index.search("anything", 8)) == []
    assert os.listdir(tmp_path) == []
    assert [vars(one)["reason"] for one in caplog.records] == [
        "the index has no documents yet: run `lockgate index add`"
    ]


def _put_in_place(other: Path, file: Path) -> None:
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    other.rename(file)


async def test_a_file_put_in_place_of_another_is_read_anew(tmp_path: Path) -> None:
    embedder = TopicEmbedder()
    async with open_index(tmp_path / "other.db", embedder, "docs") as other:
        await put(other, "b.md", "A vessel", embedder)
    async with open_index(tmp_path / "index.db", embedder, "docs") as index:
        await put(index, "a.md", "A loaf", embedder)
        assert find(await index.search("oven", 8)) == ["a.md"]
        _put_in_place(tmp_path / "other.db", tmp_path / "index.db")
        assert find(await index.search("oven", 8)) == ["b.md"]
        assert find(await index.search("vessel", 8)) == ["b.md"]


async def test_a_file_that_is_no_index_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "index.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = file.read_bytes()
    async with open_index(file, None, "docs") as index:
        with pytest.raises(Unavailable, match=r"index\.db is not a Lockgate index"):
            await put(index, "a.md", "text")
        with pytest.raises(Unavailable, match="is not a Lockgate index"):
            await index.search("text", 8)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["index.db"]


async def test_an_index_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "index.db"
    async with open_index(file, None, "docs") as index:
        await put(index, "a.md", "text")
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    async with open_index(file, None, "docs") as index:
        with pytest.raises(Unavailable, match="another version"):
            await index.search("text", 8)


async def test_many_write_and_search_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.index.index_file.BUSY_TIMEOUT_S", HANG_S)
    embedder = TopicEmbedder()
    file = tmp_path / "index.db"
    async with open_index(file, embedder, "docs") as one, open_index(file, embedder, "docs") as two:
        await asyncio.gather(
            *(put(index, f"{number}.md", f"ship {number}", embedder) for number in range(20) for index in (one, two)),
            *(index.search("sail", 8) for index in (one, two) for _ in range(20)),
        )
        assert len(await one.list_documents()) == 20
        assert len(await two.search("harbour", 100)) == 20


def test_a_document_more_does_not_read_all_vectors_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = open_index_file(tmp_path / "index.db", "docs")
    table = VectorTable("m")
    read: list[int] = []
    real = IndexFile.read_vectors

    def count(self: IndexFile, after: int) -> Any:
        found = real(self, after)
        read.append(len(found.passages))
        return found

    monkeypatch.setattr(IndexFile, "read_vectors", count)

    def add(name: str, *vectors: list[float], model: str = "m") -> None:
        passages = [Passage(number, "", name) for number in range(len(vectors))]
        file.add(IndexedDocument(name, "1", name, "", model), passages, pack_vectors(vectors))

    def compare() -> list[float]:
        return [round(float(one), 3) for one in table.compare(file, [1.0, 0.0]).cosines]

    add("a", [1.0, 0.0], [0.0, 1.0])
    assert compare() == [1.0, 0.0]
    assert compare() == [1.0, 0.0]
    add("b", [0.6, 0.8])
    assert compare() == [1.0, 0.0, 0.6]
    file.remove(["a"])
    assert compare() == [0.6]
    add("c", [0.8, 0.6], model="other")
    add("d", [0.5, 0.5, 0.5])
    assert compare() == [0.6]
    assert read == [2, 1, 0, 2]
    file.close()


def test_of_equally_near_passages_the_first_come_first(tmp_path: Path) -> None:
    file = open_index_file(tmp_path / "index.db", "docs")
    passages = [Passage(number, "", "x") for number in range(50)]
    file.add(IndexedDocument("a", "1", "a", "", "m"), passages, pack_vectors([[1.0, 0.0]] * 50))
    nearness = VectorTable("m").compare(file, [1.0, 0.0])
    assert nearness.find_best(5) == [1, 2, 3, 4, 5]
    assert nearness.look_up([3, 99, -1]) == {3: 1.0}
    file.close()


def test_a_crash_in_the_middle_leaves_the_document_that_was_there(tmp_path: Path) -> None:
    file = open_index_file(tmp_path / "index.db", "docs")
    file.add(IndexedDocument("a", "1", "a"), [Passage(1, "", "old")], [])
    with pytest.raises(ValueError, match="argument"):
        file.add(IndexedDocument("a", "2", "a"), [Passage(1, "", "new")], [b"x", b"y"])
    assert file.knows(IndexedDocument("a", "1", "a"))
    assert [hit.text for hit in file.find_words(["old"], 8).hits] == ["old"]
    file.close()


async def test_the_part_of_the_settings_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    assert find_index_file({}, tmp_path) == tmp_path / "index.db"
    assert find_index_file({"file": "/x/y.db"}, tmp_path) == Path("/x/y.db")
    for wrong in ({"files": "x"}, {"file": ""}, {"file": 1}):
        with pytest.raises(ConfigError):
            find_index_file(wrong, tmp_path)
    async with open_index_part({"file": str(tmp_path / "x.db")}) as index:
        assert list(await index.search("x", 1)) == []


def test_words_alone_need_no_numpy() -> None:
    script = """
import asyncio, sys, tempfile
from pathlib import Path
from lockgate.index.passages import IndexedDocument, Passage
from lockgate.index.fts import open_index
async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with open_index(Path(folder) / "index.db", None, "docs", is_quiet=True) as index:
            await index.add_document(IndexedDocument("a", "1", "a"), [Passage(1, "", "loaf")])
            assert len(await index.search("loaf", 8)) == 1
asyncio.run(main())
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)
