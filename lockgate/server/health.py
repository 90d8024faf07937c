# SPDX-License-Identifier: Apache-2.0
"""Health of the process and of the parts behind it."""

import asyncio
from typing import Any

import msgspec

from lockgate._version import __version__
from lockgate.api.passthrough import build_passthrough
from lockgate.gate.values import Health
from lockgate.gateway import Gateway
from lockgate.server.exchange import Exchange
from lockgate.server.readiness import Readiness
from lockgate.telemetry import render_metrics

_EMULATED = {"fms-guardrails-orchestr8": "0.18.3"}
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_encode = msgspec.json.Encoder().encode


def _describe(health: Health) -> dict[str, Any]:
    """A service's health as /info tells it: a code that says nothing is left out."""
    told: dict[str, Any] = {"status": health.status}
    if not 200 <= health.code < 300:
        told["code"] = health.code
    if health.reason is not None:
        told["reason"] = health.reason
    return told


class HealthRoutes:
    """The endpoints of one open gateway."""

    def __init__(self, gateway: Gateway) -> None:
        versions = _EMULATED | ({"lockgate": __version__} if gateway.rules.has_extensions else {})
        self._versions = _encode(versions)
        self._gateway = gateway
        self._headers = build_passthrough(gateway.settings)

    async def health(self, exchange: Exchange) -> None:
        """GET /health on the health port."""
        await exchange.reply.answer_json(self._versions)

    async def info(self, exchange: Exchange) -> None:
        """GET /info on the health port."""
        healths = await self._gateway.probe(self._headers(exchange))
        services = {name: _describe(health) for name, health in healths.items()}
        await exchange.reply.answer_json(_encode({"services": services}))

    async def metrics(self, exchange: Exchange) -> None:
        """GET /metrics on the health port."""
        await exchange.reply.answer(200, await asyncio.to_thread(render_metrics), _METRICS_TYPE)


async def api_health(exchange: Exchange) -> None:
    """GET /health on the API port."""
    await exchange.reply.answer_json(b'{"status":"healthy","service":"lockgate"}')


class ReadyRoute:
    """GET /ready on the API port: whether everything that agents need has been reached once."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def ready(self, exchange: Exchange) -> None:
        """The answer; without agents there is nothing to wait for."""
        if self._readiness.is_ready:
            await exchange.reply.answer_json(b'{"status":"ready","checks":{}}')
            return
        checks = dict.fromkeys(self._readiness.missing, "not reached yet")
        await exchange.reply.answer_json(_encode({"status": "not ready", "checks": checks}), 503)
