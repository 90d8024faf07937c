# SPDX-License-Identifier: Apache-2.0
"""One policy means the same on every surface: released text, findings, outcome and receipt of every cell."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from tests.surfaces.cells import ANSWER, ARGUMENTS, FALLBACK, SAID, SECRET, Cell, Choice, Scene
from tests.surfaces.comparison import ALLOWED, WRONG, ask_cell, find_faults, list_cells
from tests.surfaces.differences import DIFFERENCES, KNOWN_WRONG
from tests.surfaces.expectations import expect_on
from tests.surfaces.gateway import Table, open_table
from tests.surfaces.surfaces import SURFACES, Request


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


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("surface", ["proxied_chat/whole", "proxied_chat/stream", "model_chat/whole"])
@pytest.mark.parametrize("policy", ["stop", "block"])
@pytest.mark.parametrize(
    "choice",
    [Choice(ANSWER, arguments=ARGUMENTS), Choice(SAID, arguments=ARGUMENTS), Choice(SAID, "Hm.", '{"a": 1}')],
)
async def test_of_an_answer_with_several_texts_the_receipt_counts_those_that_left(
    table: Table, surface: str, policy: str, choice: Choice
) -> None:
    table.upstreams.set_scene(Scene(choices=(choice,)))
    seen = await SURFACES[surface].ask(Request(table, Cell(policy, "tool_arguments"), SURFACES[surface].is_stream))
    assert SECRET not in str(seen)
    assert seen.text["content"].endswith(FALLBACK)
    assert seen.released is not None
    left = seen.text | {"content": seen.text["content"].removesuffix(FALLBACK).removesuffix("\n")}  # not the model's
    assert seen.released["answer"] == sum(map(len, left.values()))
    assert seen.text.get("reasoning", "") == choice.reasoning
    assert seen.text.get("tool_arguments", "") == ""  # the arguments have no sentence before the finding


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
        right = expect_on(surface, cell)
        told = list(find_faults(surface, cell, right))
        entries = [one for one in {**ALLOWED, **WRONG} if (one.surface, one.cell) == (surface, cell)]
        assert len(told) == len(entries), told
        leaking = replace(right, text={"content": SECRET})
        assert secret_is_told(find_faults(surface, cell, leaking)) == (SECRET not in str(right.text))


def secret_is_told(faults: Iterator[str]) -> bool:
    return any("releases the finding" in fault for fault in faults)
