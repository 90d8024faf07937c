# SPDX-License-Identifier: Apache-2.0
"""A fallback follows whole sentences on a line of its own, on every surface, whole and streamed."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.surfaces.cells import FALLBACK, SECRET, Cell, Choice, Scene
from tests.surfaces.gateway import Table, open_table
from tests.surfaces.surfaces import SURFACES, Request

FIRST = "Of course. "
SAID = f"{FIRST}Write to {SECRET} now. Bye."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Table]:
    async with open_table(tmp_path_factory.mktemp("fallbacks")) as opened:
        yield opened


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("policy", ["stop", "block"])
@pytest.mark.parametrize("surface", SURFACES)
async def test_a_fallback_follows_whole_sentences_on_its_own_line(table: Table, surface: str, policy: str) -> None:
    table.upstreams.set_scene(Scene(choices=(Choice(SAID),)))
    seen = await SURFACES[surface].ask(Request(table, Cell(policy, "output"), SURFACES[surface].is_stream))
    after_sentence = f"{FIRST}\n{FALLBACK}"
    allowed = {after_sentence} if policy == "stop" else {FALLBACK}
    if policy == "block" and SURFACES[surface].is_stream:
        allowed.add(after_sentence)  # the sentence had left before the finding came
    assert seen.text["content"] in allowed
    assert seen.outcome == "cut off"
    assert seen.released is not None
    assert seen.released["answer"] == (0 if seen.text["content"] == FALLBACK else len(FIRST))
