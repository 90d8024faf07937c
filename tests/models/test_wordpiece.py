# SPDX-License-Identifier: Apache-2.0
"""Text becomes the pieces that the model was trained with.

The expected pieces of the real vocabulary are those of the reference tokenizer of the model.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.detectors.letters import MAX_KEPT_LETTERS
from lockgate.models.wordpiece import MAX_WORD_CHARS, WordPieces, load_vocabulary
from tests.waits import assert_linear

SMALL = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "ab", "##a", "##b", "##ab", ",", "$"])


def spell(pieces: WordPieces, text: str, max_tokens: int = 256) -> list[str]:
    names = {number: piece for piece, number in pieces.ids.items()}
    found = [names[number] for number in pieces.encode(text, max_tokens)]
    assert found[0] == "[CLS]"
    assert found[-1] == "[SEP]"
    return found[1:-1]


@pytest.fixture(scope="module")
def pieces(weights_dir: Path) -> WordPieces:
    return load_vocabulary(weights_dir / "vocab.txt")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Guardrails hold text.", "guard ##rail ##s hold text ."),
        ("unaffable embeddings", "una ##ffa ##ble em ##bed ##ding ##s"),
        ("Ünïcödé Straße café naïve", "unicode st ##raße cafe naive"),
        ("ΟΔΥΣΣΕΥΣ", "ο ##δ ##υ ##σ ##σ ##ε ##υ ##σ"),
        ("İstanbul", "istanbul"),
        ("日本語 中文x", "日 本 語 中 文 x"),
        ("한국어", "ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅮ ##ᆨ ##ᄋ ##ᅥ"),
        ("don't stop-me $5.00 ^_^", "don ' t stop - me $ 5 . 00 ^ _ ^"),
        ("hello\u200bwor\u00adld\ufffd \x00x\u2028y\u00a0z\tq", "hello ##world x y z q"),
        ("¿Qué tal?", "¿ que tal ?"),
        ("", ""),
        (" \t\r\n", ""),
        ("x" * (MAX_WORD_CHARS + 1), "[UNK]"),
        ("ꙮ", "[UNK]"),
    ],
)
def test_text_is_cut_like_the_reference(pieces: WordPieces, text: str, expected: str) -> None:
    assert spell(pieces, text) == expected.split()


def test_the_longest_piece_wins() -> None:
    assert spell(SMALL, "abab a,B$") == ["ab", "##ab", "a", ",", "b", "$"]


def test_a_word_with_one_unknown_piece_is_unknown_as_a_whole() -> None:
    assert spell(SMALL, "abx ab") == ["[UNK]", "ab"]


def test_marks_of_the_model_inside_a_text_are_plain_text(pieces: WordPieces) -> None:
    assert spell(pieces, "[SEP][CLS]") == ["[", "sep", "]", "[", "cl", "##s", "]"]


@pytest.mark.parametrize(("size", "expected"), [(3, ["ab"]), (4, ["ab", "##ab"]), (5, ["ab", "##ab", "a"])])
def test_what_does_not_fit_is_cut_off(size: int, expected: list[str]) -> None:
    assert spell(SMALL, "abab a b a b", size) == expected


@given(st.text(), st.integers(2, 40))
def test_any_text_has_few_enough_tokens_and_both_marks(text: str, size: int) -> None:
    found = SMALL.encode(text, size)
    assert 2 <= len(found) <= size
    assert (found[0], found[-1]) == (2, 3)


@given(st.text(st.characters(codec="utf-8")))
def test_case_of_plain_letters_changes_nothing(text: str) -> None:
    swapped = "".join(letter.swapcase() if letter.isascii() else letter for letter in text)
    assert SMALL.encode(text, 64) == SMALL.encode(swapped, 64)


def test_any_code_point_can_be_read_and_few_are_remembered(pieces: WordPieces) -> None:
    for start in range(0, 0x110000, 4096):
        pieces.encode("".join(map(chr, range(start, start + 4096, 16))), 256)
    assert len(pieces._letters) == MAX_KEPT_LETTERS
    assert spell(pieces, "Ünïcödé \U0001f600") == ["unicode", "[UNK]"]


@pytest.mark.parametrize("part", ["x.", "qzxj" * 25 + " ", "\u0301", "x", "日"])
def test_the_work_grows_with_the_text_only(pieces: WordPieces, part: str) -> None:
    assert_linear(lambda size: pieces.encode((part * size)[:size], 256), 20_000)


def test_a_vocabulary_without_the_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"no piece \[UNK\]"):
        load_vocabulary(tmp_path / "vocab.txt")
