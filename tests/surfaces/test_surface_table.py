# SPDX-License-Identifier: Apache-2.0
"""One policy means the same on every surface: released text, findings, outcome and receipt of every cell."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from tests.surfaces.cells import SECRET
from tests.surfaces.comparison import ALLOWED, WRONG, ask_cell, find_faults, list_cells
from tests.surfaces.differences import DIFFERENCES, KNOWN_WRONG
from tests.surfaces.expectations import expect
from tests.surfaces.gateway import Table, open_table
from tests.surfaces.surfaces import SURFACES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Table]:
    async with open_table(tmp_path_factory.mktemp("surfaces")) as opened:
        yield opened


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("surface", SURFACES)
async def test_every_cell_is_as_the_table_says_or_as_an_entry_of_the_differences_says(
    table: Table, surface: str
) -> None:
    faults: list[str] = []
    for cell in list_cells(surface):
        faults += find_faults(surface, cell, await ask_cell(table, surface, cell))
    assert not faults, "\n".join(["", *faults])


def test_no_cell_has_two_entries() -> None:
    spots = [spot for entry in DIFFERENCES for spot in entry.where.list_spots()]
    spots += [spot for fault in KNOWN_WRONG.values() for where in fault.where for spot in where.list_spots()]
    assert [spot for spot, count in Counter(spots).items() if count > 1] == []


def test_every_entry_means_a_cell_of_the_table() -> None:
    wheres = [entry.where for entry in DIFFERENCES] + [one for fault in KNOWN_WRONG.values() for one in fault.where]
    for where in wheres:
        spots = list(where.list_spots())
        told = [
            (one.surface, one.surface.partition("/")[0], one.cell.policy, one.cell.place, one.aspect) for one in spots
        ]
        words = {word for axis in where for word in axis.split()}
        assert words <= {word for one in told for word in one}, where


@pytest.mark.parametrize("surface", SURFACES)
def test_a_wrong_cell_and_an_entry_without_a_difference_are_both_found(surface: str) -> None:
    for cell in list_cells(surface):
        right = expect(cell, retrieves=SURFACES[surface].retrieves)
        told = list(find_faults(surface, cell, right))
        entries = [one for one in {**ALLOWED, **WRONG} if (one.surface, one.cell) == (surface, cell)]
        assert len(told) == len(entries), told
        leaking = replace(right, text={"content": SECRET})
        assert secret_is_told(find_faults(surface, cell, leaking)) == (SECRET not in str(right.text))


def secret_is_told(faults: Iterator[str]) -> bool:
    return any("releases the finding" in fault for fault in faults)
