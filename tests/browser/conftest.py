# SPDX-License-Identifier: Apache-2.0
"""The browser, a gateway with scripted parts, and the demo: each once per file.

The tests of a file share an event loop, for the browser lives in it.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.chromium import Machine, require_browser
from tests.browser.demo_process import DemoProcess, running_demo
from tests.browser.scripted_house import House, open_house
from tests.browser.visits import HANG_MS

ONLY_HERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> Path:
    """The browser's place; where it has to be installed first, that is said on the terminal."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(words: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{words}", file=sys.stderr, flush=True)

    return require_browser(Machine(os.environ, os.geteuid() == 0), say)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    """A browser without a window."""
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=chromium, args=[ONLY_HERE], chromium_sandbox=os.geteuid() != 0, timeout=HANG_MS
        )
        yield opened
        await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    """A gateway in which everything goes as it is written down."""
    async with open_house() as opened:
        yield opened


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, chromium: Path) -> Iterator[DemoProcess]:
    """`lockgate demo`, as anybody starts it."""
    with running_demo(tmp_path_factory.mktemp("demo")) as running:
        yield running
