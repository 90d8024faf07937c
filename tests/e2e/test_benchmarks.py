# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run from end to end. How fast anything is stays their own business: no time is asserted here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.agent import open_house
from benchmarks.chat import TITLES, Case, check
from benchmarks.measuring import QUICK, Row, read_answer
from benchmarks.processes import open_relay, open_upstream
from benchmarks.upstream import CHAT_PATH

_ROOT = Path(__file__).resolve().parents[2]
_SECTIONS = ("agent", "chat", "content", "core", "detectors", "grounded", "growth", "retrieval", "sharing", "stream")
_ALL_MET, _MISSED = 0, 1


def test_a_quick_run_prints_every_section_and_writes_its_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--results", str(tmp_path)]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert not ended.stderr
    assert ended.returncode in (_ALL_MET, _MISSED)
    assert sorted(path.stem for path in tmp_path.iterdir()) == list(_SECTIONS)
    for section in _SECTIONS:
        result = json.loads((tmp_path / f"{section}.json").read_text(encoding="utf-8"))
        assert f"\n{section}\n" in ended.stdout
        for row in result["rows"]:
            assert row["name"] in ended.stdout
            assert row["verdict"] in (("",) if row["target"] is None else ("PASS", "FAIL"))


@pytest.mark.parametrize("name", ["findings", "plain"])
def test_each_text_is_one_kilobyte(name: str) -> None:
    assert (_ROOT / "benchmarks" / "texts" / f"{name}.txt").stat().st_size == 1024


def test_the_answer_has_two_hundred_tokens() -> None:
    assert len(read_answer()) == 200


def test_the_floor_of_chat_passes_the_whole_answer_on_however_it_comes() -> None:
    with open_upstream() as upstream, open_relay(upstream) as relay:
        for how in TITLES:
            check(relay, CHAT_PATH, Case("floor", how), QUICK)


def test_the_agent_and_the_direct_client_make_the_same_calls(tmp_path: Path) -> None:
    with open_house(tmp_path) as house:
        found = house.ask(kind="turns", count=1, label="")  # fails where the calls are others
    assert [len(times) for times in found.values()] == [1, 1]


def test_a_target_is_the_most_that_may_be_or_the_least() -> None:
    assert [Row("", value, "x", 15.0).verdict for value in (14.0, 15.0, 16.0)] == ["PASS", "PASS", "FAIL"]
    assert [Row("", value, "x", 15.0, True).verdict for value in (14.0, 15.0, 16.0)] == ["FAIL", "PASS", "PASS"]


def test_the_comparison_with_others_can_be_asked_what_it_is() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--help"]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "LiteLLM" in ended.stdout


def test_a_section_that_does_not_exist_is_named() -> None:
    command = [sys.executable, "-m", "benchmarks", "nothing"]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "no such section: nothing" in ended.stderr
