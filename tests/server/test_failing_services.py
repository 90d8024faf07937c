# SPDX-License-Identifier: Apache-2.0
"""Each fault of a service on each surface: its status, its name, and whether its words leave (D-36, D-41).

Faults of proxied models, detectors and chunkers without a policy are in test_backend_faults, test_detector_faults and
test_chunker_faults, cell by cell.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest

from tests.contracts.grpc_peers import Context, build_chunker_server, failing_with
from tests.contracts.http_peers import Exchange, Script, break_off, open_peer, reply, reply_json, send_raw, stay_silent
from tests.server.endings import failure
from tests.server.gateways import BASE, GENERIC, ask, chat_body, gateway, sse
from tests.server.policy_house import MAIL, Voice, chat, open_house, post
from tests.server.policy_surfaces import AGGREGATOR, CHAT, SURFACES, Heard, grpc_agent

BOTH = pytest.mark.parametrize("is_stream", [False, True])
PROXIED = ("openai_chat", "openai_text", "guardrails_v1")
LEAKS, CLEAN = f"No credit left for {MAIL}", "No credit left"
HIDING = ("masked", "labelled", "renamed", "stopped", "blocked")
GENERAL = str(GENERIC["details"])
STREAMING: dict[str, Any] = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}
GRPC_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Failing(Voice):
    """A model that fails: over HTTP as the script does, over gRPC with a status."""

    def __init__(self, script: Script, status: int = 500, words: str = LEAKS) -> None:
        super().__init__()
        self._script = script
        self._ends = GRPC_CODES.get(status, grpc.StatusCode.INTERNAL), words

    async def play(self, exchange: Exchange) -> None:
        await self._script(exchange)

    async def generate(self, _message: Any, context: Context) -> Any:
        await context.abort(*self._ends)

    async def generate_stream(self, _message: Any, context: Context) -> AsyncIterator[Any]:
        messages: list[Any] = []
        for message in messages:
            yield message
        await context.abort(*self._ends)


def refuse(status: int, words: str = LEAKS, **error: Any) -> Script:
    """An error response in the form of OpenAI or of Ollama."""

    async def script(exchange: Exchange) -> None:
        told: Any = words if exchange.received.path == "/api/chat" else {"message": words, "type": words, **error}
        body = json.dumps({"error": told}).encode()
        await exchange.answer(body, status, "application/json", "retry-after: 7", "x-words: " + words)

    return script


def begin_and_refuse(words: str = LEAKS) -> Script:
    """A stream that begins well and goes on with an error."""

    async def script(exchange: Exchange) -> None:
        body = exchange.received.json
        if not body.get("stream"):
            await refuse(422, words)(exchange)
            return
        if exchange.received.path == "/api/chat":
            await exchange.start("application/x-ndjson")
            line = json.dumps({"message": {"content": "Hello. "}, "done": False}).encode() + b"\n"
            await exchange.chunk(line, json.dumps({"error": words}).encode() + b"\n")
        else:
            await exchange.start()
            said: dict[str, Any] = {"delta": {"content": "Hello. "}} if "messages" in body else {"text": "Hello. "}
            choice = {"index": 0, **said, "finish_reason": None}
            await exchange.chunk(
                sse({**BASE, "choices": [choice]}), sse({"error": {"message": words, "code": "invalid_value"}})
            )
        await exchange.wait_until_left()

    return script


def expected(surface: str, status: int) -> tuple[int | None, str]:
    """The status (None where the surface's own one says nothing) and the beginning of the text (A-101, B-44)."""
    if surface == "aggregator":
        return 400, "Model generation failed: "
    if surface in PROXIED:
        if surface == "guardrails_v1":
            status = status if status in GRPC_CODES else 502
        told = failure("model", status if status in {400, 422, 429, 503, 504} else 502)
        return told["code"], told["details"]
    if status == 429:
        return 429, "the model refused the request: it gets too many"
    return 503, "the model is not available"


def text_of(heard: Heard) -> str:
    """The text of an error."""
    assert heard.error is not None
    told = json.loads(heard.error)
    texts = [told.get(key) for key in ("message", "details", "error")]
    return next(text for text in texts if isinstance(text, str))


def check(heard: Heard, surface: str, status: int) -> None:
    """One error that names the model, and nothing that only the operator may know."""
    assert heard.error is not None, (surface, heard)
    code, text = expected(surface, status)
    told = json.loads(heard.error)
    assert text_of(heard).startswith(text), (surface, told)
    assert told.get("code", code) == code
    assert GENERAL not in heard.error
    assert "127.0.0.1" not in heard.error


@BOTH
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504])
async def test_a_model_that_refuses_is_named_on_every_surface(status: int, is_stream: bool) -> None:
    async with open_house(Failing(refuse(status), status), **STREAMING) as house:
        for surface, ask_on in SURFACES.items():
            heard = await ask_on(house, "noted", is_stream)
            check(heard, surface, status)
            told = {400, 503} if surface == "guardrails_v1" else {400, 422, 429, 503}
            if surface == "aggregator" or surface in PROXIED:  # the policy changes no text, so it is as without one
                assert (LEAKS in text_of(heard)) == (surface == "aggregator" or status in told)
        assert (await grpc_agent(house, is_stream)).error == (
            "RESOURCE_EXHAUSTED the model refused the request: it gets too many, try again later"
            if status == 429
            else "UNAVAILABLE the model is not available"
        )


BROKEN: dict[str, tuple[Script, int]] = {
    "resets": (break_off, 500),
    "hangs up": (send_raw(b""), 500),
    "breaks off": (send_raw(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"choices":[]'), 500),
    "speaks no HTTP": (send_raw(b"SSH-2.0-OpenSSH\r\n\r\n"), 500),
    "has a page for us": (reply(b"<html>login</html>", kind="text/html"), 500),
    "has a page and a refusal for us": (reply(b"<html>login</html>", 401, kind="text/html"), 401),
    "answers null": (reply(b"null"), 500),
}


@BOTH
@pytest.mark.parametrize("how", BROKEN)
async def test_a_model_that_breaks_down_is_named_on_every_surface(how: str, is_stream: bool) -> None:
    script, status = BROKEN[how]
    async with open_house(Failing(script, status), **STREAMING) as house:
        for surface, ask_on in SURFACES.items():
            check(await ask_on(house, "noted", is_stream), surface, status)


@pytest.mark.parametrize("words", [LEAKS, CLEAN], ids=["leaks", "clean"])
@BOTH
async def test_words_of_a_model_leave_only_if_the_policy_finds_nothing_in_them(is_stream: bool, words: str) -> None:
    """D-36: in responses, and in events of a stream that has begun."""
    for script in (refuse(422, words), refuse(503, words), begin_and_refuse(words)):
        async with open_house(Failing(script, 503, words), **STREAMING) as house:
            asked = [(surface, policy) for surface in SURFACES for policy in HIDING]
            answers = await asyncio.gather(*[SURFACES[one](house, policy, is_stream) for one, policy in asked])
            for (surface, policy), heard in zip(asked, answers, strict=True):
                assert heard.error is not None, (surface, policy)
                assert MAIL.encode() not in heard.body, (surface, policy)
                assert GENERAL not in heard.error
                if surface in (*PROXIED, "aggregator"):
                    assert (CLEAN in heard.error) == (words == CLEAN), (surface, policy, heard.error)


ERRORS: list[Any] = [
    {"error": {"message": LEAKS}},
    {"error": {"message": "no", "type": LEAKS}},
    {"error": {"message": "no", "type": "T", "code": LEAKS}},
    {"error": {"message": "no", "type": "T", "code": 400, "param": LEAKS}},
    {"error": {"message": "no", LEAKS: {"deep": [LEAKS]}}},
    {"error": {"message": {"text": LEAKS}}},
    {"error": LEAKS},
    {"error": [LEAKS]},
    {"errors": [{"message": LEAKS}]},
    {"object": "error", "message": LEAKS, "type": LEAKS, "param": LEAKS, "code": 400},
    {"message": LEAKS},
    {"detail": LEAKS},
    {"detail": [{"loc": [LEAKS], "msg": LEAKS}]},
    LEAKS,
    [LEAKS],
]


@BOTH
@pytest.mark.parametrize("status", [200, 400, 422, 429, 503])
async def test_a_marked_text_at_any_place_of_an_error_stays(status: int, is_stream: bool) -> None:
    """D-36: in the body, the reason and the headers of a response, and in an event of a stream."""
    told: Any = None

    async def refuse_oddly(exchange: Exchange) -> None:
        raw = json.dumps(told).encode()
        if status == 200 and exchange.received.json.get("stream"):
            is_ollama = exchange.received.path == "/api/chat"
            await exchange.start("application/x-ndjson" if is_ollama else "text/event-stream")
            await exchange.chunk(raw + b"\n" if is_ollama else sse(told))
            await exchange.end()
            return
        lines = [
            f"HTTP/1.1 {status} {LEAKS}",
            f"retry-after: {LEAKS}",
            f"x-words: {LEAKS}",
            f"content-length: {len(raw)}",
        ]
        await exchange.send("\r\n".join([*lines, "content-type: application/json", "", ""]).encode() + raw)

    async with open_house(Failing(refuse_oddly), **STREAMING) as house:
        for told in ERRORS:
            asked = [SURFACES[surface](house, "blocked", is_stream) for surface in SURFACES]
            for surface, heard in zip(SURFACES, await asyncio.gather(*asked), strict=True):
                assert heard.error is not None, (surface, told, heard)
                assert MAIL.encode() not in heard.body, (surface, told)


async def test_without_a_detector_that_could_read_them_no_words_leave() -> None:
    """D-36: a policy that only compares, or whose detector fails, reads no words."""
    far = reply_json({"code": 500, "message": LEAKS}, 500)
    async with open_house(Failing(refuse(422, CLEAN)), far) as house:
        heard = await SURFACES["openai_chat"](house, "enforce_fail", False)
        assert json.loads(heard.error or "")["details"] == "`model` refused the request"
        heard = await SURFACES["openai_chat"](house, "shadow_fail", False)
        assert json.loads(heard.error or "")["details"] == f"`model` refused the request: {CLEAN}"


@pytest.mark.parametrize("policy", ["masked", None])
async def test_type_and_code_of_a_refusal_are_kept_from_a_closed_list(policy: str | None) -> None:
    known: dict[str, Any] = {"type": "invalid_request_error", "code": "context_length_exceeded"}
    unknown, general = {"type": LEAKS, "code": LEAKS}, {"type": "invalid_request_error", "code": 400}
    for error, told in ((known, known), (unknown, general)):
        async with open_house(Failing(refuse(400, LEAKS, **error))) as house:
            answer = await post(house.port, CHAT, chat(policy, stream=False))
        assert answer.status == 400
        assert {key: answer.json()["error"][key] for key in ("type", "code")} == told
        assert (LEAKS in answer.body.decode()) == (policy is None)


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        (CHAT, chat("masked", stream=False)),
        (CHAT, chat(None, stream=False)),
        (CHAT, chat(None, model="main", stream=False)),
        (CHAT, chat(None, model="agent/free", stream=False)),
        ("/api/chat", chat(None, model="agent/free", stream=True)),
    ],
)
@pytest.mark.parametrize(("value", "told"), [("7", "7"), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("7; x", None)])
async def test_a_model_that_gets_too_much_says_when_to_ask_again(
    surface: str, body: Mapping[str, Any], value: str, told: str | None
) -> None:
    """D-41: 429, and its `Retry-After` if that is a number."""

    async def script(exchange: Exchange) -> None:
        error = json.dumps({"error": {"message": LEAKS, "type": "rate_limit_error", "code": None}}).encode()
        await exchange.answer(error, 429, "application/json", f"retry-after: {value}")

    async with open_house(Failing(script)) as house:
        answer = await post(house.port, surface, body)
    assert (answer.status, answer.headers.get("retry-after")) == (429, told)


# Sources, detectors and chunkers.


@BOTH
@pytest.mark.parametrize("policy", ["noted", "masked", "blocked"])
@pytest.mark.parametrize("words", [LEAKS, CLEAN], ids=["leaks", "clean"])
async def test_words_of_a_source_leave_only_if_the_policy_finds_nothing_in_them(
    words: str, policy: str, is_stream: bool
) -> None:
    """D-36: `retrieval_info.error_message`; the answer is given."""
    for status, own in ((500, "HTTP 500"), (403, "Access denied")):
        async with open_peer(reply_json({"detail": words}, status)) as space, open_house() as house:
            source = {"url": f"http://127.0.0.1:{space.port}", "slug": "s"}
            body: dict[str, Any] = {
                "prompt": "Hello",
                "model": {"url": "lockgate:", "slug": "alone"},
                "data_sources": [source],
            }
            body["detectors"] = {"policy": policy}
            answer = await post(house.port, AGGREGATOR + "/stream" * is_stream, body)
        assert answer.status == 200
        leaves = policy == "noted" or words == CLEAN
        assert (f"{own}: {words}" in answer.body.decode()) == leaves
        assert own in answer.body.decode()


@BOTH
async def test_words_of_a_detector_of_a_policy_never_leave(is_stream: bool) -> None:
    for status in (401, 422, 500, 503):
        async with open_house(far=reply_json({"code": status, "message": LEAKS}, status), **STREAMING) as house:
            for surface, ask_on in SURFACES.items():
                heard = await ask_on(house, "enforce_fail", is_stream)
                assert text_of(heard) == "The text could not be checked: `far` failed", surface
                assert json.loads(heard.error or "").get("code", 0) in (0, 503 if status == 503 else 502)
                assert MAIL.encode() not in heard.body


@BOTH
async def test_words_of_a_chunker_of_a_policy_never_leave(is_stream: bool) -> None:
    server = build_chunker_server(failing_with(grpc.StatusCode.INTERNAL, LEAKS), _end_with(LEAKS))
    async with open_peer(Voice().play) as model, server.listening() as chunker:
        text = f"""
openai: {{service: {{hostname: 127.0.0.1, port: {model.port}, request_timeout: 600}}}}
chunkers: {{cut: {{type: sentence, service: {{hostname: 127.0.0.1, port: {chunker}}}}}}}
detectors: {{mail: {{embedded: pii, chunker_id: cut}}}}
policies: {{masked: {{output: {{mail: {{}}}}, on_finding: mask}}}}
"""
        async with gateway(text) as port:
            answer = await ask(port, CHAT, chat_body(is_stream, detectors={"policy": "masked"}))
    assert "The text could not be checked: `cut` failed" in answer.body.decode()
    assert MAIL not in answer.body.decode()
    assert is_stream or answer.status == 502


def _end_with(words: str) -> Any:
    async def converse(messages: Any, context: Context) -> AsyncIterator[Any]:
        async for _ in messages:
            await context.abort(grpc.StatusCode.INTERNAL, words)
        yield None

    return converse


# A model that falls silent.


async def test_a_model_that_falls_silent_ends_the_stream_with_504_that_names_it() -> None:
    async def fall_silent(exchange: Exchange) -> None:
        await exchange.start()
        choice = {"index": 0, "delta": {"content": "One. Two"}, "finish_reason": None}
        await exchange.chunk(sse({**BASE, "choices": [choice]}))
        await stay_silent(exchange)

    text = """
openai: {{service: {{hostname: 127.0.0.1, port: {}, request_timeout: 1}}}}
detectors: {{mail: {{embedded: pii, chunker_id: sentence}}}}
"""
    asked: list[dict[str, Any]] = [{}, {"detectors": {"output": {"mail": {}}}}]
    async with open_peer(fall_silent) as model, gateway(text.format(model.port)) as port:
        for named in asked:
            body = (await ask(port, CHAT, chat_body(stream=True, **named))).body.decode()
            assert json.dumps(failure("model", 504), separators=(",", ":"))[1:-1] in body
            assert "One. " in body
