# SPDX-License-Identifier: Apache-2.0
"""Detections on a text that is complete: a stream of one frame through the guarded stream."""

from collections.abc import AsyncGenerator, Sequence

from lockgate.core.values import Detection, Frame
from lockgate.pipelines.guarded_stream import open_guarded_stream, plan_lanes
from lockgate.pipelines.guards import ActiveGuard


async def detect_contents(text: str, guards: Sequence[ActiveGuard]) -> list[Detection]:
    """All findings, by where they start; of equal starts in the order of the detectors."""
    found: list[Detection] = []
    async with open_guarded_stream(
        _one_frame(text), guards, plan_lanes(guards, max_held_chars=None, is_whole=True)
    ) as stream:
        async for release in stream:
            found += release.detections
    found.sort(key=lambda one: one.start)
    return found


async def _one_frame(text: str) -> AsyncGenerator[Frame, None]:
    yield Frame(0, text)
