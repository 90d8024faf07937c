# SPDX-License-Identifier: Apache-2.0
"""What the pages tell is true of the code, and they speak to users, not to us."""

import re
from pathlib import Path

import pytest

from lockgate.detectors.scans import LOOKBEHIND_CHARS
from lockgate.gate.lanes import LanePlan
from lockgate.gate.release import ReleaseGate, Strategy
from lockgate.gate.values import Frame
from lockgate.telemetry import LogEvent
from lockgate.telemetry.prometheus import PrometheusObserver
from tests.rules.tree import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
GUIDES = [path for path in PAGES if path.parent.name == "docs" or path.name == "README.md"]
TASKS = (
    "guard-a-model",
    "mask-personal-data",
    "answer-from-documents",
    "run-an-agent",
    "migration",
    "run-in-production",
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_KINDS, SHOWN_KINDS = {"console"}, {"json", "python", "text", "toml", "yaml"}
COMMAND = re.compile(
    r"^(?:\$ |(?:\.venv/bin/)?(?:lockgate|python) |(?:make|curl|pip|docker|export|git|grpcurl) )", re.MULTILINE
)
RULE_NUMBER = re.compile(r"\b(?:[ABDG]|LIM)-\d+\b")


def test_pages_for_users_name_no_rule_numbers() -> None:
    assert [path.name for path in PAGES if RULE_NUMBER.search(path.read_text(encoding="utf-8"))] == []


def read_example(strategy: Strategy) -> list[tuple[str, int, list[tuple[int, int, str]]]]:
    """The rows of a strategy's table: detector, how far, and the releases that follow."""
    table = CONCEPTS.split(f"**`{strategy.value}`**")[1].split("---|\n", 1)[1].split("\n\n")[0]
    steps: list[tuple[str, int, list[tuple[int, int, str]]]] = []
    row = re.compile(r"^\| (\w+), up to ([\d, then]+) \|[^|]*\|([^|]*)\|", re.MULTILINE)
    for detector, ends, released in row.findall(table):
        steps += [(detector, int(end), []) for end in re.findall(r"\d+", ends)]
        shown = re.search(r"`(.+)` \((\d+) to (\d+)\)", released)
        if shown:
            steps[-1][2].append((int(shown[2]), int(shown[3]), shown[1]))
    return steps


@pytest.mark.parametrize("strategy", Strategy)
def test_the_worked_examples_of_the_concepts_are_what_the_gate_does(strategy: Strategy) -> None:
    found = re.search(r"^Take `(.+?)`", CONCEPTS, re.MULTILINE)
    assert found
    gate = ReleaseGate(["words", "sentences"], strategy=strategy)
    gate.receive(Frame(0, found[1]))
    steps = read_example(strategy)
    assert len(steps) == 7
    for detector, upto, releases in steps:
        assert [one[:3] for one in gate.clear(detector, upto)] == releases
    assert gate.held_chars == 0


def test_the_numbers_of_the_concepts_are_those_of_the_code() -> None:
    assert f"{LanePlan(()).soft_held_chars:,} characters are held (the soft mark)" in CONCEPTS
    assert f"the last {LOOKBEHIND_CHARS} characters before it" in CONCEPTS
    assert f"only up to {LOOKBEHIND_CHARS - 1} characters before its end" in CONCEPTS


def test_every_event_of_the_log_is_on_the_operations_page() -> None:
    assert [event.value for event in LogEvent if f"`{event.value}`" not in OPERATIONS] == []


def test_every_metric_is_on_the_operations_page() -> None:
    names = re.findall(r"^# TYPE (lockgate_\w+)", PrometheusObserver().render().decode(), re.MULTILINE)
    assert len(names) > 5
    assert sorted(names) == sorted(set(re.findall(r"^\| `(lockgate_\w+)` \|", OPERATIONS, re.MULTILINE)))


def find_unmarked(page: str) -> list[str]:
    """The first lines of blocks whose commands no test runs, and that the paragraph above does not call an example."""
    lost = []
    for found in FENCE.finditer(page):
        kind, body = found.groups()
        above = page[: found.start()].rstrip("\n").rsplit("\n\n", 1)[-1]
        is_shown = kind in SHOWN_KINDS and not COMMAND.search(body)
        if not ((kind in RUN_KINDS and body.startswith("$ ")) or is_shown or "not run" in above):
            lost.append(body.splitlines()[0])
    return lost


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_command_of_a_page_is_run_by_a_test_or_marked(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert len(FENCE.findall(page)) == page.count("\n```") // 2
    assert find_unmarked(page) == []


@pytest.mark.parametrize(
    ("page", "lost"),
    [
        ("Run:\n\n```console\n$ lockgate serve\n```\n", []),
        ("Run:\n\n```console\nlockgate serve\n```\n", ["lockgate serve"]),
        ("Run:\n\n```sh\nlockgate serve\n```\n", ["lockgate serve"]),
        ("Run:\n\n```\nlockgate serve\n```\n", ["lockgate serve"]),
        ("Run:\n\n```text\n$ lockgate serve\nready\n```\n", ["$ lockgate serve"]),
        ("An example,\nnot run by the tests:\n\n```sh\nlockgate serve\n```\n", []),
        ("Not run there, not run here.\n\nRun:\n\n```sh\nlockgate serve\n```\n", ["lockgate serve"]),
        ("The output:\n\n```text\nready\n```\n", []),
    ],
)
def test_a_command_that_is_neither_run_nor_marked_is_found(page: str, lost: list[str]) -> None:
    assert find_unmarked(page) == lost


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_file_of_a_page_is_used_by_a_command_or_is_that_example(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    commands = "".join(body for kind, body in FENCE.findall(page) if kind in RUN_KINDS)
    for kind, body in FENCE.findall(page):
        name = re.match(r"# ([\w/-]+\.(?:py|yaml))\n", body)
        if name and kind in ("python", "yaml"):
            assert re.search(rf"\b{re.escape(name[1].removesuffix('.py'))}", commands), name[1]
            if name[1].startswith("examples/"):
                assert body == (ROOT / name[1]).read_text(encoding="utf-8")


def test_every_make_command_of_a_page_exists() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert set(re.findall(r"(?:`|^\$ )make ([\w-]+)", pages, re.MULTILINE)) <= {*targets, "help"}


def test_the_readme_fits_two_screens() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("\n## What is different\n")[1].split("\n\n")[1]
    assert readme.count("\n") <= 90
    assert readme.count("<img ") + readme.count("![") == 1
    assert len(table.splitlines()) - 2 <= 6


def test_task_pages_come_first_and_begin_with_what_one_has_at_the_end() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    names = [f"{name}.md" for name in TASKS]
    assert re.findall(r"docs/([\w-]+\.md)", nav)[: len(names)] == names
    assert re.findall(r"\]\(([\w-]+\.md)\)", index)[: len(names)] == names
    for name in names:
        assert (ROOT / "docs" / name).read_text(encoding="utf-8").split("\n\n")[1].startswith("At the end ")
