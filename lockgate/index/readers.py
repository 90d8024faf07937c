# SPDX-License-Identifier: Apache-2.0
"""Reads Markdown, plain text, HTML and PDF files as documents; runs no code of a file and fetches nothing."""

import codecs
import io
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from lockgate.data_files import read_table, split_words
from lockgate.errors import ConfigError
from lockgate.index.passages import DocumentSection, join_title, split_blocks

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
MAX_TEXT_CHARS: Final = 16 * 1024 * 1024
MAX_PAGES: Final = 5_000
READING_VERSION: Final = 1  # raise it to have unchanged files read again

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is the beginning of this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufeff]")


class NoText(ValueError):
    """A file is valid, but it has no text."""


class ReadDocument(NamedTuple):
    """The title and sections of a file."""

    title: str
    sections: Sequence[DocumentSection]


def read_document(name: str, raw: bytes) -> ReadDocument:
    """Reads the document in a file of this name; raises ValueError if it cannot be read, NoText if it has no text."""
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
    """Decodes text by its byte order mark, else as declared, else UTF-8, else Latin-1; raises ValueError for binary."""
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
    """The text with `\\n` line ends and without control characters."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n"))


class SectionCollector:
    """Builds sections from headings and blocks, in order."""

    def __init__(self) -> None:
        self._above: dict[int, str] = {}
        self._is_bare = False  # there is no text below the last heading yet
        self._blocks: list[str] = []
        self._sections: list[DocumentSection] = []
        self.title = ""

    def open(self, level: int, heading: str) -> None:
        """Takes a heading; the first one of level 1 is the document's title."""
        self._close(level)
        heading = " ".join(heading.split())
        if level == 1 and not self.title:
            self.title = heading
        self._is_bare = True
        self._above = {of: text for of, text in self._above.items() if of < level} | {level: heading}

    def add(self, block: str) -> None:
        """Takes a block below the last heading."""
        if block.strip():
            self._blocks.append(block.strip("\n"))

    def finish(self) -> list[DocumentSection]:
        """All sections."""
        self._close(0)
        return self._sections

    def _close(self, level: int) -> None:
        """Ends a section. A heading without text or a lower heading below it becomes a block, so no word is lost."""
        if self._is_bare and not self._blocks and level <= max(self._above):
            self.add(self._above[max(self._above)])
        if self._blocks:
            self._sections.append(DocumentSection(self._name_section(), tuple(self._blocks)))
        self._blocks, self._is_bare = [], False

    def _name_section(self) -> str:
        heading = ""
        for level in sorted(self._above):
            text = self._above[level]
            heading = heading if text == self.title else join_title(heading, text)
        return heading


# --- Plain text and Markdown ------------------------------------------------------------------------------------


def _read_plain(raw: bytes) -> ReadDocument:
    return ReadDocument("", [DocumentSection("", split_blocks(decode_text(raw)))])


_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)??(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*\Z")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")
_INLINE = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)|[`*]+|(?<!\w)_+|_+(?!\w)")


def _read_markdown(raw: bytes) -> ReadDocument:
    text = decode_text(raw)
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
    return ReadDocument(collector.title, collector.finish())


def _read_blocks(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields levels and blocks in order; only headings have a level above 0."""
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
            yield 0, _COMMENT.sub("", "\n".join(held))
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


# --- HTML -------------------------------------------------------------------------------------------------------

_TAGS = read_table(Path(__file__).with_suffix(".toml"), dict[str, str])
_LEFT_OUT = split_words(_TAGS["left_out"])
_ENDING = split_words(_TAGS["blocks"])
_LISTS = frozenset({"ul", "ol"})
_CELLS = frozenset({"td", "th"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_HEAD_BYTES = 4_096


def _read_html(raw: bytes) -> ReadDocument:
    found = _CHARSET.search(raw[:_HEAD_BYTES])
    reader = _HtmlReader()
    reader.feed(decode_text(raw, found[1].decode("ascii", "replace") if found else None))
    reader.close()
    return reader.finish()


class _HtmlReader(HTMLParser):
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

    def finish(self) -> ReadDocument:
        self._end_block()
        return ReadDocument(self._collector.title or self._page_title, self._collector.finish())


# --- PDF --------------------------------------------------------------------------------------------------------


class _UnreadableFile(ValueError):
    """Our own error; the library raises ValueError too."""


def _read_pdf(raw: bytes) -> ReadDocument:
    try:
        import pypdf
    except ImportError:
        raise ConfigError("PDF files need pypdf: pip install 'lockgate[agent]'", source="index") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # the error is reported in one line instead
    try:
        title, pages = _read_pages(pypdf.PdfReader(io.BytesIO(raw)))
    except _UnreadableFile:
        raise
    except Exception as error:  # a damaged file can make it raise any error
        raise ValueError("it is damaged or no PDF") from error
    sections = [
        DocumentSection(f"page {number}", split_blocks(clean_text(text))) for number, text in enumerate(pages, 1)
    ]
    return ReadDocument(clean_text(title), sections)


def _read_pages(reader: "PdfReader") -> tuple[str, Sequence[str]]:
    """Returns the title, which may be empty, and the text of each page; text in images is not read."""
    if reader.is_encrypted:
        _unlock(reader)
    if len(reader.pages) > MAX_PAGES:
        raise _UnreadableFile(f"it has more than {MAX_PAGES} pages")
    metadata = reader.metadata
    title = metadata.title if metadata is not None else None
    return title or "", [page.extract_text() for page in reader.pages]


def _unlock(reader: "PdfReader") -> None:
    """Decrypts a file with the empty password, which is common; else raises _UnreadableFile."""
    try:
        is_open = bool(reader.decrypt(""))
    except Exception as error:  # also where a cipher is missing
        raise _UnreadableFile("it is encrypted") from error
    if not is_open:
        raise _UnreadableFile("it is encrypted")


_READERS: dict[str, Callable[[bytes], ReadDocument]] = {
    **dict.fromkeys((".md", ".markdown"), _read_markdown),
    **dict.fromkeys((".txt", ".text", ".rst"), _read_plain),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _read_html),
    ".pdf": _read_pdf,
}
SUFFIXES: Final = frozenset(_READERS)
