# SPDX-License-Identifier: Apache-2.0
"""Health of the process and its upstreams, and readiness: whether all needed services have answered."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from lockgate._version import __version__
from lockgate.api.endpoint import HealthAnswer, ReadyAnswer
from lockgate.api.guarded_answer import build_passthrough
from lockgate.config.report import hash_settings
from lockgate.gate.values import Health
from lockgate.gateway import Gateway
from lockgate.interfaces import Probe
from lockgate.server.exchange import Exchange
from lockgate.task_groups import run_group
from lockgate.telemetry import LogEvent, describe_exception, log_event, render_metrics

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_PROBE_S = 5.0
# A failure of the sessions, and its end, show within five seconds.
_SESSIONS, _WATCH_PAUSE_S, _LATE_S, _WATCH_PROBE_S = "sessions", 1.5, 1.5, 2.0
_LATE = Health("UNHEALTHY", 504, "no answer in time")
_EMULATED = {"fms-guardrails-orchestr8": "0.18.3"}
_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_encode = msgspec.json.Encoder().encode


class Readiness:
    """Tracks which of the needed services have not been reached yet, and whether sessions work, in this process."""

    def __init__(self, needed: Mapping[str, Probe], before: "Readiness | None" = None) -> None:
        self._needed = needed
        known = before.list_reached() if before is not None else []
        self._missing = {name: one for name, one in needed.items() if not any(one is other for other in known)}
        self._sessions = needed.get(_SESSIONS)
        self._do_sessions_fail: bool = before is not None and before.has_failing(self._sessions)

    def has_failing(self, sessions: Probe | None) -> bool:
        """Whether these sessions fail, as far as is known."""
        return self._do_sessions_fail and self._sessions is sessions

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing and sessions work."""
        return not self._missing and not self._do_sessions_fail

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the services that have not been reached yet."""
        return tuple(self._missing)

    @property
    def checks(self) -> dict[str, str]:
        """What keeps this process from being ready, by the name of the service."""
        failing = {_SESSIONS: "failing"} if self._do_sessions_fail else {}
        return failing | dict.fromkeys(self._missing, "not reached yet")

    def list_reached(self) -> list[Probe]:
        """The probes of the services that have answered."""
        return [probe for name, probe in self._needed.items() if name not in self._missing]

    async def ask_missing(self) -> None:
        """Probes each service that has not answered yet once more."""
        names = list(self._missing)
        healths = await asyncio.gather(*[_ask(self._missing[name]) for name in names])
        for name, health in zip(names, healths, strict=True):
            if health.status == "HEALTHY":
                self._missing.pop(name, None)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Probes services that have not answered yet, again and again; afterwards the sessions alone."""
        async with run_group() as group:
            group.create_task(self._probe_needed())
            yield

    async def _probe_needed(self) -> None:
        await self._probe_missing()
        if self._sessions is not None:
            await self._probe_sessions(self._sessions)

    async def _probe_missing(self) -> None:
        pause_s = _FIRST_PAUSE_S
        logged: set[str] = set()
        while self._missing:
            names = list(self._missing)
            healths = await asyncio.gather(*[_ask(self._missing[name]) for name in names])
            for name, health in zip(names, healths, strict=True):
                if health.status == "HEALTHY":
                    self._missing.pop(name, None)
                elif name not in logged:
                    logged.add(name)
                    _log_unhealthy(name, health)
            if self._missing:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _probe_sessions(self, probe: Probe) -> None:
        """Probes the session store from now on. An answer that is late counts as a failure until it comes."""
        asked: asyncio.Future[Health] = asyncio.ensure_future(_ask(probe, _WATCH_PROBE_S))
        try:
            while True:
                await asyncio.wait([asked], timeout=_LATE_S)
                self._note_sessions(asked.result() if asked.done() else _LATE)
                if asked.done():
                    await asyncio.sleep(_WATCH_PAUSE_S)
                    asked = asyncio.ensure_future(_ask(probe, _WATCH_PROBE_S))
        finally:
            asked.cancel()

    def _note_sessions(self, health: Health) -> None:
        fails = health.status != "HEALTHY"
        if fails and not self._do_sessions_fail:
            _log_unhealthy(_SESSIONS, health)
        self._do_sessions_fail = fails


def _log_unhealthy(name: str, health: Health) -> None:
    why = {"reason": health.reason} if health.reason else {}
    log_event(LogEvent.UNHEALTHY, logging.WARNING, part=name, status=health.status, code=health.code, **why)


async def _ask(probe: Probe, timeout_s: float = _PROBE_S) -> Health:
    """The service's health; it is unknown where a plugin's probe raises or answers too late."""
    [answer] = await asyncio.gather(_probe(probe, timeout_s), return_exceptions=True)
    return answer if isinstance(answer, Health) else Health("UNKNOWN", 500, describe_exception(answer))


async def _probe(probe: Probe, timeout_s: float) -> Health:
    async with asyncio.timeout(timeout_s):
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
        self._loaded_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._hash = ""

    def _describe_settings(self) -> dict[str, str]:
        """Which settings are in force, and since when."""
        self._hash = self._hash or hash_settings(self._gateway.settings)
        return {"hash": self._hash, "loaded_at": self._loaded_at}

    async def health(self, exchange: Exchange) -> None:
        """GET /health on the health port."""
        await exchange.reply.answer_json(self._versions)

    async def info(self, exchange: Exchange) -> None:
        """GET /info on the health port."""
        healths = await self._gateway.probe(self._headers(exchange))
        services = {name: _describe(health) for name, health in healths.items()}
        in_force = {"settings": self._describe_settings()} if self._gateway.rules.has_extensions else {}
        await exchange.reply.answer_json(_encode({"services": services, **in_force}))

    async def metrics(self, exchange: Exchange) -> None:
        """GET /metrics on the health port."""
        await exchange.reply.answer(200, await asyncio.to_thread(render_metrics), _METRICS_TYPE)


async def api_health(exchange: Exchange) -> None:
    """GET /health on the API port."""
    await exchange.reply.answer_json(_encode(HealthAnswer("healthy", "lockgate")))


async def api_ready(readiness: Readiness, exchange: Exchange) -> None:
    """GET /ready on the API port: 503 until every needed service was reached, and while sessions fail."""
    checks = readiness.checks
    status = "not ready" if checks else "ready"
    await exchange.reply.answer_json(_encode(ReadyAnswer(status, checks)), 503 if checks else 200)
