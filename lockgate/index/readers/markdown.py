# SPDX-License-Identifier: Apache-2.0
"""Markdown becomes sections: headings name them, code stays whole, front matter is left out.

Decides what is a heading, a fence and a paragraph; the text itself stays as it was written, for it reads well as it is.
Refuses to know links, images and other inline signs.
"""

import re
from collections.abc import Iterator, Sequence

from lockgate.index.passages import Section
from lockgate.index.readers.headings import SectionCollector

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)??(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*\Z")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")
_INLINE = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)|[`*]+|(?<!\w)_+|_+(?!\w)")


def read_markdown(text: str) -> tuple[str, Sequence[Section]]:
    """The title and the sections."""
    front = _FRONT_MATTER.match(text)
    collector = SectionCollector()
    if front:
        text = text[front.end() :]
        title = _FRONT_TITLE.search(front.group(1) or "")
        collector.title = title.group(1).strip().strip("\"'") if title else ""
    for level, block in _read_blocks(text.split("\n")):
        if level:
            collector.open(level, _INLINE.sub(r"\1", block))
        else:
            collector.add(block)
    return collector.title, collector.finish()


def _read_blocks(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Blocks in order; a heading has a level above 0."""
    held: list[str] = []
    fence = ""
    for line in lines:
        if fence:
            held.append(line)
            if _closes(line, fence):
                yield 0, "\n".join(held)
                held, fence = [], ""
            continue
        opened, heading = _FENCE.match(line), _HEADING.match(line)
        underline = _UNDERLINE.match(line) if len(held) == 1 else None  # below several lines it is mostly a rule
        if underline:
            yield (1 if underline.group(1)[0] == "=" else 2), held[0]
            held = []
            continue
        if held and (opened or heading or not line.strip()):
            yield 0, _strip_comments("\n".join(held))
            held = []
        if heading:
            yield len(heading.group(1)), heading.group(2) or ""
        elif opened:
            held, fence = [line], opened.group(1)
        elif line.strip():
            held.append(line)
    yield 0, "\n".join(held)


def _closes(line: str, fence: str) -> bool:
    found = line.strip()
    return len(line) - len(line.lstrip(" ")) <= 3 and len(found) >= len(fence) and set(found) == {fence[0]}


def _strip_comments(block: str) -> str:
    return _COMMENT.sub("", block)
