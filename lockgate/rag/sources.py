# SPDX-License-Identifier: Apache-2.0
"""Searches the sources of a question, each with a time limit, and has detectors read their documents.

A source that fails or times out gives no documents, and the others continue.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from lockgate.errors import TimedOut, UpstreamError
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import Detection, Document
from lockgate.gate.verdicts import Action, Verdict, judge_whole, mask_part
from lockgate.guard.error_words import read_words
from lockgate.guard.policy import Meter, Policy
from lockgate.guard.request import to_check_failed
from lockgate.guard.stream import Slice, detect_slices
from lockgate.index.fusion import Query, fuse
from lockgate.index.hits import SIMILARITY, FoundDocuments
from lockgate.interfaces import DataSource, HybridSource, SourceReading
from lockgate.task_groups import run_together
from lockgate.telemetry import LogEvent, describe_exception, limit_calls, log_event, name_causes

TIMED_OUT = "Request timed out"
_BROKEN = "The source failed"
_SOURCE = "source"  # how errors name it
_AFTER_TITLE = "\n\n"
_WINDOW = 64  # documents of one source with a task at the same time
MAX_LOGGED_CHARS = 200


class NamedSource(NamedTuple):
    """A source and the path under which answers cite it. `query`: searched for in place of the question."""

    path: str
    source: DataSource
    query: str | None = None


class Bounds(NamedTuple):
    """The bytes in UTF-8 that are read of a document with its title, of a source and of all sources of a question."""

    document: int = 1_048_576
    source: int = 8_388_608
    question: int = 33_554_432


BOUNDS = Bounds()


class RetrievalScope(NamedTuple):
    """Which sources are searched, which of their passages are used, and how much is read."""

    sources: Sequence[NamedSource] = ()
    passages: int = 8
    min_similarity: float = 0.0
    bounds: Bounds = BOUNDS


class Status(StrEnum):
    """The result of a source's query."""

    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"


class InspectedDocument(NamedTuple):
    """A document with findings in its text or title, and whether it was dropped or masked."""

    source: str
    title: str
    detections: tuple[Detection, ...]
    found_in_title: tuple[Detection, ...] = ()
    is_dropped: bool = False
    is_masked: bool = False
    place: int | None = None  # in the retrieval's documents


class Retrieval(NamedTuple):
    """The result of one source. `retrieved` counts the documents that were read, `documents` has the usable ones.

    `left_out`: documents that the source sent beyond those asked for, or beyond the bounds; `cut`: those cut short.
    """

    path: str
    status: Status
    documents: tuple[Document, ...] = ()
    error: str | None = None
    retrieved: int = 0
    inspected: tuple[InspectedDocument, ...] = ()
    left_out: int = 0
    cut: int = 0


class ShownDocuments(NamedTuple):
    """The retrievals with the documents that an answer shows, and those documents in which something was found."""

    retrievals: Sequence[Retrieval]
    inspected: Sequence[InspectedDocument] = ()


Search = Callable[[], Awaitable[Sequence[Document]]]


class DocumentReader:
    """Queries the sources of one question, and reads their documents with the policy's detectors."""

    def __init__(self, policy: Policy, meter: Meter, bounds: Bounds = BOUNDS) -> None:
        self._policy = policy
        self._meter = meter
        self._guards = meter.watch(policy.documents, RequestPart.DOCUMENTS)
        self._measures, self._part = policy.for_documents, RequestPart.DOCUMENTS
        self._permits = asyncio.Semaphore(policy.max_open)  # for the documents of all sources
        longest = min(bounds.document, policy.max_chars) if self._guards else bounds.document
        self._bounds = bounds._replace(document=longest)
        self._remaining = bounds.question
        self.inspected: list[InspectedDocument] = []  # of all sources, in the order of their answers
        self._originals: dict[int, tuple[Document, str]] = {}  # masked documents and their original text, by id()

    async def ask(self, path: str, search: Search, limit: int, until: float) -> Retrieval:
        """Runs a search until that time of the loop's clock; returns at most `limit` documents that may be used."""
        retrieval = await self._query(path, search, limit, until)
        room = most = min(self._bounds.source, self._remaining)
        kept: list[Document] = []
        cut = 0
        for document in retrieval.documents:
            size = len(f"{document.title}{document.text}".encode("utf-8", "surrogatepass"))
            if size > min(self._bounds.document, room):
                shortened = _cut(document, min(self._bounds.document, room))
                if shortened is None:
                    break
                document, size, cut = shortened, min(self._bounds.document, room), cut + 1
            kept.append(document)
            room -= size
        self._remaining -= most - room
        left_out = retrieval.left_out + len(retrieval.documents) - len(kept)
        retrieval = retrieval._replace(documents=tuple(kept), retrieved=len(kept), left_out=left_out, cut=cut)
        return await self._inspect(retrieval) if self._guards and kept else retrieval

    async def _query(self, path: str, search: Search, limit: int, until: float) -> Retrieval:
        """Runs a search; a failure becomes part of the result and is logged without the source's message.

        The policy's detectors read that message.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        source = path[:MAX_LOGGED_CHARS]
        log_event(LogEvent.DATA_SOURCE_QUERY_STARTED, source=source)
        retrieval, reason = Retrieval(path, Status.TIMEOUT, error=TIMED_OUT), "no time left"
        if until > started:  # else there is no time for a query
            limit_calls(until)
            if (sent_to := self._meter.receipt.prompt_sent_to) is not None:
                sent_to.append(path)
            try:
                async with asyncio.timeout_at(until):
                    found = await search()
                    for one in found[:limit]:
                        is_text = (
                            isinstance(one.title, str) and isinstance(one.text, str) and isinstance(one.source, str)
                        )
                        if not (is_text and isinstance(one.score, int | float)):
                            raise TypeError("a document of the source has a field of a wrong type")
                    kept = tuple([one if one.source else one._replace(source=path) for one in found[:limit]])
                left_out = len(found) - len(kept) + (found.left_out if isinstance(found, FoundDocuments) else 0)
                retrieval, reason = Retrieval(path, Status.SUCCESS, kept, None, len(kept), left_out=left_out), ""
            except (TimeoutError, TimedOut):
                reason = TimedOut.__name__
            except UpstreamError as error:
                error.known_as = _SOURCE
                await read_words(error, self._policy)
                retrieval, reason = Retrieval(path, Status.ERROR, error=error.message or _BROKEN), name_causes(error)
            except Exception as error:  # noqa: BLE001 - a source may be third-party code; the others continue
                retrieval, reason = Retrieval(path, Status.ERROR, error=_BROKEN), describe_exception(error)
        limit_calls(None)  # the limit is for the source only
        is_well = retrieval.status is Status.SUCCESS
        log_event(
            LogEvent.DATA_SOURCE_QUERY_COMPLETED if is_well else LogEvent.DATA_SOURCE_QUERY_FAILED,
            logging.INFO if is_well else logging.WARNING,
            source=source,
            documents_count=retrieval.retrieved,
            latency_ms=int((loop.time() - started) * 1000),
            status=retrieval.status.value,
            **({"reason": reason} if reason else {}),
        )
        return retrieval

    async def read_shown(self, retrievals: Sequence[Retrieval]) -> ShownDocuments:
        """Returns the retrievals as the answer shows them: what detectors of the answer find there is masked.

        Detectors that compare an answer with its sources do not read the sources.
        """
        policy, receipt = self._policy, self._meter.receipt
        readers = [one for one in policy.output if not isinstance(one.reading, SourceReading)]
        shown = [document for one in retrievals for document in one.documents]
        if not (readers and shown and (policy.name or policy.hides)):
            return ShownDocuments(retrievals)
        if not policy.masks_sources:
            receipt.note_unread(RequestPart.SOURCES.value, len(shown))
            return ShownDocuments(retrievals)
        for document in shown:
            receipt.note_released(RequestPart.SOURCES, _read_text(document))
        soft = {name: min(action, Action.MASK) for name, action in policy.for_output.actions.items()}
        self._measures = policy.for_output._replace(action=min(policy.for_output.action, Action.MASK), actions=soft)
        self._part = RequestPart.SOURCES
        self._guards = self._meter.watch(readers, self._part)
        inspected = [await self._inspect(one) for one in retrievals]
        return ShownDocuments(inspected, [found for one in inspected for found in one.inspected])

    def note_used(self, documents: Iterable[Document]) -> None:
        """Records that these documents go to the model."""
        for document in documents if self._meter.is_on else ():
            _, read = self._originals.get(id(document), (document, _read_text(document)))
            self._meter.receipt.note_released(RequestPart.DOCUMENTS, read)

    async def _inspect(self, retrieval: Retrieval) -> Retrieval:
        """Returns the retrieval with the documents that may be used, masks applied."""
        seen: list[tuple[Document | None, InspectedDocument | None]] = []
        for start in range(0, len(retrieval.documents), _WINDOW):  # a source may return very many
            window = retrieval.documents[start : start + _WINDOW]
            seen += await run_together([partial(self._read, one) for one in window], _WINDOW)
        kept: list[Document] = []
        inspected: list[InspectedDocument] = []
        for document, found in seen:
            if found is not None:
                inspected.append(found if document is None else found._replace(place=len(kept)))
            if document is not None:
                kept.append(document)
        self.inspected += inspected
        return retrieval._replace(documents=tuple(kept), inspected=tuple(inspected))

    async def _read(self, document: Document) -> tuple[Document | None, InspectedDocument | None]:
        """Reads title and text, as both reach the model; returns the document masked, or None if it is dropped."""
        whole = _read_text(document)
        async with self._permits:
            found = await detect_slices([Slice(0, whole)], self._guards)
        if self._part is RequestPart.SOURCES:  # made-up names in masked documents are no findings
            found = [one for one in found if one.text not in self._meter.names.values]
        if not found:
            return document, None
        meter, measures = self._meter, self._measures
        meter.note_findings(found, measures, self._part)
        if measures.is_shadow:
            return document, None
        verdict = judge_whole(whole, found, measures, meter.names)
        inspected = _build_inspected(document, found, verdict)
        if verdict.is_blocked:
            meter.receipt.note_withheld(self._part, whole)
            return None, inspected
        if not verdict.masks:
            return document, inspected
        shift = len(whole) - len(document.text)
        masked = document._replace(title=inspected.title, text=mask_part(shift, document.text, verdict.masks))
        self._originals[id(masked)] = masked, whole
        return masked, inspected


def _build_inspected(document: Document, found: Sequence[Detection], verdict: Verdict) -> InspectedDocument:
    """Returns the findings in a document. The title of a dropped document is empty if it has a finding."""
    shift = len(_read_text(document)) - len(document.text)
    title = mask_part(0, document.title, verdict.masks)  # a mask across both has its text in the title
    if verdict.is_blocked:
        title = document.title if all(one.start >= shift for one in found) else ""
    in_text = [one for one in verdict.detections if one.end > shift]
    return InspectedDocument(
        document.source,
        title,
        tuple([one._replace(start=max(one.start - shift, 0), end=one.end - shift) for one in in_text]),
        tuple([one for one in verdict.detections if one.end <= shift]),
        verdict.is_blocked,
        bool(verdict.masks),
    )


def _cut(document: Document, room: int) -> Document | None:
    """Returns the document with at most `room` bytes, or None if there is no room for its text."""
    title, text = (one.encode("utf-8", "surrogatepass") for one in (document.title, document.text))
    kept = text[: max(room - len(title), 0)].decode("utf-8", "ignore")
    return document._replace(text=kept) if kept else None


def _read_text(document: Document) -> str:
    """Returns the text of a document that detectors read: title and text."""
    return document.title + _AFTER_TITLE + document.text if document.title else document.text


async def find_documents(
    query: Query, scope: RetrievalScope, reader: DocumentReader, until: float
) -> tuple[Document, ...]:
    """Searches until that time of the loop's clock; returns the documents that may be used, the best first."""
    if not scope.sources:
        return ()
    limit = scope.passages
    searches: list[Callable[[], Awaitable[Retrieval]]] = []
    for path, source, _ in scope.sources:
        search: Search = partial(source.search, query.question, limit)
        if isinstance(source, HybridSource):
            search = partial(source.search_both, query, limit)
        searches.append(partial(reader.ask, path, search, limit, until))
    try:
        retrievals = await run_together(searches, len(searches))
    except UpstreamError as error:  # of a detector: failures of sources are in the retrievals
        raise to_check_failed(error) from error
    kept = [retrieval.documents for retrieval in retrievals]
    if scope.min_similarity:
        kept = [tuple([one for one in found if _is_near(one, scope.min_similarity)]) for found in kept]
    if len(kept) == 1:
        documents = kept[0][: scope.passages]
    else:  # by rank, because scores of different sources cannot be compared
        ranked = [[(source, place) for place in range(len(found))] for source, found in enumerate(kept)]
        documents = tuple(kept[source][place] for (source, place), _ in fuse(ranked, scope.passages))
    reader.note_used(documents)
    return documents


def _is_near(document: Document, min_similarity: float) -> bool:
    similarity = (document.metadata or {}).get(SIMILARITY)
    return not isinstance(similarity, int | float) or similarity >= min_similarity


def merge_documents(retrievals: Iterable[Retrieval]) -> list[Document]:
    """Returns all documents by descending score; equal ones keep their order."""
    documents = [document for retrieval in retrievals for document in retrieval.documents]
    documents.sort(key=attrgetter("score"), reverse=True)
    return documents


def name_documents(retrievals: Sequence[Retrieval]) -> dict[str, Document]:
    """Returns the documents by unique title: the second one of a title gets ` (2)`."""
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
