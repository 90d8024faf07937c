# SPDX-License-Identifier: Apache-2.0
"""The tables of routes: what each port answers."""

from functools import partial

from lockgate.assembly import Gateway
from lockgate.core.endpoints import (
    CHAT_PATH,
    CHAT_STREAM_PATH,
    MODERATIONS_PATH,
    OLLAMA_CHAT_PATH,
    OLLAMA_MODELS_PATH,
    OLLAMA_TEXT_PATH,
    OLLAMA_VERSION_PATH,
    check_segment,
    is_client_path,
)
from lockgate.pipelines.generate import NoBackend
from lockgate.server.http import agent, chat, generation, guardrails, moderations, openai, playground
from lockgate.server.http.app import Endpoint, Routes
from lockgate.server.http.docs import docs_page, openapi_document
from lockgate.server.http.exchange import Exchange
from lockgate.server.http.health import HealthRoutes, ReadyRoute, api_health
from lockgate.server.readiness import Readiness


def api_routes(gateway: Gateway, readiness: Readiness) -> Routes:
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
    completing = None if gateway.openai is None else openai.OpenAIRoutes(gateway, gateway.openai)
    if completing is not None:
        posts[openai.CHAT_PATH] = completing.complete_chat
        posts[openai.TEXT_PATH] = completing.complete_text
    routes: dict[str, dict[str, Endpoint]] = {path: {"POST": endpoint} for path, endpoint in posts.items()}
    if gateway.agents or not gateway.is_fms:
        routes |= _client_routes(gateway, completing)
    if not gateway.is_fms:
        routes[MODERATIONS_PATH] = {"POST": moderations.ModerationRoutes(gateway).moderate}
        routes["/health"] = {"GET": api_health}
        routes["/ready"] = {"GET": ReadyRoute(readiness).ready}
        routes["/openapi.json"] = {"GET": openapi_document}
    if not gateway.is_fms:
        routes |= _list_policy_routes(gateway, routes)
    routes |= _list_open_routes(gateway, answering)
    if gateway.settings.server.docs:
        routes["/openapi.json"] = {"GET": openapi_document}
        routes["/docs"] = routes["/redoc"] = {"GET": docs_page}
    return routes


def _list_open_routes(gateway: Gateway, answering: chat.ChatRoutes) -> dict[str, dict[str, Endpoint]]:
    """Playground and trace, where the settings ask for them."""
    server = gateway.settings.server
    page = playground.PlaygroundRoutes(gateway).list_routes() if server.playground else {}
    trace = playground.TraceRoutes(gateway, answering.answer_stream).list_routes() if server.trace else {}
    return page | trace


def _list_policy_routes(gateway: Gateway, routes: Routes) -> dict[str, dict[str, Endpoint]]:
    """The paths of OpenAI's clients once more for each policy, under its name: whatever is asked there is under it."""
    own = {path: methods for path, methods in routes.items() if path.startswith("/v1/")}
    found: dict[str, dict[str, Endpoint]] = {}
    for name in gateway.settings.policies:
        for path, methods in own.items():
            under = f"/{name}{path}"
            if check_segment(name) is None and is_client_path(under):
                found[under] = {method: partial(_attend_under, name, one) for method, one in methods.items()}
    return found


async def _attend_under(policy: str, endpoint: Endpoint, exchange: Exchange) -> None:
    exchange.policy = policy
    await endpoint(exchange)


def _client_routes(gateway: Gateway, completing: openai.OpenAIRoutes | None) -> dict[str, dict[str, Endpoint]]:
    """What clients of OpenAI's and Ollama's call. Where none of ours can be named, completions are passed on unread."""
    speaking = agent.AgentRoutes(gateway)
    completes: agent.AgentRoutes | openai.OpenAIRoutes = speaking
    if completing is not None and not gateway.is_fms:
        passing = agent.AgentRoutes(gateway, completing.complete_chat_body, completing.complete_text_body)
        completes = passing if speaking.names else completing
    return {
        openai.CLIENT_CHAT_PATH: {"POST": completes.complete_chat},
        openai.CLIENT_TEXT_PATH: {"POST": completes.complete_text},
        OLLAMA_CHAT_PATH: {"POST": speaking.chat},
        OLLAMA_TEXT_PATH: {"POST": speaking.generate},
        OLLAMA_MODELS_PATH: {"GET": speaking.list_tags},
        OLLAMA_VERSION_PATH: {"GET": agent.tell_version},
        agent.MODELS_PATH: {"GET": speaking.list_models},
        **{f"{agent.MODELS_PATH}/{name}": {"GET": speaking.show_model} for name in speaking.names},
    }


def health_routes(gateway: Gateway) -> Routes:
    """The health port."""
    health = HealthRoutes(gateway)
    return {"/health": {"GET": health.health}, "/info": {"GET": health.info}, "/metrics": {"GET": health.metrics}}
