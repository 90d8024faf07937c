# SPDX-License-Identifier: Apache-2.0
"""The table of endpoints is complete and unambiguous, and every endpoint of it has a handler."""

from dataclasses import replace

import pytest

from lockgate.api.endpoint import GUARDRAILS, CorsRule, Port, Scope
from lockgate.api.endpoints import ENDPOINTS, OTHER, find_cors, find_endpoint, list_endpoints, put_under, split_policy
from lockgate.config.policies import PolicySettings
from lockgate.config.settings import ServerSettings, Settings
from lockgate.gateway import open_gateway
from lockgate.guard.model_source import NoBackend
from lockgate.server.app import Routes
from lockgate.server.health import Readiness
from lockgate.server.routes import api_routes, health_routes

EVERYTHING = Settings(server=ServerSettings(docs=True, playground=True, trace=True))


async def build_routes(settings: Settings) -> tuple[Routes, Routes]:
    """The routes of the API port and of the health port, where every backend is configured."""
    async with open_gateway(settings) as gateway:
        whole = replace(gateway, generation=NoBackend(), openai=NoBackend())
        return api_routes(whole, Readiness({})), health_routes(whole)


async def test_every_endpoint_has_a_handler_and_every_route_an_endpoint() -> None:
    api, health = await build_routes(EVERYTHING)
    for port, routes in ((Port.API, api), (Port.HEALTH, health)):
        for one in ENDPOINTS:
            if one.port is port:
                served = [path for path in routes if find_endpoint(path).path == one.path]
                assert served, one.path
                assert all(one.method in routes[path] for path in served)
        assert all(find_endpoint(path) is not OTHER for path in routes)


async def test_every_endpoint_that_takes_a_body_is_listed_documented_and_has_a_span() -> None:
    api, _ = await build_routes(Settings())
    posts = {path for path, methods in api.items() if "POST" in methods}
    listed = {row[0] for row in list_endpoints(Settings())}
    assert posts == {one.path for one in ENDPOINTS if one.request}
    assert posts <= listed
    assert all(one.span and one.summary and one.response for one in ENDPOINTS if one.request)
    assert {find_endpoint(path).method for path in listed - posts - {"path"}} == {"GET"}


async def test_the_existing_orchestrators_paths_are_all_that_compat_fms_serves() -> None:
    api, _ = await build_routes(Settings(compat="fms"))
    assert {path.split("/")[1] for path in api} == {"api"}
    assert not any(find_endpoint(path).takes_policy for path in api)


async def test_endpoints_of_openais_clients_are_served_under_each_policy() -> None:
    policies = {name: PolicySettings(name) for name in ("strict", "api", "a/b")}
    api, _ = await build_routes(Settings(policies=policies))
    own = {path for path in api if find_endpoint(path).takes_policy and split_policy(path) is None}
    under = {path for path in api if split_policy(path) is not None}
    assert own == {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model}", "/v1/moderations"}
    assert under == {f"/strict{path}" for path in own}


def test_names_and_addresses_are_unique() -> None:
    assert len({one.name for one in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(one.port, one.path, one.method) for one in ENDPOINTS}) == len(ENDPOINTS)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models", "listModels"),
        ("/v1/models/agent/brunix", "showModel"),
        ("/strict/v1/chat/completions", "clientChat"),
        ("/playground/v1/chat/completions", "clientChat"),
        ("/playground/page.js", "pageFile"),
        ("/playground/about", "about"),
        ("/playground/", ""),
        ("/strict/api/chat", ""),
        ("/api/v1/chat/completions", ""),
        ("/api/v1/other", ""),
        ("/v1/v1/models", "listModels"),
        ("/a/b/v1/models", ""),
    ],
)
def test_a_path_has_one_endpoint(path: str, name: str) -> None:
    assert find_endpoint(path).name == name


def test_a_policy_cannot_have_the_name_of_another_prefix() -> None:
    assert put_under("strict", "/v1/models") == "/strict/v1/models"
    assert [put_under(name, "/v1/models") for name in ("api", "a/b")] == ["", ""]


def test_paths_without_an_endpoint_have_the_cors_rule_of_their_prefix() -> None:
    assert find_cors("/api/v1/other") is CorsRule.AGGREGATOR
    assert find_cors("/api/v2/other") is find_cors("/strict/v1/models") is CorsRule.SERVER
    assert find_cors("/playground/other.js") is CorsRule.NONE


def test_only_pages_and_probes_are_open_to_anyone() -> None:
    for one in ENDPOINTS:
        assert one.is_open == (one.scope in (Scope.PAGE, Scope.PROBE))
        assert not one.is_open or (one.method == "GET" and one.format is GUARDRAILS)
