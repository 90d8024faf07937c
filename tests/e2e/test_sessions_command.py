# SPDX-License-Identifier: Apache-2.0
"""`lockgate sessions`, run on real stores."""

import argparse
import asyncio
import io
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.cli.main import build_parser
from lockgate.config.agent_settings import PostgresSettings, SessionSettings
from lockgate.config.kinds import Secret
from lockgate.config.settings import Settings
from lockgate.errors import ConfigError, Unavailable
from lockgate.sessions.turns import AbortedTurn, SessionKey, StoreLimits, Turn
from tests.soak.sessions.writer import open_store

ANONYMOUS = SessionKey("anonymous", "default", "s1")
ANA = SessionKey("ana", "coder", "zwei\nzeilen")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egoal\r"

Run = Callable[..., int]


class Terminal(io.StringIO):
    """A standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


async def fill(address: str) -> None:
    async with open_store(address, StoreLimits()) as store:
        for key in (ANONYMOUS, ANA):
            async with store.hold(key):
                await store.append(
                    key, Turn("What is it?", f"Two\nlines {EVIL}", "RETRIEVAL", "it", "model", 0.75, "r1")
                )
        await store.abort(ANONYMOUS, AbortedTurn("And now?", "Half an", "client left", "CONVERSATIONAL"))


@pytest.fixture(params=["sqlite", "postgres"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs `lockgate sessions` with arguments, on a store with two sessions."""
    postgres = None
    address = str(tmp_path / "sessions.db")
    if request.param == "postgres":
        address = request.getfixturevalue("postgres_dsn")
        postgres = PostgresSettings("DSN", Secret(address))
    asyncio.run(fill(address))
    sessions = SessionSettings(None if postgres else "sessions.db", postgres)
    return build_run(Settings(sessions=sessions, data_dir=tmp_path))


def build_run(settings: Settings) -> Run:
    def run(*arguments: str) -> int:
        options = build_parser().parse_args(["sessions", *arguments], argparse.Namespace(load=lambda _: settings))
        code: int = options.run(options)
        return code

    return run


def check_harmless(shown: str) -> None:
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_sessions_are_listed_the_latest_first(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    shown = capsys.readouterr().out
    check_harmless(shown)
    head, first, second = shown.splitlines()
    assert head.split() == ["CALLER", "AGENT", "ID", "TURNS", "LAST"]
    assert first.split()[:4] == ["anonymous", "default", "s1", "1"]
    assert second.split()[:4] == ["ana", "coder", "zwei\ufffdzeilen", "1"]
    assert run("list", "--caller", "ana") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run("list", "--caller", "bob") == 0
    assert capsys.readouterr() == ("", "no sessions\n")


def test_a_session_is_shown_as_a_dialogue_that_cannot_command_a_terminal(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", "s1") == 0
    shown = capsys.readouterr().out
    check_harmless(shown)
    assert "RETRIEVAL by model, confidence 0.75\n  user:\n    What is it?\n  assistant:\n    Two\n    lines" in shown
    assert "CONVERSATIONAL  ABORTED: client left (not part of the history)\n  user:\n    And now?" in shown
    assert shown.index("What is it?") < shown.index("Half an")
    assert run("show", "zwei\nzeilen", "--caller", "ana", "--agent", "coder") == 0
    assert run("show", "s1", "--caller", "ana") == 3
    assert "there is no session `s1` of ana with agent default" in capsys.readouterr().err


def test_turns_are_exported_as_json_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export") == 0
    out, err = capsys.readouterr()
    turns = [json.loads(line) for line in out.splitlines()]
    assert [(turn["session"], turn["query"], turn["aborted"]) for turn in turns] == [
        ("zwei\nzeilen", "What is it?", None),
        ("s1", "What is it?", None),
        ("s1", "And now?", "client left"),
    ]
    assert turns[0]["answer"] == f"Two\nlines {EVIL}"
    assert err == "3 turns of 2 sessions exported\n"


def test_labels_are_exported_without_aborted_turns(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    assert run("export", "--labels", "--caller", "anonymous", "-o", str(output)) == 0
    label = {"query": "What is it?", "label": "RETRIEVAL", "layer": "model", "confidence": 0.75}
    assert [json.loads(line) for line in output.read_text("utf-8").splitlines()] == [label]
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="cannot be written"):
        run("export", "-o", str(tmp_path / "nowhere" / "labels.jsonl"))
    assert not list(tmp_path.glob("*.part"))


def test_sessions_are_deleted_only_after_a_yes(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run("delete", "s1") == 2
    assert "use --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert run("delete", "s1") == 3
    assert "nothing was deleted" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("delete", "s1") == 0
    assert capsys.readouterr().out == "deleted `s1` of anonymous with agent default\n"
    assert run("delete", "s1", "zwei\nzeilen", "--yes") == 3
    assert run("delete", "zwei\nzeilen", "--caller", "ana", "--agent", "coder", "--yes") == 0
    capsys.readouterr()
    assert run("list") == 0
    assert capsys.readouterr().out == ""


def run_on(folder: Path) -> Run:
    return build_run(Settings(data_dir=folder))


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_on(tmp_path)
    assert run("list") == 0
    assert capsys.readouterr() == ("", f"no sessions yet: there is no {tmp_path}/sessions.db\n")
    with pytest.raises(ConfigError, match=r"sessions\.db: there is no session store yet"):
        run("show", "s1")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_damaged_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "sessions.db"
    file.write_bytes(b"no database " * 200)
    with pytest.raises(Unavailable) as told:
        run_on(tmp_path)("list")
    words = "put a copy in its place, or move it away: sessions then begin anew"
    assert told.value.message == f"{file} is damaged: {words}"
