# SPDX-License-Identifier: Apache-2.0
"""Embedders for tests that need no weights: small, exact, and able to fail."""

import math
from collections.abc import Sequence

from lockgate.index.search_words import find_search_words
from tests.waits import forever

TOPICS = (
    {"car", "automobile", "wheels", "drive"},
    {"ship", "vessel", "harbour", "sail"},
    {"bread", "loaf", "bakery", "oven"},
    {"money", "invoice", "refund", "pay"},
)


class TopicEmbedder:
    """Knows four topics; words of one topic mean the same to it. Everything else is the last number."""

    def __init__(self, model: str = "topics", length: int = len(TOPICS) + 1) -> None:
        self.model = model
        self._length = length
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.asked += texts
        return [self._embed(text) for text in texts]

    def _embed(self, text: str) -> list[float]:
        words = find_search_words(text)
        numbers = [float(sum(word in topic for word in words)) for topic in TOPICS]
        numbers += [0.0] * (self._length - 1 - len(numbers))
        numbers.append(0.25)
        length = math.sqrt(sum(number * number for number in numbers))
        return [number / length for number in numbers]


class BrokenEmbedder:
    """Always raises the same."""

    model = "topics"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        raise self._error


class HangingEmbedder(TopicEmbedder):
    """Never answers."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        await forever()
