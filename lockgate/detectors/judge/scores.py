# SPDX-License-Identifier: Apache-2.0
"""Scores of an answer: builds the judge's prompts, reads its replies and computes the scores.

Four measures, each a share between 0 and 1 of the judge's verdicts:

  faithfulness       the answer's claims that the passages support
  answer_relevancy   the answer's statements that help to answer the question
  context_recall     the reference's statements that the passages contain
  context_precision  the useful passages, the first ones weighing more

A reply that cannot be read counts neither as good nor as bad.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lockgate.gate.values import Document, Message
from lockgate.sessions.turns import SYSTEM, USER, forget_reasoning

FAITHFULNESS: Final = "faithfulness"
ANSWER_RELEVANCY: Final = "answer_relevancy"
CONTEXT_RECALL: Final = "context_recall"
CONTEXT_PRECISION: Final = "context_precision"
METRICS = (FAITHFULNESS, ANSWER_RELEVANCY, CONTEXT_RECALL, CONTEXT_PRECISION)

GOOD_FROM, FAIR_FROM = 0.8, 0.6
MAX_REPLY_CHARS = 100_000  # of a judge's reply; a longer one is no list of verdicts
_MAX_STARTS = 100  # places where JSON might begin
_YES = frozenset({"yes", "true", "supported", "relevant", "useful", "found"})
_NO = frozenset({"no", "false", "unsupported", "irrelevant", "useless", "missing", "unclear", "unknown", "partial"})
_VERDICT = "verdict"
_NUMBERS = ("passage", "number", "index", "id")
_DECODER = json.JSONDecoder()

PROMPTS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text("utf-8"))
"""The texts of `prompts.toml`, also those of the detector `llm_judge`."""


class JudgedSample(NamedTuple):
    """A question, the reference answer, the given answer, and the passages that were found."""

    question: str
    reference: str
    answer: str
    passages: tuple[Document, ...]


class Scores(NamedTuple):
    """The four measures; None where there is no verdict."""

    faithfulness: float | None = None
    answer_relevancy: float | None = None
    context_recall: float | None = None
    context_precision: float | None = None


def find_certain(metric: str, sample: JudgedSample) -> float | None:
    """Returns a score that needs no judge, or None."""
    if not sample.answer.strip() and metric in (FAITHFULNESS, ANSWER_RELEVANCY):
        return 0.0
    if not sample.passages and metric in (CONTEXT_RECALL, CONTEXT_PRECISION):
        return 0.0
    return None


def build_task(metric: str, sample: JudgedSample) -> tuple[Message, Message]:
    """Builds the judge's prompt for one measure."""
    forms = PROMPTS["passage_form"] if metric == CONTEXT_PRECISION else PROMPTS["statement_form"]
    material = json.dumps(_choose_material(metric, sample), ensure_ascii=False)
    material = material.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    task = PROMPTS["score_tasks"][metric] + f"\n\n{material}"
    return Message(SYSTEM, PROMPTS["score_system"] % tuple(forms)), Message(USER, task)


def build_second_task(task: Sequence[Message], reply: str) -> tuple[Message, ...]:
    """Builds the prompt for a second try after a reply that could not be read."""
    return (*task, Message("assistant", reply[:MAX_REPLY_CHARS]), Message(USER, PROMPTS["second_try"]))


def read_score(metric: str, sample: JudgedSample, reply: str) -> float | None:
    """Computes the score from a judge's reply; None if it cannot be read. Never raises."""
    given = _find_verdicts(reply)
    if not given:
        return None
    if metric != CONTEXT_PRECISION:
        return sum(one.is_yes for one in given) / len(given)
    ranked = _rank(given, len(sample.passages))
    return None if ranked is None else weigh_ranks(ranked)


def weigh_ranks(relevant: Sequence[bool]) -> float:
    """Returns the average precision: the mean, over relevant ranks, of the precision up to there."""
    shares, hits = 0.0, 0
    for rank, is_relevant in enumerate(relevant, 1):
        if is_relevant:
            hits += 1
            shares += hits / rank
    return shares / hits if hits else 0.0


def average_scores(scores: Sequence[Scores]) -> Scores:
    """Returns the mean of each measure over the samples that have it."""
    return Scores(*(_mean([one for one in column if one is not None]) for column in zip(*scores, strict=True)))


def sum_up(scores: Scores) -> float | None:
    """Returns the mean of the four measures; None if one is missing."""
    known = [one for one in scores if one is not None]
    return _mean(known) if len(known) == len(METRICS) else None


def rate(score: float) -> str:
    """Returns the global score as a word."""
    if score >= GOOD_FROM:
        return "good"
    return "fair" if score >= FAIR_FROM else "poor"


class _JudgeReply(NamedTuple):
    is_yes: bool
    number: int | None = None


def _choose_material(metric: str, sample: JudgedSample) -> dict[str, Any]:
    """Chooses what the judge needs for this measure, so that nothing else influences it."""
    passages = [
        {"passage": number, "title": one.title, "text": one.text} for number, one in enumerate(sample.passages, 1)
    ]
    if metric == FAITHFULNESS:
        return {"question": sample.question, "passages": passages, "answer": sample.answer}
    if metric == ANSWER_RELEVANCY:
        return {"question": sample.question, "answer": sample.answer}
    return {"question": sample.question, "passages": passages, "reference": sample.reference}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rank(given: Sequence[_JudgeReply], count: int) -> list[bool] | None:
    """Sorts the verdicts by the passages' numbers; keeps their order if none has a number."""
    if len(given) != count:
        return None
    by_number = {one.number: one.is_yes for one in given}
    if set(by_number) == set(range(1, count + 1)):
        return [by_number[number] for number in range(1, count + 1)]
    return [one.is_yes for one in given] if set(by_number) == {None} else None


def _find_verdicts(reply: str) -> list[_JudgeReply]:
    """Returns the last list of verdicts in the reply, with any text around it; empty if there is none."""
    if len(reply) > MAX_REPLY_CHARS:
        return []
    found: list[_JudgeReply] = []
    for value in find_json(forget_reasoning(reply)):
        found = _read_verdicts(value) or found
    return found


def find_json(text: str) -> Iterator[Any]:
    """Yields the outermost JSON lists and objects in a text."""
    position = 0
    for _ in range(_MAX_STARTS):
        starts = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
        if not starts:
            return
        try:
            value, position = _DECODER.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            position = min(starts) + 1
        else:
            yield value


def _read_verdicts(value: object) -> list[_JudgeReply]:
    if isinstance(value, dict):
        lists = [value["verdicts"]] if "verdicts" in value else [one for one in value.values() if isinstance(one, list)]
        return _read_verdicts(lists[0]) if len(lists) == 1 and isinstance(lists[0], list) else []
    if not isinstance(value, list):
        return []
    read = [_read_verdict(one) for one in value]
    return [one for one in read if one is not None] if None not in read else []


def _read_verdict(value: object) -> _JudgeReply | None:
    number = None
    if isinstance(value, dict):
        number = _read_number(next((value[name] for name in _NUMBERS if name in value), None))
        value = value.get(_VERDICT)
    if isinstance(value, bool):
        return _JudgeReply(value, number)
    word = value.strip().strip(".").casefold() if isinstance(value, str) else ""
    if word in _YES or word in _NO:
        return _JudgeReply(word in _YES, number)
    return None


def _read_number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int else None
