# SPDX-License-Identifier: Apache-2.0
"""Asks the cells of the table and compares what is seen with what is expected."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.surfaces.answers import ASPECTS, Seen
from tests.surfaces.cells import CELLS, SECRET, UNGROUNDED, Cell
from tests.surfaces.differences import DIFFERENCES, KNOWN_WRONG, Spot
from tests.surfaces.expectations import expect_on
from tests.surfaces.gateway import Table
from tests.surfaces.surfaces import SURFACES, Request

ALLOWED = {spot: entry for entry in DIFFERENCES for spot in entry.where.list_spots()}
WRONG = {spot: kind for kind, fault in KNOWN_WRONG.items() for where in fault.where for spot in where.list_spots()}


class Differing(NamedTuple):
    """An aspect of a cell that is not as the table says."""

    spot: Spot
    expected: Any
    found: Any


def list_cells(surface: str) -> list[Cell]:
    """The cells that a surface has."""
    return [cell for cell in CELLS if cell.place in SURFACES[surface].places]


async def ask_cell(table: Table, surface: str, cell: Cell, *, is_required: bool = False) -> Seen:
    """What a client of the surface sees; `is_required`: where it names another policy than the required one."""
    table.upstreams.set_scene(cell.scene, cell.keys.order)
    return await SURFACES[surface].ask(Request(table, cell, SURFACES[surface].is_stream, is_required))


def find_differing(surface: str, cell: Cell, seen: Seen) -> Iterator[Differing]:
    """The aspects that differ from the one table of expectations, with or without an entry of the differences."""
    expected = expect_on(surface, cell)
    for aspect in ASPECTS:
        right, found = getattr(expected, aspect), getattr(seen, aspect)
        if found != right:
            yield Differing(Spot(surface, cell, aspect), right, found)


def find_faults(surface: str, cell: Cell, seen: Seen) -> Iterator[str]:
    """What an aspect should be and is not; and entries of the differences that have nothing to say any more."""
    expected = expect_on(surface, cell)
    for aspect in ASPECTS:
        spot = Spot(surface, cell, aspect)
        right, found = getattr(expected, aspect), getattr(seen, aspect)
        wanted = ALLOWED[spot].instead if spot in ALLOWED else right
        name = f"{surface} {cell.policy} {cell.place} {aspect}"
        if spot in WRONG and found == wanted:
            yield f"{name} is right now: take it out of KNOWN_WRONG, `{WRONG[spot]}`"
        elif spot in ALLOWED and wanted == right:
            yield f"{name} does not differ: take it out of DIFFERENCES, {ALLOWED[spot].rule}"
        elif spot not in WRONG and found != wanted:
            yield f"{name}\n   should be {wanted}\n   is        {found}"
    yield from find_leaks(surface, cell, seen)


def find_leaks(surface: str, cell: Cell, seen: Seen) -> Iterator[str]:
    """A finding that left though the table hides it: no entry of the differences excuses that."""
    expected = expect_on(surface, cell)
    for secret in (SECRET, UNGROUNDED):
        if secret in str(seen.text) and secret not in str(expected.text):
            yield f"{surface} {cell.policy} {cell.place} releases the finding: {seen.text}"
