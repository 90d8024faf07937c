# SPDX-License-Identifier: Apache-2.0
"""Retrieve and answer: turns a request into a question, and its steps into events or one answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import msgspec

from lockgate.api.aggregator import format as wire
from lockgate.api.aggregator.request_texts import build_question_input
from lockgate.api.guarded_answer import MAPPING_HEADER, Answering
from lockgate.api.shapes import decode
from lockgate.config.policies import PolicySettings
from lockgate.config.refs import LOCAL_ADDRESS, check_slug
from lockgate.errors import (
    CheckFailed,
    GenerationFailed,
    InvalidField,
    InvalidRequest,
    UnreadableBody,
    UpstreamError,
)
from lockgate.gate.lanes import LanePlan
from lockgate.gate.release import Strategy
from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC, Message
from lockgate.gate.verdicts import DOCUMENT_WORDS, TEXT_WORDS, Action
from lockgate.gateway import Gateway
from lockgate.guard.detectors import ActiveGuard, Rules
from lockgate.guard.policy import NO_POLICY, Policy
from lockgate.guard.request import to_check_failed
from lockgate.policy_resolver import Surface
from lockgate.rag.answer import (
    AnswerResult,
    GroundedQuestion,
    Limits,
    RetrievalStarted,
    SendStep,
    Step,
    Token,
    answer,
)
from lockgate.rag.sources import Bounds, NamedSource
from lockgate.server.exchange import Exchange

_SECTIONS = ("input", "documents", "output", "grounding")
_TOO_LATE = "grounding detectors report at the end here, too late for anything but annotate"
# Keep proxies from buffering events, and old ones from closing the connection.
_STREAM_HEADERS = ((b"x-accel-buffering", b"no"), (b"connection", b"keep-alive"))


class ChatRoutes:
    """The endpoints of one open gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._answering = Answering(gateway)
        self._settings = settings = gateway.settings.aggregator
        self._surface = _build_surface(gateway)
        limits = gateway.settings.limits
        self._bounds = Bounds(limits.document_bytes, limits.source_bytes, limits.question_bytes)
        self._limits = Limits(settings.retrieval_timeout_s, settings.generation_timeout_s, settings.total_timeout_s)

    async def answer_whole(self, exchange: Exchange) -> None:
        """POST chat."""
        try:
            request = await self._read(exchange)
            question = await self._ask(exchange, request, is_stream=False)
            parts: list[str] = []

            async def collect(step: Step) -> None:
                if isinstance(step, Token):
                    parts.append(step.text)

            outcome = await _run(question, collect)
        except (InvalidField, GenerationFailed, CheckFailed) as error:
            await _refuse(exchange, error)
            return
        details = self._build_details(exchange, request, question)
        await exchange.reply.answer_json(wire.encode_response("".join(parts), outcome, details))

    async def answer_stream(self, exchange: Exchange) -> None:
        """POST chat/stream."""
        try:
            request = await self._read(exchange)
            question = await self._ask(exchange, request, is_stream=True)
        except InvalidField as error:
            await _refuse(exchange, error)
            return
        details = self._build_details(exchange, request, question)
        await exchange.reply.start_events(_STREAM_HEADERS, encode_error=wire.encode_error_event)

        tracer = exchange.reply.tracer

        async def send(step: Step) -> None:
            if tracer is not None:
                await tracer.flush()
            await exchange.reply.write(wire.encode_step(step, details))
            if isinstance(step, RetrievalStarted):
                exchange.reply.flush()  # before the work begins

        async with nullcontext() if tracer is None else tracer.open():
            outcome = await _run(question, send)
        await exchange.reply.write(wire.encode_done(outcome, details))
        await exchange.reply.end()

    def _build_details(
        self, exchange: Exchange, request: wire.ChatRequest, question: GroundedQuestion
    ) -> wire.AnswerDetails:
        return wire.AnswerDetails(
            question.guarding.is_on, request.citations, has_names=exchange.request.wants(MAPPING_HEADER)
        )

    async def _read(self, exchange: Exchange) -> wire.ChatRequest:
        try:
            body = await exchange.request.read_json(self._answering.limits.body_bytes)
        except UnreadableBody as error:
            if error.status == 413:
                raise
            raise InvalidField("", error.message) from None
        request = await decode(body, wire.read_request)
        settings = self._settings
        if len(request.data_sources) > settings.max_data_sources:
            raise InvalidField("data_sources", f"at most {settings.max_data_sources} are allowed")
        if isinstance(request.top_k, int) and request.top_k > settings.max_top_k:
            raise InvalidField("top_k", f"must be at most {settings.max_top_k}")
        refs = [] if request.retrieval_only else [("model", request.model)]
        refs += [(f"data_sources[{place}]", ref) for place, ref in enumerate(request.data_sources)]
        for place, ref in refs:
            if fault := check_slug(ref.url, ref.slug):
                raise InvalidField(f"{place}.slug", fault)
        return request

    async def _ask(self, exchange: Exchange, request: wire.ChatRequest, *, is_stream: bool) -> GroundedQuestion:
        upstreams, settings = self._gateway.upstreams, self._settings
        correlation_id, threshold = exchange.request.correlation_id, request.similarity_threshold
        model = request.endpoint(request.model)
        sources = [request.endpoint(ref) for ref in request.data_sources]
        streams = is_stream and settings.model_streaming
        guarding = await self._guard(exchange, request.detectors, request.model)
        question = GroundedQuestion(
            prompt=request.prompt,
            sources=[
                NamedSource(one.path, upstreams.source(one, correlation_id, threshold), ref.query_override or None)
                for one, ref in zip(sources, request.data_sources, strict=True)
            ],
            model=partial(upstreams.model, model, correlation_id),
            model_path=model.path,
            params={"max_tokens": request.max_tokens, "temperature": request.temperature, "stream": streams},
            top_k=request.top_k if isinstance(request.top_k, int) else settings.default_top_k,
            limits=self._limits,
            plan=partial(self._plan, is_stream=streams),
            chunking=self._gateway.sentences,
            system_prompt=request.custom_system_prompt or None,
            history=[Message(one.role, one.content) for one in request.messages or ()],
            guarding=guarding,
            is_retrieval_only=request.retrieval_only,
            finds_citations=request.citations,
            trace=None if exchange.reply.tracer is None else exchange.reply.tracer.trace,
            bounds=self._bounds,
            caller=exchange.request.caller,
        )
        if not (guarding.name and guarding.input):
            return question
        sent = exchange.request.header(b"x-correlation-id")
        return question._replace(input=build_question_input(question, request, sent if sent == correlation_id else ""))

    def _plan(self, guards: Sequence[ActiveGuard], *, is_stream: bool) -> LanePlan:
        """The plan by which detectors read an answer; a whole one, too, is held only up to the limit."""
        plan = self._answering.lanes(guards, is_stream=is_stream, strategy=Strategy.FRONTIER)
        return plan._replace(max_held_chars=self._answering.limits.max_held_chars)

    async def _guard(self, exchange: Exchange, wanted: wire.ChatDetectors | None, model: wire.EndpointRef) -> Policy:
        own = self._gateway.settings.models.get(model.slug) if model.url.lower() == LOCAL_ADDRESS else None
        default = own.policy if own is not None else None  # of a configured model
        grant = exchange.request.grant
        grant.check_model(model.url if own is None else own.id)
        required = (*grant.required, own.required_policy) if own and own.required_policy else grant.required
        if wanted is None and default is None and not required:
            return NO_POLICY
        answering = self._answering
        wanted = wanted or wire.ChatDetectors()
        names_some = any(getattr(wanted, name) for name in _SECTIONS)
        if default is not None and names_some and answering.find_policy(default).is_shadow:
            default = None  # a default policy does not put a request's own detectors into shadow
        if wanted.policy is not None:
            grant.check_policy(wanted.policy)
        else:
            wanted = msgspec.structs.replace(wanted, policy=default)
        with _naming_field("detectors.policy"):
            if required:
                joined = self._gateway.policies.join(required, wanted.policy)
                wanted = msgspec.structs.replace(wanted, policy=joined.name)
            policy = answering.find_policy(wanted.policy)
        policy = self._settle(wanted, policy)
        requested = {name: getattr(wanted, name) for name in _SECTIONS}
        headers = [one for one in answering.headers(exchange) if one[0] != "authorization"]  # it is for Lockgate alone
        return await self._gateway.policies.resolve(self._surface, policy, requested, headers)

    def _settle(self, wanted: wire.ChatDetectors, policy: PolicySettings) -> PolicySettings:
        """The policy, with the request's own actions if it names none; input is not sent back, so `stop` is `block`."""
        if wanted.policy is not None:
            for name in ("on_finding", "fallback"):
                if getattr(wanted, name) is not None:
                    raise InvalidField(f"detectors.{name}", "cannot be given together with a policy")
        else:
            actions = wanted.on_finding or wire.OnFinding()
            policy = replace(
                policy,
                on_input=Action.BLOCK if actions.input == "stop" else TEXT_WORDS[actions.input],
                on_documents=DOCUMENT_WORDS[actions.documents],
                on_output=TEXT_WORDS[actions.output],
                on_grounding=TEXT_WORDS[actions.grounding],
                fallback=policy.fallback if wanted.fallback is None else wanted.fallback,
            )
        comparing = [*wanted.grounding, *policy.grounding]
        reports_late = bool(comparing) and self._gateway.settings.grounding == "trail"
        if reports_late and policy.measures("grounding").changes_text(comparing):
            raise InvalidField("detectors.on_finding.grounding", _TOO_LATE)
        return policy


def _build_surface(gateway: Gateway) -> Surface:
    status = gateway.rules.unsuitable_status
    contents, claims = Rules((TEXT_CONTENTS,), status), Rules((TEXT_CONTEXT_DOC,), status)
    outputs = replace(contents, whole_text_holds=gateway.settings.whole_document == "hold")
    rules = {"input": contents, "documents": contents, "output": outputs, "grounding": claims}
    return Surface(rules, blame=lambda section: _naming_field(f"detectors.{section}"))


async def _run(question: GroundedQuestion, send: SendStep) -> AnswerResult:
    """Run the pipeline. Sources and the model raise no UpstreamError here, so one that is raised is a detector's."""
    try:
        return await answer(question, send)
    except UpstreamError as error:
        raise to_check_failed(error) from error


@contextmanager
def _naming_field(field: str) -> Iterator[None]:
    """Turn an InvalidRequest into an error that names the field."""
    try:
        yield
    except InvalidRequest as error:
        if error.status != InvalidRequest.status:
            raise
        raise InvalidField(field, error.message) from error


async def _refuse(exchange: Exchange, error: wire.Fault) -> None:
    exchange.reply.error_code = error.status
    await exchange.reply.answer_json(wire.encode_fault(error), error.status)
