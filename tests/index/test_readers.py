# SPDX-License-Identifier: Apache-2.0
"""Files are read as they are meant, whatever their bytes are, and what cannot be read is told in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.index.passages import DocumentSection
from lockgate.index.readers import MAX_FILE_BYTES, SUFFIXES, clean_text, decode_text, read_document
from tests.index.pdf_files import build_pdf, encrypt_pdf

MARKDOWN = """---
title: "The guide"
tags: [a]
---
Before any heading.

# Set *up*

Unpack `it`.
Run it.

## On Linux ##

- one
- two

```sh
# no heading

quillstone init
```

Below
-----
Last. <!-- hidden --> End.
"""


def read(name: str, text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(section.heading, section.blocks) for section in read_document(name, text.encode()).sections]


def test_markdown_headings_become_titles_and_front_matter_is_dropped() -> None:
    document = read_document("guide.md", MARKDOWN.encode())
    assert document.title == "The guide"
    assert document.sections == [
        DocumentSection("", ("Before any heading.",)),
        DocumentSection("Set up", ("Unpack `it`.\nRun it.",)),
        DocumentSection("Set up › On Linux", ("- one\n- two", "```sh\n# no heading\n\nquillstone init\n```")),
        DocumentSection("Set up › Below", ("Last.  End.",)),
    ]


def test_the_first_heading_is_the_title_and_is_not_said_twice() -> None:
    document = read_document("a.md", b"# Guide\n\nWords.\n\n## Part\n\nMore.")
    assert document.title == "Guide"
    assert [section.heading for section in document.sections] == ["", "Part"]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("````\n```\nx\n````\ny", ("````\n```\nx\n````", "y")),
        ("~~~\nnever closed\n\n# x", ("~~~\nnever closed\n\n# x",)),
        ("a\n\n---\n\nb", ("a", "---", "b")),
        ("#hashtag", ("#hashtag",)),
        ("```inline``` code", ("```inline``` code",)),
    ],
)
def test_what_only_looks_like_a_heading_or_a_fence_is_text(text: str, blocks: tuple[str, ...]) -> None:
    assert read("a.md", text) == [("", blocks)]


def test_a_file_without_a_title_is_called_by_its_name() -> None:
    assert read_document("some/notes.txt", b"words").title == "notes"


def test_a_heading_with_nothing_below_it_is_not_lost() -> None:
    assert read("a.md", "# Guide\n\n## Later\n\n## Now\n\nWords.\n\n### Soon") == [
        ("Later", ("Later",)),
        ("Now", ("Words.",)),
        ("Now › Soon", ("Soon",)),
    ]
    assert read("a.md", "# Guide") == [("", ("Guide",))]


def test_plain_text_is_cut_at_blank_lines() -> None:
    assert read("a.TXT", "one\ntwo\n \n\nthree") == [("", ("one\ntwo", "three"))]


HTML = """<!doctype html><html><head><title>The page</title><style>p {}</style><script>alert("x")</script></head>
<body><nav><a href="/">Home</a><ul><li>Menu</li></ul></nav>
<p>First &amp; <b>fore</b>most.<div>A div<br>with a break</div>
<h2>Part <em>one</em></h2><ul><li>apples</li><li>pears <ul><li>green</li></ul></li></ul>
<pre>keep   this
  as it is</pre>
<table><tr><th>Name</th><td>Ana</td></tr><tr><th>Age</th><td>7</td></tr></table>
<script>document.write("<p>no</p>")</script><noscript>no</noscript></body></html>"""


def test_html_keeps_headings_lists_and_code_and_drops_scripts_styles_and_navigation() -> None:
    document = read_document("a.html", HTML.encode())
    assert document.title == "The page"
    assert document.sections == [
        DocumentSection("", ("First & foremost.", "A div\nwith a break")),
        DocumentSection("Part one", ("- apples\n- pears\n- green", "keep   this\n  as it is", "Name Ana\nAge 7")),
    ]


@pytest.mark.parametrize(
    "text",
    ["<p>a<li>b</ul></ul></pre></nav>c", "a <b c", "<!-- never closed a", "<h1>a", "<pre>a", "<![CDATA[a", "a</"],
)
def test_broken_html_is_read_as_far_as_it_goes(text: str) -> None:
    try:
        found = str(read_document("a.html", text.encode() + b" a").sections)
    except ValueError:
        return  # all of it was inside a comment or a heading
    assert "a" in found


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("naïve".encode(), "naïve"),
        ("naïve".encode("utf-8-sig"), "naïve"),
        ("naïve".encode("utf-16"), "naïve"),
        (b"\xfe\xff" + "naïve".encode("utf-16-be"), "naïve"),
        ("naïve".encode("utf-32"), "naïve"),
        ("naïve".encode("latin-1"), "naïve"),
        (b"a\r\nb\rc\x07", "a\nb\nc"),
    ],
)
def test_bytes_are_decoded_by_what_they_are(raw: bytes, text: str) -> None:
    assert decode_text(raw) == text


def test_the_encoding_that_a_page_declares_is_believed_if_it_fits() -> None:
    page = '<meta charset="koi8-r"><p>Привет</p>'
    assert read_document("a.html", page.encode("koi8-r")).sections == [DocumentSection("", ("Привет",))]
    assert read_document("a.html", b'<meta charset="no-such"><p>words</p>').sections == [
        DocumentSection("", ("words",))
    ]


def test_the_pages_of_a_pdf_are_its_sections() -> None:
    document = read_document("paper.pdf", build_pdf("Held until read", "Released at last"))
    assert document.title == "paper"
    assert document.sections == [
        DocumentSection("page 1", ("Held until read",)),
        DocumentSection("page 2", ("Released at last",)),
    ]


def test_a_pdf_whose_password_is_empty_can_be_read() -> None:
    assert read_document("a.pdf", encrypt_pdf(build_pdf("Open to all"), "")).sections[0].blocks == ("Open to all",)


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.pdf", encrypt_pdf(build_pdf("secret"), "pass"), "it is encrypted"),
        ("a.pdf", build_pdf("cut off")[:150], "it is damaged or no PDF"),
        ("a.pdf", b"", "empty"),
        ("a.pdf", b"words", "it is damaged or no PDF"),
        ("a.pdf", build_pdf(""), "no text in it, perhaps a scan"),
        ("a.txt", b" \n ", "empty"),
        ("a.txt", b"\x00\x01\x02", "it is not text"),
        ("a.txt", bytes(MAX_FILE_BYTES + 1), "it is larger than 64 MB"),
        ("a.md", b"x" * (17 * 1024 * 1024), "it has more than 16 million characters"),
        ("a.exe", b"x", "only .htm, .html, .markdown, .md, .pdf, .rst, .text, .txt, .xhtml files can be read"),
    ],
    ids=range(10),
)
def test_what_cannot_be_read_is_told(name: str, raw: bytes, words: str) -> None:
    with pytest.raises(ValueError) as told:  # noqa: PT011 - its whole words are compared
        read_document(name, raw)
    assert str(told.value) == words


@given(st.sampled_from(sorted(SUFFIXES - {".pdf"})), st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_with_a_value_error(suffix: str, raw: bytes) -> None:
    try:
        document = read_document(f"a{suffix}", raw)
    except ValueError:
        return
    assert document.sections


@given(st.sampled_from([".md", ".txt"]), st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_no_word_of_a_text_is_lost(suffix: str, text: str) -> None:
    clean = clean_text(text)
    if suffix == ".md" and any(sign in clean for sign in "#-=<`*_[]!"):
        return  # headings lose their signs, front matter and comments are dropped
    try:
        sections = read_document(f"a{suffix}", text.encode()).sections
    except ValueError:
        return
    said = "".join("".join(section.blocks) for section in sections)
    assert "".join(said.split()) == "".join(clean.split())
