# SPDX-License-Identifier: Apache-2.0
"""The black-box suites of the contracts, as they are, against the installed command."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.processes import clean_environment

SUITES = Path(__file__).parents[1] / "conformance"
_PORTS = 1000  # a suite takes a range of ports


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


@pytest.mark.parametrize(
    ("suite", "prefix", "port_flag"),
    [
        ("guardrails", "env LOCKGATE_COMPAT=fms ", "--base-port"),
        ("aggregator", "", "--port-base"),
        ("agent", "", "--port-base"),
    ],
)
def test_the_suite_passes_every_case(suite: str, prefix: str, port_flag: str) -> None:
    command = f"{prefix}{sys.executable} -m lockgate serve"
    run = subprocess.run(
        [sys.executable, "run.py", "--cmd", command, port_flag, str(_free_range())],
        cwd=SUITES / suite,
        env=clean_environment() | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " 0 failed" in run.stdout
