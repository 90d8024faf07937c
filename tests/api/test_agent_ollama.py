# SPDX-License-Identifier: Apache-2.0
"""Requests to agents and configured models in Ollama's words, and the answers (B-42, B-43)."""

import json
from datetime import datetime
from typing import Any

import pytest

from lockgate.api.ollama import format as wire
from lockgate.api.openai.turn_fields import TurnRequest
from lockgate.errors import InvalidRequest
from lockgate.gate.values import Message

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TAKES = frozenset({"max_tokens", "temperature", "seed"})
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def chat(takes: frozenset[str] = TAKES, **fields: Any) -> TurnRequest:
    return wire.read_chat(json.dumps({"model": "brunix", "messages": HELLO, **fields}).encode(), takes)


def text(**fields: Any) -> TurnRequest:
    return wire.read_text(json.dumps({"model": "brunix", **fields}).encode(), TAKES)


def test_a_request_streams_unless_it_says_otherwise() -> None:
    assert [chat(**one).is_stream for one in ({}, {"stream": None}, {"stream": True}, {"stream": False})] == [
        True, True, True, False,
    ]  # fmt: skip


def test_options_say_how_to_answer_and_negative_numbers_mean_any() -> None:
    assert chat(options={"num_predict": 5, "temperature": 0.5, "seed": 1}).params == {
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 1,
    }
    assert chat(options={"num_predict": -1}).params == chat(options=None).params == {}


def test_options_and_formats_have_the_names_of_openai() -> None:
    takes = frozenset({"stop", "top_k", "response_format"})
    assert chat(takes, options={"stop": ["x"], "top_k": 3, "top_p": 1}).params == {"stop": ["x"], "top_k": 3}
    assert chat(takes, format="json").params == {"response_format": {"type": "json_object"}}
    schema = {"type": "object"}
    assert chat(takes, format=schema).params["response_format"]["json_schema"]["schema"] == schema
    with pytest.raises(InvalidRequest, match=r"`options\.num_ctx` is not supported by this model: leave it out"):
        chat(takes, options={"num_ctx": 9})
    with pytest.raises(InvalidRequest, match="`format` must be `json` or a schema"):
        chat(takes, format="xml")


def test_a_text_may_come_with_a_system_message() -> None:
    assert text(prompt="Hi?", system="Be kind.", context=[]).sent == (
        Message("system", "Be kind."),
        Message("user", "Hi?"),
    )


@pytest.mark.parametrize(
    "fields",
    [{"messages": []}, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, {"tools": [{}]},
     {"format": "json"}, {"format": {"type": "object"}}, {"options": []}, {"options": {"temperature": -1}},
     {"options": {"num_predict": "5"}}, {"options": {"top_k": 3}}, {"think": True}, {"no_such_field": 1},
     {"logprobs": True}, {"session_id": 1}, {"detectors": {"policy": "x"}}],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        chat(**fields)


@pytest.mark.parametrize(
    "fields", [{}, {"prompt": ""}, {"prompt": None}, {"prompt": ["a"]}, {"prompt": "a", "images": ["b"]}]
)
def test_a_text_needs_its_prompt(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        text(**fields)


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"format": ""}, {"think": False}, {"keep_alive": "5m"}, {"suffix": ""}]
)
def test_values_that_mean_nothing_here_are_fine(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


def test_a_stream_is_one_line_per_piece_and_its_last_says_done() -> None:
    writer = wire.OllamaChatWriter(chat())
    raw = writer.begin() + writer.add("Hi") + writer.finish(end="stop", usage=USAGE)
    word, last = [json.loads(line) for line in raw.splitlines()]
    assert (word["model"], word["message"], word["done"]) == ("brunix", {"role": "assistant", "content": "Hi"}, False)
    assert datetime.fromisoformat(word["created_at"]).tzinfo is not None
    assert (last["message"]["content"], last["done"], last["done_reason"]) == ("", True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (3, 2)
    assert last["total_duration"] >= last["prompt_eval_duration"] >= 0 <= last["eval_duration"]


def test_no_reader_of_lines_finds_an_end_inside_a_piece() -> None:
    words = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\ré"
    line = wire.OllamaTextWriter(text(prompt="x")).add(words)
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["response"] == words


def test_a_whole_answer_tells_all_at_once() -> None:
    answer = json.loads(
        wire.OllamaTextWriter(text(prompt="x", stream=False)).write_whole("Hi", end="content_filter", usage=None)
    )
    assert (answer["response"], answer["done"], answer["done_reason"]) == ("Hi", True, "content_filter")
    assert "eval_count" not in answer
