# SPDX-License-Identifier: Apache-2.0
"""Where a browser comes from: every case on a machine that is a folder of small commands."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.browser.chromium import COMMAND, Machine, NoBrowser, find_browser, require_browser
from tests.waits import HANG_S

INSTALLS = """echo "$DEBIAN_FRONTEND $*" >> "{folder}/diary"
if [ "$1" = install ]; then printf '#!/bin/sh\\n' > "{folder}/chromium"; /bin/chmod +x "{folder}/chromium"; fi"""


def machine(folder: Path, *, is_root: bool = True, timeout_s: float = HANG_S, ci: str | None = None) -> Machine:
    """One whose whole path is that folder."""
    environ = {"PATH": str(folder)} | ({} if ci is None else {"CI": ci})
    return Machine(environ, is_root, folder / "lock", timeout_s)


def put(folder: Path, name: str, script: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script.format(folder=folder)}\n")
    path.chmod(0o755)
    return path


def diary(folder: Path) -> list[str]:
    path = folder / "diary"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"])
def test_a_browser_on_the_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    put(tmp_path, "apt-get", INSTALLS)
    browser = put(tmp_path, name)
    said: list[str] = []
    assert require_browser(machine(tmp_path, ci="true"), said.append) == browser
    assert (said, diary(tmp_path)) == ([], [])


def test_chromium_comes_before_others(tmp_path: Path) -> None:
    put(tmp_path, "google-chrome")
    assert find_browser(machine(tmp_path), print) == tmp_path / "google-chrome"
    put(tmp_path, "chromium")
    assert find_browser(machine(tmp_path), print) == tmp_path / "chromium"


def test_root_installs_debians_and_says_so(tmp_path: Path) -> None:
    put(tmp_path, "apt-get", INSTALLS)
    said: list[str] = []
    assert find_browser(machine(tmp_path), said.append) == tmp_path / "chromium"
    assert diary(tmp_path) == [
        "noninteractive update",
        "noninteractive install -y --no-install-recommends chromium fonts-dejavu-core",
    ]
    assert [line.split()[0] for line in said] == ["Installing", "Chromium"]


def test_two_that_look_at_once_install_once(tmp_path: Path) -> None:
    put(tmp_path, "apt-get", f"/bin/sleep 0.2\n{INSTALLS}")
    here = machine(tmp_path)
    with ThreadPoolExecutor(3) as crowd:
        found = list(crowd.map(lambda _: find_browser(here, lambda _: None), range(3)))
    assert found == [tmp_path / "chromium"] * 3
    assert len(diary(tmp_path)) == 2


def test_nobody_else_installs_anything(tmp_path: Path) -> None:
    put(tmp_path, "apt-get", INSTALLS)
    with pytest.raises(NoBrowser, match="only root may install it"):
        find_browser(machine(tmp_path, is_root=False), print)
    assert diary(tmp_path) == []


def test_without_apt_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoBrowser, match="there is no apt-get"):
        find_browser(machine(tmp_path), print)


def test_a_failure_is_told_in_the_words_of_apt(tmp_path: Path) -> None:
    put(tmp_path, "apt-get", "echo first >&2; echo 'E: Could not resolve' >&2; exit 100")
    with pytest.raises(NoBrowser, match="`apt-get update` failed: E: Could not resolve"):
        find_browser(machine(tmp_path), lambda _: None)


def test_an_installation_that_brings_none_is_told(tmp_path: Path) -> None:
    put(tmp_path, "apt-get")
    with pytest.raises(NoBrowser, match="none is on the path"):
        find_browser(machine(tmp_path), lambda _: None)


def test_an_installation_is_not_waited_for_forever(tmp_path: Path) -> None:
    put(tmp_path, "apt-get", "exec /bin/sleep infinity")
    with pytest.raises(NoBrowser, match="took longer"):
        find_browser(machine(tmp_path, timeout_s=0.3), lambda _: None)


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_without_a_browser_a_test_is_left_out_with_the_command_that_helps(tmp_path: Path, ci: str | None) -> None:
    with pytest.raises(pytest.skip.Exception) as left_out:
        require_browser(machine(tmp_path, ci=ci), print)
    assert COMMAND in str(left_out.value)


def test_without_a_browser_a_test_fails_where_everything_must_run(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        require_browser(machine(tmp_path, ci="true"), print)
    assert COMMAND in str(failed.value)
