# SPDX-License-Identifier: Apache-2.0
"""`lockgate evaluate` opens the real gateway and prints what came out; the example is one that it can use."""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate.agent.evaluate import load_questions
from lockgate.cli.main import build_parser
from lockgate.config.load import load_settings
from lockgate.errors import CannotEvaluate, EvaluationFailed, InvalidRequest
from lockgate.telemetry import logger

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "evaluation"
CONFIG = """
models:
  main: {{embedded: "tests.e2e.evaluation_parts:open_model"}}
  judge: {{embedded: "tests.e2e.evaluation_parts:open_judge"}}
sources:
  shelf: {{embedded: "tests.e2e.evaluation_parts:open_shelf"}}
agents:
  default: {{main: main, sources: [shelf]}}
evaluation: {{questions: "{questions}"{judge}}}
data_dir: "{folder}"
"""
QUESTIONS = [
    {"id": "journal", "category": "good", "question": "How long are entries kept?", "reference": "For 90 days."},
    {"id": "keep", "category": "good", "question": "For how long is the journal kept?", "reference": "For 90 days."},
    {"id": "broken", "category": "bad", "question": "What is broken?", "reference": "Nothing."},
]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The command silences the log of its process."""
    root = logging.getLogger()
    before, sinks = [(one, one.level) for one in (root, logger)], root.handlers[:]
    yield
    root.handlers[:] = sinks
    for one, level in before:
        one.setLevel(level)


def run(folder: Path, *arguments: str, judge: str = ", judge: judge", config: str = CONFIG) -> int:
    questions = folder / "questions.jsonl"
    questions.write_text("\n".join(json.dumps(one) for one in QUESTIONS), encoding="utf-8")
    path = folder / "config.yaml"
    path.write_text(config.format(questions=questions, judge=judge, folder=folder), encoding="utf-8")
    options = build_parser().parse_args(["evaluate", *arguments])
    options.load = lambda _options: load_settings(config_path=path, flags={}, environ={})
    code: int = options.run(options)
    return code


def test_scores_are_printed_as_a_table_and_progress_goes_to_standard_error(tmp_path: Path, capsys: Any) -> None:
    assert run(tmp_path) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("2 of 3 questions in ")
    assert lines[0].endswith("judged by judge: partial")
    assert [line.split()[:2] for line in lines if line.startswith("faithfulness")] == [["faithfulness", "1.00"]]
    assert [line.split() for line in lines if line.startswith("global")] == [["global", "1.00", "good"]]
    row = next(line.split() for line in lines if line.startswith("journal "))
    assert row[:7] == ["journal", "good", "1.00", "1.00", "1.00", "1.00", "1"]
    assert "They are kept for 90 days. More is not known." in out
    assert lines[-1].startswith("broken  the agent failed: ")
    assert "broken: failed: the agent failed: " in err
    assert sorted(line.partition("]")[0] for line in err.splitlines()) == ["[1/3", "[2/3", "[3/3"]
    assert "\x1b" not in out + err


def test_everything_can_be_had_as_json(tmp_path: Path, capsys: Any) -> None:
    assert run(tmp_path, "--json", "--category", "good", "--limit", "1", "--index", "shelf") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["questions_evaluated"], shown["verdict"]) == ("ok", 1, "good")
    assert (shown["details"][0]["id"], shown["details"][0]["n_chunks"]) == ("journal", 1)
    assert shown["details"][0]["scores"]["context_precision"] == 1.0
    assert shown["failures"] == []


def test_what_cannot_be_evaluated_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(EvaluationFailed, match="no question could be evaluated") as told:
        run(tmp_path, "--category", "bad")
    assert told.value.message.endswith("; agent `default` uses `main`, the judge is `judge`")
    with pytest.raises(CannotEvaluate, match=r"`evaluation\.judge`"):
        run(tmp_path, judge="")
    with pytest.raises(CannotEvaluate, match=rf"No such file or directory \({tmp_path}/gone\.jsonl\)"):
        run(tmp_path, config=CONFIG.replace("{questions}", f"{tmp_path}/gone.jsonl"))
    with pytest.raises(InvalidRequest, match="no agent `other` is configured; there are: default"):
        run(tmp_path, "--agent", "other")
    with pytest.raises(InvalidRequest, match="no source `other`"):
        run(tmp_path, "--index", "other")
    with pytest.raises(InvalidRequest, match="no agent is configured"):
        run(tmp_path, config="detectors: {{pii: {{embedded: pii}}}}")


def test_the_example_has_questions_that_its_pages_answer() -> None:
    questions = load_questions(EXAMPLE / "questions.jsonl")
    pages = " ".join(path.read_text(encoding="utf-8") for path in (EXAMPLE / "docs").glob("*.md")).casefold()
    assert Counter(one.category for one in questions) == {"basics": 4, "jobs": 4, "operations": 4}
    for one in questions:
        words = [word for word in one.reference.casefold().replace(".", " ").replace(",", " ").split() if len(word) > 4]
        known = [word for word in words if word in pages]
        assert len(known) >= 0.7 * len(words), one.id
