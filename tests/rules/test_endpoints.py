# SPDX-License-Identifier: Apache-2.0
"""Every endpoint that is served is listed by `lockgate check` and has a span of its own."""

from dataclasses import replace

from lockgate.assembly import open_gateway
from lockgate.config.report import ENDPOINTS
from lockgate.config.settings import Settings
from lockgate.core.endpoints import OLLAMA_PATHS
from lockgate.pipelines.generate import NoBackend
from lockgate.server.http.routes import api_routes
from lockgate.server.readiness import Readiness
from lockgate.telemetry.names import ENDPOINT_SPANS

LISTED = [path for path, _, _ in ENDPOINTS]


async def test_every_endpoint_is_listed_and_has_a_span() -> None:
    async with open_gateway(Settings()) as gateway:
        routes = api_routes(replace(gateway, generation=NoBackend(), openai=NoBackend()), Readiness({}))
    served = {path for path, methods in routes.items() if "POST" in methods}
    assert served == set(LISTED) == set(ENDPOINT_SPANS)
    assert len(LISTED) == len(served)
    assert routes.keys() >= OLLAMA_PATHS | {"/v1/models"}
