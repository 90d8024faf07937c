# SPDX-License-Identifier: Apache-2.0
"""Our guardrails API: shapes of its messages, and their way to and from core values.

Fields stand in the order in which they are written and in which missing ones are reported. Knows no rule beyond shape.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lockgate.core.release import Release
from lockgate.core.values import Detection
from lockgate.wire.shapes import Shape

DetectorMap = dict[str, dict[str, Any]]


class ContentRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of detection/content."""

    content: str
    detectors: DetectorMap


class ContentLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of a stream-content request; only the first one's `detectors` count."""

    detectors: DetectorMap | None = None
    content: str


class ContentDetection(msgspec.Struct, omit_defaults=True):
    """A finding with its place in the text."""

    start: int
    end: int
    text: str
    detection: str
    detection_type: str
    detector_id: str
    score: float
    evidence: list[Any] = []
    metadata: dict[str, Any] = {}


class ContentAnswer(msgspec.Struct):
    """Answer of detection/content."""

    detections: list[ContentDetection]


class ContentEvent(msgspec.Struct):
    """One line of a stream-content answer."""

    detections: list[ContentDetection]
    processed_index: int
    start_index: int


class ErrorAnswer(msgspec.Struct):
    """Every error, as body or as line."""

    code: int
    details: str


CONTENT_REQUEST = Shape(ContentRequest)
CONTENT_LINE = Shape(ContentLine)

_encode = msgspec.json.Encoder().encode


def from_detections(found: Iterable[Detection], shift: int = 0) -> list[ContentDetection]:
    """Findings as they are sent, their spans moved back by `shift`."""
    return [
        ContentDetection(
            one.start - shift,
            one.end - shift,
            one.text,
            one.detection,
            one.detection_type,
            one.detector_id,
            float(one.score),
            list(one.evidence),
            _sorted(one.metadata),
        )
        for one in found
    ]


def encode_answer(found: Iterable[Detection]) -> bytes:
    """The answer of detection/content."""
    return _encode(ContentAnswer(from_detections(found)))


def encode_line(release: Release, *, is_relative: bool) -> bytes:
    """One answer line. `is_relative`: spans count from the release's own text instead of from the stream's."""
    found = from_detections(release.detections, release.start if is_relative else 0)
    return _encode(ContentEvent(found, release.end, release.start)) + b"\n"


def encode_error(code: int, details: str) -> bytes:
    """An error body."""
    return _encode(ErrorAnswer(code, details))


def _sorted(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: metadata[name] for name in sorted(metadata)} if metadata else {}
