# SPDX-License-Identifier: Apache-2.0
"""Evaluates an agent: asks it the questions of a file of JSON lines, and has another model judge the answers.

A measure for which no reply of the judge can be read is an error, not a number.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from lockgate.agent.answer import ANSWERED, AgentQuestion, AnyAgent, TurnResult
from lockgate.detectors.judge.scores import (
    MAX_REPLY_CHARS,
    METRICS,
    JudgedSample,
    Scores,
    average_scores,
    build_second_task,
    build_task,
    find_certain,
    rate,
    read_score,
    sum_up,
)
from lockgate.errors import CannotEvaluate, EvaluationFailed, InvalidRequest, LockgateError
from lockgate.gate.values import Message
from lockgate.guard.model_source import Deadline, read_model
from lockgate.interfaces import Model
from lockgate.sessions.turns import forget_reasoning
from lockgate.telemetry import LogEvent, describe_exception, limit_calls, log_event, name_causes

OK, PARTIAL = "ok", "partial"
MAX_QUESTIONS = 10_000
MAX_CHARS = 100_000  # of one field
_FIELDS = ("id", "category", "question", "reference")
_REQUIRED = ("id", "question", "reference")
_MAX_FILE_BYTES = 16 * 1024 * 1024
_PREVIEW_CHARS = 200
_UNREADABLE = "the judge's reply could not be read"
_NO_JUDGE = "answers cannot be judged: no judge is set; name a model of the section `models` in `evaluation.judge`"
_NO_QUESTIONS = "answers cannot be judged: no questions are set; name a file of JSON lines in `evaluation.questions`"


class EvaluationQuestion(NamedTuple):
    """One question; `reference` is the answer that a good one is compared with."""

    id: str
    category: str
    question: str
    reference: str


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Which questions to evaluate, all by default, and on which source."""

    category: str = ""
    limit: int = 0
    index: str = ""


class JudgeModel(NamedTuple):
    """The model that judges, and its name."""

    model: Model
    name: str
    timeout_s: float = 120.0


class EvaluationSetup(NamedTuple):
    """The parts of an evaluation. `find_agent` returns an agent that searches the named source, or all for ""."""

    find_agent: Callable[[str], AnyAgent]
    judge: JudgeModel | None
    questions: Path | None
    max_open: int = 4


class QuestionDetail(NamedTuple):
    """One question that was answered and judged. `missing`: why a measure has no score."""

    id: str
    category: str
    question: str
    answer_preview: str
    n_chunks: int
    scores: Scores = Scores()
    missing: tuple[tuple[str, str], ...] = ()


class FailedQuestion(NamedTuple):
    """A question without a score, and why."""

    id: str
    reason: str


class EvaluationProgress(NamedTuple):
    """One more question is done."""

    done: int
    total: int
    last: QuestionDetail | FailedQuestion


class Evaluation(NamedTuple):
    """The outcome. `status` is `partial` if a question failed or a measure of one has no score, else `ok`."""

    status: str
    questions_evaluated: int
    elapsed_seconds: float
    judge_model: str
    faithfulness: float
    answer_relevancy: float
    context_recall: float
    context_precision: float
    global_score: float
    verdict: str
    details: tuple[QuestionDetail, ...]
    failures: tuple[FailedQuestion, ...] = ()


OnProgress = Callable[[EvaluationProgress], object]
_Outcome = QuestionDetail | FailedQuestion


async def evaluate(
    request: EvaluationRequest, setup: EvaluationSetup, on_progress: OnProgress | None = None
) -> Evaluation:
    """Asks the questions, judges the answers and returns the scores. Cancelling it cancels all its calls.

    Raises CannotEvaluate if the judge or the questions are missing, InvalidRequest for an unknown category or source,
    and EvaluationFailed if there are no scores.
    """
    started = perf_counter()
    if setup.judge is None:
        raise CannotEvaluate(_NO_JUDGE)
    if setup.questions is None:
        raise CannotEvaluate(_NO_QUESTIONS)
    known = await asyncio.to_thread(load_questions, setup.questions)
    questions = choose_questions(known, request.category, request.limit)
    run = _EvaluationRun(setup.find_agent(request.index), setup.judge, questions, on_progress)
    outcomes = await run.complete(setup.max_open)
    return _sum_up(outcomes, setup.judge.name, perf_counter() - started)


def load_questions(path: Path) -> tuple[EvaluationQuestion, ...]:
    """The questions of a file; blocks while it reads."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError(f"longer than {_MAX_FILE_BYTES} bytes")
        return read_questions(content.decode("utf-8-sig"))
    except OSError as error:
        raise CannotEvaluate(f"the file of `evaluation.questions` cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise CannotEvaluate(f"the file of `evaluation.questions`: line {line}: not UTF-8") from error
    except ValueError as error:
        raise CannotEvaluate(f"the file of `evaluation.questions`: {error}") from error


def read_questions(text: str) -> tuple[EvaluationQuestion, ...]:
    """Returns the questions of lines of JSON; raises ValueError with a line's number."""
    found: dict[str, EvaluationQuestion] = {}
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


def choose_questions(
    questions: Sequence[EvaluationQuestion], category: str, limit: int
) -> tuple[EvaluationQuestion, ...]:
    """Returns the first questions of a category; 0 and "" mean all."""
    if limit < 0:
        raise InvalidRequest("`limit` must not be negative; 0 means all")
    chosen = [one for one in questions if not category or one.category == category]
    if not chosen:
        known = ", ".join(sorted({one.category for one in questions if one.category})) or "none"
        raise InvalidRequest(f"no question has the category `{category}`; known categories: {known}")
    return tuple(chosen[:limit] if limit else chosen)


def _read(line: str) -> EvaluationQuestion:
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
    return EvaluationQuestion(*(_take(fields, name) for name in _FIELDS))


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


class _EvaluationRun:
    """Runs one evaluation."""

    def __init__(
        self,
        agent: AnyAgent,
        judge: JudgeModel,
        questions: Sequence[EvaluationQuestion],
        on_progress: OnProgress | None,
    ) -> None:
        self._agent = agent
        self._judge = judge
        self._questions = questions
        self._on_progress = on_progress
        self._outcomes: list[_Outcome | None] = [None] * len(questions)
        self._done = 0

    async def complete(self, max_open: int) -> list[_Outcome]:
        """The outcome of each question, in their order."""
        waiting = iter(enumerate(self._questions))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_open, len(self._questions))):
                group.create_task(self._work(waiting))
        return [one for one in self._outcomes if one is not None]

    async def _work(self, waiting: Iterator[tuple[int, EvaluationQuestion]]) -> None:
        for place, question in waiting:
            outcome = self._outcomes[place] = await self._try(question)
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(EvaluationProgress(self._done, len(self._questions), outcome))

    async def _try(self, question: EvaluationQuestion) -> _Outcome:
        try:
            answer, facts = await _answer(self._agent, question.question)
            if facts.outcome != ANSWERED:
                return FailedQuestion(question.id, f"not answered: {facts.outcome}")
            return await self._assess(question, answer, facts)
        except LockgateError as error:
            log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part="evaluation", reason=name_causes(error))
            return FailedQuestion(question.id, error.message)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and the other questions go on
            log_event(LogEvent.UPSTREAM_FAILED, logging.ERROR, part="evaluation", reason=describe_exception(error))
            return FailedQuestion(question.id, f"it failed: {type(error).__qualname__}")

    async def _assess(self, question: EvaluationQuestion, answer: str, facts: TurnResult) -> _Outcome:
        sample = JudgedSample(question.question, question.reference, answer, tuple(facts.documents))
        verdicts = [await self._score(metric, sample) for metric in METRICS]
        missing = {name: one for name, one in zip(METRICS, verdicts, strict=True) if isinstance(one, str)}
        if len(missing) == len(METRICS):
            return FailedQuestion(question.id, next(iter(missing.values())))
        scores = Scores(*(None if isinstance(one, str) else one for one in verdicts))
        preview = " ".join(answer.split())[:_PREVIEW_CHARS]
        return QuestionDetail(
            question.id,
            question.category,
            question.question,
            preview,
            len(sample.passages),
            scores,
            tuple(missing.items()),
        )

    async def _score(self, metric: str, sample: JudgedSample) -> float | str:
        """The score, or the reason why there is none."""
        certain = find_certain(metric, sample)
        if certain is not None:
            return certain
        try:
            return await self._ask_twice(metric, sample)
        except LockgateError as error:
            log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part="judge", reason=name_causes(error))
            return f"the judge failed: {error.message}"

    async def _ask_twice(self, metric: str, sample: JudgedSample) -> float | str:
        task: Sequence[Message] = build_task(metric, sample)
        reply = await _ask(self._judge, task)
        score = read_score(metric, sample, reply)
        if score is None:
            score = read_score(metric, sample, await _ask(self._judge, build_second_task(task, reply)))
        return _UNREADABLE if score is None else score


async def _answer(agent: AnyAgent, question: str) -> tuple[str, TurnResult]:
    """The agent's answer without a session, its reasoning removed, and the result of the turn."""
    async with agent.open(AgentQuestion(question, is_stream=False)) as turn:
        answer = "".join([piece async for piece in turn.pieces])
        return forget_reasoning(answer), turn.facts


async def _ask(judge: JudgeModel, messages: Sequence[Message]) -> str:
    deadline = Deadline(asyncio.get_running_loop().time() + judge.timeout_s)
    generate = partial(judge.model.generate, messages, {"temperature": 0})
    reply = ""
    try:
        async with aclosing(read_model(generate, deadline)) as bursts:
            async for burst in bursts:
                reply += "".join([frame.text for frame in (burst if isinstance(burst, list) else (burst,))])
                if len(reply) > MAX_REPLY_CHARS:
                    break
    finally:
        limit_calls(None)  # the calls after this have no such limit
    return reply


def _sum_up(outcomes: Sequence[_Outcome], judge_name: str, elapsed_s: float) -> Evaluation:
    details = tuple(one for one in outcomes if isinstance(one, QuestionDetail))
    failures = tuple(one for one in outcomes if isinstance(one, FailedQuestion))
    if not details:
        first = failures[0]
        raise EvaluationFailed(f"no question could be evaluated; the first, `{first.id}`: {first.reason}")
    scores = average_scores([one.scores for one in details])
    whole = sum_up(scores)
    if whole is None:
        raise EvaluationFailed(_describe_missing(scores, details))
    is_partial = bool(failures) or any(one.missing for one in details)
    return Evaluation(
        status=PARTIAL if is_partial else OK,
        questions_evaluated=len(details),
        elapsed_seconds=elapsed_s,
        judge_model=judge_name,
        faithfulness=scores.faithfulness or 0.0,
        answer_relevancy=scores.answer_relevancy or 0.0,
        context_recall=scores.context_recall or 0.0,
        context_precision=scores.context_precision or 0.0,
        global_score=whole,
        verdict=rate(whole),
        details=details,
        failures=failures,
    )


def _describe_missing(scores: Scores, details: Sequence[QuestionDetail]) -> str:
    metric = next(name for name, score in zip(METRICS, scores, strict=True) if score is None)
    reason = next(dict(one.missing)[metric] for one in details if metric in dict(one.missing))
    return f"there is no verdict on {metric} for any question; the first: {reason}"
