# SPDX-License-Identifier: Apache-2.0
"""What the two searches of an index find, and how their findings become one list of documents.

A search by words always finds something: some passage has one word of the question. Fusion sees ranks alone, so such
chance hits would push out what the search by meaning has found. A passage therefore counts there only if it has a
third of what the question says, each word weighed by how rare it is. Where there is no other search, all count.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from lockgate.gate.values import Document
from lockgate.index.fusion import fuse

WORDS: Final = "lexical"
MEANING: Final = "vector"
SIMILARITY: Final = "similarity"  # in a document's metadata: how near in meaning it is, where the source knows
MIN_SHARE: Final = 1 / 3


class Hit(NamedTuple):
    """A passage that a search found: its key in the index, and the file that it came from as readers know it."""

    key: int
    file: str
    number: int
    title: str
    text: str


class Spread(NamedTuple):
    """Where a word of the question stands: in how many passages at all, and in which of the hits."""

    passages: int
    hits: Collection[int]


class FoundByWords(NamedTuple):
    """The hits of the search by words, best first; how many passages there are, and each word's spread."""

    hits: Sequence[Hit]
    total: int = 0
    spreads: Sequence[Spread] = ()


def leave_out_chance(found: FoundByWords) -> list[Hit]:
    """The hits that have enough of what the question says."""
    weights = [_weigh(found.total, spread.passages) for spread in found.spreads]
    needed = sum(weights) * MIN_SHARE
    pairs = list(zip(found.spreads, weights, strict=True))
    return [hit for hit in found.hits if sum(weight for one, weight in pairs if hit.key in one.hits) >= needed]


def rank_hits(rankings: Sequence[Sequence[Hit]], limit: int) -> list[tuple[Hit, float]]:
    """The best passages of all searches, with their scores."""
    hits = {hit.key: hit for ranking in rankings for hit in ranking}
    return [(hits[key], score) for key, score in fuse([[hit.key for hit in ranking] for ranking in rankings], limit)]


def build_document(hit: Hit, score: float, similarity: float | None) -> Document:
    """A passage as others see it; `similarity` is its cosine to the question where that is known."""
    metadata: dict[str, Any] = {"id": f"{hit.file}#{hit.number}", "file": hit.file}
    if similarity is not None:
        metadata[SIMILARITY] = similarity
    return Document(hit.title, hit.text, score, metadata)


def find_similarity(document: Document) -> float | None:
    """How near in meaning a document is, where its source has told."""
    told = (document.metadata or {}).get(SIMILARITY)
    if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
        return None
    return float(told)


def _weigh(total: int, passages: int) -> float:
    """How much a word tells: the rarer, the more."""
    return math.log(1 + max(total - passages + 0.5, 0.5) / (passages + 0.5))
