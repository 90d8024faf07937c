# SPDX-License-Identifier: Apache-2.0
"""`lockgate sessions`: lists, shows, exports and deletes sessions. It works while a server runs."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lockgate.cli import EXIT_OK, EXIT_USAGE, with_settings
from lockgate.cli.text import align, complain, count_of, explain_failure, in_one_line, printable, replace_file

if TYPE_CHECKING:
    from lockgate.config.settings import Settings
    from lockgate.interfaces import SessionArchive
    from lockgate.sessions.turns import SessionKey, StoredTurn

_COLUMNS = ("CALLER", "AGENT", "ID", "TURNS", "LAST")
_MARGIN = "    "
_LABEL_FIELDS = ("query", "label", "layer", "confidence")


@with_settings
async def run_list(settings: "Settings", options: argparse.Namespace) -> int:
    """Carries out `sessions list`."""
    from lockgate.opened_agents import find_sessions_file

    file = find_sessions_file(settings)
    if file is not None and not file.exists():
        print(f"no sessions yet: there is no {file}", file=sys.stderr)
        return EXIT_OK
    async with _open_archive(settings) as archive:
        entries = await archive.list_sessions(options.caller)
    if not entries:
        print("no sessions", file=sys.stderr)
        return EXIT_OK
    rows = [(*map(in_one_line, one.key), str(one.turns), _name_time(one.last_at)) for one in entries]
    for line in align([_COLUMNS, *rows]):
        print(line)
    return EXIT_OK


@with_settings
async def run_show(settings: "Settings", options: argparse.Namespace) -> int:
    """Carries out `sessions show`."""
    key = _build_key(options, options.id)
    async with _open_archive(settings) as archive:
        turns = await archive.read_session(key)
    if not turns:
        return complain(f"there is no session {_describe(key)}")
    print(f"session {_describe(key)}")
    for turn in turns:
        print(f"\n{_name_time(turn.at)}  {_summarise(turn)}")
        _print_message("user", turn.question)
        _print_message("assistant", turn.answer)
    return EXIT_OK


def _summarise(turn: "StoredTurn") -> str:
    """The label of a turn and how it was chosen, in one line."""
    label = in_one_line(turn.label) or "no label"
    if turn.aborted:
        return f"{label}  ABORTED: {in_one_line(turn.aborted)} (not part of the history)"
    layer = f" by {in_one_line(turn.layer)}" if turn.layer else ""
    confidence = f", confidence {turn.confidence:.2f}" if turn.confidence is not None else ""
    return f"{label}{layer}{confidence}"


def _print_message(role: str, text: str) -> None:
    print(f"  {role}:")
    for line in printable(text).split("\n"):
        print(f"{_MARGIN}{line}".rstrip())


@with_settings
async def run_export(settings: "Settings", options: argparse.Namespace) -> int:
    """Carries out `sessions export`."""
    turns = sessions = 0
    async with _open_archive(settings) as archive:
        with _open_output(options.output) as output:
            for entry in reversed(await archive.list_sessions(options.caller)):
                sessions += 1
                for turn in await archive.read_session(entry.key):
                    if not (options.labels and turn.aborted):
                        turns += 1
                        record = _build_record(entry.key, turn)
                        if options.labels:
                            record = {name: record[name] for name in _LABEL_FIELDS}
                        print(json.dumps(record, ensure_ascii=output.isatty()), file=output)
    print(f"{count_of(turns, 'turn')} of {count_of(sessions, 'session')} exported", file=sys.stderr)
    return EXIT_OK


def _build_record(key: "SessionKey", turn: "StoredTurn") -> dict[str, Any]:
    return {
        "caller": key.caller,
        "agent": key.agent,
        "session": key.id,
        "at": _name_time(turn.at),
        "query": turn.question,
        "answer": turn.answer,
        "label": turn.label,
        "layer": turn.layer,
        "confidence": turn.confidence,
        "request_id": turn.request_id,
        "aborted": turn.aborted or None,
    }


@contextlib.contextmanager
def _open_output(name: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears only when complete and that only its owner can read."""
    if name in (None, "-"):
        yield sys.stdout
        sys.stdout.flush()  # before the summary on standard error
        return
    from lockgate.errors import ConfigError

    try:
        with replace_file(Path(str(name)), mode=0o600) as output:
            yield output
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", source=str(name)) from None


def run_delete(options: argparse.Namespace) -> int:
    """Carries out `sessions delete`."""
    keys = [_build_key(options, name) for name in dict.fromkeys(options.ids)]
    settings = options.load(options)
    if not options.yes:
        if not sys.stdin.isatty():
            return complain("standard input is not a terminal: use --yes to delete without a question", EXIT_USAGE)
        names = "".join(f"\n  {_describe(key)}" for key in keys)
        print(f"Delete everything about these sessions?{names}\n[y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return complain("nothing was deleted")
    return asyncio.run(_delete(settings, keys))


async def _delete(settings: "Settings", keys: Sequence["SessionKey"]) -> int:
    code = EXIT_OK
    async with _open_archive(settings) as archive:
        for key in keys:
            if await archive.delete_session(key):
                print(f"deleted {_describe(key)}")
            else:
                code = complain(f"there is no session {_describe(key)}")
    return code


@contextlib.asynccontextmanager
async def _open_archive(settings: "Settings") -> AsyncIterator["SessionArchive"]:
    """Opens the session store for administration. Does not create a missing file: the settings may be wrong."""
    from lockgate.errors import ConfigError, Unavailable
    from lockgate.interfaces import SessionArchive
    from lockgate.opened_agents import find_sessions_file, open_sessions

    file = find_sessions_file(settings)
    if file is not None and not file.exists():
        raise ConfigError("there is no session store yet", source=str(file))
    try:
        async with open_sessions(settings) as store:
            if not isinstance(store, SessionArchive):
                words = f"the session store `{settings.sessions.embedded}` cannot list, show or delete sessions"
                raise ConfigError(words, source=settings.source, key="sessions.embedded")
            yield store
    except Unavailable as error:
        if file is None:
            raise
        words = explain_failure(file, error, "sessions then begin anew")
        raise Unavailable(error.service, words) from error


def _build_key(options: argparse.Namespace, name: str) -> "SessionKey":
    from lockgate.sessions.turns import SessionKey

    return SessionKey(options.caller, options.agent, name)


def _describe(key: "SessionKey") -> str:
    return f"`{in_one_line(key.id)}` of {in_one_line(key.caller)} with agent {in_one_line(key.agent)}"


def _name_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
