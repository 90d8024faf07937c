# SPDX-License-Identifier: Apache-2.0
"""Receipts as they are told, and the frames of every surface: writer and reader find the same in the same object."""

import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from lockgate.api import receipts as wire
from lockgate.api.aggregator.format import AnswerDetails, encode_done, encode_error_event, encode_response, encode_step
from lockgate.api.ollama import format as agent_ollama
from lockgate.api.openai import turn_format as agent_openai
from lockgate.api.openai.format import encode
from lockgate.api.openai.turn_fields import TurnRequest
from lockgate.api.receipts import ReceiptBody, add_frames, build_receipt, encode_receipt, list_frames
from lockgate.gate.receipts import FrameChain, Receipt, RequestPart
from lockgate.gate.sse import SseParser
from lockgate.gate.values import Message
from lockgate.protos.assistance_pb2 import AgentResponse
from lockgate.rag.answer import AnswerResult, GenerationStarted, Token
from tests.gate.planting import Bugs, Law, Patch, check_that_it_is_caught

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "receipts.md").read_text(encoding="utf-8")
Event = dict[str, Any]


def chunk(delta: Any, **more: Any) -> Event:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **more}]}


# The receipt.


def full() -> Receipt:
    receipt = Receipt("strict", is_shadow=True)
    receipt.expect("pii", RequestPart.PROMPT)
    receipt.expect("pii", RequestPart.ANSWER)
    receipt.expect("late", RequestPart.ANSWER)
    receipt.note_read("pii", RequestPart.PROMPT, ["q q"], 0.0015)
    receipt.note_read("pii", RequestPart.ANSWER, ["Hi. ", "Ho."], 0.0005)
    receipt.note_cached("pii", RequestPart.PROMPT, "old")
    receipt.note_finding("pii")
    receipt.note_released(RequestPart.PROMPT, "q q")
    receipt.note_released(RequestPart.ANSWER, "Hi. Ho.")
    receipt.note_action("stop")
    receipt.note_failure("late")
    receipt.note_unread("image", 2)
    receipt.note_left_out("logprobs")
    receipt.prompt_sent_to = ["ana/hours", "ben/echo"]
    add_frames(receipt.chain, chunk({"content": "Hi. Ho."}))
    return receipt


def test_a_receipt_has_exactly_the_agreed_keys_in_their_order() -> None:
    pii = {"detector_id": "pii", "read": {"prompt": 6, "answer": 7}, "chunks": 3, "findings": 1, "time_ms": 2.0}
    late = {"detector_id": "late", "read": {"answer": 0}, "chunks": 0, "findings": 0, "time_ms": 0.0}
    chain = FrameChain()
    chain.add("0/content", "Hi. Ho.")
    body = {
        "version": 1,
        "policy": "strict",
        "mode": "shadow",
        "outcome": "stopped",
        "covered": False,
        "lanes": ["content"],
        "released": {"prompt": 3, "documents": 0, "answer": 7},
        "detectors": [{**pii, "covered": True, "cached_chars": 3}, {**late, "covered": False, "failed": True}],
        "digest": {"algorithm": "sha256-chain-1", "frames": 1, "value": chain.value},
        "unread": {"image": 2},
        "dropped": {"logprobs": 1},
        "prompt_sent_to": ["ana/hours", "ben/echo"],
    }
    assert json.dumps(build_receipt(full())) == json.dumps(body)


def test_a_receipt_of_nothing_is_told_too() -> None:
    told = build_receipt(Receipt())
    assert (told["policy"], told["mode"], told["outcome"], told["covered"]) == (None, "enforce", "released", True)
    assert (told["detectors"], told["digest"]["frames"]) == ([], 0)


def test_the_chain_may_be_kept_elsewhere() -> None:
    chain = FrameChain()
    chain.add("answer", "Hi")
    assert build_receipt(Receipt(), chain)["digest"]["value"] == chain.value


def test_the_documented_shape_is_that_of_the_receipt() -> None:
    read = msgspec.convert(json.loads(json.dumps(build_receipt(full()))), ReceiptBody)
    assert msgspec.to_builtins(read) == build_receipt(full())
    table = PAGE.split("## The JSON")[1].split("\n\n")[1]
    fields = set(re.findall(r"^\| `([\w.\[\]]+)` \|", table, re.MULTILINE))
    told = build_receipt(full())
    assert fields == {
        *[name for name in told if name != "digest"],
        *[f"detectors[].{name}" for one in told["detectors"] for name in one],
        *[f"digest.{name}" for name in told["digest"]],
    }


def test_metadata_get_printable_ascii_in_one_line() -> None:
    told = encode_receipt(Receipt("stürmisch \x7f\n\u2028"))
    assert told.isascii()
    assert told.isprintable()
    assert json.loads(told)["policy"] == "stürmisch \x7f\n\u2028"


# Frames, surface by surface.

CALLS = [
    {"index": 1, "id": "x", "function": {"name": "f", "arguments": "{}"}},
    {"index": 0, "function": {"arguments": '{"a"'}},
    {"type": "custom", "custom": {"name": "g", "input": "words"}},
]


@pytest.mark.parametrize(
    ("event", "frames"),
    [
        (chunk({"role": "assistant", "content": "Hi"}), [("0/content", "Hi")]),
        (chunk({"content": ""}), []),
        (chunk({"content": None, "refusal": "No."}), [("0/refusal", "No.")]),
        (chunk({}, finish_reason="stop"), []),
        (
            chunk({"refusal": "r", "content": "c", "reasoning": "b", "reasoning_content": "a"}),
            [("0/reasoning_content", "a"), ("0/reasoning", "b"), ("0/content", "c"), ("0/refusal", "r")],
        ),
        (
            chunk({"tool_calls": CALLS, "content": "Wait."}),
            [
                ("0/content", "Wait."),
                ("0/tool_calls/1/name", "f"),
                ("0/tool_calls/1/arguments", "{}"),
                ("0/tool_calls/0/arguments", '{"a"'),
                ("0/tool_calls/2/name", "g"),
                ("0/tool_calls/2/input", "words"),
            ],
        ),
        (
            chunk({"function_call": {"name": "f", "arguments": "{"}}),
            [("0/function_call/name", "f"), ("0/function_call/arguments", "{")],
        ),
        (
            {"choices": [{"index": 3, "message": {"content": [{"type": "text", "text": "a"}, {}, 7, {"text": "b"}]}}]},
            [("3/content", "a"), ("3/content", "b")],
        ),
        (
            {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]},
            [("0/content", "a"), ("1/content", "b")],
        ),
        (
            {"choices": [{"delta": {"content": "a"}, "message": {"content": "b"}, "text": "c"}]},
            [("0/content", "a"), ("0/content", "b"), ("0/text", "c")],
        ),
        ({"choices": [{"index": 1, "text": "Hi"}]}, [("1/text", "Hi")]),
        ({"choices": [{"index": True, "text": "a"}, {"index": "2", "text": "b"}]}, [("0/text", "a"), ("1/text", "b")]),
        ({"generated_text": "Hi", "start_index": 0}, [("generated_text", "Hi")]),
        ({"content": "Hi", "detections": []}, [("answer", "Hi")]),
        ({"response": "Hi", "sources": {"T": {"content": "no"}}}, [("answer", "Hi")]),
        ({"message": {"role": "assistant", "content": "Hi"}, "done": False}, [("answer", "Hi")]),
        ({"text": "Hi", "avap_code": "no"}, [("answer", "Hi")]),
        ({"message": "An error, no text."}, []),
        ({"choices": None, "text": 7, "content": ["Hi"], "message": []}, []),
        ({"choices": [None, {"delta": 1, "message": "x"}, {"delta": {"tool_calls": [1, {"function": "f"}]}}]}, []),
        (
            {
                "text": "e",
                "message": {"content": "f"},
                "response": "d",
                "content": "c",
                "generated_text": "b",
                "choices": [{"text": "a"}],
            },
            [("0/text", "a"), ("generated_text", "b"), *[("answer", one) for one in "cdef"]],
        ),
    ],
)
def test_every_text_that_a_client_can_read_is_a_frame_of_its_lane(event: Event, frames: list[tuple[str, str]]) -> None:
    assert list_frames(event) == frames


# Objects that are nearly those of a chat: the quick way must see everything that the plain one does.
SAID = st.sampled_from(["Hi", "", None, 7, "ü", ["x"]])
VALUES = st.one_of(
    st.just("Hi"), SAID, st.sampled_from([0, 1, True, {}, {"content": "Ho"}, [{"function": {"arguments": "{"}}]])
)
CHANGES = st.one_of(
    st.tuples(st.just("event"), st.sampled_from(["text", "content", "response", "generated_text", "message", "id"])),
    st.tuples(st.just("choice"), st.sampled_from(["index", "text", "message", "delta", "finish_reason"])),
    st.tuples(
        st.just("delta"),
        st.sampled_from(["content", "role", "refusal", "reasoning", "reasoning_content", "tool_calls"]),
    ),
)


def build_event(changes: list[tuple[tuple[str, str], Any]], index: int, *, is_doubled: bool) -> Event:
    delta: Event = {"content": "Hi"}
    choice: Event = {"index": index, "delta": delta}
    event: Event = {"choices": [choice, choice] if is_doubled else [choice]}
    for (place, key), value in changes:
        {"event": event, "choice": choice, "delta": delta}[place][key] = value
    return event


EVENTS = st.builds(
    build_event,
    st.lists(st.tuples(CHANGES, VALUES), min_size=1, max_size=3),
    st.sampled_from([0, 0, 0, 1]),
    is_doubled=st.sampled_from([False, False, True]),
)


@given(st.lists(EVENTS, max_size=4))
def test_the_quick_way_adds_what_the_plain_one_lists(events: list[Event]) -> None:
    quick, plain = FrameChain(), FrameChain()
    for event in events:
        add_frames(quick, event)
        for lane, text in list_frames(event):
            plain.add(lane, text)
    assert (quick.frames, quick.value) == (plain.frames, plain.value)


KEYS = st.sampled_from(["choices", "delta", "message", "tool_calls", "content", "index"])


@given(st.recursive(SAID, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_no_object_is_too_strange(value: Any) -> None:
    for lane, text in list_frames({"choices": value, "message": value, "text": value}):
        assert lane
        assert text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_what_is_read_from_the_wire_is_what_was_written(text: str) -> None:
    for event in (chunk({"content": text}), {"generated_text": text}, {"message": {"content": text}}):
        assert list_frames(json.loads(encode(event))) == list_frames(event)


# What the surfaces really send.


def wanted(*, is_stream: bool) -> TurnRequest:
    return TurnRequest("agent", (Message("user", "q"),), is_stream)


@pytest.mark.parametrize(
    ("writer", "lane"),
    [
        (agent_openai.ChatTurnWriter, "0/content"),
        (agent_openai.TextTurnWriter, "0/text"),
        (agent_ollama.OllamaChatWriter, "answer"),
        (agent_ollama.OllamaTextWriter, "answer"),
    ],
)
def test_answers_of_agents_have_their_pieces_as_frames(writer: Any, lane: str) -> None:
    one = writer(wanted(is_stream=True))
    sent = one.begin() + one.add("Hi \u2028") + one.add("there") + one.finish(end="stop", usage=None)
    lines = [line.removeprefix(b"data: ") for line in sent.split(b"\n") if line.strip() not in (b"", b"data: [DONE]")]
    frames = [frame for line in lines for frame in list_frames(json.loads(line))]
    assert frames == [(lane, "Hi \u2028"), (lane, "there")]
    whole = writer(wanted(is_stream=False)).write_whole("Hi there", end="stop", usage=None)
    assert list_frames(json.loads(whole)) == [(lane, "Hi there")]


def test_messages_of_the_grpc_agent_have_their_text_as_a_frame() -> None:
    sent = [AgentResponse(text="Hi"), AgentResponse(text="there", avap_code="AVAP-2026"), AgentResponse(is_final=True)]
    assert [list_frames(MessageToDict(one)) for one in sent] == [[("answer", "Hi")], [("answer", "there")], []]


def read_events(sent: bytes) -> list[Event]:
    return [json.loads(one.data) for one in SseParser().feed(sent)]


def add_up(events: list[Event]) -> dict[str, Any]:
    chain = FrameChain()
    for event in events:
        add_frames(chain, event)
    return {"algorithm": "sha256-chain-1", "frames": chain.frames, "value": chain.value}


@given(st.lists(st.text("ab█ü\n\u2028", max_size=4), max_size=6))
def test_a_streamed_answer_from_documents_adds_up(texts: list[str]) -> None:
    told = AnswerDetails(is_guarded=True)
    sent = encode_step(GenerationStarted(), told)
    sent += b"".join([encode_step(Token(text, 0, len(text)), told) for text in texts])
    events = read_events(sent + encode_done(AnswerResult(), told))
    assert events[-1]["receipt"]["digest"] == add_up(events)
    assert events[-1]["receipt"]["digest"]["frames"] == len([text for text in texts if text])


@given(st.text("ab█ü\n", max_size=9))
def test_a_whole_answer_from_documents_adds_up(text: str) -> None:
    body = json.loads(encode_response(text, AnswerResult(), AnswerDetails(is_guarded=True)))
    assert body["receipt"]["digest"] == add_up([body])
    assert body["receipt"]["digest"]["frames"] == bool(text)


def test_an_answer_that_nobody_reads_has_no_chain_and_an_error_no_frames() -> None:
    told = AnswerDetails()
    encode_step(Token("Hi", 0, 2), told)
    encode_response("Hi", AnswerResult(), told)
    assert told.chain.frames == 0
    assert [list_frames(event) for event in read_events(encode_error_event("It broke."))] == [[]]


# The page.


def read_sample() -> bytes:
    found = re.search(r"```text\n(data: .*?)\n```", PAGE, re.DOTALL)
    assert found
    return found[1].encode() + b"\n\n"


def test_the_worked_example_of_the_page_is_what_the_chain_comes_to() -> None:
    rows = re.findall(r"^\| (?:`(.+?)` )?\| (?:`(.+?)` )?\| `([0-9a-f]{64})` \|", PAGE, re.MULTILINE)
    assert len(rows) == 4
    chain = FrameChain()
    for lane, text, value in rows:
        chain.add(lane, text)
        assert chain.value == value
    events = [json.loads(one.data) for one in SseParser().feed(read_sample()) if one.data != "[DONE]"]
    assert [frame for event in events for frame in list_frames(event)] == [row[:2] for row in rows[1:]]
    assert events[-1]["receipt"]["digest"]["value"] == chain.value
    hashed = re.search(r"For the second frame, (\d+) bytes.*?```text\n(.*?)```", PAGE, re.DOTALL)
    assert hashed
    lines = [re.split(r" {2,}", line)[0].replace(" ", "") for line in hashed[2].splitlines()]
    assert len(bytes.fromhex("".join(lines))) == int(hashed[1])
    assert sha256(bytes.fromhex("".join(lines))).hexdigest() == rows[2][2]


def test_the_lanes_of_the_page_are_those_of_the_code() -> None:
    table = PAGE.split("## Frames and lanes")[1].split("So the surfaces")[0]
    lanes = {lane for row in re.findall(r"\|([^|\n]*)\|$", table, re.MULTILINE) for lane in re.findall(r"`(.+?)`", row)}
    call = {"function": {"name": "a", "arguments": "b"}, "custom": {"name": "c", "input": "d"}}
    said = dict.fromkeys(("reasoning_content", "reasoning", "content", "refusal"), "x")
    delta = {**said, "function_call": call["function"], "tool_calls": [call]}
    event = {"choices": [{"delta": delta, "text": "x"}], "generated_text": "x", "text": "x", "thinking": "x"}
    named = {lane.replace("tool_calls/0/", "tool_calls/J/") for lane, _ in list_frames(event)}
    assert {lane.replace("0/", "I/", 1) if lane.startswith("0/") else lane for lane in named} == lanes


@pytest.mark.parametrize(("old", "new", "verdict"), [("", "", "True"), ("Write", "Wrote", "False")])
def test_the_code_of_the_page_checks_a_stream(tmp_path: Path, old: str, new: str, verdict: str) -> None:
    found = re.search(r"```python\n(# check\.py\n.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "check.py").write_text(found[1], encoding="utf-8")
    (tmp_path / "answer.sse").write_bytes(read_sample().replace(old.encode(), new.encode()))
    command = [sys.executable, "-I", "-X", "dev", "check.py", "answer.sse"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == verdict


# Bugs that the laws must catch.

BUGS = Bugs()


@BUGS.caught_by(test_the_quick_way_adds_what_the_plain_one_lists)
def the_quick_way_overlooks_other_texts_of_the_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = wire._find_only_content

    def find(event: Event) -> str | None:
        delta = event["choices"][0]["delta"]
        only = {"content": delta["content"]} if isinstance(delta, dict) else delta
        return honest({**event, "choices": [{**one, "delta": only} for one in event["choices"]]})

    monkeypatch.setattr(wire, "_find_only_content", find)


@BUGS.caught_by(test_the_quick_way_adds_what_the_plain_one_lists)
def the_quick_way_overlooks_texts_beside_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_TOP_KEYS", frozenset())


@BUGS.caught_by(test_the_quick_way_adds_what_the_plain_one_lists)
def the_quick_way_takes_every_choice_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = wire._find_only_content

    def find(event: Event) -> str | None:
        return honest({**event, "choices": [{**one, "index": 0} for one in event["choices"]]})

    monkeypatch.setattr(wire, "_find_only_content", find)


@BUGS.caught_by(test_a_streamed_answer_from_documents_adds_up, test_a_whole_answer_from_documents_adds_up)
def the_writer_uses_another_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockgate.api.aggregator import format as chat

    def add(chain: FrameChain, event: Event) -> None:
        chain.add("0/content", event.get("content") or event.get("response") or "")

    monkeypatch.setattr(chat, "add_frames", add)


@BUGS.caught_by(test_a_streamed_answer_from_documents_adds_up)
def the_first_token_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockgate.api.aggregator import format as chat

    seen: set[FrameChain] = set()

    def add(chain: FrameChain, event: Event) -> None:
        if chain in seen:
            add_frames(chain, event)
        seen.add(chain)

    monkeypatch.setattr(chat, "add_frames", add)


@pytest.mark.parametrize(("planted", "law"), BUGS.cases)
def test_a_planted_bug_is_caught(planted: Patch, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_is_caught(planted, law, monkeypatch)
