# SPDX-License-Identifier: Apache-2.0
"""`lockgate index`: files go in, are replaced and go out; whatever happens on the way, what is in is in."""

import argparse
import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockgate.cli.index_documents import IndexCounts, IndexWriter, find_files
from lockgate.cli.main import build_parser
from lockgate.config.load import load_settings
from lockgate.errors import ConfigError, Unavailable
from lockgate.index.fts import open_index
from lockgate.index.readers import SUFFIXES
from lockgate.models.minilm import open_minilm
from tests.embedders import BrokenEmbedder, TopicEmbedder
from tests.index.pdf_files import build_pdf, encrypt_pdf
from tests.waits import forever
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
        file = tmp_path / "config.yaml" if config else None
        if file:
            file.write_text(json.dumps(config))
        environ = {"LOCKGATE_DATA_DIR": str(tmp_path / "data"), **variables}
        settings = load_settings(config_path=file, flags={}, environ=environ)
        options = build_parser().parse_args(["index", *arguments], argparse.Namespace(load=lambda _: settings))
        return int(options.run(options))

    return run


def search(tmp_path: Path, question: str) -> list[str]:
    async def ask() -> list[str]:
        async with open_index(tmp_path / "data" / "index.db", None, "x", is_quiet=True) as index:
            return [one.metadata["id"] for one in await index.search(question, 8) if one.metadata]

    return asyncio.run(ask())


WORDS_ONLY = "--no-embeddings"
DETECTORS = {"detectors": {"pii": {"embedded": "pii"}}}
KNOWN = " ".join(sorted(SUFFIXES))
OTHERS = f"skipped 1 file of other kinds (1 .png); known: {KNOWN}\n"


def test_files_of_every_kind_are_added_and_hidden_ones_are_not(
    run: Run, docs: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run("add", str(docs), WORDS_ONLY) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{tmp_path}/data/index.db: 4 added; 5 passages in ")
    assert told.out.endswith(f"\n{OTHERS}")
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
    assert capsys.readouterr().out == f"{tmp_path}/data/index.db: 4 unchanged\n{OTHERS}"
    (docs / "guide.md").write_text("# Guide\n\nThrow it away.")
    assert run("add", str(docs), WORDS_ONLY) == 0
    assert "1 replaced, 3 unchanged; 1 passage in " in capsys.readouterr().out
    assert search(tmp_path, "service") == []
    assert search(tmp_path, "throw") == ["docs/guide.md#1"]


def test_a_file_that_cannot_be_read_is_told_and_the_others_go_in(
    run: Run, docs: Path, tmp_path: Path, capsys: Any
) -> None:
    (docs / "locked.pdf").write_bytes(encrypt_pdf(build_pdf("secret"), "pass"))
    (docs / "dangling.md").symlink_to(docs / "nowhere")
    os.mkfifo(docs / "pipe.txt")
    assert run("add", str(docs), str(tmp_path / "none.md"), str(docs / "image.png"), WORDS_ONLY) == 3
    told = capsys.readouterr()
    assert "4 added, 5 not read" in told.out
    assert set(told.err.splitlines()) == {
        f"lockgate: {docs}/dangling.md: No such file or directory",
        f"lockgate: {docs}/locked.pdf: it is encrypted",
        f"lockgate: {docs}/pipe.txt: it is no file",
        f"lockgate: {tmp_path}/none.md: No such file or directory",
        f"lockgate: {docs}/image.png: only {', '.join(sorted(SUFFIXES))} files can be read",
    }


def test_files_without_text_are_told_and_are_no_failure(run: Run, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("")
    (folder / "b.txt").write_text("harbour")
    (folder / "c.pdf").write_bytes(build_pdf(""))
    assert run("add", str(folder), WORDS_ONLY) == 0
    told = capsys.readouterr()
    assert "1 added, 2 empty; 1 passage in " in told.out
    assert told.err.splitlines() == [
        f"lockgate: {folder}/a.md: empty, skipped",
        f"lockgate: {folder}/c.pdf: no text in it, perhaps a scan, skipped",
    ]
    (folder / "b.txt").write_text(" \n")
    assert run("add", str(folder), WORDS_ONLY) == 0
    assert f"lockgate: {folder}/b.txt: empty, taken out of the index" in capsys.readouterr().err
    assert search(tmp_path, "harbour") == []


def test_a_folder_with_nothing_to_add_is_told_with_what_was_skipped(run: Run, tmp_path: Path, capsys: Any) -> None:
    label = f"{tmp_path}/data/index.db"
    folder = tmp_path / "tables"
    folder.mkdir()
    assert run("add", str(folder), WORDS_ONLY) == 0
    assert capsys.readouterr().out == f"{label}: no files to add\n"
    for name in ("a.csv", "b.csv", "c.docx", "LICENSE"):
        (folder / name).write_text("x")
    assert run("add", str(folder), WORDS_ONLY) == 0
    kinds = "2 .csv, 1 .docx, 1 without a suffix"
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{label}: no files to add"
    assert sorted(second.split("(")[1].split(")")[0].split(", ")) == sorted(kinds.split(", "))
    assert second.startswith("skipped 4 files of other kinds (")
    assert second.endswith(f"; known: {KNOWN}")
    (folder / "d.md").write_text("x")
    assert run("add", str(folder), WORDS_ONLY, "--glob", "*.zzz") == 0
    assert capsys.readouterr().out.splitlines()[2] == "skipped 1 file that --glob *.zzz leaves out"


def test_links_that_lead_out_are_left_out_so_a_folder_can_be_removed_whole(
    run: Run, tmp_path: Path, capsys: Any
) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "linked"
    (outside / "deep").mkdir(parents=True)
    folder.mkdir()
    for path in (outside / "a.txt", outside / "deep" / "b.txt", folder / "own.txt"):
        path.write_text("harbour")
    (folder / "a.txt").symlink_to(outside / "a.txt")
    (folder / "deep").symlink_to(outside / "deep")
    (folder / "same.txt").symlink_to(folder / "own.txt")
    assert run("add", str(folder), WORDS_ONLY) == 0
    told = capsys.readouterr().out
    assert "1 added" in told
    assert told.endswith("skipped 2 links that lead out of the folder\n")
    assert run("remove", str(folder)) == 0
    assert search(tmp_path, "harbour") == []


def test_an_index_file_that_cannot_be_used_is_named_with_the_reason(run: Run, docs: Path, tmp_path: Path) -> None:
    file = tmp_path / "data" / "index.db"
    file.parent.mkdir()
    file.write_bytes(b"no database " * 200)
    for arguments in (("list",), ("add", str(docs), WORDS_ONLY), ("remove", "--all")):
        with pytest.raises(Unavailable) as told:
            run(*arguments)
        words = "put a copy in its place, or move it away: `lockgate index add` makes it anew"
        assert told.value.message == f"{file} is damaged: {words}"
    file.unlink()
    file.mkdir()
    with pytest.raises(Unavailable, match=r"index\.db is a directory, not a file: .*--data-dir"):
        run("list")


def test_a_data_directory_that_cannot_be_made_is_named_with_the_reason(
    run: Run, docs: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(Unavailable, match=r"data/index\.db: File exists: .*--data-dir"):
        run("add", str(docs), WORDS_ONLY)
    assert capsys.readouterr() == ("", "")  # nothing was done that could be summed up


def test_an_embedder_that_is_not_there_is_named_with_the_way_round(run: Run, docs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    config = {"embeddings": {"ollama": {"url": url, "model": "nomic"}}, **DETECTORS}
    with pytest.raises(Unavailable) as told:
        run("add", str(docs), config=config)
    assert told.value.message.startswith(f"the embedding model `nomic` at {url}: Embedding failed: cannot connect")
    assert told.value.message.endswith("; without it, index words only with --no-embeddings")


def test_a_run_that_is_terminated_says_how_to_go_on(run: Run, docs: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def terminate() -> None:
            with silent.accept()[0] as taken:
                taken.recv(1)
                os.kill(os.getpid(), signal.SIGTERM)
                taken.recv(1_000_000)

        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        threading.Thread(target=terminate, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            run("add", str(docs), config={"embeddings": {"ollama": {"url": url, "model": "m"}}, **DETECTORS})
    assert capsys.readouterr() == ("", "stopped; the same command goes on from here\n")


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
    lines = capsys.readouterr().out.splitlines()[::2]
    assert [line.partition(": ")[2].partition(";")[0] for line in lines] == [
        "4 added",
        "4 replaced",
        "4 unchanged",
        "4 unchanged",
    ]

    async def ask() -> list[str]:
        async with (
            open_minilm(require_weights()) as embedder,
            open_index(tmp_path / "data" / "index.db", embedder, "x", is_quiet=True) as index,
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
            await forever()
        return await super().embed(texts)


async def test_what_is_in_stays_in_when_it_is_stopped(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.md").write_text(f"ship {number}")
    files = find_files([tmp_path])
    embedder = PausingEmbedder()
    async with open_index(tmp_path / "index.db", embedder, "x", is_quiet=True) as index:
        task = asyncio.create_task(IndexWriter(index, embedder, IndexCounts()).fill(files))
        await embedder.has_stopped.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with open_index(tmp_path / "index.db", TopicEmbedder(), "x", is_quiet=True) as index:
        assert len(await index.list_documents()) == 2
        tally = IndexCounts()
        await IndexWriter(index, TopicEmbedder(), tally).fill(files)
    assert (tally.added, tally.unchanged, tally.is_done) == (3, 2, True)


async def test_an_embedder_that_fails_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("ship")
    embedder, tally = BrokenEmbedder(Unavailable("embedder", "down")), IndexCounts()
    async with open_index(tmp_path / "index.db", embedder, "x", is_quiet=True) as index:
        with pytest.raises(Unavailable):
            await IndexWriter(index, embedder, tally).fill(find_files([tmp_path]))
        assert list(await index.list_documents()) == []
    assert not tally.is_done
