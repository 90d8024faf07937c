# SPDX-License-Identifier: Apache-2.0
"""What upstreams answer: valid answers with many fields, and failures, by the format of each upstream."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.coverage_law.planting import MARK, Planted, plant_everywhere
from tests.coverage_law.requests import CALL, DOCUMENTS, RequestSurface
from tests.coverage_law.world import ModelReply, World

_TOKEN = {"token": "Two", "logprob": -0.1, "bytes": [84, 119, 111]}
_LOGPROBS = {"content": [{**_TOKEN, "top_logprobs": [_TOKEN]}], "refusal": None}
_USAGE = {
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "total_tokens": 3,
    "completion_tokens_details": {"reasoning_tokens": 1},
}
_HEAD = {"id": "c1", "created": 1, "model": "m", "system_fingerprint": "fp", "service_tier": "default"}
_MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": "Two books.",
    "reasoning_content": "I count.",
    "refusal": None,
    "tool_calls": [CALL],
    "annotations": [
        {"type": "url_citation", "url_citation": {"url": "https://example.org", "title": "A", "start_index": 0}}
    ],
    "audio": {"id": "a1", "transcript": "Two.", "data": "AAAA", "expires_at": 1},
}
WHOLE_CHAT: dict[str, Any] = {
    **_HEAD,
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": _MESSAGE, "logprobs": _LOGPROBS, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": None, "refusal": "No."}, "finish_reason": "stop"},
    ],
    "usage": _USAGE,
    "prompt_logprobs": None,
}
_TEXT_LOGPROBS = {"tokens": ["Two"], "token_logprobs": [-0.1], "top_logprobs": [{"Two": -0.1}], "text_offset": [0]}
WHOLE_TEXT: dict[str, Any] = {
    **_HEAD,
    "object": "text_completion",
    "choices": [
        {"index": 0, "text": "Two books.", "logprobs": _TEXT_LOGPROBS, "finish_reason": "stop", "stop_reason": None}
    ],
    "usage": _USAGE,
}


def _choose(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def _call(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


CHAT_EVENTS: list[dict[str, Any]] = [
    _choose({"role": "assistant", "content": ""}),
    _choose({"reasoning_content": "I count."}),
    _choose({"content": "Two "}, logprobs=_LOGPROBS),
    _choose({"content": "books. "}),
    _choose(
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}
            ]
        }
    ),
    _choose(_call(arguments='{"title": ')),
    _choose(_call(arguments='"a"}')),
    _choose({}, finish_reason="tool_calls", stop_reason=None),
    {**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE},
]
TEXT_EVENTS: list[dict[str, Any]] = [
    {
        **_HEAD,
        "object": "text_completion",
        "choices": [{"index": 0, "text": one, "logprobs": _TEXT_LOGPROBS, "finish_reason": end}],
    }
    for one, end in (("Two ", None), ("books.", None), ("", "stop"))
]
_LINE = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
OLLAMA_LINES: list[dict[str, Any]] = [
    {**_LINE, "message": {"role": "assistant", "content": "Two ", "thinking": "I count."}, "done": False},
    {
        **_LINE,
        "message": {
            "role": "assistant",
            "content": "books.",
            "tool_calls": [{"function": {"name": "find", "arguments": {"a": "b"}}}],
        },
        "done": False,
    },
    {
        **_LINE,
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "eval_count": 2,
        "context": [1],
    },
]
ERROR = {"error": {"message": "Too long.", "type": "invalid_request_error", "param": "messages", "code": None}}
_STATUSES = (400, 401, 403, 404, 413, 422, 429, 500, 502, 503)
_SSE, _NDJSON = "text/event-stream", "application/x-ndjson"


class ReplyCase(NamedTuple):
    """One answer of the upstreams with the mark in it."""

    place: str
    prepare: Callable[[World], None]


def _reply(place: str, reply: ModelReply) -> ReplyCase:
    def prepare(world: World) -> None:
        world.reply = reply

    return ReplyCase(place, prepare)


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _encode_events(events: Sequence[Any]) -> bytes:
    return b"".join([b"data: %b\n\n" % _encode(one) for one in events]) + b"data: [DONE]\n\n"


def build_stream(events: Sequence[Any]) -> ModelReply:
    """A stream of these events."""
    return ModelReply(kind=_SSE, packets=[_encode_events(events)])


def _encode_lines(lines: Sequence[Any]) -> bytes:
    return b"".join([_encode(one) + b"\n" for one in lines])


def _list_replaced(values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The values with one of them marked."""
    for at, value in enumerate(values):
        for planted in plant_everywhere(value):
            yield f"{at}: {planted.place}", [*values[:at], planted.value, *values[at + 1 :]]
        yield f"after {at}", [*values[: at + 1], {"note": MARK}, *values[at + 1 :]]


_REPORTS: tuple[dict[str, Any], ...] = (
    {"detections": {"output": [{"choice_index": 0, "results": [{"text": MARK}]}]}},
    {"warnings": [{"type": "NOTE", "message": MARK}]},
    {"receipt": {"policy": MARK}},
)


def list_openai_wholes(whole: dict[str, Any]) -> Iterator[ReplyCase]:
    """Whole answers."""
    for report in _REPORTS:
        yield _reply(f"report {list(report)}", ModelReply(_encode({**whole, **report})))
    yield from (_reply(one.place, ModelReply(_encode(one.value))) for one in plant_everywhere(whole))
    yield from list_failures(ERROR)


def list_openai_streams(events: Sequence[dict[str, Any]]) -> Iterator[ReplyCase]:
    """Streams of events, and streams that fail."""
    for report in _REPORTS:
        for at in range(len(events)):
            marked = [*events[:at], {**events[at], **report}, *events[at + 1 :]]
            yield _reply(f"report {list(report)} in {at}", ModelReply(kind=_SSE, packets=[_encode_events(marked)]))
    for place, marked in _list_replaced(events):
        yield _reply(place, ModelReply(kind=_SSE, packets=[_encode_events(marked)]))
    plain = _encode_events(events)
    for name, line in (
        ("comment", f": {MARK}\n\n"),
        ("event", f"event: {MARK}\ndata: {{}}\n\n"),
        ("id", f"id: {MARK}\n"),
    ):
        for where, packets in (
            ("before", [line.encode(), plain]),
            ("within", [plain[:-14], line.encode(), plain[-14:]]),
        ):
            yield _reply(f"{name} {where}", ModelReply(kind=_SSE, packets=packets))
    for one in plant_everywhere(ERROR):
        for name, head in (("error event", b"event: error\n"), ("error data", b"")):
            failure = b"%bdata: %b\n\n" % (head, _encode(one.value))
            yield _reply(f"{name} {one.place}", ModelReply(kind=_SSE, packets=[plain[:-14], failure]))
            yield _reply(f"first {name} {one.place}", ModelReply(kind=_SSE, packets=[failure]))
    yield _reply("no JSON", ModelReply(kind=_SSE, packets=[f"data: {MARK}\n\n".encode()]))
    yield from list_failures(ERROR)


def list_failures(error: dict[str, Any]) -> Iterator[ReplyCase]:
    """Errors of a model before its answer: bodies of JSON and of text, headers."""
    for status in _STATUSES:
        for one in plant_everywhere(error):
            yield _reply(f"{status} {one.place}", ModelReply(_encode(one.value), status))
        yield _reply(f"{status} text", ModelReply(f"Sorry, {MARK}.".encode(), status, "text/plain"))
        page = f"<html><title>{MARK}</title></html>".encode()
        yield _reply(f"{status} page", ModelReply(page, status, "text/html"))
        yield _reply(
            f"{status} header", ModelReply(_encode(error), status, headers=[f"retry-after: {MARK}", f"x-a: {MARK}"])
        )
    yield _reply("a page", ModelReply(f"<html>{MARK}</html>".encode(), 200, "text/html"))


def list_ollama(*, is_stream: bool) -> Iterator[ReplyCase]:
    """Answers of Ollama."""
    if is_stream:
        for place, marked in _list_replaced(OLLAMA_LINES):
            yield _reply(place, ModelReply(kind=_NDJSON, packets=[_encode_lines(marked)]))
        yield _reply(
            "error line", ModelReply(kind=_NDJSON, packets=[_encode_lines([OLLAMA_LINES[0], {"error": MARK}])])
        )
    else:
        whole = {**OLLAMA_LINES[2], "message": {**OLLAMA_LINES[0]["message"], "tool_calls": []}}
        yield from (_reply(one.place, ModelReply(_encode(one.value))) for one in plant_everywhere(whole))
    yield from list_failures({"error": "Too long."})


def list_generations(*, is_stream: bool) -> Iterator[ReplyCase]:
    """Answers of caikit."""

    def prepare(value: Any) -> Callable[[World], None]:
        def set_generated(world: World) -> None:
            world.generated = [value] if is_stream else value

        return set_generated

    token, text = nlp.GeneratedToken(text=MARK, logprob=-0.1), "Two books."
    found: dict[str, Any]
    if is_stream:
        found = {
            "text": nlp.GeneratedTextStreamResult(generated_text=f"A {MARK}."),
            "tokens": nlp.GeneratedTextStreamResult(generated_text=text, tokens=[token]),
            "input_tokens": nlp.GeneratedTextStreamResult(generated_text=text, input_tokens=[token]),
        }
    else:
        found = {
            "text": nlp.GeneratedTextResult(generated_text=f"A {MARK}."),
            "tokens": nlp.GeneratedTextResult(generated_text=text, tokens=[token]),
            "input_tokens": nlp.GeneratedTextResult(generated_text=text, input_tokens=[token]),
        }
    yield from (ReplyCase(place, prepare(value)) for place, value in found.items())


def list_source_replies() -> Iterator[ReplyCase]:
    """Answers of a data source; a model answers with what its prompt has."""

    def prepare(value: Any, status: int) -> Callable[[World], None]:
        def set_documents(world: World) -> None:
            world.documents, world.source_status = value, status

        return set_documents

    for one in plant_everywhere(DOCUMENTS):
        yield ReplyCase(f"source {one.place}", prepare(one.value, 200))
    for status in _STATUSES:
        yield ReplyCase(
            f"source {status}", prepare({"detail": f"Sorry, {MARK}.", "error": MARK, "message": MARK}, status)
        )


def list_cases(surface: RequestSurface) -> Iterator[ReplyCase]:
    """The answers that the upstreams of a surface give."""
    is_stream = surface.name.endswith("/stream")
    if surface.name.startswith("v1/"):
        yield from list_generations(is_stream=is_stream)
    elif surface.name.startswith("ollama"):
        yield from list_ollama(is_stream=is_stream)
    elif surface.name.startswith("agent"):
        yield from list_ollama(is_stream=True)
        yield from list_source_replies()
    elif surface.name.startswith("aggregator"):
        yield from list_openai_streams(CHAT_EVENTS) if is_stream else list_openai_wholes(WHOLE_CHAT)
        yield from list_source_replies()
    elif "chat" in surface.path or surface.name.startswith("model"):
        yield from list_openai_streams(CHAT_EVENTS) if is_stream else list_openai_wholes(WHOLE_CHAT)
    else:
        yield from list_openai_streams(TEXT_EVENTS) if is_stream else list_openai_wholes(WHOLE_TEXT)


def list_findings() -> Iterator[Planted]:
    """Findings of a remote detector with the mark in their own strings."""
    finding = {"detection": "Name", "detection_type": "pii", "score": 0.9, "metadata": {"a": "b"}, "evidences": []}
    yield from plant_everywhere(finding)
