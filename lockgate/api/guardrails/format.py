# SPDX-License-Identifier: Apache-2.0
"""Messages of the guardrails API. Fields stand in the order in which they are written, or reported as missing."""

import enum
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from lockgate.api.shapes import Shape
from lockgate.errors import InvalidRequest, Refusal
from lockgate.gate.release import Release
from lockgate.gate.values import Detection

DetectorMap = dict[str, dict[str, Any]]
MaskList = list[list[Annotated[int, msgspec.Meta(ge=0, title="usize")]]]
Masks = tuple[tuple[int, int], ...]


class ContextType(enum.Enum):
    """What a context consists of."""

    DOCS = "docs"
    URL = "url"


class ContentRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of detection/content."""

    content: str
    detectors: DetectorMap


class ContentLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of a stream-content request; only the first one's `detectors` count."""

    detectors: DetectorMap | None = None
    content: str


class ContextRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of detection/context."""

    detectors: DetectorMap
    content: str
    context_type: ContextType
    context: list[str]


class GeneratedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of detection/generated."""

    prompt: str
    generated_text: str
    detectors: DetectorMap


class ContentDetection(msgspec.Struct, omit_defaults=True):
    """A finding with its position in the text."""

    start: int
    end: int
    text: str
    detection: str
    detection_type: str
    detector_id: str
    score: float
    evidence: list[Any] = []
    metadata: dict[str, Any] = {}


class PlainDetection(msgspec.Struct, omit_defaults=True):
    """A finding of a reviewer, which has no position."""

    detection_type: str
    detection: str
    detector_id: str
    score: float
    evidence: list[Any] = []
    metadata: dict[str, Any] = {}


class PlainAnswer(msgspec.Struct):
    """Answer of detection on chats, contexts and generated texts."""

    detections: list[PlainDetection]


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
CONTEXT_REQUEST = Shape(ContextRequest)
GENERATED_REQUEST = Shape(GeneratedRequest)

_encode = msgspec.json.Encoder().encode


def from_detections(found: Iterable[Detection], shift: int = 0) -> list[ContentDetection]:
    """Findings as they are sent, their spans moved back by `shift`."""
    return [
        ContentDetection(
            one.start - shift, one.end - shift, one.text, one.detection, one.detection_type, *_list_rest(one)
        )
        for one in found
    ]


def from_reviews(found: Iterable[Detection]) -> list[PlainDetection]:
    """Findings of reviewers as they are sent."""
    return [PlainDetection(one.detection_type, one.detection, *_list_rest(one)) for one in found]


def _list_rest(one: Detection) -> tuple[str, float, list[Any], dict[str, Any]]:
    """The last fields of a finding."""
    metadata = dict(sorted((one.metadata or {}).items()))
    return one.detector_id, float(one.score), list(one.evidence), metadata


def read_masks(masks: Sequence[Sequence[int]] | None, path: str) -> Masks:
    """Masks as pairs; raises InvalidRequest for one of another length."""
    for place, mask in enumerate(masks or ()):
        if len(mask) != 2:
            raise InvalidRequest(f"{path}[{place}]: invalid length {len(mask)}, expected a tuple of size 2")
    return tuple((start, end) for start, end in masks or ())


def encode_reviews(found: Iterable[Detection]) -> bytes:
    """The answer of detection on chats, contexts and generated texts."""
    return _encode(PlainAnswer(from_reviews(found)))


def encode_answer(found: Iterable[Detection]) -> bytes:
    """The answer of detection/content."""
    return _encode(ContentAnswer(from_detections(found)))


def encode_line(release: Release, origin: int = 0) -> bytes:
    """One answer line. Spans count from `origin` in the text of the stream."""
    found = from_detections(release.detections, origin)
    start, end = release.claimed or (release.start, release.end)
    return _encode(ContentEvent(found, end, start)) + b"\n"


def encode_error(code: int, details: str, _refusal: Refusal | None = None) -> bytes:
    """An error body."""
    return _encode(ErrorAnswer(code, details))
