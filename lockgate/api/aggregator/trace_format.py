# SPDX-License-Identifier: Apache-2.0
"""The events of a trace, sent among those of the answer: documents, held text, what detectors read."""

from typing import Any

import msgspec

from lockgate.api.guardrails.format import from_detections
from lockgate.gate.values import Document
from lockgate.rag.sources import InspectedDocument, Retrieval
from lockgate.rag.trace import FrontierNote, HeldNote, Note, ReleaseNote, SourceNote

EVENT = b"trace"
_encode = msgspec.json.Encoder().encode


def encode_note(note: Note) -> bytes:
    """A note as its event."""
    match note:
        case SourceNote():
            documents = _list_documents(note.retrieval)
            body: dict[str, Any] = {"kind": "documents", "path": note.retrieval.path, "documents": documents}
        case HeldNote():
            body = {"kind": "held", "start": note.start, "text": note.text}
        case FrontierNote():
            body = {"kind": "read", "frontiers": note.frontiers, "held": note.held_chars}
        case ReleaseNote():
            body = {
                "kind": "released",
                "start": note.start,
                "end": note.end,
                "held_ms": round(note.held_ms, 1),
            }
            body |= {"outcome": note.outcome, "kept": note.kept, "results": from_detections(note.detections)}
    return b"event: %b\ndata: %b\n\n" % (EVENT, _encode({**body, "at_ms": round(note.at_ms, 1)}))


def _list_documents(retrieval: Retrieval) -> list[dict[str, Any]]:
    """The documents that may be used, then those that were dropped, each with its findings."""
    found = {one.place: one for one in retrieval.inspected}
    kept = [_describe_kept(one, found.get(place)) for place, one in enumerate(retrieval.documents)]
    return kept + [
        {"title": one.title, "text": "", "score": None, "outcome": "dropped", "results": _list_findings(one)}
        for one in retrieval.inspected
        if one.is_dropped
    ]


def _describe_kept(document: Document, own: InspectedDocument | None) -> dict[str, Any]:
    outcome = "kept" if own is None else "masked" if own.is_masked else "flagged"
    entry: dict[str, Any] = {"title": document.title, "text": document.text, "score": document.score}
    return entry | {"outcome": outcome, "results": [] if own is None else _list_findings(own)}


def _list_findings(one: InspectedDocument) -> list[Any]:
    return from_detections((*one.detections, *one.found_in_title))
