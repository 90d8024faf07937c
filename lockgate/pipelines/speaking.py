# SPDX-License-Identifier: Apache-2.0
"""A model's words on their way to the listener: as they come, or through the gate where somebody reads them first.

Decides how long a model may be silent, and what its failure is called. Without detectors each chunk of the model is
one piece, passed on at once; with them a piece is what the gate lets through. The model is read only as fast as pieces
are taken.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from lockgate.core.lanes import LanePlan
from lockgate.core.receipts import Part, Receipt
from lockgate.core.release import Release
from lockgate.core.values import Document, Frame, Message
from lockgate.core.verdicts import Judge, Measures, judge_whole
from lockgate.errors import CheckFailed, HeldTooMuch, TimedOut, TurnFailed, UpstreamError
from lockgate.interfaces import Model
from lockgate.pipelines.answer import Guarding
from lockgate.pipelines.detect import detect_contents
from lockgate.pipelines.guarded_stream import Source, open_guarded_stream
from lockgate.pipelines.guards import ActiveGuard
from lockgate.pipelines.listening import blaming_model, next_burst
from lockgate.pipelines.metering import Basis, Chunking, Meter, ground, tell_sources
from lockgate.telemetry import Event, log_event, name_causes

ANSWERED, PROMPT_BLOCKED, ANSWER_BLOCKED = "answered", "prompt_blocked", "answer_blocked"
MAX_WHOLE_CHARS = 8 * 1024 * 1024  # of an answer that leaves in one piece
_GONE = "the model is not available"
_LATE = "the model did not answer in time"


@dataclass(slots=True)
class Facts:
    """What is known of a turn; complete when its last piece has been heard."""

    label: str = ""
    layer: str = ""
    confidence: float | None = None
    topic: str = ""
    prepare_ms: int = 0
    first_token_ms: int = 0
    tokens: int = 0
    outcome: str = ANSWERED
    is_cut: bool = False  # the model was not allowed to say more
    is_repeated: bool = False
    usage: Mapping[str, int] | None = None
    documents: tuple[Document, ...] = field(default=())
    receipt: Receipt | None = None  # where detectors read anything
    excused: Mapping[str, bool] = field(default_factory=dict)  # who failed, and whether that would have ended the turn
    pseudonyms: Mapping[str, str] = field(default_factory=dict)  # what made-up names stand for

    def begin(self, meter: "Meter") -> None:
        """Detectors read something: what they do is known from now on."""
        self.receipt, self.excused, self.pseudonyms = meter.receipt, meter.excused, meter.names.values

    @property
    def passages(self) -> int:
        """How many documents the model was given."""
        return len(self.documents)


class Pace(NamedTuple):
    """How long a model may be silent, in seconds."""

    first_token_s: float = 60.0
    token_gap_s: float = 60.0


PACE = Pace()


class Plan(Protocol):
    """Makes the plan of a text that these guards read, as it comes or all at once."""

    def __call__(self, guards: Sequence[ActiveGuard], /, *, is_whole: bool) -> LanePlan: ...


class Gate(NamedTuple):
    """How text is held for detectors: how it goes through, and by what it is cut for those that compare."""

    plan: Plan
    chunking: Chunking


class Saying(NamedTuple):
    """What a model is to say, and who reads it first."""

    model: Model
    messages: Sequence[Message]
    params: Mapping[str, Any]
    pace: Pace
    guarding: Guarding
    meter: Meter
    gate: Gate
    documents: Sequence[Document] = ()
    lack: str = ""  # what the model was told in place of documents, where it should have had some
    is_whole: bool = False  # the answer leaves at once, so it is judged at once


async def speak(saying: Saying, facts: Facts) -> AsyncGenerator[str, None]:
    """The pieces of the answer; `facts` learn of its tokens, its usage, and whether it was cut off."""
    guards = choose_readers(saying)
    source = _listen(saying, facts)
    if not guards:
        async with aclosing(source):
            async for burst in source:
                for frame in burst if isinstance(burst, list) else (burst,):
                    if frame.text:
                        yield frame.text
        return
    judge = _Judge(saying, facts)
    source = _collect(source) if saying.is_whole else source
    try:
        async with open_guarded_stream(source, guards, saying.gate.plan(guards, is_whole=saying.is_whole)) as releases:
            with suppress(GeneratorExit):  # nobody listens any more; the gate must not take that for a failure
                async for release in releases:
                    piece = judge.judge(release)
                    if piece:
                        yield piece
                    if facts.outcome == ANSWER_BLOCKED:
                        return
    except UpstreamError as error:  # the model's own are called otherwise
        raise fail_check(error) from error


class _Judge:
    """Judges the releases of one answer, and notes what leaves."""

    def __init__(self, saying: Saying, facts: Facts) -> None:
        self._meter = saying.meter
        self._measures: Measures = saying.guarding.for_output
        self._judge = Judge(self._measures, saying.meter.names)
        self._facts = facts

    def judge(self, release: Release) -> str:
        """What of a release may leave."""
        if release.detections:
            self._meter.note_findings(release.detections, self._measures, Part.ANSWER)
        verdict = self._judge.judge(release.start, release.text, release.detections)
        self._meter.receipt.note_released(Part.ANSWER, release.text[: verdict.kept])
        if verdict.is_blocked:
            self._facts.outcome = ANSWER_BLOCKED
        return verdict.text


def choose_readers(saying: Saying) -> tuple[ActiveGuard, ...]:
    """Who reads the answer before it leaves."""
    guarding, documents = saying.guarding, saying.documents
    readers = tell_sources(guarding.output, {one.source for one in documents}) if guarding.output else ()
    texts = [one.text for one in documents] or [saying.lack]
    if guarding.grounding and any(texts):
        basis = Basis(texts, saying.gate.chunking, guarding.max_open)
        readers += ground(guarding.grounding, basis, holds=guarding.grounding_holds)
    return saying.meter.watch(readers, Part.ANSWER)


def fail_check(error: UpstreamError) -> CheckFailed:
    """The error for a detector that failed."""
    log_event(Event.UPSTREAM_FAILED, logging.WARNING, part=error.service, reason=name_causes(error))
    return CheckFailed(error.service)


def fail_model(error: UpstreamError, model: Model, *, has_begun: bool = False) -> TurnFailed:
    """The error for a model that failed. Its words are for nobody: they may quote the prompt or a header.

    One that falls silent after it has begun is as good as gone: too late is only a first word.
    """
    name = getattr(model, "known_as", "")
    log_event(
        Event.UPSTREAM_FAILED, logging.WARNING, part="model", model=name, status=error.status, reason=name_causes(error)
    )
    if isinstance(error, TimedOut):
        return TurnFailed(_LATE, status=TurnFailed.status if has_begun else 504)
    return TurnFailed(_GONE)


async def _listen(saying: Saying, facts: Facts) -> Source:
    clock = asyncio.get_running_loop().time
    until = clock() + saying.pace.first_token_s
    try:
        with blaming_model():
            frames = saying.model.generate(saying.messages, {**saying.params, "stream": True})
        async with aclosing(frames):
            while (burst := await next_burst(frames, until)) is not None:
                if _note(burst, facts):
                    until = clock() + saying.pace.token_gap_s
                yield burst
    except UpstreamError as error:
        raise fail_model(error, saying.model, has_begun=facts.tokens > 0) from error


async def _collect(source: Source) -> Source:
    """The whole text as one frame."""

    async def list_texts() -> AsyncGenerator[str, None]:
        async with aclosing(source):
            async for burst in source:
                for frame in burst if isinstance(burst, list) else (burst,):
                    yield frame.text

    yield Frame(0, await join_whole(list_texts()), is_last=True)


async def join_whole(pieces: AsyncGenerator[str, None]) -> str:
    """A whole answer, which must have an end; raises HeldTooMuch."""
    parts, left = [], MAX_WHOLE_CHARS
    async with aclosing(pieces):
        async for piece in pieces:
            parts.append(piece)
            left -= len(piece)
            if left < 0:
                raise HeldTooMuch(f"the answer has more than {MAX_WHOLE_CHARS} characters: ask for a stream")
    return "".join(parts)


def _note(burst: Frame | list[Frame], facts: Facts) -> bool:
    """Count what came; whether there was text in it."""
    before = facts.tokens
    for frame in burst if isinstance(burst, list) else (burst,):
        if frame.text:
            facts.tokens += 1
        if frame.fields is not None:
            facts.usage = frame.fields.get("usage") or facts.usage
            facts.is_cut = bool(frame.fields.get("is_cut")) or facts.is_cut
    return facts.tokens > before


async def check_texts(
    texts: Sequence[str], guarding: Guarding, meter: Meter, *, is_early: bool = False
) -> list[str] | None:
    """What was asked, as it may go on: masked where the policy says so; None where it may not.

    `is_early`: the model has been given it already.
    """
    if not guarding.input:
        return list(texts)
    readers = meter.watch(guarding.input, Part.PROMPT)
    for text in dict.fromkeys(texts if is_early else ()):
        meter.receipt.note_released(Part.PROMPT, text)
    checked: dict[str, str] = {"": ""}
    try:
        for text in texts:
            if text in checked:  # a client's own messages end with the question
                continue
            found = await detect_contents(text, readers, guarding.max_open)
            if found:
                meter.note_findings(found, guarding.for_input, Part.PROMPT)
            verdict = judge_whole(text, found, guarding.for_input, meter.names)
            if verdict.is_blocked:
                return None
            if not is_early:
                meter.receipt.note_released(Part.PROMPT, text)
            checked[text] = verdict.text
    except UpstreamError as error:
        raise fail_check(error) from error
    return [checked[text] for text in texts]
