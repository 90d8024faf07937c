# SPDX-License-Identifier: Apache-2.0
"""The steps of a grounded answer, as they are told while they happen, and what is known when it is over.

Values only: who makes them decides, who hears them puts them in words.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lockgate.gate.citations import Citation
from lockgate.gate.receipts import Receipt
from lockgate.gate.values import Detection, Document
from lockgate.rag.retrieval import Retrieval


class RetrievalStarted(NamedTuple):
    """The sources are being asked."""

    sources: int


class SourceEnded(NamedTuple):
    """A source has answered, failed, or is late."""

    retrieval: Retrieval


class RetrievalEnded(NamedTuple):
    """No source is open any more."""

    documents: int
    time_ms: int


class GenerationStarted(NamedTuple):
    """The model is being asked."""


class Token(NamedTuple):
    """A piece of the answer as it may be read; the span is that of the model's text which it stands for."""

    text: str
    start: int
    end: int
    detections: tuple[Detection, ...] = ()


Step = RetrievalStarted | SourceEnded | RetrievalEnded | GenerationStarted | Token


class Outcome:
    """What is known of a request when it is over. Retrievals stand in the order of the request."""

    def __init__(self) -> None:
        self.retrievals: list[Retrieval] = []
        self.ended: list[Retrieval] = []  # in the order in which they ended
        self.documents: list[Document] = []
        self.usage: Mapping[str, int] | None = None
        self.retrieval_ms = self.generation_ms = self.total_ms = 0
        self.found_in_prompt: Sequence[Detection] = ()
        self.found_in_answer: list[Detection] = []
        self.grounding: Sequence[str] = ()  # the detectors that compared the answer with its documents
        self.citations: list[Citation] = []
        self.receipt = Receipt()
        self.excused: Mapping[str, bool] = {}  # detectors that failed, and whether that would have ended the request
        self.pseudonyms: Mapping[str, str] = {}  # what made-up names stand for
        self.is_prompt_blocked = self.is_answer_blocked = False
