# SPDX-License-Identifier: Apache-2.0
"""The values that the state machines exchange. All offsets count Unicode code points.

They are named tuples, not frozen dataclasses: also immutable, but created in less than half the time
(docs/decisions/0001-values-are-named-tuples.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

WHOLE_TEXT_CHUNKER = "whole_doc_chunker"  # built in; its one chunk is the whole text
# The types of detectors: the input that each reads.
TEXT_CONTENTS: Final = "text_contents"
TEXT_GENERATION: Final = "text_generation"
TEXT_CHAT: Final = "text_chat"
TEXT_CONTEXT_DOC: Final = "text_context_doc"


class Span(NamedTuple):
    """A range of a text; `end` is exclusive."""

    start: int
    end: int


class Frame(NamedTuple):
    """One message of the model stream: its number in the stream, its text, its choice, and its other fields.

    `is_last`: no more text follows in this choice; other choices may continue.
    """

    number: int
    text: str
    choice: int = 0
    fields: Mapping[str, Any] | None = None
    is_last: bool = False


class Chunk(NamedTuple):
    """A piece of text that a detector reads. `is_forced`: the chunker had to cut where no boundary is.

    `inputs`: the numbers of the chunk's first and last frame, if the chunker reports them.
    """

    start: int
    end: int
    text: str
    is_forced: bool = False
    inputs: tuple[int, int] | None = None


class Excerpt(NamedTuple):
    """The input of a detector: a chunk's text, and the look-behind text before it after a forced cut."""

    text: str
    before: str = ""


class Detection(NamedTuple):
    """One finding. The span is relative to the detector's input until the batcher makes it relative to the text."""

    start: int
    end: int
    text: str
    detection: str
    detection_type: str
    score: float
    detector_id: str = ""
    evidence: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] | None = None


def find_span_fault(found: Detection, text: str, before: str = "") -> str:
    """Returns what is wrong with the place of a finding in its text, "" if nothing; quotes nothing of the text.

    `before`: the text before it that the detector has read too. Only an empty text may have an empty span.
    """
    start, end, length, shift = found.start, found.end, len(text), len(before)
    if not -shift <= start <= end <= length:
        return f"result {start}..{end} lies outside its text of {length} characters"
    if start == end and (text or start):
        return f"result {start}..{end} is empty"
    if found.text != (text[start:end] if start >= 0 else (before + text)[start + shift : end + shift]):
        return f"the `text` of result {start}..{end} is not what stands there; offsets count code points"
    return ""


UNANSWERED: Final[list[Detection]] = []  # compared by identity: the detector gave no response for a text


class Conversation(NamedTuple):
    """A chat that a reviewer reads: its messages and tools as the caller sent them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


class Generated(NamedTuple):
    """A prompt and the text that a model generated for it."""

    prompt: str
    text: str


class Claim(NamedTuple):
    """A text and the context that it is compared with; `context_type` is `docs` or `url`."""

    content: str
    context_type: str
    context: Sequence[str]


Subject = Conversation | Generated | Claim


class Generation(NamedTuple):
    """A request to a model backend. `body` has the backend's own format; `kind` names its endpoint, if any."""

    model: str
    body: Mapping[str, Any]
    headers: Sequence[tuple[str, str]] = ()
    kind: str = ""


class Health(NamedTuple):
    """The health of a service. `code` is an HTTP status."""

    status: str
    code: int = 200
    reason: str | None = None


class Document(NamedTuple):
    """One retrieved document; `title` may be empty, `source` is the path of its data source."""

    title: str
    text: str
    score: float
    metadata: Mapping[str, Any] | None = None
    source: str = ""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    text: str
