# SPDX-License-Identifier: Apache-2.0
"""The clients of TGIS and caikit-NLP against real servers: what they send, make of answers, and retry."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from lockgate.backends.caikit_nlp import CaikitNlpClient, open_caikit_nlp_client
from lockgate.backends.tgis import TgisClient, open_tgis_client
from lockgate.errors import BrokeProtocol, Rejected, TimedOut, Unavailable, UpstreamError
from lockgate.gate.values import Generation, Health
from lockgate.interfaces import Backend, Probe
from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from lockgate.protos import fmaas_pb2 as fmaas
from tests.contracts.grpc_peers import (
    Context,
    GrpcServer,
    Methods,
    Streaming,
    Unary,
    add_health,
    answer_nothing,
    at,
    build_nlp_server,
    build_tgis_server,
    failing_with,
    stream_nothing,
)
from tests.waits import LoopClock, forever, is_pending

EVERYTHING: Mapping[str, Any] = {
    "max_new_tokens": 20,
    "min_new_tokens": 2,
    "truncate_input_tokens": 7,
    "decoding_method": "SAMPLE",
    "top_k": 5,
    "top_p": 0.5,
    "typical_p": 0.25,
    "temperature": 0.75,
    "repetition_penalty": 1.5,
    "max_time": 12.9,
    "exponential_decay_length_penalty": {"start_index": 3, "decay_factor": 1.25},
    "stop_sequences": ["\n", "end"],
    "seed": 42,
    "preserve_input_text": True,
    "input_tokens": True,
    "generated_tokens": True,
    "token_logprobs": True,
    "token_ranks": True,
    "include_stop_sequence": False,
}
GENERATE, TOKENIZE = "generate request failed for `m`: ", "tokenize request failed for `m`: "


def ask(params: Mapping[str, Any] | None = None, **rest: Any) -> Generation:
    return Generation("m", {"text": "Hé", "params": params}, **rest)


@asynccontextmanager
async def tgis(methods: Methods, *, limits: bool = True, **settings: Any) -> AsyncIterator[tuple[TgisClient, Any]]:
    server = build_tgis_server(methods)
    async with (
        server.listening() as port,
        open_tgis_client(at(port, **settings), limits_silence=limits) as client,
    ):
        yield client, server.record


@asynccontextmanager
async def caikit(methods: Methods, **settings: Any) -> AsyncIterator[tuple[CaikitNlpClient, Any]]:
    server = build_nlp_server(methods)
    async with server.listening() as port, open_caikit_nlp_client(at(port, **settings)) as client:
        yield client, server.record


def answering(*messages: Any) -> Unary:
    """One of the answers per call; an exception's place is taken by a status."""
    left = list(messages)

    async def behave(_message: Any, context: Context) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "why")
        return answer

    return behave


def streaming(*messages: Any) -> Streaming:
    async def behave(_message: Any, context: Context) -> AsyncIterator[Any]:
        for message in messages:
            if isinstance(message, grpc.StatusCode):
                await context.abort(message, "why")
            yield message

    return behave


async def read_all(backend: Backend, request: Generation) -> list[dict[str, Any]]:
    return [message async for messages in backend.stream(request) for message in messages]


# TGIS


async def test_tgis_is_sent_every_parameter_in_its_own_words() -> None:
    async with tgis({"Generate": answering(fmaas.BatchedGenerationResponse(responses=[{}]))}) as (client, record):
        await client.generate(ask(EVERYTHING))
    assert MessageToDict(record.received[0], preserving_proto_field_name=True) == {
        "model_id": "m",
        "requests": [{"text": "Hé"}],
        "params": {
            "method": "SAMPLE",
            "sampling": {"temperature": 0.75, "top_k": 5, "top_p": 0.5, "typical_p": 0.25, "seed": "42"},
            "stopping": {
                "max_new_tokens": 20,
                "min_new_tokens": 2,
                "time_limit_millis": 12,
                "stop_sequences": ["\n", "end"],
                "include_stop_sequence": False,
            },
            "response": {
                "input_text": True,
                "generated_tokens": True,
                "input_tokens": True,
                "token_logprobs": True,
                "token_ranks": True,
            },
            "decoding": {"repetition_penalty": 1.5, "length_penalty": {"start_index": 3, "decay_factor": 1.25}},
            "truncate_input_tokens": 7,
        },
    }


async def test_tgis_gets_no_parameters_where_none_were_given_and_zeros_where_some_were() -> None:
    answer = fmaas.BatchedGenerationResponse(responses=[{}])
    async with tgis({"Generate": answering(answer), "GenerateStream": streaming()}) as (client, record):
        await client.generate(ask())
        await client.generate(ask({}))
        await read_all(client, ask({"decoding_method": "SAMPLING", "exponential_decay_length_penalty": {}}))
        await read_all(client, ask({"max_time": 1e300, "temperature": None}))
    bare, empty, other, long = record.received
    assert not bare.HasField("params")
    for name in ("sampling", "stopping", "response", "decoding"):
        assert empty.params.HasField(name)
    assert not empty.params.HasField("beam")
    assert not empty.HasField("prefix_id")
    assert not empty.params.sampling.HasField("seed")
    assert not empty.params.stopping.HasField("include_stop_sequence")
    assert not empty.params.decoding.HasField("length_penalty")
    assert other.request.text == "Hé"
    assert other.params.method == fmaas.GREEDY
    assert other.params.decoding.HasField("length_penalty")
    assert long.params.stopping.time_limit_millis == 2**32 - 1


async def test_a_tgis_answer_becomes_a_message() -> None:
    token = fmaas.TokenInfo(text="Hi", logprob=-0.5, rank=2)
    rich = fmaas.GenerationResponse(
        text="Hi",
        generated_token_count=1,
        input_token_count=4,
        stop_reason="STOP_SEQUENCE",
        seed=2**32 + 7,
        tokens=[token],
        input_tokens=[fmaas.TokenInfo(text="Hé")],
        stop_sequence="x",
    )
    methods = {
        "Generate": answering(fmaas.BatchedGenerationResponse(responses=[rich, {}])),
        "GenerateStream": streaming(fmaas.GenerationResponse(input_token_count=4), rich),
    }
    message = {
        "generated_text": "Hi",
        "finish_reason": "STOP_SEQUENCE",
        "generated_token_count": 1,
        "seed": 7,
        "input_token_count": 4,
        "tokens": [{"text": "Hi", "logprob": -0.5, "rank": 2}],
        "input_tokens": [{"text": "Hé", "logprob": 0.0, "rank": 0}],
    }
    async with tgis(methods) as (client, _):
        assert await client.generate(ask()) == message
        first, second = await read_all(client, ask())
    assert second == {**message, "start_index": 0}
    assert first == {
        "generated_text": "",
        "finish_reason": "NOT_FINISHED",
        "generated_token_count": 0,
        "seed": 0,
        "input_token_count": 4,
        "start_index": 0,
    }


async def test_tgis_counts_tokens() -> None:
    answer = fmaas.BatchedTokenizeResponse(responses=[fmaas.TokenizeResponse(token_count=9)])
    async with tgis({"Tokenize": answering(answer)}) as (client, record):
        assert await client.tokenize("m", "Hé", ()) == 9
    assert record.received[0] == fmaas.BatchedTokenizeRequest(model_id="m", requests=[{"text": "Hé"}])


async def test_an_empty_batch_of_tgis_is_a_broken_promise() -> None:
    methods = {
        "Generate": answering(fmaas.BatchedGenerationResponse()),
        "Tokenize": answering(fmaas.BatchedTokenizeResponse()),
    }
    async with tgis(methods) as (client, _):
        with pytest.raises(BrokeProtocol, match="the answer is empty"):
            await client.generate(ask())
        with pytest.raises(BrokeProtocol, match="the answer is empty"):
            await client.tokenize("m", "Hé", ())


async def test_tgis_is_never_asked_twice() -> None:
    methods = {
        "Generate": answering(grpc.StatusCode.UNAVAILABLE),
        "GenerateStream": streaming(grpc.StatusCode.UNAVAILABLE),
        "Tokenize": answering(grpc.StatusCode.UNAVAILABLE),
    }
    async with tgis(methods) as (client, record):
        with pytest.raises(Unavailable) as caught:
            await client.generate(ask())
        assert caught.value.message == GENERATE + "why"
        with pytest.raises(Unavailable) as caught:
            await read_all(client, ask())
        assert caught.value.message == GENERATE + "why"
        with pytest.raises(Unavailable) as caught:
            await client.tokenize("m", "Hé", ())
        assert caught.value.message == TOKENIZE + "why"
    assert record.calls == 3


async def test_the_health_of_tgis_is_whether_it_tells_of_its_models() -> None:
    async with tgis({"ModelInfo": failing_with(grpc.StatusCode.NOT_FOUND, "no such model")}) as (client, record):
        probe: Probe = client
        assert await probe.probe([("authorization", "secret")]) == Health("HEALTHY")
        assert record.received[0] == fmaas.ModelInfoRequest()
        assert set(record.headers()) <= {"user-agent"}
    async with tgis({"ModelInfo": failing_with(grpc.StatusCode.UNAUTHENTICATED, "")}) as (client, _):
        assert await client.probe(()) == Health("UNHEALTHY", 401)


# caikit-NLP

PREDICT, STREAM, COUNT = (
    "TextGenerationTaskPredict",
    "ServerStreamingTextGenerationTaskPredict",
    "TokenizationTaskPredict",
)


async def test_caikit_is_sent_the_parameters_as_they_are_and_no_others() -> None:
    sent = {**EVERYTHING, "decoding_method": "whatever", "unknown": 1, "top_k": None}
    async with caikit({PREDICT: answering(nlp.GeneratedTextResult()), STREAM: streaming()}) as (client, record):
        await client.generate(ask(sent))
        await read_all(client, ask(sent))
        await client.generate(ask())
        await client.generate(ask({"exponential_decay_length_penalty": {"start_index": None, "unknown": 1}}))
    expected = {name: value for name, value in sent.items() if name not in ("unknown", "top_k")}
    for message in record.received[:2]:
        assert MessageToDict(message, preserving_proto_field_name=True) == {
            "text": "Hé",
            **expected,
            "max_new_tokens": "20",
            "min_new_tokens": "2",
            "truncate_input_tokens": "7",
            "seed": "42",
            "exponential_decay_length_penalty": {"start_index": "3", "decay_factor": 1.25},
        }
    assert MessageToDict(record.received[2]) == {"text": "Hé"}
    assert record.received[3].HasField("exponential_decay_length_penalty")


async def test_a_caikit_answer_becomes_a_message() -> None:
    token = nlp.GeneratedToken(text="Hi", logprob=-0.1, rank=2)
    whole = nlp.GeneratedTextResult(
        generated_text="Hi",
        generated_tokens=1,
        finish_reason="EOS_TOKEN",
        input_token_count=4,
        seed=2**32 + 7,
        tokens=[token],
        input_tokens=[token],
    )
    details = nlp.TokenStreamDetails(finish_reason="MAX_TOKENS", generated_tokens=3, seed=8, input_token_count=4)
    methods = {
        PREDICT: answering(whole),
        STREAM: streaming(
            nlp.GeneratedTextStreamResult(input_tokens=[token]),
            nlp.GeneratedTextStreamResult(generated_text="Hi", tokens=[token], details=details),
        ),
        COUNT: answering(nlp.TokenizationResults(token_count=9)),
    }
    tokens = [{"text": "Hi", "logprob": -0.1, "rank": 2}]
    async with caikit(methods) as (client, _):
        assert await client.generate(ask()) == {
            "generated_text": "Hi",
            "finish_reason": "EOS_TOKEN",
            "generated_token_count": 1,
            "seed": 7,
            "input_token_count": 4,
            "tokens": tokens,
            "input_tokens": tokens,
        }
        assert await read_all(client, ask()) == [
            {"generated_text": "", "input_token_count": 0, "input_tokens": tokens},
            {
                "generated_text": "Hi",
                "finish_reason": "MAX_TOKENS",
                "generated_token_count": 3,
                "seed": 8,
                "input_token_count": 4,
                "tokens": tokens,
            },
        ]
        assert await client.tokenize("m", "Hé", ()) == 9


async def try_all(client: Backend) -> list[UpstreamError | None]:
    """What became of one call of each kind."""
    outcomes: list[UpstreamError | None] = []
    for attempt in (client.generate(ask()), read_all(client, ask()), client.tokenize("m", "Hé", ())):
        try:
            await attempt
            outcomes.append(None)
        except UpstreamError as error:
            outcomes.append(error)
    return outcomes


@pytest.mark.parametrize(("max_retries", "calls"), [(0, 3), (1, 6), (3, 12)])
async def test_caikit_is_asked_again_while_it_is_unavailable(max_retries: int, calls: int) -> None:
    gone = grpc.StatusCode.UNAVAILABLE
    methods = {PREDICT: answering(gone), STREAM: streaming(gone), COUNT: answering(gone)}
    async with caikit(methods, max_retries=max_retries) as (client, record):
        outcomes = await try_all(client)
    assert [error.message for error in outcomes if error] == [GENERATE + "why", GENERATE + "why", TOKENIZE + "why"]
    assert [error.status for error in outcomes if error] == [503, 503, 503]
    assert record.calls == calls


async def test_caikit_is_not_asked_again_after_any_other_failure() -> None:
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED):
        methods = {PREDICT: answering(code), STREAM: streaming(code), COUNT: answering(code)}
        async with caikit(methods) as (client, record):
            outcomes = await try_all(client)
        assert all(outcomes)
        assert record.calls == 3


async def test_a_retry_that_succeeds_is_all_that_the_caller_sees() -> None:
    left = 2

    async def stream(_message: Any, context: Context) -> AsyncIterator[Any]:
        nonlocal left
        left -= 1
        if left >= 0:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "why")
        yield nlp.GeneratedTextStreamResult(generated_text="a")
        yield nlp.GeneratedTextStreamResult(generated_text="b")

    gone = grpc.StatusCode.UNAVAILABLE
    methods = {PREDICT: answering(gone, gone, nlp.GeneratedTextResult(generated_text="Hi")), STREAM: stream}
    async with caikit(methods) as (client, record):
        assert (await client.generate(ask()))["generated_text"] == "Hi"
        assert [message["generated_text"] for message in await read_all(client, ask())] == ["a", "b"]
    assert record.calls == 6
    assert len({record.headers(call)["traceparent"] for call in range(6)}) == 6


async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    broken = streaming(nlp.GeneratedTextStreamResult(generated_text="a"), grpc.StatusCode.UNAVAILABLE)
    async with caikit({STREAM: broken}) as (client, record):
        messages = client.stream(ask())
        assert (await anext(messages))[0]["generated_text"] == "a"
        with pytest.raises(Unavailable):
            await anext(messages)
    assert record.calls == 1


async def test_the_health_of_caikit_is_asked_of_the_health_service() -> None:
    server = add_health(GrpcServer(), failing_with(grpc.StatusCode.INVALID_ARGUMENT, ""))
    async with server.listening() as port, open_caikit_nlp_client(at(port)) as client:
        assert await client.probe([("x-tenant", "a")]) == Health("HEALTHY")
    assert set(server.record.headers()) <= {"user-agent"}


# Both


@pytest.mark.parametrize("provider", ["tgis", "nlp"])
async def test_headers_go_along_as_metadata_as_far_as_grpc_allows(provider: str) -> None:
    headers = [
        ("Authorization", "Bearer x"),
        ("X-Tenant", "a"),
        ("x-tenant", "b"),
        ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        ("tracestate", "theirs=1"),
        ("Content-Type", "application/json"),
        ("Content-Length", "5"),
        ("Host", "here"),
        ("Connection", "close"),
        ("TE", "gzip"),
        ("X-Raw-Bin", "AAAA"),
        ("grpc-timeout", "1n"),
        ("x-name with space", "1"),
        ("x-odd", "süß"),
        ("x-line", "a\r\nb: c"),
        (":path", "/x"),
    ]
    async with (
        tgis({"Generate": answering(fmaas.BatchedGenerationResponse(responses=[{}]))})
        if provider == "tgis"
        else caikit({PREDICT: answering(nlp.GeneratedTextResult())})
    ) as (client, record):
        await client.generate(ask(headers=[*headers, ("mm-model-id", "forged")]))
    got = sorted((name, value) for name, value in record.metadata[0] if name not in ("user-agent", "grpc-timeout"))
    trace = dict(got)["traceparent"]
    model = "forged" if provider == "tgis" else "m"
    assert [one for one in got if not one[0].startswith("trace")] == [
        ("authorization", "Bearer x"),
        ("mm-model-id", model),
        ("x-tenant", "a"),
        ("x-tenant", "b"),
    ]
    assert trace not in dict(headers).values()
    assert "theirs=1" not in [value for _, value in got]


@pytest.mark.parametrize("provider", ["tgis", "nlp"])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_reader_that_leaves_stops_the_server_at_once(provider: str, has_begun: bool) -> None:
    async def stream(_message: Any, _context: Context) -> AsyncIterator[Any]:
        if has_begun:
            yield fmaas.GenerationResponse(text="a") if provider == "tgis" else nlp.GeneratedTextStreamResult()
        yield await forever()

    async with tgis({"GenerateStream": stream}) if provider == "tgis" else caikit({STREAM: stream}) as (client, record):
        backend: Backend = client
        async with aclosing(backend.stream(ask())) as messages:
            if has_begun:
                await anext(messages)
            else:
                reader = asyncio.ensure_future(anext(messages))
                await record.opened.wait()
                assert await is_pending(reader)
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
        await record.left.wait()


@pytest.mark.parametrize("limits_silence", [False, True])
async def test_a_stream_that_pauses_too_long_is_given_up_if_that_counts(limits_silence: bool) -> None:
    is_late = asyncio.Event()

    async def slow(_message: Any, _context: Context) -> AsyncIterator[Any]:
        yield fmaas.GenerationResponse(text="a")
        await is_late.wait()
        yield fmaas.GenerationResponse(text="b")

    async with tgis({"GenerateStream": slow}, limits=limits_silence, request_timeout=600) as (patient, _):
        messages = patient.stream(ask())
        assert (await anext(messages))[0]["generated_text"] == "a"
        waiting = asyncio.ensure_future(anext(messages))
        assert await is_pending(waiting)
        LoopClock().advance()
        if limits_silence:
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], TimedOut)
            return
        assert await is_pending(waiting)
        is_late.set()
        assert (await waiting)[0]["generated_text"] == "b"
        assert [one async for one in messages] == []


async def test_a_server_that_does_not_begin_in_time_is_given_up() -> None:
    methods = {PREDICT: answer_nothing, STREAM: stream_nothing, COUNT: answer_nothing}
    async with caikit(methods, request_timeout=1) as (client, record):
        outcomes = await asyncio.gather(
            client.generate(ask()),
            read_all(client, ask()),
            client.tokenize("m", "Hé", ()),
            return_exceptions=True,
        )
        assert record.calls <= 3  # none is asked twice
    assert [(type(error), getattr(error, "status", 0)) for error in outcomes] == [(TimedOut, 408)] * 3


async def test_a_rejected_prompt_is_told_in_the_servers_words() -> None:
    async with tgis({"GenerateStream": streaming(grpc.StatusCode.INVALID_ARGUMENT)}) as (client, _):
        with pytest.raises(Rejected) as caught:
            await read_all(client, ask())
    assert (caught.value.status, caught.value.message, caught.value.service) == (400, GENERATE + "why", "generation")
