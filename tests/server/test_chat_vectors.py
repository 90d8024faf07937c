# SPDX-License-Identifier: Apache-2.0
"""Our own cases of retrieve and answer, in the form of the aggregator's suite and played by its runner.

They take every rule from more sides than the suite does: odd values of every field, of addresses, replies and streams,
on both endpoints. The files in `chat_vectors` hold one case per line, `profiles.json` the settings that they need.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.processes import clean_environment

SUITE = Path(__file__).parents[1] / "conformance" / "aggregator"
CASES = Path(__file__).parent / "chat_vectors"
_FIRST_PORT, _PORTS_EACH = 32_000, 1_000  # the runner takes a range; beside it another run of the tests may be at work


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The runner beside our cases."""
    for name in ("run.py", "mocks.py"):
        shutil.copy(SUITE / name, tmp_path)
    shutil.copytree(CASES, tmp_path / "vectors")
    return tmp_path


def test_every_case_of_ours_passes(suite: Path) -> None:
    first_port = _FIRST_PORT + os.getpid() % 20 * _PORTS_EACH
    run = subprocess.run(
        [sys.executable, "run.py", "--cmd", f"{sys.executable} -m lockgate serve", "--port-base", str(first_port)],
        cwd=suite,
        env=clean_environment() | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    told = "\n".join(line for line in run.stdout.splitlines() if not line.startswith("ok "))
    assert run.returncode == 0, told[-6000:] + run.stderr[-2000:]
    assert " 0 failed" in run.stdout
