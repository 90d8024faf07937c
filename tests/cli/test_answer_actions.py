# SPDX-License-Identifier: Apache-2.0
"""The words for what was done to an answer. The page has the same cases (tests/browser/test_actions.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockgate.cli.answer_actions import name_actions

CASES = json.loads((Path(__file__).parents[1] / "browser" / "actions.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[one["case"] for one in CASES])
def test_the_words_say_what_the_receipt_and_the_findings_prove(case: dict[str, Any]) -> None:
    assert name_actions(case["done"], case.get("answer", "")) == case["actions"]
