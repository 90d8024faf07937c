# SPDX-License-Identifier: Apache-2.0
"""`lockgate index`: adds files to an index, lists them, removes them. It works while a server runs."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lockgate.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, with_settings
from lockgate.cli.text import complain, count_of, explain_failure
from lockgate.errors import ConfigError, Unavailable, UpstreamError

if TYPE_CHECKING:
    from lockgate.cli.index_documents import IndexCounts
    from lockgate.config.agent_settings import SourceSettings
    from lockgate.config.settings import Settings

_MAX_THREADS = 4  # of the embedder
_NO_WEIGHTS = "there are no embedding weights: run `lockgate setup`, or index words only with --no-embeddings"


def run_add(options: argparse.Namespace) -> int:
    """Carries out `add`."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # stop as on Ctrl-C
    try:
        return asyncio.run(_add(options, options.load(options)))
    finally:
        signal.signal(signal.SIGTERM, before)


def run_remove(options: argparse.Namespace) -> int:
    """Carries out `remove`."""
    if bool(options.paths) == options.all:
        return complain("name what to remove, or --all", EXIT_USAGE)
    return asyncio.run(_remove(options, options.load(options)))


async def _add(options: argparse.Namespace, settings: "Settings") -> int:
    from lockgate.cli.index_documents import IndexCounts, IndexWriter, Skipped, find_files
    from lockgate.opened_agents import open_embedder, open_index_of

    target = _choose(settings, options.source)
    async with contextlib.AsyncExitStack() as stack:
        embedder = None
        if not options.no_embeddings:
            threads = min(os.cpu_count() or 1, _MAX_THREADS)
            embedder = await stack.enter_async_context(open_embedder(settings, threads))
            if embedder is None:
                return complain(_NO_WEIGHTS)
        tally, skipped = IndexCounts(), Skipped()
        with _explain_errors(target, settings, tally):
            async with open_index_of(settings, target.source, embedder, is_quiet=True) as index:
                try:
                    files = find_files(options.paths, options.glob, skipped)
                    await IndexWriter(index, embedder, tally).fill(files)
                finally:
                    _print_summary(tally, target.label)
        for line in skipped.describe(options.glob):
            print(line, flush=True)
    return EXIT_FAILED if tally.failed else EXIT_OK


def _print_summary(tally: "IndexCounts", label: str) -> None:
    """Print what was added, also if the command was stopped: files added so far stay in the index."""
    counts = {
        "added": tally.added,
        "replaced": tally.replaced,
        "unchanged": tally.unchanged,
        "empty": tally.empty,
        "not read": tally.failed,
    }
    words = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    speed = f"; {tally.describe_speed()}" if tally.passages else ""
    if words or tally.is_done:
        print(f"{label}: {words or 'no files to add'}{speed}", flush=True)
    if not tally.is_done and (tally.files or isinstance(sys.exception(), asyncio.CancelledError)):
        print("stopped; the same command goes on from here", file=sys.stderr)


@contextlib.contextmanager
def _explain_errors(target: "_IndexTarget", settings: "Settings", tally: "IndexCounts | None" = None) -> Iterator[None]:
    """Raises Unavailable with a message for operators: whether index or embedder failed, why, and what to do."""
    ollama = settings.embeddings.ollama
    try:
        yield
    except UpstreamError as error:
        if tally is not None and tally.is_embedding:
            where = f"the embedding model `{ollama.model}` at {ollama.url}: " if ollama is not None else ""
            words = f"{where}{error.message}; without it, index words only with --no-embeddings"
        elif target.file is not None:
            words = explain_failure(target.file, error, "`lockgate index add` makes it anew")
        else:
            words = f"{target.label}: {error.message}"
        raise Unavailable(error.service, words) from error


@with_settings
async def run_list(settings: "Settings", options: argparse.Namespace) -> int:
    """Carries out `list`."""
    from lockgate.opened_agents import open_index_of

    target = _choose(settings, options.source)
    with _explain_errors(target, settings):
        async with open_index_of(settings, target.source, is_quiet=True) as index:
            entries = await index.list_documents()
    for entry in entries:
        added = datetime.fromtimestamp(entry.added_at_s).astimezone().strftime("%Y-%m-%d %H:%M")
        found_by = entry.document.model or "words only"
        what = "passage" if entry.passages == 1 else "passages"
        print(f"{entry.passages:>6} {what:<8}  {added}  {found_by:<18} {entry.document.source}")
    total = sum(entry.passages for entry in entries)
    print(f"{target.label}: {count_of(len(entries), 'document')}, {count_of(total, 'passage')}")
    return EXIT_OK


async def _remove(options: argparse.Namespace, settings: "Settings") -> int:
    from lockgate.cli.index_documents import is_at_or_below
    from lockgate.opened_agents import open_index_of

    target = _choose(settings, options.source)
    with _explain_errors(target, settings):
        async with open_index_of(settings, target.source, is_quiet=True) as index:
            known = [entry.document.source for entry in await index.list_documents()]
            missing = [path for path in options.paths if not any(is_at_or_below(one, path) for one in known)]
            wanted = [one for one in known if options.all or any(is_at_or_below(one, path) for path in options.paths)]
            removed = await index.remove_documents(wanted) if wanted else 0
    for path in missing:
        complain(f"{path}: not in the index")
    print(f"{target.label}: {removed} removed")
    return EXIT_FAILED if missing else EXIT_OK


class _IndexTarget(NamedTuple):
    """The chosen index, and its name for messages."""

    label: str
    source: "SourceSettings"
    file: Path | None = None


def _choose(settings: "Settings", wanted: str | None) -> _IndexTarget:
    """The named index; without a name the only one, or the file in the data directory. Raises ConfigError."""
    from lockgate.config.agent_settings import INDEX, SourceSettings
    from lockgate.opened_agents import find_index_file, is_index

    indexes = {name: one for name, one in settings.sources.items() if is_index(one)}
    if wanted is not None and wanted not in indexes:
        is_source = wanted in settings.sources
        reason = "is no index that documents can be added to" if is_source else "there is no such source"
        raise ConfigError(reason, source=settings.source, key=f"sources.{wanted}")
    if wanted is None and len(indexes) > 1:
        words = f"there are several indexes, name one with --source: {', '.join(sorted(indexes))}"
        raise ConfigError(words, source=settings.source, key="sources")
    name = wanted or next(iter(indexes), None)
    source = SourceSettings(INDEX, embedded=INDEX) if name is None else indexes[name]
    if source.postgres is not None:
        return _IndexTarget(f"{source.id} (table {source.postgres.table})", source)
    file = find_index_file(settings, source)
    return _IndexTarget(str(file), source, file)
