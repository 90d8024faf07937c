# SPDX-License-Identifier: Apache-2.0
"""Citations: what is one, where it stands, and that no cut of the answer hides, moves or invents any."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.gate.prompt import MAX_MARK_CHARS, Citation, CitationScanner, Sources, build_prompt
from lockgate.gate.values import Document

KNOWN = ("al/notes", "bo/b", "faq", "a & b/c<d>", "al/my notes", "x/one,two", "up\nside/down")


def scan(text: str, *cuts: int, known: tuple[str, ...] = KNOWN) -> list[Citation]:
    scanner = CitationScanner(known)
    borders = sorted({0, len(text), *[min(cut, len(text)) for cut in cuts]})
    found = [one for start, end in pairwise(borders) for one in scanner.feed(text[start:end])]
    return found + scanner.finish()


def named(text: str) -> dict[str, bool]:
    return {one.path: one.is_known for one in scan(text)}


# --- What is a citation ---------------------------------------------------------------------------------------


def test_a_citation_has_the_place_of_its_path() -> None:
    assert scan("Fine [al/notes]. Or 😀 [ bo/b , no/such ]!") == [
        Citation("al/notes", 6, 14, True),
        Citation("bo/b", 24, 28, True),
        Citation("no/such", 31, 38, False),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no mark at all, al/notes", {}),
        ("[al/notes]", {"al/notes": True}),
        ("[faq]", {"faq": True}),
        ("[FAQ] [1] [x] [ ] [] [see below] [,]", {}),
        ("[al/my notes] [al/my  notes]", {"al/my notes": True}),
        ("[no/such]", {"no/such": False}),
        ("[no/such one] [no / such] [no/] [/such] [a/b/c] [/]", {}),
        ("[and/or] [1/2] rows[i/2]", {"and/or": False, "1/2": False, "i/2": False}),
        ("[https://x.example/y] [//x]", {}),
        ("[no/such](https://x.example/y)", {"no/such": False}),
    ],
)
def test_an_item_counts_if_it_is_known_or_has_the_form_of_a_path(text: str, found: dict[str, bool]) -> None:
    assert named(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[al/notes, bo/b]", {"al/notes": True, "bo/b": True}),
        ("[al/notes,bo/b,]", {"al/notes": True, "bo/b": True}),
        ("[faq, other, p. 5]", {"faq": True, "other": False}),
        ("[no/such, a/b/c, faq]", {"no/such": False, "a/b/c": False, "faq": True}),
        ("[faq, https://x.example/y]", {"faq": True}),
        ("[one, two]", {}),
        ("[x/one,two]", {"x/one,two": True}),
        ("[x/one,two, faq]", {"x/one": False, "two": False, "faq": True}),
    ],
)
def test_items_beside_a_citation_are_citations_too(text: str, found: dict[str, bool]) -> None:
    assert named(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[see [al/notes]]", {"al/notes": True}),
        ("[al/notes [bo/b]", {"bo/b": True}),
        ("[[al/notes]]", {"al/notes": True}),
        ("al/notes] [bo/b]", {"bo/b": True}),
        ("[al/\nnotes] [al/\rnotes] [al/notes\n]", {}),
        ("[al/notes", {}),
        ("[" + " " * (MAX_MARK_CHARS - 4) + "bo/b]", {"bo/b": True}),
        ("[" + " " * (MAX_MARK_CHARS - 3) + "bo/b]", {}),
    ],
)
def test_a_mark_is_the_innermost_pair_on_one_line_and_not_too_long(text: str, found: dict[str, bool]) -> None:
    assert named(text) == found
    assert scan(text, *range(len(text))) == scan(text)


@pytest.mark.parametrize("path", KNOWN)
def test_a_path_that_is_cited_as_the_prompt_writes_it_is_known(path: str) -> None:
    _, user = build_prompt("Why?", [Document("T", "c", 0.5, source=path)], has_sources=True)
    written = user.text.split("<source>")[1].split("</source>")[0]
    assert scan(f"[{written}]") == [Citation(written, 1, 1 + len(written), True)]


def test_a_path_may_be_cited_with_and_without_escapes() -> None:
    assert named("[a & b/c<d>] [a &amp; b/c&lt;d&gt;]") == {"a & b/c<d>": True, "a &amp; b/c&lt;d&gt;": True}


def test_without_known_sources_only_the_form_counts() -> None:
    assert scan("[faq] [al/notes]", known=()) == [Citation("al/notes", 7, 15, False)]


def test_nothing_can_be_fed_behind_the_end() -> None:
    scanner = CitationScanner(())
    assert scanner.finish() == []
    with pytest.raises(RuntimeError, match="finished"):
        scanner.feed("[a/b]")


# --- Laws -----------------------------------------------------------------------------------------------------

_ITEMS = st.sampled_from(
    [*KNOWN, "a & b/c", "a &amp; b/c&lt;d&gt;", "no/such", "other", "p. 5", "see below", "", "a/b/c", "é😀/x", "x://y"]
)
_BLANKS = st.sampled_from(["", "", " ", "  ", "\u2028"])
_PADDED = st.tuples(_BLANKS, _ITEMS, _BLANKS).map("".join)
_MARKS = st.tuples(
    st.sampled_from(["[", "[", "[", "[[", "[a ["]),
    st.sampled_from(["", "", "", "", "\n", " " * (MAX_MARK_CHARS - 12), "x" * MAX_MARK_CHARS]),
    st.lists(_PADDED, min_size=1, max_size=4).map(",".join),
    st.sampled_from(["]", "]", "]", "]]", "", "\n]"]),
).map("".join)
_PROSE = st.text(max_size=4) | st.sampled_from(["[", "]", ",", "/", " ", "\n", "\r", "al/notes", "a"])
ANSWERS = st.lists(_MARKS | _PROSE, max_size=8).map("".join)
CUTS = st.lists(st.integers(0, 60) | st.integers(0, 1_500), max_size=12)


def read_plainly(text: str) -> list[Citation]:
    """The rule once more, character by character and without any care for speed or memory."""
    found: list[Citation] = []
    forms = Sources(KNOWN)._forms
    opened: int | None = None
    for place, char in enumerate(text):
        if char == "[":
            opened = place + 1
        elif char in "\r\n":
            opened = None
        elif char == "]" and opened is not None:
            if place - opened <= MAX_MARK_CHARS:
                found += _read_plain_mark(text, opened, place, forms)
            opened = None
    return found


def _read_plain_mark(text: str, start: int, end: int, forms: frozenset[str]) -> list[Citation]:
    commas = [at for at in range(start, end) if text[at] == ","]
    borders = [start - 1, end] if text[start:end].strip() in forms else [start - 1, *commas, end]
    items: list[Citation] = []
    for left, right in pairwise(borders):
        first, last = left + 1, right
        while first < last and text[first].isspace():
            first += 1
        while last > first and text[last - 1].isspace():
            last -= 1
        if first < last:
            items.append(Citation(text[first:last], first, last, text[first:last] in forms))
    has_one = any(one.is_known or (_is_bare(one.path) and _is_pair(one.path)) for one in items)
    return [one for one in items if one.is_known or _is_bare(one.path)] if has_one else []


def _is_bare(path: str) -> bool:
    return "://" not in path and not any(char.isspace() for char in path)


def _is_pair(path: str) -> bool:
    return len(path.split("/")) == 2 and all(path.split("/"))


@given(ANSWERS, CUTS)
def test_any_cut_of_the_answer_gives_the_same_citations(text: str, cuts: list[int]) -> None:
    whole = scan(text)
    assert scan(text, *cuts) == whole
    assert scan(text, *accumulate(cuts)) == whole
    assert scan(text, *range(len(text))) == whole
    assert Sources(KNOWN).find(text) == whole


@given(ANSWERS)
def test_every_citation_quotes_its_path_and_they_come_in_order(text: str) -> None:
    found = scan(text)
    assert all(text[one.start : one.end] == one.path == one.path.strip() != "" for one in found)
    assert all(one.end < other.start for one, other in pairwise(found))


@given(ANSWERS)
def test_the_citations_are_those_of_a_plain_reading(text: str) -> None:
    assert scan(text) == read_plainly(text)


@given(ANSWERS, CUTS)
def test_a_citation_is_told_with_the_bracket_that_closes_its_mark(text: str, cuts: list[int]) -> None:
    scanner = CitationScanner(KNOWN)
    borders = sorted({0, len(text), *[min(cut, len(text)) for cut in cuts]})
    for start, end in pairwise(borders):
        for one in scanner.feed(text[start:end]):
            assert start <= text.find("]", one.end) < end
    assert scanner.finish() == []


@given(ANSWERS, st.integers(1, 40))
def test_no_more_is_kept_than_the_longest_mark(text: str, size: int) -> None:
    scanner = CitationScanner(KNOWN)
    for at in range(0, len(text), size):
        scanner.feed(text[at : at + size])
        assert len(scanner._open) <= MAX_MARK_CHARS + 1


@given(st.text(alphabet=st.characters(exclude_characters="[")), ANSWERS)
def test_text_in_front_moves_citations_and_changes_none(front: str, text: str) -> None:
    moved = [one._replace(start=one.start + len(front), end=one.end + len(front)) for one in scan(text)]
    assert scan(front + text) == moved
