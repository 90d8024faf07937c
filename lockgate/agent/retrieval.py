# SPDX-License-Identifier: Apache-2.0
"""Documents for an agent's question: all its sources asked at once, read by detectors, put in one order by rank."""

import asyncio
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from lockgate.errors import UpstreamError
from lockgate.gate.values import Document
from lockgate.guard.request import fail_check
from lockgate.index.fusion import Query, fuse
from lockgate.index.hits import SIMILARITY
from lockgate.interfaces import Embedder, HybridSource
from lockgate.rag.sources import DocumentReader, NamedSource
from lockgate.task_groups import run_together


class Library(NamedTuple):
    """What is searched, how much of it is used, and how near in meaning it must be where that is known."""

    sources: Sequence[NamedSource] = ()
    passages: int = 8
    min_similarity: float = 0.0


async def find_documents(wanted: Query, library: Library, reader: DocumentReader, until: float) -> tuple[Document, ...]:
    """The best documents first, only those that may be used, until that time of the loop's clock."""
    if not library.sources:
        return ()
    searches = [(one.path, partial(_search, one, wanted, library.passages)) for one in library.sources]
    try:
        retrievals = await run_together([partial(reader.ask, *one, until) for one in searches], len(searches))
    except UpstreamError as error:  # of a detector: sources tell theirs otherwise
        raise fail_check(error) from error
    kept = [[one for one in retrieval.documents if _is_near(one, library)] for retrieval in retrievals]
    if len(kept) == 1:
        documents = tuple(kept[0][: library.passages])
    else:  # by rank, for their scores mean different things
        ranked = [[(source, place) for place in range(len(found))] for source, found in enumerate(kept)]
        documents = tuple(kept[source][place] for (source, place), _ in fuse(ranked, library.passages))
    reader.note_used(documents)
    return documents


async def _search(named: NamedSource, wanted: Query, limit: int) -> Sequence[Document]:
    """What a source finds, with keywords if it takes them."""
    source = named.open()
    if isinstance(source, HybridSource):
        return await source.search_both(wanted, limit)
    return await source.search(wanted.question, limit)


def _is_near(document: Document, library: Library) -> bool:
    """Whether a document is near enough; without a floor all are, whatever their source takes for similarity."""
    similarity = (document.metadata or {}).get(SIMILARITY)
    if library.min_similarity == 0 or not isinstance(similarity, int | float):
        return True
    return similarity >= library.min_similarity


class PendingVector:
    """A vector that is being made. Cancelling one who awaits it does not cancel it."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: asyncio.Future[Sequence[float]] = asyncio.get_running_loop().create_future()

    async def fill(self, embedder: Embedder, question: str) -> None:
        """Make it. A failure is for those who await it, if anybody does."""
        try:
            [vector] = await embedder.embed([question])
            self._made.set_result(vector)
        except Exception as error:  # noqa: BLE001 - an embedder may be somebody else's code
            self._made.set_exception(error)
            self._made.exception()
        finally:
            self._made.cancel()  # of one that was left, nobody will hear

    def __await__(self) -> Generator[Any, None, Sequence[float]]:
        return asyncio.shield(self._made).__await__()
