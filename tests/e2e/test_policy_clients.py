# SPDX-License-Identifier: Apache-2.0
"""The official openai client under policies: masked, stopped and blocked chats behave as its users expect.

The loops here are those of tutorials: they look at `chunk.choices[0]` in every chunk and never ask whether it is there.
"""

import json
import threading
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.test_openai_client import BASE, USAGE, Say, ScriptedModel, _chunk, _serving
from tests.server.policy_house import verifies
from tests.server.processes import running
from tests.waits import HANG_S

MAIL = "ana@example.org"
HIDDEN = "█" * len(MAIL)
PIECES = ["Write to a", "na@exam", "ple.org today. ", "That is all."]
SAID = "".join(PIECES)
ARGUMENTS = '{"to": "ana\\u0040example.org", "copies": 2, "note": "hi \\"x\\" ana@example.org"}'
TOOLS: Any = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object", "properties": {}}}}]
CONFIG = """
openai: {{service: {{hostname: 127.0.0.1, port: {port}}}, policies: {{careful: masked}}}}
detectors:
  mail: {{embedded: pii, chunker_id: sentence}}
  word: {{embedded: keywords, chunker_id: sentence, options: {{keywords: [bluebird]}}}}
policies:
  masked: {{output: {{mail: {{}}}}, on_finding: mask, mask_with: label, lanes: [content, reasoning, tool_arguments]}}
  stopped: {{output: {{mail: {{}}}}, on_finding: stop, fallback: "I stop here."}}
  blocked: {{output: {{mail: {{}}}}, on_finding: block, fallback: "Withheld."}}
  closed: {{input: {{word: {{}}}}, on_finding: block, fallback: "Not here."}}
  shade: {{mode: shadow, input: {{word: {{}}}}, output: {{mail: {{}}}}, on_finding: block}}
server: {{host: 127.0.0.1}}
"""


class Model(ScriptedModel):
    """The model that a request names is a method."""

    def __init__(self) -> None:
        super().__init__()
        self.was_left = threading.Event()

    def talker(self, say: Say) -> None:
        """A text with an address, and an end."""
        say(_chunk({"role": "assistant", "content": ""}))
        for piece in PIECES:
            say(_chunk({"content": piece}))
        say(_chunk({}, "stop"))
        if self.asked[-1].get("stream_options"):
            say({**BASE, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})

    careful = talker

    def endless(self, say: Say) -> None:
        """The same, and then it goes on until nobody listens."""
        try:
            for piece in cycle(PIECES):
                say(_chunk({"content": piece}))
        except ConnectionError:
            self.was_left.set()
            raise

    def caller(self, say: Say) -> None:
        """A call of two tools, their arguments mixed and in small pieces."""
        say(_chunk({"role": "assistant", "content": None}))
        for index in (0, 1):
            function = {"name": "send", "arguments": ""}
            say(_chunk({"tool_calls": [{"index": index, "id": f"t{index}", "type": "function", "function": function}]}))
        for at in range(0, len(ARGUMENTS), 3):
            for index in (0, 1):
                piece = {"arguments": ARGUMENTS[at : at + 3]}
                say(_chunk({"tool_calls": [{"index": index, "function": piece}]}))
        say(_chunk({}, "tool_calls"))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with _serving(Model()) as served:
        assert isinstance(served, Model)
        yield served


@pytest.fixture(scope="module")
def host(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("lockgate")
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(port=model.port), encoding="utf-8")
    with running(folder, ["--config-path", str(path)]) as server:
        yield f"http://127.0.0.1:{server.api_port}"


def open_client(host: str, policy: str = "") -> OpenAI:
    """A client whose base URL names the policy: nothing else in the code of its user has to change."""
    under = f"/{policy}" if policy else ""
    return OpenAI(base_url=f"{host}{under}/v1", api_key="none", max_retries=0, timeout=HANG_S)


def listen(client: OpenAI, model: str = "talker", text: str = "Hello", **more: Any) -> tuple[str, list[Any], list[Any]]:
    """As tutorials do it: the text, the reasons to finish, the chunks."""
    messages: Any = [{"role": "user", "content": text}]
    said, reasons, chunks = "", [], []
    for chunk in client.chat.completions.create(model=model, messages=messages, stream=True, **more):
        chunks.append(chunk)
        said += chunk.choices[0].delta.content or ""
        reasons.append(chunk.choices[0].finish_reason)
    return said, reasons, chunks


@pytest.mark.parametrize(
    ("policy", "text", "said", "reason", "outcome"),
    [
        ("masked", "Hello", SAID.replace(MAIL, "[EMAIL]"), "stop", "masked"),
        ("stopped", "Hello", "I stop here.", "content_filter", "stopped"),
        ("blocked", "Hello", "Withheld.", "content_filter", "blocked"),
        ("closed", "Hello", SAID, "stop", "released"),
        ("closed", "A bluebird?", "Not here.", "content_filter", "blocked"),
        ("shade", "A bluebird?", SAID, "stop", "blocked"),
    ],
)
def test_a_plain_loop_over_a_stream_needs_no_change(
    host: str, policy: str, text: str, said: str, reason: str, outcome: str
) -> None:
    with open_client(host, policy) as client:
        heard, reasons, chunks = listen(client, text=text)
    assert heard == said
    assert reasons == [None] * (len(reasons) - 1) + [reason]
    receipt = chunks[-1].model_extra["receipt"]
    assert (receipt["policy"], receipt["outcome"]) == (policy, outcome)
    # What a client library has in its hands can be checked too.
    assert verifies("".join(chunk.model_dump_json(exclude_unset=True) + "\n" for chunk in chunks).encode())


def test_the_role_comes_once_so_that_joined_chunks_name_it_once(host: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    for model in ("talker", "caller"):
        with open_client(host, "masked") as client:
            with client.chat.completions.stream(model=model, messages=messages) as stream:
                assert stream.get_final_completion().choices[0].message.role == "assistant"
            _, _, chunks = listen(client, model)
        roles = [chunk.choices[0].delta.role for chunk in chunks]
        assert roles == ["assistant"] + [None] * (len(chunks) - 1)


def test_usage_comes_alone_in_the_last_chunk_where_it_was_asked_for(host: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    for policy in ("masked", "closed", "shade"):
        with open_client(host, policy) as client:
            chunks = list(
                client.chat.completions.create(
                    model="talker", messages=messages, stream=True, stream_options={"include_usage": True}
                )
            )
        assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 7
        assert chunks[-1].model_extra is not None
        assert chunks[-1].model_extra["receipt"]["policy"] == policy


@pytest.mark.parametrize(("policy", "reason"), [("masked", "stop"), ("stopped", "content_filter")])
def test_whole_answers_say_the_same(host: str, policy: str, reason: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with open_client(host, policy) as client:
        answer = client.chat.completions.create(model="plain", messages=messages)
        text = client.completions.create(model="plain", prompt="Hello")
    assert answer.choices[0].finish_reason == text.choices[0].finish_reason == reason
    assert answer.choices[0].message.content == text.choices[0].text
    assert MAIL not in text.choices[0].text
    assert answer.model_extra is not None
    assert answer.model_extra["receipt"]["policy"] == policy


def test_a_stream_that_is_stopped_ends_and_the_model_is_left(host: str, model: Model) -> None:
    with open_client(host, "stopped") as client:
        said, reasons, _ = listen(client, "endless")
    assert (said, reasons[-1]) == ("I stop here.", "content_filter")
    assert model.was_left.wait(HANG_S)


def test_arguments_of_calls_under_a_mask_still_parse(host: str) -> None:
    calls: dict[int, dict[str, str]] = {}
    messages: Any = [{"role": "user", "content": "Hello"}]
    with open_client(host, "masked") as client:
        for chunk in client.chat.completions.create(model="caller", messages=messages, stream=True, tools=TOOLS):
            for call in chunk.choices[0].delta.tool_calls or ():
                known = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                assert call.function is not None
                known["id"] += call.id or ""
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
    expected = {"to": "[EMAIL]", "copies": 2, "note": 'hi "x" [EMAIL]'}
    assert {place: (call["id"], call["name"]) for place, call in calls.items()} == {
        0: ("t0", "send"),
        1: ("t1", "send"),
    }
    assert [json.loads(call["arguments"]) for call in calls.values()] == [expected, expected]


def test_the_clients_own_accumulation_of_calls_and_text_works(host: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with open_client(host, "masked") as client:
        with client.chat.completions.stream(model="caller", messages=messages, tools=TOOLS) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            final = stream.get_final_completion()
        with client.chat.completions.stream(model="talker", messages=messages) as stream:
            text = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [json.loads(call.function.arguments)["to"] for call in calls] == ["[EMAIL]", "[EMAIL]"]
    assert [json.loads(event.arguments)["copies"] for event in done] == [2, 2]
    assert final.choices[0].finish_reason == "tool_calls"
    assert text.choices[0].message.content == SAID.replace(MAIL, "[EMAIL]")


def test_an_answer_that_was_filtered_is_what_the_client_calls_so(host: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with (
        open_client(host, "blocked") as client,
        client.chat.completions.stream(model="talker", messages=messages) as stream,
    ):
        texts = [event.delta for event in stream if event.type == "content.delta"]
        snapshot = stream.current_completion_snapshot
    assert "".join(texts) == "Withheld."
    assert snapshot.choices[0].finish_reason == "content_filter"


def test_the_models_own_policy_holds_and_another_can_be_named_with_the_model(host: str) -> None:
    with open_client(host) as client:
        assert listen(client, "careful")[0] == SAID.replace(MAIL, "[EMAIL]")
        assert listen(client, "talker@stopped")[0] == "I stop here."
        assert listen(client, "talker")[0] == SAID


def test_a_policy_that_nobody_has_is_not_found(host: str) -> None:
    with open_client(host, "nobody") as client, pytest.raises(openai.NotFoundError) as caught:
        listen(client)
    assert "policy `nobody` not found" in caught.value.message
