# SPDX-License-Identifier: Apache-2.0
"""The surfaces by what a caller sends: a valid body with many fields, and the path of each."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from lockgate.protos import caikit_data_model_nlp_pb2 as nlp
from tests.coverage_law.planting import MARK
from tests.coverage_law.world import ModelReply, World

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds a book.",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string", "description": "The title.", "enum": ["a", "b"]}},
            "required": ["title"],
        },
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"title": "a", "pages": 12}'}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind.", "name": "desk"},
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Which book?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
    {"role": "tool", "tool_call_id": "call_1", "content": "Found two."},
    {"role": "assistant", "content": "Two.", "reasoning_content": "I count."},
    {"role": "user", "content": [{"type": "text", "text": "And then?"}, {"type": "text", "text": "Tell me."}]},
]
_COMMON: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 1,
    "seed": 7,
    "stop": ["END", "STOP"],
    "max_tokens": 50,
    "user": "u-1",
    "metadata": {"team": "a"},
}
CHAT: dict[str, Any] = {
    **_COMMON,
    "model": "m",
    "messages": MESSAGES,
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "book", "schema": {"type": "object"}}},
    "prediction": {"type": "content", "content": "A book."},
    "logit_bias": {"50256": -100},
    "reasoning_effort": "low",
    "service_tier": "auto",
}
OLLAMA: dict[str, Any] = {
    "model": "ollama",
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Which book?"}],
    "options": {"temperature": 0.5, "stop": ["END"]},
    "keep_alive": "5m",
}
GENERATE: dict[str, Any] = {"model": "ollama", "prompt": "Which book?", "system": "Be kind.", "options": {"seed": 1}}
V1: dict[str, Any] = {
    "model_id": "m",
    "inputs": "Which book?",
    "text_gen_parameters": {"max_new_tokens": 5, "decoding_method": "GREEDY", "stop_sequences": ["END"]},
}
AGGREGATOR: dict[str, Any] = {
    "prompt": "Which book?",
    "model": {"url": "lockgate:", "slug": "configured", "name": "Model"},
    "data_sources": [{"url": "lockgate:", "slug": "docs", "name": "Docs", "tenant_name": "t"}],
    "custom_system_prompt": "Be kind.",
    "messages": [{"role": "user", "content": "Hello."}],
    "top_k": 3,
}
DOCUMENTS = {
    "summary": None,
    "references": {"documents": [{"content": "Two books.", "metadata": {"title": "Books"}, "similarity_score": 0.9}]},
}


class RequestSurface(NamedTuple):
    """One way to ask a model: the path, and a valid body without the policy. `names` says how a request names it."""

    name: str
    path: str
    body: dict[str, Any]
    names: str = "detectors"


def _both(name: str, path: str, body: dict[str, Any], names: str = "detectors") -> Iterator[RequestSurface]:
    yield RequestSurface(f"{name}/whole", path, {**body, "stream": False}, names)
    yield RequestSurface(f"{name}/stream", path, {**body, "stream": True}, names)


_CHATS, _TEXTS = "/v1/chat/completions", "/v1/completions"
_PLAIN: dict[str, Any] = {**_COMMON, "model": "m", "prompt": "Which book?"}
_LISTED: dict[str, Any] = {**_PLAIN, "prompt": ["Which book?", "And then?"], "suffix": "The end."}
_V1 = "/api/v1/task/classification-with-text-generation"
_V1_STREAM = "/api/v1/task/server-streaming-classification-with-text-generation"
_QUESTION: dict[str, Any] = {"model": "agent/", "messages": [{"role": "user", "content": "Which book?"}], "user": "u"}
REQUEST_SURFACES = (
    *_both("proxied_chat", _CHATS, CHAT),
    *_both("proxied_text", _TEXTS, _PLAIN),
    *_both("proxied_texts", _TEXTS, _LISTED, "path"),
    *_both("v2_chat", "/api/v2/chat/completions-detection", CHAT),
    *_both("v2_text", "/api/v2/text/completions-detection", _PLAIN),
    *_both("model_chat", _CHATS, {**CHAT, "model": "configured"}, "path"),
    *_both("model_text", _TEXTS, {**_PLAIN, "model": "configured"}),
    *_both("ollama_chat", "/api/chat", OLLAMA, "model"),
    *_both("ollama_text", "/api/generate", GENERATE, "model"),
    RequestSurface("v1/whole", _V1, V1, "guardrail_config"),
    RequestSurface("v1/stream", _V1_STREAM, V1, "guardrail_config"),
    RequestSurface("aggregator/whole", "/api/v1/chat", AGGREGATOR),
    RequestSurface("aggregator/stream", "/api/v1/chat/stream", AGGREGATOR),
    *_both("agent_chat", _CHATS, _QUESTION, "agent"),
)


def calm(world: World, surface: RequestSurface) -> None:
    """Lets the upstreams answer without the mark."""
    world.documents, world.source_status, world.finding = DOCUMENTS, 200, {}
    is_stream = surface.body.get("stream") or surface.name.endswith("/stream")
    if surface.name.startswith("v1/"):
        whole = nlp.GeneratedTextResult(generated_text="Two.", finish_reason="EOS_TOKEN")
        world.generated = [nlp.GeneratedTextStreamResult(generated_text="Two.")] if is_stream else whole
    elif surface.name.startswith(("ollama", "agent")):
        line = {"message": {"role": "assistant", "content": "Two."}, "done": True, "done_reason": "stop"}
        raw = json.dumps(line).encode() + b"\n"
        is_lines = is_stream or surface.name.startswith("agent")
        world.reply = ModelReply(kind="application/x-ndjson", packets=[raw]) if is_lines else ModelReply(raw)
    else:
        is_chat = "chat" in surface.path or surface.name.startswith("model")  # configured models are asked by chat
        world.reply = build_completion(is_stream=bool(is_stream), is_chat=is_chat)


def build_completion(*, is_stream: bool, is_chat: bool) -> ModelReply:
    """A plain answer in OpenAI's format."""
    head = {"id": "c1", "created": 1, "model": "m"}
    said: dict[str, Any] = {"message": {"role": "assistant", "content": "Two."}} if is_chat else {"text": "Two."}
    if not is_stream:
        choice = {"index": 0, **said, "finish_reason": "stop"}
        return ModelReply(json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode())
    if is_chat:
        said = {"delta": said["message"]}
    event = {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **said, "finish_reason": "stop"}]}
    return ModelReply(kind="text/event-stream", packets=[b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(event).encode()])


def build_path(surface: RequestSurface, policy: str) -> str:
    """The path of a request under a policy."""
    return f"/{policy}{surface.path}" if surface.names == "path" else surface.path


def name_policy(surface: RequestSurface, value: Any, policy: str) -> Any:
    """The body under a policy; agents have one of their own. None for another model there, which has no policy."""
    if not isinstance(value, dict):
        return value
    if surface.names in ("detectors", "guardrail_config"):
        return {**value, surface.names: {"policy": policy}}
    if surface.names in ("model", "agent"):
        model = surface.body["model"]
        named = f"{model}{policy}" if surface.names == "agent" else f"{model}@{policy}"
        return {**value, "model": named} if value.get("model") == model else None
    return value


assert MARK not in json.dumps([one.body for one in REQUEST_SURFACES])
