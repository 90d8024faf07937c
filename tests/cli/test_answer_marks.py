# SPDX-License-Identifier: Apache-2.0
"""A finding is marked where its text stands for the client, whatever was written in its place."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockgate.cli.answer_story import ReleasedPiece, describe_receipt, place_marks
from lockgate.cli.answer_view import Mark
from lockgate.gate.verdicts import Mask, apply_masks

TEXT = "Write to ana@example.org or bo@example.net now."


def find(start: int, end: int, kind: str = "EmailAddress", by: str = "pii") -> dict[str, Any]:
    return {"start": start, "end": end, "detection": kind, "detector_id": by}


MAILS = [find(9, 24), find(28, 42)]


def marked(text: str, released: ReleasedPiece, *findings: dict[str, Any]) -> list[tuple[str, str]]:
    return [(text[one.start : one.end], one.words) for one in place_marks(text, released, findings)]


def test_text_as_it_was_is_marked_where_it_was_found() -> None:
    found = marked(TEXT, ReleasedPiece(0, 47), *MAILS)
    assert found == [("ana@example.org", "pii: EmailAddress"), ("bo@example.net", "pii: EmailAddress")]


def test_places_count_from_the_beginning_of_the_answer() -> None:
    assert place_marks("an A", ReleasedPiece(100, 104), [find(103, 104, "Letter")]) == [Mark(3, 4, "pii: Letter")]


def test_masks_of_another_length_are_found_by_the_text_between_them() -> None:
    written = "Write to [EMAIL] or heron@masked.invalid now."
    found = marked(written, ReleasedPiece(0, 47, TEXT), *MAILS)
    assert [one[0] for one in found] == ["[EMAIL]", "heron@masked.invalid"]


def test_one_mask_is_found_without_the_text_that_it_hides() -> None:
    written = "Write to [EMAIL] or bo@example.net now."
    assert marked(written, ReleasedPiece(0, 47), MAILS[0]) == [("[EMAIL]", "pii: EmailAddress")]


def test_several_that_cannot_be_told_apart_are_one_mark() -> None:
    written = "Write to [EMAIL] or [EMAIL] now."
    assert marked(written, ReleasedPiece(0, 47), *MAILS) == [("[EMAIL] or [EMAIL]", "pii: EmailAddress")]
    assert marked("[A][B]", ReleasedPiece(0, 2, "ab"), find(0, 1, "A"), find(1, 2, "B")) == [
        ("[A][B]", "pii: A, pii: B")
    ]


def test_findings_that_overlap_are_one_mark_with_all_their_names() -> None:
    found = marked("abcdef", ReleasedPiece(0, 6), find(1, 4, "A", "x"), find(2, 5, "B", "y"), find(1, 4, "A", "x"))
    assert found == [("bcde", "x: A, y: B")]


def test_a_finding_is_named_where_it_ends() -> None:
    assert marked("abc", ReleasedPiece(0, 3), find(1, 5)) == [("bc", "")]
    assert marked("def", ReleasedPiece(3, 6), find(1, 5)) == [("de", "pii: EmailAddress")]


def test_what_stands_for_the_rest_of_an_answer_bears_the_name_of_what_ended_it() -> None:
    released = ReleasedPiece(0, 47, TEXT, is_blocked=True)
    assert marked("Write to (cut)", released, MAILS[0]) == [("(cut)", "pii: EmailAddress")]
    assert marked("(cut)", released, MAILS[0]) == [("(cut)", "pii: EmailAddress")]
    assert marked("Write to ", released, MAILS[0]) == []


@given(
    gaps=st.lists(st.text(alphabet="abc ", min_size=1, max_size=9), min_size=1, max_size=6),
    hidden=st.lists(st.text(alphabet="abcX ", min_size=1, max_size=9), min_size=5, max_size=5),
    mask=st.text(alphabet="[EMAIL]█", min_size=1, max_size=9),
)
def test_every_mask_is_marked_whatever_its_length(gaps: list[str], hidden: list[str], mask: str) -> None:
    """Where nothing of the text can be taken for a part of a mask."""
    text, masks = gaps[0], []
    for gap, secret in zip(gaps[1:], hidden, strict=False):
        masks.append(Mask(len(text), len(text) + len(secret), mask))
        text += secret + gap
    written = apply_masks(0, text, masks)
    findings = [find(one.start, one.end) for one in masks]
    found = marked(written, ReleasedPiece(0, len(text), text), *findings)
    if len(written) != len(text):
        assert [one[0] for one in found] == [mask] * len(masks)


def test_a_receipt_names_what_was_not_read() -> None:
    detectors = [{"detector_id": "pii", "covered": False}, {"detector_id": "facts", "covered": True}]
    receipt = {"outcome": "released", "policy": "p", "mode": "enforce", "detectors": detectors, "covered": False}
    line = describe_receipt({"receipt": {**receipt, "unread": {"sources": 2}, "digest": {"value": "0" * 64}}}, "")
    assert line.startswith("released, not covered: sources, not covered by: pii, policy p, read by pii, facts, NOT all")
