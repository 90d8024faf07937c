# SPDX-License-Identifier: Apache-2.0
"""The path of every endpoint that generates, from a guarded request to the last byte of its answer.

`Answering` resolves the policy, runs the guarded request, and hands each event to the AnswerWriter of the endpoint's
format. Whole answers and streams take the same path.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lockgate.api.guardrails.format import DetectorMap, Masks
from lockgate.api.openai.envelope import Envelope
from lockgate.api.receipts import NO_ACCOUNT, AnswerAccount, describe_failure
from lockgate.config.policies import PolicySettings
from lockgate.config.settings import Settings
from lockgate.errors import MODEL, InvalidRequest, UpstreamError
from lockgate.gate.lanes import MAX_CHOICES, LanePlan
from lockgate.gate.release import Release, Strategy
from lockgate.gate.values import TEXT_CONTENTS, TEXT_CONTEXT_DOC, Detection, Document, Frame, Generation, Subject
from lockgate.gate.verdicts import Verdict
from lockgate.gateway import Gateway
from lockgate.guard.detectors import ActiveGuard, ChosenDetectors, Rules, choose, prepare
from lockgate.guard.model_source import WithInput, read_model, read_whole
from lockgate.guard.policy import Meter, Policy
from lockgate.guard.request import (
    CheckedInput,
    GuardedRequest,
    InputBlocked,
    InputRead,
    Prepare,
    Prepared,
    Released,
    Reviewed,
    open_guarded,
)
from lockgate.guard.stream import Slice, list_readers
from lockgate.interfaces import Backend, Headers
from lockgate.policy_resolver import ONLY_CONTENT, Surface
from lockgate.server.exchange import Exchange
from lockgate.telemetry import LogEvent, log_event, name_causes

_NO_POLICY = PolicySettings("")
RECEIPT_HEADER, MAPPING_HEADER = b"x-lockgate-receipt", b"x-lockgate-mapping"


class AnswerWriter:
    """Turns a backend's messages into frames, and releases into the bytes of the answer."""

    is_stream = False
    to_frames: Callable[[dict[str, Any]], Iterable[Frame]]  # of one message
    envelope: Envelope | None = None  # of an answer whose fields besides texts are read

    def __init__(self) -> None:
        self.found_in_prompt: Sequence[Detection] = ()
        self.warnings: list[dict[str, str]] = []
        self.is_blocked = False  # a policy has cut the answer off: nothing more of it is written
        self.account = NO_ACCOUNT

    def bind(self, meter: Meter, *, with_names: bool) -> None:
        """Report at the end what the meter records; let the detectors read the fields of the envelope."""
        self.account = AnswerAccount(meter.receipt, meter.names.values if with_names else None)
        if self.envelope is not None:
            meter.fields, self.envelope.receipt = self.envelope.fields, meter.receipt
            self.envelope.numbers = meter.names.make_number

    def is_cut(self, lane: int) -> bool:
        """Whether a policy has cut off the choice of this lane: nothing more of it is written."""
        return False

    def is_content(self, lane: int) -> bool:
        """Whether a lane is the content of an answer, which detectors of grounding compare with documents."""
        return True

    def take(self, release: Release, verdict: Verdict | None = None) -> bytes:
        """The bytes to send for a release; `verdict` says why its text was changed."""
        raise NotImplementedError

    def subjects(self) -> Iterable[tuple[int, Subject]]:
        """What reviewers (detectors of whole answers) read, by choice; called at the end."""
        return ()

    def note_reviews(self, choice: int, found: Sequence[Detection]) -> None:
        """Keep what reviewers found in a choice."""

    def warn(self, code: str, words: str) -> dict[str, str]:
        """Build a warning with the format's field names."""
        return {"type": code, "message": words}

    def block(self, blocked: InputBlocked, fallback: str) -> bytes:
        """The answer to a blocked input; its text is the fallback if a policy blocked it."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """The last bytes, or the whole answer."""
        raise NotImplementedError


class Answering:
    """The steps that all generating endpoints of a gateway share."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.gateway = gateway
        self.limits = settings.limits
        self._endpoint_rules = gateway.rules
        self._max_open = settings.detector_concurrent_requests
        self._strategy = gateway.strategy
        self.headers = build_passthrough(settings)

    def name_policy(
        self, exchange: Exchange, named: str | None, default: str | None = None, required: tuple[str, ...] = ()
    ) -> str | None:
        """The policy that the body or the path names, which must agree, else the default; joined with required ones.

        `required`: the policies of the model. Raises NotAllowed for a policy that the caller may not name.
        """
        in_path, grant = exchange.request.policy, exchange.request.grant
        if in_path is not None and named is not None and named != in_path:
            raise InvalidRequest(f"the path names policy `{in_path}`, the request `{named}`: name one")
        chosen = named or in_path
        if chosen is not None and grant.policies is not None:
            grant.check_policy(chosen)
        if required or grant.required:
            return self.gateway.policies.join((*grant.required, *required), chosen or default).name
        return chosen or default

    def find_policy(self, name: str | None) -> PolicySettings:
        """The policy of that name; an empty one without a name."""
        return _NO_POLICY if name is None else self.gateway.policies.find(name)

    def rules(self, *types: str, allows_whole_text: bool = True, whole_text_holds: bool = True) -> Rules:
        """The detectors that an endpoint allows; thresholds were checked before."""
        status = self._endpoint_rules.unsuitable_status
        return Rules(types, status, allows_whole_text, whole_text_holds, checks_threshold=False)

    def build_surface(
        self,
        *types: str,
        allows_whole_text: bool = True,
        whole_text_holds: bool = True,
        lanes: tuple[str, ...] | None = ONLY_CONTENT,
        compares: bool = False,
    ) -> Surface:
        """The rules for detectors of prompt and answer. `compares`: requests may bring documents for the answer."""
        outputs = self.rules(*types, allows_whole_text=allows_whole_text, whole_text_holds=whole_text_holds)
        rules = {"input": self.rules(TEXT_CONTENTS), "output": outputs}
        rules |= {"grounding": self.rules(TEXT_CONTEXT_DOC)} if compares else {}
        return Surface(rules, lanes, refuses_input=True, trusts_chunks=self._endpoint_rules.trusts_chunks)

    async def resolve(
        self,
        exchange: Exchange,
        policy: str | None,
        surface: Surface,
        requested: Mapping[str, DetectorMap],
        headers: Headers,
    ) -> Policy:
        """The policy to apply: the detectors of request and named policy."""
        found = self.find_policy(policy)
        wants_receipt = self._endpoint_rules.has_extensions and exchange.request.wants(RECEIPT_HEADER)
        is_metered = bool(found.name) or wants_receipt
        return await self.gateway.policies.resolve(surface, found, requested, headers, is_metered=is_metered)

    async def choose(
        self, requested: Mapping[str, Mapping[str, Any]], rules: Rules, headers: Headers
    ) -> ChosenDetectors:
        """The detectors that a request names."""
        if not requested:
            return ChosenDetectors()
        return await prepare(requested.values(), partial(choose, self.gateway.guards, requested, rules, headers))

    async def count_tokens(self, backend: Backend, generation: Generation, text: str) -> int:
        """The tokens of a blocked prompt; 0 if the model cannot count them, unless the rules require a count."""
        try:
            return await backend.tokenize(generation.model, text, generation.headers)
        except UpstreamError as error:
            if self._endpoint_rules.requires_count:
                raise
            reason = f"{name_causes(error)}; the tokens of the prompt are not counted"
            log_event(LogEvent.UPSTREAM_FAILED, logging.WARNING, part=MODEL, reason=reason)
            return 0

    def lanes(
        self,
        guards: Sequence[ActiveGuard],
        *,
        is_stream: bool,
        strategy: Strategy,
        feeds_empty: bool = False,
        reads_empty: bool = False,
        max_choices: int = MAX_CHOICES,
    ) -> LanePlan:
        """The plan by which these detectors read an answer."""
        build = partial(
            LanePlan,
            list_readers(guards),
            max_choices=max_choices,
            feeds_empty=feeds_empty,
            trusts_chunks=self._endpoint_rules.trusts_chunks,
        )
        if not is_stream:
            return build(max_open=self._max_open, max_held_chars=None, is_whole=True)
        return build(
            strategy=strategy if self._strategy is None else self._strategy,
            max_open=self._endpoint_rules.max_open,
            max_held_chars=self.limits.max_held_chars,
            reads_empty=reads_empty,
        )

    async def answer(
        self,
        exchange: Exchange,
        request: GuardedRequest,
        writer: AnswerWriter,
        start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run the request and write its answer; `start` begins a stream before its first bytes."""
        meter = request.meter
        if meter.is_on:
            writer.bind(meter, with_names=exchange.request.wants(MAPPING_HEADER))
        request = request._replace(is_over=lambda: writer.is_blocked, is_cut=writer.is_cut, subjects=writer.subjects)
        request = request._replace(is_content=writer.is_content)
        blocked: InputBlocked | None = None
        async with open_guarded(request) as events:
            async for event in events:
                if type(event) is Released:
                    written = writer.take(*_apply(event))
                    if written:
                        if start is not None:
                            await start()
                            start = None
                        await exchange.reply.write(written)
                elif isinstance(event, InputRead):
                    writer.found_in_prompt = event.input.found
                elif isinstance(event, InputBlocked):
                    blocked = event
                elif isinstance(event, Reviewed):
                    writer.note_reviews(event.choice, event.found)
        if start is not None:
            await start()
        writer.warnings += [
            writer.warn(*describe_failure(name, ends=ends)) for name, ends in meter.failed_detectors.items()
        ]
        body = writer.finish() if blocked is None else writer.block(blocked, request.policy.fallback)
        if not writer.is_stream:
            await exchange.reply.answer_json(body)
            return
        if body:
            await exchange.reply.write(body)
        await exchange.reply.end()


def ask_model(
    backend: Backend,
    generation: Generation,
    writer: AnswerWriter,
    with_input: WithInput,
    find_documents: Callable[[Mapping[str, Any]], Sequence[Document]] | None = None,
) -> Prepare:
    """The step of a request that calls the model, with the texts that the check has changed.

    `find_documents` returns the documents of a body, with which the answer is compared.
    """

    async def prepare(checked: CheckedInput) -> AsyncGenerator[Prepared, None]:
        sent = with_input(checked) if checked.changes else generation
        documents = () if find_documents is None else find_documents(sent.body)
        if writer.is_stream:
            source = read_model(partial(backend.stream, sent), to_frames=writer.to_frames)
            yield Prepared(source, documents)
        else:
            yield Prepared(read_whole(backend, sent, writer.to_frames), documents)

    return prepare


def _apply(released: Released) -> tuple[Release, Verdict | None]:
    """The release after its verdict, and the verdict."""
    release, verdict = released
    if verdict is None or (verdict.text is release.text and verdict.detections is release.detections):
        return released
    return release._replace(text=verdict.text, detections=verdict.detections), verdict


def build_passthrough(settings: Settings) -> Callable[[Exchange], Headers]:
    """A function that picks the headers of a request to send to upstream services."""
    names, rewrites = frozenset(settings.passthrough_headers), settings.rewrite_forwarded_access_header
    return lambda exchange: exchange.request.passthrough(names, rewrites) if names else ()


def cut_masks(text: str, masks: Masks) -> list[Slice]:
    """The parts of a text that detectors read: all of it, or the ranges of `masks`."""
    return [Slice(start, text[start:end]) for start, end in masks] if masks else [Slice(0, text)]
