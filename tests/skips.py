# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: with CI=true a skipped test fails the run, unless it is listed here with its reason."""

import os

import pytest

# Test id -> why a fresh machine cannot run it.
ALLOWED: dict[str, str] = {}


class SkipCheck:
    """Collects what was skipped."""

    def __init__(self) -> None:
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.unlisted:
            terminalreporter.line(f"SKIPPED WHERE EVERY TEST MUST RUN {test}", red=True)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and report.nodeid not in ALLOWED:
            self.unlisted.append(report.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest. A worker of xdist leaves the check to the process that started it."""
    if os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipCheck())
