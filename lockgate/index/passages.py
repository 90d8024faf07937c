# SPDX-License-Identifier: Apache-2.0
"""What an index holds, and how a document is cut: at headings, then blocks, then lines and sentences, then words."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MAX_PASSAGE_CHARS: Final = 1_000  # about 170 words, or 256 tokens: what an embedder of short texts reads
MAX_TITLE_CHARS: Final = 200
_TITLE_MARK = " › "
_ENDS = (
    re.compile(r"\n+"),
    re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？।؟])\s*"),
    re.compile(r"\s+"),
)


class DocumentSection(NamedTuple):
    """What stands below one heading: blocks (paragraphs, lists, tables, code) that are best kept whole."""

    heading: str
    blocks: tuple[str, ...]


class Passage(NamedTuple):
    """A piece of a document that is found and quoted as one."""

    number: int
    title: str
    text: str


class IndexedDocument(NamedTuple):
    """A document as the index knows it: `source` is where it lies, `name` what readers may see of that.

    `digest` tells its content, `model` who made the vectors of its passages; empty if there are none.
    """

    source: str
    digest: str
    name: str
    title: str = ""
    model: str = ""


class DocumentEntry(NamedTuple):
    """A line of an index's list; `added_at_s` is in seconds since 1970."""

    document: IndexedDocument
    passages: int
    added_at_s: float


def split_passages(
    sections: Sequence[DocumentSection], title: str = "", max_chars: int = MAX_PASSAGE_CHARS
) -> list[Passage]:
    """The passages of a document in order, none longer than `max_chars`; together they hold every word of it."""
    passages: list[Passage] = []
    for section in sections:
        full_title = join_title(title, section.heading)
        for text in _pack(section.blocks, max_chars):
            passages.append(Passage(len(passages) + 1, full_title, text))
    return passages


def text_to_embed(passage: Passage) -> str:
    """What an embedder reads of a passage: its title says what the text takes for granted."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def split_blocks(text: str) -> tuple[str, ...]:
    """A plain text's paragraphs."""
    return tuple(block.strip() for block in re.split(r"\n[^\S\n]*(?:\n\s*)+", text) if block.strip())


def join_title(title: str, heading: str) -> str:
    """What a passage is called: the document's title and the heading above it, each once."""
    parts = dict.fromkeys(" ".join(part.split()) for part in (title, heading) if part.strip())
    return _TITLE_MARK.join(parts)[:MAX_TITLE_CHARS].strip()


def _pack(blocks: Sequence[str], max_chars: int) -> Iterator[str]:
    """As many blocks together as fit."""
    held = ""
    for block in blocks:
        for piece in _cut(block.strip(), max_chars):
            if held and len(held) + 2 + len(piece) > max_chars:
                yield held
                held = ""
            held = f"{held}\n\n{piece}" if held else piece
    if held:
        yield held


def _cut(block: str, max_chars: int, level: int = 0) -> Iterator[str]:
    """A block in pieces that fit: whole, else at the coarsest ends that it has."""
    if len(block) <= max_chars:
        if block:
            yield block
        return
    if level == len(_ENDS):
        yield from (block[at : at + max_chars] for at in range(0, len(block), max_chars))
        return
    held = ""
    for part in _parts(block, _ENDS[level]):
        if held and len(held) + len(part.rstrip()) > max_chars:
            yield from _cut(held.strip(), max_chars, level + 1)
            held = ""
        held += part
    yield from _cut(held.strip(), max_chars, level + 1)


def _parts(text: str, end: re.Pattern[str]) -> Iterator[str]:
    """The text in parts, each with the end that closes it."""
    start = 0
    for found in end.finditer(text):
        if found.end() > start:
            yield text[start : found.end()]
            start = found.end()
    if start < len(text):
        yield text[start:]
