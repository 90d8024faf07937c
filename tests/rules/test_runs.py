# SPDX-License-Identifier: Apache-2.0
"""How the tests are run: warnings about our own code are errors, and in CI a skipped test is a failure."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.server.processes import ROOT, clean_environment
from tests.waits import HANG_S

PLANTED = "import pytest\n\n\ndef test_one() -> None:\n    {}\n"
WARN = "import warnings; warnings.warn_explicit('old', {category}, 'file.py', 1, module='{module}')"


def run_planted(folder: Path, body: str, **variables: str) -> int:
    """The exit code of a test run over a file with one test."""
    (folder / "test_planted.py").write_text(PLANTED.format(body))
    options = ["-q", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.skips", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", ".", "test_planted.py"]
    environ = clean_environment(PYTHONWARNINGS="default", **variables)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("body", "ci", "code"),
    [("pytest.skip('later')", "true", 1), ("pytest.skip('later')", "", 0), ("pass", "true", 0)],
)
def test_a_skipped_test_fails_the_run_in_ci_only(body: str, ci: str, code: int, tmp_path: Path) -> None:
    assert run_planted(tmp_path, body, CI=ci) == code


LEFT_OPEN = "open(__file__)"
NEVER_AWAITED = "asyncio.sleep(0)"
IN_A_THREAD = "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()"


@pytest.mark.parametrize("fault", [LEFT_OPEN, NEVER_AWAITED, IN_A_THREAD])
def test_what_is_left_open_never_awaited_or_raised_in_a_thread_is_an_error(fault: str, tmp_path: Path) -> None:
    body = f"import asyncio, gc, threading; {fault}; gc.collect()"
    assert run_planted(tmp_path, body) == 1


@pytest.mark.parametrize("module", ["lockgate.errors", "tests.planted", "benchmarks.floor"])
def test_a_warning_about_our_code_is_an_error(module: str) -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module=module)


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, SyntaxWarning, UserWarning])
def test_a_warning_of_another_package_about_itself_is_ignored(category: type[Warning]) -> None:
    warnings.warn_explicit("old", category, "file.py", 1, module="langsmith.client")


def test_a_resource_that_another_package_sees_left_open_is_an_error() -> None:
    with pytest.raises(ResourceWarning):
        warnings.warn_explicit("left open", ResourceWarning, "file.py", 1, module="asyncio.sslproto")


@pytest.mark.parametrize(
    ("module", "category", "code"),
    [
        ("lockgate.errors", "DeprecationWarning", 1),
        ("langsmith.client", "DeprecationWarning", 0),
        ("langsmith.client", "ResourceWarning", 1),
    ],
)
def test_the_same_holds_in_a_process_that_a_test_starts(module: str, category: str, code: int) -> None:
    command = [sys.executable, "-c", WARN.format(module=module, category=category)]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, timeout=HANG_S, check=False)
    assert ended.returncode == code
