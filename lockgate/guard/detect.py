# SPDX-License-Identifier: Apache-2.0
"""Detections on what is complete: contents, as a stream through the guarded stream; and what reviewers read whole."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from lockgate.errors import RequestError
from lockgate.gate.lanes import LanePlan
from lockgate.gate.values import Detection, Frame, Subject
from lockgate.gate.verdicts import keep
from lockgate.guard.detectors import ActiveGuard, ActiveReview, list_readers, refuse
from lockgate.guard.stream import open_guarded_stream
from lockgate.task_groups import run_together


class Slice(NamedTuple):
    """A piece of a text that is read on its own, and where it starts."""

    start: int
    text: str


async def detect_contents(
    text: str, guards: Sequence[ActiveGuard], max_open: int = 5, *, trusts_chunks: bool = False
) -> list[Detection]:
    """All findings, by where they start; of equal starts in the order of the detectors."""
    return await detect_slices([Slice(0, text)], guards, max_open, trusts_chunks=trusts_chunks)


async def detect_slices(
    slices: Sequence[Slice],
    guards: Sequence[ActiveGuard],
    max_open: int = 5,
    *,
    max_cuts: int = 5,
    trusts_chunks: bool = False,
) -> list[Detection]:
    """The findings in slices of a text, with their place in that text."""
    plan = LanePlan(
        list_readers(guards),
        max_open=max_open,
        max_held_chars=None,
        is_whole=True,
        feeds_empty=True,
        trusts_chunks=trusts_chunks,
        max_cuts=max_cuts,
    )
    found: list[Detection] = []
    async with open_guarded_stream(_one_frame_each(slices), guards, plan) as stream:
        async for release in stream:
            found += release.detections
    if found:
        found = list(_move_back(found, slices))
        found.sort(key=lambda one: one.start)
    return found


async def review_all(reviews: Sequence[ActiveReview], subject: Subject, max_open: int = 5) -> list[Detection]:
    """The findings of all reviewers, in the order of the reviewers."""
    found = await run_together([partial(_review, one, subject) for one in reviews], max_open)
    return [one for of_reviewer in found for one in of_reviewer]


async def _review(active: ActiveReview, subject: Subject) -> list[Detection]:
    name = active.guard.id
    try:
        found = await active.review.review(subject)
    except RequestError as error:
        raise refuse(name, error) from error
    return [one._replace(detector_id=name) for one in keep(found, active.threshold)]


async def _one_frame_each(slices: Iterable[Slice]) -> AsyncGenerator[Frame, None]:
    for number, piece in enumerate(slices):
        yield Frame(number, piece.text)


def _move_back(found: Iterable[Detection], slices: Sequence[Slice]) -> Iterable[Detection]:
    """The findings with spans in the text that the slices come from, not in the slices joined."""
    if len(slices) == 1:
        shift = slices[0].start
        return [one._replace(start=one.start + shift, end=one.end + shift) for one in found] if shift else found
    shifts: list[tuple[int, int]] = []
    joined = 0
    for piece in slices:
        shifts.append((joined, piece.start - joined))
        joined += len(piece.text)
    moved = []
    for one in found:
        shift = next(shift for begin, shift in reversed(shifts) if one.start >= begin or begin == 0)
        moved.append(one._replace(start=one.start + shift, end=one.end + shift))
    return moved
