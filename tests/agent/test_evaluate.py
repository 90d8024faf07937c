# SPDX-License-Identifier: Apache-2.0
"""Questions are answered by an agent and judged by a model: how many at once, what fails what, and what comes out."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockgate.agent.answer import AgentQuestion, AnyAgent, OpenTurn, TurnResult
from lockgate.agent.evaluate import (
    EvaluationProgress,
    EvaluationRequest,
    EvaluationSetup,
    FailedQuestion,
    JudgeModel,
    QuestionDetail,
    evaluate,
    load_questions,
)
from lockgate.detectors.judge.scores import CONTEXT_PRECISION, METRICS, JudgedSample, Scores, build_task
from lockgate.errors import CannotEvaluate, EvaluationFailed, InvalidRequest, Unavailable
from lockgate.gate.values import Document, Frame, Message
from tests.waits import LoopClock, forever, latency, until

QUESTIONS = [
    {"id": f"q{n}", "category": "odd" if n % 2 else "even", "question": f"What is {n}?", "reference": f"It is {n}."}
    for n in range(6)
]
DOCUMENTS = (Document("A", "It is so.", 0.9), Document("B", "Nothing.", 0.1))
YES_NO = {"verdicts": [{"passage": 1, "verdict": "yes"}, {"passage": 2, "verdict": "no"}]}
Judging = Callable[[str, str], str]
Pause = Callable[[], Awaitable[object]]
AT_ONCE: Pause = partial(latency, 0)


def name_task(text: str) -> str:
    return text.partition("\n\n")[0]


TASKS = {name_task(build_task(metric, JudgedSample("", "", "", ()))[1].text): metric for metric in METRICS}


def name_metric(messages: Sequence[Message]) -> str:
    return TASKS[name_task(messages[1].text)]


class Answering:
    """An agent of the test: says `answer`, or what is scripted for a question; counts who is with it."""

    takes = frozenset[str]()

    def __init__(self, scripted: Mapping[str, str | Exception] | None = None, facts: TurnResult | None = None) -> None:
        self.asked: list[AgentQuestion] = []
        self.open_now = self.most_open = 0
        self.pause = AT_ONCE
        self._scripted = scripted or {}
        self._facts = facts or TurnResult(documents=DOCUMENTS)

    @asynccontextmanager
    async def open(self, ask: AgentQuestion) -> AsyncIterator[OpenTurn]:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        self.asked.append(ask)
        try:
            yield OpenTurn(self._facts, self._say(self._scripted.get(ask.question, "It is so.")))
        finally:
            self.open_now -= 1

    async def _say(self, words: str | Exception) -> AsyncIterator[str]:
        await self.pause()
        if isinstance(words, Exception):
            raise words
        yield "<think>hm</think>"
        yield words


class ScriptedJudge:
    """A judge of the test: replies what `judge` says of the measure and the material."""

    def __init__(self, judge: Judging | None = None, *, pause: Pause = AT_ONCE) -> None:
        self.params: list[Mapping[str, Any]] = []
        self.asked: list[tuple[Message, ...]] = []
        self.was_stopped = 0
        self._judge = judge or (lambda _metric, _task: json.dumps(YES_NO))
        self._pause = pause

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        self.asked.append(tuple(messages))
        self.params.append(params)
        try:
            await self._pause()
            yield Frame(0, self._judge(name_metric(messages), messages[1].text))
        except (asyncio.CancelledError, GeneratorExit):
            self.was_stopped += 1
            raise


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in QUESTIONS), encoding="utf-8")
    return path


def build_setup(
    questions: Path | None, agent: Answering, judge: ScriptedJudge | None, **changes: Any
) -> EvaluationSetup:
    def find_agent(index: str) -> AnyAgent:
        if index:
            raise InvalidRequest(f"no source `{index}`")
        return agent

    return EvaluationSetup(
        find_agent, None if judge is None else JudgeModel(judge, "judge/large"), questions, **changes
    )


async def test_every_question_is_answered_by_the_agent_and_scored_by_the_judge(questions: Path) -> None:
    agent, judge = Answering(), ScriptedJudge()
    outcome = await evaluate(EvaluationRequest(), build_setup(questions, agent, judge))
    assert (outcome.status, outcome.questions_evaluated, outcome.judge_model) == ("ok", 6, "judge/large")
    assert (outcome.faithfulness, outcome.answer_relevancy, outcome.context_recall) == (0.5, 0.5, 0.5)
    assert (outcome.context_precision, outcome.global_score, outcome.verdict) == (1.0, 0.625, "fair")
    assert outcome.elapsed_seconds > 0
    scores = Scores(0.5, 0.5, 0.5, 1.0)
    assert outcome.details[1] == QuestionDetail("q1", "odd", "What is 1?", "It is so.", 2, scores)
    assert [one.id for one in outcome.details] == [one["id"] for one in QUESTIONS]
    assert outcome.failures == ()


async def test_the_agent_is_asked_without_a_session_and_the_judge_at_temperature_0(questions: Path) -> None:
    agent, judge = Answering(), ScriptedJudge()
    await evaluate(EvaluationRequest(limit=1), build_setup(questions, agent, judge))
    assert agent.asked == [AgentQuestion("What is 0?", is_stream=False)]
    assert [name_metric(messages) for messages in judge.asked] == list(METRICS)
    assert judge.params == [{"temperature": 0}] * 4
    assert all("<think>" not in messages[1].text for messages in judge.asked)


async def test_questions_are_chosen_by_category_and_limit(questions: Path) -> None:
    setup = build_setup(questions, Answering(), ScriptedJudge())
    outcome = await evaluate(EvaluationRequest("odd", 2), setup)
    assert [one.id for one in outcome.details] == ["q1", "q3"]
    with pytest.raises(InvalidRequest, match="known categories: even, odd"):
        await evaluate(EvaluationRequest("other"), setup)
    with pytest.raises(InvalidRequest, match="no source `elsewhere`"):
        await evaluate(EvaluationRequest(index="elsewhere"), setup)


async def test_no_more_questions_are_under_way_than_allowed_and_progress_is_told(questions: Path) -> None:
    agent, told = Answering(), list[EvaluationProgress]()
    agent.pause = partial(latency, 0.01)
    await evaluate(EvaluationRequest(), build_setup(questions, agent, ScriptedJudge(), max_open=2), told.append)
    assert (agent.most_open, agent.open_now) == (2, 0)
    assert [(one.done, one.total) for one in told] == [(n, 6) for n in range(1, 7)]


async def test_a_question_that_fails_is_told_and_no_part_of_the_scores(questions: Path) -> None:
    agent = Answering({"What is 1?": Unavailable("model", "the model is down"), "What is 2?": ZeroDivisionError()})
    outcome = await evaluate(EvaluationRequest(), build_setup(questions, agent, ScriptedJudge()))
    assert (outcome.status, outcome.questions_evaluated, outcome.global_score) == ("partial", 4, 0.625)
    assert outcome.failures == (
        FailedQuestion("q1", "the model is down"),
        FailedQuestion("q2", "it failed: ZeroDivisionError"),
    )


async def test_an_answer_that_a_policy_blocked_is_not_judged(questions: Path) -> None:
    agent, judge = Answering(facts=TurnResult(outcome="answer_blocked")), ScriptedJudge()
    with pytest.raises(EvaluationFailed, match="the first, `q0`: not answered: answer_blocked"):
        await evaluate(EvaluationRequest(), build_setup(questions, agent, judge))
    assert judge.asked == []


async def test_if_every_question_fails_there_are_no_scores(questions: Path) -> None:
    agent = Answering({one["question"]: Unavailable("model", "the model is down") for one in QUESTIONS})
    with pytest.raises(EvaluationFailed, match=r"no question could be evaluated; .*: the model is down") as caught:
        await evaluate(EvaluationRequest(), build_setup(questions, agent, ScriptedJudge()))
    assert caught.value.status == 503


async def test_a_verdict_that_cannot_be_read_is_missing_and_not_0(questions: Path) -> None:
    def judge(metric: str, task: str) -> str:
        is_broken = metric == CONTEXT_PRECISION and "What is 3?" in task
        return "I would rather not say." if is_broken else json.dumps(YES_NO)

    scripted = ScriptedJudge(judge)
    outcome = await evaluate(EvaluationRequest(), build_setup(questions, Answering(), scripted))
    assert (outcome.status, outcome.questions_evaluated, outcome.context_precision) == ("partial", 6, 1.0)
    assert outcome.details[3].scores == Scores(0.5, 0.5, 0.5, None)
    assert outcome.details[3].missing == ((CONTEXT_PRECISION, "the judge's reply could not be read"),)
    assert len(scripted.asked) == 6 * 4 + 1  # it was asked once more


async def test_a_judge_that_could_not_be_read_gets_a_second_chance(questions: Path) -> None:
    replies = iter(["Yes and no."])
    judge = ScriptedJudge(lambda _metric, _task: next(replies, json.dumps(YES_NO)))
    outcome = await evaluate(EvaluationRequest(limit=1), build_setup(questions, Answering(), judge))
    assert (outcome.status, outcome.faithfulness) == ("ok", 0.5)
    assert judge.asked[1][2].text == "Yes and no."


async def test_a_measure_without_any_verdict_is_an_error_and_not_a_score(questions: Path) -> None:
    judge = ScriptedJudge(lambda metric, _task: "?" if metric == CONTEXT_PRECISION else json.dumps(YES_NO))
    with pytest.raises(
        EvaluationFailed, match=r"no verdict on context_precision for any question; .* could not be read"
    ):
        await evaluate(EvaluationRequest(), build_setup(questions, Answering(), judge))


async def test_a_judge_that_is_down_is_told(questions: Path) -> None:
    def judge(metric: str, task: str) -> str:
        raise Unavailable("model", "cannot connect")

    with pytest.raises(EvaluationFailed, match="`q0`: the judge failed: cannot connect"):
        await evaluate(EvaluationRequest(), build_setup(questions, Answering(), ScriptedJudge(judge)))


async def test_a_judge_that_takes_too_long_is_left(questions: Path) -> None:
    judge = ScriptedJudge(pause=LoopClock().run_out)
    setup = build_setup(questions, Answering(), judge)
    with pytest.raises(EvaluationFailed, match="the judge failed: Model request timed out"):
        await evaluate(EvaluationRequest(limit=1), setup)
    assert judge.was_stopped == 4


async def test_without_passages_only_the_answer_is_judged(questions: Path) -> None:
    judge = ScriptedJudge()
    setup = build_setup(questions, Answering(facts=TurnResult()), judge)
    outcome = await evaluate(EvaluationRequest(limit=1), setup)
    assert outcome.details[0].scores == Scores(0.5, 0.5, 0.0, 0.0)
    assert (outcome.details[0].n_chunks, outcome.verdict, len(judge.asked)) == (0, "poor", 2)


async def test_without_a_judge_or_questions_there_is_an_error_that_says_what_to_set(questions: Path) -> None:
    agent = Answering()
    with pytest.raises(CannotEvaluate, match=r"`evaluation\.judge`") as caught:
        await evaluate(EvaluationRequest(), build_setup(questions, agent, None))
    assert caught.value.status == 412
    with pytest.raises(CannotEvaluate, match=r"`evaluation\.questions`"):
        await evaluate(EvaluationRequest(), build_setup(None, agent, ScriptedJudge()))
    assert agent.asked == []


@pytest.mark.parametrize("pause", ["agent", "judge"])
async def test_cancelling_ends_everything_that_is_under_way(questions: Path, pause: str) -> None:
    agent, judge = Answering(), ScriptedJudge(pause=forever if pause == "judge" else AT_ONCE)
    if pause == "agent":
        agent.pause = forever
    task = asyncio.create_task(evaluate(EvaluationRequest(), build_setup(questions, agent, judge)))
    await until(lambda: len(agent.asked) >= 4 and (pause == "agent" or len(judge.asked) >= 4))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (agent.open_now, len(agent.asked)) == (0, 4)
    assert judge.was_stopped == (4 if pause == "judge" else 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}", "line 1: `id` is missing or empty"),
        (b'\n{"id": "\xff"}', "line 2: not UTF-8"),
        (b"\n", "there is no question in it"),
    ],
)
def test_a_file_that_is_wrong_is_told_with_the_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(content)
    with pytest.raises(CannotEvaluate) as caught:
        load_questions(path)
    assert caught.value.message == f"the file of `evaluation.questions`: {reason}"


def test_a_file_that_is_not_there_or_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotEvaluate, match="cannot be read: No such file or directory"):
        load_questions(tmp_path / "missing.jsonl")
    path = tmp_path / "questions.jsonl"
    with path.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(CannotEvaluate, match="longer than 16777216 bytes"):
        load_questions(path)
