# SPDX-License-Identifier: Apache-2.0
"""The official openai client, unchanged, before a real `lockgate serve` and a scripted model on loopback."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.processes import running
from tests.waits import HANG_S

WORDS = ["The key ", "is bluebird", ". Mail ana@exa", "mple.org now."]
SAID = "".join(WORDS)
BASE = {"id": "c1", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
GUARDS: dict[str, Any] = {"detectors": {"output": {"pii": {}, "codewords": {}}}}
CALL = {"index": 0, "id": "t1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": 1}'}}

Say = Callable[[Any], None]


class ScriptedModel(ThreadingHTTPServer):
    """The model that a request names is a script: a method of this class. Remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.asked: list[dict[str, Any]] = []
        self.may_go_on = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def plain(self, say: Say) -> None:
        """All there is, with a usage at the end."""
        say(_chunk({"role": "assistant", "content": ""}))
        for word in WORDS:
            say(_chunk({"content": word}))
        say(_chunk({}, "stop"))
        say({**BASE, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})

    def patient(self, say: Say) -> None:
        """Two sentences; between them it waits until the test says so."""
        say(_chunk({"content": "One is done. Two"}))
        assert self.may_go_on.wait(HANG_S)
        say(_chunk({"content": " is done."}))
        say(_chunk({}, "stop"))

    def caller(self, say: Say) -> None:
        """Text, then the call of a tool."""
        say(_chunk({"content": "I look it up."}))
        say(_chunk({"tool_calls": [CALL]}))
        say(_chunk({}, "tool_calls"))

    def broken(self, say: Say) -> None:
        """An error in the middle."""
        say(_chunk({"content": "One is done. Two"}))
        say({"error": {"message": "out of memory", "type": "server_error", "code": 503}})


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedModel

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked | {"$path": self.path})
        if self.path == "/tokenize":
            self._answer(200, {"count": 5})
        elif asked["model"] == "missing":
            self._answer(404, {"error": {"message": "no such model", "type": "NotFoundError", "code": 404}})
        elif asked.get("stream"):
            self._stream(getattr(self.server, asked["model"]))
        elif "messages" in asked:
            message = {"role": "assistant", "content": SAID}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            self._answer(200, {**BASE, "object": "chat.completion", "choices": [choice], "usage": USAGE})
        else:
            choice = {"index": 0, "text": SAID, "logprobs": None, "finish_reason": "stop"}
            self._answer(200, {**BASE, "object": "text_completion", "choices": [choice], "usage": USAGE})

    def _stream(self, script: Callable[[Say], None]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        try:
            self.end_headers()
            script(lambda value: self._write(json.dumps(value)))
            self._write("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:  # whoever asked has left
            self.close_connection = True

    def _write(self, event: str) -> None:
        raw = f"data: {event}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**BASE, "object": "chat.completion.chunk", "choices": [choice]}


CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}}}
detectors:
  pii: {{embedded: pii, chunker_id: sentence}}
  codewords: {{embedded: keywords, chunker_id: word, options: {{keywords: [bluebird]}}}}
  talk: {{embedded: keywords, type: text_chat, options: {{keywords: [Mail]}}}}
policies:
  masked: {{output: {{pii: {{}}, codewords: {{}}}}, on_finding: mask}}
  closed: {{input: {{codewords: {{}}}}, on_finding: block, fallback: Not here.}}
callers:
  app: {{key_env: APP_KEY}}
server: {{host: 127.0.0.1}}
"""


@contextmanager
def _serving(model: ScriptedModel) -> Iterator[ScriptedModel]:
    thread = threading.Thread(target=model.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.shutdown()
        thread.join()
        model.server_close()


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with _serving(ScriptedModel()) as served:
        yield served


@pytest.fixture(scope="module")
def base_url(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("lockgate")
    path = Path(folder) / "config.yaml"
    path.write_text(CONFIG.format(port=model.port), encoding="utf-8")
    with running(folder, ["--config-path", str(path)], APP_KEY="sk-app") as server:
        yield f"http://127.0.0.1:{server.api_port}/v1"


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, api_key="sk-app", max_retries=0, timeout=HANG_S) as made:
        yield made


def begin(client: OpenAI, model: str, extra: dict[str, Any], **more: Any) -> Any:
    """A stream of chunks."""
    messages: Any = [{"role": "user", "content": "Hello there"}]
    return client.chat.completions.create(model=model, messages=messages, stream=True, extra_body=extra, **more)


def stream(client: OpenAI, model: str, extra: dict[str, Any], **more: Any) -> list[Any]:
    """Every chunk, as the client makes it."""
    return list(begin(client, model, extra, **more))


def ask(client: OpenAI, extra: dict[str, Any], text: str = "Hello there", model: str = "plain") -> Any:
    """A whole answer."""
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, extra_body=extra)


def entries_of(chunks: list[Any]) -> list[dict[str, Any]]:
    return [entry for chunk in chunks for entry in chunk.model_extra.get("detections", {}).get("output", ())]


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_a_stream_brings_text_and_findings_of_detectors_of_two_sizes(client: OpenAI) -> None:
    chunks = stream(client, "plain", GUARDS)
    assert text_of(chunks) == SAID
    entries = entries_of(chunks)
    found = [(one["detector_id"], one["text"]) for entry in entries for one in entry["results"]]
    assert found == [("codewords", "bluebird"), ("pii", "ana@example.org")]
    for chunk in chunks:
        for entry in chunk.model_extra.get("detections", {}).get("output", ()):
            assert SAID[entry["start_index"] : entry["processed_index"]] == chunk.choices[0].delta.content
            for one in entry["results"]:
                assert SAID[one["start"] : one["end"]] == one["text"]
    assert [entry["start_index"] for entry in entries] == [0, *[entry["processed_index"] for entry in entries[:-1]]]


def test_a_stream_tells_finish_and_usage_once(client: OpenAI) -> None:
    chunks = stream(client, "plain", GUARDS, stream_options={"include_usage": True})
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert [one.usage.total_tokens for one in chunks if one.usage is not None] == [7]
    assert {one.id for one in chunks} == {"c1"}


def test_text_arrives_while_the_model_still_speaks(client: OpenAI, model: ScriptedModel) -> None:
    model.may_go_on.clear()
    messages: Any = [{"role": "user", "content": "Hello there"}]
    extra: dict[str, Any] = {"detectors": {"output": {"pii": {}}}}
    chunks = client.chat.completions.create(model="patient", messages=messages, stream=True, extra_body=extra)
    first = next(chunks)
    assert first.choices[0].delta.content == "One is done. "
    model.may_go_on.set()
    assert text_of(list(chunks)) == "Two is done."


def test_without_detectors_the_stream_is_the_models_own(client: OpenAI, model: ScriptedModel) -> None:
    chunks = stream(client, "plain", {})
    assert [one.choices[0].delta.content for one in chunks if one.choices] == ["", *WORDS, None]
    assert entries_of(chunks) == []
    assert "detectors" not in model.asked[-1]


def test_tool_calls_come_behind_the_text_before_them(client: OpenAI) -> None:
    chunks = stream(client, "caller", GUARDS)
    calls = [place for place, one in enumerate(chunks) if one.choices[0].delta.tool_calls]
    assert text_of(chunks[: calls[0]]) == "I look it up."
    assert chunks[calls[0]].choices[0].delta.tool_calls[0].function.arguments == '{"q": 1}'
    assert [one.choices[0].finish_reason for one in chunks][-1] == "tool_calls"


def test_a_policy_masks_what_streams(client: OpenAI) -> None:
    chunks = stream(client, "plain", {"detectors": {"policy": "masked"}})
    assert text_of(chunks) == SAID.replace("bluebird", "█" * 8).replace("ana@example.org", "█" * 15)
    assert {one["text"].strip("█") for entry in entries_of(chunks) for one in entry["results"]} == {""}


def test_a_whole_answer_has_findings_and_warnings(client: OpenAI) -> None:
    answer = ask(client, {"detectors": {"output": {"pii": {}, "talk": {}}}})
    assert answer.choices[0].message.content == SAID
    assert answer.usage.total_tokens == 7
    (entry,) = answer.model_extra["detections"]["output"]
    assert [(one["detector_id"], one.get("text")) for one in entry["results"]] == [
        ("pii", "ana@example.org"),
        ("talk", None),
    ]
    assert [one["type"] for one in answer.model_extra["warnings"]] == ["UNSUITABLE_OUTPUT"]


def test_a_prompt_with_a_finding_never_reaches_the_model(client: OpenAI, model: ScriptedModel) -> None:
    before = len(model.asked)
    answer = ask(client, {"detectors": {"input": {"codewords": {}}}}, text="It is bluebird.")
    assert answer.choices == []
    assert answer.usage.prompt_tokens == 5
    assert answer.model_extra["detections"]["input"][0]["results"][0]["text"] == "bluebird"
    refused = ask(client, {"detectors": {"policy": "closed"}}, text="It is bluebird.")
    assert (refused.choices[0].message.content, refused.choices[0].finish_reason) == ("Not here.", "content_filter")
    assert [one["$path"] for one in model.asked[before:]] == ["/tokenize"]


def test_text_completions_work_too(client: OpenAI) -> None:
    extra: dict[str, Any] = {"detectors": {"output": {"pii": {}}}}
    answer = client.completions.create(model="plain", prompt="Hello", extra_body=extra)
    assert answer.choices[0].text == SAID
    assert answer.model_extra is not None
    assert answer.model_extra["detections"]["output"][0]["results"][0]["text"] == "ana@example.org"


@pytest.mark.parametrize(
    ("extra", "model_name", "kind", "details"),
    [
        ({"detectors": {"output": {"nobody": {}}}}, "plain", openai.NotFoundError, "detector `nobody` not found"),
        ({"detectors": {"input": {"talk": {}}}}, "plain", openai.BadRequestError,
         "detector `talk` is not supported by this endpoint"),
        ({"detectors": {"policy": "nowhere"}}, "plain", openai.UnprocessableEntityError, "policy `nowhere` not found"),
        ({}, "missing", openai.NotFoundError, "`model` refused the request: no such model"),
    ],
)  # fmt: skip
def test_an_error_is_the_exception_that_clients_expect(
    client: OpenAI, extra: dict[str, Any], model_name: str, kind: type[openai.APIStatusError], details: str
) -> None:
    with pytest.raises(kind) as caught:
        ask(client, extra, model=model_name)
    assert caught.value.code == str(caught.value.status_code)
    assert caught.value.body == {
        "message": details,
        "type": "NotFoundError" if model_name == "missing" else "invalid_request_error",
        "param": None,
        "code": caught.value.status_code,
    }


def test_an_error_in_mid_stream_is_an_exception_behind_the_text_that_left(client: OpenAI) -> None:
    chunks: list[Any] = []
    with pytest.raises(openai.APIError, match="out of memory") as caught:
        chunks.extend(begin(client, "broken", GUARDS))
    assert text_of(chunks) == "One is done. "
    assert caught.value.code == "503"


def test_the_api_key_is_the_callers_and_goes_no_further(base_url: str, client: OpenAI, model: ScriptedModel) -> None:
    ask(client, {})
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as stranger:
        before = len(model.asked)
        with pytest.raises(openai.AuthenticationError) as caught:
            ask(stranger, {})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"] == "this key is not known"
    assert len(model.asked) == before


async def test_the_async_client_reads_many_streams_at_once(base_url: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello there"}]

    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-app", max_retries=0, timeout=HANG_S) as client:

        async def read() -> str:
            chunks = await client.chat.completions.create(
                model="plain", messages=messages, stream=True, extra_body=GUARDS
            )
            return text_of([chunk async for chunk in chunks])

        assert await asyncio.gather(*[read() for _ in range(8)]) == [SAID] * 8
