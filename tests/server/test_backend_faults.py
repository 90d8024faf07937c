# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server that misbehaves, seen through the gateway (G-32, G-34, G-138, G-139, G-164, G-165)."""

import asyncio
import json
from typing import Any

import pytest

from tests.contracts.http_peers import (
    Exchange,
    Script,
    break_off,
    open_closed_port,
    reply,
    reply_json,
    send_raw,
    stay_silent,
    stream,
)
from tests.server.backend_peers import (
    FIRST,
    MODES,
    STATUSES,
    THREE,
    ask_all,
    before,
    case_of,
    check,
    complete,
    config,
    piece,
    request,
    said,
    speak,
)
from tests.server.endings import ended_badly, ended_well, error_of, failure, failure_after
from tests.server.gateways import CHAT, GENERIC, GROWING_S, TEXT, ask, chunk, events_of, gateway, listen, sse, text_in
from tests.server.http_client import Answer
from tests.waits import until

# Before the answer begins.


@pytest.mark.parametrize("status", STATUSES)
async def test_a_refusal_has_a_status_that_tells_who_is_at_fault_and_the_servers_words(status: int) -> None:
    """D-41: the HTTP status counts, not the code in the body, which may be a number, a string or null."""
    error = {"message": "too hot", "type": "T", "param": None, "code": 418}
    forms: list[tuple[Any, str]] = [
        ({"error": error}, "too hot"),
        ({"object": "error", **error}, "too hot"),
        ({"error": error | {"code": "x"}}, "too hot"),
        ({"error": error | {"code": None}}, "too hot"),
        ({"error": "too hot"}, "too hot"),
        ({"detail": "x"}, "x"),
        (None, ""),
    ]
    async with before(break_off) as (port, peer):
        for body, words in forms:
            peer.script = reply(b"", status) if body is None else reply_json(body, status)
            for is_stream in (False, True):
                for _, _, answer in await ask_all(port, is_stream=is_stream, modes=THREE):
                    check(answer, failure_after("model", status, words), is_stream)
    assert len(peer.received) == len(forms) * 2 * 2 * len(THREE)  # never asked twice


BROKEN: dict[str, Script] = {
    "resets": break_off,
    "is silent": stay_silent,
    "hangs up": send_raw(b""),
    "breaks off in its head": send_raw(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "speaks no HTTP": send_raw(b"SSH-2.0-OpenSSH\r\n\r\n"),
    "breaks off in its body": send_raw(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"choices":[]'),
    "has a page for us": reply(b"<html>busy</html>", kind="text/html"),
    "answers nothing": reply(b""),
    "answers null": reply(b"null"),
    "answers a list": reply(b"[]"),
    "has no choices": reply_json({"id": "c1", "choices": None}),
    "creates": reply_json({"id": "c1", "choices": []}, 201),
    "has half a text": reply(b'{"choices":[{"index":0,"message":{"content":"a'),
    "has a lone surrogate": reply(b'{"choices":[{"index":0,"message":{"content":"\\ud800"},"text":"\\ud800"}]}'),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_server_that_breaks_down_before_it_answers_is_named_by_one_error(how: str) -> None:
    """D-41."""
    is_silent = how == "is silent"
    async with before(BROKEN[how], patience=1 if is_silent else 600) as (port, peer):
        whole, streamed = await asyncio.gather(ask_all(port, is_stream=False), ask_all(port, is_stream=True))
    for is_stream, answers in ((False, whole), (True, streamed)):
        for _, _, answer in answers:
            check(answer, failure("model", 504 if is_silent else 502), is_stream)
    assert len(peer.received) <= 2 * 2 * len(MODES)
    assert is_silent or len(peer.received) == 2 * 2 * len(MODES)


async def test_a_server_that_is_not_there_is_named_by_one_error() -> None:
    async with open_closed_port() as nobody, gateway(config(nobody.port or 0)) as port:
        for is_stream in (False, True):
            for _, _, answer in await ask_all(port, is_stream=is_stream):
                check(answer, failure("model", 503), is_stream)


@pytest.mark.parametrize(
    "choice",
    [
        5,
        {"index": 0},
        {"index": 0, "message": None, "text": None},
        {"index": 0, "message": "hello", "text": {"a": 1}},
        {"index": 0, "message": {"role": "assistant", "content": 7}, "text": 7},
        {"index": 0, "message": {"role": "assistant", "content": {"text": "done"}}, "text": ["done"]},
    ],
)
async def test_a_whole_answer_without_a_text_to_read_never_leaves(choice: Any) -> None:
    """G-34, G-95, G-97."""
    async with before(reply_json({"id": "c1", "choices": [choice]})) as (port, _):
        for _, _, answer in await ask_all(port, is_stream=False):
            check(answer, failure("model"), False)


@pytest.mark.parametrize("role", [["assistant"], {"a": 1}, 5, None])
async def test_a_role_of_any_type_is_no_reason_not_to_read(role: Any) -> None:
    message = {"role": role, "content": "All done."}
    async with before(reply_json({"id": "c1", "choices": [{"index": 0, "message": message}]})) as (port, _):
        got = (await ask(port, *case_of(CHAT, "chunked", False))).json()
        assert [one["text"] for one in got["detections"]["output"][0]["results"]] == ["done"]
    async with before(stream(sse(chunk(role=role), chunk("All done."), "[DONE]"))) as (port, _):
        events = ended_well(events_of(await ask(port, *case_of(CHAT, "both", True))))
        assert [one["text"] for one in events[0]["detections"]["output"][0]["results"]] == ["done"]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (reply_json({"error": {"message": "no", "type": "T", "code": 1}}, 404), (404, "no")),
        (reply(b"", 503), (503, "unknown error occurred")),
        (reply_json({"count": -1}), (500, "")),
        (break_off, (408, "")),
    ],
)
async def test_under_fms_a_count_that_fails_fails_the_request(script: Script, error: tuple[int, str]) -> None:
    """G-88, G-137: what was found in the prompt is not told."""
    expected = error_of(error[0], f"tokenize request failed for `m`: {error[1]}")
    async with before(script, LOCKGATE_COMPAT="fms") as (port, peer):
        for path in (CHAT, TEXT):
            for is_stream in (False, True):
                body = request(path, "plain", is_stream=is_stream)
                body["detectors"] = {"input": {"words": {}}, "output": {"words": {}}}
                if path == CHAT:
                    body["messages"] = [{"role": "user", "content": "Be done."}]
                check(await ask(port, path, body | {"prompt": "Be done."}), expected, is_stream)
    assert {one.path for one in peer.received} == {"/tokenize"}


@pytest.mark.parametrize("script", [reply(b"", 503), reply_json({"tokens": [1]}), break_off])
async def test_a_count_that_fails_is_0_and_the_answer_is_given(script: Script) -> None:
    """D-37."""
    async with before(script) as (port, _):
        for path in (CHAT, TEXT):
            for is_stream in (False, True):
                body = request(path, "plain", is_stream=is_stream) | {"detectors": {"input": {"words": {}}}}
                if path == CHAT:
                    body["messages"] = [{"role": "user", "content": "Be done."}]
                answer = await ask(port, path, body | {"prompt": "Be done."})
                told = ended_well(events_of(answer))[0] if is_stream else answer.json()
                assert told["usage"]["prompt_tokens"] == 0
                assert [one["text"] for one in told["detections"]["input"][0]["results"]] == ["done"]


# Inside of a stream.


@pytest.mark.parametrize("code", [*STATUSES, "late", None])
async def test_an_error_in_a_stream_is_its_last_word(code: int | str | None) -> None:
    """G-164, G-165, D-41: what was complete leaves first; what the server says later does not count."""
    error = {"message": "too hot", "type": "T", "code": code}
    expected = failure_after("model", code if isinstance(code, int) else 500, "too hot")
    async with before(break_off) as (port, peer):
        for event in ({"error": error}, {"object": "error", **error}):
            for texts in ([], [FIRST, "Two"]):
                peer.script = speak(*texts, then=sse(event, chunk("never"), event, "[DONE]"))
                for path, mode, answer in await ask_all(port, is_stream=True, modes=THREE):
                    rest = ended_badly(events_of(answer), expected)
                    assert said(path, rest) == (complete(mode) if texts else "")


@pytest.mark.parametrize("compat", ["none", "fms"])
@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_stream_that_breaks_off_ends_with_one_error_behind_what_was_complete(
    is_reset: bool, compat: str
) -> None:
    """G-165. The server breaks off when everybody has heard what was complete."""
    cases = [(path, mode) for path in (CHAT, TEXT) for mode in MODES]
    heard: set[tuple[str, str]] = set()
    is_heard = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        path = CHAT if "chat" in exchange.received.path else TEXT
        await exchange.start()
        await exchange.chunk(sse(piece(path, FIRST), piece(path, "Two")), sse(piece(path, " is"))[:-7])
        await is_heard.wait()
        if is_reset:
            exchange.reset()
        else:
            exchange.hang_up()

    async def ask_one(port: int, path: str, mode: str) -> Answer:
        def hear(answer: Answer) -> None:
            if not is_heard.is_set() and said(path, events_of(answer)) == complete(mode):
                heard.add((path, mode))
                if len(heard) == len(cases):
                    is_heard.set()

        return await listen(port, *case_of(path, mode, True), hear)

    async with before(script, LOCKGATE_COMPAT=compat) as (port, _):
        answers = await asyncio.gather(*[ask_one(port, *case) for case in cases])
    for (path, mode), answer in zip(cases, answers, strict=True):
        expected = GENERIC if compat == "fms" else failure("model")
        assert said(path, ended_badly(events_of(answer), expected)) == complete(mode)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"null",
        b'"hello"',
        b"[1]",
        b'{"choices":null}',
        b'{"id":"c1"}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ud800"},"text":"\\ud800"}]}',
        b"x" * 5_000_000,
        json.dumps(chunk("y" * 5_000_000)).encode(),
    ],
    ids=["cut", "null", "text", "list", "no list", "no choices", "surrogate", "huge", "huge message"],
)
async def test_an_event_that_is_no_message_is_an_error_behind_what_was_complete(data: bytes) -> None:
    """G-139."""
    then = b"data: " + data + b"\n\n" + sse(chunk("never"), "[DONE]")
    async with before(speak(FIRST, "Two", then=then)) as (port, _):
        for path, mode, answer in await ask_all(port, is_stream=True):
            assert said(path, ended_badly(events_of(answer), failure("model"))) == complete(mode)


@pytest.mark.parametrize(
    "choice",
    [
        5,
        {"index": -1, "delta": {"content": "x"}, "text": "x"},
        {"index": None, "delta": {"content": "x"}, "text": "x"},
        {"index": "0", "delta": {"content": "x"}, "text": "x"},
        {"index": [0], "delta": {"content": "x"}, "text": "x"},
        {"index": 0, "delta": {"content": 5}, "text": 5},
        {"index": 0, "delta": {"content": ["x"]}, "text": ["x"]},
        {"index": 0, "delta": {"content": {"text": "x"}}, "text": {"text": "x"}},
        {"index": 0, "delta": "x", "text": 7},
        {"index": 0, "delta": ["x"], "text": 7},
    ],
    ids=repr,
)
async def test_a_choice_that_cannot_be_read_ends_a_stream_that_is_read(choice: Any) -> None:
    """What nobody reads is passed on as it came (G-99); where somebody reads, nothing leaves unread."""
    async with before(speak(FIRST, "Two", then=sse({**chunk(), "choices": [choice]}, "[DONE]"))) as (port, _):
        for path, mode, answer in await ask_all(port, is_stream=True):
            events = events_of(answer)
            if mode == "plain":
                assert ended_well(events)[-1]["choices"] == [choice]
            else:
                assert said(path, ended_badly(events, failure("model"))) == complete(mode)


@pytest.mark.parametrize(
    "odd",
    [
        {"index": 0, "delta": None, "text": None},
        {"index": 0, "text": ""},
        {"delta": {}, "text": ""},
        {"index": 0, "delta": {"content": None, "tool_calls": None, "refusal": None}, "text": "", "logprobs": 5},
        {"index": 0, "delta": {"content": "", "tool_calls": []}, "text": "", "logprobs": {"content": None}},
        {"index": 0, "delta": {"tool_calls": 5, "reasoning_content": 5, "refusal": 5}, "text": ""},
    ],
    ids=repr,
)
async def test_a_choice_that_says_nothing_is_no_fault(odd: dict[str, Any]) -> None:
    then = sse({**chunk(), "choices": [odd]}, {**chunk(), "choices": []}, "[DONE]")
    async with before(speak(FIRST, then=then)) as (port, _):
        for path, _, answer in await ask_all(port, is_stream=True):
            assert said(path, ended_well(events_of(answer))) == FIRST


@pytest.mark.parametrize(
    "calls",
    [
        ["x"],
        [None],
        [{"index": [], "function": {"arguments": "a"}}],
        [{"index": "1", "function": {"arguments": "a"}}, {"index": 0, "function": {"arguments": "b"}}],
        [{"index": 0, "function": {"name": 5, "arguments": {"a": 1}}}],
        [{"index": 0, "id": 5, "type": [], "function": "f", "custom": {"input": 7}}],
    ],
    ids=repr,
)
async def test_tool_calls_of_any_shape_pass_and_break_nothing(calls: list[Any]) -> None:
    """D-5, D-6."""
    script = stream(sse(chunk(FIRST), chunk(tool_calls=calls), chunk(finish="tool_calls"), "[DONE]"))
    async with before(script) as (port, _):
        for mode in MODES:
            events = ended_well(events_of(await ask(port, *case_of(CHAT, mode, True))))
            deltas = [choice["delta"] for event in events for choice in event["choices"]]
            assert [delta["tool_calls"] for delta in deltas if "tool_calls" in delta] == [calls]


# What is odd and allowed.


@pytest.mark.parametrize("cuts", [11, 64])
async def test_how_the_bytes_are_cut_makes_no_difference(cuts: int) -> None:
    text = "Ünë 😀 is\u2028done. Zwei"
    tail = b": ping\r\n\r\nevent: x\rdata: " + json.dumps(chunk(finish="stop")).encode() + b"\r\n\n" + sse("[DONE]")
    async with before(speak(text, then=tail, cuts=cuts)) as (port, _):
        for path, mode, answer in await ask_all(port, is_stream=True):
            if path == CHAT:
                assert said(path, ended_well(events_of(answer))) == text, mode


async def test_characters_that_are_cut_by_packets_are_whole_again() -> None:
    raw = "data: " + json.dumps(chunk("😀 is done."), ensure_ascii=False) + "\n\n"
    body = raw.encode()
    at = body.index("😀".encode()) + 2
    async with before(stream(body[:at], body[at:], sse("[DONE]"))) as (port, _):
        for mode in MODES:
            events = ended_well(events_of(await ask(port, *case_of(CHAT, mode, True))))
            assert text_in(events) == "😀 is done."


async def test_a_stream_may_end_without_its_mark() -> None:
    """G-139."""
    async with before(speak(FIRST, "Two")) as (port, _):
        for path, _, answer in await ask_all(port, is_stream=True):
            assert said(path, ended_well(events_of(answer))) == FIRST + "Two"


async def test_choices_that_nobody_asked_for_are_read_too() -> None:
    """G-157: n is 1."""
    script = stream(sse(chunk("One is done."), chunk("Three is done.", 3), chunk(finish="stop", index=3), "[DONE]"))
    async with before(script) as (port, _):
        for mode in MODES:
            events = ended_well(events_of(await ask(port, *case_of(CHAT, mode, True))))
            assert text_in(events, 3) == "Three is done."
            entries = [one for event in events for one in event.get("detections", {}).get("output", ())]
            found = {one["choice_index"] for one in entries if one["results"]}
            assert found == (set() if mode == "plain" else {0, 3})


async def test_a_model_may_think_and_speak_in_turn_as_often_as_it_likes() -> None:
    """D-7: every turn is a text of its own, and only those that are under way count: here a few."""
    heard, may_speak = 0, asyncio.Semaphore(10)

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for number in range(150):
            await may_speak.acquire()
            await exchange.chunk(sse(chunk(reasoning_content=f"{number}? "), chunk(f"{number}. ")))
        await exchange.chunk(sse("[DONE]"))
        await exchange.end()

    def hear(answer: Answer) -> None:
        nonlocal heard
        while heard < text_in(events_of(answer)).count("."):
            heard += 1
            may_speak.release()

    async with before(script) as (port, _):
        events = ended_well(events_of(await listen(port, *case_of(CHAT, "chunked", True), hear)))
    assert text_in(events) == "".join(f"{number}. " for number in range(150))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(one.get("reasoning_content", "") for one in deltas) == "".join(
        f"{number}? " for number in range(150)
    )


USAGE = {"prompt_tokens": 1, "total_tokens": 3, "completion_tokens": 2}


@pytest.mark.parametrize("place", ["first", "only", "last"])
async def test_usage_leaves_once_wherever_it_comes(place: str) -> None:
    """G-161, LIM-13, LIM-23."""
    usage = {"object": "x", "choices": [], "usage": USAGE} | ({"id": "c1"} if place == "last" else {})
    body = {"first": sse(usage, chunk(FIRST)), "only": sse(usage), "last": sse(chunk(FIRST), usage)}[place]
    async with before(stream(body + sse("[DONE]"))) as (port, _):
        for mode in MODES:
            events = ended_well(events_of(await ask(port, *case_of(CHAT, mode, True))))
            assert [event["usage"] for event in events if event.get("usage")] == [USAGE]
            assert text_in(events) == ("" if place == "only" else FIRST)
            if mode != "plain":
                last = events[-1]
                assert last["object"] == "chat.completion.chunk"
                assert isinstance(last["id"], str)
                assert (last["choices"], last["model"]) == ([], "m")


async def test_logprobs_of_tokens_that_are_no_whole_character_leave_with_it() -> None:
    """D-29: the message of such a token has no text."""

    def token(path: str, text: str, *names: str) -> dict[str, Any]:
        message = piece(path, text)
        of_text = {"tokens": list(names), "token_logprobs": [-1.0] * len(names)}
        logprobs = {"content": [{"token": name} for name in names]} if path == CHAT else of_text
        message["choices"][0]["logprobs"] = logprobs
        return message

    async def script(exchange: Exchange) -> None:
        path = CHAT if "chat" in exchange.received.path else TEXT
        said = [token(path, "Tea", "Tea"), token(path, "", "half"), token(path, "😀", "rest"), token(path, "", "end")]
        await stream(sse(*said, piece(path, finish="stop"), "[DONE]"))(exchange)

    async with before(script) as (port, _):
        for path, mode, answer in await ask_all(port, is_stream=True):
            choices = [choice for event in ended_well(events_of(answer)) for choice in event["choices"]]
            told = [choice["logprobs"] or {} for choice in choices if choice.get("logprobs")]
            names = [name for one in told for name in one.get("tokens") or [each["token"] for each in one["content"]]]
            assert names == ["Tea", "half", "rest", "end"], (path, mode)


async def test_a_stream_of_nothing_is_its_end_alone() -> None:
    """LIM-12: no chunk, no finish, no error."""
    async with before(stream(sse("[DONE]"))) as (port, _):
        for _, mode, answer in await ask_all(port, is_stream=True):
            events = ended_well(events_of(answer))
            assert [event["choices"] for event in events] == ([] if mode in ("plain", "chunked") else [[]])


# Limits.


@pytest.mark.parametrize("mode", ["chunked", "whole"])
async def test_more_text_than_may_be_held_is_an_error_and_stays(mode: str) -> None:
    async with before(speak(FIRST, "x" * 80, "y" * 80, then=sse("[DONE]")), "limits: {max_held_chars: 100}") as (
        port,
        _,
    ):
        for path in (CHAT, TEXT):
            answer = await ask(port, *case_of(path, mode, True))
            rest = ended_badly(
                events_of(answer), {"code": 413, "details": "more than 100 characters wait for a detector"}
            )
            assert ("x" in said(path, rest)) == (mode == "whole")  # which holds nothing


@pytest.mark.parametrize("compat", ["none", "fms"])
async def test_a_request_that_takes_too_long_ends_with_504_and_closes_the_model(compat: str) -> None:
    """D-30."""
    left: list[str] = []

    async def script(exchange: Exchange) -> None:
        try:
            if exchange.received.json["stream"]:
                await exchange.start()
                await exchange.chunk(sse(piece(CHAT if "chat" in exchange.received.path else TEXT, FIRST + "Two")))
            await exchange.wait_until_left()
        finally:
            left.append(exchange.received.path)

    late = {"code": 504, "details": "request timed out"}
    for timeout_s in GROWING_S:
        left.clear()
        limits = f"limits: {{request_timeout_s: {timeout_s}}}"
        async with before(script, limits, LOCKGATE_COMPAT=compat) as (port, peer):
            whole, streamed = await asyncio.gather(ask_all(port, is_stream=False), ask_all(port, is_stream=True))
            for _, _, answer in whole:
                check(answer, late, False)
            texts = [said(path, ended_badly(events_of(answer), late)) for path, _, answer in streamed]
            await until(lambda: len(left) == len(peer.received), "the end of the model's answers")
        if texts == [complete(mode) for _, mode, _ in streamed] and len(left) == len(whole) + len(streamed):
            return
    raise AssertionError(f"{left} were left behind {texts}")


async def test_a_body_that_is_too_large_never_reaches_the_model() -> None:
    """G-27: an HTTP error on streams too."""
    async with before(reply_json({}), "limits: {body_bytes: 500}") as (port, peer):
        for path in (CHAT, TEXT):
            for is_stream in (False, True):
                body = request(path, "chunked", is_stream=is_stream) | {"user": "u" * 500}
                answer = await ask(port, path, body)
                assert answer.status == 413
                assert answer.json()["details"] == "Failed to buffer the request body: length limit exceeded"
        assert peer.received == []
