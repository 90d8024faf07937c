# SPDX-License-Identifier: Apache-2.0
"""Questions for the answering pipeline, and who reads them: scripted models, sources, detectors and reviewers."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC, Claim, Detection, Document, Frame, Message, Subject
from lockgate.guard.detectors import ActiveGuard, ActiveReview, Guard
from lockgate.interfaces import Headers
from lockgate.rag.answer import AnswerResult, GroundedQuestion, Limits, Step, Token, answer
from lockgate.rag.sources import NamedSource
from lockgate.testing import FixedChunker, ScriptedDataSource, ScriptedDetector, ScriptedModel, find_word
from tests.lane_plans import plan_lanes

LIMITS = Limits(600.0, 600.0, 600.0)
NOTES = Document("Kettle", "It boils in three minutes.", 0.9)
STREAMED = {"max_tokens": 10, "temperature": 0.0, "stream": True}


class RecordingModel(ScriptedModel):
    """A model that also remembers what it was asked."""

    messages: Sequence[Message] = ()

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        self.messages = messages
        async for frame in super().generate(messages, params):
            yield frame


class ScriptedReviewer:
    """Finds fault with every claim that holds the word; remembers the claims."""

    def __init__(self, word: str) -> None:
        self.claims: list[Claim] = []
        self._word = word

    def accept(self, params: Mapping[str, Any], headers: Headers) -> "ScriptedReviewer":
        return self

    async def review(self, subject: Subject) -> Sequence[Detection]:
        assert isinstance(subject, Claim)
        self.claims.append(subject)
        is_bad = self._word in subject.content
        return [Detection(0, 0, "", "ungrounded", "grounding", 0.9)] if is_bad else []


def guard(name: str, detector: Any, size: int = 1000) -> ActiveGuard:
    found = Guard(name, TEXT_CONTENTS, detector, f"fixed{size}", FixedChunker(size), 0.5)
    return ActiveGuard(found, detector, 0.5, holds=True)


def word_guard(name: str, word: str, size: int = 1000) -> ActiveGuard:
    return guard(name, ScriptedDetector(find_word(word)), size)


def reviewer(scripted: ScriptedReviewer) -> ActiveReview:
    return ActiveReview(Guard("facts", TEXT_CONTEXT_DOC, scripted, "", None, 0.5), scripted, 0.5)


def _self(part: Any) -> Any:
    return part


def ask(model: ScriptedModel, *sources: ScriptedDataSource, **more: Any) -> GroundedQuestion:
    named = [NamedSource(f"o/s{place}", one) for place, one in enumerate(sources)]
    question = GroundedQuestion("How long?", named, partial(_self, model), "mo/llm", STREAMED, 5, LIMITS, plan_lanes)
    return question._replace(**more)


async def run(question: GroundedQuestion) -> tuple[list[Step], AnswerResult]:
    steps: list[Step] = []

    async def hear(step: Step) -> None:
        steps.append(step)

    outcome = await answer(question, hear)
    return steps, outcome


def text_of(steps: Sequence[Step]) -> str:
    return "".join([step.text for step in steps if isinstance(step, Token)])


def names_of(steps: Sequence[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]
