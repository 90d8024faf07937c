# SPDX-License-Identifier: Apache-2.0
"""The stand-alone detection endpoints, and those that generate text by `model_id`."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from itertools import takewhile

from lockgate.api.formats import Formats
from lockgate.api.guarded_answer import Answering, AnswerWriter, ask_model, cut_masks
from lockgate.api.guardrails import generation_format as wire
from lockgate.api.guardrails.format import (
    CONTENT_LINE,
    CONTENT_REQUEST,
    CONTEXT_REQUEST,
    GENERATED_REQUEST,
    ContentLine,
    DetectorMap,
    encode_answer,
    encode_error,
    encode_reviews,
)
from lockgate.api.openai.format import read_chat
from lockgate.api.request_survey import survey_request
from lockgate.api.shapes import decode
from lockgate.config.endpoint_rules import NDJSON
from lockgate.errors import InvalidRequest, RequestError, UnreadableBody
from lockgate.gate.input_texts import CheckedInput, Input, build_input
from lockgate.gate.messages import check_reviewable
from lockgate.gate.ndjson import LineSplitter
from lockgate.gate.release import Strategy
from lockgate.gate.values import (
    TEXT_CHAT,
    TEXT_CONTENTS,
    TEXT_CONTEXT_DOC,
    TEXT_GENERATION,
    Claim,
    Frame,
    Generated,
    Generation,
    Subject,
)
from lockgate.gateway import Gateway
from lockgate.guard.detectors import check_thresholds, review_all
from lockgate.guard.policy import Policy
from lockgate.guard.request import GuardedRequest
from lockgate.guard.stream import Source, detect_contents, open_guarded_stream
from lockgate.interfaces import Backend
from lockgate.policy_resolver import Surface
from lockgate.server.exchange import Exchange
from lockgate.telemetry import count_detections


class GuardrailsRoutes:
    """The stand-alone detection endpoints."""

    def __init__(self, gateway: Gateway, formats: Formats) -> None:
        self._limits = gateway.settings.limits
        self._rules = gateway.rules
        self._encode_line = formats.encode_line
        self._answering = Answering(gateway)
        self._max_open = gateway.settings.detector_concurrent_requests
        self._stream_rules = self._answering.rules(
            TEXT_CONTENTS,
            allows_whole_text=gateway.rules.allows_whole_text,
            whole_text_holds=gateway.settings.whole_document != "trail",
        )

    async def detect_content(self, exchange: Exchange) -> None:
        """POST detection/content."""
        body = await exchange.request.read_json(self._limits.body_bytes)
        request = await decode(body, CONTENT_REQUEST.decode)
        _require(content=request.content, detectors=request.detectors)
        answering = self._answering
        check_thresholds(request.detectors)
        rules = answering.rules(TEXT_CONTENTS)
        chosen = await answering.choose(request.detectors, rules, answering.headers(exchange))
        trusts_chunks = self._rules.trusts_chunks
        found = await detect_contents(request.content, chosen.contents, self._max_open, trusts_chunks=trusts_chunks)
        if found:
            count_detections(found)
        await exchange.reply.answer_json(encode_answer(found))

    async def detect_chat(self, exchange: Exchange) -> None:
        """POST detection/chat."""
        body = await exchange.request.read_json(self._limits.body_bytes)
        detectors, chat = await decode(body, read_chat)
        _require(detectors=detectors, messages=chat.messages)
        check_reviewable(chat.messages)
        await self._review(exchange, detectors, TEXT_CHAT, chat)

    async def detect_context(self, exchange: Exchange) -> None:
        """POST detection/context."""
        request = await decode(await exchange.request.read_json(self._limits.body_bytes), CONTEXT_REQUEST.decode)
        _require(detectors=request.detectors, content=request.content, context=request.context)
        claim = Claim(request.content, request.context_type.value, request.context)
        await self._review(exchange, request.detectors, TEXT_CONTEXT_DOC, claim)

    async def detect_generated(self, exchange: Exchange) -> None:
        """POST detection/generated."""
        request = await decode(await exchange.request.read_json(self._limits.body_bytes), GENERATED_REQUEST.decode)
        _require(prompt=request.prompt, generated_text=request.generated_text, detectors=request.detectors)
        generated = Generated(request.prompt, request.generated_text)
        await self._review(exchange, request.detectors, TEXT_GENERATION, generated)

    async def _review(self, exchange: Exchange, detectors: DetectorMap, kind: str, subject: Subject) -> None:
        answering = self._answering
        check_thresholds(detectors)
        chosen = await answering.choose(detectors, answering.rules(kind), answering.headers(exchange))
        found = await review_all(chosen.reviews, subject, self._max_open)
        count_detections(found)
        await exchange.reply.answer_json(encode_reviews(found))

    async def stream_content(self, exchange: Exchange) -> None:
        """POST detection/stream-content."""
        if not exchange.request.header(b"content-type").lower().startswith(NDJSON):
            raise UnreadableBody(f"expected {NDJSON}", status=415)
        await exchange.reply.start_stream(
            [*self._rules.line_headers], lambda reply: encode_error(reply.status, reply.details) + b"\n"
        )
        async with aclosing(_read_lines(exchange, self._limits.line_bytes)) as lines:
            first = await _read_first(lines)
            detectors = first[0].detectors or {}
            if self._rules.checks_thresholds_first:
                check_thresholds(detectors)
            passed = self._answering.headers(exchange)
            guards = (await self._answering.choose(detectors, self._stream_rules, passed)).contents
            plan = self._answering.lanes(guards, is_stream=True, strategy=Strategy.MAX_PROCESSED_INDEX)
            async with open_guarded_stream(_read_frames(first, lines), guards, plan) as releases:
                async for release in releases:
                    if release.detections:
                        count_detections(release.detections)
                    if release.text or release.detections:
                        await exchange.reply.write(self._encode_line(release))
        await exchange.reply.end()


class GenerationRoutes:
    """The endpoints that generate text by `model_id`."""

    def __init__(self, gateway: Gateway, backend: Backend, formats: Formats) -> None:
        self._answering = Answering(gateway)
        self._backend = backend
        self._rules = gateway.rules
        self._formats = formats
        build = partial(self._answering.build_surface, whole_text_holds=gateway.settings.whole_document != "trail")
        self._generated, self._texts = build(TEXT_GENERATION), build(TEXT_CONTENTS)
        self._guarded = build(TEXT_CONTENTS, TEXT_GENERATION)  # of generation-detection under a policy
        self._streams = build(TEXT_CONTENTS, allows_whole_text=gateway.rules.allows_whole_text)

    async def classify(self, exchange: Exchange) -> None:
        """POST classification with text generation."""
        wanted = await self._read(exchange)
        await self._classify(exchange, wanted, is_stream=False)

    async def classify_stream(self, exchange: Exchange) -> None:
        """POST classification, streamed."""
        wanted = await self._read(exchange)
        await exchange.reply.start_events()
        await self._classify(exchange, wanted, is_stream=True)

    async def generate(self, exchange: Exchange) -> None:
        """POST generation-detection."""
        raw = await exchange.request.read_json(self._answering.limits.body_bytes)
        request = await decode(raw, wire.GENERATION_DETECTION.decode)
        _require(model_id=request.model_id, prompt=request.prompt, detectors=request.detectors)
        check_thresholds(request.detectors)
        params = wire.read_params(request.text_gen_parameters)
        wanted = wire.TextRequest(request.model_id, request.prompt, params, {}, request.detectors)
        wanted, surface = self._settle_policy(exchange, wanted), self._generated
        if wanted.policy is not None:  # its detectors may be of either type, those of the request of one
            answering, surface = self._answering, self._guarded
            await answering.choose(wanted.output, answering.rules(TEXT_GENERATION), answering.headers(exchange))
        policy = await self._resolve(exchange, wanted, surface)
        await self._answer(exchange, wanted, policy, wire.ReviewedText(wanted, hides=policy.hides))

    async def _read(self, exchange: Exchange) -> wire.TextRequest:
        raw = await exchange.request.read_json(self._answering.limits.body_bytes)
        wanted = wire.read_classification(await decode(raw, self._formats.classification.decode))
        return self._settle_policy(exchange, wanted)

    def _settle_policy(self, exchange: Exchange, wanted: wire.TextRequest) -> wire.TextRequest:
        """The request with its policy, joined with required ones. Raises NotAllowed."""
        if exchange.request.grant.models is not None:
            exchange.request.grant.check_model(wanted.model)
        return wanted._replace(policy=self._answering.name_policy(exchange, wanted.policy))

    async def _classify(self, exchange: Exchange, wanted: wire.TextRequest, *, is_stream: bool) -> None:
        _require(model_id=wanted.model, inputs=wanted.text)
        size = len(wanted.text.encode())
        if any(not start < end <= size for start, end in wanted.masks):
            raise InvalidRequest("invalid masks")
        check_thresholds(wanted.input)
        check_thresholds(wanted.output)
        policy = await self._resolve(exchange, wanted, self._streams if is_stream else self._texts)
        writer: AnswerWriter = wire.WholeText(wanted, hides=policy.hides)
        if is_stream:
            is_guarded = bool(policy.output) and not policy.is_shadow
            writer = self._formats.text_events(is_guarded=is_guarded, hides=policy.hides)
        await self._answer(exchange, wanted, policy, writer)

    async def _resolve(self, exchange: Exchange, wanted: wire.TextRequest, surface: Surface) -> Policy:
        requested = {"input": wanted.input, "output": wanted.output}
        headers = self._answering.headers(exchange)
        return await self._answering.resolve(exchange, wanted.policy, surface, requested, headers)

    async def _answer(self, exchange: Exchange, wanted: wire.TextRequest, policy: Policy, writer: AnswerWriter) -> None:
        answering, backend, strategy = self._answering, self._backend, Strategy.MAX_PROCESSED_INDEX
        body = {"text": wanted.text, "params": wanted.params}
        generation = Generation(wanted.model, body, answering.headers(exchange))

        def with_input(checked: CheckedInput) -> Generation:
            return generation._replace(body=body | {"text": checked.changes[wire.PROMPT]})

        request = GuardedRequest(
            policy,
            policy.open_meter(exchange.request.caller),
            await _read_texts(wanted, policy, generation),
            ask_model(backend, generation, writer, with_input),
            partial(answering.lanes, is_stream=writer.is_stream, strategy=strategy, feeds_empty=True),
            answering.gateway.sentences,
            count_tokens=partial(answering.count_tokens, backend, generation, wanted.text),
        )
        await answering.answer(exchange, request, writer)


async def _read_texts(wanted: wire.TextRequest, policy: Policy, generation: Generation) -> Input:
    """The texts that detectors read: under a policy all of the request."""
    if not policy.input:
        return Input(wanted.text, ())
    marked = cut_masks(wanted.text, wanted.masks)
    if not policy.name:
        return Input(wanted.text, marked)
    body = {"inputs": wanted.text, "model_id": wanted.model, "text_gen_parameters": wanted.params}
    found = await survey_request(body, wire.FIELDS, generation.headers, len(wanted.text))
    return build_input(found, wire.FIELDS, policy.refuses_unreadable, wanted.text, marked if wanted.masks else ())


def _require(**fields: object) -> None:
    for name, value in fields.items():
        if not value:
            raise InvalidRequest(f"`{name}` is required")


async def _read_lines(exchange: Exchange, max_bytes: int) -> AsyncGenerator[list[ContentLine], None]:
    """The lines as they arrive, those of one packet together; lines before an invalid one come first."""
    splitter = LineSplitter(max_bytes)
    async with aclosing(exchange.request.pieces()) as pieces:
        async for piece in pieces:
            async for lines in _decode_lines(splitter.feed(piece)):
                yield lines
    async for lines in _decode_lines(splitter.finish()):
        yield lines


async def _decode_lines(raw: Iterable[bytes]) -> AsyncGenerator[list[ContentLine], None]:
    lines: list[ContentLine] = []
    fault: RequestError | None = None
    try:
        for line in raw:
            lines += [await decode(line, CONTENT_LINE.decode_line)]
    except RequestError as error:
        fault = error
    if lines:
        yield lines
    if fault is not None:
        raise fault


async def _read_first(bursts: AsyncGenerator[list[ContentLine], None]) -> list[ContentLine]:
    """The lines of the first packet; the first line must name the detectors."""
    async for lines in bursts:
        if lines[0].detectors is None:
            break
        if not lines[0].detectors:
            raise InvalidRequest("`detectors` must not be empty")
        if not lines[0].content:
            raise InvalidRequest("`content` cannot be empty")
        return lines
    raise InvalidRequest("`detectors` is required for the first message")


async def _read_frames(first: list[ContentLine], bursts: AsyncGenerator[list[ContentLine], None]) -> Source:
    count, lines = 0, first
    while True:
        good = list(takewhile(lambda line: line.content, lines))
        if good:
            yield [Frame(number, line.content) for number, line in enumerate(good, count)]
        if len(good) < len(lines):
            raise InvalidRequest("`content` cannot be empty")
        count += len(lines)
        try:
            lines = await anext(bursts)
        except StopAsyncIteration:
            return
