# SPDX-License-Identifier: Apache-2.0
"""The hits of an index's two searches, and their fusion to one list of documents.

A search by words always finds something: some passage has one word of the question. Fusion sees only ranks, so such
chance hits would displace the hits of the search by meaning. A hit by words therefore counts only if its words have a
third of the question's weight; rare words weigh more. Without a search by meaning, all hits count.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from lockgate.gate.values import Document
from lockgate.index.fusion import fuse

WORDS: Final = "lexical"
MEANING: Final = "vector"
SIMILARITY: Final = "similarity"  # in a document's metadata: its cosine to the question, if the source knows it
MIN_SHARE: Final = 1 / 3


class Hit(NamedTuple):
    """A passage that a search found; `key` is its id in the index."""

    key: int
    file: str
    number: int
    title: str
    text: str


class FoundDocuments(list[Document]):
    """The documents of a source, the best first; `left_out` counts those that it sent beyond the limit."""

    left_out = 0


class Spread(NamedTuple):
    """The passages with a word of the question: how many in the index, and which of the hits."""

    passages: int
    hits: Collection[int]


class FoundByWords(NamedTuple):
    """The hits by words, best first; `total` counts the passages of the index."""

    hits: Sequence[Hit]
    total: int = 0
    spreads: Sequence[Spread] = ()


def leave_out_chance(found: FoundByWords) -> list[Hit]:
    """The hits whose words have enough of the question's weight."""
    weights = [_weigh(found.total, spread.passages) for spread in found.spreads]
    needed = sum(weights) * MIN_SHARE
    pairs = list(zip(found.spreads, weights, strict=True))
    return [hit for hit in found.hits if sum(weight for one, weight in pairs if hit.key in one.hits) >= needed]


def rank_hits(rankings: Sequence[Sequence[Hit]], limit: int) -> list[tuple[Hit, float]]:
    """The best passages of all searches, with their scores."""
    hits = {hit.key: hit for ranking in rankings for hit in ranking}
    return [(hits[key], score) for key, score in fuse([[hit.key for hit in ranking] for ranking in rankings], limit)]


def build_document(hit: Hit, score: float, similarity: float | None) -> Document:
    """Builds the document of a passage; `similarity` is its cosine to the question, if known."""
    metadata: dict[str, Any] = {"id": f"{hit.file}#{hit.number}", "file": hit.file}
    if similarity is not None:
        metadata[SIMILARITY] = similarity
    return Document(hit.title, hit.text, score, metadata)


def find_similarity(document: Document) -> float | None:
    """A document's similarity to the question, if its source gives one."""
    value = (document.metadata or {}).get(SIMILARITY)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _weigh(total: int, passages: int) -> float:
    """The weight of a word: the rarer, the higher."""
    return math.log(1 + max(total - passages + 0.5, 0.5) / (passages + 0.5))
