# SPDX-License-Identifier: Apache-2.0
"""Sources asked at once, each within its time, their documents read by detectors as they come.

A source that fails or is late gives nothing, and the others go on. What detectors find in a document decides whether
it is used. Knows no wire shape; who is told of a source's end is the caller's business.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from lockgate.errors import TimedOut, UpstreamError
from lockgate.gate.masks import mask_part
from lockgate.gate.receipts import Part
from lockgate.gate.values import Detection, Document
from lockgate.gate.verdicts import Measures, Verdict, judge_whole
from lockgate.guard.account import Meter
from lockgate.guard.detect import detect_contents
from lockgate.guard.detectors import ActiveGuard
from lockgate.interfaces import DataSource
from lockgate.rag.retrieval import Inspected, Retrieval, Status
from lockgate.task_groups import run_together
from lockgate.telemetry import Event, describe_exception, limit_calls, log_event, name_causes

TIMED_OUT = "Request timed out"
MAX_CHARS = 32 * 1024 * 1024  # of all documents of a question
_BROKEN = "The source failed"
_NO_ROOM = "The documents of all sources together are too long"
_TOO_LONG = "A document is too long to be checked"
_AFTER_TITLE = "\n\n"
_WINDOW = 64  # documents of one source that wait for their turn to be read
MAX_LOGGED_CHARS = 200


class NamedSource(NamedTuple):
    """How a source is cited, and what makes it when it is asked."""

    path: str
    open: Callable[[], DataSource]


Originals = dict[int, tuple[Document, str]]  # of documents that were masked, by identity, what was read of them


class Inspection(NamedTuple):
    """Who reads retrieved documents, and what becomes of one in which something is found."""

    guards: Sequence[ActiveGuard]
    measures: Measures
    meter: Meter
    permits: asyncio.Semaphore  # for the documents of all sources of a question together
    originals: Originals
    max_chars: int = 1_048_576


class Budget:
    """How much text the sources of one question may bring in all: ten within their own limits can be too much."""

    def __init__(self, chars: int = MAX_CHARS) -> None:
        self._left = chars

    def take(self, retrieval: Retrieval) -> Retrieval:
        """The retrieval, or that there is no room for it."""
        size = sum([len(one.text) + len(one.title) for one in retrieval.documents])
        if size > self._left:
            return Retrieval(retrieval.path, Status.ERROR, error=_NO_ROOM)
        self._left -= size
        return retrieval


async def query(named: NamedSource, question: str, limit: int, until: float) -> Retrieval:
    """What a source gives until that time of the loop's clock; never raises for a failure of the source."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    source = named.path[:MAX_LOGGED_CHARS]
    log_event(Event.DATA_SOURCE_QUERY_STARTED, source=source)
    retrieval, reason = await _search(named, question, limit, until)
    limit_calls(None)  # what follows in this task is not the source's
    is_well = retrieval.status is Status.SUCCESS
    log_event(
        Event.DATA_SOURCE_QUERY_COMPLETED if is_well else Event.DATA_SOURCE_QUERY_FAILED,
        logging.INFO if is_well else logging.WARNING,
        source=source,
        documents_count=retrieval.retrieved,
        latency_ms=int((loop.time() - started) * 1000),
        status=retrieval.status.value,
        **reason,
    )
    return retrieval


async def _search(named: NamedSource, question: str, limit: int, until: float) -> tuple[Retrieval, dict[str, str]]:
    """What came of the question, and for the log why not more did: never in the source's words."""
    path = named.path
    if until <= asyncio.get_running_loop().time():  # it is not even asked
        return Retrieval(path, Status.TIMEOUT, error=TIMED_OUT), {"reason": "no time left"}
    limit_calls(until)
    try:
        async with asyncio.timeout_at(until):
            documents = await named.open().search(question, limit)
            kept = tuple([one if one.source else one._replace(source=path) for one in documents])
    except (TimeoutError, TimedOut):
        return Retrieval(path, Status.TIMEOUT, error=TIMED_OUT), {"reason": TimedOut.__name__}
    except UpstreamError as error:
        return Retrieval(path, Status.ERROR, error=error.message or _BROKEN), {"reason": name_causes(error)}
    except Exception as error:  # noqa: BLE001 - a source is somebody else's code; the others go on
        return Retrieval(path, Status.ERROR, error=_BROKEN), {"reason": describe_exception(error)}
    return Retrieval(path, Status.SUCCESS, kept, retrieved=len(kept)), {}


async def inspect(retrieval: Retrieval, inspection: Inspection) -> Retrieval:
    """The retrieval with only those documents that may be used, as they may be used."""
    if not (inspection.guards and retrieval.documents):
        return retrieval
    if any(len(read_text(one)) > inspection.max_chars for one in retrieval.documents):
        return Retrieval(retrieval.path, Status.ERROR, error=_TOO_LONG)
    seen: list[tuple[Document | None, Inspected | None]] = []
    for start in range(0, len(retrieval.documents), _WINDOW):  # a source may give very many
        window = retrieval.documents[start : start + _WINDOW]
        seen += await run_together([partial(_inspect, one, inspection) for one in window], _WINDOW)
    kept: list[Document] = []
    inspected: list[Inspected] = []
    for document, found in seen:
        if found is not None:
            inspected.append(found if document is None else found._replace(place=len(kept)))
        if document is not None:
            kept.append(document)
    return retrieval._replace(documents=tuple(kept), inspected=tuple(inspected))


async def _inspect(document: Document, inspection: Inspection) -> tuple[Document | None, Inspected | None]:
    """The document as it may be used, if at all. Its title reaches the model too, so it is read before the text."""
    whole = read_text(document)
    shift = len(whole) - len(document.text)
    async with inspection.permits:
        found = await detect_contents(whole, inspection.guards)
    if not found:
        return document, None
    meter, measures = inspection.meter, inspection.measures
    meter.note_findings(found, measures, Part.DOCUMENTS)
    if measures.is_shadow:
        return document, None
    verdict = judge_whole(whole, found, measures, meter.names)
    title, text = _split(document, verdict)
    if verdict.is_blocked and all(one.start >= shift for one in found):
        title = document.title  # nothing was found in it, and the reader wants to know which one is missing
    told = Inspected(
        document.source,
        title,
        tuple([_move(one, shift) for one in verdict.detections if one.end > shift]),
        tuple([one for one in verdict.detections if one.end <= shift]),
        verdict.is_blocked,
        bool(verdict.masks),
    )
    if verdict.is_blocked:
        meter.receipt.note_withheld(Part.DOCUMENTS, whole)
        return None, told
    masked = document._replace(title=title, text=text)
    if verdict.masks:
        inspection.originals[id(masked)] = masked, whole
    return masked, told


def _split(document: Document, verdict: Verdict) -> tuple[str, str]:
    """Title and text as they may be used, nothing of one that may not. A mask that lies in both is in the title."""
    if verdict.is_blocked:
        return "", ""
    if not verdict.masks:
        return document.title, document.text
    shift = len(read_text(document)) - len(document.text)
    return mask_part(0, document.title, verdict.masks), mask_part(shift, document.text, verdict.masks)


def _move(found: Detection, shift: int) -> Detection:
    """The finding with its place in the text; one that begins in the title begins with the text."""
    return found._replace(start=max(found.start - shift, 0), end=found.end - shift)


def read_text(document: Document) -> str:
    """What is read of a document."""
    return document.title + _AFTER_TITLE + document.text if document.title else document.text
