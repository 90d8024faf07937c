# SPDX-License-Identifier: Apache-2.0
"""What policies do to chats and texts over sockets: masks, lanes, shadow, names in paths, defaults, early checks."""

import asyncio
import json
from typing import Any

import pytest

from tests.contracts.http_peers import Exchange
from tests.server.endings import ended_badly, ended_well
from tests.server.gateways import events_of
from tests.server.http_client import Answer, call
from tests.server.policy_house import (
    MAIL,
    OTHER_MAIL,
    SAID,
    Voice,
    arguments,
    chat,
    open_house,
    post,
    spoken,
    text,
    verifies,
)
from tests.waits import is_pending, linger

CHAT, TEXT, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
HIDDEN = "█" * len(MAIL)
ASKED = f"Is {MAIL} right?"
BOTH = pytest.mark.parametrize("is_stream", [False, True])
WAYS = [(path, is_stream) for path in (CHAT, TEXT) for is_stream in (False, True)]


def build(path: str, policy: str | None, prompt: str = "Hello", *, is_stream: bool, **more: Any) -> dict[str, Any]:
    return (chat if path.endswith(CHAT) else text)(policy, prompt, stream=is_stream, **more)


def read(answer: Answer, *, is_stream: bool) -> list[Any]:
    """The objects of an answer, whose receipt fits."""
    assert answer.status == 200, answer
    events = ended_well(events_of(answer)) if is_stream else [answer.json()]
    assert verifies(answer.body)
    return events


def said_in(events: list[Any]) -> str:
    [whole] = events if len(events) == 1 else [None]
    if whole is not None and "message" in whole["choices"][0]:
        return str(whole["choices"][0]["message"]["content"])
    return spoken(events)


# Masks.


@pytest.mark.parametrize(("policy", "mask"), [("masked", HIDDEN), ("labelled", "[EMAIL]"), ("renamed", None)])
async def test_what_is_found_is_masked_in_prompt_and_answer_alike(policy: str, mask: str | None) -> None:
    async with open_house() as house:
        for path, is_stream in WAYS:
            answer = await post(house.port, path, build(path, policy, ASKED, is_stream=is_stream))
            events = read(answer, is_stream=is_stream)
            shown = mask or house.voice.prompt.removeprefix("Is ").removesuffix(" right?")
            assert "ana" not in shown
            assert house.voice.prompt == ASKED.replace(MAIL, shown)
            assert said_in(events) == SAID.replace(MAIL, shown)
            for part in (b"ana@", b"exam", b"ple.org"):
                assert part not in answer.body
            assert b"pseudonyms" not in answer.body
            receipt = events[-1]["receipt"]
            assert (receipt["outcome"], receipt["mode"], receipt["covered"]) == ("masked", "enforce", True)
            assert [one["findings"] for one in receipt["detectors"]] == [2]


@BOTH
async def test_names_are_told_to_whoever_asks_for_them_and_hold_for_the_whole_request(is_stream: bool) -> None:
    voice = Voice(f"Not {MAIL} but bo@exam", f"ple.net, or {MAIL}. Bye.")
    async with open_house(voice) as house:
        answer = await post(
            house.port,
            CHAT,
            chat("renamed", ASKED, stream=is_stream),
            x_lockgate_mapping="true",
            x_lockgate_receipt="1",
        )
        events = read(answer, is_stream=is_stream)
        names = events[-1]["pseudonyms"]
        assert sorted(names.values()) == sorted([MAIL, OTHER_MAIL])
        by_value = {value: name for name, value in names.items()}
        assert house.voice.prompt == ASKED.replace(MAIL, by_value[MAIL])
        assert said_in(events) == f"Not {by_value[MAIL]} but {by_value[OTHER_MAIL]}, or {by_value[MAIL]}. Bye."
        plain = await post(house.port, CHAT, chat("masked", stream=is_stream), x_lockgate_mapping="true")
        assert read(plain, is_stream=is_stream)[-1]["pseudonyms"] == {}


async def test_a_name_that_comes_back_from_the_model_stays_itself() -> None:
    voice = Voice()
    async with open_house(voice) as house:
        await post(house.port, CHAT, chat("renamed", ASKED))
        name = voice.prompt.removeprefix("Is ").removesuffix(" right?")
        voice.deltas = [{"content": f"Yes, {name[:5]}"}, {"content": f"{name[5:]} is."}]
        events = read(await post(house.port, CHAT, chat("renamed", ASKED)), is_stream=True)
    assert spoken(events) == f"Yes, {name} is."


@BOTH
async def test_each_detector_may_have_an_action_of_its_own(is_stream: bool) -> None:
    voice = Voice("Ticket T-42 of ana@exam", "ple.org. The blue", "bird sings. More.")
    async with open_house(voice) as house:
        events = read(await post(house.port, CHAT, chat("own", stream=is_stream)), is_stream=is_stream)
    assert said_in(events) == f"Ticket T-42 of {HIDDEN}. \n[cut]"
    assert events[-1]["receipt"]["outcome"] == "stopped"
    results = [
        one for event in events for entry in event.get("detections", {}).get("output", ()) for one in entry["results"]
    ]
    assert {one["detector_id"]: one["text"] for one in results} == {"code": "T-42", "mail": HIDDEN, "word": "█" * 8}
    assert {choice["finish_reason"] for event in events for choice in event["choices"]} - {None} == {"content_filter"}


# What is cut off.


@pytest.mark.parametrize(("policy", "left"), [("stopped", "[cut]"), ("blocked", "[cut]")])
async def test_the_models_connection_is_closed_after_the_finding(policy: str, left: str) -> None:
    async with open_house(Voice(waits=True)) as house:
        for path in (CHAT, TEXT):
            house.voice.is_left.clear()
            events = read(await post(house.port, path, build(path, policy, is_stream=True)), is_stream=True)
            await house.voice.is_left.wait()
            assert spoken(events) == left
            ends = [choice["finish_reason"] for event in events for choice in event["choices"]]
            assert ends == [None] * (len(ends) - 1) + ["content_filter"]
            assert events[-1]["receipt"]["outcome"] == policy


async def test_a_prompt_that_is_blocked_is_answered_with_the_fallback() -> None:
    async with open_house() as house:
        for path, is_stream in WAYS:
            answer = await post(house.port, path, build(path, "asked", "A bluebird?", is_stream=is_stream))
            [event] = read(answer, is_stream=is_stream)
            assert said_in([event]) == "[no]"
            assert event["choices"][0]["finish_reason"] == "content_filter"
            assert event["receipt"]["outcome"] == "blocked"
            assert event["receipt"]["released"] == {"prompt": 0, "documents": 0, "answer": 0}
        assert house.voice.asked == []


# Lanes.

THOUGHT = [{"reasoning_content": "It is ana@"}, {"reasoning_content": "example.org."}]
CALLED: list[dict[str, Any]] = [
    {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "send", "arguments": ""}}]},
    *[
        {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        for piece in ('{"to": "ana', "\\u00", '40example.org", "n": 1', '2, "bcc": ["x"]}')
    ],
]
MIXED = [THOUGHT[0], {"content": "Hm "}, CALLED[0], CALLED[1], THOUGHT[1], CALLED[2], {"content": f"{MAIL}."}]
MIXED += CALLED[3:]


@BOTH
@pytest.mark.parametrize("policy", ["content", "two", "every", "nothing", "masked"])
async def test_lanes_that_a_policy_names_are_masked_and_others_pass_unread(policy: str, is_stream: bool) -> None:
    async with open_house(Voice(*MIXED, finish="tool_calls")) as house:
        events = read(await post(house.port, CHAT, chat(policy, stream=is_stream)), is_stream=is_stream)
    message = events[0]["choices"][0].get("message", {})
    thought = message.get("reasoning_content") or (spoken(events, "reasoning_content") if is_stream else "")
    called = arguments([{"choices": [{"delta": message}]}] if message else events)
    by_lane = {"content": ("content",), "two": ("content", "reasoning"), "nothing": ()}
    lanes = by_lane.get(policy, ("content", "reasoning", "arguments"))
    assert said_in(events) == "Hm " + (f"{HIDDEN}." if "content" in lanes else f"{MAIL}.")
    assert thought == "It is " + (f"{HIDDEN}." if "reasoning" in lanes else f"{MAIL}.")
    assert json.loads(called) == {"to": HIDDEN if "arguments" in lanes else MAIL, "n": 12, "bcc": ["x"]}
    assert [one["finish_reason"] for event in events for one in event["choices"]][-1] == "tool_calls"
    assert sum(one["findings"] for one in events[-1]["receipt"]["detectors"]) == len(lanes)
    if policy == "every":
        assert MAIL.encode() not in answer_bytes(events)
        assert b"u0040" not in answer_bytes(events)


def answer_bytes(events: list[Any]) -> bytes:
    return json.dumps(events, ensure_ascii=False).encode()


async def test_a_call_is_named_before_its_arguments_though_others_wait() -> None:
    voice = Voice({"content": "No end of"}, *CALLED, {"content": " this."}, finish="tool_calls")
    async with open_house(voice) as house:
        events = read(await post(house.port, CHAT, chat("every")), is_stream=True)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("c1", "send")
    assert spoken(events) == "No end of this."


async def test_a_number_without_end_in_arguments_ends_the_stream() -> None:
    head = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"n": '}}]}
    digits = [{"tool_calls": [{"index": 0, "function": {"arguments": "1" * 500}}]}] * 30
    async with open_house(Voice(head, *digits), LOCKGATE_LIMITS__MAX_HELD_CHARS="5000") as house:
        events = events_of(await post(house.port, CHAT, chat("every")))
        error = {"code": 413, "details": "more than 5000 characters wait for a detector"}
        left = ended_badly([_plain(one) for one in events], error)
        assert arguments(left) == '{"n": '
        shadow = read(await post(house.port, CHAT, chat("shade")), is_stream=True)
    assert len(arguments(shadow)) == 15_006


def _plain(event: Any) -> Any:
    """Errors under names that OpenAI's clients know hold them a second time."""
    if isinstance(event, dict) and "error" in event.get("$error", {}):
        return {"$error": {key: event["$error"][key] for key in ("code", "details")}}
    return event


@BOTH
async def test_hundreds_of_tool_calls_are_no_reason_to_stop(is_stream: bool) -> None:
    calls = [
        {"index": place, "id": f"c{place}", "function": {"name": "f", "arguments": json.dumps({"to": MAIL})}}
        for place in range(300)
    ]
    voice = Voice({"tool_calls": calls[:150]}, {"tool_calls": calls[150:]})
    voice.whole_message = {"role": "assistant", "content": None, "tool_calls": calls}
    async with open_house(voice) as house:
        events = read(await post(house.port, CHAT, chat("every", stream=is_stream)), is_stream=is_stream)
    spoken_by: dict[int, str] = {}
    for choice in [choice for event in events for choice in event["choices"]]:
        for one in choice.get("delta", choice.get("message"))["tool_calls"] if "tool_calls" in str(choice) else ():
            spoken_by[one["index"]] = spoken_by.get(one["index"], "") + (one["function"].get("arguments") or "")
    assert set(spoken_by) == set(range(300))
    assert {json.loads(one)["to"] for one in spoken_by.values()} == {HIDDEN}


# Shadow.


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_in_shadow_every_word_is_as_without_a_policy(path: str) -> None:
    said: tuple[Any, ...] = tuple(MIXED) if path == CHAT else ()
    async with open_house(Voice(*said, "A bluebird.")) as house:
        for is_stream in (False, True):
            prompt = "A bluebird?"
            plain = await post(house.port, path, build(path, None, prompt, is_stream=is_stream))
            answer = await post(house.port, path, build(path, "shade", prompt, is_stream=is_stream))
            events = read(answer, is_stream=is_stream)
            assert house.voice.asked[-2] == house.voice.asked[-1]
            receipt = events[-1].pop("receipt")
            assert events == (ended_well(events_of(plain)) if is_stream else [plain.json()])
            assert (receipt["mode"], receipt["outcome"], receipt["policy"]) == ("shadow", "blocked", "shade")
            found = {one["detector_id"]: one["findings"] for one in receipt["detectors"]}
            assert found == {"word": 2, "mail": 3 if path == CHAT else 0}
            assert receipt["covered"]


async def test_in_shadow_messages_do_not_wait_for_detectors() -> None:
    may_read = asyncio.Event()

    async def far(exchange: Exchange) -> None:
        await may_read.wait()
        await exchange.answer(b"[[]]")

    async with open_house(Voice("One. ", "Two. "), far) as house:
        from tests.server.gateways import build_request, connect

        body = json.dumps(chat("shadow_fail")).encode()
        async with connect(house.port) as client:
            await client.send(build_request("POST", CHAT, body))
            await client.read_head()
            heard = b""
            while b"Two. " not in heard:
                heard += await client.read_chunk()
            assert b'finish_reason":"stop' not in heard
            may_read.set()
            while part := await client.read_chunk():
                heard += part
    assert heard.endswith(b"data: [DONE]\n\n")
    assert verifies(heard)


# Policies that hold nothing.


async def test_a_policy_that_only_reads_the_prompt_tells_its_receipt_with_the_end() -> None:
    async with open_house() as house:
        events = read(await post(house.port, CHAT, chat("asked")), is_stream=True)
    assert spoken(events) == SAID
    assert all(event["choices"] for event in events)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["receipt"]["policy"] == "asked"


async def test_what_trailing_detectors_found_in_any_lane_is_told_with_the_end() -> None:
    async with open_house(Voice({"reasoning_content": "A bluebird?"}, "So a blue", "bird.")) as house:
        events = read(await post(house.port, CHAT, chat("noted")), is_stream=True)
    assert (spoken(events), spoken(events, "reasoning_content")) == ("So a bluebird.", "A bluebird?")
    assert all(event["choices"] for event in events)
    found = {one.get("field"): one["results"] for one in events[-1]["detections"]["output"]}
    spans = {field: [(one["start"], one["end"]) for one in results] for field, results in found.items()}
    assert spans == {None: [(5, 13)], "reasoning_content": [(2, 10)]}
    assert events[-1]["warnings"] == [{"type": "UNSUITABLE_OUTPUT", "message": "Unsuitable output detected."}]


# Which policy.


async def test_a_policy_can_be_named_by_the_path() -> None:
    async with open_house() as house:
        for path, is_stream in WAYS:
            body = build(path, None, is_stream=is_stream)
            for model in ("m", "main", "agent/free"):
                answer = await post(house.port, f"/labelled{path}", {**body, "model": model})
                events = read(answer, is_stream=is_stream)
                assert events[-1]["receipt"]["policy"] == "labelled"
                assert said_in(events) == SAID.replace(MAIL, "[EMAIL]")
            again = await post(house.port, f"/labelled{path}", build(path, "labelled", is_stream=is_stream))
            assert events_or(again)[-1]["receipt"]["policy"] == "labelled"


def events_or(answer: Answer) -> list[Any]:
    return ended_well(events_of(answer)) if answer.body.startswith(b"data:") else [answer.json()]


async def test_models_are_listed_under_a_policy_too() -> None:
    async with open_house() as house:
        plain = await call(house.port, MODELS, method="GET", headers={})
        under = await call(house.port, f"/masked{MODELS}", method="GET", headers={})
        assert (under.status, under.json()) == (200, plain.json())
        one = await call(house.port, f"/masked{MODELS}/main", method="GET", headers={})
        assert (one.status, one.json()["id"]) == (200, "main")
        agent = await call(house.port, f"/masked{MODELS}/agent/default", method="GET", headers={})
        assert (agent.status, agent.json()["id"]) == (200, "agent/default")


async def test_a_policy_that_nobody_has_in_the_path_is_404() -> None:
    async with open_house() as house:
        for name in ("nobody", "masked%2f", "", "api", "masked/masked"):
            listed = await call(house.port, f"/{name}{MODELS}", method="GET", headers={})
            chatted = await post(house.port, f"/{name}{CHAT}", chat())
            written = await post(house.port, f"/{name}{TEXT}", text(stream=False))
            assert (listed.status, chatted.status, written.status) == (404, 404, 404), name
        assert chat_details(await post(house.port, f"/nobody{CHAT}", chat())) == "policy `nobody` not found"
        assert house.voice.asked == []


def chat_details(answer: Answer) -> str:
    """The words of an error, where OpenAI's clients look for them."""
    return str(answer.json()["error"]["message"])


async def test_path_and_request_may_not_name_different_policies() -> None:
    async with open_house() as house:
        for path, is_stream in WAYS:
            plain = build(path, None, is_stream=is_stream)
            named = [plain | {"model": f"{model}@stopped"} for model in ("m", "main", "agent/free")]
            for body in (build(path, "stopped", is_stream=is_stream), *named):
                answer = await post(house.port, f"/masked{path}", body)
                assert answer.status in (400, 422), answer
                assert "the path names policy `masked`, the request `stopped`" in answer.json()["details"]
        assert house.voice.asked == []


@BOTH
async def test_a_model_may_have_a_policy_of_its_own(is_stream: bool) -> None:
    async with open_house() as house:
        for body, policy in (
            (chat(model="guarded", stream=is_stream), "masked"),
            (chat("labelled", model="guarded", stream=is_stream), "labelled"),
            (chat(model="guarded@stopped", stream=is_stream), "stopped"),
            (chat(model="m@labelled", stream=is_stream), "labelled"),
            (chat(model="safe", stream=is_stream), "masked"),
            (chat(model="safe@labelled", stream=is_stream), "labelled"),
            (chat(model="main@labelled", stream=is_stream), "labelled"),
            (chat(model="brunix", stream=is_stream), "masked"),
            (chat(model="agent/default@masked", stream=is_stream), "masked"),
            (chat(model="agent/free@labelled", stream=is_stream), "labelled"),
        ):
            events = read(await post(house.port, CHAT, body), is_stream=is_stream)
            assert events[-1]["receipt"]["policy"] == policy, body
            assert MAIL not in said_in(events)
        for model in ("m", "main"):
            answer = await post(house.port, CHAT, chat(model=model, stream=is_stream))
            assert b"receipt" not in answer.body
            assert said_in(events_or(answer)) == SAID
        assert {one["model"] for one in house.voice.asked} == {"guarded", "m", "alone"}


async def test_a_policy_for_every_model_behind_us_holds_where_none_has_its_own() -> None:
    async with open_house(LOCKGATE_OPENAI__POLICIES='{"*": "labelled", "guarded": "masked"}') as house:
        for model, policy in (("m", "labelled"), ("guarded", "masked")):
            events = read(await post(house.port, CHAT, chat(model=model)), is_stream=True)
            assert events[-1]["receipt"]["policy"] == policy


async def test_an_agent_that_has_a_policy_cannot_be_asked_under_another() -> None:
    async with open_house() as house:
        for path, model in ((CHAT, "brunix@stopped"), (f"/stopped{CHAT}", "brunix")):
            answer = await post(house.port, path, chat(model=model))
            assert (answer.status, answer.json()["details"]) == (
                400,
                "agent `default` has policy `masked`: a request cannot name another",
            )
        assert house.voice.asked == []


async def test_under_fms_no_policy_comes_from_anywhere() -> None:
    async with open_house(LOCKGATE_COMPAT="fms") as house:
        body = chat(model="guarded")
        for path in ("/api/v2/chat/completions-detection",):
            answer = await post(house.port, path, body, x_lockgate_receipt="true", x_lockgate_mapping="true")
            events = ended_well(events_of(answer))
            assert spoken(events) == SAID
            assert b"receipt" not in answer.body
        assert (await post(house.port, f"/masked{CHAT}", body)).status == 404
        refused = await post(house.port, "/api/v2/chat/completions-detection", chat("masked"))
        assert refused.status == 422


# Early checks.


@BOTH
async def test_with_an_early_check_the_model_is_asked_at_once_and_nothing_leaves_before_it_is_done(
    is_stream: bool,
) -> None:
    may_read = asyncio.Event()

    async def far(exchange: Exchange) -> None:
        await may_read.wait()
        await exchange.answer(b"[[]]")

    async with open_house(far=far) as house:
        asking = asyncio.ensure_future(post(house.port, CHAT, chat("early", stream=is_stream)))
        await house.voice.is_asked.wait()
        assert await is_pending(asking)
        may_read.set()
        events = read(await asking, is_stream=is_stream)
    assert said_in(events) == SAID.replace(MAIL, HIDDEN)
    assert events[-1]["receipt"]["released"]["prompt"] == len("Hello")


FOUND = {"start": 0, "end": 5, "text": "Hello", "detection": "greeting", "detection_type": "x", "score": 0.9}


@pytest.mark.parametrize("model", ["m", "main@early", "agent/free@early"])
async def test_a_finding_of_an_early_check_closes_the_model_and_only_the_fallback_is_heard(model: str) -> None:
    async def far(exchange: Exchange) -> None:
        await house.voice.is_asked.wait()
        await linger()
        contents = exchange.received.json["contents"]
        await exchange.answer(json.dumps([[FOUND] if one.startswith("Hello") else [] for one in contents]).encode())

    # A long gap between tokens is allowed, so that nothing else closes it.
    async with open_house(Voice(waits=True), far, LOCKGATE_AGENTS__FREE__TOKEN_GAP_TIMEOUT_S="600") as house:
        named = "early" if model == "m" else None
        events = read(await post(house.port, CHAT, chat(named, model=model)), is_stream=True)
        await house.voice.is_left.wait()
        assert len(house.voice.asked) == 1
    assert spoken(events) == "[no]"
    assert [one["finish_reason"] for event in events for one in event["choices"]][-1] == "content_filter"
    assert events[-1]["receipt"]["outcome"] == "blocked"
    assert MAIL.encode() not in answer_bytes(events)


@BOTH
async def test_without_an_early_check_the_model_is_not_asked_before(is_stream: bool) -> None:
    async with open_house() as house:
        await post(house.port, CHAT, chat("asked", "bluebird", stream=is_stream))
        assert not house.voice.is_asked.is_set()
