# SPDX-License-Identifier: Apache-2.0
"""Adds files to an index, each completely or not at all; unchanged files are skipped."""

import asyncio
import fnmatch
import hashlib
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lockgate.cli.text import count_of, in_one_line
from lockgate.index.hybrid_search import name_model
from lockgate.index.passages import IndexedDocument, Passage, split_passages, text_to_embed
from lockgate.index.readers import MAX_FILE_BYTES, READING_VERSION, SUFFIXES, NoText, read_document
from lockgate.interfaces import Embedder, PassageIndex

_LINE_EVERY_S = 5.0
_SHOW_EVERY_S = 0.2
_KINDS_SHOWN = 6


class FileCandidate(NamedTuple):
    """A file that may be added: its path, and the name that the index stores for it."""

    path: Path
    name: str


@dataclass(slots=True)
class Skipped:
    """Counts of skipped files: of other kinds, not matched by the pattern, and links that lead out of the folder."""

    kinds: Counter[str] = field(default_factory=Counter)
    unmatched: int = 0
    links: int = 0

    def describe(self, pattern: str | None) -> list[str]:
        """One line for each reason."""
        lines = []
        if self.kinds:
            names = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common(_KINDS_SHOWN))
            names += ", …" if len(self.kinds) > _KINDS_SHOWN else ""
            known = " ".join(sorted(SUFFIXES))
            lines.append(f"skipped {count_of(self.kinds.total(), 'file')} of other kinds ({names}); known: {known}")
        if self.unmatched:
            lines.append(f"skipped {count_of(self.unmatched, 'file')} that --glob {pattern} leaves out")
        if self.links:
            lines.append(f"skipped {count_of(self.links, 'link')} that lead{'s' * (self.links == 1)} out of the folder")
        return lines


@dataclass(slots=True)
class IndexCounts:
    """Counts of files and passages so far."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    failed: int = 0
    empty: int = 0
    passages: int = 0
    is_done: bool = False
    is_embedding: bool = False  # the embedder is working, or has failed
    started_s: float = field(default_factory=time.monotonic)

    @property
    def files(self) -> int:
        """The number of files looked at."""
        return self.added + self.replaced + self.unchanged + self.failed + self.empty

    def describe_speed(self) -> str:
        """The number of passages, the time and the speed."""
        taken_s = max(time.monotonic() - self.started_s, 0.001)
        speed = f"{self.files / taken_s:.1f} files/s, {self.passages / taken_s:.0f} passages/s"
        return f"{count_of(self.passages, 'passage')} in {taken_s:.1f} s ({speed})"


class IndexWriter:
    """Adds files one after another."""

    def __init__(self, index: PassageIndex, embedder: Embedder | None, tally: IndexCounts) -> None:
        self._index = index
        self._embedder = embedder
        self._tally = tally
        self._progress = _IndexProgress(tally)
        self._before: frozenset[str] = frozenset()

    async def fill(self, files: Sequence[FileCandidate]) -> None:
        """Add all files; a file that cannot be read is reported and skipped."""
        self._before = frozenset(entry.document.source for entry in await self._index.list_documents())
        self._progress.begin(len(files))
        for file in files:
            self._progress.show(file.name)
            try:
                await self._add(file)
            except NoText as error:
                await self._leave_out(file, error)
            except (OSError, ValueError) as error:
                self._tally.failed += 1
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._progress.complain(file.path, reason)
        self._progress.end()
        self._tally.is_done = True

    async def _add(self, file: FileCandidate) -> None:
        raw = await asyncio.to_thread(_load, file.path)
        source = str(file.path.resolve())
        digest = f"{READING_VERSION}:{hashlib.sha256(raw).hexdigest()}"
        document = IndexedDocument(source, digest, file.name, model=name_model(self._embedder))
        if await self._index.knows(document):
            self._tally.unchanged += 1
            return
        title, passages = await asyncio.to_thread(_cut, file.path.name, raw)
        await self._index.add_document(document._replace(title=title), passages, await self._embed(passages))
        self._tally.passages += len(passages)
        if source in self._before:
            self._tally.replaced += 1
        else:
            self._tally.added += 1

    async def _leave_out(self, file: FileCandidate, error: NoText) -> None:
        """Skip a file without text, and remove its former text from the index. It is not a failure."""
        self._tally.empty += 1
        source = str(file.path.resolve())
        is_known = source in self._before
        if is_known:
            await self._index.remove_documents([source])
        self._progress.complain(file.path, f"{error}, {'taken out of the index' if is_known else 'skipped'}")

    async def _embed(self, passages: Sequence[Passage]) -> Sequence[Sequence[float]]:
        if self._embedder is None:
            return []
        self._tally.is_embedding = True
        vectors = await self._embedder.embed([text_to_embed(passage) for passage in passages])
        self._tally.is_embedding = False
        return vectors


def _load(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")
    if status.st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MB")
    return path.read_bytes()


def _cut(name: str, raw: bytes) -> tuple[str, list[Passage]]:
    document = read_document(name, raw)
    return document.title, split_passages(document.sections, document.title)


def find_files(
    paths: Sequence[Path], pattern: str | None = None, skipped: Skipped | None = None
) -> list[FileCandidate]:
    """The files at and below the paths, each once, in sorted order. The pattern does not apply to a path to a file."""
    found: dict[Path, FileCandidate] = {}
    for path in paths:
        walk = _Walk(path.resolve(), pattern, skipped or Skipped())
        below = walk.find() if path.is_dir() else [FileCandidate(path, path.name)]
        for one in below:
            found.setdefault(one.path.resolve(), one)
    return list(found.values())


class _Walk:
    """Walks a folder, each subfolder once. Links out of it are skipped: removing the folder would leave their files."""

    def __init__(self, base: Path, pattern: str | None, skipped: Skipped) -> None:
        self._base = base
        self._pattern = pattern
        self._skipped = skipped

    def find(self) -> Iterator[FileCandidate]:
        """Yields the files to add."""
        entered: set[tuple[int, int]] = set()
        for place, folders, names in os.walk(self._base, followlinks=True):
            status = os.stat(place)
            if (status.st_dev, status.st_ino) in entered:
                folders.clear()
                continue
            entered.add((status.st_dev, status.st_ino))
            seen = sorted(name for name in folders if not name.startswith("."))
            folders[:] = [name for name in seen if self._is_inside(Path(place, name))]
            for name in sorted(names):
                path = Path(place, name)
                if not name.startswith(".") and self._is_wanted(path):
                    yield FileCandidate(path, (self._base.name / path.relative_to(self._base)).as_posix())

    def _is_wanted(self, path: Path) -> bool:
        if path.suffix.lower() not in SUFFIXES:
            self._skipped.kinds[path.suffix.lower() or "without a suffix"] += 1
            return False
        names = (path.name, path.relative_to(self._base).as_posix())
        if self._pattern is not None and not fnmatch.filter(names, self._pattern):
            self._skipped.unmatched += 1
            return False
        return self._is_inside(path)

    def _is_inside(self, path: Path) -> bool:
        is_inside = not path.is_symlink() or path.resolve().is_relative_to(self._base)
        self._skipped.links += not is_inside
        return is_inside


def is_at_or_below(source: str, path: Path) -> bool:
    """Whether a document's file is `path` or below it; neither needs to exist."""
    return Path(source).is_relative_to(path.resolve())


class _IndexProgress:
    """Shows progress on standard error: on a terminal one line that changes, else a line every few seconds."""

    def __init__(self, tally: IndexCounts) -> None:
        self._tally = tally
        self._is_terminal = sys.stderr.isatty()
        self._total = 0
        self._shown_s = 0.0

    def begin(self, total: int) -> None:
        self._total = total
        self._shown_s = time.monotonic() if not self._is_terminal else 0.0

    def show(self, name: str) -> None:
        now = time.monotonic()
        if now - self._shown_s < (_SHOW_EVERY_S if self._is_terminal else _LINE_EVERY_S):
            return
        self._shown_s = now
        line = f"{self._tally.files}/{self._total} files, {self._tally.describe_speed()}"
        if self._is_terminal:
            print(f"\r\x1b[K{line}  {in_one_line(name)[-40:]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def complain(self, path: Path, reason: str) -> None:
        self.end()
        print(f"lockgate: {in_one_line(str(path))}: {reason}", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
