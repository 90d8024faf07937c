# SPDX-License-Identifier: Apache-2.0
"""Laws of streams under a policy: whatever a model says, cut and mixed as it likes, nothing of a match leaves."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.api.receipts import add_frames, list_frames
from lockgate.errors import BrokeProtocol, HeldTooMuch
from lockgate.gate.receipts import FrameChain
from lockgate.gate.release import Release
from lockgate.gate.verdicts import Action, MaskWith
from tests.api.lane_worlds import (
    ALL_LANES,
    BASE,
    ESCAPED,
    FALLBACK,
    LETTERS,
    PASSING,
    SECRET,
    SHADOW,
    PolicyCase,
    Told,
    World,
    build_world,
    lane_of,
    list_texts,
    open_writer,
    play,
)

seeds = st.integers(0, 2**32)
masks = st.sampled_from(list(MaskWith))
lane_sets = st.sets(st.sampled_from(ALL_LANES)).map(frozenset)
each_seed = settings(max_examples=settings().max_examples * 2 // 5)
_ESCAPES = re.compile(r"(?:\\u[0-9a-f]{4}|\\.)+")


def told_by(seed: int, case: PolicyCase) -> tuple[World, Told]:
    rng = random.Random(seed)
    world = build_world(rng)
    return world, play(rng, world, case)


def check_hidden(told: Told) -> None:
    """Not one letter of a secret, in no field of any event, plain or escaped."""
    for event in told.events:
        raw = json.dumps(event, ensure_ascii=False)
        assert not set(LETTERS) & set(raw), raw
        assert not ESCAPED.search(raw.replace("\\\\", "\\")), raw


def expect(text: str, told: Told, mask_with: MaskWith) -> str:
    """A text with its secrets masked."""
    names = {value: name for name, value in told.names.items()}
    write = {
        MaskWith.BLOCK: lambda one: "█" * len(one[0]),
        MaskWith.LABEL: lambda _: "[WORD]",
        MaskWith.PSEUDONYM: lambda one: names[one[0]],
    }[mask_with]
    return SECRET.sub(write, text)


def expect_value(value: Any, told: Told, mask_with: MaskWith) -> Any:
    """The same of all strings in a value, keys included."""
    if isinstance(value, str):
        return expect(value, told, mask_with)
    if isinstance(value, list | tuple):
        return [expect_value(one, told, mask_with) for one in value]
    return value


def read_json(text: str) -> Any:
    """Objects as lists of pairs: masked keys may be the same."""
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: [list(pair) for pair in pairs])
    except ValueError as error:
        raise AssertionError(f"no JSON: {text}") from error


@each_seed
@given(seeds, masks)
def test_every_text_leaves_as_it_was_said_but_for_its_masks(seed: int, mask_with: MaskWith) -> None:
    world, told = told_by(seed, PolicyCase(mask_with=mask_with))
    left = told.texts()
    assert {key for key, text in left.items() if text} <= world.texts.keys()
    for key, text in world.texts.items():
        if key[1].endswith("arguments"):
            assert read_json(left[key]) == expect_value(read_json(text), told, mask_with)
        else:
            assert left.get(key, "") == expect(text, told, mask_with)


@each_seed
@given(seeds, masks)
def test_nothing_of_a_match_leaves_in_any_field_of_any_event(seed: int, mask_with: MaskWith) -> None:
    _, told = told_by(seed, PolicyCase(mask_with=mask_with))
    check_hidden(told)


@each_seed
@given(seeds, lane_sets)
def test_lanes_that_are_left_out_pass_unread_and_the_others_are_masked(seed: int, lanes: frozenset[str]) -> None:
    world, told = told_by(seed, PolicyCase(lanes=lanes))
    left = told.texts()
    assert {lane_of(field) for _, field in told.read} <= lanes
    for key, text in world.texts.items():
        if lane_of(key[1]) not in lanes:
            assert left.get(key, "") == text
        else:
            assert not set(LETTERS) & set(left[key])


@each_seed
@given(seeds)
def test_under_annotate_every_text_is_read_and_leaves_as_it_came(seed: int) -> None:
    world, told = told_by(seed, PolicyCase(Action.ANNOTATE))
    left = told.texts()
    assert {key: text for key, text in left.items() if text} == world.texts
    plain = {key: decode(text) if key[1].endswith("arguments") else text for key, text in world.texts.items()}
    assert told.read == plain


def decode(raw: str) -> str:
    """JSON with its escapes as the characters that they stand for."""
    return _ESCAPES.sub(lambda one: str(json.loads(f'"{one[0]}"')), raw)


@each_seed
@given(seeds)
def test_each_finding_is_told_once_with_its_place_in_what_was_read(seed: int) -> None:
    _, told = told_by(seed, PolicyCase())
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for event in told.events:
        for entry in event.get("detections", {}).get("output", ()):
            spans = found.setdefault((entry["choice_index"], entry.get("field", "content")), [])
            for one in entry["results"]:
                assert one["text"] == "█" * (one["end"] - one["start"])
                spans.append((one["start"], one["end"]))
    expected = {key: [one.span() for one in SECRET.finditer(text)] for key, text in told.read.items()}
    assert {key: spans for key, spans in found.items() if spans} == {key: one for key, one in expected.items() if one}


@each_seed
@given(seeds, lane_sets, st.booleans())
def test_a_call_is_named_once_and_before_its_arguments(seed: int, lanes: frozenset[str], hides: bool) -> None:
    world, told = told_by(seed, PolicyCase(Action.MASK if hides else Action.ANNOTATE, lanes=lanes))
    named: dict[tuple[int, int], str] = {}
    for event in told.events:
        for choice in event["choices"]:
            index, delta = choice["index"], choice["delta"]
            parts = [(-1, delta["function_call"])] if delta.get("function_call") else []
            for call in delta.get("tool_calls") or ():
                inner = call.get("function") or call.get("custom") or {}
                parts.append((call["index"], {**inner, "id": call.get("id")}))
            for place, part in parts:
                if part.get("name"):
                    assert (index, place) not in named
                    assert place == -1 or part["id"] == f"id-{part['name']}"
                    named[index, place] = part["name"]
                if part.get("arguments") or part.get("input"):
                    assert (index, place) in named
    assert named == world.names


@each_seed
@given(seeds)
def test_calls_come_one_after_the_other_behind_the_content_that_was_said_before(seed: int) -> None:
    """Clients take a call for complete when the next one begins, and the text when the first does."""
    world, told = told_by(seed, PolicyCase())
    said, left = list_calls(world.messages), list_calls(told.events)
    assert [(index, field) for index, field, _ in left] == [(index, field) for index, field, _ in said]
    for (_, _, before), (_, _, heard) in zip(said, left, strict=True):
        assert heard >= before
    latest: dict[int, str] = {}
    seen: set[tuple[int, str]] = set()
    for choice in [choice for event in told.events for choice in event["choices"]]:
        for name in list_call_names(choice["delta"]):
            assert latest.get(choice["index"]) == name or (choice["index"], name) not in seen
            latest[choice["index"]] = name
            seen.add((choice["index"], name))


def list_calls(events: list[Any]) -> list[tuple[int, str, int]]:
    """The calls of each choice in their order, where they begin and how much of its content came before."""
    content: dict[int, int] = {}
    calls: dict[tuple[int, str], int] = {}
    for event in events:
        for choice in event["choices"]:
            index = choice["index"]
            content[index] = content.get(index, 0) + len(choice["delta"].get("content") or "")
            for name in list_call_names(choice["delta"]):
                calls.setdefault((index, name), content[index])
    return sorted([(*key, before) for key, before in calls.items()], key=lambda one: one[0])


def list_call_names(delta: Any) -> list[str]:
    names = ["the call"] if delta.get("function_call") else []
    return names + [f"call {call['index']}" for call in delta.get("tool_calls") or ()]


@each_seed
@given(seeds, lane_sets)
def test_the_ends_come_last_and_the_very_last_event_bears_a_receipt_that_fits(seed: int, lanes: frozenset[str]) -> None:
    world, told = told_by(seed, PolicyCase(lanes=lanes))
    check_ends(told, world.finishes, has_usage=world.has_usage)


def check_ends(told: Told, finishes: dict[int, str], *, has_usage: bool) -> None:
    ended: dict[int, str] = {}
    chain = FrameChain()
    for event in told.events:
        frames = list_frames(event)
        assert not (ended and frames)
        for lane, text in frames:
            chain.add(lane, text)
        for choice in event["choices"]:
            if choice["finish_reason"] is not None:
                assert choice["index"] not in ended
                ended[choice["index"]] = choice["finish_reason"]
    assert ended == finishes
    assert [bool(event["choices"]) for event in told.events] == [True] * (len(told.events) - has_usage) + [
        False
    ] * has_usage
    assert ["receipt" in event for event in told.events] == [False] * (len(told.events) - 1) + [True]
    digest = told.events[-1]["receipt"]["digest"]
    assert (digest["frames"], digest["value"]) == (chain.frames, chain.value)


@each_seed
@given(seeds, st.sampled_from([Action.STOP, Action.BLOCK]))
def test_an_answer_that_is_cut_off_ends_with_the_fallback_and_leaks_nothing(seed: int, action: Action) -> None:
    world, told = told_by(seed, PolicyCase(action))
    check_hidden(told)
    left = told.texts()
    said = "".join(text for (_, field), text in left.items() if field == "content")
    has_found = any(SECRET.search(text) for text in told.read.values())
    assert said.count(FALLBACK) == has_found
    for key, text in left.items():
        kept = text.removesuffix(FALLBACK)
        assert kept == text or not kept or kept.endswith("\n")
        assert world.texts.get(key, "").startswith(kept if kept == text else kept[:-1])
    heard = {choice["index"] for event in told.events for choice in event["choices"]}
    ends = dict.fromkeys(heard, "content_filter") if has_found else world.finishes
    check_ends(told, ends, has_usage=world.has_usage and not told.events[-1]["choices"])


# Streams that pass.


@each_seed
@given(seeds, lane_sets, st.sampled_from([PASSING, SHADOW]))
def test_messages_that_pass_are_the_models_own_and_all_lanes_are_read_beside(
    seed: int, lanes: frozenset[str], case: PolicyCase
) -> None:
    rng = random.Random(seed)
    world = build_world(rng)
    case = case._replace(lanes=lanes)
    told = play(rng, world, case)
    receipt = told.events[-1].pop("receipt")
    assert told.events == world.messages
    chain = FrameChain()
    for message in world.messages:
        add_frames(chain, message)
    assert receipt["digest"]["value"] == chain.value
    held = play(random.Random(seed), world, case._replace(holds=True, is_shadow=False))
    assert told.read == held.read


@each_seed
@given(seeds)
def test_a_passing_message_waits_only_where_it_may_be_the_last(seed: int) -> None:
    writer = open_writer(SHADOW)
    has_waited = False
    for message in build_world(random.Random(seed)).messages:
        frames = [one for one in writer.to_frames(message) if one.choice == 0]
        written = writer.take(Release(0, 0, "", (), tuple(frames), 0))
        may_be_last = not message["choices"] or any(one["finish_reason"] for one in message["choices"])
        assert (written == b"") == (may_be_last and not has_waited)
        has_waited = may_be_last


# Bounds and broken models.


def _calls(*calls: Any) -> dict[str, Any]:
    return {**BASE, "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": None}]}


def test_a_number_without_end_in_arguments_ends_the_stream() -> None:
    writer = open_writer(PolicyCase(max_held_chars=1000))
    list(writer.to_frames(_calls({"index": 0, "function": {"name": "f", "arguments": '{"n": '}})))
    with pytest.raises(HeldTooMuch, match="more than 1000 characters"):
        for _ in range(1000):
            for frame in writer.to_frames(_calls({"index": 0, "function": {"arguments": "11"}})):
                end = writer._segments[frame.choice].received
                writer.take(Release(end - len(frame.text), end, frame.text, (), (frame,), frame.choice))


def test_in_shadow_a_number_without_end_is_read_and_kept_by_nobody() -> None:
    writer = open_writer(SHADOW._replace(max_held_chars=1000))
    given = [one for _ in range(2000) for one in writer.to_frames(_calls({"function": {"arguments": "11"}}))]
    assert sum(len(one.text) for one in given) == 4000


@pytest.mark.parametrize("index", [None, "0", 1.5, True, [1]])
def test_a_call_without_a_proper_place_is_read_all_the_same(index: Any) -> None:
    call = {"index": index, "id": "x", "function": {"name": "f", "arguments": '{"a": "QXZ"}'}}
    for message in (_calls(call), _calls({key: value for key, value in call.items() if key != "index"})):
        told = play(random.Random(1), World([message], {}, {}, {}, False), PolicyCase())
        check_hidden(told)
        assert told.texts()[0, "tool_calls/0/arguments"] == '{"a": "███"}'


def test_arguments_that_come_as_an_object_are_read_as_the_text_that_they_stand_for() -> None:
    message = _calls({"index": 0, "id": "x", "function": {"name": "f", "arguments": {"a": "QXZ", "b": [1]}}})
    told = play(random.Random(1), World([message], {}, {}, {}, False), PolicyCase())
    check_hidden(told)
    assert json.loads(told.texts()[0, "tool_calls/0/arguments"]) == {"a": "███", "b": [1]}


def test_a_stream_without_an_end_still_has_a_choice_in_every_event() -> None:
    message = {**BASE, "choices": [{"index": 0, "delta": {"content": "hi"}}]}
    for case in (PolicyCase(), PASSING, SHADOW):
        told = play(random.Random(1), World([message], {}, {}, {}, False), case)
        assert all(event["choices"] for event in told.events)
        assert "receipt" in told.events[-1]


def test_what_is_no_choice_is_the_models_fault() -> None:
    for case in (PolicyCase(), SHADOW):
        writer = open_writer(case)
        with pytest.raises(BrokeProtocol):
            list(writer.to_frames({**BASE, "choices": ["no"]}))


def test_log_probabilities_of_the_end_are_told_with_it_where_nothing_is_hidden() -> None:
    token = {"content": [{"token": "hi", "logprob": -1.0}]}
    said = {**BASE, "choices": [{"index": 0, "delta": {"content": "hi"}, "logprobs": token, "finish_reason": None}]}
    part = {**BASE, "choices": [{"index": 0, "delta": {}, "logprobs": token, "finish_reason": None}]}
    end = {**BASE, "choices": [{"index": 0, "delta": {}, "logprobs": token, "finish_reason": "stop", "matched": 2}]}
    for action, counts in ((Action.ANNOTATE, [1, 2]), (Action.MASK, [0, 0])):
        told = play(random.Random(1), World([said, part, end], {}, {}, {}, False), PolicyCase(action))
        *spoken, last = [event["choices"][0] for event in told.events]
        tokens = [len((one["logprobs"] or {}).get("content", ())) for one in (*spoken, last)]
        assert [sum(tokens[:-1]), tokens[-1]] == counts
        assert ("matched" in last) == (action is Action.ANNOTATE)
        assert "".join(text for one in spoken for _, text in list_texts(one["delta"])) == "hi"
