# SPDX-License-Identifier: Apache-2.0
"""A short slice of the long runs, and a look at the checker: it must notice what it is there for."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.soak.crowd import Crowd, Outcome, run_crowd
from tests.soak.texts import Checker, LawBroken, Sample
from tests.waits import HANG_S

FOUND = {"start": 4, "end": 7, "text": "tea", "detector_id": "words"}
SAMPLE = Sample("Hot tea. Bye.", (), Counter([json.dumps(FOUND)]))


async def test_a_small_crowd_of_mixed_speed_breaks_no_law_and_leaves_nothing(tmp_path: Path) -> None:
    crowd = Crowd(clients=20, rounds=2, seed=7, visits=1, phrases=40, settle_s=HANG_S, stop_s=HANG_S, idle_s=0.0)
    outcome = await run_crowd(crowd, tmp_path, HANG_S)
    faults = [
        fault for fault in outcome.faults if "resident memory" not in fault
    ]  # two short rounds tell nothing of it
    assert faults == []
    assert outcome.passed >= 2 * (20 + 1) + 3


def line(start: int, end: int, *found: dict[str, Any]) -> bytes:
    return json.dumps({"detections": list(found), "processed_index": end, "start_index": start}).encode()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line(1, 5)], "does not follow 0"),
        ([line(0, 0)], "does not follow 0"),
        ([line(0, 9, FOUND), line(0, 9)], "does not follow 9"),
        ([line(0, 9, FOUND, FOUND)], "unexpected or repeated"),
        ([line(0, 4), line(4, 9)], "findings never came"),
        ([line(0, 2, FOUND)], "did not come with the first line"),
        ([line(0, 5), line(5, 9, FOUND)], "did not come with the first line"),
        ([line(0, 9, {**FOUND, "start": 5})], "unexpected or repeated"),
        ([line(0, 9, FOUND)], "9 of 13 characters"),
        ([b'{"code":500,"details":"x"}'], "not an answer line"),
    ],
)
def test_the_checker_notices_every_kind_of_broken_law(lines: list[bytes], words: str) -> None:
    checker = Checker(SAMPLE)
    with pytest.raises(LawBroken, match=words):
        for raw in lines:
            checker.take(raw)
        if words == "findings never came":
            checker.take(line(9, 13))
        checker.finish()


def test_the_checker_accepts_a_right_stream() -> None:
    checker = Checker(SAMPLE)
    for raw in (line(0, 4), line(4, 9, FOUND), line(9, 13)):
        checker.take(raw)
    checker.finish()


def test_a_claim_that_fails_is_counted_as_one() -> None:
    outcome = Outcome()
    outcome.claim(True, "x")
    outcome.claim(False, "y")
    assert (outcome.passed, outcome.faults) == (1, ["y"])
