# SPDX-License-Identifier: Apache-2.0
"""The receipt says what was read, and whether that was everything that was released."""

from hypothesis import given
from hypothesis import strategies as st

from lockgate.core.receipts import Part, Receipt

TEXTS = st.lists(st.text("ab \n", max_size=6), max_size=6)


def read(receipt: Receipt, *texts: str, part: Part = Part.ANSWER) -> Receipt:
    receipt.expect("d", part)
    receipt.note_read("d", part, texts, 0.001)
    return receipt


@given(TEXTS, st.data())
def test_what_is_read_in_any_cut_is_covered(texts: list[str], data: st.DataObject) -> None:
    receipt = read(Receipt(), *texts)
    text = "".join(texts)
    upto = data.draw(st.integers(0, len(text)))
    for piece in (text[:upto], text[upto:]):
        receipt.note_released(Part.ANSWER, piece)
    (only,) = receipt.settle()
    assert only.is_covered
    assert only.chars == {Part.ANSWER: len(text)} == {Part.ANSWER: receipt.released[Part.ANSWER]}


@given(TEXTS, st.text("ab", min_size=1, max_size=3))
def test_one_word_that_nobody_read_is_seen(texts: list[str], unread: str) -> None:
    receipt = read(Receipt(), *texts)
    receipt.note_released(Part.ANSWER, "".join(texts) + unread)
    assert not receipt.settle()[0].is_covered


def test_white_space_that_a_chunker_drops_need_not_be_read() -> None:
    receipt = read(Receipt(), "One.", "Two.")
    receipt.note_released(Part.ANSWER, "One. \n Two.\n")
    assert receipt.settle()[0].is_covered


def test_every_part_that_a_detector_was_to_read_counts() -> None:
    receipt = read(Receipt(), "prompt", part=Part.PROMPT)
    receipt.expect("d", Part.ANSWER)
    receipt.note_released(Part.PROMPT, "prompt")
    assert receipt.settle()[0].is_covered
    receipt.note_released(Part.ANSWER, "answer")
    assert not receipt.settle()[0].is_covered


def test_a_part_that_it_was_not_to_read_does_not_count() -> None:
    receipt = read(Receipt(), "answer")
    receipt.note_released(Part.DOCUMENTS, "never shown to it")
    receipt.note_released(Part.ANSWER, "answer")
    assert receipt.settle()[0].is_covered


def test_a_detector_that_failed_covers_nothing() -> None:
    receipt = read(Receipt(), "answer")
    receipt.note_failure("d")
    assert not receipt.settle()[0].is_covered


def test_chunks_findings_and_time_add_up() -> None:
    receipt = read(read(Receipt(), "a", "b"), "c", part=Part.PROMPT)
    receipt.note_finding("d")
    receipt.note_finding("of nobody")
    (only,) = receipt.settle()
    assert (only.chunks, only.findings, round(only.seconds, 6)) == (3, 1, 0.002)
