# SPDX-License-Identifier: Apache-2.0
"""`lockgate evaluate`: an agent answers the questions of a file, and a judge model scores the answers."""

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from lockgate.cli import EXIT_OK
from lockgate.cli.text import align, flatten

if TYPE_CHECKING:
    from lockgate.agent.evaluate import Evaluation, EvaluationProgress, FailedQuestion, QuestionDetail
    from lockgate.config.settings import Settings

_ANSWER_CHARS = 60
_NO_SCORE = "-"
_JUDGE = "the judge"


def run_evaluate(options: argparse.Namespace) -> int:
    """Carries out `evaluate`."""
    from lockgate.telemetry import set_up_logging

    settings = options.load(options)
    set_up_logging(style=None, level="INFO", is_quiet=True)  # standard output is for the scores
    outcome = asyncio.run(_evaluate(settings, options))
    print(_write_json(outcome) if options.json else _write_table(outcome))
    return EXIT_OK


async def _evaluate(settings: "Settings", options: argparse.Namespace) -> "Evaluation":
    from lockgate.agent.evaluate import EvaluationRequest, evaluate
    from lockgate.errors import CannotEvaluate, EvaluationFailed, InvalidRequest
    from lockgate.gateway import open_gateway

    if not settings.agents:
        raise InvalidRequest("no agent is configured, so there is nothing to evaluate: add one to `agents`")
    if options.agent is not None and options.agent not in settings.agents:
        raise InvalidRequest(f"no agent `{options.agent}` is configured; there are: {', '.join(settings.agents)}")
    request = EvaluationRequest(options.category, options.limit, options.index)
    async with open_gateway(settings) as gateway:
        try:
            return await evaluate(request, gateway.evaluation(options.agent), _print_progress)
        except CannotEvaluate as error:
            path = settings.evaluation.questions
            if path is None or settings.evaluation.judge is None:
                raise
            raise CannotEvaluate(f"{error.message} ({path.absolute()})") from error
        except EvaluationFailed as error:
            raise EvaluationFailed(f"{error.message}; {_describe_models(settings, options.agent)}") from error


def _describe_models(settings: "Settings", wanted: str | None) -> str:
    """Names the models that may have failed: those of the agent, and the judge."""
    agent = settings.agents.get(wanted or "default") or next(iter(settings.agents.values()))
    models = " and ".join(f"`{name}`" for name in dict.fromkeys((agent.main, agent.conversational)))
    return f"agent `{agent.id}` uses {models}, the judge is `{settings.evaluation.judge}`"


def _print_progress(progress: "EvaluationProgress") -> None:
    last = progress.last
    words = f"[{progress.done}/{progress.total}] {flatten(last.id)}: {_describe_outcome(last)}"
    print(words, file=sys.stderr, flush=True)


def _describe_outcome(outcome: "QuestionDetail | FailedQuestion") -> str:
    from lockgate.agent.evaluate import FailedQuestion

    if isinstance(outcome, FailedQuestion):
        return f"failed: {_blame(outcome.reason)}"
    scores = zip(("faithfulness", "relevancy", "recall", "precision"), outcome.scores, strict=True)
    return ", ".join(f"{name} {_score(score)}" for name, score in scores)


def _blame(reason: str) -> str:
    """The reason with the part that failed: the judge if the reason names it, else the agent."""
    return flatten(reason) if reason.startswith(_JUDGE) else f"the agent failed: {flatten(reason)}"


def _write_table(outcome: "Evaluation") -> str:
    total = outcome.questions_evaluated + len(outcome.failures)
    blocks = [
        [
            f"{outcome.questions_evaluated} of {total} questions in {outcome.elapsed_seconds:.1f} s, "
            f"judged by {flatten(outcome.judge_model)}: {outcome.status}"
        ],
        align(
            (
                ("faithfulness", _score(outcome.faithfulness), "of what the answers claim, the passages support"),
                ("answer relevancy", _score(outcome.answer_relevancy), "of what the answers say is to the point"),
                ("context recall", _score(outcome.context_recall), "of what should be known, the passages tell"),
                ("context precision", _score(outcome.context_precision), "of use among the passages, first ones first"),
                ("global", _score(outcome.global_score), outcome.verdict),
            )
        ),
        align((_HEAD, *(_row(one) for one in outcome.details))),
    ]
    missing = [(flatten(one.id), name, flatten(why)) for one in outcome.details for name, why in one.missing]
    if missing:
        blocks.append(["No verdict, and no part of the mean:", *align(missing)])
    if outcome.failures:
        failed = [(flatten(one.id), _blame(one.reason)) for one in outcome.failures]
        blocks.append(["Failed, and no part of the scores:", *align(failed)])
    return "\n\n".join("\n".join(lines) for lines in blocks)


_HEAD = ("id", "category", "faith.", "relev.", "recall", "prec.", "passages", "answer")


def _row(one: "QuestionDetail") -> tuple[str, ...]:
    scores = [_score(score) for score in one.scores]
    preview = flatten(one.answer_preview)[:_ANSWER_CHARS]
    return (flatten(one.id), flatten(one.category), *scores, str(one.n_chunks), preview)


def _score(score: float | None) -> str:
    return _NO_SCORE if score is None else f"{score:.2f}"


def _write_json(outcome: "Evaluation") -> str:
    details = [
        {**one._asdict(), "scores": one.scores._asdict(), "missing": dict(one.missing)} for one in outcome.details
    ]
    failures = [one._asdict() for one in outcome.failures]
    return json.dumps({**outcome._asdict(), "details": details, "failures": failures}, indent=2)
