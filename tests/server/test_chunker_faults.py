# SPDX-License-Identifier: Apache-2.0
"""Remote chunkers that misbehave: whatever they answer, no unread text leaves (G-33, G-120, G-121, G-124, G-164)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.contracts.grpc_peers import (
    Context,
    Record,
    Streaming,
    Unary,
    answer_nothing,
    build_chunk,
    build_chunker_server,
    build_nlp_server,
    failing_with,
    stream_nothing,
)
from tests.contracts.http_peers import Exchange, open_peer, stream
from tests.server.endings import ended_badly, ended_well, failure
from tests.server.gateways import (
    CHAT,
    GROWING_S,
    TEXT,
    V1,
    V1_STREAM,
    ask,
    chunk,
    events_of,
    gateway,
    listen,
    results_in,
    sse,
    text_in,
)
from tests.server.http_client import CONTENT, NDJSON_TYPE, STREAM, Answer
from tests.server.http_client import stream as stream_content
from tests.waits import forever

FIRST, SECOND, THIRD = PIECES = ("One is done. ", "Two is done. ", "Three")
SAID = "".join(PIECES)
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def config(model: int, cut: int, extra: str = "", patience: int = 600) -> str:
    return f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model}, request_timeout: 600}}}}
chunkers:
  cut: {{type: sentence, service: {{hostname: 127.0.0.1, port: {cut}, request_timeout: {patience}}}}}
  too: {{type: sentence, service: {{hostname: 127.0.0.1, port: {cut}, request_timeout: {patience}}}}}
detectors:
  words: {{embedded: keywords, chunker_id: cut, options: {{keywords: [done]}}}}
  more: {{embedded: keywords, chunker_id: cut, options: {{keywords: [is]}}}}
  others: {{embedded: keywords, chunker_id: too, options: {{keywords: [is]}}}}
  talk: {{type: text_chat, embedded: keywords, options: {{keywords: [done]}}}}
  fine: {{embedded: keywords, chunker_id: word, options: {{keywords: [Three]}}}}
{extra}
"""


async def speak(exchange: Exchange) -> None:
    """A model that says SAID, and what the prompt tells it if that is only white space or nothing."""
    asked = exchange.received.json
    is_chat = "messages" in asked
    prompt = asked["messages"][-1]["content"] if is_chat else asked["prompt"]
    pieces = PIECES if prompt == "Hello" else ()
    if not asked.get("stream"):
        words = "".join(pieces)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": words},
            "text": words,
            "finish_reason": "stop",
        }
        await exchange.answer(json.dumps({"id": "c1", "choices": [choice]}).encode())
        return
    messages = [chunk(piece, index) for piece in pieces for index in range(asked.get("n", 1))]
    messages.append(chunk(finish="stop"))
    if not is_chat:
        messages = [_as_text(one) for one in messages]
    await stream(sse(*messages, "[DONE]"))(exchange)


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    (choice,) = message["choices"]
    said = choice["delta"].get("content", "")
    return {**message, "choices": [{"index": choice["index"], "text": said, "finish_reason": choice["finish_reason"]}]}


@asynccontextmanager
async def before(
    cut: Unary = answer_nothing,
    converse: Streaming = stream_nothing,
    extra: str = "",
    patience: int = 600,
    **environ: str,
) -> AsyncIterator[tuple[int, Record]]:
    server = build_chunker_server(cut, converse)
    async with (
        open_peer(speak) as model,
        server.listening() as chunker,
        gateway(config(model.port, chunker, extra, patience), **environ) as port,
    ):
        yield port, server.record


def chat(is_stream: bool, *output: str, prompt: str = "Hello", **more: Any) -> dict[str, Any]:
    detectors: dict[str, Any] = {"output": {name: {} for name in output}}
    messages = [{"role": "user", "content": prompt}]
    return {"model": "m", "stream": is_stream, "messages": messages, "detectors": detectors, **more}


def text(is_stream: bool, *output: str) -> dict[str, Any]:
    detectors: dict[str, Any] = {"output": {name: {} for name in output}}
    return {"model": "m", "stream": is_stream, "prompt": "Hello", "detectors": detectors}


def said(path: str, events: list[Any]) -> str:
    if path == CHAT:
        return text_in(events)
    return "".join(choice["text"] for event in events for choice in event["choices"])


class Ears:
    """Notes which clients have heard the first sentence, and when so many have."""

    def __init__(self, count: int = 4) -> None:
        self.is_heard = asyncio.Event()
        self._count = count
        self._heard: set[int] = set()

    def of(self, client: int) -> Callable[[Answer], None]:
        """What `listen` needs."""

        def hear(answer: Answer) -> None:
            if b"done. " in answer.body or b'"processed_index":13' in answer.body:
                self._heard.add(client)
            if len(self._heard) == self._count:
                self.is_heard.set()

        return hear


def script(*answers: Any, reads: bool = True, ears: Ears | None = None) -> Streaming:
    """Reads everything, then gives these answers, with `ears` the second one when all have heard the first one.

    A status ends the call.
    """

    async def converse(messages: Any, context: Context) -> AsyncIterator[Any]:
        if reads:
            async for _ in messages:
                pass
        for answer in answers:
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "why")
            yield answer
            if ears is not None:
                await ears.is_heard.wait()

    return converse


ONE, TWO, THREE = build_chunk(0, 13, FIRST), build_chunk(13, 26, SECOND), build_chunk(26, 31, THIRD)


async def ask_streams(port: int, ears: Ears) -> list[tuple[str, Answer]]:
    cases = [
        (CHAT, chat(True, "words")),
        (CHAT, chat(True, "words", "fine", "talk")),
        (TEXT, text(True, "words", "more")),
    ]
    answers = await asyncio.gather(*[listen(port, *case, ears.of(number)) for number, case in enumerate(cases)])
    return [(path, answer) for (path, _), answer in zip(cases, answers, strict=True)]


async def read_streams(port: int, error: dict[str, Any], ears: Ears | None = None) -> set[str]:
    """One error on every stream; the texts that were read before it."""
    ears = ears or Ears()
    body = {"detectors": {"words": {}}, "content": SAID}
    streamed, answer = await asyncio.gather(
        ask_streams(port, ears), listen(port, STREAM, body, ears.of(3), NDJSON_TYPE)
    )
    *others, last = answer.lines()
    assert last == error
    assert len(others) <= 1
    texts = [SAID[: one["processed_index"]] for one in others] or [""]
    return {said(path, ended_badly(events_of(one), error)) for path, one in streamed} | {*texts}


async def check_whole(port: int, error: dict[str, Any]) -> None:
    """One error on every whole answer."""
    cases = [
        (CONTENT, {"content": SAID, "detectors": {"fine": {}, "words": {}}}),
        (CHAT, chat(False, "words")),
        (CHAT, {**chat(True), "detectors": {"input": {"words": {}}}}),
        (TEXT, text(False, "words", "fine")),
    ]
    for answer, (_, body) in zip(await asyncio.gather(*[ask(port, *case) for case in cases]), cases, strict=True):
        if body.get("stream"):
            assert ended_badly(events_of(answer), error) == []
        else:
            assert (answer.status, answer.json()) == (error["code"], error)


def told(code: grpc.StatusCode) -> dict[str, Any]:
    """What a caller reads when the chunker has ended a call with this status."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return failure("cut", 504)
    is_told = code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
    return failure("cut", 503 if code is grpc.StatusCode.UNAVAILABLE else 502, "why" if is_told else "")


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_every_status_of_a_chunker_has_its_answer(code: grpc.StatusCode) -> None:
    """D-41; nothing is asked twice."""
    error = told(code)
    async with before(failing_with(code, "why"), script(code)) as (port, record):
        await check_whole(port, error)
        assert record.calls == 4
        assert await read_streams(port, error) == {""}
        assert record.calls == 4 + 4


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL], ids=lambda code: code.name)
async def test_what_was_cut_before_the_failure_has_left(code: grpc.StatusCode) -> None:
    """G-147, G-164."""
    ears, error = Ears(), told(code)
    async with before(converse=script(ONE, code, ears=ears)) as (port, _):
        assert await read_streams(port, error, ears) == {FIRST}


FAULTS: dict[str, tuple[Any, ...]] = {
    "skips text": (ONE, THREE),
    "repeats text": (ONE, ONE, TWO, THREE),
    "overlaps": (ONE, build_chunk(10, 26, SAID[10:26])),
    "goes back": (ONE, THREE, TWO),
    "invents text": (ONE, build_chunk(13, 26, "Two is fine. "), THREE),
    "changes case": (ONE, build_chunk(13, 26, SECOND.upper()), THREE),
    "says more than it was sent": (ONE, build_chunk(13, 36, SECOND + THIRD + " and")),
    "is beyond the text": (ONE, build_chunk(900, 913, SECOND)),
    "is before the text": (ONE, build_chunk(-13, 0, SECOND)),
    "starts one too late": (ONE, build_chunk(14, 27, SECOND), THREE),
    "starts one too early": (ONE, build_chunk(12, 25, SECOND), THREE),
    "ends early": (ONE,),
    "is no message": (ONE, b"\xff\xff\xff"),
}


@pytest.mark.parametrize("how", FAULTS)
async def test_a_chunker_that_breaks_its_promise_opens_no_gate(how: str) -> None:
    """G-121: chunks come in order and leave out nothing but white space."""
    ears = Ears()
    async with before(converse=script(*FAULTS[how], ears=ears)) as (port, _):
        assert await read_streams(port, failure("cut"), ears) == {FIRST}


@pytest.mark.parametrize(
    "first", [build_chunk(26, 31, THIRD), build_chunk(13, 26, SECOND), build_chunk(0, 7, "Goodbye")]
)
async def test_a_first_chunk_that_is_wrong_lets_nothing_out(first: Any) -> None:
    async with before(converse=script(first, ONE, TWO, THREE)) as (port, _):
        assert await read_streams(port, failure("cut")) == {""}


async def test_a_chunker_that_ends_before_it_has_read_anything_is_a_fault() -> None:
    async with before(converse=script(reads=False)) as (port, _):
        assert await read_streams(port, failure("cut")) == {""}


async def test_a_chunker_that_says_nothing_is_given_up() -> None:
    async with before(patience=1) as (port, record):
        while not record.left.is_set():
            late = failure("cut", 504)
            _, texts = await asyncio.gather(check_whole(port, late), read_streams(port, late))
            assert texts == {""}


async def test_a_chunker_that_stops_in_mid_stream_is_bounded_by_the_request() -> None:
    async def converse(messages: Any, _context: Context) -> AsyncIterator[Any]:
        async for _ in messages:
            pass
        yield ONE
        await forever()

    for timeout_s in GROWING_S:
        async with before(converse=converse, extra=f"limits: {{request_timeout_s: {timeout_s}}}") as (port, record):
            texts = await read_streams(port, {"code": 504, "details": "request timed out"})
            if texts == {FIRST}:
                await record.left.wait()
                break
    assert texts == {FIRST}


async def test_a_model_that_breaks_off_ends_the_chunker_behind_what_was_cut() -> None:
    """G-148, G-165: chunkers are not flushed, and their calls end."""
    ears = Ears(1)

    async def converse(messages: Any, _context: Context) -> AsyncIterator[Any]:
        await anext(messages)
        yield ONE
        async for _ in messages:
            pass
        yield TWO

    async def model(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.chunk(sse(chunk(FIRST), chunk(SECOND)))
        await ears.is_heard.wait()
        exchange.reset()

    server = build_chunker_server(converse=converse)
    async with open_peer(model) as peer, server.listening() as chunker, gateway(config(peer.port, chunker)) as port:
        events = events_of(await listen(port, CHAT, chat(True, "words", "more"), ears.of(0)))
        assert said(CHAT, ended_badly(events, failure("model"))) == FIRST
        await server.record.left.wait()


@asynccontextmanager
async def generating(cut: Unary = answer_nothing, converse: Streaming = stream_nothing) -> AsyncIterator[int]:
    """The port of a gateway before a generation server that says SAID."""

    async def whole(_message: Any, _context: Context) -> Any:
        return nlp.GeneratedTextResult(generated_text=SAID)

    async def streamed(_message: Any, _context: Context) -> AsyncIterator[Any]:
        for piece in PIECES:
            yield nlp.GeneratedTextStreamResult(generated_text=piece)

    server = build_nlp_server(
        {"TextGenerationTaskPredict": whole, "ServerStreamingTextGenerationTaskPredict": streamed}
    )
    async with server.listening() as backend:
        extra = f"generation: {{provider: nlp, service: {{hostname: 127.0.0.1, port: {backend}}}}}"
        async with before(cut, converse, extra) as (port, _):
            yield port


V1_BODY = {"model_id": "m", "inputs": "Hello", "guardrail_config": {"output": {"models": {"words": {}, "fine": {}}}}}


@pytest.mark.parametrize("how", FAULTS)
async def test_no_unread_text_of_a_generation_server_leaves_either(how: str) -> None:
    """G-147: one error, and no mark."""
    ears = Ears(1)
    async with generating(converse=script(*FAULTS[how], ears=ears)) as port:
        answer = await listen(port, V1_STREAM, V1_BODY, ears.of(0))
        rest = ended_badly(events_of(answer), failure("cut"), has_mark=False)
        assert "".join(event["generated_text"] for event in rest) == FIRST


async def test_a_status_of_a_chunker_ends_what_a_generation_server_said() -> None:
    gone = failure("cut", 503, "why")
    down = grpc.StatusCode.UNAVAILABLE
    async with generating(failing_with(down, "why"), script(down)) as port:
        answer = await ask(port, V1, V1_BODY)
        assert (answer.status, answer.json()) == (503, gone)
        assert ended_badly(events_of(await ask(port, V1_STREAM, V1_BODY)), gone, has_mark=False) == []


# What is odd and allowed.

GOOD: dict[str, tuple[Any, ...]] = {
    "as it should be": (ONE, TWO, THREE),
    "white space left out": (build_chunk(0, 12, FIRST[:-1]), build_chunk(13, 25, SECOND[:-1]), THREE),
    "a chunk in tokens": (build_chunk(0, 13, "One ", "is ", "done. "), TWO, THREE),
    "one chunk": (build_chunk(0, 31, SAID),),
    "empty chunks": (build_chunk(0, 0), ONE, build_chunk(13, 13, ""), TWO, THREE, build_chunk(31, 31)),
    "ends that are wrong": (build_chunk(0, 14, FIRST), build_chunk(13, 25, SECOND), build_chunk(26, 99, THIRD)),
}


@pytest.mark.parametrize("compat", ["none", "fms"])
@pytest.mark.parametrize("how", GOOD)
async def test_chunks_that_leave_out_nothing_but_white_space_let_all_text_out(how: str, compat: str) -> None:
    async with before(converse=script(*GOOD[how]), LOCKGATE_COMPAT=compat) as (port, _):
        for path, answer in await ask_streams(port, Ears()):
            events = ended_well(events_of(answer))
            assert said(path, events) == SAID
            assert [one["text"] for one in results_in(events) if one["detector_id"] == "words"] == ["done", "done"]
        lines = (await stream_content(port, {"detectors": {"words": {}}, "content": SAID})).lines()
        is_told = compat == "fms" and how == "ends that are wrong"  # there the chunker's word is passed on
        assert lines[-1]["processed_index"] == (99 if is_told else len(SAID))
        assert sum(len(one["detections"]) for one in lines) == 2


def tokens(*places: tuple[int, int, str]) -> Unary:
    async def cut(_message: Any, _context: Context) -> Any:
        return nlp.TokenizationResults(
            results=[nlp.Token(start=start, end=end, text=text) for start, end, text in places]
        )

    return cut


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([(0, 12, FIRST[:-1]), (13, 25, SECOND[:-1]), (26, 31, THIRD)], [7, 20]),  # white space left out
        ([(26, 31, THIRD), (13, 26, SECOND), (0, 13, FIRST)], [7, 20]),  # any order
        ([(0, 26, FIRST + SECOND), (13, 31, SECOND + THIRD)], [7, 20, 20]),  # read twice
    ],
)
async def test_of_a_whole_text_chunks_may_overlap_in_any_order(places: Any, found: list[int]) -> None:
    async with before(tokens(*places)) as (port, _):
        answer = await ask(port, CONTENT, {"content": SAID, "detectors": {"words": {}}})
        assert [one["start"] for one in answer.json()["detections"]] == found


GAPS = {
    "nothing": [],
    "not the beginning": [(13, 31, SECOND + THIRD)],
    "not the middle": [(0, 13, FIRST), (26, 31, THIRD)],
    "not the end": [(0, 12, FIRST[:-1]), (13, 25, SECOND[:-1])],
    "not the last character": [(0, 30, SAID[:-1])],
}


@pytest.mark.parametrize("how", GAPS)
async def test_a_chunker_that_leaves_out_text_of_a_whole_text_has_failed(how: str) -> None:
    async with before(tokens(*GAPS[how])) as (port, _):
        await check_whole(port, failure("cut"))


async def test_the_orchestrators_rules_allow_any_gap() -> None:
    """G-120: and no chunks, no request."""
    for places, found in ((GAPS["not the end"], [7, 20]), ([], [])):
        async with before(tokens(*places), LOCKGATE_COMPAT="fms") as (port, _):
            answer = await ask(port, CONTENT, {"content": SAID, "detectors": {"words": {}}})
            assert [one["start"] for one in answer.json()["detections"]] == found


@pytest.mark.parametrize("places", [[(0, 7, "Goodbye")], [(1, 14, FIRST)], [(26, 99, THIRD + "!")], [(-1, 12, FIRST)]])
async def test_of_a_whole_text_chunks_are_what_was_sent(places: Any) -> None:
    async with before(tokens(*places)) as (port, _):
        await check_whole(port, failure("cut"))


# How often a chunker is asked.


async def test_a_chunker_is_asked_once_for_all_its_detectors() -> None:
    """LIM-9."""
    async with before(tokens((0, 31, SAID)), script(ONE, TWO, THREE)) as (port, record):
        three = {"content": SAID, "detectors": {"words": {}, "more": {}, "others": {}, "fine": {}}}
        found = (await ask(port, CONTENT, three)).json()["detections"]
        assert {one["detector_id"] for one in found} == {"words", "more", "others", "fine"}
        assert sorted(one["mm-model-id"] for one in map(dict, record.metadata)) == ["cut", "too"]
        assert (await ask(port, CHAT, chat(False, "words", "more"))).status == 200
        assert record.calls == 3
        ended_well(events_of(await ask(port, CHAT, chat(True, "words", "more", "others"))))
        assert record.calls == 5
        events = ended_well(events_of(await ask(port, CHAT, chat(True, "words", "more", n=2))))
        assert (text_in(events, 0), text_in(events, 1)) == (SAID, SAID)
        assert record.calls == 7  # one stream per choice
        sent = [(one.text_stream, one.input_index_stream) for one in record.received[-6:]]
        assert sorted(sent) == sorted(zip([*PIECES] * 2, [0, 2, 4, 1, 3, 5], strict=True))  # G-140


async def test_a_chunker_is_not_asked_about_nothing() -> None:
    """LIM-12: an empty answer, whole and streamed."""
    async with before(failing_with(grpc.StatusCode.INTERNAL, "no text"), script(grpc.StatusCode.INTERNAL)) as (
        port,
        record,
    ):
        whole = (await ask(port, CHAT, chat(False, "words", prompt="Be quiet"))).json()
        assert whole["warnings"] == [{"type": "EMPTY_OUTPUT", "message": "Choice of index 0 has no content"}]
        events = ended_well(events_of(await ask(port, CHAT, chat(True, "words", "more", prompt="Be quiet"))))
        assert [event["choices"][0]["finish_reason"] for event in events] == ["stop"]
        body = text(True, "words") | {"prompt": "Be quiet"}
        events = ended_well(events_of(await ask(port, TEXT, body)))
        assert [event["choices"][0]["finish_reason"] for event in events] == ["stop"]
        assert record.calls == 0
