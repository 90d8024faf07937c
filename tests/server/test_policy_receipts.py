# SPDX-License-Identifier: Apache-2.0
"""Receipts on every guarded surface, whole and streamed: they tell what was done, and fit what the client received."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contracts.http_peers import open_peer, reply
from tests.server.http_client import call
from tests.server.policy_house import MAIL, SAID, Voice, chat, open_house, post, verifies
from tests.server.policy_surfaces import SURFACES, Heard, grpc_agent
from tests.server.processes import ServerProcess

HIDDEN = "█" * len(MAIL)
BOTH = pytest.mark.parametrize("is_stream", [False, True])
STREAMING: dict[str, Any] = {"AGGREGATOR_MODEL_STREAMING_ENABLED": "true"}


def check(heard: Heard, said: str, policy: str, **told: Any) -> dict[str, Any]:
    assert (heard.error, heard.text) == (None, said)
    assert heard.receipt is not None
    assert heard.fits()
    assert not verifies(heard.body.replace(b"now", b"not"), heard.receipt)
    assert {key: heard.receipt[key] for key in ("policy", "mode", *told)} == {
        "policy": policy,
        "mode": "enforce",
        **told,
    }
    return heard.receipt


@pytest.mark.parametrize("surface", SURFACES)
async def test_every_surface_masks_and_tells_a_receipt_that_fits(surface: str) -> None:
    async with open_house(**STREAMING) as house:
        for is_stream in (False, True):
            heard = await SURFACES[surface](house, "masked", is_stream)
            assert heard.names is None
            receipt = check(heard, SAID.replace(MAIL, HIDDEN), "masked", outcome="masked", covered=True)
            assert receipt["released"]["answer"] == len(SAID)
            [detector] = receipt["detectors"]
            assert (detector["findings"], detector["read"]["answer"]) == (1, len(SAID))
            renamed = await SURFACES[surface](house, "renamed", is_stream, mapping=True)
            assert renamed.names is not None
            [name] = renamed.names
            assert renamed.names == {name: MAIL}
            check(renamed, SAID.replace(MAIL, name), "renamed", outcome="masked")


@BOTH
async def test_every_surface_stops_and_tells_a_receipt_that_fits(is_stream: bool) -> None:
    async with open_house(**STREAMING) as house:
        for surface, ask in SURFACES.items():
            heard = await ask(house, "stopped", is_stream)
            assert (heard.error, heard.text, surface) == (None, "[cut]", surface)
            assert heard.receipt is not None
            assert (heard.receipt["outcome"], heard.receipt["released"]["answer"]) == ("stopped", 0)
            assert heard.fits()
            assert MAIL.encode() not in heard.body


@BOTH
async def test_every_surface_in_shadow_says_all_and_tells_what_would_have_been(is_stream: bool) -> None:
    async with open_house(**STREAMING) as house:
        for surface, ask in SURFACES.items():
            heard = await ask(house, "shade", is_stream)
            receipt = check(heard, SAID, "shade", mode="shadow", outcome="blocked", covered=True)
            assert {one["detector_id"]: one["findings"] for one in receipt["detectors"]} == {"word": 1, "mail": 1}
            assert heard.warnings == [], surface
            body = heard.body.partition(b'"receipt"')[0]
            assert b'"mail"' not in body
            assert b'"score"' not in body


@BOTH
async def test_the_agents_service_tells_its_receipt_in_trailing_metadata(is_stream: bool) -> None:
    async with open_house(agent_policy="renamed") as house:
        plain = await grpc_agent(house, is_stream)
        heard = await grpc_agent(house, is_stream, mapping=True)
    assert (plain.names, plain.warnings) == (None, [])
    assert heard.names is not None
    [name] = heard.names
    for one in (plain, heard):
        check(one, SAID.replace(MAIL, name), "renamed", outcome="masked", covered=True)


@BOTH
async def test_a_receipt_without_a_policy_is_told_to_whoever_asks(is_stream: bool) -> None:
    body = chat(stream=is_stream, detectors={"output": {"mail": {}}})
    async with open_house() as house:
        asked = await post(house.port, "/v1/chat/completions", body, x_lockgate_receipt="true")
        plain = await post(house.port, "/v1/chat/completions", body)
        nobody = await post(house.port, "/v1/chat/completions", chat(stream=is_stream), x_lockgate_receipt="true")
    assert verifies(asked.body)
    assert b'"policy":null' in asked.body
    for answer in (plain, nobody):
        assert b'"receipt"' not in answer.body


async def test_the_models_of_the_aggregator_may_have_a_policy_of_their_own() -> None:
    async with open_house() as house:
        for slug, policy in (("safe", "masked"), ("alone", None)):
            body = {"prompt": "Hello", "model": {"url": "Lockgate:", "slug": slug}}
            for path in ("/api/v1/chat", "/api/v1/chat/stream"):
                answer = await post(house.port, path, body)
                assert answer.status == 200, answer
                assert (MAIL.encode() in answer.body) == (policy is None)
                assert (b'"policy":"masked"' in answer.body) == (policy is not None)
                if policy is not None:
                    assert verifies(answer.body)
            other = await post(house.port, "/api/v1/chat", body | {"detectors": {"policy": "labelled"}})
            assert other.json()["receipt"]["policy"] == "labelled"


async def test_a_surface_without_a_policy_is_as_it_was() -> None:
    async with open_house(agent_policy="null") as house:
        for path, body in (
            ("/v1/chat/completions", chat()),
            ("/v1/chat/completions", chat(model="main")),
            ("/v1/chat/completions", chat(model="brunix", stream=False)),
            ("/api/chat", chat(model="main")),
        ):
            answer = await post(house.port, path, body, x_lockgate_mapping="false")
            for word in (b"receipt", b"pseudonyms", b"detections"):
                assert word not in answer.body
        heard = await grpc_agent(house, True)
        assert (heard.receipt, heard.text) == (None, SAID)
        listed = await call(house.port, "/v1/models", method="GET", headers={})
        assert "agent/default" in [one["id"] for one in listed.json()["data"]]


# What operators see.

WATCHED = """
openai: {{service: {{hostname: 127.0.0.1, port: {model}}}}}
detectors:
  mail: {{embedded: pii, chunker_id: sentence}}
  far:
    type: text_contents
    chunker_id: sentence
    default_threshold: 0.5
    service: {{hostname: 127.0.0.1, port: {far}}}
policies:
  masked: {{output: {{mail: {{}}}}, on_finding: mask, mask_with: pseudonym}}
  shade: {{mode: shadow, output: {{mail: {{}}}}, on_finding: block}}
  strict: {{output: {{far: {{}}}}, on_finding: mask}}
  lenient: {{mode: shadow, output: {{far: {{}}}}}}
server: {{host: 127.0.0.1}}
"""


async def test_metrics_and_log_tell_what_policies_did_and_never_a_text(tmp_path: Path) -> None:
    voice, names = Voice(), list[str]()
    async with open_peer(voice.play) as model, open_peer(reply(b"", 500)) as far:
        path = tmp_path / "config.yaml"
        path.write_text(WATCHED.format(model=model.port, far=far.port))
        server = ServerProcess(tmp_path, ["--config-path", str(path)])
        try:
            await asyncio.to_thread(server.wait_for_start)
            for policy in ("masked", "shade", "shade", "strict", "lenient"):
                answer = await post(server.api_port, "/v1/chat/completions", chat(policy), x_lockgate_mapping="true")
                names += json.loads(answer.body.split(b"data: ")[-2])["pseudonyms"] if policy == "masked" else []
            voice.deltas = [{"content": "Nothing here."}]
            await post(server.api_port, "/v1/chat/completions", chat("masked"))
            told = (await call(server.health_port, "/metrics", method="GET", headers={})).body.decode()
        finally:
            assert await asyncio.to_thread(server.stop) == 0
    samples = [one for family in text_string_to_metric_families(told) for one in family.samples]
    counted = {
        (one.labels["policy"], one.labels["mode"], one.labels["outcome"]): one.value
        for one in samples
        if one.name == "lockgate_policy_requests_total"
    }
    assert counted == {
        ("masked", "enforce", "masked"): 1,
        ("masked", "enforce", "released"): 1,
        ("shade", "shadow", "blocked"): 2,
        ("strict", "enforce", "failed"): 1,
        ("lenient", "shadow", "failed"): 1,
    }
    applied = server.events("policy.applied")
    assert [(one["policy"], one["mode"], one["outcome"], one["findings"]) for one in applied] == [
        ("masked", "enforce", "masked", {"mail": 1}),
        ("shade", "shadow", "blocked", {"mail": 1}),
        ("shade", "shadow", "blocked", {"mail": 1}),
        ("strict", "enforce", "failed", {}),
        ("lenient", "shadow", "failed", {}),
    ]
    assert [one["not_covered"] for one in applied] == [[], [], [], ["far"], ["far"]]
    for word in (MAIL, "bluebird", "Write to", *names):
        assert word not in server.log_path.read_text()
