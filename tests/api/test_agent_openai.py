# SPDX-License-Identifier: Apache-2.0
"""Requests to agents and configured models in OpenAI's words, and the answers (B-42, B-43)."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.agent.routes import Editor
from lockgate.api.openai import turn_format as wire
from lockgate.api.openai.turn_fields import TurnRequest, peek_model, read_model, read_user
from lockgate.api.turn_values import decode_text
from lockgate.errors import InvalidRequest, UnreadableBody
from lockgate.gate.values import Message

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TAKES = frozenset({"max_tokens", "temperature", "seed"})
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "brunix", **fields}).encode()


def chat(messages: list[Any] = HELLO, **fields: Any) -> TurnRequest:
    return wire.read_chat(body(messages=messages, **fields), TAKES)


def text(**fields: Any) -> TurnRequest:
    return wire.read_text(body(**fields), TAKES)


def b64(words: str) -> str:
    return base64.b64encode(words.encode()).decode()


def events(raw: bytes) -> list[Any]:
    lines = raw.decode().split("\n\n")
    assert lines[-1] == ""
    values = [line.removeprefix("data: ") for line in lines[:-1]]
    return [value if value == "[DONE]" else json.loads(value) for value in values]


def test_the_question_is_the_last_message_of_the_user_and_what_follows_is_left_out() -> None:
    sent = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1", "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": "lines?"}]},
        {"role": "assistant", "content": "It is"},
    ]
    wanted = chat(sent)
    assert wanted.sent[-1].text == "Two\nlines?"
    assert wanted.sent == (
        Message("system", "Be kind."),
        Message("user", "One?"),
        Message("assistant", "1"),
        Message("user", "Two\nlines?"),
    )


def test_what_was_not_said_is_empty() -> None:
    assert chat(user=None, session_id=None, stream=None, max_tokens=None) == TurnRequest(
        "brunix", (Message("user", "Hello"),), False
    )


def test_every_field_that_is_known_is_read() -> None:
    user = {"editor_content": b64("file ü"), "selected_text": b64("part"), "extra_context": "", "user_info": {"id": 7}}
    wanted = chat(
        stream=True,
        session_id="s 1",
        query_type="RETRIEVAL",
        user=json.dumps(user),
        max_tokens=9,
        max_completion_tokens=5,
        temperature=0,
        stream_options={"include_usage": True},
        seed=4,
    )
    assert wanted[2:] == (
        True, "s 1", "RETRIEVAL", Editor("file ü", "part"), '{"id":7}', {"max_tokens": 5, "temperature": 0, "seed": 4},
        True,
    )  # fmt: skip


@pytest.mark.parametrize("prompt", ["Hello", ["Hello"]])
def test_a_text_completion_has_one_prompt(prompt: Any) -> None:
    assert text(prompt=prompt).sent == (Message("user", "Hello"),)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "`messages` must not be empty"),
        ({"messages": None}, "messages: invalid type: null, expected a sequence"),
        ({"messages": "Hello"}, 'messages: invalid type: string "Hello", expected a sequence'),
        ({"messages": [1]}, "messages[0]: invalid type: integer `1`"),
        ({"messages": [{"role": "system", "content": "x"}]}, "`messages` must hold a message with role `user`"),
        ({"messages": [{"role": "user"}]}, "messages[0]: the question must not be empty"),
        ({"messages": [{"role": "user", "content": " \n"}]}, "messages[0]: the question must not be empty"),
        ({"messages": [{"role": "user", "content": 3}]}, "data did not match any variant of untagged enum Content"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages[1]: this role cannot be used here"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0]: this role cannot be used here"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, *HELLO]},
            "messages[0]: tool calls cannot be used here",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0]: only text is supported",
        ),
        ({"session_id": 3}, "session_id: invalid type: integer `3`, expected a string"),
        ({"session_id": "x" * 1025}, "`session_id` must have at most 1024 characters"),
        ({"query_type": []}, "query_type: invalid type: sequence, expected a string"),
        ({"stream": "yes"}, 'stream: invalid type: string "yes", expected a boolean'),
        ({"user": {"editor_content": ""}}, "user: invalid type: map, expected a string"),
        ({"user": '{"editor_content": "%%%"}'}, "`user.editor_content` is not base64"),
        ({"user": '{"selected_text": 3}'}, "`user.selected_text` must be a string"),
        ({"user": '{"user_info": "x"}'}, "`user.user_info` must be an object"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1"),
        ({"max_tokens": "5"}, "max_tokens: invalid type"),
        ({"temperature": 2.5}, "`temperature` must be between 0 and 2"),
        ({"n": 2}, "`n` is not supported by this model: ask once for each answer"),
        ({"tools": [{}]}, "`tools` is not supported by this model: leave it out"),
        ({"tool_choice": {"type": "function"}}, "`tool_choice` is not supported"),
        ({"top_p": 0.5}, "`top_p` is not supported"),
        ({"top_p": "high"}, "top_p: invalid type"),
        ({"stop": ["x"]}, "`stop` is not supported"),
        ({"stop": 3}, "data did not match any variant of untagged enum Stop"),
        ({"frequency_penalty": 1}, "`frequency_penalty` is not supported"),
        ({"top_logprobs": 2}, "`top_logprobs` is not supported"),
        ({"no_such_field": "x"}, "`no_such_field` is not supported"),
        ({"n": True}, "`n` is not supported"),
        ({"functions": [{}]}, "`functions` is not supported"),
        ({"logprobs": True}, "`logprobs` is not supported"),
        ({"response_format": {"type": "json_object"}}, "`response_format` is not supported"),
        ({"detectors": {"input": {"pii": {}}}}, "as `<model>@<policy>`"),
        ({"policy": "strict"}, "as `<model>@<policy>`"),
        ({"detector": {"input": {}}}, "unknown field `detector`; did you mean `detectors`?"),
    ],
)
def test_what_cannot_be_used_is_refused_in_plain_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.read_chat(body(**{"messages": HELLO, **fields}), TAKES)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt": ""}, {"prompt": []}, {"prompt": ["a", "b"]}, {"prompt": [1]}, {"prompt": "a", "suffix": "b"},
     {"prompt": "a", "echo": True}, {"prompt": "a", "best_of": 2}, {"prompt": "a", "logprobs": 2},
     {"prompt": "a", "logprobs": 0}],
)  # fmt: skip
def test_a_text_completion_that_cannot_be_given_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        text(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"n": 1}, {"n": None}, {"tools": []}, {"tools": None}, {"response_format": {"type": "text"}}, {"logprobs": False},
     {"detectors": {}}, {"tool_choice": "none"}, {"stop": []}, {"metadata": {"a": "b"}}, {"session_id": ""},
     {"top_p": 1}, {"presence_penalty": 0.0}, {"logit_bias": {}}, {"store": True}, {"keep_alive": "5m"}, {"stop": None},
     {"stream_options": {}}, {"parallel_tool_calls": True}, {"no_such_field": None}],
)  # fmt: skip
def test_values_that_mean_nothing_here_are_fine(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize("user", ["", "ana", "{", "[1]", '"x"', "3", "{}", '{"id": 7}', "{" * 5000, '{"a": }'])
def test_an_ordinary_user_name_is_nothing_more(user: str) -> None:
    assert chat(user=user) == chat()


def test_null_inside_user_is_nothing() -> None:
    assert read_user('{"editor_content": null, "user_info": null}') == (Editor(), "")


@given(st.text())
def test_any_text_survives_base64(words: str) -> None:
    assert decode_text("x", b64(words)) == words


@pytest.mark.parametrize("value", ["YQ", "YQ=", "YQ===", "Y===", "YW I=", "YWI=\n", "YWI==", "-_-_", "YQ==YQ==", "ü"])
def test_only_the_standard_alphabet_with_padding_is_base64(value: str) -> None:
    with pytest.raises(InvalidRequest, match="`x` is not base64"):
        decode_text("x", value)


def test_base64_that_holds_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="`x` is not UTF-8 text in base64"):
        decode_text("x", base64.b64encode(b"\xff\xfe").decode())


def test_names_of_sessions_may_be_in_any_language() -> None:
    assert chat(session_id="Sitzung é 1").session_id == "Sitzung é 1"


def test_the_model_is_seen_without_reading_the_rest() -> None:
    assert peek_model(b'{"messages": [{"x": 1}], "model": "m"}') == "m"
    assert [peek_model(raw) for raw in (b"{nope", b"[1]", b"{}", b'{"model": 3}', b"", b"[" * 9000)] == [""] * 6
    with pytest.raises(UnreadableBody, match="Failed to parse the request body as JSON"):
        read_model(b"{nope")
    for raw in (b"[1,2]", b"{}", b'{"model": 3}', b"3"):
        with pytest.raises(InvalidRequest):
            read_model(raw)


def test_a_stream_begins_with_the_role_and_ends_with_its_reason_and_done() -> None:
    writer = wire.ChatTurnWriter(chat(stream=True))
    first, word, last, done = events(writer.begin() + writer.add("Hi\u2028") + writer.finish(end="stop", usage=USAGE))
    assert done == "[DONE]"
    assert {one["object"] for one in (first, word, last)} == {"chat.completion.chunk"}
    assert {one["model"] for one in (first, word, last)} == {"brunix"}
    assert len({one["id"] for one in (first, word, last)}) == 1
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert word["choices"] == [{"index": 0, "delta": {"content": "Hi\u2028"}, "logprobs": None, "finish_reason": None}]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert "usage" not in last


def test_usage_is_told_where_it_was_asked_for_and_known() -> None:
    wanted = chat(stream=True, stream_options={"include_usage": True})
    last, counted, _ = events(wire.ChatTurnWriter(wanted).finish(end="stop", usage=USAGE))
    assert (last["usage"], counted["choices"]) == (None, [])
    assert counted["usage"] == {**USAGE, "total_tokens": 5}
    assert len(events(wire.ChatTurnWriter(wanted).finish(end="stop", usage=None))) == 2


def test_a_text_streams_as_text() -> None:
    writer = wire.TextTurnWriter(text(prompt="Hello", stream=True))
    word, last, _ = events(writer.begin() + writer.add("Hi") + writer.finish(end="content_filter", usage=None))
    assert word["object"] == "text_completion"
    assert word["choices"] == [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": None}]
    assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("", "content_filter")


def test_a_whole_answer_has_its_message_and_its_counters() -> None:
    answer = json.loads(wire.ChatTurnWriter(chat()).write_whole("Hi", end="stop", usage=USAGE))
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["usage"]["total_tokens"]) == ("chat.completion", 5)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    plain = json.loads(wire.TextTurnWriter(text(prompt="Hello")).write_whole("Hi", end="content_filter", usage=None))
    assert (plain["object"], plain["usage"]) == ("text_completion", None)
    assert plain["choices"] == [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "content_filter"}]
