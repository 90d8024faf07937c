# SPDX-License-Identifier: Apache-2.0
"""No string of a question reaches a source or a model unread, and none of a source the client (D-35)."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from lockgate.gateway import open_gateway
from lockgate.server.ports import build_api_app
from tests.contracts.http_peers import Exchange, open_peer
from tests.server.http_client import JSON_TYPE, Answer, call
from tests.server.served_app import served
from tests.surfaces.answers import read_answer
from tests.surfaces.gateway import HOST, load_config

MARK = "bluebird"
CHAT = "/api/v1/chat"


class World(NamedTuple):
    """A gateway between a client and a space; `seen` has everything that the space got."""

    port: int
    space: int
    seen: list[str]
    documents: list[dict[str, Any]]

    def build(self, **more: Any) -> dict[str, Any]:
        """A question to the space's source and model."""
        ref = {"url": f"http://{HOST}:{self.space}", "slug": "x"}
        return {"prompt": "When?", "model": ref, "data_sources": [ref], **more}

    async def ask(self, policy: str, body: Mapping[str, Any], path: str = CHAT, **headers: str) -> Answer:
        """The answer under a policy."""
        sent = json.dumps({**body, "detectors": {"policy": policy}}).encode()
        return await call(self.port, path, sent, headers={**JSON_TYPE, **headers})


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    seen: list[str] = []
    documents: list[dict[str, Any]] = []

    async def play(exchange: Exchange) -> None:
        got = exchange.received
        seen.append(f"{got.path} {dict(got.headers)} {got.body.decode()}")
        message = {"message": {"content": "At nine."}}
        await exchange.answer(json.dumps({"summary": message, "references": {"documents": documents}}).encode())

    reads: dict[str, Any] = {"input": {"words": {}}, "output": {"words": {}}}
    config = {
        "detectors": {"words": {"embedded": "keywords", "options": {"keywords": [MARK]}}},
        "policies": {
            "masks": {**reads, "on_finding": "mask"},
            "blocks": {**reads, "on_finding": "block"},
            "tells": {**reads, "on_finding": "annotate"},
            "clear": {**reads, "on_finding": "mask", "sources": "clear"},
        },
    }
    settings = load_config(tmp_path, "questions", config)
    async with open_peer(play) as peer, open_gateway(settings) as gateway, served(build_api_app(gateway)) as port:
        yield World(port, peer.port, seen, documents)


def change(body: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The question with the mark in a field."""
    ref: dict[str, Any] = dict(body["model"])
    said = f"a {MARK} b"
    changes: dict[str, dict[str, Any]] = {
        "prompt": {"prompt": said},
        "custom_system_prompt": {"custom_system_prompt": said},
        "messages[0].content": {"messages": [{"role": "assistant", "content": said}]},
        "data_sources[0].query_override": {"data_sources": [{**ref, "query_override": said}]},
        "data_sources[0].slug": {"data_sources": [{**ref, "slug": MARK}]},
        "data_sources[0].tenant_name": {"data_sources": [{**ref, "tenant_name": MARK}]},
        "data_sources[0].owner_username": {"data_sources": [{**ref, "owner_username": MARK}]},
        "data_sources[0].url": {"data_sources": [{**ref, "url": f"{ref['url']}/{MARK}"}]},
        "model.slug": {"model": {**ref, "slug": MARK}},
        "model.tenant_name": {"model": {**ref, "tenant_name": MARK}},
    }
    return {**body, **changes.get(field, {})}


CONTENTS = ["prompt", "custom_system_prompt", "messages[0].content", "data_sources[0].query_override"]
NAMES = [f"data_sources[0].{name}" for name in ("slug", "tenant_name", "owner_username", "url")]
NAMES += ["model.slug", "model.tenant_name", "headers.x-correlation-id"]


@pytest.mark.parametrize("field", [*CONTENTS, *NAMES])
@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/stream"])
async def test_a_policy_that_blocks_sends_no_field_with_a_finding(world: World, field: str, path: str) -> None:
    headers = {"x-correlation-id": MARK} if field.startswith("headers") else {}
    answer = await world.ask("blocks", change(world.build(), field), path, **headers)
    last = read_answer(answer)[0][-1]
    assert (last["outcome"], last["receipt"]["outcome"]) == ("prompt_blocked", "blocked")
    assert (world.seen, last["receipt"]["prompt_sent_to"]) == ([], [])


@pytest.mark.parametrize("field", CONTENTS)
async def test_a_policy_that_masks_hides_the_finding_in_its_field(world: World, field: str) -> None:
    answer = json.loads((await world.ask("masks", change(world.build(), field))).body)
    assert (answer["outcome"], answer["receipt"]["covered"]) == ("answered", True)
    assert answer["receipt"]["prompt_sent_to"] == ["x", "x"]
    assert MARK not in str(world.seen)
    assert sum("████████" in one for one in world.seen) >= 1
    [found] = answer["detections"]["input"]
    assert (found["start"], found["text"], found.get("field", "prompt")) == (2, "████████", field)


@pytest.mark.parametrize("field", NAMES)
async def test_a_finding_in_a_name_cannot_be_masked_and_is_refused(world: World, field: str) -> None:
    headers = {"x-correlation-id": MARK} if field.startswith("headers") else {}
    answer = await world.ask("masks", change(world.build(), field), **headers)
    assert (answer.status, world.seen) == (422, [])
    assert field in answer.body.decode()
    assert MARK not in answer.body.decode()


@pytest.mark.parametrize("field", [*CONTENTS, *NAMES])
async def test_a_policy_that_annotates_passes_and_reports(world: World, field: str) -> None:
    world.documents.append({"content": "It opens."})  # its source is named in the prompt
    headers = {"x-correlation-id": MARK} if field.startswith("headers") else {}
    answer = json.loads((await world.ask("tells", change(world.build(), field), **headers)).body)
    assert MARK in str(world.seen)
    assert [one.get("field", "prompt") for one in answer["detections"]["input"]] == [field]
    assert answer["receipt"]["covered"] is True


@pytest.mark.parametrize("place", ["content", "title"])
@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/stream"])
async def test_what_a_source_sends_leaves_masked(world: World, place: str, path: str) -> None:
    said = f"a {MARK} b"
    texts = {"content": "It opens.", "title": "Gates", place: said}
    world.documents.append({"content": texts["content"], "metadata": {"title": texts["title"]}})
    answer = await world.ask("masks", world.build(), path)
    assert MARK not in answer.body.decode()
    last = read_answer(answer)[0][-1]
    [(title, shown)] = last["sources"].items()
    assert (title, shown["content"])[place == "content"] == "a ████████ b"
    assert (last["receipt"]["covered"], last["receipt"]["outcome"]) == (True, "masked")


async def test_clear_sources_are_shown_and_the_receipt_says_so(world: World) -> None:
    world.documents.append({"content": f"a {MARK} b", "metadata": {"title": "Gates"}})
    answer = json.loads((await world.ask("clear", world.build())).body)
    assert answer["sources"]["Gates"]["content"] == f"a {MARK} b"
    assert (answer["receipt"]["covered"], answer["receipt"]["unread"]) == (False, {"sources": 1})


async def test_retrieval_alone_hides_what_the_detectors_of_the_answer_find(world: World) -> None:
    world.documents.append({"content": f"a {MARK} b", "metadata": {"title": "Gates"}})
    body = world.build(retrieval_only=True, model={"url": "", "slug": ""})
    answer = json.loads((await world.ask("blocks", body)).body)
    assert (answer["response"], answer["sources"]["Gates"]["content"]) == ("", "a ████████ b")
    assert len(world.seen) == 1


async def test_more_documents_than_were_asked_for_are_not_read(world: World) -> None:
    world.documents.extend([{"content": str(at), "metadata": {"title": f"T{at}"}} for at in range(10_000)])
    answer = json.loads((await world.ask("masks", world.build(top_k=1))).body)
    assert list(answer["sources"]) == ["T0"]
    [told] = answer["retrieval_info"]
    assert (told["documents_retrieved"], told["documents_left_out"], told["status"]) == (1, 9_999, "success")
