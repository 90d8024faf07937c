# SPDX-License-Identifier: Apache-2.0
"""Chat and text completions with detections, on the orchestrator's paths and on those of OpenAI clients."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lockgate.api.formats import Formats
from lockgate.api.guarded_answer import Answering, AnswerWriter, ask_model, cut_masks
from lockgate.api.ollama.format import encode_error_line
from lockgate.api.ollama.writer import OllamaWriter
from lockgate.api.openai.configured_model import ConfiguredModel, configure
from lockgate.api.openai.deltas import ALL_LANES, CONTENT_LANE, REASONING_LANE
from lockgate.api.openai.envelope import Envelope, asks_for_json
from lockgate.api.openai.events import DONE, EventWriter
from lockgate.api.openai.format import CompletionRequest
from lockgate.api.openai.grounds import NO_DOCUMENTS, NOTHING_TO_COMPARE, find_documents
from lockgate.api.openai.request_fields import BODY
from lockgate.api.openai.stream_reader import StreamOptions
from lockgate.api.openai.turn_fields import UNBUFFERED, TurnRequest, TurnWriter, refuse_with_400, start_events
from lockgate.api.openai.whole_answer import CHATS, TEXTS, Dialect, WholeAnswer
from lockgate.api.request_survey import survey_request
from lockgate.api.shapes import decode
from lockgate.config.grants import find_by_model
from lockgate.errors import MODEL, InvalidRequest, UpstreamError
from lockgate.gate.answer_fields import AnswerFields
from lockgate.gate.coverage import TextKind, put_texts
from lockgate.gate.input_texts import CheckedInput, Input, build_input
from lockgate.gate.lanes import MAX_CHOICES
from lockgate.gate.messages import check_last_content, check_last_role, text_of
from lockgate.gate.release import Strategy
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_GENERATION, Generation
from lockgate.gateway import Gateway
from lockgate.guard.detectors import check_thresholds
from lockgate.guard.policy import Policy
from lockgate.guard.request import GuardedRequest
from lockgate.interfaces import Backend, RelayBackend
from lockgate.policy_resolver import Surface
from lockgate.server.exchange import Exchange

_LINES = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"), UNBUFFERED]
Start = Callable[[Exchange], Awaitable[None]]  # begins a stream: later errors are sent in it
_MAX_LANES = 1024  # of one answer under a policy, where every tool call is one


class NamedTarget(NamedTuple):
    """A configured model, the policy of `<model>@<policy>`, and its default policy."""

    backend: ConfiguredModel
    policy: str | None = None
    default_policy: str | None = None
    required: tuple[str, ...] = ()  # the policy that is always in force for the model, if any


class OpenAIRoutes:
    """The completions of one open gateway, from its upstream server and from configured models."""

    def __init__(self, gateway: Gateway, backend: Backend, formats: Formats) -> None:
        self._answering = Answering(gateway)
        self._backend = backend
        self._relay = backend if formats.relays and isinstance(backend, RelayBackend) else None
        self._models = {name: configure(one) for name, one in gateway.opened.models.items()}
        self._rules = gateway.rules
        self._formats = formats
        self._policies = gateway.settings.policies
        openai = gateway.settings.openai if gateway.rules.has_extensions else None
        self._default_policies = openai.policies if openai is not None else {}
        self._required_policies = openai.required_policies if openai is not None else {}
        build_surface = partial(
            self._answering.build_surface,
            TEXT_CONTENTS,
            whole_text_holds=gateway.settings.whole_document == "hold",
            compares=True,
        )
        self._chats, self._texts = build_surface(TEXT_CHAT, lanes=None), build_surface(TEXT_GENERATION)
        self._plain = build_surface(lanes=(CONTENT_LANE, REASONING_LANE))

    def find_target(self, name: str, policy: str | None) -> NamedTarget:
        """A configured model, with the policy that is named with it, if any."""
        model = self._answering.gateway.settings.models[name]
        required = () if model.required_policy is None else (model.required_policy,)
        return NamedTarget(self._models[name], policy, model.policy, required)

    async def complete_chat(self, exchange: Exchange) -> None:
        """POST chat completions."""
        await self.complete(exchange, CHATS, await exchange.request.read_json(self._answering.limits.body_bytes))

    async def complete_text(self, exchange: Exchange) -> None:
        """POST text completions."""
        await self.complete(exchange, TEXTS, await exchange.request.read_json(self._answering.limits.body_bytes))

    async def complete(
        self, exchange: Exchange, dialect: Dialect, raw: bytes, target: NamedTarget | None = None
    ) -> None:
        """Answer a body; `target` is the configured model that it names, if it names one."""
        if target is not None:
            await self._complete_configured(exchange, dialect, raw, target)
            return
        read = self._formats.read_chat if dialect is CHATS else self._formats.read_text
        request = self._find_input(dialect, self._settle_policy(exchange, await decode(raw, read)))
        self._check_thresholds(request)
        if request.is_stream:
            await exchange.reply.start_events(done=DONE)
        generation = self._build_generation(exchange, dialect, request)
        policy = await self._resolve(exchange, dialect, request, generation)
        found = await self._read_texts(request, policy, generation)
        if request.is_stream and self._relay is not None and not (policy.is_on or policy.name):
            await relay(exchange, self._relay.relay(generation))
            return
        request = request._replace(read=found.texts, caller=exchange.request.caller)
        writer = self._build_writer(dialect, request, policy)
        guarded = self._build_request(dialect, request, policy, found, self._backend, generation, writer)
        await self._answering.answer(exchange, guarded, writer)

    async def _complete_configured(self, exchange: Exchange, dialect: Dialect, raw: bytes, target: NamedTarget) -> None:
        with refuse_with_400():
            request = self._find_policy(exchange, await decode(raw, partial(target.backend.read, dialect)), target)
            request = self._find_input(dialect, request)
            self._check_thresholds(request)
            generation = self._build_generation(exchange, dialect, request)
            policy = await self._resolve(exchange, dialect, request, generation)
            if request.body.get("documents") and not (policy.grounding or target.backend.takes_documents):
                raise InvalidRequest("`documents` is not supported by this model without detectors of grounding")
        found = await self._read_texts(request, policy, generation)
        request = request._replace(read=found.texts, caller=exchange.request.caller)
        writer = self._build_writer(dialect, request, policy)
        guarded = self._build_request(dialect, request, policy, found, target.backend, generation, writer)
        begin = partial(start_events, exchange) if request.is_stream else None
        await self._answering.answer(exchange, guarded, writer, begin)

    async def answer_text(
        self, exchange: Exchange, turn: TurnRequest, target: NamedTarget, turn_writer: TurnWriter, start: Start
    ) -> None:
        """Answer for a configured model in a format other than OpenAI's; these have only text."""
        body: dict[str, Any] = {"stream": turn.is_stream, **turn.params}
        body["messages"] = [{"role": one.role, "content": one.text} for one in turn.sent]
        if turn.is_stream:
            body["stream_options"] = {"include_usage": True}
        with refuse_with_400():
            request = self._find_policy(exchange, CompletionRequest(turn.model, body, turn.is_stream, {}, {}), target)
            request = self._find_input(CHATS, request)
            generation = self._build_generation(exchange, CHATS, request)
            policy = await self._resolve(exchange, CHATS, request, generation, self._plain)
        found = await self._read_texts(request, policy, generation)
        request = request._replace(read=found.texts, caller=exchange.request.caller)
        writer = OllamaWriter(turn_writer, request, hides=policy.hides)
        guarded = self._build_request(CHATS, request, policy, found, target.backend, generation, writer)
        begin = partial(start, exchange) if request.is_stream else None
        await self._answering.answer(exchange, guarded, writer, begin)

    def _find_policy(self, exchange: Exchange, request: CompletionRequest, target: NamedTarget) -> CompletionRequest:
        """The request with the policy that it names, else the default of its model."""
        if request.policy is not None and target.policy not in (None, request.policy):
            raise InvalidRequest(
                f"`model` names policy `{target.policy}`, `detectors` names `{request.policy}`: name one"
            )
        named = request.policy or target.policy
        policy = self._answering.name_policy(exchange, named, target.default_policy, target.required)
        return request._replace(policy=policy)

    def _find_input(self, dialect: Dialect, request: CompletionRequest) -> CompletionRequest:
        """The request with the prompt text that detectors read, and its positions."""
        if not request.model:
            raise InvalidRequest("`model` must not be empty")
        policy = self._answering.find_policy(request.policy)
        has_input = bool(request.input or policy.input)
        if dialect is TEXTS:
            if has_input and not policy.name and not isinstance(request.body["prompt"], str):
                raise InvalidRequest("Detection on array is not supported")
            if has_input and not request.body["prompt"]:
                raise InvalidRequest("`prompt` must not be empty when input detectors are provided")
            if any(start > end for start, end in request.masks):
                raise InvalidRequest("invalid masks")
            return request._replace(text=request.prompt)
        if not request.messages:
            raise InvalidRequest("`messages` must not be empty")
        if not has_input or policy.name:
            return request
        check_last_content(request.messages)
        return request._replace(text=text_of(request.messages[-1]))

    def _settle_policy(self, exchange: Exchange, request: CompletionRequest) -> CompletionRequest:
        """The request with its policy; `<model>@<policy>` is the model under that policy, if the policy exists."""
        model, _, policy = request.model.rpartition("@")
        if model and self._rules.has_extensions and policy in self._policies:
            if request.policy not in (None, policy):
                raise InvalidRequest(f"`model` names policy `{policy}`, `detectors` names `{request.policy}`: name one")
            request = request._replace(model=model, body=request.body | {"model": model}, policy=policy)
        default = self._default_policies.get(request.model, self._default_policies.get("*"))
        own = request.input or request.output or request.grounding
        if default is not None and own and self._policies[default].is_shadow:
            default = None  # a default policy does not put a request's own detectors into shadow
        if exchange.request.grant.models is not None:
            exchange.request.grant.check_model(request.model)
        required = find_by_model(self._required_policies, request.model) if self._required_policies else ()
        return request._replace(policy=self._answering.name_policy(exchange, request.policy, default, required))

    def _check_thresholds(self, request: CompletionRequest) -> None:
        """Refuse a threshold that is no number, before a stream begins."""
        if self._rules.checks_thresholds_first:
            for own in (request.input, request.output):
                if own:
                    check_thresholds(own)

    def _build_generation(self, exchange: Exchange, dialect: Dialect, request: CompletionRequest) -> Generation:
        return Generation(request.model, request.body, self._answering.headers(exchange), dialect.kind)

    async def _resolve(
        self,
        exchange: Exchange,
        dialect: Dialect,
        request: CompletionRequest,
        generation: Generation,
        surface: Surface | None = None,
    ) -> Policy:
        """The policy of a request; `surface` is that of the dialect unless another one is given."""
        surface = surface or (self._chats if dialect is CHATS else self._texts)
        requested = {"input": request.input, "output": request.output, "grounding": dict(request.grounding)}
        policy = await self._answering.resolve(exchange, request.policy, surface, requested, generation.headers)
        if policy.input and dialect is CHATS and not policy.name:
            check_last_role(request.messages)
        if policy.grounding and not find_documents(request.body, from_tools=request.grounds_from_tools):
            if policy.refuses_ungrounded and not policy.is_shadow:
                reason = "its policy compares the answer with documents: send `documents`"
                raise InvalidRequest(f"the request cannot be answered without documents; {reason}")
            policy = replace(policy, grounding=(), unused=[one.guard.id for one in policy.grounding])
        return policy

    async def _read_texts(self, request: CompletionRequest, policy: Policy, generation: Generation) -> Input:
        """The texts that detectors read: under a policy all of the request."""
        if not policy.input:
            return Input(request.text, ())
        marked = cut_masks(request.text, request.masks)
        if not policy.name:
            return Input(request.text, marked)
        found = await survey_request(request.body, BODY, generation.headers, request.size)
        return build_input(found, BODY, policy.refuses_unreadable, request.text, marked if request.masks else ())

    def _build_request(
        self,
        dialect: Dialect,
        request: CompletionRequest,
        policy: Policy,
        found: Input,
        backend: Backend,
        generation: Generation,
        writer: AnswerWriter,
    ) -> GuardedRequest:
        lanes = partial(
            self._answering.lanes,
            is_stream=request.is_stream,
            strategy=Strategy.FRONTIER,
            reads_empty=dialect is TEXTS and not policy.name,
            max_choices=_MAX_LANES if policy.name else MAX_CHOICES,
        )
        prompt = _join_prompt(request) if policy.refusing else ""
        meter = policy.open_meter(request.caller)
        find = partial(find_documents, from_tools=request.grounds_from_tools) if policy.grounding else None
        if policy.unused:
            meter.receipt.note_unread("grounding")
            writer.warnings.append(writer.warn(NOTHING_TO_COMPARE, NO_DOCUMENTS))
        return GuardedRequest(
            policy,
            meter,
            found,
            ask_model(backend, generation, writer, partial(_with_input, generation), find),
            lanes,
            self._answering.gateway.sentences,
            count_tokens=partial(self._answering.count_tokens, backend, generation, prompt),
        )

    def _build_writer(self, dialect: Dialect, request: CompletionRequest, policy: Policy) -> WholeAnswer | EventWriter:
        lanes = frozenset(policy.lanes) if policy.name else None
        envelope = (
            _build_envelope(policy, request, is_chat=dialect.is_chat)
            if policy.name and (policy.output or policy.grounding)
            else None
        )
        if not request.is_stream:
            return self._formats.whole_answer(
                dialect,
                request,
                has_guards=bool(policy.output or policy.reviews or policy.grounding),
                fallback=policy.fallback if policy.hides else None,
                lanes=lanes,
                envelope=envelope,
            )
        options = StreamOptions(
            policy.trailing,
            bool(policy.reviews),
            policy.hides,
            policy.fallback,
            self._answering.limits.max_held_chars,
            lanes,
            holds=policy.is_holding,
            is_shadow=policy.is_shadow,
            envelope=envelope,
        )
        return self._formats.event_writer(dialect, request, options)


def _build_envelope(policy: Policy, request: CompletionRequest, *, is_chat: bool) -> Envelope:
    """The envelope of an answer under a policy; text completions have only the lane of their content."""
    actions = {one.guard.id: policy.for_output.of(one.guard.id) for one in policy.output}
    return Envelope(
        AnswerFields(actions, waits=policy.hides),
        hides=policy.hides,
        lanes=frozenset(policy.lanes) if is_chat else ALL_LANES,
        is_json=asks_for_json(request.body),
    )


async def relay(exchange: Exchange, packets: AsyncGenerator[Sequence[bytes], None]) -> None:
    """Forward a stream that no detector reads."""
    try:
        async with aclosing(packets):
            async for events in packets:
                await exchange.reply.write(b"".join(events), len(events))
    except UpstreamError as error:
        error.known_as = MODEL
        raise
    await exchange.reply.write(DONE)
    await exchange.reply.end()


async def start_lines(exchange: Exchange) -> None:
    """Begin the stream of an answer for Ollama clients: an error is its last line."""
    await exchange.reply.start_stream(_LINES, lambda reply: encode_error_line(reply.details))


def _with_input(generation: Generation, checked: CheckedInput) -> Generation:
    """The request to the model, with the texts that the check has changed."""
    return generation._replace(body=put_texts(generation.body, checked.changes))


def _join_prompt(request: CompletionRequest) -> str:
    """The text whose tokens are counted when the request's own detectors refuse it."""
    return request.text or "\n\n".join([one.text for one in request.read if one.kind is not TextKind.NAME])
