# SPDX-License-Identifier: Apache-2.0
"""A slice of the random conversations with tools that `make soak` holds."""

from pathlib import Path

from tests.coverage_law.conversations import Conversation
from tests.coverage_law.world import open_world

CONVERSATIONS = 60


async def test_conversations_with_tools_stay_masked_and_valid(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        for seed in range(CONVERSATIONS):
            assert await Conversation(world, seed).play() == [], f"seed {seed}"
