# SPDX-License-Identifier: Apache-2.0
"""Binds the endpoints of the table to their handlers, for each port."""

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from lockgate.api.aggregator import routes as chat
from lockgate.api.endpoint import ANY_VALUE, Port
from lockgate.api.endpoints import ENDPOINTS, put_under
from lockgate.api.guardrails import routes as guardrails
from lockgate.api.openai import moderations
from lockgate.api.openai import routes as openai
from lockgate.api.openai import turn_routes as agent
from lockgate.api.openapi import build_document, render_page
from lockgate.compat import find_formats, find_rules
from lockgate.config.refs import check_segment
from lockgate.config.settings import Settings
from lockgate.gateway import Gateway
from lockgate.guard.model_source import NoBackend
from lockgate.server import playground
from lockgate.server.app import Handler, Routes
from lockgate.server.exchange import Exchange
from lockgate.server.health import HealthRoutes, Readiness, api_health, api_ready

Handlers = dict[str, Handler]  # by the name of the endpoint


def api_routes(gateway: Gateway, readiness: Readiness) -> Routes:
    """The routes of the API port."""
    settings = gateway.settings
    completing = openai.OpenAIRoutes(gateway, gateway.openai or NoBackend(), find_formats(settings))
    agents = agent.AgentRoutes(gateway, completing)
    handlers: Handlers = {
        **_guardrails_handlers(gateway),
        **_client_handlers(gateway, completing, agents),
        **_chat_handlers(gateway),
        "health": api_health,
        "ready": partial(api_ready, readiness),
        "document": openapi_document,
        "docs": docs_page,
        "redoc": docs_page,
    }
    others = [ANY_VALUE] if gateway.openai is not None else []  # names of the upstream server's models
    values: dict[str, Iterable[str]] = {"showModel": [*agents.names, *others]}
    if settings.server.playground:
        page = playground.PlaygroundRoutes(gateway)
        handlers |= {"page": page.send, "pageFile": page.send, "about": page.send_choices}
        values["pageFile"] = page.files
    return bind(Port.API, settings, handlers, values)


def health_routes(gateway: Gateway) -> Routes:
    """The routes of the health port."""
    health = HealthRoutes(gateway)
    handlers: Handlers = {"versions": health.health, "info": health.info, "metrics": health.metrics}
    return bind(Port.HEALTH, gateway.settings, handlers)


def bind(
    port: Port, settings: Settings, handlers: Handlers, values: Mapping[str, Iterable[str]] | None = None
) -> Routes:
    """The routes of a port. `values`: by endpoint, the values of the variable at the end of its path."""
    routes: dict[str, dict[str, Handler]] = {}
    has_extensions = find_rules(settings).has_extensions
    policies = [name for name in settings.policies if check_segment(name) is None and has_extensions]
    for one in ENDPOINTS:
        handler = handlers.get(one.name)
        if one.port is not port or handler is None or not one.exists(settings):
            continue
        paths = [one.path]
        if one.is_template:
            listed = (values or {}).get(one.name, ())
            paths = [one.path if value == ANY_VALUE else one.prefix + value for value in listed]
        for path in paths:
            routes.setdefault(path, {})[one.method] = handler
            for policy in policies if one.takes_policy else ():
                if under := put_under(policy, path):
                    routes.setdefault(under, {})[one.method] = partial(_attend_under, policy, handler)
    return routes


async def openapi_document(exchange: Exchange) -> None:
    """GET /openapi.json."""
    await exchange.reply.answer_json(msgspec.json.encode(build_document()))


async def docs_page(exchange: Exchange) -> None:
    """GET /docs and /redoc."""
    policy = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
    await exchange.reply.answer(200, render_page(), (b"content-type", b"text/html; charset=utf-8"), policy)


async def _attend_under(policy: str, handler: Handler, exchange: Exchange) -> None:
    exchange.request.policy = policy
    await handler(exchange)


def _guardrails_handlers(gateway: Gateway) -> Handlers:
    formats = find_formats(gateway.settings)
    detecting = guardrails.GuardrailsRoutes(gateway, formats)
    generating = guardrails.GenerationRoutes(gateway, gateway.generation or NoBackend(), formats)
    return {
        "classify": generating.classify,
        "classifyStream": generating.classify_stream,
        "generate": generating.generate,
        "detectContent": detecting.detect_content,
        "streamContent": detecting.stream_content,
        "detectChat": detecting.detect_chat,
        "detectContext": detecting.detect_context,
        "detectGenerated": detecting.detect_generated,
        "moderate": moderations.ModerationRoutes(gateway).moderate,
    }


def _chat_handlers(gateway: Gateway) -> Handlers:
    """Answers from documents, and their trace if the settings enable it."""
    answering = chat.ChatRoutes(gateway)
    handlers: Handlers = {"answer": answering.answer_whole, "answerStream": answering.answer_stream}
    if gateway.settings.server.trace:
        handlers["tracedAnswerStream"] = playground.TraceRoutes(gateway, answering.answer_stream).answer_stream
    return handlers


def _client_handlers(gateway: Gateway, completing: openai.OpenAIRoutes, agents: agent.AgentRoutes) -> Handlers:
    """The endpoints for OpenAI and Ollama clients. Without agents or models here, completions go to the upstream."""
    handlers: Handlers = {
        "clientChat": agents.complete_chat,
        "clientText": agents.complete_text,
        **{name: partial(agents.answer, form) for name, form in agent.TEXT_FORMATS.items()},
        "ollamaTags": agents.list_tags,
        "ollamaVersion": agent.tell_version,
        "listModels": agents.list_models,
        "showModel": agents.show_model,
    }
    if gateway.openai is None:
        return handlers
    handlers |= {"completeChat": completing.complete_chat, "completeText": completing.complete_text}
    if not agents.names:
        handlers |= {"clientChat": completing.complete_chat, "clientText": completing.complete_text}
    return handlers
