# SPDX-License-Identifier: Apache-2.0
"""The table of commands: each names a function that exists, and has words for those who look for it."""

import tomllib
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from lockgate.cli.ask import LOWEST_SCORE
from lockgate.cli.main import build_parser
from lockgate.sessions.turns import ANONYMOUS, DEFAULT_AGENT
from tests.rules.tree import PACKAGE

TABLE = tomllib.loads((PACKAGE / "cli" / "commands.toml").read_text("utf-8"))


def list_commands(commands: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for one in commands.values():
        yield one
        yield from list_commands(one.get("commands", {}))


def test_every_command_has_help_and_runs_a_function_or_has_commands() -> None:
    commands = list(list_commands(TABLE["commands"]))
    assert len(commands) > 15
    for one in commands:
        assert one["help"]
        assert ("run" in one) != ("commands" in one)
        assert "run" not in one or callable(resolve_name(f"lockgate.cli.{one['run']}"))


def test_every_option_is_explained_and_every_group_is_used() -> None:
    listed = [option for one in list_commands(TABLE["commands"]) for option in one.get("options", ())]
    assert {one for one in listed if isinstance(one, str)} == TABLE["groups"].keys()
    options = [one for one in listed if not isinstance(one, str)]
    assert [one["flags"] for one in options if "help" not in one] == ["texts"]


def test_the_defaults_are_those_of_the_modules() -> None:
    parser = build_parser()
    shown = parser.parse_args(["sessions", "show", "x"])
    assert (shown.caller, shown.agent) == (ANONYMOUS, DEFAULT_AGENT)
    assert parser.parse_args(["ask"]).threshold == LOWEST_SCORE
