# SPDX-License-Identifier: Apache-2.0
"""Reports citations of unknown sources; options, requests and the answer's documents name the known ones."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from lockgate.detectors.scans import Scan, ScanReading, at_most
from lockgate.gate.prompt import MAX_MARK_CHARS, Citation, Sources
from lockgate.gate.values import Detection, Excerpt
from lockgate.interfaces import Headers
from lockgate.params import Params

KNOWN = ("sources",)
MAX_COUNT = 64
MAX_CONFIGURED = 1_000
# So that a citation which a forced cut splits is read whole.
LOOKBEHIND_CHARS = MAX_MARK_CHARS + 1

# The end of a Markdown link behind its text: `a/b](https://...`, `a/b](/path`, `a/b](page.html`.
_LINK = re.compile(rf"[^\[\]\n]{{0,{MAX_MARK_CHARS}}}\]\(<?[^\s()<>]{{0,200}}?(?:[/#:]|\.(?:html?|md|pdf)\b)")


class CitationScan(Scan):
    """Reports every citation of an unknown source, but no text of a link."""

    weight = 4  # a text may consist of citations

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def may_find(self, text: str) -> bool:
        return "]" in text

    def __call__(self, text: str) -> list[Detection]:
        found = (one for one in self._sources.find(text) if not one.is_known)
        return at_most(_hit(one) for one in found if not _LINK.match(text, one.end))


def _hit(found: Citation) -> Detection:
    metadata = {"rule": "unknown_source"}
    return Detection(found.start, found.end, found.path, "invented_citation", "citation", 1.0, metadata=metadata)


class CitationReading(ScanReading):
    """Reads one request's texts; `with_sources` adds sources."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        super().__init__(CitationScan(Sources(self._paths)))

    def with_sources(self, paths: Iterable[str]) -> "CitationReading":
        """Returns a copy that also knows these sources."""
        return CitationReading((*self._paths, *paths))

    def _read_behind(self, excerpt: Excerpt) -> list[Detection]:
        """Reads with a bracket in front, for a list that was cut; its split first item was read before."""
        if len(excerpt.before) < LOOKBEHIND_CHARS:
            return super()._read_behind(excerpt)
        shift = len(excerpt.before) + 1
        found = self.scan(f"[{excerpt.before}{excerpt.text}")
        return [hit._replace(start=hit.start - shift, end=hit.end - shift) for hit in found if hit.start > 1]


class CitationsDetector:
    """The detector with the sources of its options."""

    lookbehind_chars = LOOKBEHIND_CHARS
    shares_readings = True

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)

    def accept(self, params: Mapping[str, Any], headers: Headers) -> CitationReading:
        added = Params.of_request(params, KNOWN).texts("sources", MAX_COUNT, MAX_MARK_CHARS)
        return CitationReading((*self._paths, *added))


@asynccontextmanager
async def open_citations_detector(options: Mapping[str, Any]) -> AsyncIterator[CitationsDetector]:
    """Reports citations of unknown sources. Options: `sources`."""
    yield CitationsDetector(Params.of_options(options, KNOWN).texts("sources", MAX_CONFIGURED, MAX_MARK_CHARS))
