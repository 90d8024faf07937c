# SPDX-License-Identifier: Apache-2.0
"""HTML becomes sections: headings name them; scripts, styles and navigation are left out.

Decides which elements end a block and which are not read. Refuses to know links, styles and anything outside the file.
"""

import re
from collections.abc import Sequence
from html.parser import HTMLParser

from lockgate.index.passages import Section
from lockgate.index.readers.headings import SectionCollector

_LEFT_OUT = frozenset({"script", "style", "nav", "template", "noscript", "svg", "iframe", "object", "select", "button"})
_ENDING = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "div"),
        *("dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "main", "p", "section"),
        *("summary", "table"),
    }
)
_LISTS = frozenset({"ul", "ol"})
_CELLS = frozenset({"td", "th"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_HEAD_BYTES = 4_096


def find_charset(raw: bytes) -> str | None:
    """The encoding that the page claims to have."""
    found = _CHARSET.search(raw[:_HEAD_BYTES])
    return found.group(1).decode("ascii", "replace") if found else None


def read_html(text: str) -> tuple[str, Sequence[Section]]:
    """The title and the sections."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.finish()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._collector = SectionCollector()
        self._held: list[str] = []
        self._left_out: list[str] = []  # the open elements whose text is not read
        self._lists = 0
        self._pre = 0
        self._heading = 0
        self._title: list[str] | None = None
        self._page_title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _LEFT_OUT:
            self._left_out.append(tag)
        elif tag == "title" and not self._page_title and not self._left_out:
            self._title = []
        elif tag in _HEADINGS:
            self._end_block()
            self._heading = _HEADINGS[tag]
        elif tag == "pre":
            self._end_block()
            self._pre += 1
        else:
            self._open_block(tag)

    def _open_block(self, tag: str) -> None:
        if tag in _LISTS:
            if not self._lists:
                self._end_block()
            self._lists += 1
        elif tag == "li":
            self._held.append("\n- ")
        elif tag in _CELLS:
            self._held.append(" ")
        elif tag in ("br", "tr"):
            self._held.append("\n")
        elif tag in _ENDING and not self._lists and not self._pre:
            self._end_block()

    def handle_endtag(self, tag: str) -> None:
        if tag in self._left_out:
            del self._left_out[self._left_out.index(tag) :]
        elif tag == "title" and self._title is not None:
            self._page_title = " ".join("".join(self._title).split())
            self._title = None
        elif tag in _HEADINGS or tag == "pre":
            self._end_block()
            self._pre = max(0, self._pre - (tag == "pre"))
        elif tag in _LISTS:
            self._lists = max(0, self._lists - 1)
            if not self._lists:
                self._end_block()
        elif tag in _ENDING and not self._lists and not self._pre:
            self._end_block()

    def handle_data(self, data: str) -> None:
        if self._left_out:
            return
        if self._title is not None:
            self._title.append(data)
        else:
            self._held.append(data if self._pre else re.sub(r"\s+", " ", data))

    def _end_block(self) -> None:
        text = "".join(self._held)
        self._held = []
        if not self._pre:
            lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n"))
            text = "\n".join(line for line in lines if line not in ("", "-"))
        if self._heading:
            if text:
                self._collector.open(self._heading, text)
            self._heading = 0
        else:
            self._collector.add(text)

    def finish(self) -> tuple[str, Sequence[Section]]:
        self._end_block()
        sections = self._collector.finish()
        return self._collector.title or self._page_title, sections
