# SPDX-License-Identifier: Apache-2.0
"""Generation by `model_id` over real caikit-NLP and TGIS servers: answers, streams, faults (sections 7, 13, 14.1)."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.protos import fmaas_pb2 as fmaas
from tests.contracts.grpc_peers import (
    Context,
    GrpcServer,
    Record,
    Streaming,
    Unary,
    answer_nothing,
    build_chunk,
    build_chunker_server,
    build_nlp_server,
    build_tgis_server,
    stream_nothing,
)
from tests.contracts.http_peers import Exchange, open_peer
from tests.server.endings import ended_badly, error_of, failure
from tests.server.gateways import V1, V1_STREAM, ask, events_of, gateway

DETECT = "/api/v2/text/generation-detection"
PROVIDERS = ["nlp", "tgis"]
METHODS = {
    "nlp": ("TextGenerationTaskPredict", "ServerStreamingTextGenerationTaskPredict", "TokenizationTaskPredict"),
    "tgis": ("Generate", "GenerateStream", "Tokenize"),
}
WARNING = {
    "id": "UNSUITABLE_INPUT",
    "message": "Unsuitable input detected. Please check the detected entities on your input and try again with the "
    "unsuitable input removed.",
}
STATUSES = [
    (grpc.StatusCode.INVALID_ARGUMENT, 400),
    (grpc.StatusCode.NOT_FOUND, 404),
    (grpc.StatusCode.UNAVAILABLE, 503),
    (grpc.StatusCode.DEADLINE_EXCEEDED, 408),
    (grpc.StatusCode.INTERNAL, 500),
    (grpc.StatusCode.UNAUTHENTICATED, 401),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, 500),
]


def config(provider: str, port: int, extra: str = "", more: str = "", patience: int = 600) -> str:
    return f"""
generation: {{provider: {provider}, service: {{hostname: 127.0.0.1, port: {port}, request_timeout: {patience}}}}}
detectors:
  bob: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [Bob, Ünal]}}}}
  word: {{embedded: keywords, chunker_id: word, options: {{keywords: [Bye]}}}}
  whole: {{embedded: keywords, chunker_id: whole_doc_chunker, options: {{keywords: [Hi]}}}}
  about: {{type: text_generation, embedded: keywords, options: {{keywords: [Bob]}}}}
{extra}
{more}
"""


def wanted(inputs: str = "Say hi", *, masks: Any = None, params: Any = None, **maps: Any) -> dict[str, Any]:
    """A request; `input` and `output` are maps of detectors."""
    guards: dict[str, Any] = {side: {"models": models} for side, models in maps.items()}
    if masks is not None:
        guards["input"]["masks"] = masks
    body = {"model_id": "m", "inputs": inputs, "guardrail_config": guards}
    return body if params is None else body | {"text_gen_parameters": params}


def answering(*answers: Any) -> Unary:
    """One of the answers per call, the last for ever; a status ends the call."""
    left = list(answers)

    async def behave(_message: Any, context: Context) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "why")
        return answer

    return behave


def streaming(*answers: Any) -> Streaming:
    async def behave(_message: Any, context: Context) -> AsyncIterator[Any]:
        for answer in answers:
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "why")
            yield answer

    return behave


def build_server(
    provider: str, *, whole: Unary | None = None, stream: Streaming | None = None, count: Any = None
) -> GrpcServer:
    """A generation server; what is not told never answers."""
    names = METHODS[provider]
    behaviours = (whole or answer_nothing, stream or stream_nothing, count or answer_nothing)
    build = build_nlp_server if provider == "nlp" else build_tgis_server
    return build(dict(zip(names, behaviours, strict=True)))


@asynccontextmanager
async def before(
    provider: str, extra: str = "", more: str = "", patience: int = 600, **peers: Any
) -> AsyncIterator[tuple[int, Record]]:
    """The port of a gateway before a generation server that behaves so; `LOCKGATE_…` are variables."""
    environ = {name: peers.pop(name) for name in list(peers) if name.startswith("LOCKGATE")}
    server = build_server(provider, **peers)
    async with (
        server.listening() as backend,
        gateway(config(provider, backend, extra, more, patience), **environ) as port,
    ):
        yield port, server.record


def said(provider: str, text: str, **fields: Any) -> Any:
    """A message of a stream, the same fields for both."""
    token = nlp.GeneratedToken if provider == "nlp" else fmaas.TokenInfo
    lists: Any = {name: [token(text=one) for one in fields.pop(name, ())] for name in ("tokens", "input_tokens")}
    if provider == "tgis":
        return fmaas.GenerationResponse(text=text, **fields, **lists)
    details = nlp.TokenStreamDetails(
        finish_reason=fields.get("stop_reason", 0),
        generated_tokens=fields.get("generated_token_count", 0),
        seed=fields.get("seed", 0),
        input_token_count=fields.get("input_token_count", 0),
    )
    return nlp.GeneratedTextStreamResult(generated_text=text, details=details if fields else None, **lists)


def whole_answer(provider: str, text: str) -> Any:
    if provider == "nlp":
        return nlp.GeneratedTextResult(
            generated_text=text, generated_tokens=2, finish_reason="EOS_TOKEN", input_token_count=5, seed=7
        )
    one = fmaas.GenerationResponse(
        text=text, generated_token_count=2, stop_reason="EOS_TOKEN", input_token_count=5, seed=7
    )
    return fmaas.BatchedGenerationResponse(responses=[one])


def count_of(provider: str, number: int) -> Any:
    if provider == "nlp":
        return nlp.TokenizationResults(token_count=number)
    return fmaas.BatchedTokenizeResponse(responses=[fmaas.TokenizeResponse(token_count=number)])


def conversation(provider: str) -> list[Any]:
    """The messages of the contract's own example (G-146)."""
    return [
        said(provider, "", input_token_count=5, seed=7),
        said(provider, "Hi", generated_token_count=1, seed=7),
        said(provider, " Bob.", generated_token_count=2, seed=7),
        said(provider, " Bye.", generated_token_count=4, stop_reason=2, seed=7),
    ]


# Whole answers.


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_whole_answer_has_its_findings_by_place(provider: str) -> None:
    """G-60, G-63: the key order too."""
    async with before(provider, whole=answering(whole_answer(provider, "Hi Bob. Bye."))) as (port, record):
        clean = await ask(port, V1, wanted(output={}))
        assert clean.body == (
            b'{"generated_text":"Hi Bob. Bye.","token_classification_results":{},"finish_reason":"EOS_TOKEN",'
            b'"generated_token_count":2,"seed":7,"input_token_count":5}'
        )
        got = (await ask(port, V1, wanted(output={"word": {}, "bob": {}, "whole": {}}))).json()
        found = got["token_classification_results"]["output"]
        assert [(one["word"], one["start"], one["detector_id"]) for one in found] == [
            ("Hi", 0, "whole"), ("Bob", 3, "bob"), ("Bye", 8, "word"),
        ]  # fmt: skip
        assert got["warnings"] == [{"id": "UNSUITABLE_OUTPUT", "message": "Unsuitable output detected."}]
        assert got["generated_text"] == "Hi Bob. Bye."
        body = {"model_id": "m", "prompt": "Say hi", "detectors": {"about": {}}}
        got = (await ask(port, DETECT, body)).json()
        assert (got["generated_text"], got["input_token_count"]) == ("Hi Bob. Bye.", 5)
        assert [one["detector_id"] for one in got["detections"]] == ["about"]
    assert record.calls == 3


async def test_an_empty_whole_answer_is_cut_and_read() -> None:
    """G-64."""
    seen: list[Any] = []

    async def detect(exchange: Exchange) -> None:
        seen.append(exchange.received.json["contents"])
        await exchange.answer(json.dumps([[]]).encode())

    cut = answering(nlp.TokenizationResults())
    chunkers = build_chunker_server(cut)
    async with open_peer(detect) as peer, chunkers.listening() as chunker:
        service = f"service: {{hostname: 127.0.0.1, port: {peer.port}}}, default_threshold: 0.5"
        extra = f"  far: {{type: text_contents, chunker_id: whole_doc_chunker, {service}}}\n"
        extra += f"  near: {{type: text_contents, chunker_id: cut, {service}}}"
        more = f"chunkers: {{cut: {{type: sentence, service: {{hostname: 127.0.0.1, port: {chunker}}}}}}}"
        async with before("nlp", extra, more, whole=answering(whole_answer("nlp", ""))) as (port, _):
            got = (await ask(port, V1, wanted(output={"far": {}, "near": {}}))).json()
    assert (got["generated_text"], got["token_classification_results"]) == ("", {})
    assert seen == [[""]]
    assert [one.text for one in chunkers.record.received] == [""]


# A prompt with a finding.


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_a_prompt_with_a_finding_is_counted_and_goes_no_further(provider: str, compat: str) -> None:
    """G-61: the whole input is counted, not the masked part of it."""
    body = wanted("Hé! Bob. Bob ok", input={"bob": {}}, masks=[[0, 8]], output={"word": {}})
    peers: dict[str, Any] = {"count": answering(count_of(provider, 7)), "LOCKGATE_COMPAT": compat}
    async with before(provider, **peers) as (port, record):
        got = await ask(port, V1, body)
        found = {"start": 4, "end": 7, "word": "Bob", "entity": "Keyword", "entity_group": "keyword",
                 "detector_id": "bob", "score": 1.0}  # fmt: skip
        expected = {"token_classification_results": {"input": [found]}, "input_token_count": 7, "warnings": [WARNING]}
        assert (got.status, got.json()) == (200, expected)
        assert list(got.json()) == list(expected)
        assert events_of(await ask(port, V1_STREAM, body)) == [expected]
    texts = [one.text if provider == "nlp" else one.requests[0].text for one in record.received]
    assert texts == ["Hé! Bob. Bob ok"] * 2


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("code", "status"), STATUSES[:5], ids=lambda one: getattr(one, "name", str(one)))
async def test_under_fms_a_failing_count_fails_the_request(provider: str, code: grpc.StatusCode, status: int) -> None:
    """G-62."""
    error = error_of(status, "tokenize request failed for `m`: why")
    async with before(provider, count=answering(code), LOCKGATE_COMPAT="fms") as (port, _):
        body = wanted("Bob", input={"bob": {}})
        assert (await ask(port, V1, body)).json() == error
        assert events_of(await ask(port, V1_STREAM, body)) == [{"$error": error}]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("answered", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, b"\xff"], ids=repr)
async def test_a_count_that_fails_is_0_and_the_findings_are_given(provider: str, answered: Any) -> None:
    """D-37."""
    async with before(provider, count=answering(answered)) as (port, _):
        got = (await ask(port, V1, body := wanted("Bob", input={"bob": {}}))).json()
        assert (got["input_token_count"], len(got["token_classification_results"]["input"])) == (0, 1)
        assert events_of(await ask(port, V1_STREAM, body)) == [got]


@pytest.mark.parametrize(
    ("masks", "found"),
    [
        ([], [0, 8, 14]),
        ([[0, 6]], [0]),
        ([[13, 18]], [14]),
        ([[13, 18], [0, 6]], [0, 14]),
        ([[0, 13], [6, 13]], [0, 8, 8]),  # overlapping masks are read twice
        ([[8, 9], [9, 10], [10, 11]], []),  # a name in three slices is no name
        ([[13, 20]], [14]),  # as many bytes, fewer code points
    ],
)
async def test_masks_count_in_code_points_and_places_in_the_whole_input(masks: Any, found: list[int]) -> None:
    """G-58, G-104: `Ünal. 😀 Bob, é Bob` has 18 code points and 23 bytes."""
    text = "Ünal. 😀 Bob. é Bob"
    found = [place if place != 14 else text.rindex("Bob") for place in found]
    async with before("nlp", count=answering(count_of("nlp", 1)), whole=answering(whole_answer("nlp", "ok"))) as (
        port,
        _,
    ):
        got = (await ask(port, V1, wanted(text, input={"bob": {}}, masks=masks))).json()
        results = got["token_classification_results"].get("input", [])
        assert [one["start"] for one in results] == found
        assert all(text[one["start"] : one["end"]] == one["word"] for one in results)


@pytest.mark.parametrize(
    ("masks", "details"),
    [
        ([[0, 24]], "invalid masks"),
        ([[3, 3]], "invalid masks"),
        ([[4, 3]], "invalid masks"),
    ],
)
async def test_masks_beyond_the_bytes_of_the_input_are_refused(masks: Any, details: str) -> None:
    """G-57, G-65: an event on the stream."""
    async with before("nlp") as (port, record):
        body = wanted("Ünal. 😀 Bob. é Bob", input={"bob": {}}, masks=masks)
        assert (await ask(port, V1, body)).json() == {"code": 422, "details": details}
        assert events_of(await ask(port, V1_STREAM, body)) == [{"$error": {"code": 422, "details": details}}]
        for bad in ([[0]], [[0, 1, 2]], [[-1, 2]]):
            body["guardrail_config"]["input"]["masks"] = bad
            assert [(await ask(port, path, body)).status for path in (V1, V1_STREAM)] == [422, 422]
    assert record.calls == 0


# Streams.


@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_without_detectors_every_message_is_an_event(compat: str) -> None:
    """G-130, G-134, G-143."""
    async with before("tgis", stream=streaming(*conversation("tgis")), LOCKGATE_COMPAT=compat) as (port, _):
        answer = await ask(port, V1_STREAM, wanted())
        assert answer.body.startswith(
            b'data: {"generated_text":"","token_classification_results":{},"finish_reason":"NOT_FINISHED",'
            b'"generated_token_count":0,"seed":7,"input_token_count":5,"start_index":0}\n\n'
        )
        assert [event["generated_text"] for event in events_of(answer)] == ["", "Hi", " Bob.", " Bye."]
    plain = [said("nlp", "Hi", tokens=["Hi"]), said("nlp", "."), *conversation("nlp")[3:]]
    async with before("nlp", stream=streaming(*plain), LOCKGATE_COMPAT=compat) as (port, _):
        assert events_of(await ask(port, V1_STREAM, wanted())) == [
            {"generated_text": "Hi", "token_classification_results": {}, "input_token_count": 0,
             "tokens": [{"text": "Hi", "logprob": 0.0, "rank": 0}]},
            {"generated_text": ".", "token_classification_results": {}, "input_token_count": 0},
            {"generated_text": " Bye.", "token_classification_results": {}, "finish_reason": "EOS_TOKEN",
             "generated_token_count": 4, "seed": 7, "input_token_count": 0},
        ]  # fmt: skip


@asynccontextmanager
async def with_chunker(*chunks: Any, provider: str = "tgis", **peers: Any) -> AsyncIterator[tuple[int, Record]]:
    """A remote chunker that gives these chunks, and a detector `far` behind it."""

    async def converse(messages: Any, _context: Context) -> AsyncIterator[Any]:
        async for _ in messages:
            pass
        for one in chunks:
            yield one

    chunkers = build_chunker_server(converse=converse)
    async with chunkers.listening() as chunker:
        extra = "  far: {embedded: keywords, chunker_id: cut, options: {keywords: [Bob]}}"
        more = f"chunkers: {{cut: {{type: sentence, service: {{hostname: 127.0.0.1, port: {chunker}}}}}}}"
        async with before(provider, extra, more, **peers) as (port, _):
            yield port, chunkers.record


CHUNKS = build_chunk(0, 7, "Hi Bob.", inputs=(0, 2)), build_chunk(7, 12, " Bye.", inputs=(3, 3))


async def test_fms_gives_the_events_of_the_contract_to_the_letter() -> None:
    """G-145, G-146, G-108."""
    peers: dict[str, Any] = {"stream": streaming(*conversation("tgis")), "LOCKGATE_COMPAT": "fms"}
    async with with_chunker(*CHUNKS, **peers) as (port, record):
        answer = await ask(port, V1_STREAM, wanted(output={"far": {}}))
    assert answer.body == (
        b'data: {"generated_text":"Hi Bob.","token_classification_results":{"output":[{"start":3,"end":6,"word":"Bob",'
        b'"entity":"Keyword","entity_group":"keyword","detector_id":"far","score":1.0}]},"finish_reason":"NOT_FINISHED",'
        b'"generated_token_count":2,"seed":7,"input_token_count":5,"tokens":[],"processed_index":7,"start_index":0}\n\n'
        b'data: {"generated_text":" Bye.","token_classification_results":{"output":[]},"finish_reason":"EOS_TOKEN",'
        b'"generated_token_count":4,"seed":7,"input_token_count":0,"tokens":[],"processed_index":12,"start_index":7}\n\n'
    )
    assert [(one.text_stream, one.input_index_stream) for one in record.received] == [
        ("", 0), ("Hi", 1), (" Bob.", 2), (" Bye.", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_tokens_and_counts_leave_once_in_either_mode(provider: str) -> None:
    """D-29, G-145, LIM-32: chunks and messages do not align."""
    messages = [
        said(provider, "", input_token_count=5, seed=7, input_tokens=["Say", "hi"]),
        said(provider, "Hi Bo", generated_token_count=2, seed=7, tokens=["Hi", " Bo"]),
        said(provider, "b. Bye.", generated_token_count=4, seed=7, stop_reason=2, tokens=["b.", " Bye."]),
    ]
    chunks = build_chunk(0, 7, "Hi Bob.", inputs=(0, 2)), build_chunk(7, 12, " Bye.", inputs=(2, 2))
    async with with_chunker(*chunks, provider=provider, stream=streaming(*messages)) as (port, _):
        first, last = events_of(await ask(port, V1_STREAM, wanted(output={"far": {}})))
    assert (first["generated_text"], last["generated_text"]) == ("Hi Bob.", " Bye.")
    assert [one["text"] for one in first["tokens"] + last["tokens"]] == ["Hi", " Bo", "b.", " Bye."]
    assert [one["text"] for one in first["input_tokens"]] == ["Say", "hi"]
    assert "input_tokens" not in last
    assert (first["input_token_count"], last["input_token_count"]) == (5, 0)
    assert (first.get("finish_reason"), last["finish_reason"]) == ("NOT_FINISHED", "EOS_TOKEN")
    assert (last["generated_token_count"], last["start_index"], last["processed_index"]) == (4, 7, 12)
    peers: dict[str, Any] = {"stream": streaming(*messages), "LOCKGATE_COMPAT": "fms"}
    async with with_chunker(*chunks, provider=provider, **peers) as (port, _):
        first, last = events_of(await ask(port, V1_STREAM, wanted(output={"far": {}})))
    assert [one["text"] for one in first["tokens"]] == ["Hi", " Bo", "b.", " Bye."]
    assert [one["text"] for one in first["input_tokens"]] == ["Say", "hi"]
    assert first["finish_reason"] == last["finish_reason"] == "EOS_TOKEN"


async def test_places_count_from_the_stream_and_detectors_may_differ_in_chunks() -> None:
    """D-1, D-2, D-3."""
    async with before("nlp", stream=streaming(*conversation("nlp"))) as (port, _):
        events = events_of(await ask(port, V1_STREAM, wanted(output={"bob": {}, "word": {}})))
        assert "".join(event["generated_text"] for event in events) == "Hi Bob. Bye."
        found = [one for event in events for one in event["token_classification_results"]["output"]]
        assert [(one["word"], one["start"], one["end"]) for one in found] == [("Bob", 3, 6), ("Bye", 8, 11)]
        ends = [event["processed_index"] for event in events]
        assert [event["start_index"] for event in events] == [0, *ends[:-1]]
        (event,) = events_of(await ask(port, V1_STREAM, wanted(output={"bob": {}, "whole": {}})))
        assert (event["generated_text"], event["finish_reason"]) == ("Hi Bob. Bye.", "EOS_TOKEN")


@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_an_empty_stream_asks_no_chunker_and_is_no_error(compat: str) -> None:
    """G-149, LIM-12."""
    messages = [said("tgis", "", seed=7), said("tgis", "", stop_reason=2)]
    peers: dict[str, Any] = {"stream": streaming(*messages), "LOCKGATE_COMPAT": compat}
    async with with_chunker(**peers) as (port, record):
        events = events_of(await ask(port, V1_STREAM, wanted(output={"far": {}})))
    assert [event["generated_text"] for event in events] == ([] if compat == "fms" else [""])
    assert record.calls == 0


# Failures.


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("code", "status"), STATUSES, ids=lambda one: getattr(one, "name", str(one)))
async def test_every_status_has_its_answer_and_only_caikit_is_asked_again(
    provider: str, code: grpc.StatusCode, status: int
) -> None:
    """D-41, G-126: 1 + 3 times while it is unavailable."""
    is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
    words = "why" if status in (400, 404, 503) else ""
    error = failure("model", 504) if is_late else failure("model", status if status in (400, 503) else 502, words)
    async with before(provider, whole=answering(code), stream=streaming(code)) as (port, record):
        calls = 4 if provider == "nlp" and status == 503 else 1
        for path, body in (
            (V1, wanted(output={"bob": {}})),
            (DETECT, {"model_id": "m", "prompt": "x", "detectors": {"about": {}}}),
        ):
            got = await ask(port, path, body)
            assert (got.status, got.json()) == (error["code"], error)
        assert record.calls == 2 * calls
        for body in (wanted(), wanted(output={"bob": {}})):
            assert events_of(await ask(port, V1_STREAM, body)) == [{"$error": error}]
        assert record.calls == 4 * calls


async def test_retries_can_be_set_and_end_with_the_first_success() -> None:
    """G-126."""
    down, up = grpc.StatusCode.UNAVAILABLE, whole_answer("nlp", "Hi")
    server = build_server("nlp", whole=answering(down, down, up))
    async with server.listening() as backend:
        text = config("nlp", backend).replace("request_timeout: 600", "max_retries: 2")
        async with gateway(text) as port:
            assert (await ask(port, V1, wanted())).json()["generated_text"] == "Hi"
    assert server.record.calls == 3


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_a_stream_that_fails_ends_behind_what_was_complete(provider: str, compat: str) -> None:
    """G-143, G-148; a stream that has begun is not begun again."""
    messages = [said(provider, "Hi Bob. "), said(provider, "Bye"), grpc.StatusCode.UNAVAILABLE]
    of_fms = compat == "fms"
    error = error_of(503, "generate request failed for `m`: why") if of_fms else failure("model", 503, "why")
    peers: dict[str, Any] = {"stream": streaming(*messages), "LOCKGATE_COMPAT": compat}
    async with before(provider, **peers) as (port, record):
        cases: list[tuple[Mapping[str, Any], str]] = [
            ({}, "Hi Bob. Bye"),
            ({"output": {"bob": {}}}, "Hi Bob. "),
            ({"output": {"bob": {}, "word": {}}}, "Hi Bob. "),
        ]
        for maps, left in cases:
            rest = ended_badly(events_of(await ask(port, V1_STREAM, wanted(**maps))), error, has_mark=False)
            assert "".join(event["generated_text"] for event in rest) == left
        assert record.calls == len(cases)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_server_that_never_answers_or_answers_rubbish_is_named_by_one_error(provider: str) -> None:
    async with before(provider, whole=answering(b"\xff\xff"), stream=streaming(b"\xff\xff")) as (port, _):
        assert (await ask(port, V1, wanted())).json() == failure("model")
        assert events_of(await ask(port, V1_STREAM, wanted())) == [{"$error": failure("model")}]
    if provider == "nlp":
        return
    async with before(provider, patience=1) as (port, _):
        assert (await ask(port, V1, wanted())).json() == failure("model", 504)


async def test_a_batch_without_an_answer_is_a_failure_of_the_model() -> None:
    empty, none = fmaas.BatchedGenerationResponse(), fmaas.BatchedTokenizeResponse()
    async with before("tgis", whole=answering(empty), count=answering(none)) as (port, _):
        assert (await ask(port, V1, wanted())).json() == failure("model")
        assert (await ask(port, V1, wanted("Bob", input={"bob": {}}))).json()["input_token_count"] == 0


@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_without_a_generation_server_the_model_is_not_found(compat: str) -> None:
    """LIM-1, D-11."""
    text = "\n".join(line for line in config("nlp", 1).splitlines() if not line.startswith("generation"))
    async with gateway(text, LOCKGATE_COMPAT=compat) as port:
        for what, side in (("generate", None), ("generate", "output"), ("tokenize", "input")):
            body = wanted("Hi Bob", **({side: {"bob": {}}} if side else {}))
            error = {"code": 404, "details": f"{what} request failed for `m`: model not found: m"}
            got = await ask(port, V1, body)
            assert (got.status, got.json()) == (404, error)
            assert events_of(await ask(port, V1_STREAM, body)) == [{"$error": error}]
        got = await ask(port, DETECT, {"model_id": "m", "prompt": "x", "detectors": {"about": {}}})
        assert got.json() == {"code": 404, "details": "generate request failed for `m`: model not found: m"}
