# SPDX-License-Identifier: Apache-2.0
"""`lockgate index`: files go in, are replaced and go out; whatever happens on the way, what is in is in."""

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockgate.commands import index as command
from lockgate.commands.indexing import Filler, Tally, find_files
from lockgate.config.load import load_settings
from lockgate.embedded.fts import open_index_quietly
from lockgate.embedded.minilm import open_minilm
from lockgate.embedded.reading import SUFFIXES
from lockgate.errors import ConfigError, Unavailable
from tests.embedded.pdf_files import build_pdf, encrypt_pdf
from tests.embedders import BrokenEmbedder, TopicEmbedder
from tests.weights import require_weights

Run = Callable[..., int]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "guide.md").write_text("# Guide\n\nUnpack it.\n\n## Upgrade\n\nStop the service first.\n")
    (folder / "deep" / "notes.txt").write_text("The harbour opens at dawn.")
    (folder / "page.html").write_text("<title>Bread</title><p>Bake the loaf.</p>")
    (folder / "paper.pdf").write_bytes(build_pdf("Refunds take ten days"))
    (folder / "image.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("hidden")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.md").write_text("hidden")
    (folder / "deep" / "loop").symlink_to(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the command as the command line does, with a data directory of its own."""

    def run(*arguments: str, config: dict[str, Any] | None = None, **variables: str) -> int:
        parser = argparse.ArgumentParser()
        command.add_parser(parser.add_subparsers(), lambda one: None)
        file = tmp_path / "config.yaml" if config else None
        if file:
            file.write_text(json.dumps(config))
        environ = {"LOCKGATE_DATA_DIR": str(tmp_path / "data"), **variables}
        settings = load_settings(config_path=file, flags={}, environ=environ)
        options = parser.parse_args(["index", *arguments], argparse.Namespace(load=lambda _: settings))
        return int(options.run(options))

    return run


def search(tmp_path: Path, question: str) -> list[str]:
    async def ask() -> list[str]:
        async with open_index_quietly(tmp_path / "data" / "index.db", None, "x") as index:
            return [one.metadata["id"] for one in await index.search(question, 8) if one.metadata]

    return asyncio.run(ask())


WORDS_ONLY = "--no-embeddings"


def test_files_of_every_kind_are_added_and_hidden_ones_are_not(
    run: Run, docs: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run("add", str(docs), WORDS_ONLY) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{tmp_path}/data/index.db: 4 added; 5 passages in ")
    assert told.err == ""
    assert search(tmp_path, "stop service") == ["docs/guide.md#2"]
    assert search(tmp_path, "harbour dawn") == ["docs/deep/notes.txt#1"]
    assert search(tmp_path, "loaf") == ["docs/page.html#1"]
    assert search(tmp_path, "refunds") == ["docs/paper.pdf#1"]
    assert search(tmp_path, "hidden") == []


def test_what_has_not_changed_is_skipped_and_what_has_is_replaced(
    run: Run, docs: Path, tmp_path: Path, capsys: Any
) -> None:
    run("add", str(docs), WORDS_ONLY)
    capsys.readouterr()
    assert run("add", str(docs), str(docs / "guide.md"), WORDS_ONLY) == 0
    assert capsys.readouterr().out == f"{tmp_path}/data/index.db: 4 unchanged\n"
    (docs / "guide.md").write_text("# Guide\n\nThrow it away.")
    assert run("add", str(docs), WORDS_ONLY) == 0
    assert "1 replaced, 3 unchanged; 1 passages" in capsys.readouterr().out
    assert search(tmp_path, "service") == []
    assert search(tmp_path, "throw") == ["docs/guide.md#1"]


def test_a_file_that_cannot_be_read_is_told_and_the_others_go_in(
    run: Run, docs: Path, tmp_path: Path, capsys: Any
) -> None:
    (docs / "locked.pdf").write_bytes(encrypt_pdf(build_pdf("secret"), "pass"))
    (docs / "empty.md").write_text("")
    (docs / "dangling.md").symlink_to(tmp_path / "nowhere")
    os.mkfifo(docs / "pipe.txt")
    assert run("add", str(docs), str(tmp_path / "none.md"), str(docs / "image.png"), WORDS_ONLY) == 3
    told = capsys.readouterr()
    assert "4 added, 6 not read" in told.out
    assert set(told.err.splitlines()) == {
        f"lockgate: {docs}/dangling.md: No such file or directory",
        f"lockgate: {docs}/empty.md: it has no text",
        f"lockgate: {docs}/locked.pdf: it is encrypted",
        f"lockgate: {docs}/pipe.txt: it is no file",
        f"lockgate: {tmp_path}/none.md: No such file or directory",
        f"lockgate: {docs}/image.png: only {', '.join(sorted(SUFFIXES))} files can be read",
    }


def test_a_pattern_chooses_among_the_files_of_folders(docs: Path) -> None:
    def names(pattern: str | None) -> list[str]:
        return [one.name for one in find_files([docs], pattern)]

    assert names(None) == ["docs/guide.md", "docs/page.html", "docs/paper.pdf", "docs/deep/notes.txt"]
    assert names("*.md") == ["docs/guide.md"]
    assert names("deep/*") == ["docs/deep/notes.txt"]
    assert [one.name for one in find_files([docs / "page.html"], "*.md")] == ["page.html"]


def test_the_list_shows_every_document(run: Run, docs: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("list") == 0
    assert capsys.readouterr().out == f"{tmp_path}/data/index.db: 0 documents, 0 passages\n"
    run("add", str(docs), WORDS_ONLY)
    capsys.readouterr()
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:-1]] == [
        f"{docs}/deep/notes.txt",
        f"{docs}/guide.md",
        f"{docs}/page.html",
        f"{docs}/paper.pdf",
    ]
    assert lines[1].startswith("     2 passages  ")
    assert "words only" in lines[1]
    assert lines[-1] == f"{tmp_path}/data/index.db: 4 documents, 5 passages"


def test_files_folders_and_everything_can_be_removed(run: Run, docs: Path, tmp_path: Path, capsys: Any) -> None:
    run("add", str(docs), WORDS_ONLY)
    (docs / "guide.md").unlink()
    capsys.readouterr()
    assert run("remove", str(docs / "guide.md"), str(docs / "deep")) == 0
    assert capsys.readouterr().out == f"{tmp_path}/data/index.db: 2 removed\n"
    assert run("remove", str(docs / "guide.md")) == 3
    assert capsys.readouterr().err == f"lockgate: {docs}/guide.md: not in the index\n"
    assert run("remove", "--all") == 0
    assert run("list") == 0
    assert capsys.readouterr().out.endswith("2 removed\n" + f"{tmp_path}/data/index.db: 0 documents, 0 passages\n")
    assert run("remove") == run("remove", "--all", "x") == 2


def test_without_weights_it_says_what_to_do(run: Run, docs: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("add", str(docs)) == 3
    told = capsys.readouterr()
    assert "run `lockgate setup`" in told.err
    assert "--no-embeddings" in told.err
    assert not (tmp_path / "data" / "index.db").exists()


def test_vectors_are_filled_in_once_there_are_weights(run: Run, docs: Path, tmp_path: Path, capsys: Any) -> None:
    run("add", str(docs), WORDS_ONLY)
    (tmp_path / "data" / "weights").symlink_to(require_weights().parent)
    assert run("add", str(docs)) == 0
    assert run("add", str(docs)) == 0
    assert run("add", str(docs), WORDS_ONLY) == 0
    out = capsys.readouterr().out
    assert [line.partition(": ")[2].partition(";")[0] for line in out.splitlines()] == [
        "4 added",
        "4 replaced",
        "4 unchanged",
        "4 unchanged",
    ]

    async def ask() -> list[str]:
        async with (
            open_minilm(require_weights()) as embedder,
            open_index_quietly(tmp_path / "data" / "index.db", embedder, "x") as index,
        ):
            return [one.metadata["file"] for one in await index.search("When do boats get in?", 1) if one.metadata]

    assert asyncio.run(ask()) == ["docs/deep/notes.txt"]


def test_the_source_is_the_only_one_or_the_one_that_is_named(run: Run, docs: Path, tmp_path: Path, capsys: Any) -> None:
    one = {"embedded": "index", "options": {"file": "one.db"}}
    two = {"embedded": "index", "options": {"file": "two.db"}}
    space = {"syftai_space": {"url": "http://127.0.0.1:9", "slug": "x"}}
    assert run("add", str(docs), WORDS_ONLY, config={"sources": {"a": one, "s": space}}) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/data/one.db: 4 added")
    both = {"sources": {"a": one, "b": two, "s": space}}
    assert run("add", str(docs), WORDS_ONLY, "--source", "b", config=both) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/data/two.db: 4 added")
    for arguments, words in (
        (("list",), "there are several indexes, name one with --source: a, b"),
        (("list", "--source", "s"), "is no index that documents can be added to"),
        (("list", "--source", "none"), "there is no such source"),
    ):
        with pytest.raises(ConfigError) as told:
            run(*arguments, config=both)
        assert told.value.message == words


def test_an_index_in_postgres_is_filled_the_same_way(run: Run, docs: Path, postgres_dsn: str, capsys: Any) -> None:
    config = {"sources": {"db": {"postgres": {"dsn_env": "DSN", "table": "handbook"}}}}
    for expected in ("4 added; 5 passages", "4 unchanged"):
        assert run("add", str(docs), WORDS_ONLY, config=config, DSN=postgres_dsn) == 0
        assert f"db (table handbook): {expected}" in capsys.readouterr().out
    assert run("remove", str(docs / "deep"), config=config, DSN=postgres_dsn) == 0
    assert run("list", config=config, DSN=postgres_dsn) == 0
    assert capsys.readouterr().out.endswith("db (table handbook): 3 documents, 4 passages\n")


class PausingEmbedder(TopicEmbedder):
    """Stops for good at its third call."""

    def __init__(self) -> None:
        super().__init__()
        self.has_stopped = asyncio.Event()

    async def embed(self, texts: Any) -> Any:
        if len(self.asked) >= 2:
            self.has_stopped.set()
            await asyncio.sleep(3600)
        return await super().embed(texts)


async def test_what_is_in_stays_in_when_it_is_stopped(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.md").write_text(f"ship {number}")
    files = find_files([tmp_path])
    embedder = PausingEmbedder()
    async with open_index_quietly(tmp_path / "index.db", embedder, "x") as index:
        task = asyncio.create_task(Filler(index, embedder, Tally()).fill(files))
        await embedder.has_stopped.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with open_index_quietly(tmp_path / "index.db", TopicEmbedder(), "x") as index:
        assert len(await index.list_documents()) == 2
        tally = Tally()
        await Filler(index, TopicEmbedder(), tally).fill(files)
    assert (tally.added, tally.unchanged, tally.is_done) == (3, 2, True)


async def test_an_embedder_that_fails_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("ship")
    embedder, tally = BrokenEmbedder(Unavailable("embedder", "down")), Tally()
    async with open_index_quietly(tmp_path / "index.db", embedder, "x") as index:
        with pytest.raises(Unavailable):
            await Filler(index, embedder, tally).fill(find_files([tmp_path]))
        assert list(await index.list_documents()) == []
    assert not tally.is_done
