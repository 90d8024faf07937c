# SPDX-License-Identifier: Apache-2.0
"""The gateway of the law of coverage, and its upstreams."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.coverage_law.world import World, open_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One gateway for all surfaces."""
    async with open_world(tmp_path_factory.mktemp("law")) as opened:
        yield opened
