# SPDX-License-Identifier: Apache-2.0
"""Moderations end to end: which policy answers, who reads, what is flagged, and how they fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import openai
import pytest

from lockgate.api.endpoints import MODERATIONS_PATH as PATH
from tests.contracts.http_peers import Exchange, Peer, break_off, open_peer, reply, stay_silent
from tests.server.gateways import ask, gateway
from tests.server.http_client import Answer
from tests.waits import latency

TEXT = "Mail ana@example.org about the bluebird."
CLEAN = "Tea is nice."
FAILED = {"type": "DETECTOR_FAILED", "message": "Detector `far` failed. The text was not checked by it."}
UNCHECKED = "The text could not be checked: `far` failed"


def config(far: int, *, more: str, patience: int) -> str:
    return f"""
detectors:
  key: {{embedded: keywords, options: {{keywords: [bluebird]}}}}
  pii: {{embedded: pii}}
  talk: {{type: text_chat, embedded: keywords, options: {{keywords: [tea]}}}}
  far:
    type: text_contents
    chunker_id: sentence
    default_threshold: 0.5
    service: {{hostname: 127.0.0.1, port: {far}, request_timeout: {patience}}}
policies:
  strict: {{input: {{pii: {{}}}}, output: {{key: {{}}, talk: {{}}}}, on_finding: {{input: block}}}}
  trial: {{mode: shadow, input: {{pii: {{}}}}, on_finding: block}}
  mails: {{input: {{pii: {{entities: [EmailAddress]}}}}, output: {{pii: {{entities: [PhoneNumber]}}}}}}
  strange: {{input: {{far: {{}}}}}}
  keen: {{input: {{far: {{threshold: 0.1}}}}}}
  lenient: {{input: {{far: {{}}, pii: {{}}}}, on_detector_failure: pass}}
  half: {{input: {{far: {{on_detector_failure: pass}}, pii: {{}}}}}}
  chats: {{output: {{talk: {{}}}}}}
{more}
"""


async def find_threats(exchange: Exchange) -> None:
    """A remote detector of toxicity: `kill` is a threat, `meh` a small one."""
    found = []
    for text in exchange.received.json["contents"]:
        of_text = []
        for word, score in (("kill", 0.9), ("meh", 0.2)):
            if (at := text.find(word)) >= 0:
                place = {"start": at, "end": at + len(word), "text": word}
                of_text.append({**place, "detection": "threat", "detection_type": "toxicity", "score": score})
        found.append(of_text)
    await exchange.answer(json.dumps(found).encode())


class House(NamedTuple):
    """A gateway and the remote detector behind it."""

    port: int
    far: Peer

    async def post(self, given: Any, key: str = "", **fields: Any) -> Answer:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await ask(self.port, PATH, {"input": given, **fields}, headers)

    async def moderate(self, given: Any, **fields: Any) -> list[dict[str, Any]]:
        """The results."""
        answer = await self.post(given, **fields)
        assert answer.status == 200, answer
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def house(more: str = "", patience: int = 600, **environ: str) -> AsyncIterator[House]:
    async with (
        open_peer(find_threats) as far,
        gateway(config(far.port, more=more, patience=patience), **environ) as port,
    ):
        yield House(port, far)


def flagged(result: dict[str, Any]) -> list[str]:
    return sorted(name for name, is_flagged in result["categories"].items() if is_flagged)


# Which policy.


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"policy": "strict"}, "strict"),
        ({"policy": "strict", "model": "omni-moderation-latest"}, "omni-moderation-latest"),
        ({"model": "strict"}, "strict"),
        ({"model": "omni-moderation-latest@strict"}, "omni-moderation-latest@strict"),
    ],
)
async def test_a_policy_is_named_by_field_or_by_model(fields: dict[str, Any], model: str) -> None:
    async with house() as here:
        answer = (await here.post(TEXT, **fields)).json()
    assert (answer["model"], answer["policy"]) == (model, "strict")
    assert answer["id"].startswith("modr-")
    [result] = answer["results"]
    assert (result["flagged"], flagged(result)) == (True, ["keyword/keyword", "pii/email_address"])


async def test_the_settings_name_the_policy_of_requests_that_name_none() -> None:
    async with house("moderation: {policy: mails}") as here:
        for fields, policy in (
            ({}, "mails"),
            ({"model": "omni-moderation-latest"}, "mails"),
            ({"model": "x@unknown"}, "mails"),
            ({"model": "strict"}, "strict"),
            ({"policy": "strict"}, "strict"),
        ):
            assert (await here.post(TEXT, **fields)).json()["policy"] == policy


async def test_without_a_policy_there_is_no_answer() -> None:
    async with house() as here:
        for fields in ({}, {"model": "omni-moderation-latest"}):
            answer = await here.post(TEXT, **fields)
            words = (
                "no policy answers this: name one in `policy`, or as `model`, or as `<model>@<policy>`, "
                "or set `moderation.policy` in the settings"
            )
            error = {"message": words, "type": "invalid_request_error", "param": None, "code": 404}
            assert (answer.status, answer.json()) == (404, {"code": 404, "details": words, "error": error})
        answer = await here.post(TEXT, policy="unknown")
        assert (answer.status, answer.json()["details"]) == (404, "policy `unknown` not found")
        answer = await here.post(TEXT, policy="strict", model="mails")
        words = "`model` names policy `mails`, `policy` names `strict`: name one"
        assert (answer.status, answer.json()["details"]) == (400, words)
        answer = await here.post(TEXT, policy="chats")
        assert answer.status == 400
        assert answer.json()["details"] == (
            "policy `chats` has no detector of type text_contents in `input` or `output`"
        )


async def test_a_path_may_name_the_policy() -> None:
    async with house("moderation: {policy: strict}") as here:
        for fields in ({}, {"model": "omni"}, {"model": "x@mails"}, {"policy": "mails"}):
            answer = await ask(here.port, f"/mails{PATH}", {"input": TEXT, **fields})
            assert answer.json()["policy"] == "mails"
        for fields in ({"policy": "strict"}, {"model": "strict"}, {"model": "x@strict"}):
            answer = await ask(here.port, f"/mails{PATH}", {"input": TEXT, **fields})
            words = "the path names policy `mails`, the request `strict`: name one"
            assert (answer.status, answer.json()["error"]["message"]) == (400, words)


async def test_it_is_absent_under_fms() -> None:
    async with house(LOCKGATE_COMPAT="fms") as here:
        assert (await here.post(TEXT, policy="mails")).status == 404
        assert (await here.post(TEXT, policy="mails")).body == b""


# What is found.


async def test_every_string_has_its_result_in_order() -> None:
    async with house() as here:
        texts = [TEXT if number % 3 == 0 else CLEAN for number in range(256)]
        results = await here.moderate(texts, policy="strict")
    assert [one["flagged"] for one in results] == [text is TEXT for text in texts]


async def test_parts_have_one_result_together() -> None:
    async with house() as here:
        parts = [{"type": "text", "text": text} for text in (CLEAN, "A bluebird.", "a@example.org")]
        [result] = await here.moderate(parts, policy="strict")
        assert flagged(result) == ["keyword/keyword", "pii/email_address"]
        [result] = await here.moderate(parts[:1], policy="strict")
        assert not result["flagged"]


async def test_of_a_detector_in_both_sections_the_input_counts() -> None:
    async with house() as here:
        [result] = await here.moderate("ana@example.org, +1 650 253 0000", policy="mails")
    assert flagged(result) == ["pii/email_address"]


async def test_labels_of_toxicity_stand_under_openais_names() -> None:
    async with house() as here:
        loud, small, clean = await here.moderate(["I kill you.", "meh", CLEAN], policy="strange")
        [keen] = await here.moderate(["meh"], policy="keen")
    assert flagged(loud) == ["harassment/threatening", "violence"]
    assert (loud["category_scores"]["violence"], loud["category_scores"]["hate"]) == (0.9, 0.0)
    assert loud["category_applied_input_types"]["violence"] == ["text"]
    assert loud["category_applied_input_types"]["hate"] == []
    # Below the threshold there is a score and no flag.
    assert (small["flagged"], small["category_scores"]["violence"]) == (False, 0.2)
    assert (clean["flagged"], clean["category_scores"]["violence"]) == (False, 0.0)
    assert flagged(keen) == ["harassment/threatening", "violence"]


async def test_what_a_policy_would_do_changes_nothing_here() -> None:
    async with house() as here:
        for policy in ("trial", "mails", "strict"):
            [result] = await here.moderate("ana@example.org", policy=policy)
            assert flagged(result) == ["pii/email_address"]


async def test_no_more_than_the_limit_is_asked_of_a_detector_at_once() -> None:
    open_now, most, are_three = 0, 0, asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if most >= 3:
            are_three.set()
        await are_three.wait()
        await latency(0.01)
        await find_threats(exchange)
        open_now -= 1

    async with house("detector_concurrent_requests: 3") as here:
        here.far.script = slowly
        results = await here.moderate([f"{number} kill" for number in range(20)], policy="strange")
    assert all(one["flagged"] for one in results)
    assert most == 3


# How it fails.


@pytest.mark.parametrize("script", [break_off, reply(b"{}"), reply(b"[]", 500)])
async def test_a_detector_that_fails_ends_the_request_unless_its_policy_lets_it_pass(script: Any) -> None:
    async with house() as here:
        here.far.script = script
        for policy, passes in (("strange", False), ("lenient", True), ("half", True)):
            answer = await here.post([TEXT, CLEAN], policy=policy)
            if not passes:
                assert (answer.status, answer.json()["error"]["message"]) == (502, UNCHECKED)
                continue
            assert answer.status == 200
            told = answer.json()
            assert [flagged(one) for one in told["results"]] == [["pii/email_address"], []]
            assert told["warnings"] == [FAILED]


async def test_a_detector_that_is_too_slow_is_a_failure() -> None:
    async with house(patience=1) as here:
        here.far.script = stay_silent
        slow, answer = await asyncio.gather(here.post(TEXT, policy="strange"), here.post(TEXT, policy="half"))
    assert (slow.status, answer.status) == (504, 200)
    assert answer.json()["warnings"] == [FAILED]


async def test_one_failed_text_is_told_and_the_others_are_read() -> None:
    async def moody(exchange: Exchange) -> None:
        if "odd" in exchange.received.json["contents"][0]:
            exchange.reset()
        else:
            await find_threats(exchange)

    async with house() as here:
        here.far.script = moody
        answer = (await here.post(["odd kill", "even kill"], policy="lenient")).json()
    assert [one["flagged"] for one in answer["results"]] == [False, True]
    assert answer["warnings"] == [FAILED]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": [], "policy": "strict"}, 400),
        ({"input": ["x"] * 257, "policy": "strict"}, 400),
        ({"input": [{"type": "image_url", "image_url": {"url": "data:"}}], "policy": "strict"}, 400),
        ({"policy": "strict"}, 400),
        ({"input": "x", "policy": "strict", "detectors": {}}, 400),
        ({"input": "x" * 3_000, "policy": "strict"}, 413),
    ],
)
async def test_refusals_have_the_object_that_clients_know(body: dict[str, Any], status: int) -> None:
    async with house("limits: {body_bytes: 2900}") as here:
        answer = await ask(here.port, PATH, body)
    assert answer.status == status
    told = answer.json()
    assert told["error"] == {
        "message": told["details"],
        "type": "invalid_request_error",
        "param": None,
        "code": status,
    }


async def test_callers_need_their_key() -> None:
    async with house("callers: {app: {key_env: KEY}}", KEY="secret") as here:
        assert (await here.post(TEXT, policy="strict")).status == 401
        assert (await here.post(TEXT, "secret", policy="strict")).status == 200


# The official client.


def create(url: str, **options: Any) -> Any:
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
        return client.moderations.create(**options)


async def test_the_official_client_reads_results_and_errors() -> None:
    async with house("moderation: {policy: strict}") as here:
        answer = await asyncio.to_thread(create, here.url, input=TEXT, model="omni-moderation-latest")
        assert answer.model == "omni-moderation-latest"
        [result] = answer.results
        assert result.flagged
        assert result.categories.model_extra["pii/email_address"] is True
        assert (result.categories.hate, result.category_scores.self_harm_intent) == (False, 0.0)
        answer = await asyncio.to_thread(create, here.url, input=["I kill you.", CLEAN], model="strange")
        assert [one.categories.violence for one in answer.results] == [True, False]
        assert answer.results[0].categories.harassment_threatening
        with pytest.raises(openai.NotFoundError, match="policy `x` not found"):
            await asyncio.to_thread(create, here.url, input="x", extra_body={"policy": "x"})
        image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
        with pytest.raises(openai.BadRequestError, match="only text can"):
            await asyncio.to_thread(create, here.url, input=[image])


async def test_the_official_async_client_moderates_many_at_once() -> None:
    async with house() as here, openai.AsyncOpenAI(base_url=here.url, api_key="k", max_retries=0) as client:
        part: Any = {"type": "text", "text": "A bluebird."}
        calls = [client.moderations.create(input=TEXT if odd else CLEAN, model="x@strict") for odd in (0, 1) * 5]
        answers = await asyncio.gather(*calls)
        assert [one.results[0].flagged for one in answers] == [False, True] * 5
        answer = await client.moderations.create(input=[part], model="strict")
        assert answer.results[0].flagged
