# SPDX-License-Identifier: Apache-2.0
"""Makes detectors of functions that scan one text, and has the pattern tables that scans use."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import re2

from lockgate.detectors.text_fold import fold
from lockgate.errors import InvalidRequest
from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers
from lockgate.params import Params

LOOKBEHIND_CHARS = 256  # for a value of 20 characters with 12 invisible ones after each
INLINE_CHARS = 16_000
"""Longer text is scanned in a thread: this much takes slower detectors about a millisecond."""
SLOWER_FOLDED = 8
"""So many times as long takes a text of odd characters, which is folded and scanned again."""

MAX_FINDINGS = 10_000
"""More findings in one request are refused: a short request could cause millions of useless ones."""


class Scan(ABC):
    """Finds something in a text."""

    weight = 1
    """How much slower than usual it is; a slow scan moves to a thread for shorter texts."""
    reads_folded = False
    """Whether folded text is read too, see lockgate.detectors.text_fold."""

    @abstractmethod
    def __call__(self, text: str) -> list[Detection]:
        """Returns the findings, in order of their start."""

    def may_find(self, text: str) -> bool:
        """Returns False only if no part of the text has a finding; must be cheap. Gets many excerpts at once."""
        return True


def too_many() -> InvalidRequest:
    """Returns the error for a text with too many findings."""
    return InvalidRequest(f"more than {MAX_FINDINGS} findings in one text, ask for less")


def at_most(found: Iterable[Detection]) -> list[Detection]:
    """Returns the findings; stops the search and raises if they are too many."""
    taken = list(islice(found, MAX_FINDINGS + 1))
    if len(taken) > MAX_FINDINGS:
        raise too_many()
    return taken


def find_gap(text: str, low: int, high: int) -> int:
    """Returns the last place after white space, above `low` and up to `high`; `high` if there is none."""
    for end in range(high, low, -1):
        if text[end - 1].isspace():
            return end
    return high


class ScanReading:
    """Applies one request's scan to excerpts; a long scan runs in a thread."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._inline_chars = INLINE_CHARS // scan.weight

    async def read(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        chars = sum([len(excerpt.text) + len(excerpt.before) for excerpt in excerpts])
        if chars * SLOWER_FOLDED > self._inline_chars and (chars > self._inline_chars or self._is_folded(excerpts)):
            return await asyncio.to_thread(self._read_all, excerpts)
        return self._read_all(excerpts)

    def _is_folded(self, excerpts: Sequence[Excerpt]) -> bool:
        return self.scan.reads_folded and not all(text.isascii() for excerpt in excerpts for text in excerpt)

    def _read_all(self, excerpts: Sequence[Excerpt]) -> list[list[Detection]]:
        if len(excerpts) > 1:
            # A line feed keeps the words of neighbouring excerpts apart.
            joined = "\n".join([excerpt.before + excerpt.text for excerpt in excerpts])
            if not self._may_find(joined):
                return [[] for _ in excerpts]
        findings, count = [], 0
        reads_folded = self.scan.reads_folded
        for excerpt in excerpts:
            found = self._read_behind(excerpt) if excerpt.before else self.scan(excerpt.text)
            if reads_folded and not (excerpt.text.isascii() and excerpt.before.isascii()):
                found = self._add_folded(excerpt, found)
            findings.append(found)
            count += len(found)
            if count > MAX_FINDINGS:
                raise too_many()
        return findings

    def _read_behind(self, excerpt: Excerpt) -> list[Detection]:
        shift = len(excerpt.before)
        found = self.scan(excerpt.before + excerpt.text)
        return [hit._replace(start=hit.start - shift, end=hit.end - shift) for hit in found]

    def _may_find(self, text: str) -> bool:
        if self.scan.may_find(text):
            return True
        return self.scan.reads_folded and any(self.scan.may_find(view.text) for view in fold(text))

    def _add_folded(self, excerpt: Excerpt, found: list[Detection]) -> list[Detection]:
        """Adds the findings of the folded views of an excerpt, each with its place in the excerpt."""
        text, shift = excerpt.before + excerpt.text, len(excerpt.before)
        added: list[Detection] = []
        for view in fold(text):
            for hit in self.scan(view.text) if view.text != text else ():
                start, end = view.places.locate(hit.start, hit.end)
                added.append(hit._replace(start=start - shift, end=end - shift, text=text[start:end]))
        return join_findings(found + added) if added else found


def join_findings(found: Iterable[Detection]) -> list[Detection]:
    """Returns the findings by place, without those that lie in another of the same rule."""
    ends: dict[tuple[str, str], int] = {}
    kept: list[Detection] = []
    for hit in sorted(found, key=lambda hit: (hit.start, -hit.end, -hit.score)):
        kind = hit.detection, str(hit.metadata)
        if hit.end > ends.get(kind, hit.start - 1):
            ends[kind] = hit.end
            kept.append(hit)
    return sorted(kept, key=lambda hit: (hit.start, hit.end))


class ScanningDetector:
    """A detector made of one function: `prepare` turns a request's parameters into the scan."""

    shares_readings = True

    def __init__(self, prepare: Callable[[Params], Scan], known: Sequence[str], lookbehind_chars: int) -> None:
        self.lookbehind_chars = lookbehind_chars
        self._prepare = prepare
        self._known = known
        self._default: ScanReading | None = None  # for requests without parameters

    def accept(self, params: Mapping[str, Any], headers: Headers) -> ScanReading:
        if not params and self._default is not None:
            return self._default
        reading = ScanReading(self._prepare(Params.of_request(params, self._known)))
        if not params:
            self._default = reading
        return reading


# Special spaces and dashes in numbers, each with the ASCII character that replaces it.
_PLAIN_FORMS = dict.fromkeys("\u00a0\u2007\u2009\u202f", " ") | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")


def flatten(text: str) -> bytes:
    """Encodes one Latin-1 byte per code point, so that offsets stay; other characters become `?`."""
    if not text.isascii():
        for odd, plain in _PLAIN_FORMS.items():
            text = text.replace(odd, plain)
    return text.encode("latin-1", "replace")


def latin1_options() -> re2.Options:
    """Returns the options for the fixed tables: bytes in and out, and memory for every state."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = 64 << 20
    return options


class PatternTable:
    """Compiled patterns and a set of them, which finds in one pass those that match anywhere."""

    def __init__(self, patterns: Iterable[str]) -> None:
        options = latin1_options()
        encoded = [pattern.encode("latin-1") for pattern in patterns]
        self._regexes = [re2.compile(pattern, options) for pattern in encoded]
        self._groups = [min(regex.groups, 1) for regex in self._regexes]
        self._set = re2.Set.SearchSet(options)
        for pattern in encoded:
            self._set.Add(pattern)
        self._set.Compile()

    def occurring(self, page: bytes) -> Sequence[int]:
        """Returns the numbers of the patterns that match anywhere."""
        return self._set.Match(page) or ()

    def spans(
        self, number: int, page: bytes, accept: Callable[[int, int], bool], *, is_bounded: bool = True
    ) -> Iterator[tuple[int, int]]:
        """Yields the accepted matches of one pattern, as the span of its group if it has one; linear in the page."""
        regex = self._regexes[number]
        group = self._groups[number]
        pos = 0
        while match := regex.search(page, pos):
            start, end = match.span(group)
            is_accepted = accept(start, end)
            if is_accepted:
                yield start, end
            pos = match.start() + 1 if is_bounded and not is_accepted else match.end()


class ScanMatch(NamedTuple):
    """A finding without its text."""

    start: int
    end: int
    detection: str
    score: float
    metadata: Mapping[str, Any]


def report(found: list[ScanMatch], text: str, detection_type: str) -> list[Detection]:
    """Returns the findings with their text, by start; leaves out one inside a longer or surer one."""
    kept = found
    if len(found) > 1:
        kept = []
        for hit in sorted(found, key=lambda hit: (hit.start, -hit.end, -hit.score)):
            if not kept or hit.end > kept[-1].end:
                kept.append(hit)
    return [
        Detection(start, end, text[start:end], detection, detection_type, score, metadata=metadata)
        for start, end, detection, score, metadata in kept
    ]


_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_utf8(text: str) -> bytes:
    """Encodes the text in UTF-8 with U+FFFD for each lone surrogate, so that offsets stay."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def first_surrogate(text: str) -> int:
    """Returns the place of the first lone surrogate; -1 if there is none."""
    match = None if text.isascii() else _SURROGATE.search(text)
    return match.start() if match else -1
