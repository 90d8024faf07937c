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
from lockgate.core.receipts import Part
from lockgate.core.release import Release, Strategy
from lockgate.core.values import Detection, Frame, Generation, Subject
from lockgate.core.verdicts import Action, Judge, Measures, Verdict, hide
from lockgate.errors import InvalidRequest, LockgateError, UpstreamError
from lockgate.interfaces import Backend, Headers
from lockgate.pipelines.detect import Slice, review_all
from lockgate.pipelines.generate import Answer, Order, Prompt, WithPrompt, open_answer
from lockgate.pipelines.guarded_stream import plan_lanes
from lockgate.pipelines.guards import ActiveGuard, ActiveReview, Chosen, Rules, check_thresholds, choose, excuse
from lockgate.pipelines.metering import Meter
from lockgate.server.http.exchange import Exchange
from lockgate.server.http.passing import build_passthrough, prepare
from lockgate.telemetry import count_detections, observe_policy
from lockgate.wire.guardrails import DetectorMap, Masks
from lockgate.wire.receipts import NO_ACCOUNT, Account, describe_failure

_OPEN_IN_STREAMS = 4  # requests per detector; the existing orchestrator asks one after the other
_NO_POLICY = PolicySettings("")
_ONE_LANE = ("content",)
RECEIPT_HEADER, MAPPING_HEADER = b"x-lockgate-receipt", b"x-lockgate-mapping"


class Border(Protocol):
    """What an endpoint makes of messages and releases, in its own words."""

    found_in_prompt: Sequence[Detection]
    warnings: list[dict[str, str]]
    is_blocked: bool  # a policy has cut the answer off: nothing more of it is written
    account: Account

    def to_frames(self, message: dict[str, Any]) -> Iterable[Frame]:
        """A message of the backend as frames."""

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """What a release says to the client: all of it, or what the verdict leaves of it."""

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
    for_output: Measures = Measures()
    meter: Meter | None = None  # where somebody wants to know what was read
    account: Account = NO_ACCOUNT

    @property
    def hides(self) -> bool:
        """Whether what was found in the answer must not be seen."""
        return self.for_output.changes_text([active.guard.id for active in self.outputs.contents])

    @property
    def is_shadow(self) -> bool:
        """Whether everything is read and nothing changed."""
        return self.policy.is_shadow and self.meter is not None

    @property
    def blocks_prompt(self) -> bool:
        """Whether a finding in the prompt is answered as the policy wants it."""
        found_by = [one.guard.id for one in self.inputs.contents]
        return self.policy.measures("input").strictest(found_by) is not Action.ANNOTATE

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
    warn: Callable[[str, str], dict[str, str]]  # of a code and words
    with_prompt: WithPrompt | None = None
    slices: Sequence[Slice] = ()  # the parts of the text that are read, where the masks do not name them


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

    def name_policy(self, exchange: Exchange, said: str | None, default: str | None = None) -> str | None:
        """The policy of a request: the one that it says, by its path or else, or that of its model."""
        if exchange.policy is not None and said is not None and said != exchange.policy:
            raise InvalidRequest(f"the path names policy `{exchange.policy}`, the request `{said}`: name one")
        return said or exchange.policy or default

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
        exchange: Exchange,
        policy: PolicySettings,
        inputs: tuple[DetectorMap, Rules],
        outputs: tuple[DetectorMap, Rules],
        *,
        lanes: Sequence[str] = _ONE_LANE,
    ) -> Plan:
        """The detectors that request and policy name; of the same detector the policy's parameters count."""
        headers = self.headers(exchange)
        of_input = await self.choose({**inputs[0], **policy.input}, inputs[1], headers)
        of_output = await self.choose({**outputs[0], **policy.output}, outputs[1], headers)
        wants_receipt = not self.is_fms and wants(exchange, RECEIPT_HEADER)
        if not (policy.name or (wants_receipt and not (of_input.is_empty and of_output.is_empty))):
            return Plan(policy, of_input, of_output)
        meter = Meter(policy.name, is_shadow=policy.is_shadow, lanes=lanes)
        of_input = _watch(meter, excuse(of_input, partial(policy.passes, "input")), Part.PROMPT)
        of_output = _watch(meter, excuse(of_output, partial(policy.passes, "output")), Part.ANSWER)
        for name in policy.grounding:  # nothing is retrieved here: it reads nothing, and that is told
            meter.receipt.expect(name, Part.ANSWER)
        names = meter.names.values if wants(exchange, MAPPING_HEADER) else None
        account = Account(meter.receipt, names)
        return Plan(policy, of_input, of_output, policy.measures("output"), meter, account)

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
        try:
            await self._carry_out(exchange, job)
        except LockgateError as error:
            _observe_failure(job.plan, error)
            raise

    async def _carry_out(self, exchange: Exchange, job: Job) -> None:
        plan, policy, measures = job.plan, job.plan.policy, job.plan.policy.measures("input")
        slices = job.slices or cut_masks(job.text, job.masks)
        masks_prompt = not measures.is_shadow and any(
            measures.of(one.guard.id) is Action.MASK for one in plan.inputs.contents
        )
        prompt = Prompt(
            job.text,
            slices,
            plan.inputs.contents,
            measures,
            plan.meter.names if plan.meter is not None else None,
            self._max_open,
            self._max_cuts,
            self.is_fms,
            policy.is_speculative and not masks_prompt,
        )
        job.border.account = plan.account
        order = Order(
            prompt, job.backend, job.generation, plan.outputs.contents, job.lanes, job.border.to_frames, job.with_prompt
        )
        is_blocked = False
        async with open_answer(order) as answer:
            _note(plan, answer.raw, measures, Part.PROMPT)
            if plan.meter is not None and (answer.releases is not None or prompt.is_speculative):
                for one in slices if plan.inputs.contents else ():
                    plan.meter.receipt.note_released(Part.PROMPT, one.text)
            if answer.releases is None:
                if plan.meter is not None:
                    plan.meter.receipt.note_action(Action.BLOCK)
                body = job.block(answer.found, answer.input_tokens, list_failures(plan, job))
                _observe(plan)
                await self._send(exchange, job, body)
                return
            is_blocked = await self._relay(exchange, job, answer)
        if plan.outputs.reviews and not is_blocked:
            await self._review(job, plan.outputs.reviews)
        job.border.warnings += list_failures(plan, job)
        body = job.border.finish()
        _observe(plan)
        await self._send(exchange, job, body)

    async def _relay(self, exchange: Exchange, job: Job, answer: Answer) -> bool:
        """Write each release; whether a policy has cut the answer off."""
        border, plan = job.border, job.plan
        judges = None if plan.meter is None else _Judges(plan, plan.meter)
        border.found_in_prompt = answer.found
        assert answer.releases is not None  # noqa: S101 - the caller has looked
        async for release in answer.releases:
            if release.detections:
                _note(plan, release.detections, plan.for_output, Part.ANSWER)
            written = border.take(release) if judges is None else border.take(*judges.judge(release))
            if written:
                await exchange.write(written)
            if border.is_blocked:
                return True
        return False

    async def _review(self, job: Job, reviews: Sequence[ActiveReview]) -> None:
        for choice, subject in job.border.subjects():
            found = await review_all(reviews, subject, self._max_open)
            _note(job.plan, found, job.plan.for_output, Part.ANSWER)
            if job.plan.hides:  # who reads what the client does not see tells of it only if the policy named it
                found = [hide(one) for one in found if job.plan.for_output.trusts(one.detector_id)]
            if not job.plan.is_shadow:
                job.border.note_reviews(choice, found)

    async def _send(self, exchange: Exchange, job: Job, body: bytes) -> None:
        if not job.is_stream:
            await exchange.answer_json(body)
            return
        if body:
            await exchange.write(body)
        await exchange.end()


class _Judges:
    """One judge per text of a stream."""

    def __init__(self, plan: Plan, meter: Meter) -> None:
        self._measures = plan.for_output
        self._meter = meter
        self._judges: dict[int, Judge] = {}

    def judge(self, release: Release) -> tuple[Release, Verdict]:
        """The release as it may leave, and why."""
        judge = self._judges.get(release.choice)
        if judge is None:
            judge = self._judges[release.choice] = Judge(self._measures, self._meter.names)
        verdict = judge.judge(release.start, release.text, release.detections)
        self._meter.receipt.note_released(Part.ANSWER, release.text[: verdict.kept])
        if verdict.text is release.text and verdict.detections is release.detections:
            return release, verdict
        return release._replace(text=verdict.text, detections=verdict.detections), verdict


def wants(exchange: Exchange, header: bytes) -> bool:
    """Whether a request asks for something by a header."""
    return exchange.header(header).strip().lower() in ("1", "true", "yes", "on")


def list_failures(plan: Plan, job: Job) -> list[dict[str, str]]:
    """Of each detector that failed and was excused, a warning."""
    excused = {} if plan.meter is None else plan.meter.excused
    return [job.warn(*describe_failure(name, ends=ends)) for name, ends in excused.items()]


def _watch(meter: Meter, chosen: Chosen, part: Part) -> Chosen:
    return Chosen(meter.watch(chosen.contents, part), meter.watch_reviews(chosen.reviews, part))


def _note(plan: Plan, found: Sequence[Detection], measures: Measures, part: Part) -> None:
    if plan.meter is not None:
        plan.meter.note_findings(found, measures, part)
    elif found:
        count_detections(found)


def _observe(plan: Plan) -> None:
    if plan.meter is not None:
        observe_policy(plan.meter.receipt)


def _observe_failure(plan: Plan, error: LockgateError) -> None:
    """The request ends with an error; where a detector that it needs is to blame, its policy did that."""
    readers = {one.guard.id for one in (*plan.inputs.contents, *plan.outputs.contents)}
    readers |= {one.guard.id for one in plan.outputs.reviews}
    if plan.meter is not None and isinstance(error, UpstreamError) and error.service in readers:
        plan.meter.receipt.note_failure(error.service, ends=True)
        observe_policy(plan.meter.receipt)


@cache
def _build_rules(types: tuple[str, ...], status: int, allows_whole_text: bool, whole_text_holds: bool) -> Rules:
    return Rules(types, status, allows_whole_text, whole_text_holds, checks_threshold=False)


def cut_masks(text: str, masks: Masks) -> list[Slice]:
    """The parts of a text that are read: all of it, or what the masks name."""
    return [Slice(start, text[start:end]) for start, end in masks] if masks else [Slice(0, text)]
