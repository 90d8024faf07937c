# SPDX-License-Identifier: Apache-2.0
"""What the pages about agents tell in tables and numbers is what the code has."""

import argparse
import re

from lockgate.agent.answer import TurnResult
from lockgate.agent.classifier import SHIPPED_MODEL, read_model
from lockgate.agent.graph import CALLER, EMBEDDING, MODEL, RULES
from lockgate.agent.label_trainer import MIN_PER_LABEL, MIN_PRECISION
from lockgate.agent.routes import choose_routes
from lockgate.api.grpc.agent import _list_facts
from lockgate.api.grpc.port import _CODES
from lockgate.api.turn_values import MAX_SESSION_CHARS
from lockgate.cli.main import build_parser
from lockgate.config.agent_settings import AgentSettings, SessionSettings
from lockgate.config.settings import Settings
from lockgate.detectors.judge.scores import FAIR_FROM, GOOD_FROM
from lockgate.index.fusion import LEG_LIMIT, RANK_OFFSET
from lockgate.index.passages import MAX_PASSAGE_CHARS
from lockgate.index.readers import MAX_FILE_BYTES
from lockgate.sessions.rows import MAX_ABORTED
from tests.rules.tree import ROOT

LANGUAGES = {"en": "English", "es": "Spanish", "de": "German"}


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def read_rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without its head."""
    part = page.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"^\|.+\n\|[-|]+\n((?:\|.+\n)+)", part, re.MULTILINE)
    assert table, heading
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in table[1].splitlines()]


AGENT, SESSIONS, RETRIEVAL = read_page("agent.md"), read_page("sessions.md"), read_page("retrieval.md")


def test_the_table_of_routes_is_that_of_the_code() -> None:
    told = [(row[0], row[2], row[3], row[4]) for row in read_rows(AGENT, "## Routes")]
    routes = choose_routes(has_platform=True)
    assert told == [(one.label, "yes" if one.retrieves else "no", one.slot, one.step) for one in routes]


def test_the_layers_are_told_in_their_order() -> None:
    told = [row[0] for row in read_rows(AGENT, "### How a question gets its label")]
    assert told == [CALLER, RULES, EMBEDDING, MODEL]


def test_every_fact_of_a_turn_is_told() -> None:
    assert [row[0] for row in read_rows(AGENT, "## Trailing metadata")] == list(_list_facts(TurnResult(), "s"))


def test_every_status_is_told() -> None:
    rows = {code: row[1] for row in read_rows(read_page("errors.md"), "Over gRPC the same texts come with a status:")
            for code in re.findall(r"\d+", row[0])}  # fmt: skip
    assert rows == {str(int(code)): status.name for code, status in _CODES.items()} | {"500": "INTERNAL"}


def test_the_limits_are_those_of_the_settings() -> None:
    agent, sessions = AgentSettings("a", "m", "m"), SessionSettings()
    told = {row[0]: row[1] for row in read_rows(AGENT, "## Limits and times")}
    assert told["limits.agent_request_bytes"] == f"{Settings().limits.agent_request_bytes >> 20} MiB"
    for name in ("prepare_timeout_s", "first_token_timeout_s", "token_gap_timeout_s", "passages", "min_similarity"):
        assert float(told[f"agents.<id>.{name}"]) == getattr(agent, name)
    both = f"{agent.history_messages}, {agent.history_tokens}"
    assert both in told["agents.<id>.history_messages`, `.history_tokens"]
    kept = {row[0]: row[1] for row in read_rows(SESSIONS, "## How much is kept")}
    assert kept["sessions.max_messages"] == str(sessions.max_messages)


def test_the_numbers_of_retrieval_are_those_of_the_code() -> None:
    assert f"up to {LEG_LIMIT} passages" in RETRIEVAL
    assert f"1 / ({RANK_OFFSET} + rank by words)" in RETRIEVAL
    second_and_fifth = 1 / (RANK_OFFSET + 2) + 1 / (RANK_OFFSET + 5)
    assert f"= {second_and_fifth:.4f} and beats" in RETRIEVAL
    assert f"at most {MAX_PASSAGE_CHARS:,} characters long" in RETRIEVAL
    assert f"up to {MAX_FILE_BYTES >> 20} MB" in RETRIEVAL
    assert f"from {GOOD_FROM} on `good`, from {FAIR_FROM} on `fair`" in RETRIEVAL
    assert f"has {MIN_PER_LABEL} lines of each label and a precision of at least {MIN_PRECISION}" in RETRIEVAL
    assert f"up to {MAX_SESSION_CHARS} characters" in SESSIONS
    assert (MAX_ABORTED, "The latest hundred of a session" in SESSIONS) == (100, True)


def test_the_figures_of_the_classifier_are_those_of_the_shipped_one() -> None:
    model = read_model(SHIPPED_MODEL)
    names = [LANGUAGES[one] for one in model.languages]
    assert f"precise enough: {', '.join(names[:-1])} and {names[-1]}" in RETRIEVAL
    assert f"\n{model.examples} questions, one in five held out" in RETRIEVAL
    told = re.findall(r"^(\w\w) +(\d+) +([\d.]+) +([\d.]+)  yes$", RETRIEVAL, re.MULTILINE)
    assert [one[0] for one in told] == list(model.languages)
    for language, held_out, precision, coverage in told:
        figures = model.figures[language]
        assert int(held_out) == figures["held_out"]
        assert abs(float(precision) - figures["precision"]) < 0.001
        assert abs(float(coverage) - figures["coverage"]) < 0.001


def test_every_command_is_on_a_page() -> None:
    commands = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    paths = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    pages = "".join(path.read_text(encoding="utf-8") for path in paths).replace("make demo", "lockgate demo")
    for name, parser in commands.choices.items():
        inner = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
        for command in [f"{name} {one}" for one in inner.choices] if inner else [name]:
            assert f"lockgate {command}" in pages, command
