# SPDX-License-Identifier: Apache-2.0
"""Every parameter of a completion reaches the model or is refused with a 400 that names it, on every backend."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from lockgate.gate.values import Frame, Message
from tests.contracts.http_peers import Exchange, Peer, open_peer
from tests.server.gateways import ask, events_of, gateway
from tests.server.http_client import Answer

CHAT, TEXT, OLLAMA_CHAT = "/v1/chat/completions", "/v1/completions", "/api/chat"
CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}}}
models:
  wise: {{openai: {{url: "http://127.0.0.1:{port}/v1", model: m, api_token: MODEL_TOKEN}}}}
  lama: {{ollama: {{url: "http://127.0.0.1:{port}", model: m}}}}
  plain: {{embedded: 'tests.server.test_parameters:open_plain'}}
agents: {{default: {{main: lama, sources: []}}}}
classifier: {{model_path: none}}
"""
WHOLE = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# Parameters that ask for something, each with the keys of the body at an Ollama server that carry it.
SAMPLING: Mapping[str, tuple[Any, Any]] = {
    "temperature": (0.5, {"options": {"temperature": 0.5}}),
    "max_tokens": (7, {"options": {"num_predict": 7}}),
    "max_completion_tokens": (7, {"options": {"num_predict": 7}}),
    "top_p": (0.5, {"options": {"top_p": 0.5}}),
    "seed": (3, {"options": {"seed": 3}}),
    "stop": (["x"], {"options": {"stop": ["x"]}}),
    "presence_penalty": (0.5, {"options": {"presence_penalty": 0.5}}),
    "frequency_penalty": (0.5, {"options": {"frequency_penalty": 0.5}}),
    "response_format": ({"type": "json_object"}, {"format": "json"}),
}
OPENAI_ONLY: Mapping[str, Any] = {
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"5": 1},
    "reasoning_effort": "low",
    "parallel_tool_calls": "no",
    "service_tier": "flex",
    "no_such_parameter": 1,
}
# Accepted by every backend: they ask for nothing, or are not for the model.
HARMLESS: Sequence[Mapping[str, Any]] = (
    {"user": "ana"}, {"metadata": {"a": "b"}}, {"store": False}, {"store": True}, {"keep_alive": "5m"},
    {"stream_options": None}, {"n": 1}, {"top_p": 1}, {"presence_penalty": 0}, {"frequency_penalty": 0.0},
    {"logprobs": False}, {"tools": []}, {"tool_choice": "none"}, {"response_format": {"type": "text"}}, {"stop": None},
    {"logit_bias": {}}, {"seed": None}, {"temperature": 1},
)  # fmt: skip
MODELS = ("m", "wise", "lama", "plain", "brunix")
PLAIN: list[Mapping[str, Any]] = []  # what the embedded model was asked


class Plain:
    """A model of a plugin, which says nothing of its parameters."""

    async def generate(self, messages: Sequence[Message], params: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """Always the same."""
        PLAIN.append(params)
        yield Frame(0, "Yes.")


@asynccontextmanager
async def open_plain(options: Mapping[str, Any]) -> AsyncIterator[Plain]:
    """A factory of models."""
    yield Plain()


DELTAS: Sequence[Mapping[str, Any]] = (
    {"role": "assistant", "content": ""},
    {"reasoning_content": "Hm."},
    {"content": "Yes."},
    {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
)


async def play(exchange: Exchange) -> None:
    """An OpenAI-compatible server that is Ollama too."""
    body = exchange.received.json if exchange.received.body else {}
    if body.get("stream") and exchange.received.path == CHAT:
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": None}
        choices = [{"index": 0, "delta": one, "finish_reason": None} for one in DELTAS]
        chunks = [{**head, "choices": [one]} for one in [*choices, {"index": 0, "delta": {}, "finish_reason": "stop"}]]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**head, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
        await exchange.start("text/event-stream")
        await exchange.chunk(b"".join([b"data: %b\n\n" % json.dumps(one).encode() for one in chunks]))
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.end()
        return
    if exchange.received.path == "/api/chat":
        line = {"message": {"role": "assistant", "content": "Yes."}, "done": True, "done_reason": "stop"}
        await exchange.answer(json.dumps(line).encode())
        return
    await exchange.answer(json.dumps(WHOLE if "messages" in body else _as_text(WHOLE)).encode())


def _as_text(whole: Mapping[str, Any]) -> dict[str, Any]:
    return {**whole, "choices": [{"index": 0, "text": "Yes.", "finish_reason": "stop"}]}


@asynccontextmanager
async def open_house() -> AsyncIterator[tuple[int, Peer]]:
    """A gateway with every kind of backend, and the server behind it."""
    with TemporaryDirectory() as folder:
        async with (
            open_peer(play) as peer,
            gateway(CONFIG.format(port=peer.port), LOCKGATE_DATA_DIR=folder, MODEL_TOKEN="secret") as port,
        ):
            yield port, peer


async def ask_chat(port: int, model: str, **fields: Any) -> Answer:
    return await ask(port, CHAT, {"model": model, "messages": [{"role": "user", "content": "Is it?"}], **fields})


def find_words(answer: Answer) -> str:
    assert answer.status == 400, (answer.status, answer.body)
    return str(answer.json()["error"]["message"])


async def test_what_asks_for_nothing_is_accepted_by_every_backend() -> None:
    async with open_house() as (port, _):
        for model in MODELS:
            for fields in HARMLESS:
                answer = await ask_chat(port, model, **fields)
                assert answer.status == 200, (model, fields, answer.body)
                assert answer.json()["choices"][0]["message"]["content"] == "Yes."


@pytest.mark.parametrize("model", ["m", "wise"])
async def test_a_server_that_speaks_openai_gets_every_field(model: str) -> None:
    async with open_house() as (port, peer):
        given = {**{name: value for name, (value, _) in SAMPLING.items()}, **OPENAI_ONLY, "user": "ana"}
        answer = await ask_chat(port, model, **given)
        assert (answer.status, answer.json()["model"]) == (200, model)
    assert {name: peer.received[-1].json.get(name) for name in given} == given
    assert (peer.received[-1].path, peer.received[-1].json["model"]) == (CHAT, "m")


async def test_messages_of_tools_and_images_reach_a_configured_model_that_speaks_openai() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Done."},
    ]
    async with open_house() as (port, peer):
        assert (await ask_chat(port, "wise", messages=messages)).status == 200
        assert find_words(await ask_chat(port, "lama", messages=messages)) == "messages[0]: only text is supported"
    assert [one.json["messages"] for one in peer.received] == [messages]


async def test_a_text_completion_of_a_configured_model_is_a_chat_of_one_message() -> None:
    async with open_house() as (port, peer):
        answer = await ask(port, TEXT, {"model": "wise", "prompt": "Is it?", "n": 2, "seed": 3, "stop": ["x"]})
        for name, value in {"suffix": "x", "echo": True, "best_of": 2, "logprobs": 0}.items():
            refused = await ask(port, TEXT, {"model": "wise", "prompt": "Is it?", name: value})
            assert find_words(refused).startswith(f"`{name}` is not supported by this model")
    assert answer.json()["object"] == "text_completion"
    assert [one["text"] for one in answer.json()["choices"]] == ["Yes."]
    assert [(one.path, one.json) for one in peer.received] == [
        (
            CHAT,
            {"model": "m", "messages": [{"role": "user", "content": "Is it?"}], "n": 2, "seed": 3, "stop": ["x"]},
        )
    ]


@pytest.mark.parametrize("name", SAMPLING)
async def test_an_ollama_server_gets_what_it_has_a_name_for(name: str) -> None:
    value, expected = SAMPLING[name]
    async with open_house() as (port, peer):
        for model in ("lama", "brunix"):
            assert (await ask_chat(port, model, **{name: value})).status == 200
            assert {key: peer.received[-1].json.get(key) for key in expected} == expected


async def test_a_model_of_a_plugin_gets_what_every_model_takes() -> None:
    PLAIN.clear()
    async with open_house() as (port, _):
        assert (await ask_chat(port, "plain", max_tokens=5, temperature=0.5)).status == 200
        for name, (value, _) in SAMPLING.items():
            if name not in ("max_tokens", "max_completion_tokens", "temperature"):
                words = find_words(await ask_chat(port, "plain", **{name: value}))
                assert words.startswith(f"`{name}` is not supported by this model")
    assert [{**one, "stream": None} for one in PLAIN] == [{"max_tokens": 5, "temperature": 0.5, "stream": None}]


@pytest.mark.parametrize("model", ["lama", "plain", "brunix"])
async def test_what_a_backend_cannot_do_is_refused_by_name(model: str) -> None:
    async with open_house() as (port, peer):
        for name, value in OPENAI_ONLY.items():
            words = find_words(await ask_chat(port, model, **{name: value}))
            assert words.startswith(f"`{name}` is not supported by this model"), words
        for name, value in {"suffix": "x", "echo": True, "best_of": 2, "logprobs": 0}.items():
            answer = await ask(port, TEXT, {"model": model, "prompt": "Is it?", name: value})
            assert find_words(answer).startswith(f"`{name}` is not supported by this model")
    assert peer.received == []


@pytest.mark.parametrize("model", ["lama", "plain", "brunix"])
async def test_what_a_message_has_besides_text_is_refused_by_name(model: str) -> None:
    asked, given = {"role": "user", "content": "Is it?"}, {"name": "f", "arguments": "{}"}
    fields = {"refusal": "No.", "audio": {"id": "1"}, "function_call": given, "tool_call_id": "1"}
    async with open_house() as (port, peer):
        for name, value in fields.items():
            said = {"role": "assistant", "content": "Hm.", name: value}
            words = find_words(await ask_chat(port, model, messages=[said, asked]))
            assert words == f"messages[0]: `{name}` is not supported by this model: leave it out"
        assert peer.received == []
        said = {"role": "assistant", "content": "Hm.", "name": "ana", **dict.fromkeys(fields, "")}
        assert (await ask_chat(port, model, messages=[said, asked])).status == 200


async def test_a_client_of_ollama_has_its_options_or_a_refusal() -> None:
    messages = [{"role": "user", "content": "Is it?"}]
    options = {"top_p": 0.5, "seed": 3, "stop": ["x"], "num_predict": 7, "top_k": 3, "num_ctx": 512}
    async with open_house() as (port, peer):
        asked = {"model": "lama", "messages": messages, "stream": False, "options": options, "format": "json"}
        assert (await ask(port, OLLAMA_CHAT, asked)).status == 200
        refused = await ask(port, OLLAMA_CHAT, {**asked, "options": {"mirostat": 1}})
        other = await ask(port, OLLAMA_CHAT, {**asked, "model": "plain"})
    assert (peer.received[0].json["options"], peer.received[0].json["format"]) == (options, "json")
    assert (refused.status, other.status, len(peer.received)) == (400, 400, 1)
    assert refused.json() == {"error": "`options.mirostat` is not supported by this model: leave it out"}


@pytest.mark.parametrize("tells_usage", [False, True])
async def test_a_stream_of_a_configured_model_is_that_of_its_server_under_its_own_name(tells_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if tells_usage else {}
    async with open_house() as (port, peer):
        *events, done = events_of(await ask_chat(port, "wise", stream=True, tools=[TOOL], **options))
    chunks = [one for one in events if one["choices"]]
    assert [one["choices"][0]["delta"] for one in chunks] == [*DELTAS, {}]
    assert ({one["model"] for one in events}, done) == ({"wise"}, "[DONE]")
    assert [one["usage"]["prompt_tokens"] for one in events if not one["choices"]] == [1] * tells_usage
    assert ("authorization", "Bearer secret") in [(name.lower(), value) for name, value in peer.received[0].headers]
    assert peer.received[0].json["stream_options"] == {"include_usage": True}
