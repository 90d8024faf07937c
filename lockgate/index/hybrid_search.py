# SPDX-License-Identifier: Apache-2.0
"""Searches by words and by meaning at once; if one search fails, logs that and returns the other's passages."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from lockgate.errors import TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Document
from lockgate.index.fusion import Query
from lockgate.index.hits import MEANING, WORDS, FoundByWords, Hit, build_document, leave_out_chance, rank_hits
from lockgate.interfaces import Embedder, NamedEmbedder
from lockgate.telemetry import LogEvent, log_event, name_causes

LEG_TIMEOUT_S = 10.0
NO_EMBEDDER = "there is no embedder: run `lockgate setup`"
NO_VECTORS = "no passage has a vector of this embedder: run `lockgate index add` again"
_FAILED = "Search failed: "
T = TypeVar("T")
W = TypeVar("W")
M = TypeVar("M")


class NothingToCompare(Unavailable):
    """A search by meaning is not possible. Its message is ours, so it may be logged."""


@dataclass(frozen=True, slots=True)
class FoundByMeaning:
    """The hits by meaning, nearest first; `look_up` returns the cosines of other passages."""

    hits: Sequence[Hit]
    look_up: Callable[[Collection[int]], Awaitable[Mapping[int, float]]]


async def find_vector(query: Query, embedder: Embedder) -> Sequence[float]:
    """The question's vector, from the task that computes it already if there is one."""
    if query.vector is not None:
        return await query.vector
    [vector] = await embedder.embed([query.question])
    return vector


class DoubleSearch(ABC):
    """An index with two searches; without an embedder it searches words only. Errors and the log have its name."""

    def __init__(self, name: str, embedder: Embedder | None, leg_timeout_s: float) -> None:
        self._name = name
        self._embedder = embedder
        self._leg_timeout_s = leg_timeout_s
        self._warned: dict[str, str] = {}

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        """The best passages for a question, which is also used as its keywords."""
        return await self.search_both(Query(question, question), limit)

    @abstractmethod
    async def search_both(self, query: Query, limit: int) -> Sequence[Document]:
        """Returns the best passages of both searches; raises UpstreamError if both failed."""

    def log_state(self) -> None:
        """Logs what is missing."""
        if self._embedder is None:
            self._warn(MEANING, NO_EMBEDDER)

    async def _ask_both(
        self, by_words: Callable[[], Awaitable[W]], by_meaning: Callable[[], Awaitable[M]] | None
    ) -> tuple[W | None, M | None]:
        """Returns what each search found, None for one that failed; raises UpstreamError if both failed."""
        async with asyncio.TaskGroup() as group:
            first = group.create_task(self._try(WORDS, by_words))
            second = group.create_task(self._try(MEANING, by_meaning)) if by_meaning is not None else None
        words, near = first.result(), second.result() if second is not None else None
        if isinstance(words, UpstreamError) and (near is None or isinstance(near, UpstreamError)):
            raise words
        return self._take_found(WORDS, words), self._take_found(MEANING, near)

    def _take_found(self, leg: str, result: T | UpstreamError) -> T | None:
        if not isinstance(result, UpstreamError):
            return result
        self._warn(leg, result.message if isinstance(result, NothingToCompare) else name_causes(result))
        return None

    async def _build_documents(
        self, words: FoundByWords | None, near: FoundByMeaning | None, limit: int
    ) -> list[Document]:
        rankings: list[Sequence[Hit]] = []
        if words is not None:
            rankings.append(words.hits if near is None else leave_out_chance(words))
        if near is not None:
            rankings.append(near.hits)
        best = rank_hits(rankings, limit)
        cosines: Mapping[int, float] = {}
        if near is not None and best:
            with suppress(TimeoutError, UpstreamError):  # then the passages are returned without their cosines
                async with asyncio.timeout(self._leg_timeout_s):
                    cosines = await near.look_up([hit.key for hit, _ in best])
        return [build_document(hit, score, cosines.get(hit.key)) for hit, score in best]

    async def _try(self, leg: str, search: Callable[[], Awaitable[T]]) -> T | UpstreamError:
        try:
            async with asyncio.timeout(self._leg_timeout_s):
                found = await self._run_leg(leg, search)
        except TimeoutError:
            return TimedOut(self._name, f"{_FAILED}no answer in time")
        except UpstreamError as error:
            return error
        self._warned.pop(leg, None)
        return found

    async def _run_leg(self, leg: str, search: Callable[[], Awaitable[T]]) -> T:
        """Runs a search; raises Unavailable for any error of third-party code, such as an embedder."""
        try:
            return await search()
        except (TimeoutError, UpstreamError):
            raise
        except Exception as error:
            raise Unavailable(self._name, f"{_FAILED}the {leg} search failed") from error

    def _warn(self, leg: str, reason: str) -> None:
        if self._warned.get(leg) != reason:
            self._warned[leg] = reason
            log_event(LogEvent.RETRIEVAL_DEGRADED, logging.WARNING, source=self._name, leg=leg, reason=reason)


def name_model(embedder: Embedder | None) -> str:
    """The model that makes the vectors; vectors of different models are never compared."""
    if embedder is None:
        return ""
    return embedder.model if isinstance(embedder, NamedEmbedder) else type(embedder).__qualname__
