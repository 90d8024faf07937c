# SPDX-License-Identifier: Apache-2.0
"""A Chromium for tests: the one on the path, else Debian's, installed where we may.

Decides which browser is driven and when there is none; refuses to know what is done with it. A machine is described by
its environment and by who we are, so that the rules can be tried on machines that are not this one.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.waits import HANG_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
UPDATE = ("update",)
INSTALL = ("install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core")
COMMAND = f"apt-get {' '.join(UPDATE)} && apt-get {' '.join(INSTALL)}"
Say = Callable[[str], None]


class Machine(NamedTuple):
    """Where a browser is looked for."""

    environ: Mapping[str, str]
    is_root: bool
    lock: Path = Path(tempfile.gettempdir()) / f"lockgate-chromium-{os.getuid()}.lock"
    timeout_s: float = 2 * HANG_S  # of each command of the installation

    @property
    def is_ci(self) -> bool:
        """Whether a test that cannot run is a failure."""
        return self.environ.get("CI", "").lower() == "true"

    def find(self, *names: str) -> Path | None:
        """The first of these commands that is on the path."""
        path = self.environ.get("PATH", "")
        found = (shutil.which(name, path=path) for name in names)
        return next((Path(one) for one in found if one), None)


class NoBrowser(Exception):
    """There is none, and here is why."""


def require_browser(machine: Machine, say: Say) -> Path:
    """The browser; without one the test is left out, or fails where everything must run."""
    try:
        return find_browser(machine, say)
    except NoBrowser as error:
        words = f"no Chromium: {error}. It is installed, as root, by: {COMMAND}"
    if machine.is_ci:
        pytest.fail(words, pytrace=False)
    pytest.skip(words)


def find_browser(machine: Machine, say: Say) -> Path:
    """The browser on the path, else one that is installed now. Raises NoBrowser."""
    if found := machine.find(*NAMES):
        return found
    installer = machine.find("apt-get")
    if installer is None:
        raise NoBrowser("none is on the path, and there is no apt-get")
    if not machine.is_root:
        raise NoBrowser("none is on the path, and only root may install it")
    with _alone(machine.lock):  # tests run in several processes
        return machine.find(*NAMES) or _install(machine, installer, say)


def _install(machine: Machine, installer: Path, say: Say) -> Path:
    say("Installing Chromium from Debian's packages for the browser tests; this takes about half a minute.")
    environ = {**machine.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (UPDATE, INSTALL):
        _run([str(installer), *arguments], environ, machine.timeout_s)
    found = machine.find(*NAMES)
    if found is None:
        raise NoBrowser("apt-get succeeded, but none is on the path")
    say(f"Chromium is installed: {found}")
    return found


def _run(command: list[str], environ: Mapping[str, str], timeout_s: float) -> None:
    try:
        ended = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoBrowser(f"`apt-get {command[1]}` took longer than it may") from None
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).decode(errors="replace").strip().rpartition("\n")[2]
        raise NoBrowser(f"`apt-get {command[1]}` failed: {said[:300]}")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; whoever ends lets go."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
