# SPDX-License-Identifier: Apache-2.0
"""The documents and passages of an index; cuts documents at headings, then blocks, lines and sentences, words."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MAX_PASSAGE_CHARS: Final = 1_000  # about 170 words or 256 tokens, which an embedder of short texts reads
MAX_TITLE_CHARS: Final = 200
_TITLE_MARK = " › "
_ENDS = (
    re.compile(r"\n+"),
    re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？।؟])\s*"),
    re.compile(r"\s+"),
)


class DocumentSection(NamedTuple):
    """The text below one heading: blocks (paragraphs, lists, tables, code) that are cut only if they are too long."""

    heading: str
    blocks: tuple[str, ...]


class Passage(NamedTuple):
    """A piece of a document, which a search returns as a whole."""

    number: int
    title: str
    text: str


class IndexedDocument(NamedTuple):
    """A document in the index."""

    source: str  # its full path
    digest: str  # of its content
    name: str  # the part of its path that readers may see
    title: str = ""
    model: str = ""  # of its passages' vectors, if any


class DocumentEntry(NamedTuple):
    """An indexed document; `added_at_s` is in seconds since 1970."""

    document: IndexedDocument
    passages: int
    added_at_s: float


def split_passages(
    sections: Sequence[DocumentSection], title: str = "", max_chars: int = MAX_PASSAGE_CHARS
) -> list[Passage]:
    """Returns the passages of a document in order, none longer than `max_chars`; together they have all its words."""
    passages: list[Passage] = []
    for section in sections:
        full_title = join_title(title, section.heading)
        for text in _pack(section.blocks, max_chars):
            passages.append(Passage(len(passages) + 1, full_title, text))
    return passages


def text_to_embed(passage: Passage) -> str:
    """The text that an embedder reads: the passage with its title, which gives its context."""
    return f"{passage.title}\n{passage.text}" if passage.title else passage.text


def split_blocks(text: str) -> tuple[str, ...]:
    """The paragraphs of a plain text."""
    return tuple(block.strip() for block in re.split(r"\n[^\S\n]*(?:\n\s*)+", text) if block.strip())


def join_title(title: str, heading: str) -> str:
    """The title of a passage: the document's title and the heading above it, each once."""
    parts = dict.fromkeys(" ".join(part.split()) for part in (title, heading) if part.strip())
    return _TITLE_MARK.join(parts)[:MAX_TITLE_CHARS].strip()


def _pack(blocks: Sequence[str], max_chars: int) -> Iterator[str]:
    """Yields texts of as many blocks as fit."""
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
    """Yields a block in pieces that fit: whole, else cut at lines, sentences, words or characters."""
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
    """Yields the parts of a text, each with the end mark that closes it."""
    start = 0
    for found in end.finditer(text):
        if found.end() > start:
            yield text[start : found.end()]
            start = found.end()
    if start < len(text):
        yield text[start:]
