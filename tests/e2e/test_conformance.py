# SPDX-License-Identifier: Apache-2.0
"""The black-box suites of the contracts, as they are, against the installed command; and our own cases of one of them.

Our cases take every rule of the aggregator from more sides than its suite does: odd values of every field, of
addresses, replies and streams, on both endpoints. The files in `tests/server/chat_vectors` hold one case per line,
`profiles.json` the settings that they need. The suites mostly wait, so all of them run at the same time.
"""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server.processes import ROOT, clean_environment
from tests.waits import HANG_S

SUITES = ROOT / "tests" / "conformance"
OUR_CASES = ROOT / "tests" / "server" / "chat_vectors"
_PORTS = 1000  # a suite takes a range of ports
# The suites, what stands before the command, and how a suite calls the first of its ports.
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "guardrails": ("env LOCKGATE_COMPAT=fms ", "--base-port"),
    "aggregator": ("", "--port-base"),
    "agent": ("", "--port-base"),
    "our cases": ("", "--port-base"),
}


class Run(NamedTuple):
    """A suite at work, and where it writes."""

    process: subprocess.Popen[bytes]
    output: Path


def _list_free_ranges() -> Iterator[int]:
    """The first ports of ranges of which the ends and the middle are free."""
    for base in range(21_000, 32_000, _PORTS):
        try:
            for port in (base, base + _PORTS // 2, base + _PORTS - 1):
                with socket.socket() as trial:
                    trial.bind(("127.0.0.1", port))
        except OSError:
            continue
        yield base


def _find_folder(suite: str, folder: Path) -> Path:
    """Where the runner of a suite is; that of our cases is the aggregator's."""
    if suite != "our cases":
        return SUITES / suite
    for name in ("run.py", "mocks.py"):
        shutil.copy(SUITES / "aggregator" / name, folder)
    shutil.copytree(OUR_CASES, folder / "vectors")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Run]]:
    """All suites, begun."""
    started: dict[str, Run] = {}
    with ExitStack() as stack:
        for (suite, (prefix, port_flag)), port in zip(_COMMANDS.items(), _list_free_ranges(), strict=False):
            folder = tmp_path_factory.mktemp("suite")
            output = folder / "output"
            process = subprocess.Popen(
                [
                    sys.executable,
                    "run.py",
                    "--cmd",
                    f"{prefix}{sys.executable} -m lockgate serve",
                    port_flag,
                    str(port),
                ],
                cwd=_find_folder(suite, folder),
                env=clean_environment() | {"PYTHONWARNINGS": "ignore"},
                stdout=stack.enter_context(output.open("wb")),
                stderr=subprocess.STDOUT,
            )
            started[suite] = Run(process, output)
        try:
            yield started
        finally:
            for one in started.values():
                one.process.kill()
                one.process.wait()


@pytest.mark.parametrize("suite", _COMMANDS)
def test_the_suite_passes_every_case(runs: Mapping[str, Run], suite: str) -> None:
    status = runs[suite].process.wait(2 * HANG_S)
    printed = runs[suite].output.read_text(encoding="utf-8")
    faults = "\n".join(line for line in printed.splitlines() if not line.startswith("ok "))
    assert status == 0, faults[-6000:]
    assert " 0 failed" in printed
