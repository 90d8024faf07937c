# SPDX-License-Identifier: Apache-2.0
"""`GET /v1/models` lists the models of the server behind us beside ours (D-18)."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lockgate.api.openai.model_list import CACHE_S, MAX_MODELS, ProxiedModels
from lockgate.errors import UpstreamError
from tests.contracts.http_peers import Exchange, Script, reply_json
from tests.server.backend_peers import before
from tests.server.http_client import call
from tests.server.test_agent_passing import NAMED

MODELS, TAGS = "/v1/models", "/api/tags"
LISTED = {
    "object": "list",
    "data": [
        {"id": "big", "object": "model", "created": 7, "owned_by": "acme", "permission": []},
        {"id": "org/small"},
        {"id": "tiny", "object": "model", "created": 7, "owned_by": "acme"},
        {"id": 3},
        {"id": ""},
        "none",
    ],
}


async def list_names(port: int, path: str = MODELS) -> list[str]:
    answer = await call(port, path, method="GET")
    assert answer.status == 200
    return [one["id"] for one in answer.json()["data"]]


async def test_models_of_the_server_behind_us_follow_ours_and_a_name_of_ours_wins() -> None:
    async with before(reply_json(LISTED), NAMED) as (port, peer):
        listed = (await call(port, MODELS, method="GET")).json()["data"]
        under = await list_names(port, f"/masked{MODELS}")
        tags = (await call(port, TAGS, method="GET")).json()["models"]
    assert [(one["id"], one["owned_by"]) for one in listed] == [
        ("tiny", "lockgate"), ("big", "acme"), ("org/small", "lockgate"),
    ]  # fmt: skip
    assert listed[1] == {"id": "big", "object": "model", "created": 7, "owned_by": "acme"}
    assert under == ["tiny", "big", "org/small"]
    assert [one["name"] for one in tags] == ["tiny"]  # of Ollama's routes, which do not lead to that server
    assert [(one.method, one.path) for one in peer.received] == [("GET", MODELS)]


async def test_one_model_is_shown_wherever_it_is() -> None:
    async with before(reply_json(LISTED), NAMED) as (port, _):
        for path in (MODELS, f"/masked{MODELS}"):
            assert (await call(port, f"{path}/big", method="GET")).json()["owned_by"] == "acme"
            assert (await call(port, f"{path}/org%2Fsmall", method="GET")).json()["id"] == "org/small"
            assert (await call(port, f"{path}/tiny", method="GET")).json()["owned_by"] == "lockgate"
            unknown = await call(port, f"{path}/none", method="GET")
            assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")
            assert (await call(port, f"{path}/big", b"{}")).status == 405


async def break_off(exchange: Exchange) -> None:
    exchange.reset()


@pytest.mark.parametrize(
    "script",
    [reply_json({"detail": "Not Found"}, 404), reply_json(LISTED, 500), reply_json({"data": "none"}), reply_json([1]),
     break_off],
)  # fmt: skip
async def test_a_server_that_lists_nothing_leaves_ours(script: Script) -> None:
    async with before(script, NAMED) as (port, _):
        assert await list_names(port) == ["tiny"]
        assert (await call(port, f"{MODELS}/tiny", method="GET")).status == 200
        assert (await call(port, f"{MODELS}/big", method="GET")).status == 404


async def test_the_token_of_the_service_goes_along_and_that_of_the_caller_does_not() -> None:
    extra = NAMED + "passthrough_headers: [authorization]\n"
    async with before(reply_json(LISTED), extra) as (port, peer):
        await call(port, MODELS, method="GET", headers={"authorization": "Bearer caller"})
    assert "authorization" not in dict(peer.received[0].headers)


class Lister:
    """A server that lists models, or fails."""

    def __init__(self, listed: Sequence[Any]) -> None:
        self.listed = listed
        self.asked = 0
        self.error: UpstreamError | None = None

    async def list_models(self) -> Sequence[Any]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.listed


async def test_the_server_is_asked_every_thirty_seconds_also_where_it_fails() -> None:
    now = 100.0
    server = Lister([{"id": "a"}])
    models = ProxiedModels(server, lambda: now)
    assert [list(one) for one in await asyncio.gather(models.find(), models.find())] == [["a"], ["a"]]
    now += CACHE_S - 1
    server.error = UpstreamError("openai", "down")
    assert (list(await models.find()), server.asked) == (["a"], 1)
    now += 1
    assert (list(await models.find()), list(await models.find()), server.asked) == ([], [], 2)
    now += CACHE_S
    server.error = None
    assert (list(await models.find()), server.asked) == (["a"], 3)


async def test_a_list_without_end_is_cut() -> None:
    listed = [{"id": str(number)} for number in range(MAX_MODELS + 5)] + [{"id": "x" * 300}]
    assert len(await ProxiedModels(Lister([{"id": "x" * 300}, *listed])).find()) == MAX_MODELS
    assert json.dumps(await ProxiedModels(None).find()) == "{}"
