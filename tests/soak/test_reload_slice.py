# SPDX-License-Identifier: Apache-2.0
"""A short slice of the reloads under load."""

from pathlib import Path

from tests.soak.reloads import QUICK, run_reloads
from tests.waits import HANG_S


async def test_a_few_reloads_cut_none_of_the_open_streams(tmp_path: Path) -> None:
    outcome = await run_reloads(QUICK._replace(streams=10, rounds=1, idle_s=0.0, seconds=HANG_S), tmp_path)
    assert outcome.faults == []
    assert outcome.passed == 4 + 10 + 2
