# SPDX-License-Identifier: Apache-2.0
"""Chat and text completions with detections, under our names and under those that clients know."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from lockgate.api.formats import Formats
from lockgate.api.guarded_answer import Answering, AnswerWriter, ask_model, cut_masks
from lockgate.api.ollama.format import encode_error_line
from lockgate.api.ollama.writer import OllamaWriter
from lockgate.api.openai.configured_model import ConfiguredModel, configure
from lockgate.api.openai.events import DONE, EventWriter
from lockgate.api.openai.format import CompletionRequest
from lockgate.api.openai.stream_reader import StreamOptions
from lockgate.api.openai.turn_fields import UNBUFFERED, TurnRequest, TurnWriter, refusing_plainly, start_events
from lockgate.api.openai.whole_answer import CHATS, TEXTS, Dialect, WholeAnswer
from lockgate.api.shapes import decode
from lockgate.errors import InvalidRequest
from lockgate.gate.lanes import MAX_CHOICES
from lockgate.gate.messages import check_last_content, check_last_role, join_texts, text_of, with_text
from lockgate.gate.release import Strategy
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_GENERATION, Generation
from lockgate.gate.verdicts import Mask, mask_part
from lockgate.gateway import Gateway
from lockgate.guard.detectors import check_thresholds
from lockgate.guard.policy import Policy
from lockgate.guard.request import GuardedRequest, Input
from lockgate.guard.stream import Slice
from lockgate.interfaces import Backend, RelayBackend
from lockgate.policy_resolver import Surface
from lockgate.server.exchange import Exchange

_LINES = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"), UNBUFFERED]
Start = Callable[[Exchange], Awaitable[None]]  # of a stream; an error becomes its last word
_MAX_LANES = 1024  # of one answer under a policy, where every tool call is one


class NamedTarget(NamedTuple):
    """A configured model: the policy that its name in the request carries, and its own."""

    backend: ConfiguredModel
    policy: str | None = None
    default_policy: str | None = None


class OpenAIRoutes:
    """The completions of one open gateway: of the server behind it, and of configured models."""

    def __init__(self, gateway: Gateway, backend: Backend, formats: Formats) -> None:
        self._answering = Answering(gateway)
        self._backend = backend
        self._relay = backend if formats.relays and isinstance(backend, RelayBackend) else None
        self._models = {name: configure(one) for name, one in gateway.opened.models.items()}
        self._rules = gateway.rules
        self._formats = formats
        self._policies = gateway.settings.policies
        defaults = gateway.settings.openai.policies if gateway.settings.openai is not None else {}
        self._default_policies = defaults if gateway.rules.has_extensions else {}
        build_surface = partial(
            self._answering.build_surface, TEXT_CONTENTS, whole_text_holds=gateway.settings.whole_document == "hold"
        )
        self._chats, self._texts = build_surface(TEXT_CHAT, lanes=None), build_surface(TEXT_GENERATION)
        self._only_contents = build_surface()

    def find_target(self, name: str, policy: str | None) -> NamedTarget:
        """A configured model, under a policy if one is named with it."""
        return NamedTarget(self._models[name], policy, self._answering.gateway.settings.models[name].policy)

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
        asked = self._find_input(dialect, self._settle_policy(exchange, await decode(raw, read)))
        self._check_thresholds(asked)
        if asked.is_stream:
            await exchange.reply.start_events(done=DONE)
        generation = self._build_generation(exchange, dialect, asked)
        policy = await self._resolve(exchange, dialect, asked, generation)
        if asked.is_stream and self._relay is not None and not (policy.is_on or policy.name):
            await relay(exchange, self._relay.relay(generation))
            return
        writer = self._build_writer(dialect, asked, policy)
        request = self._build_request(dialect, asked, policy, self._backend, generation, writer)
        await self._answering.answer(exchange, request, writer)

    async def _complete_configured(self, exchange: Exchange, dialect: Dialect, raw: bytes, target: NamedTarget) -> None:
        with refusing_plainly():
            asked = self._aim(exchange, await decode(raw, partial(target.backend.read, dialect)), target)
            asked = self._find_input(dialect, asked)
            self._check_thresholds(asked)
            generation = self._build_generation(exchange, dialect, asked)
            policy = await self._resolve(exchange, dialect, asked, generation)
        writer = self._build_writer(dialect, asked, policy)
        request = self._build_request(dialect, asked, policy, target.backend, generation, writer)
        begin = partial(start_events, exchange) if asked.is_stream else None
        await self._answering.answer(exchange, request, writer, begin)

    async def answer_text(
        self, exchange: Exchange, wanted: TurnRequest, target: NamedTarget, turn_writer: TurnWriter, start: Start
    ) -> None:
        """Answer a request to a configured model in another format than OpenAI's, which has only text."""
        body: dict[str, Any] = {"stream": wanted.is_stream, **wanted.params}
        body["messages"] = [{"role": one.role, "content": one.text} for one in wanted.sent]
        if wanted.is_stream:
            body["stream_options"] = {"include_usage": True}
        with refusing_plainly():
            asked = self._aim(exchange, CompletionRequest(wanted.model, body, wanted.is_stream, {}, {}), target)
            asked = self._find_input(CHATS, asked)
            generation = self._build_generation(exchange, CHATS, asked)
            policy = await self._resolve(exchange, CHATS, asked, generation, self._only_contents)
        writer = OllamaWriter(turn_writer, asked)
        request = self._build_request(CHATS, asked, policy, target.backend, generation, writer)
        begin = partial(start, exchange) if asked.is_stream else None
        await self._answering.answer(exchange, request, writer, begin)

    def _aim(self, exchange: Exchange, asked: CompletionRequest, target: NamedTarget) -> CompletionRequest:
        """The request under the policy that it names, else that of its model."""
        if asked.policy is not None and target.policy not in (None, asked.policy):
            raise InvalidRequest(
                f"`model` names policy `{target.policy}`, `detectors` names `{asked.policy}`: name one"
            )
        named = asked.policy or target.policy
        return asked._replace(policy=self._answering.name_policy(exchange, named, target.default_policy))

    def _find_input(self, dialect: Dialect, asked: CompletionRequest) -> CompletionRequest:
        """The request with the text of its prompt that is read, and where that stands; raises InvalidRequest."""
        if not asked.model:
            raise InvalidRequest("`model` must not be empty")
        policy = self._answering.find_policy(asked.policy)
        has_input = bool(asked.input or policy.input)
        if dialect is TEXTS:
            if has_input and not asked.prompt:
                raise InvalidRequest("`prompt` must not be empty when input detectors are provided")
            if any(start > end for start, end in asked.masks):
                raise InvalidRequest("invalid masks")
            return asked._replace(text=asked.prompt)
        if not asked.messages:
            raise InvalidRequest("`messages` must not be empty")
        if not has_input:
            return asked
        check_last_content(asked.messages, allows_parts=bool(policy.name))
        if not policy.name:
            return asked._replace(text=text_of(asked.messages[-1]))
        text, read = join_texts(asked.messages)
        return asked._replace(text=text, read=read)

    def _settle_policy(self, exchange: Exchange, asked: CompletionRequest) -> CompletionRequest:
        """The request with its policy.

        `<model>@<policy>` is the model under that policy, where there is such a policy and no other is named.
        """
        model, _, policy = asked.model.rpartition("@")
        if model and self._rules.has_extensions and policy in self._policies:
            if asked.policy not in (None, policy):
                raise InvalidRequest(f"`model` names policy `{policy}`, `detectors` names `{asked.policy}`: name one")
            asked = asked._replace(model=model, body=asked.body | {"model": model}, policy=policy)
        default = self._default_policies.get(asked.model, self._default_policies.get("*"))
        if default is not None and (asked.input or asked.output) and self._policies[default].is_shadow:
            default = None  # a default policy does not put a request's own detectors into shadow
        return asked._replace(policy=self._answering.name_policy(exchange, asked.policy, default))

    def _check_thresholds(self, asked: CompletionRequest) -> None:
        """Thresholds are numbers; one that is none must be refused before a stream begins."""
        if self._rules.checks_thresholds_first:
            for own in (asked.input, asked.output):
                if own:
                    check_thresholds(own)

    def _build_generation(self, exchange: Exchange, dialect: Dialect, asked: CompletionRequest) -> Generation:
        return Generation(asked.model, asked.body, self._answering.headers(exchange), dialect.kind)

    async def _resolve(
        self,
        exchange: Exchange,
        dialect: Dialect,
        asked: CompletionRequest,
        generation: Generation,
        surface: Surface | None = None,
    ) -> Policy:
        """The policy of a request; `surface` is that of the dialect unless another one is given."""
        surface = surface or (self._chats if dialect is CHATS else self._texts)
        requested = {"input": asked.input, "output": asked.output}
        policy = await self._answering.resolve(exchange, asked.policy, surface, requested, generation.headers)
        if policy.input and dialect is CHATS:
            check_last_role(asked.messages)
        return policy

    def _build_request(
        self,
        dialect: Dialect,
        asked: CompletionRequest,
        policy: Policy,
        backend: Backend,
        generation: Generation,
        writer: AnswerWriter,
    ) -> GuardedRequest:
        slices: Sequence[Slice] = ()
        if policy.input:
            slices = [Slice(start, asked.text[start:end]) for _, start, end in asked.read]
            slices = slices or cut_masks(asked.text, asked.masks)
        lanes = partial(
            self._answering.lanes,
            is_stream=asked.is_stream,
            strategy=Strategy.FRONTIER,
            reads_empty=dialect is TEXTS and not policy.name,
            max_choices=_MAX_LANES if policy.name else MAX_CHOICES,
        )
        return GuardedRequest(
            policy,
            policy.open_meter(),
            Input(asked.text, slices),
            ask_model(backend, generation, writer, partial(_with_prompt, asked, generation)),
            lanes,
            count_tokens=partial(backend.tokenize, asked.model, asked.text, generation.headers),
        )

    def _build_writer(self, dialect: Dialect, asked: CompletionRequest, policy: Policy) -> WholeAnswer | EventWriter:
        lanes = frozenset(policy.lanes) if policy.name else None
        if not asked.is_stream:
            return self._formats.whole_answer(
                dialect,
                asked,
                has_guards=bool(policy.output or policy.reviews),
                fallback=policy.fallback if policy.hides else None,
                lanes=lanes,
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
        )
        return self._formats.event_writer(dialect, asked, options)


async def relay(exchange: Exchange, packets: AsyncGenerator[Sequence[bytes], None]) -> None:
    """Pass a stream on that nothing reads."""
    async with aclosing(packets):
        async for events in packets:
            await exchange.reply.write(b"".join(events), len(events))
    await exchange.reply.write(DONE)
    await exchange.reply.end()


async def start_lines(exchange: Exchange) -> None:
    """Begin the stream of an answer for Ollama's clients: an error is its last line."""
    await exchange.reply.start_stream(_LINES, lambda reply: encode_error_line(reply.details))


def _with_prompt(asked: CompletionRequest, generation: Generation, masked: str, masks: Sequence[Mask]) -> Generation:
    """The request to the model, with what may go on in place of the text that was read."""
    if "messages" not in asked.body:
        return generation._replace(body=asked.body | {"prompt": masked})
    messages = list(asked.messages)
    if not asked.read:
        messages[-1] = with_text(messages[-1], masked)
    for at, start, end in asked.read:
        part = mask_part(start, asked.text[start:end], masks)
        if part != asked.text[start:end]:
            messages[at] = with_text(messages[at], part)
    return generation._replace(body=asked.body | {"messages": messages})
