# SPDX-License-Identifier: Apache-2.0
"""Where surfaces differ from the table. Both lists can only shrink: an entry that no longer differs fails the test.

`DIFFERENCES` may stay: a rule of a contract is the reason, and `instead` is what is seen. `KNOWN_WRONG` is work to do:
each kind says what is right. A surface without `/whole` or `/stream` means both. To remove what has been mended, take
its words out of the entry that the failing test names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.surfaces.cells import CELLS, Cell
from tests.surfaces.surfaces import SURFACES

STREAMS = "proxied_chat/stream proxied_text/stream v2_chat/stream v2_text/stream model_chat/stream model_text/stream"
MASKS, SHADOWS = "mask mask_label mask_pseudonym", "shadow_mask shadow_block"
ACTIONS = f"annotate {MASKS} stop block"
GUESSES = "speculative speculative_late"
FAILS, PASSES = "fail fail_4xx", "pass pass_4xx shadow_fail shadow_pass"


class Spot(NamedTuple):
    """One aspect of one cell on one surface."""

    surface: str
    cell: Cell
    aspect: str


class Where(NamedTuple):
    """All cells with one of the words of each axis that exist."""

    surfaces: str
    policies: str
    places: str
    aspects: str

    def list_spots(self) -> Iterator[Spot]:
        """Every spot that is meant."""
        for name, surface in SURFACES.items():
            if name in self.surfaces.split() or name.partition("/")[0] in self.surfaces.split():
                for cell in CELLS:
                    if cell.place in surface.places and self._means(cell):
                        yield from (Spot(name, cell, aspect) for aspect in self.aspects.split())

    def _means(self, cell: Cell) -> bool:
        return cell.policy in self.policies.split() and cell.place in self.places.split()


class Difference(NamedTuple):
    """A difference that a rule of a contract asks for."""

    rule: str
    reason: str
    where: Where
    instead: Any


class Fault(NamedTuple):
    """A kind of difference without such a rule."""

    right: str
    where: Sequence[Where]


DIFFERENCES: Sequence[Difference] = (
    Difference(
        rule="agent.md, B-22",
        reason="a message of the service has a text, a code and an end: it has no place for findings",
        where=Where("agent_grpc", f"{ACTIONS} drop {GUESSES}", "input output documents grounding", "findings"),
        instead=[],
    ),
    Difference(
        rule="aggregator.md, A-88",
        reason="the event `error` has a message and no status",
        where=Where("aggregator/stream", "fail fail_4xx", "input output documents grounding", "outcome"),
        instead="error without a status",
    ),
)

KNOWN_WRONG: Mapping[str, Fault] = {}
