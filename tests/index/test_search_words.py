# SPDX-License-Identifier: Apache-2.0
"""Of a question the words that say something are searched for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.index.search_words import MAX_WORD_CHARS, MAX_WORDS, STOP_WORDS, find_search_words


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("How do I restore a backup?", ["restore", "backup"]),
        ("Wie stelle ich das Backup wieder her?", ["stelle", "backup", "wieder", "her"]),
        ("¿Por qué no se puede restaurar la copia?", ["puede", "restaurar", "copia"]),
        ("Comment est-ce que je restaure ?", ["restaure"]),
        ("father and son in the war", ["father", "son", "war"]),
        ("war", ["war"]),
        ("What's the server's e-mail?", ["server", "e", "mail"]),
        ("max_tokens AND max_tokens NEAR(x)", ["max", "tokens", "near", "x"]),
        ("who are you", ["who", "are", "you"]),
        ("cafe\u0301", ["café"]),
        ("", []),
        ("?! _", []),
    ],
)
def test_words_that_say_nothing_are_left_out_unless_there_are_no_others(question: str, words: list[str]) -> None:
    assert find_search_words(question) == words


@given(st.text(max_size=400))
def test_what_comes_out_is_words_alone_and_not_too_many(text: str) -> None:
    words = find_search_words(text)
    assert len(words) == len(set(words)) <= MAX_WORDS
    assert all(word.isalnum() and len(word) <= MAX_WORD_CHARS for word in words)


def test_a_long_question_is_cut_short() -> None:
    assert len(find_search_words(" ".join(f"word{number}" for number in range(5000)))) == MAX_WORDS


def test_stop_words_are_spelt_as_words_are_found() -> None:
    assert [word for known in STOP_WORDS.values() for word in known if find_search_words(word) != [word]] == []
