# SPDX-License-Identifier: Apache-2.0
"""Reciprocal rank fusion: merges several rankings of the same documents, by their ranks only."""

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, TypeVar

RANK_OFFSET = 60  # the higher, the less the first ranks differ
LEG_LIMIT = 24  # how many documents each search returns


Id = TypeVar("Id", int, str, tuple[int, int])


class Query(NamedTuple):
    """A question; `vector` is set if a task computes it already."""

    question: str
    keywords: str
    vector: Awaitable[Sequence[float]] | None = None


def fuse(rankings: Sequence[Sequence[Id]], limit: int) -> list[tuple[Id, float]]:
    """The best ids with scores: by score, then best rank, then id. An id counts once in each ranking."""
    ranks: dict[Id, list[int]] = {}
    for ranking in rankings:
        for rank, one in enumerate(dict.fromkeys(ranking), 1):
            ranks.setdefault(one, []).append(rank)
    scores = {one: sum(1 / (RANK_OFFSET + rank) for rank in sorted(found)) for one, found in ranks.items()}
    best = sorted(ranks, key=lambda one: (-round(scores[one], 12), min(ranks[one]), one))
    return [(one, scores[one]) for one in best[:limit]]
