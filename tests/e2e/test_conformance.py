# SPDX-License-Identifier: Apache-2.0
"""The black-box suites of the contracts, as they are, against the installed command."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.server.processes import clean_environment

SUITES = Path(__file__).parents[1] / "conformance"
_PORTS = 120  # a suite takes a range of ports


def _free_range() -> int:
    """The first of a range of ports of which the ends and the middle are free."""
    for base in range(21_000, 32_000, _PORTS):
        try:
            for port in (base, base + _PORTS // 2, base + _PORTS - 1):
                with socket.socket() as trial:
                    trial.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no free range of ports")


def test_the_guardrails_suite_passes_every_case() -> None:
    command = f"env LOCKGATE_COMPAT=fms {sys.executable} -m lockgate serve"
    run = subprocess.run(
        [sys.executable, "run.py", "--cmd", command, "--base-port", str(_free_range())],
        cwd=SUITES / "guardrails",
        env=clean_environment() | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " 0 failed" in run.stdout


def test_the_aggregator_suite_passes_every_case() -> None:
    run = subprocess.run(
        [sys.executable, "run.py", "--cmd", f"{sys.executable} -m lockgate serve", "--port-base", "22000"],
        cwd=SUITES / "aggregator",
        env=clean_environment() | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " 0 failed" in run.stdout
