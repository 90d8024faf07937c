# SPDX-License-Identifier: Apache-2.0
"""A short slice of the agent's long runs: servers are killed, two share a store; and a look at the judge."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.soak.agent.broken import VARIANTS
from tests.soak.agent.faulty import find_unnoticed
from tests.soak.agent.forge import Forge, Store, open_forge
from tests.soak.agent.laws import judge
from tests.soak.agent.play import Crowd, Game, Manners, TalkReport, play_crowd, play_kills

SEED = 7
BRISK = Manners(leave=0.1, again=0.2)


@pytest.fixture(scope="module")
async def forge() -> AsyncIterator[Forge]:
    async with open_forge() as opened:
        yield opened


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path, request.getfixturevalue("postgres_dsn") if request.param == "PostgreSQL" else "")
