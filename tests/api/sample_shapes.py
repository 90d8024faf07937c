# SPDX-License-Identifier: Apache-2.0
"""Message types for the tests of shapes, close to those of the guardrails contract."""

import enum
from typing import Annotated, Any

import msgspec
import pytest

from lockgate.api.shapes import Shape
from lockgate.errors import InvalidRequest, RequestError, UnreadableBody

Detectors = dict[str, dict[str, Any]]
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Content(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    detectors: Detectors


class Line(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    detectors: Detectors | None = None
    content: str


class PartType(enum.Enum):
    TEXT = "text"
    REFUSAL = "refusal"
    IMAGE = "image_url"


class Part(msgspec.Struct):
    type: PartType
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: Annotated[str | list[Part], msgspec.Meta(title="Content")] | None = None
    name: str | None = None


class Chat(msgspec.Struct, forbid_unknown_fields=True):
    detectors: Detectors
    messages: list[Message]
    tools: list[Any] = []


class ContextType(enum.Enum):
    DOCS = "docs"
    URL = "url"


class Context(msgspec.Struct, forbid_unknown_fields=True):
    detectors: Detectors
    content: str
    context_type: ContextType
    context: list[str]


class Numbers(msgspec.Struct):
    small: Unsigned32 | None = None
    large: Annotated[int, msgspec.Meta(ge=0)] | None = None
    signed: int | None = None
    real: float | None = None
    flag: bool | None = None
    signs: list[int] | None = None


class Input(msgspec.Struct):
    models: dict[str, Any]


class Guardrails(msgspec.Struct):
    input: Input | None = None


class Classification(msgspec.Struct, forbid_unknown_fields=True):
    model_id: str
    inputs: str
    guardrail_config: Guardrails | None = None
    text_gen_parameters: Numbers | None = None


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    raw: msgspec.Raw


CONTENT, LINE, CHAT, CONTEXT = Shape(Content), Shape(Line), Shape(Chat), Shape(Context)
NUMBERS, CLASSIFICATION = Shape(Numbers), Shape(Classification, name="ClassificationRequest")
KEPT, ANYTHING = Shape(Kept), Shape(dict[str, Any])
SHAPES: list[Shape[Any]] = [CONTENT, LINE, CHAT, CONTEXT, NUMBERS, CLASSIFICATION, KEPT, ANYTHING]


def refusal(shape: Shape[Any], body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        shape.decode(body)
    return caught.value


def fitting(shape: Shape[Any], body: bytes) -> bool:
    """Whether the body is taken; anything but the two refusals is an error of the test."""
    try:
        shape.decode(body)
    except (InvalidRequest, UnreadableBody):
        return False
    return True


def free(value: bytes) -> bytes:
    """A content request with `value` at a place where any JSON may stand."""
    return b'{"content":"x","detectors":{"a":{"b":' + value + b"}}}"
