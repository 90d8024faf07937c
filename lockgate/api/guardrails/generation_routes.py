# SPDX-License-Identifier: Apache-2.0
"""The endpoints that generate text by `model_id`: classification, whole and streamed, and generation-detection."""

from functools import partial

from lockgate.api.formats import Formats
from lockgate.api.guarded_answer import Answering, AnswerWriter, Job, Plan
from lockgate.api.guardrails import generation_format as wire
from lockgate.api.openai.events import encode_event
from lockgate.api.openai.format import encode
from lockgate.api.shapes import decode
from lockgate.errors import InvalidRequest
from lockgate.gate.release import Strategy
from lockgate.gate.values import TEXT_CONTENTS, TEXT_GENERATION, Generation
from lockgate.gateway import Gateway
from lockgate.guard.request import InputBlocked
from lockgate.interfaces import Backend
from lockgate.server.exchange import Exchange


class GenerationRoutes:
    """The endpoints of one open gateway."""

    def __init__(self, gateway: Gateway, backend: Backend, formats: Formats) -> None:
        self._answering = Answering(gateway)
        self._backend = backend
        self._rules = gateway.rules
        self._formats = formats
        self._whole_text_holds = gateway.settings.whole_document != "trail"

    async def classify(self, exchange: Exchange) -> None:
        """POST classification with text generation."""
        wanted = await self._read(exchange)
        await self._classify(exchange, wanted, is_stream=False)

    async def classify_stream(self, exchange: Exchange) -> None:
        """POST the same, streamed."""
        wanted = await self._read(exchange)
        await exchange.reply.start_events()
        await self._classify(exchange, wanted, is_stream=True)

    async def generate(self, exchange: Exchange) -> None:
        """POST generation-detection."""
        answering = self._answering
        raw = await exchange.request.read_json(answering.limits.body_bytes)
        request = await decode(raw, wire.GENERATION_DETECTION.decode)
        for name in ("model_id", "prompt", "detectors"):
            if not getattr(request, name):
                raise InvalidRequest(f"`{name}` is required")
        answering.check_thresholds(request.detectors)
        params = wire.read_params(request.text_gen_parameters)
        wanted = wire.Wanted(request.model_id, request.prompt, params, {}, request.detectors)
        plan = await self._plan(exchange, wanted, TEXT_GENERATION, is_stream=False)
        await self._carry_out(exchange, wanted, plan, wire.ReviewedText(wanted), is_stream=False)

    async def _read(self, exchange: Exchange) -> wire.Wanted:
        raw = await exchange.request.read_json(self._answering.limits.body_bytes)
        return wire.read_classification(await decode(raw, self._formats.classification.decode))

    async def _classify(self, exchange: Exchange, wanted: wire.Wanted, *, is_stream: bool) -> None:
        if not wanted.model:
            raise InvalidRequest("`model_id` is required")
        if not wanted.text:
            raise InvalidRequest("`inputs` is required")
        size = len(wanted.text.encode())
        if any(not start < end <= size for start, end in wanted.masks):
            raise InvalidRequest("invalid masks")
        self._answering.check_thresholds(wanted.input, wanted.output)
        plan = await self._plan(exchange, wanted, TEXT_CONTENTS, is_stream=is_stream)
        writer: AnswerWriter = wire.WholeText(wanted, hides=plan.policy.hides)
        if is_stream:
            is_guarded = bool(plan.policy.output) and not plan.policy.is_shadow
            writer = self._formats.text_events(is_guarded=is_guarded, hides=plan.policy.hides)
        await self._carry_out(exchange, wanted, plan, writer, is_stream=is_stream)

    async def _plan(self, exchange: Exchange, wanted: wire.Wanted, output_type: str, *, is_stream: bool) -> Plan:
        answering = self._answering
        policy = answering.find_policy(wanted.policy)
        changes = policy.measures("output").changes_text([*wanted.output, *policy.output])
        rules = answering.rules(
            output_type,
            allows_whole_text=not is_stream or self._rules.allows_whole_text,
            whole_text_holds=self._whole_text_holds or changes,
        )
        return await answering.plan(
            exchange, policy, (wanted.input, answering.rules(TEXT_CONTENTS)), (wanted.output, rules)
        )

    async def _carry_out(
        self, exchange: Exchange, wanted: wire.Wanted, plan: Plan, writer: AnswerWriter, *, is_stream: bool
    ) -> None:
        answering, strategy = self._answering, Strategy.MAX_PROCESSED_INDEX
        body = {"text": wanted.text, "params": wanted.params}
        generation = Generation(wanted.model, body, answering.headers(exchange))
        job = Job(
            self._backend,
            generation,
            plan,
            partial(answering.lanes, is_stream=is_stream, strategy=strategy, feeds_empty=True),
            writer,
            is_stream,
            wanted.text,
            wanted.masks,
            block=lambda blocked, warnings: _block(plan, blocked, warnings, is_stream=is_stream),
            warn=lambda code, words: {"id": code, "message": words},
            with_prompt=lambda masked, _: generation._replace(body=body | {"text": masked}),
        )
        await answering.carry_out(exchange, job)


def _block(plan: Plan, blocked: InputBlocked, warnings: list[dict[str, str]], *, is_stream: bool) -> bytes:
    fallback = None if blocked.input.is_refused else plan.policy.fallback
    answer = wire.build_blocked(blocked.input.found, blocked.tokens, fallback)
    answer["warnings"] += warnings
    plan.account.add(answer)
    answer |= plan.account.tell()
    return encode_event(answer) if is_stream else encode(answer)
