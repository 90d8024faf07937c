# SPDX-License-Identifier: Apache-2.0
"""Health of the process and its upstreams, and readiness: whether all needed services have answered."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from lockgate._version import __version__
from lockgate.api.endpoint import HealthAnswer, ReadyAnswer
from lockgate.api.guarded_answer import build_passthrough
from lockgate.gate.values import Health
from lockgate.gateway import Gateway
from lockgate.interfaces import Probe
from lockgate.server.exchange import Exchange
from lockgate.task_groups import run_group
from lockgate.telemetry import LogEvent, describe_exception, log_event, render_metrics

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_PROBE_S = 5.0
_EMULATED = {"fms-guardrails-orchestr8": "0.18.3"}
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_encode = msgspec.json.Encoder().encode


class Readiness:
    """Tracks which of the needed services have not been reached yet, in this process."""

    def __init__(self, needed: Mapping[str, Probe]) -> None:
        self._missing = dict(needed)

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the services that have not been reached yet."""
        return tuple(self._missing)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Probe services that have not answered yet, again and again."""
        async with run_group() as group:
            group.create_task(self._probe_missing())
            yield

    async def _probe_missing(self) -> None:
        pause_s = _FIRST_PAUSE_S
        logged: set[str] = set()
        while self._missing:
            names = list(self._missing)
            answers = await asyncio.gather(*[_probe(self._missing[name]) for name in names], return_exceptions=True)
            for name, answer in zip(names, answers, strict=True):
                health = answer if isinstance(answer, Health) else Health("UNKNOWN", 500, describe_exception(answer))
                if health.status == "HEALTHY":
                    del self._missing[name]
                elif name not in logged:
                    logged.add(name)
                    why = {"reason": health.reason} if health.reason else {}
                    fields = {"part": name, "status": health.status, "code": health.code, **why}
                    log_event(LogEvent.UNHEALTHY, logging.WARNING, **fields)
            if self._missing:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def _probe(probe: Probe) -> Health:
    """The service's health; raises TimeoutError, or any exception that a plugin's probe raises."""
    async with asyncio.timeout(_PROBE_S):
        return await probe.probe(())


def _describe(health: Health) -> dict[str, Any]:
    """A service's health as /info shows it; a code only for a failure."""
    fields: dict[str, Any] = {"status": health.status}
    if not 200 <= health.code < 300:
        fields["code"] = health.code
    if health.reason is not None:
        fields["reason"] = health.reason
    return fields


class HealthRoutes:
    """The health port's endpoints of one open gateway."""

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
    await exchange.reply.answer_json(_encode(HealthAnswer("healthy", "lockgate")))


async def api_ready(readiness: Readiness, exchange: Exchange) -> None:
    """GET /ready on the API port: 503 until every needed service was reached; ready at once without agents."""
    checks = dict.fromkeys(readiness.missing, "not reached yet")
    status = "not ready" if checks else "ready"
    await exchange.reply.answer_json(_encode(ReadyAnswer(status, checks)), 503 if checks else 200)
