# SPDX-License-Identifier: Apache-2.0
"""The tables of routes: what each port answers."""

from lockgate.assembly import Gateway
from lockgate.core.endpoints import CHAT_PATH, CHAT_STREAM_PATH
from lockgate.pipelines.generate import NoBackend
from lockgate.server.http import chat, generation, guardrails, openai
from lockgate.server.http.app import Endpoint, Routes
from lockgate.server.http.docs import docs_page, openapi_document
from lockgate.server.http.health import HealthRoutes, api_health, api_ready


def api_routes(gateway: Gateway) -> Routes:
    """The API port."""
    detecting = guardrails.GuardrailsRoutes(gateway)
    generating = generation.GenerationRoutes(gateway, gateway.generation or NoBackend())
    answering = chat.ChatRoutes(gateway)
    posts: dict[str, Endpoint] = {
        guardrails.CONTENT_PATH: detecting.detect_content,
        guardrails.STREAM_CONTENT_PATH: detecting.stream_content,
        guardrails.CHAT_PATH: detecting.detect_chat,
        guardrails.CONTEXT_PATH: detecting.detect_context,
        guardrails.GENERATED_PATH: detecting.detect_generated,
        generation.CLASSIFICATION_PATH: generating.classify,
        generation.STREAMING_PATH: generating.classify_stream,
        generation.GENERATION_PATH: generating.generate,
        CHAT_PATH: answering.answer_whole,
        CHAT_STREAM_PATH: answering.answer_stream,
    }
    if gateway.openai is not None:
        completing = openai.OpenAIRoutes(gateway, gateway.openai)
        posts[openai.CHAT_PATH] = completing.complete_chat
        posts[openai.TEXT_PATH] = completing.complete_text
        if not gateway.is_fms:
            posts[openai.CLIENT_CHAT_PATH] = completing.complete_chat
            posts[openai.CLIENT_TEXT_PATH] = completing.complete_text
    routes: dict[str, dict[str, Endpoint]] = {path: {"POST": endpoint} for path, endpoint in posts.items()}
    if not gateway.is_fms:
        routes["/health"] = {"GET": api_health}
        routes["/ready"] = {"GET": api_ready}
        routes["/openapi.json"] = {"GET": openapi_document}
    if gateway.settings.server.docs:
        routes["/openapi.json"] = {"GET": openapi_document}
        routes["/docs"] = routes["/redoc"] = {"GET": docs_page}
    return routes


def health_routes(gateway: Gateway) -> Routes:
    """The health port."""
    health = HealthRoutes(gateway)
    return {"/health": {"GET": health.health}, "/info": {"GET": health.info}, "/metrics": {"GET": health.metrics}}
