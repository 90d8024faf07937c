# SPDX-License-Identifier: Apache-2.0
"""Files become documents: Markdown, plain text, HTML and PDF.

Decides by a file's suffix who reads it, how bytes become text, and how much is too much. Nothing in a file is ever run,
and nothing that it names is fetched. Refuses to know where files lie, and how documents are cut and found.

What cannot be read is a ValueError with words for people.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from lockgate.index.passages import Section, split_blocks

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
MAX_TEXT_CHARS: Final = 16 * 1024 * 1024
READING_VERSION: Final = 1  # raise it when files are to be read again though they have not changed

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is the beginning of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufeff]")


class NoText(ValueError):
    """There is nothing wrong with a file, but it says nothing."""


class ReadDocument(NamedTuple):
    """What a file says."""

    title: str
    sections: Sequence[Section]


def read_document(name: str, raw: bytes) -> ReadDocument:
    """The document in a file of this name; raises ValueError if there is none to be had, NoText if it is blank."""
    suffix = PurePath(name).suffix.lower()
    read = _READERS.get(suffix)
    if read is None:
        raise ValueError(f"only {', '.join(sorted(SUFFIXES))} files can be read")
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MB")
    if not raw:
        raise NoText("empty")
    found = read(raw)
    sections = [section for section in found.sections if any(section.blocks)]
    if not sections:
        raise NoText("no text in it, perhaps a scan" if suffix == ".pdf" else "empty")
    if sum(len(block) for section in sections for block in section.blocks) > MAX_TEXT_CHARS:
        raise ValueError(f"it has more than {MAX_TEXT_CHARS >> 20} million characters")
    return ReadDocument(found.title or PurePath(name).stem, sections)


def decode_text(raw: bytes, declared: str | None = None) -> str:
    """Bytes as text: by their mark, else as declared, else UTF-8, else Latin-1; raises ValueError if it is none."""
    marked = next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), None)
    if marked is None and b"\0" in raw:
        raise ValueError("it is not text")
    for encoding in (marked, declared, "utf-8"):
        try:
            if encoding:
                return clean_text(raw.decode(encoding))
        except (UnicodeDecodeError, LookupError):
            continue
    return clean_text(raw.decode("latin-1"))


def clean_text(text: str) -> str:
    """The text with plain line ends and without signs that nobody can see."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n"))


def _read_plain(raw: bytes) -> ReadDocument:
    return ReadDocument("", [Section("", split_blocks(decode_text(raw)))])


def _read_markdown(raw: bytes) -> ReadDocument:
    from lockgate.index.readers.markdown import read_markdown

    title, sections = read_markdown(decode_text(raw))
    return ReadDocument(title, sections)


def _read_html(raw: bytes) -> ReadDocument:
    from lockgate.index.readers.html import find_charset, read_html

    title, sections = read_html(decode_text(raw, find_charset(raw)))
    return ReadDocument(title, sections)


def _read_pdf(raw: bytes) -> ReadDocument:
    from lockgate.index.readers.pdf import read_pdf

    title, pages = read_pdf(raw)
    sections = [Section(f"page {number}", split_blocks(clean_text(text))) for number, text in enumerate(pages, 1)]
    return ReadDocument(clean_text(title), sections)


_READERS: dict[str, Callable[[bytes], ReadDocument]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": _read_plain,
    ".text": _read_plain,
    ".rst": _read_plain,
    ".html": _read_html,
    ".htm": _read_html,
    ".xhtml": _read_html,
    ".pdf": _read_pdf,
}
SUFFIXES: Final = frozenset(_READERS)
