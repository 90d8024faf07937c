# SPDX-License-Identifier: Apache-2.0
"""A required policy means the same as one that a request names, and naming another one besides changes nothing."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.surfaces.comparison import ask_cell, find_faults, list_cells
from tests.surfaces.gateway import RequiredTable, Table, open_table
from tests.surfaces.surfaces import SURFACES

STEP = 4  # of the cells of a surface every fourth is asked, on each surface others


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Table]:
    async with open_table(tmp_path_factory.mktemp("required"), RequiredTable) as opened:
        yield opened


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("surface", SURFACES)
async def test_a_cell_is_the_same_where_its_policy_is_required_and_the_request_names_another(
    table: Table, surface: str
) -> None:
    faults: list[str] = []
    for cell in list_cells(surface)[list(SURFACES).index(surface) % STEP :: STEP]:
        faults += find_faults(surface, cell, await ask_cell(table, surface, cell, is_required=True))
    assert not faults, "\n".join(["", *faults])
