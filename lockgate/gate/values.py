# SPDX-License-Identifier: Apache-2.0
"""The values that the machines exchange. All offsets count Unicode code points.

They are named tuples, not frozen dataclasses: just as immutable, and made in less than half the time
(docs/decisions/0001-values-are-named-tuples.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

WHOLE_TEXT_CHUNKER = "whole_doc_chunker"  # its one chunk is the text; always there, under the name that contracts use
# The types of detectors: what each reads, hence where it serves.
TEXT_CONTENTS: Final = "text_contents"
TEXT_GENERATION: Final = "text_generation"
TEXT_CHAT: Final = "text_chat"
TEXT_CONTEXT_DOC: Final = "text_context_doc"


class Span(NamedTuple):
    """A piece of a text: `start` belongs to it, `end` does not."""

    start: int
    end: int


class Frame(NamedTuple):
    """One message of the model stream: its number in the stream, its text, its choice, and what else it carried.

    `is_last`: no more text follows in this choice, though others may go on.
    """

    number: int
    text: str
    choice: int = 0
    fields: Mapping[str, Any] | None = None
    is_last: bool = False


class Chunk(NamedTuple):
    """What a detector reads. `is_forced`: the chunker had to cut where the text does not end.

    `inputs` are the numbers of the first and the last frame that belong to it, where the chunker tells them.
    """

    start: int
    end: int
    text: str
    is_forced: bool = False
    inputs: tuple[int, int] | None = None


class Excerpt(NamedTuple):
    """What a detector is given: a chunk's text, and what stands before it where the cut was forced."""

    text: str
    before: str = ""


class Detection(NamedTuple):
    """One finding. The span is relative to what the detector was given until the batcher places it."""

    start: int
    end: int
    text: str
    detection: str
    detection_type: str
    score: float
    detector_id: str = ""
    evidence: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] | None = None


UNANSWERED: Final[list[Detection]] = []  # known by identity: a detector has said nothing about a text


class Conversation(NamedTuple):
    """A chat as a reviewer reads it: its messages and the tools that were offered, in the caller's own words."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


class Generated(NamedTuple):
    """A prompt and what a model made of it."""

    prompt: str
    text: str


class Claim(NamedTuple):
    """A text and the context that it is compared with; `context_type` is `docs` or `url`."""

    content: str
    context_type: str
    context: Sequence[str]


Subject = Conversation | Generated | Claim


class Generation(NamedTuple):
    """What a backend is asked to generate. `body` is in the backend's own words; `kind` names its endpoint, if any."""

    model: str
    body: Mapping[str, Any]
    headers: Sequence[tuple[str, str]] = ()
    kind: str = ""


class Health(NamedTuple):
    """How a service is. `code` is an HTTP status."""

    status: str
    code: int = 200
    reason: str | None = None


class Document(NamedTuple):
    """One retrieved document; its title is empty where it has none, `source` the path of the source that gave it."""

    title: str
    text: str
    score: float
    metadata: Mapping[str, Any] | None = None
    source: str = ""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    text: str
