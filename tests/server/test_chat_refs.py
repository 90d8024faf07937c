# SPDX-License-Identifier: Apache-2.0
"""What a ref's address can name: a space, an OpenAI-compatible server, a part of this instance. Same events for all."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from lockgate.gate.values import Document
from tests.server.gateways import gateway
from tests.server.spaces import ask_chat, chat_request, collect, open_space, ref, said_in

NOTES = ("Kettle notes", "The kettle boils in three minutes.", 0.9)
PLAIN = "detectors: {pii: {embedded: pii}}"
STREAMING = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}
ORDER = ["retrieval_start", "source_complete", "retrieval_complete", "generation_start"]


class ShelfSource:
    """A source of this instance, as a plugin gives it."""

    async def search(self, question: str, limit: int) -> Sequence[Document]:
        return [Document("On the shelf", f"Asked: {question} ({limit})", 0.5)]


@asynccontextmanager
async def open_shelf(options: Mapping[str, Any]) -> AsyncIterator[ShelfSource]:
    """The factory that the settings name."""
    assert dict(options) == {"room": 4}
    yield ShelfSource()


class ChatServer:
    """An OpenAI-compatible server."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], Mapping[str, str]]] = []
        self.url = ""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((request.path, body, request.headers))
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        if not body["stream"]:
            choice = {"index": 0, "message": {"role": "assistant", "content": "Three minutes."}}
            return web.json_response({"choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in ("Three ", "minutes."):
            chunk = {"choices": [{"index": 0, "delta": {"content": piece}}]}
            await response.write(b"data: %b\n\n" % json.dumps(chunk).encode())
        await response.write(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def open_chat_server() -> AsyncIterator[ChatServer]:
    server = ChatServer()
    app = web.Application()
    app.router.add_post("/{path:.*}", server.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("prefix", "path"), [("", "/v1"), ("/v1", "/v1"), ("/deep/api/", "/deep/api")])
async def test_an_openai_compatible_server_is_a_model(prefix: str, path: str) -> None:
    async with open_chat_server() as server, open_space({"docs": [NOTES]}) as space, gateway(PLAIN) as port:
        body = chat_request(space, "docs", endpoint_tokens={"mo": "key-1", "al": "key-2"}, max_tokens=9)
        body["model"] = {"url": f"openai+{server.url}{prefix}", "slug": "org/model-1", "owner_username": "mo"}
        status, answer = await ask_chat(port, body)
    assert (status, answer["response"]) == (200, "Three minutes.")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    asked_path, asked, headers = server.asked[0]
    assert asked_path == f"{path}/chat/completions"
    assert (asked["model"], asked["max_tokens"], asked["stream"]) == ("org/model-1", 9, False)
    assert [one["role"] for one in asked["messages"]] == ["system", "user"]
    assert headers["authorization"] == "Bearer key-1"


async def test_an_openai_compatible_server_streams_the_same_events() -> None:
    async with (
        open_chat_server() as server,
        open_space({"docs": [NOTES]}) as space,
        gateway(PLAIN, **STREAMING) as port,
    ):
        body = chat_request(space, "docs")
        body["model"] = {"url": f"openai+{server.url}", "slug": "m"}
        events = await collect(port, body)
    assert [name for name, _ in events] == [*ORDER, "token", "token", "done"]
    assert said_in(events) == "Three minutes."
    assert dict(events)["done"]["usage"]["total_tokens"] == 7
    assert "authorization" not in server.asked[0][2]


async def test_what_the_config_exposes_can_be_named() -> None:
    async with open_chat_server() as server, open_space({"docs": [NOTES]}) as space:
        config = f"""
models:
  main: {{openai: {{url: "{server.url}/v1", model: m, api_token: MODEL_KEY}}, expose: true}}
sources:
  docs: {{syftai_space: {{url: "{space.url}", slug: docs, owner: bo, token_env: SPACE_KEY}}, expose: true}}
  shelf: {{embedded: "{__name__}:open_shelf", options: {{room: 4}}, expose: true}}
"""
        async with gateway(config, MODEL_KEY="model-key", SPACE_KEY="space-key") as port:
            status, answer = await ask_chat(
                port,
                {
                    "prompt": "How long?",
                    "model": {"url": "lockgate:", "slug": "main"},
                    "data_sources": [
                        {"url": "lockgate:", "slug": "docs", "owner_username": "house"},
                        {"url": "lockgate:", "slug": "shelf"},
                    ],
                    "endpoint_tokens": {"house": "of-the-request"},
                    "top_k": 3,
                },
            )
    assert (status, answer["response"]) == (200, "Three minutes.")
    assert {title: one["slug"] for title, one in answer["sources"].items()} == {
        "Kettle notes": "house/docs",
        "On the shelf": "shelf",
    }
    assert answer["sources"]["On the shelf"]["content"] == "Asked: How long? (3)"
    assert space.asked[0].headers["authorization"] == "Bearer space-key"
    assert space.asked[0].headers["x-correlation-id"]
    assert server.asked[0][2]["authorization"] == "Bearer model-key"
    assert "of-the-request" not in str(space.asked[0].headers)


@pytest.mark.parametrize("slug", ["hidden", "missing"])
async def test_what_is_not_exposed_looks_like_what_is_not_there(slug: str) -> None:
    config = """
models: {hidden: {openai: {url: "http://127.0.0.1:9/v1", model: m}}}
sources: {hidden: {syftai_space: {url: "http://127.0.0.1:9", slug: docs}}}
"""
    async with open_space({"llm": "x"}) as space, gateway(config) as port:
        body = chat_request(space, data_sources=[{"url": "lockgate:", "slug": slug}])
        status, answer = await ask_chat(port, body)
        assert (status, answer["response"]) == (200, "x")
        assert answer["retrieval_info"][0]["error_message"] == f"no data source `{slug}` is exposed here"
        status, answer = await ask_chat(port, body | {"model": {"url": "lockgate:", "slug": slug}})
    assert (status, answer["error"]) == (400, "generation_failed")
    assert answer["message"] == f"Model generation failed: no model `{slug}` is exposed here"
    assert answer["details"]["model_path"] == slug


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "ftp://127.0.0.1/", "http://", "http://127.0.0.1:99999", "http://u:p@127.0.0.1/", "file:///etc",
     "http://127.0.0.1/?a=b", "http://127.0.0.1/#x", "lockgate:x", "openai+ftp://x", "http://169.254.169.254",
     "http://[fe80::1]/", "http://2852039166/", "http://[::ffff:169.254.169.254]/"],
)  # fmt: skip
async def test_an_address_that_cannot_be_called_fails_its_endpoint_alone(url: str) -> None:
    async with open_space({"docs": [NOTES], "llm": "x"}) as space, gateway(PLAIN) as port:
        body = chat_request(space, "docs")
        body["data_sources"].append({"url": url, "slug": "s", "owner_username": "al"})
        status, answer = await ask_chat(port, body)
        assert (status, answer["response"]) == (200, "x")
        assert [one["status"] for one in answer["retrieval_info"]] == ["success", "error"]
        assert answer["retrieval_info"][1]["error_message"]
        events = await collect(port, chat_request(space, "docs") | {"model": {"url": url, "slug": "llm"}})
    assert [name for name, _ in events] == [*ORDER, "error"]
    assert events[-1][1]["message"].startswith("Model generation failed: ")


async def test_only_listed_addresses_are_called_once_there_is_a_list() -> None:
    async with open_space({"docs": [NOTES], "llm": "x"}) as space:
        for allow, status in (("127.0.0.0/8", "success"), ("10.0.0.0/8", "error"), ("example.org", "error")):
            async with gateway(f"{PLAIN}\nupstreams: {{allow: [{allow}]}}") as port:
                events = await collect(port, chat_request(space, "docs"))
                assert dict(events)["source_complete"]["status"] == status
                assert events[-1][0] == ("done" if status == "success" else "error")


async def test_a_name_is_judged_by_the_address_that_it_leads_to() -> None:
    async with open_space({"docs": [NOTES], "llm": "x"}) as space:
        named = space.url.replace("127.0.0.1", "localhost")
        body = chat_request(space, data_sources=[{**ref(space, "docs"), "url": named}])
        async with gateway(f"{PLAIN}\nupstreams: {{allow: [127.0.0.1, '::1']}}") as port:
            assert (await ask_chat(port, body))[1]["retrieval_info"][0]["status"] == "success"
        async with gateway(f"{PLAIN}\nupstreams: {{allow: [10.0.0.0/8]}}") as port:
            status, answer = await ask_chat(port, body | {"model": {"url": named, "slug": "llm"}})
    assert status == 400
    assert space.asked[-1].slug == "llm"
    assert len(space.asked) == 2
    assert "generation" in answer["error"]
