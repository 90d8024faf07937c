# SPDX-License-Identifier: Apache-2.0
"""The report of the surface table: `python -m tests.surfaces`.

Asks every cell of a gateway and prints those that differ from the one table of expectations, with the rule of a
contract that is the reason. Ends with status 1 where there is none.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.surfaces.answers import ASPECTS
from tests.surfaces.cells import CELLS, POLICIES, SCENES
from tests.surfaces.comparison import ALLOWED, WRONG, Differing, ask_cell, find_differing, find_leaks, list_cells
from tests.surfaces.differences import KNOWN_WRONG
from tests.surfaces.gateway import open_table
from tests.surfaces.surfaces import SURFACES


async def _compare_all(folder: Path) -> tuple[list[Differing], list[str]]:
    """All aspects that differ, and all findings that left though they should not."""
    differing: list[Differing] = []
    leaks: list[str] = []
    async with open_table(folder) as table:
        for surface in SURFACES:
            for cell in list_cells(surface):
                seen = await ask_cell(table, surface, cell)
                differing += find_differing(surface, cell, seen)
                leaks += find_leaks(surface, cell, seen)
    return differing, leaks


def find_reason(one: Differing) -> str:
    """The rule of a contract, or the known fault, or nothing."""
    if one.spot in ALLOWED and ALLOWED[one.spot].instead == one.found:
        entry = ALLOWED[one.spot]
        return f"{entry.rule}: {entry.reason}"
    if one.spot in WRONG:
        kind = WRONG[one.spot]
        return f"WRONG, {kind}. {KNOWN_WRONG[kind].right}"
    return ""


def describe(differing: Iterable[Differing]) -> Iterator[str]:
    """The cells that differ, under their reason; those without one last."""
    ordered = sorted(differing, key=lambda one: (not find_reason(one), find_reason(one)))
    for reason, group in groupby(ordered, key=find_reason):
        of_reason = list(group)
        count = len({(one.spot.surface, one.spot.cell) for one in of_reason})
        yield f"{reason or 'WITHOUT A RULE'} ({count} cells)"
        yield from _describe_cells(of_reason)
        yield ""


def _describe_cells(differing: Sequence[Differing]) -> Iterator[str]:
    for one in differing:
        surface, cell, aspect = one.spot
        yield f"  {surface}, {cell.policy}, {cell.place}: {aspect} is {one.found}, elsewhere {one.expected}"


def main() -> int:
    """Print the report."""
    with TemporaryDirectory() as folder:
        differing, leaks = asyncio.run(_compare_all(Path(folder)))
    asked = sum(len(list_cells(surface)) for surface in SURFACES)
    cells = {(one.spot.surface, one.spot.cell) for one in differing}
    unexplained = [one for one in differing if not find_reason(one)]
    print(f"{len(POLICIES)} policies, {len(SCENES)} places of a finding, {len(SURFACES)} surfaces")
    print(f"{asked} cells of {len(ASPECTS)} aspects ({len(CELLS)} in the table), {len(cells)} cells differ\n")
    print("\n".join([*describe(differing), *leaks]))
    print(f"{len(unexplained)} differences without a rule, {len(leaks)} findings that left")
    return 1 if unexplained or leaks else 0


if __name__ == "__main__":
    sys.exit(main())
