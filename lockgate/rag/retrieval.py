# SPDX-License-Identifier: Apache-2.0
"""What the sources of one question gave, and how their documents are put in one order and under one name each.

Decides which documents reach a prompt, in which order, and that none is lost where titles are equal. Refuses to know
how a source is asked.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from lockgate.gate.values import Detection, Document


class Status(StrEnum):
    """How the query of a source ended."""

    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"


class Inspected(NamedTuple):
    """A document in which something was found, in its text or in its title, and whether it was dropped or changed.

    `place` is where it stands among those that may be used, if it does.
    """

    source: str
    title: str
    detections: tuple[Detection, ...]
    found_in_title: tuple[Detection, ...] = ()
    is_dropped: bool = False
    is_masked: bool = False
    place: int | None = None


class Retrieval(NamedTuple):
    """What one source gave. `retrieved` counts what came, `documents` are those that may be used."""

    path: str
    status: Status
    documents: tuple[Document, ...] = ()
    error: str | None = None
    retrieved: int = 0
    inspected: tuple[Inspected, ...] = ()


def merge_documents(retrievals: Iterable[Retrieval]) -> list[Document]:
    """All documents, the highest score first; equal scores keep the order of the sources, then their own."""
    documents = [document for retrieval in retrievals for document in retrieval.documents]
    documents.sort(key=lambda one: one.score, reverse=True)
    return documents


def name_documents(retrievals: Sequence[Retrieval]) -> dict[str, Document]:
    """Every document under a title of its own: a second one of the same title gets ` (2)`, a third ` (3)`."""
    named: dict[str, Document] = {}
    counts: dict[str, int] = {}
    for retrieval in retrievals:
        for document in retrieval.documents:
            title = document.title or f"Document from {retrieval.path}"
            name = title
            while name in named:
                counts[title] = counts.get(title, 1) + 1
                name = f"{title} ({counts[title]})"
            named[name] = document
    return named
