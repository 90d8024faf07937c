# SPDX-License-Identifier: Apache-2.0
"""What the pages tell is true of the code, and they speak to users, not to us."""

import re

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
