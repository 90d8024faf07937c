# SPDX-License-Identifier: Apache-2.0
"""Shows the events of a guarded answer and marks findings. A mask may be longer or shorter than the text it hides."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from lockgate.cli.answer_actions import name_actions
from lockgate.cli.answer_view import Mark, Piece, View
from lockgate.cli.text import count_of

Finding = Mapping[str, Any]  # as in an event


class ReleasedPiece(NamedTuple):
    """The span of the model's text that a piece was released for, and that text if it is known."""

    start: int
    end: int
    original: str | None = None
    is_blocked: bool = False


class _FindingGroup(NamedTuple):
    """Overlapping findings, cut to the piece; `words` names those that end in it."""

    start: int
    end: int
    words: tuple[str, ...]


def name_finding(found: Finding) -> str:
    """The detector's id and what it found."""
    return f"{found.get('detector_id') or '?'}: {found.get('detection') or found.get('detection_type') or '?'}"


def place_marks(text: str, released: ReleasedPiece, findings: Iterable[Finding]) -> list[Mark]:
    """The marks of a piece, in order and without overlap. If their places are not known, one mark spans them all."""
    groups = _merge(released, findings)
    if not groups:
        return []
    if released.is_blocked:  # the message that ends the answer follows the text that was kept
        original = released.original or text
        shorter = min(len(text), len(original))
        kept = next((place for place in range(shorter) if text[place] != original[place]), shorter)
        return [Mark(kept, len(text), _join([group.words for group in groups]))] if kept < len(text) else []
    if len(text) == released.end - released.start:
        return [Mark(one.start, one.end, ", ".join(one.words)) for one in groups]
    if marks := _follow(text, released, groups):
        return marks
    behind = released.end - released.start - groups[-1].end
    start = min(groups[0].start, len(text))
    return [Mark(start, max(len(text) - behind, start), _join([group.words for group in groups]))]


def _merge(released: ReleasedPiece, findings: Iterable[Finding]) -> list[_FindingGroup]:
    groups: list[_FindingGroup] = []
    for found in sorted(findings, key=lambda one: (one["start"], one["end"])):
        start, end = max(found["start"], released.start), min(found["end"], released.end)
        words: tuple[str, ...] = (name_finding(found),) if found["end"] <= released.end else ()
        if start >= end and not released.is_blocked:
            continue
        start, end = start - released.start, end - released.start
        if groups and start < groups[-1].end:
            last = groups.pop()
            start, end, words = last.start, max(last.end, end), tuple(dict.fromkeys(last.words + words))
        groups.append(_FindingGroup(start, end, words))
    return groups


def _follow(text: str, released: ReleasedPiece, groups: Sequence[_FindingGroup]) -> list[Mark]:
    """The marks, located by the unchanged text between them; empty if that text cannot be found."""
    if released.original is None:
        return []
    marks, position = [], groups[0].start
    next_starts = [*[group.start for group in groups[1:]], len(released.original)]
    for group, next_start in zip(groups, next_starts, strict=True):
        between = released.original[group.end : next_start]
        is_last = next_start == len(released.original)
        end = len(text) - len(between) if is_last and text.endswith(between) else text.find(between, position)
        if end < position or not (between or is_last):
            return []
        marks.append(Mark(position, end, ", ".join(group.words)))
        position = end + len(between)
    return marks


def _join(words: Iterable[Sequence[str]]) -> str:
    return ", ".join(dict.fromkeys(word for some in words for word in some))


_DIGEST_CHARS = 12
_OUTCOMES = {"prompt_blocked": "the question was not let through", "answer_blocked": "the answer was cut off"}
_PLACES = {"input": "in the question", "output": "in the answer", "grounding": "in the answer"}

Event = Mapping[str, Any]


class AnswerEnd(Enum):
    """How an answer ended."""

    ANSWERED = "answered"
    BLOCKED = "blocked"
    FAILED = "failed"


def find_end(name: str, event: Any) -> AnswerEnd | None:
    """How the answer ended if this is its last event, else None."""
    if name == "error":
        return AnswerEnd.FAILED
    if name != "done":
        return None
    outcome = event.get("outcome") if isinstance(event, dict) else None
    return AnswerEnd.BLOCKED if outcome in _OUTCOMES else AnswerEnd.ANSWERED


class AnswerTranscript:
    """Shows one answer in a view. `end` is None until the last event."""

    def __init__(self, view: View, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._clock = clock
        self._began = clock()
        self._answer = ""  # the released text
        self._held = ""  # the model's text from `_released` on
        self._released = 0
        self._is_blocked = False
        self._open: list[Finding] = []  # findings that end after the released text
        self._shown: set[tuple[Any, ...]] = set()
        self._first_token_ms: float | None = None
        self._first_release_ms: float | None = None
        self.end: AnswerEnd | None = None

    def show(self, name: str, event: Event) -> None:
        """Show one event."""
        self.end = self.end or find_end(name, event)
        match name:
            case "trace":
                self._trace(event)
            case "source_complete":
                self._view.note("source", _describe_source(event), is_grave=event["status"] != "success")
            case "token":
                self._show_text(event)
            case "done":
                self._finish(event)
            case "error":
                self._view.note("failed", str(event.get("message")), is_grave=True)

    def close(self) -> None:
        """Close the view: no more events follow."""
        self._view.close()

    def _trace(self, event: Event) -> None:
        kind = event.get("kind")
        if kind == "held" and not self._is_blocked:
            if self._first_token_ms is None:
                self._first_token_ms = event["at_ms"]
            self._held = self._held[: event["start"] - self._released] + event["text"]
            self._view.hold(self._held)
        elif kind == "released":
            self._is_blocked = self._is_blocked or event["outcome"] == "blocked"
            if self._is_blocked:
                self._view.hold("")
            elif self._first_release_ms is None:
                self._first_release_ms = event["at_ms"]

    def _show_text(self, event: Event) -> None:
        text = event["content"]
        self._answer += text
        start = event.get("start_index", self._released)
        end = event.get("processed_index", start + len(text))
        if self._first_release_ms is None and text:
            self._first_release_ms = (self._clock() - self._began) * 1000
        skipped, length = start - self._released, end - start
        original = self._held[skipped : skipped + length]
        findings = [*self._open, *event.get("detections", ())]
        released = ReleasedPiece(start, end, original if len(original) == length else None, self._is_blocked)
        self._shown |= {_identify(one) for one in findings}
        self._open = [one for one in findings if one["end"] > end]
        self._held = "" if self._is_blocked else self._held[skipped + length :]
        self._released = end
        self._view.say(Piece(text, place_marks(text, released, findings)), self._held)

    def _finish(self, event: Event) -> None:
        self._view.close()
        if self.end is AnswerEnd.BLOCKED:
            self._view.note("blocked", _OUTCOMES[event["outcome"]], is_grave=True)
        self._list_findings(event.get("detections", {}))
        is_asked = event.get("outcome") != "prompt_blocked"
        for source in event.get("retrieval_info", ()):
            if is_asked and source.get("error_message"):
                self._view.note("warning", f"source {source['path']}: {source['error_message']}")
        for warning in event.get("warnings", ()):
            if not str(warning.get("type")).startswith("UNSUITABLE_"):  # those were shown as findings
                self._view.note("warning", str(warning.get("message")))
        for line in _describe_citations(event):
            self._view.note("cited", line)
        if event.get("receipt"):
            self._view.note("receipt", describe_receipt(event, self._answer))
        self._view.note("times", self._describe_times(event.get("metadata", {})))

    def _list_findings(self, detections: Mapping[str, Sequence[Any]]) -> None:
        for document in detections.get("documents", ()):
            found = [*document.get("results", ()), *document.get("title_results", ())]
            names = ", ".join(dict.fromkeys(map(name_finding, found)))
            place = f"“{document.get('title')}” of {document.get('path')}"
            self._view.note("found", f"{names} in {place}: {document.get('outcome')}", is_grave=True)
        for section, place in _PLACES.items():
            for found in detections.get(section, ()):
                if self._view.shows_marks and _identify(found) in self._shown:
                    continue
                place = f"in the field {found['field']}" if found.get("field") else place
                span = f"characters {found['start']} to {found['end']}"
                words = f"{name_finding(found)} {place}, {span}, score {found['score']:.2f}"
                self._view.note("found", words, is_grave=True)

    def _describe_times(self, metadata: Mapping[str, Any]) -> str:
        times = {
            "retrieval": metadata.get("retrieval_time_ms"),
            "first token": self._first_token_ms,
            "first release": self._first_release_ms,
            "total": metadata.get("total_time_ms"),
        }
        return ", ".join([f"{name} {_describe_ms(ms)}" for name, ms in times.items() if ms is not None])


def _describe_source(event: Event) -> str:
    counts = [count_of(event["documents"], "document")]
    counts += [f"{event[name]} {name}" for name in ("dropped", "masked", "flagged") if event.get(name)]
    failures = {"error": "failed", "timeout": "timed out"}
    return f"{event['path']}: {failures.get(event['status'], ', '.join(counts))}"


def _describe_citations(event: Event) -> list[str]:
    """One line for each cited source, with the titles of its documents."""
    titles: dict[str, list[str]] = {}
    for title, document in event.get("sources", {}).items():
        titles.setdefault(document.get("slug"), []).append(title)
    cited = {one["path"]: one["is_retrieved"] for one in event.get("citations") or ()}
    return [
        f"[{path}] {'; '.join(titles.get(path, ()))}" if is_retrieved else f"[{path}] is no source of this answer"
        for path, is_retrieved in cited.items()
    ]


def describe_receipt(event: Event, answer: str) -> str:
    """Returns the receipt of the last event in one line: what was done, by which policy, and what was not read."""
    receipt = event["receipt"]
    names = ", ".join([one["detector_id"] for one in receipt["detectors"]])
    covered = "all released text was read" if receipt["covered"] else "NOT all released text was read"
    parts = name_actions(event, answer)
    parts += [f"policy {receipt['policy']}"] if receipt["policy"] else []
    parts += [f"read by {names}" if names else "read by no detector", covered]
    parts += [f"digest {receipt['digest']['value'][:_DIGEST_CHARS]}"]
    return ", ".join([*parts, *_describe_counts(receipt)])


def _describe_counts(receipt: Event) -> list[str]:
    cached = sum([one.get("cached_chars", 0) for one in receipt["detectors"]])
    sent_to = receipt.get("prompt_sent_to")
    counts = [f"{count_of(cached, 'character')} read before"] if cached else []
    return counts + ([] if sent_to is None else [f"prompt sent to {' and '.join(sent_to) or 'no service'}"])


def _describe_ms(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _identify(found: Finding) -> tuple[Any, ...]:
    return found.get("detector_id"), found.get("detection"), found["start"], found["end"]
