# SPDX-License-Identifier: Apache-2.0
"""Streamed completions through the real pipeline: whatever a model sends leaves once, whole and in its order."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockgate.api.openai.events import EventWriter
from lockgate.api.openai.format import CHAT, TEXT, CompletionRequest, read_request
from lockgate.api.openai.stream_reader import StreamOptions
from lockgate.api.openai.whole_answer import CHATS, TEXTS
from lockgate.compat.fms.completions import FmsEventWriter
from lockgate.gate.lanes import LanePlan
from lockgate.gate.release import Strategy
from lockgate.gate.sse import SseParser
from lockgate.gate.values import Generation
from lockgate.guard.detectors import ActiveGuard, Guard
from lockgate.guard.model_source import read_model
from lockgate.guard.stream import list_readers, open_guarded_stream
from lockgate.testing import FixedChunker, ScriptedBackend, ScriptedDetector, find_word

CHAT_REQUEST = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"q"}]}'
TEXT_REQUEST = b'{"model":"m","stream":true,"prompt":"q"}'
FIELDS = ("content", "reasoning_content", "refusal")
BASE = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

Event = dict[str, Any]


def message(index: int, delta: Event, finish: str | None = None, **extra: Any) -> Event:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**BASE, "choices": [choice | extra]}


def text_message(index: int, text: str, finish: str | None = None) -> Event:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
    return {**BASE, "object": "text_completion", "choices": [choice], "usage": None}


def guards_of(*sizes: int, trailing: bool = False) -> list[ActiveGuard]:
    active = []
    for size in sizes:
        detector = ScriptedDetector(find_word("a"), delay_s=0.0005 * (size % 3))
        guard = Guard(f"d{size}", "text_contents", detector, f"c{size}", FixedChunker(size), 0.5)
        active.append(ActiveGuard(guard, detector.accept({}, ()), 0.5, holds=True))
    if trailing:
        detector = ScriptedDetector(find_word("b"))
        guard = Guard("late", "text_contents", detector, "late", FixedChunker(1000), 0.5)
        active.append(ActiveGuard(guard, detector.accept({}, ()), 0.5, holds=False))
    return active


async def play(
    bursts: Sequence[Sequence[Event]],
    guards: Sequence[ActiveGuard],
    writer: EventWriter,
    plan: LanePlan | None = None,
) -> list[Event | str]:
    """The events that a client would see."""
    source = read_model(partial(ScriptedBackend(bursts).stream, Generation("m", {})), to_frames=writer.to_frames)
    lanes = plan or LanePlan(list_readers(guards), strategy=Strategy.FRONTIER)
    written = b""
    async with open_guarded_stream(source, guards, lanes) as releases:
        async for release in releases:
            written += writer.take(release)
    written += writer.finish()
    events = SseParser().feed(written)
    return [one.data if one.data == "[DONE]" else json.loads(one.data) for one in events]


def chat(guards: Sequence[ActiveGuard], *, is_fms: bool = False) -> EventWriter:
    late = frozenset(one.guard.id for one in guards if not one.holds)
    return (FmsEventWriter if is_fms else EventWriter)(CHATS, asked(), StreamOptions(late, holds=True))


def asked() -> CompletionRequest:
    return read_request(CHAT, CHAT_REQUEST)


def deltas(events: Sequence[Event | str], index: int) -> list[Event]:
    choices = [choice for event in events if isinstance(event, dict) for choice in event["choices"]]
    return [choice["delta"] for choice in choices if choice["index"] == index]


def joined(parts: Sequence[Event], field: str) -> str:
    return "".join(part.get(field) or "" for part in parts)


def order_of(parts: Sequence[Event]) -> list[str]:
    """In which order the texts and tool calls of a choice come, runs as one."""
    order: list[str] = []
    for part in parts:
        for key in (*FIELDS, "tool_calls"):
            if part.get(key) and order[-1:] != [key]:
                order.append(key)
    return order


pieces = st.text(alphabet="ab .\n", min_size=1, max_size=6)
steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            ["content", "content", "content", "reasoning_content", "refusal", "tool_calls", "role", "empty"]
        ),
        pieces,
    ),
    max_size=25,
)


@given(steps, st.lists(st.sampled_from([1, 2, 5, 9]), min_size=1, max_size=3, unique=True), st.booleans(), st.data())
def test_whatever_a_model_says_leaves_once_whole_and_in_its_order(
    said: list[tuple[int, str, str]], sizes: list[int], has_usage: bool, data: st.DataObject
) -> None:
    messages = []
    for place, (index, kind, text) in enumerate(said):
        if kind == "tool_calls":
            messages.append(message(index, {kind: [{"index": 0, "id": f"t{place}", "function": {"arguments": text}}]}))
        else:
            messages.append(message(index, {"role": "assistant"} if kind in ("role", "empty") else {kind: text}))
    indexes = sorted({index for index, _, _ in said})
    messages += [message(index, {}, "stop") for index in indexes]
    if has_usage:
        messages.append({**BASE, "choices": [], "usage": {"prompt_tokens": 1}})
    cut = data.draw(st.integers(0, len(messages)))
    guards = guards_of(*sizes)
    events = asyncio.run(play([messages[:cut], messages[cut:]], guards, chat(guards)))
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    for index in indexes:
        sent = [
            one["choices"][0]["delta"] for one in messages if one["choices"] and one["choices"][0]["index"] == index
        ]
        got = deltas(events, index)
        for field in FIELDS:
            assert joined(got, field) == joined(sent, field)
        calls = [call for part in got for call in part.get("tool_calls", ())]
        assert calls == [call for part in sent for call in part.get("tool_calls", ())]
        if "tool_calls" not in order_of(sent):  # one may stand in the middle of a chunk
            assert order_of(got) == order_of(sent)
        check_places(events, index)
        finishes = [
            place
            for place, event in enumerate(events)
            if isinstance(event, dict)
            and event["choices"]
            and event["choices"][0]["index"] == index
            and event["choices"][0]["finish_reason"]
        ]
        texts = [
            place
            for place, event in enumerate(events)
            if isinstance(event, dict)
            and event["choices"]
            and event["choices"][0]["index"] == index
            and any(event["choices"][0]["delta"].get(field) for field in FIELDS)
        ]
        assert len(finishes) == 1
        assert not texts or texts[-1] <= finishes[0]
    told = [event["usage"] for event in events if isinstance(event, dict) and event.get("usage")]
    assert told == ([{"prompt_tokens": 1}] if has_usage else [])


def check_places(events: Sequence[Event | str], index: int) -> None:
    """Per text: places follow each other, and each finding lies where its text is, once per detector."""
    reached: dict[str, int] = {}
    seen: dict[str, set[tuple[str, int]]] = {}
    for event in events:
        if not isinstance(event, dict) or "detections" not in event or not event["choices"]:
            continue
        (entry,) = event["detections"]["output"]
        if entry["choice_index"] != index:
            continue
        field = entry.get("field", "content")
        text = event["choices"][0]["delta"][field]
        assert entry["start_index"] == reached.get(field, 0)
        assert entry["processed_index"] - entry["start_index"] == len(text)
        reached[field] = entry["processed_index"]
        for found in entry["results"]:
            key = found["detector_id"], found["start"]
            assert key not in seen.setdefault(field, set())
            seen[field].add(key)
            assert entry["start_index"] <= found["start"] < entry["processed_index"]
            assert text[found["start"] - entry["start_index"]] == "a"
        expected = sum(letter == "a" for letter in text)
        assert len(entry["results"]) == expected * len({one["detector_id"] for one in entry["results"]} or {0})


async def test_tool_calls_and_the_end_keep_their_place_behind_earlier_text() -> None:
    guards = guards_of(4)
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [
        message(0, {"role": "assistant"}),
        message(0, {"content": "abcdef"}),
        message(0, {"tool_calls": [call]}),
        message(0, {}, "tool_calls"),
    ]
    events = await play([said], guards, chat(guards))
    got = deltas(events, 0)
    assert [part.get("content") for part in got] == ["abcd", "ef", None, None]
    assert got[2] == {"tool_calls": [call], "role": "assistant"}
    assert got[3] == {"role": "assistant"}
    assert "detections" not in events[2]


async def test_the_end_of_a_choice_follows_a_tool_call_that_stands_within_a_chunk() -> None:
    guards = guards_of(9)
    call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}
    said = [
        message(0, {"content": "abc"}),
        message(0, {"tool_calls": [call]}),
        message(0, {"content": "def"}, "stop"),
    ]
    events = await play([said], guards, chat(guards))
    told = [event["choices"][0] for event in events if isinstance(event, dict)]
    assert [(one["delta"].get("content"), one["finish_reason"]) for one in told] == [
        ("abcdef", None),
        (None, None),
        (None, "stop"),
    ]
    assert told[1]["delta"]["tool_calls"] == [call]


async def test_reasoning_leaves_before_the_content_that_follows_it_without_waiting_for_more() -> None:
    guards = guards_of(100)
    said = [
        message(0, {"reasoning_content": "let me think"}),
        message(0, {"content": "done"}),
        message(0, {}, "stop"),
    ]
    events = await play([said], guards, chat(guards))
    assert order_of(deltas(events, 0)) == ["reasoning_content", "content"]
    first = events[0]
    assert isinstance(first, dict)
    assert first["detections"]["output"][0]["field"] == "reasoning_content"


async def test_fms_drops_reasoning_and_tells_places_relative_to_the_event() -> None:
    guards = guards_of(4)
    said = [
        message(0, {"reasoning_content": "hm"}),
        message(0, {"content": "xxxxxxa"}),
        message(0, {}, "stop"),
    ]
    events = await play([said], guards, chat(guards, is_fms=True))
    second = events[1]
    assert isinstance(second, dict)
    assert second["detections"] == {
        "output": [
            {
                "choice_index": 0,
                "results": [
                    {
                        "start": 2, "end": 3, "text": "a", "detector_id": "d4", "detection_type": "test",
                        "detection": "Word", "score": 1.0,
                    }
                ],
            }
        ]
    }  # fmt: skip
    assert "reasoning_content" not in json.dumps(events)


async def test_what_a_message_carries_leaves_with_its_last_character() -> None:
    guards = guards_of(3)
    said = [
        message(0, {"content": "abcd"}, logprobs={"content": [{"token": "abcd"}]}),
        message(0, {"content": "ef"}, "stop", logprobs={"content": [{"token": "ef"}]}, token_ids=[7]),
    ]
    events = await play([said], guards, chat(guards))
    told = [event["choices"][0] for event in events if isinstance(event, dict)]
    assert [one["delta"]["content"] for one in told] == ["abc", "def"]
    assert [one["logprobs"] for one in told] == [None, {"content": [{"token": "abcd"}, {"token": "ef"}]}]
    assert [one["finish_reason"] for one in told] == [None, "stop"]
    assert told[1]["token_ids"] == [7]


async def test_late_detectors_report_in_one_event_before_the_end() -> None:
    guards = guards_of(3, trailing=True)
    said = [message(0, {"content": "xxbxx"}), message(1, {"content": "yy"}), message(0, {}, "stop")]
    events = await play([said], guards, chat(guards))
    last = events[-2]
    assert isinstance(last, dict)
    assert last["choices"] == []
    entries = last["detections"]["output"]
    assert [(one["choice_index"], len(one["results"])) for one in entries] == [(0, 1), (1, 0)]
    assert last["warnings"][0]["type"] == "UNSUITABLE_OUTPUT"


async def test_a_tools_output_is_released_as_it_is() -> None:
    guards = guards_of(3)
    said = [message(0, {"role": "tool", "content": "aaaa"}), message(0, {"content": "aa"}), message(0, {}, "stop")]
    events = await play([said], guards, chat(guards))
    got = deltas(events, 0)
    assert joined(got, "content") == "aaaaaa"
    assert all("detections" not in event for event in events if isinstance(event, dict))


async def test_a_stream_without_holding_detectors_is_passed_on_message_by_message() -> None:
    said = [
        message(0, {"role": "assistant", "content": ""}),
        message(0, {"content": "hi", "audio": {"x": 1}}),
        message(0, {}, "stop"),
        {**BASE, "choices": [], "usage": {"prompt_tokens": 1}, "vendor": [1]},
    ]
    writer = EventWriter(CHATS, asked(), StreamOptions())
    assert await play([said[:1], said[1:]], [], writer) == [*said, "[DONE]"]


async def test_several_choices_in_one_message_are_all_read() -> None:
    both = {**BASE, "choices": [{"index": 0, "delta": {"content": "ab"}}, {"index": 1, "delta": {"content": "cd"}}]}
    guards = guards_of(9)
    events = await play([[both]], guards, chat(guards))
    assert joined(deltas(events, 0), "content") == "ab"
    assert joined(deltas(events, 1), "content") == "cd"


@given(st.lists(st.tuples(st.integers(0, 1), pieces), max_size=12), st.booleans())
def test_streamed_texts_leave_whole_with_one_end_each(said: list[tuple[int, str]], is_fms: bool) -> None:
    messages = [text_message(index, text) for index, text in said]
    indexes = sorted({index for index, _ in said})
    messages += [text_message(index, "", "length") for index in indexes]
    guards = guards_of(2, 5)
    request = read_request(TEXT, TEXT_REQUEST)
    writer = (FmsEventWriter if is_fms else EventWriter)(TEXTS, request, StreamOptions(holds=True))
    events = asyncio.run(play([messages], guards, writer))
    for index in indexes:
        got = [e["choices"][0] for e in events if isinstance(e, dict) and e["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in got) == "".join(text for place, text in said if place == index)
        assert [one["finish_reason"] for one in got if one["finish_reason"]] == ["length"]
        assert got[-1]["finish_reason"] == "length"
    assert all("usage" in event for event in events if isinstance(event, dict))
