# SPDX-License-Identifier: Apache-2.0
"""The way of every endpoint that generates, from a checked request to its last byte.

Chooses detectors by request and policy, carries the answer through the pipeline, lets the policy judge each release,
and writes what the endpoint's own words make of it. Whole answers and streams go the same way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

from lockgate.assembly import Gateway
from lockgate.config.policies import PolicySettings
from lockgate.core.lanes import LanePlan
from lockgate.core.release import Release, Strategy
from lockgate.core.values import Detection, Frame, Generation, Subject
from lockgate.core.verdicts import Action, Judge, hide
from lockgate.errors import InvalidRequest
from lockgate.interfaces import Backend, Headers
from lockgate.pipelines.detect import Slice, review_all
from lockgate.pipelines.generate import Answer, Order, Prompt, open_answer
from lockgate.pipelines.guarded_stream import plan_lanes
from lockgate.pipelines.guards import ActiveGuard, ActiveReview, Chosen, Rules, check_thresholds, choose, forgive
from lockgate.server.http.exchange import Exchange
from lockgate.server.http.passing import build_passthrough, prepare
from lockgate.telemetry import count_detections
from lockgate.wire.guardrails import DetectorMap, Masks

_OPEN_IN_STREAMS = 4  # requests per detector; the existing orchestrator asks one after the other
_NO_POLICY = PolicySettings("")


class Border(Protocol):
    """What an endpoint makes of messages and releases, in its own words."""

    found_in_prompt: Sequence[Detection]
    warnings: list[dict[str, str]]
    is_blocked: bool  # a policy has cut the answer off: nothing more of it is written

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """A message of the backend as frames."""

    def take(self, release: Release, *, is_blocked: bool = False) -> bytes:
        """What a release says to the client."""

    def subjects(self) -> Iterable[tuple[int, Subject]]:
        """What reviewers read, by choice; asked when the answer is complete."""

    def note_reviews(self, choice: int, found: Sequence[Detection]) -> None:
        """What reviewers found in a choice."""

    def finish(self) -> bytes:
        """The last words, or the whole answer."""


class Plan(NamedTuple):
    """Who reads the prompt and the answer of one request, and what then becomes of them."""

    policy: PolicySettings
    inputs: Chosen
    outputs: Chosen
    warnings: list[str]

    @property
    def hides(self) -> bool:
        """Whether what was found in the answer must not be seen."""
        return self.policy.on_output is not Action.ANNOTATE and bool(self.outputs.contents)

    @property
    def trailing(self) -> frozenset[str]:
        """The detectors of contents that report at the end."""
        return frozenset(active.guard.id for active in self.outputs.contents if not active.holds)

    @property
    def is_holding(self) -> bool:
        """Whether anybody holds text back."""
        return any(active.holds for active in self.outputs.contents)


class Job(NamedTuple):
    """One request, ready to be carried out."""

    backend: Backend
    generation: Generation
    plan: Plan
    lanes: LanePlan
    border: Border
    is_stream: bool
    text: str  # what is read of the prompt
    masks: Masks
    block: Callable[[Sequence[Detection], int, list[dict[str, str]]], bytes]
    warn: Callable[[str], dict[str, str]]
    with_prompt: Callable[[str], Generation] | None = None


class Answering:
    """What the generating endpoints of one open gateway share."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.gateway = gateway
        self.is_fms = gateway.is_fms
        self.limits = settings.limits
        self._unsuitable = 422 if gateway.is_fms else 400
        self._max_open = settings.detector_concurrent_requests
        self._max_cuts = settings.chunker_concurrent_requests
        self.headers = build_passthrough(settings)

    def find_policy(self, name: str | None) -> PolicySettings:
        """The policy that a request names."""
        if name is None:
            return _NO_POLICY
        policy: PolicySettings | None = self.gateway.settings.policies.get(name)
        if policy is None:
            raise InvalidRequest(f"policy `{name}` not found")
        return policy

    def check_thresholds(self, *requested: DetectorMap) -> None:
        """Thresholds are numbers."""
        for one in requested:
            check_thresholds(one)

    def rules(self, *types: str, allows_whole_text: bool = True, whole_text_holds: bool = True) -> Rules:
        """What an endpoint allows; thresholds have been checked before."""
        return _build_rules(types, self._unsuitable, allows_whole_text, whole_text_holds)

    async def plan(
        self,
        policy: PolicySettings,
        inputs: tuple[DetectorMap, Rules],
        outputs: tuple[DetectorMap, Rules],
        headers: Headers,
    ) -> Plan:
        """The detectors that request and policy name; of the same detector the policy's parameters count."""
        warnings: list[str] = []
        of_input = await self.choose({**inputs[0], **policy.input}, inputs[1], headers)
        of_output = await self.choose({**outputs[0], **policy.output}, outputs[1], headers)
        if policy.passes_failures:
            of_input, of_output = (forgive(one, warnings.append) for one in (of_input, of_output))
        return Plan(policy, of_input, of_output, warnings)

    async def choose(self, requested: Mapping[str, Mapping[str, Any]], rules: Rules, headers: Headers) -> Chosen:
        """The detectors of a request."""
        if not requested:
            return Chosen()
        return await prepare(requested.values(), partial(choose, self.gateway.guards, requested, rules, headers))

    def lanes(
        self,
        guards: Sequence[ActiveGuard],
        *,
        is_stream: bool,
        strategy: Strategy,
        feeds_empty: bool = False,
        reads_empty: bool = False,
    ) -> LanePlan:
        """How texts go through that these guards read."""
        if not is_stream:
            return plan_lanes(
                guards,
                max_open=self._max_open,
                max_held_chars=None,
                is_whole=True,
                feeds_empty=feeds_empty,
                trusts_chunks=self.is_fms,
            )
        return plan_lanes(
            guards,
            strategy=self.gateway.strategy(strategy),
            max_open=1 if self.is_fms else _OPEN_IN_STREAMS,
            max_held_chars=self.limits.max_held_chars,
            feeds_empty=feeds_empty,
            reads_empty=reads_empty,
            trusts_chunks=self.is_fms,
        )

    async def carry_out(self, exchange: Exchange, job: Job) -> None:
        """From the prompt to the last byte."""
        plan = job.plan
        prompt = Prompt(
            job.text,
            cut_masks(job.text, job.masks),
            plan.inputs.contents,
            plan.policy.on_input,
            self._max_open,
            self._max_cuts,
            self.is_fms,
        )
        order = Order(
            prompt, job.backend, job.generation, plan.outputs.contents, job.lanes, job.border.to_frames, job.with_prompt
        )
        is_blocked = False
        async with open_answer(order) as answer:
            if answer.releases is None:
                count_detections(answer.found)
                warnings = [job.warn(name) for name in dict.fromkeys(plan.warnings)]
                await self._send(exchange, job, job.block(answer.found, answer.input_tokens, warnings))
                return
            is_blocked = await self._relay(exchange, job, answer)
        if plan.outputs.reviews and not is_blocked:
            await self._review(job, plan.outputs.reviews)
        job.border.warnings += [job.warn(name) for name in dict.fromkeys(plan.warnings)]
        await self._send(exchange, job, job.border.finish())

    async def _relay(self, exchange: Exchange, job: Job, answer: Answer) -> bool:
        """Write each release; whether a policy has cut the answer off."""
        border = job.border
        judges = _Judges(job.plan.policy) if job.plan.hides else None
        border.found_in_prompt = answer.found
        assert answer.releases is not None  # noqa: S101 - the caller has looked
        if answer.found:
            count_detections(answer.found)
        async for release in answer.releases:
            is_blocked = False
            if release.detections:
                count_detections(release.detections)
            if judges is not None:
                release, is_blocked = judges.judge(release)
            written = border.take(release, is_blocked=is_blocked)
            if written:
                await exchange.write(written)
            if border.is_blocked:
                return True
        return False

    async def _review(self, job: Job, reviews: Sequence[ActiveReview]) -> None:
        for choice, subject in job.border.subjects():
            found = await review_all(reviews, subject, self._max_open)
            count_detections(found)
            job.border.note_reviews(choice, [hide(one) for one in found] if job.plan.hides else found)

    async def _send(self, exchange: Exchange, job: Job, body: bytes) -> None:
        if not job.is_stream:
            await exchange.answer_json(body)
            return
        if body:
            await exchange.write(body)
        await exchange.end()


class _Judges:
    """One judge per text of a stream."""

    def __init__(self, policy: PolicySettings) -> None:
        self._policy = policy
        self._judges: dict[int, Judge] = {}

    def judge(self, release: Release) -> tuple[Release, bool]:
        """The release as it may leave, and whether nothing may follow."""
        judge = self._judges.get(release.choice)
        if judge is None:
            judge = self._judges[release.choice] = Judge(self._policy.on_output, self._policy.fallback)
        verdict = judge.judge(release.start, release.text, release.detections)
        return release._replace(text=verdict.text, detections=verdict.detections), verdict.is_blocked


@cache
def _build_rules(types: tuple[str, ...], status: int, allows_whole_text: bool, whole_text_holds: bool) -> Rules:
    return Rules(types, status, allows_whole_text, whole_text_holds, checks_threshold=False)


def cut_masks(text: str, masks: Masks) -> list[Slice]:
    """The parts of a text that are read: all of it, or what the masks name."""
    return [Slice(start, text[start:end]) for start, end in masks] if masks else [Slice(0, text)]


def failed_detector(name: str) -> str:
    """What is said of a detector whose failure a policy lets pass."""
    return f"Detector `{name}` failed. The text was not checked by it."
