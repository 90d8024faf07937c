# SPDX-License-Identifier: Apache-2.0
"""Sources of one question, each asked within its time, and their documents read by detectors as they come.

A source that fails or is late gives nothing, and the others go on. What detectors find in a document decides whether
it is used. Every document that is used keeps its place in the order of scores, and has its own name.
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
from lockgate.gate.verdicts import Verdict, judge_whole, mask_part
from lockgate.guard.policy import Meter, Policy
from lockgate.guard.request import fail_check
from lockgate.guard.stream import detect_contents
from lockgate.index.fusion import Query, fuse
from lockgate.index.hits import SIMILARITY
from lockgate.interfaces import DataSource, HybridSource
from lockgate.task_groups import run_together
from lockgate.telemetry import LogEvent, describe_exception, limit_calls, log_event, name_causes

TIMED_OUT = "Request timed out"
MAX_CHARS = 32 * 1024 * 1024  # of all documents of a question: ten sources within their own limits can be too much
_BROKEN = "The source failed"
_NO_ROOM = "The documents of all sources together are too long"
_TOO_LONG = "A document is too long to be checked"
_AFTER_TITLE = "\n\n"
_WINDOW = 64  # documents of one source that wait for their turn to be read
MAX_LOGGED_CHARS = 200


class NamedSource(NamedTuple):
    """A source, and how it is cited."""

    path: str
    source: DataSource


class RetrievalScope(NamedTuple):
    """What is searched, how much of it is used, and how near in meaning it must be where that is known."""

    sources: Sequence[NamedSource] = ()
    passages: int = 8
    min_similarity: float = 0.0


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


Search = Callable[[], Awaitable[Sequence[Document]]]


class DocumentReader:
    """Asks the sources of one question, and reads their documents with the detectors of its policy."""

    def __init__(self, policy: Policy, meter: Meter) -> None:
        self._policy = policy
        self._meter = meter
        self._guards = meter.watch(policy.documents, RequestPart.DOCUMENTS)
        self._permits = asyncio.Semaphore(policy.max_open)  # for the documents of all sources
        self._left = MAX_CHARS
        self.inspected: list[Inspected] = []  # by all sources, in the order in which they answered
        self._originals: dict[int, tuple[Document, str]] = {}  # of masked documents, by identity, what was read

    async def ask(self, path: str, search: Search, until: float) -> Retrieval:
        """What a source gives until that time of the loop's clock, as far as it may be used."""
        retrieval = await _query(path, search, until)
        size = sum([len(one.text) + len(one.title) for one in retrieval.documents])
        if size > self._left:
            return Retrieval(path, Status.ERROR, error=_NO_ROOM)
        self._left -= size
        if not (self._guards and retrieval.documents):
            return retrieval
        if any(len(_read_text(one)) > self._policy.max_chars for one in retrieval.documents):
            return Retrieval(path, Status.ERROR, error=_TOO_LONG)
        return await self._inspect(retrieval)

    def note_used(self, documents: Iterable[Document]) -> None:
        """These documents go on to the model."""
        for document in documents if self._meter.is_on else ():
            _, read = self._originals.get(id(document), (document, _read_text(document)))
            self._meter.receipt.note_released(RequestPart.DOCUMENTS, read)

    async def _inspect(self, retrieval: Retrieval) -> Retrieval:
        """The retrieval with only those documents that may be used, as they may be used."""
        seen: list[tuple[Document | None, Inspected | None]] = []
        for start in range(0, len(retrieval.documents), _WINDOW):  # a source may give very many
            window = retrieval.documents[start : start + _WINDOW]
            seen += await run_together([partial(self._read, one) for one in window], _WINDOW)
        kept: list[Document] = []
        inspected: list[Inspected] = []
        for document, found in seen:
            if found is not None:
                inspected.append(found if document is None else found._replace(place=len(kept)))
            if document is not None:
                kept.append(document)
        self.inspected += inspected
        return retrieval._replace(documents=tuple(kept), inspected=tuple(inspected))

    async def _read(self, document: Document) -> tuple[Document | None, Inspected | None]:
        """The document as it may be used, if at all. Its title reaches the model too, so it is read before the text."""
        whole = _read_text(document)
        async with self._permits:
            found = await detect_contents(whole, self._guards)
        if not found:
            return document, None
        meter, measures = self._meter, self._policy.for_documents
        meter.note_findings(found, measures, RequestPart.DOCUMENTS)
        if measures.is_shadow:
            return document, None
        verdict = judge_whole(whole, found, measures, meter.names)
        inspected = _describe(document, found, verdict)
        if verdict.is_blocked:
            meter.receipt.note_withheld(RequestPart.DOCUMENTS, whole)
            return None, inspected
        if not verdict.masks:
            return document, inspected
        shift = len(whole) - len(document.text)
        masked = document._replace(title=inspected.title, text=mask_part(shift, document.text, verdict.masks))
        self._originals[id(masked)] = masked, whole
        return masked, inspected


def _describe(document: Document, found: Sequence[Detection], verdict: Verdict) -> Inspected:
    """What was found in a document. The title is hidden where something was found in it and nothing is used."""
    shift = len(_read_text(document)) - len(document.text)
    title = mask_part(0, document.title, verdict.masks)  # a mask that lies in both is in the title
    if verdict.is_blocked:
        title = document.title if all(one.start >= shift for one in found) else ""
    return Inspected(
        document.source,
        title,
        tuple([_move(one, shift) for one in verdict.detections if one.end > shift]),
        tuple([one for one in verdict.detections if one.end <= shift]),
        verdict.is_blocked,
        bool(verdict.masks),
    )


def _move(found: Detection, shift: int) -> Detection:
    """The finding with its place in the text; one that begins in the title begins with the text."""
    return found._replace(start=max(found.start - shift, 0), end=found.end - shift)


def _read_text(document: Document) -> str:
    """What is read of a document."""
    return document.title + _AFTER_TITLE + document.text if document.title else document.text


async def _query(path: str, search: Search, until: float) -> Retrieval:
    """What a source gives; a failure of the source is not raised, and logged without the source's words."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    source = path[:MAX_LOGGED_CHARS]
    log_event(LogEvent.DATA_SOURCE_QUERY_STARTED, source=source)
    retrieval, reason = Retrieval(path, Status.TIMEOUT, error=TIMED_OUT), "no time left"
    if until > started:  # else it is not even asked
        limit_calls(until)
        try:
            async with asyncio.timeout_at(until):
                documents = await search()
                kept = tuple([one if one.source else one._replace(source=path) for one in documents])
            retrieval, reason = Retrieval(path, Status.SUCCESS, kept, retrieved=len(kept)), ""
        except (TimeoutError, TimedOut):
            reason = TimedOut.__name__
        except UpstreamError as error:
            retrieval, reason = Retrieval(path, Status.ERROR, error=error.message or _BROKEN), name_causes(error)
        except Exception as error:  # noqa: BLE001 - a source is foreign code; the others go on
            retrieval, reason = Retrieval(path, Status.ERROR, error=_BROKEN), describe_exception(error)
    limit_calls(None)  # what follows in this task is not the source's
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


async def find_documents(
    wanted: Query, library: RetrievalScope, reader: DocumentReader, until: float
) -> tuple[Document, ...]:
    """The best documents first, only those that may be used, until that time of the loop's clock."""
    if not library.sources:
        return ()
    searches = [(one.path, partial(_search, one, wanted, library.passages)) for one in library.sources]
    try:
        retrievals = await run_together([partial(reader.ask, *one, until) for one in searches], len(searches))
    except UpstreamError as error:  # of a detector: sources tell theirs otherwise
        raise fail_check(error) from error
    kept = [retrieval.documents for retrieval in retrievals]
    if library.min_similarity:
        kept = [tuple([one for one in found if _is_near(one, library.min_similarity)]) for found in kept]
    if len(kept) == 1:
        documents = kept[0][: library.passages]
    else:  # by rank, for their scores mean different things
        ranked = [[(source, place) for place in range(len(found))] for source, found in enumerate(kept)]
        documents = tuple(kept[source][place] for (source, place), _ in fuse(ranked, library.passages))
    reader.note_used(documents)
    return documents


async def _search(named: NamedSource, wanted: Query, limit: int) -> Sequence[Document]:
    """What a source finds, with keywords if it takes them."""
    if isinstance(named.source, HybridSource):
        return await named.source.search_both(wanted, limit)
    return await named.source.search(wanted.question, limit)


def _is_near(document: Document, min_similarity: float) -> bool:
    """Whether a document is near enough; one whose source tells no similarity is."""
    similarity = (document.metadata or {}).get(SIMILARITY)
    return not isinstance(similarity, int | float) or similarity >= min_similarity


def merge_documents(retrievals: Iterable[Retrieval]) -> list[Document]:
    """All documents, the highest score first; equal scores keep the order of the sources, then their own."""
    documents = [document for retrieval in retrievals for document in retrieval.documents]
    documents.sort(key=attrgetter("score"), reverse=True)
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
