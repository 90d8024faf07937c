# SPDX-License-Identifier: Apache-2.0
"""The plan of a stream, made of its guards."""

from collections.abc import Sequence

from lockgate.gate.lanes import LanePlan
from lockgate.guard.detectors import ActiveGuard
from lockgate.guard.stream import list_readers


def plan_lanes(guards: Sequence[ActiveGuard], *, is_whole: bool = False) -> LanePlan:
    """How a text goes through that these guards read."""
    return LanePlan(list_readers(guards), is_whole=is_whole)
