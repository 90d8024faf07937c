# SPDX-License-Identifier: Apache-2.0
"""The tables of routes: what each port answers."""

from lockgate.assembly import Gateway
from lockgate.server.http.app import Endpoint, Routes
from lockgate.server.http.docs import docs_page, openapi_document
from lockgate.server.http.guardrails import CONTENT_PATH, STREAM_CONTENT_PATH, GuardrailsRoutes
from lockgate.server.http.health import HealthRoutes, api_health, api_ready


def api_routes(gateway: Gateway) -> Routes:
    """The API port."""
    guardrails = GuardrailsRoutes(gateway)
    routes: dict[str, dict[str, Endpoint]] = {
        CONTENT_PATH: {"POST": guardrails.detect_content},
        STREAM_CONTENT_PATH: {"POST": guardrails.stream_content},
    }
    if not gateway.is_fms:
        routes["/health"] = {"GET": api_health}
        routes["/ready"] = {"GET": api_ready}
        routes["/openapi.json"] = {"GET": openapi_document}
    if gateway.settings.server.docs:
        routes["/openapi.json"] = {"GET": openapi_document}
        routes["/docs"] = {"GET": docs_page}
    return routes


def health_routes(gateway: Gateway) -> Routes:
    """The health port."""
    health = HealthRoutes(gateway)
    return {"/health": {"GET": health.health}, "/info": {"GET": health.info}}
