# SPDX-License-Identifier: Apache-2.0
"""Chat and text completions with detections, under our names and under those that clients know."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from lockgate.api.formats import Formats
from lockgate.api.guarded_answer import Answering, Job, Plan
from lockgate.api.ollama.format import encode_error_line
from lockgate.api.ollama.writer import OllamaWriter
from lockgate.api.openai import format as wire
from lockgate.api.openai.configured_model import ConfiguredModel, configure
from lockgate.api.openai.events import DONE, EventWriter
from lockgate.api.openai.format import encode_event
from lockgate.api.openai.stream_reader import StreamOptions
from lockgate.api.openai.turn_fields import UNBUFFERED, Scribe, Wanted, refusing_plainly, start_events
from lockgate.api.openai.whole_answer import CHATS, TEXTS, Dialect, WholeAnswer, build_refused
from lockgate.api.shapes import decode
from lockgate.errors import InvalidRequest
from lockgate.gate.lanes import MAX_CHOICES
from lockgate.gate.messages import check_last_content, check_last_role, join_texts, text_of, with_text
from lockgate.gate.release import Strategy
from lockgate.gate.values import TEXT_CHAT, TEXT_CONTENTS, TEXT_GENERATION, Generation
from lockgate.gate.verdicts import Mask, mask_part
from lockgate.gateway import Gateway
from lockgate.guard.detectors import check_thresholds
from lockgate.guard.request import InputBlocked
from lockgate.guard.stream import Slice
from lockgate.interfaces import Backend, RelayBackend
from lockgate.server.exchange import Exchange

_LINES = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"), UNBUFFERED]
Start = Callable[[Exchange], Awaitable[None]]  # of a stream; an error becomes its last word
_MAX_LANES = 1024  # of one answer under a policy, where every tool call is one


class Target(NamedTuple):
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

    def find_target(self, name: str, policy: str | None) -> Target:
        """A configured model, under a policy if one is named with it."""
        return Target(self._models[name], policy, self._answering.gateway.settings.models[name].policy)

    async def complete_chat(self, exchange: Exchange) -> None:
        """POST chat completions."""
        await self.complete(exchange, CHATS, await exchange.request.read_json(self._answering.limits.body_bytes))

    async def complete_text(self, exchange: Exchange) -> None:
        """POST text completions."""
        await self.complete(exchange, TEXTS, await exchange.request.read_json(self._answering.limits.body_bytes))

    async def complete(self, exchange: Exchange, dialect: Dialect, raw: bytes, target: Target | None = None) -> None:
        """Answer a body; `target` is the configured model that it names, if it names one."""
        if target is None:
            read = self._formats.read_chat if dialect is CHATS else self._formats.read_text
            asked = self._settle_policy(exchange, await decode(raw, read))
            job = await self._prepare(exchange, dialect, self._find_input(dialect, asked), self._backend)
            if job.is_stream and self._relay is not None and not (job.plan.policy.is_on or job.plan.meter.is_on):
                await relay(exchange, self._relay.relay(job.generation))
                return
        else:
            with refusing_plainly():
                asked = self._aim(exchange, await decode(raw, partial(target.backend.read, dialect)), target)
                job = await self._prepare(exchange, dialect, self._find_input(dialect, asked), target.backend)
        await self._answering.carry_out(exchange, job)

    async def answer_text(
        self, exchange: Exchange, wanted: Wanted, target: Target, scribe: Scribe, start: Start
    ) -> None:
        """Answer a request to a configured model in another format than OpenAI's, which has only text."""
        body: dict[str, Any] = {"stream": wanted.is_stream, **wanted.params}
        body["messages"] = [{"role": one.role, "content": one.text} for one in wanted.sent]
        if wanted.is_stream:
            body["stream_options"] = {"include_usage": True}
        with refusing_plainly():
            asked = self._aim(exchange, wire.Asked(wanted.model, body, wanted.is_stream, {}, {}), target)
            asked, text = self._find_input(CHATS, asked)
            job = await self._prepare(exchange, CHATS, (asked, text), target.backend, is_text_only=True)
        writer = OllamaWriter(scribe, asked, job.plan.policy.fallback)
        begin = partial(start, exchange) if asked.is_stream else None
        await self._answering.carry_out(exchange, job._replace(border=writer, block=writer.block, start=begin))

    def _aim(self, exchange: Exchange, asked: wire.Asked, target: Target) -> wire.Asked:
        """The request under the policy that it names, else that of its model."""
        if asked.policy is not None and target.policy not in (None, asked.policy):
            raise InvalidRequest(
                f"`model` names policy `{target.policy}`, `detectors` names `{asked.policy}`: name one"
            )
        named = asked.policy or target.policy
        return asked._replace(policy=self._answering.name_policy(exchange, named, target.default_policy))

    def _find_input(self, dialect: Dialect, asked: wire.Asked) -> tuple[wire.Asked, str]:
        """What is read of the prompt, and the request that says where it stands; raises InvalidRequest."""
        if not asked.model:
            raise InvalidRequest("`model` must not be empty")
        policy = self._answering.find_policy(asked.policy)
        has_input = bool(asked.input or policy.input)
        if dialect is TEXTS:
            if has_input and not asked.prompt:
                raise InvalidRequest("`prompt` must not be empty when input detectors are provided")
            if any(start > end for start, end in asked.masks):
                raise InvalidRequest("invalid masks")
            return asked, asked.prompt
        if not asked.messages:
            raise InvalidRequest("`messages` must not be empty")
        if not has_input:
            return asked, ""
        check_last_content(asked.messages, allows_parts=bool(policy.name))
        if not policy.name:
            return asked, text_of(asked.messages[-1])
        text, read = join_texts(asked.messages)
        return asked._replace(read=read), text

    def _settle_policy(self, exchange: Exchange, asked: wire.Asked) -> wire.Asked:
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
            default = None  # what a request wants read itself is not put into shadow by somebody else
        return asked._replace(policy=self._answering.name_policy(exchange, asked.policy, default))

    async def _prepare(
        self,
        exchange: Exchange,
        dialect: Dialect,
        read: tuple[wire.Asked, str],
        backend: Backend,
        *,
        is_text_only: bool = False,
    ) -> Job:
        """The request, ready to be carried out. A stream of the proxied server begins at once.

        `is_text_only`: of an answer nothing but its content leaves.
        """
        answering, is_proxied = self._answering, backend is self._backend
        asked, text = read
        if self._rules.checks_thresholds_first:
            for own in (asked.input, asked.output):
                if own:
                    check_thresholds(own)
        if asked.is_stream and is_proxied:
            await exchange.reply.start_events(done=DONE)
        headers = answering.headers(exchange)
        surface = self._chats if dialect is CHATS else self._texts
        plan = await answering.plan(
            exchange,
            answering.find_policy(asked.policy),
            self._only_contents if is_text_only else surface,
            {"input": asked.input, "output": asked.output},
            headers,
        )
        if plan.policy.input and dialect is CHATS:
            check_last_role(asked.messages)
        generation = Generation(asked.model, asked.body, headers, dialect.kind)
        return Job(
            backend,
            generation,
            plan,
            partial(
                answering.lanes,
                is_stream=asked.is_stream,
                strategy=Strategy.FRONTIER,
                reads_empty=dialect is TEXTS and not plan.policy.name,
                max_choices=_MAX_LANES if plan.policy.name else MAX_CHOICES,
            ),
            self._border(dialect, asked, plan),
            asked.is_stream,
            text,
            asked.masks,
            block=lambda blocked, warnings: self._block(dialect, asked, plan, blocked, warnings),
            warn=wire.warn,
            with_prompt=lambda masked, masks: generation._replace(body=_with_prompt(asked, text, masked, masks)),
            slices=[Slice(start, text[start:end]) for _, start, end in asked.read],
            start=None if is_proxied or not asked.is_stream else partial(start_events, exchange),
        )

    def _border(self, dialect: Dialect, asked: wire.Asked, plan: Plan) -> WholeAnswer | EventWriter:
        policy = plan.policy
        has_reviews = bool(policy.reviews)
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
            has_reviews,
            policy.hides,
            policy.fallback,
            self._answering.limits.max_held_chars,
            lanes,
            holds=policy.is_holding,
            is_shadow=policy.is_shadow,
        )
        return self._formats.event_writer(dialect, asked, options)

    def _block(
        self,
        dialect: Dialect,
        asked: wire.Asked,
        plan: Plan,
        blocked: InputBlocked,
        warnings: list[dict[str, str]],
    ) -> bytes:
        found = blocked.input.found
        if blocked.input.is_refused:
            answer = self._formats.build_blocked(dialect, asked, found, blocked.tokens)
        else:
            answer = build_refused(dialect, asked, found, plan.policy.fallback)
        answer["warnings"] += warnings
        plan.account.add(answer)
        answer |= plan.account.tell()
        return encode_event(answer) + DONE if asked.is_stream else wire.encode(answer)


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


def _with_prompt(asked: wire.Asked, text: str, masked: str, masks: Sequence[Mask]) -> dict[str, object]:
    """The body that goes upstream, with what may go on in place of the text that was read."""
    if "messages" not in asked.body:
        return asked.body | {"prompt": masked}
    messages = list(asked.messages)
    if not asked.read:
        return asked.body | {"messages": [*messages[:-1], with_text(messages[-1], masked)]}
    for at, start, end in asked.read:
        part = mask_part(start, text[start:end], masks)
        if part != text[start:end]:
            messages[at] = with_text(messages[at], part)
    return asked.body | {"messages": messages}
