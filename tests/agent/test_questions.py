# SPDX-License-Identifier: Apache-2.0
"""Questions for the judge: which lines are taken, what is said of those that are not, and which are chosen."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.agent.evaluate import MAX_CHARS, EvaluationQuestion, choose_questions, read_questions
from lockgate.errors import InvalidRequest

GOOD = {"id": "a", "category": "basics", "question": "What?", "reference": "That."}
QUESTIONS = [EvaluationQuestion(str(n), "odd" if n % 2 else "even", "What?", "That.") for n in range(5)]


def line(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


def test_every_line_is_a_question_and_empty_lines_are_none() -> None:
    read = read_questions(f"{line()}\r\n\n  \n{line(id='b', category='')}")
    assert read == (EvaluationQuestion(**GOOD), EvaluationQuestion(**{**GOOD, "id": "b", "category": ""}))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("{", "not valid JSON at column 2"),
        ("[" * 100_000, "not a JSON object"),
        ("1" * 10_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        (line(categroy="x"), "unknown field `categroy`, expected one of id, category, question, reference"),
        (line(id=1), "`id` must be a string"),
        (line(reference=" "), "`reference` is missing or empty"),
        ('{"id": "x", "reference": "y"}', "`question` is missing or empty"),
        (line(question="x" * (MAX_CHARS + 1)), f"`question` is longer than {MAX_CHARS} characters"),
        (line(question="\ud800"), "`question` holds half a character (a lone surrogate)"),
        (line(), "the id `a` was used before"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(wrong: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^line 3: ") as caught:
        read_questions(f"{line()}\n\n{wrong}\n{line(id='c')}")
    assert str(caught.value) == f"line 3: {reason}"


def test_a_file_without_a_question_is_wrong() -> None:
    with pytest.raises(ValueError, match="there is no question in it"):
        read_questions("\n\n")


@given(st.text())
def test_whatever_a_file_holds_nothing_but_a_value_error_comes_of_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(?:line \d+: |there is no question)"):
        read_questions(f"{text}\n!")


def test_questions_are_chosen_by_category_and_number() -> None:
    assert choose_questions(QUESTIONS, "", 0) == tuple(QUESTIONS)
    assert [one.id for one in choose_questions(QUESTIONS, "even", 2)] == ["0", "2"]
    assert [one.id for one in choose_questions(QUESTIONS, "odd", 9)] == ["1", "3"]


def test_a_category_that_no_question_has_is_refused_and_the_known_ones_are_told() -> None:
    with pytest.raises(InvalidRequest, match="`other`; known categories: even, odd"):
        choose_questions(QUESTIONS, "other", 0)
    with pytest.raises(InvalidRequest, match="must not be negative"):
        choose_questions(QUESTIONS, "", -1)
