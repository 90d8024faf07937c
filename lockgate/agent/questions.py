# SPDX-License-Identifier: Apache-2.0
"""Question: what an agent is asked when its answers are judged. Reads them from JSON lines and chooses among them.

Refuses to know where the lines lie and what becomes of an answer.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockgate.errors import InvalidRequest

MAX_QUESTIONS = 10_000
MAX_CHARS = 100_000  # of one field
_FIELDS = ("id", "category", "question", "reference")
_REQUIRED = ("id", "question", "reference")


class Question(NamedTuple):
    """One question; `reference` is the answer that a good one is compared with."""

    id: str
    category: str
    question: str
    reference: str


def read_questions(text: str) -> tuple[Question, ...]:
    """The questions, one JSON object per line; raises ValueError with the number of the line that is wrong."""
    found: dict[str, Question] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.isspace():
            continue
        try:
            question = _read(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if question.id in found:
            raise ValueError(f"line {number}: the id `{question.id}` was used before")
        if len(found) == MAX_QUESTIONS:
            raise ValueError(f"line {number}: more than {MAX_QUESTIONS} questions")
        found[question.id] = question
    if not found:
        raise ValueError("there is no question in it")
    return tuple(found.values())


def choose_questions(questions: Sequence[Question], category: str, limit: int) -> tuple[Question, ...]:
    """The first `limit` of a category, in their order; all of them if it is 0, of all categories if that is empty."""
    if limit < 0:
        raise InvalidRequest("`limit` must not be negative; 0 means all")
    chosen = [one for one in questions if not category or one.category == category]
    if not chosen:
        known = ", ".join(sorted({one.category for one in questions if one.category})) or "none"
        raise InvalidRequest(f"no question has the category `{category}`; known categories: {known}")
    return tuple(chosen[:limit] if limit else chosen)


def _read(line: str) -> Question:
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError("not a JSON object") from None
    except ValueError as error:
        place = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"not valid JSON{place}") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    for name in fields:
        if name not in _FIELDS:
            raise ValueError(f"unknown field `{name}`, expected one of {', '.join(_FIELDS)}")
    return Question(*(_take(fields, name) for name in _FIELDS))


def _take(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string")
    if name in _REQUIRED and not value.strip():
        raise ValueError(f"`{name}` is missing or empty")
    if len(value) > MAX_CHARS:
        raise ValueError(f"`{name}` is longer than {MAX_CHARS} characters")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"`{name}` holds half a character (a lone surrogate)")
    return value
