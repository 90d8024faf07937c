# SPDX-License-Identifier: Apache-2.0
"""What the searches of an index find, and how their findings become one list of documents.

Decides nothing about ranks (lockgate.core.fusion does) and refuses to know how anything was found.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lockgate.core.fusion import fuse
from lockgate.core.values import Document

WORDS: Final = "lexical"
MEANING: Final = "vector"


class Hit(NamedTuple):
    """A passage that a search found: its key in the index, and the file that it came from as readers know it."""

    key: int
    file: str
    number: int
    title: str
    text: str


def rank_hits(legs: Sequence[Sequence[Hit]], near: Mapping[int, float], limit: int) -> list[Document]:
    """The best passages of all searches; `near` has the cosine to the question where it is known."""
    hits = {hit.key: hit for leg in legs for hit in leg}
    best = fuse([[hit.key for hit in leg] for leg in legs], limit)
    return [_to_document(hits[key], score, near.get(key)) for key, score in best]


def _to_document(hit: Hit, score: float, similarity: float | None) -> Document:
    metadata: dict[str, Any] = {"id": f"{hit.file}#{hit.number}", "file": hit.file}
    if similarity is not None:
        metadata["similarity"] = similarity
    return Document(hit.title, hit.text, score, metadata)


def name_model(embedder: object | None) -> str:
    """Who makes the vectors; vectors of different models are never compared."""
    return "" if embedder is None else str(getattr(embedder, "model", type(embedder).__qualname__))
